"""A prompt made ready for a solver: checked, broadcast, and scaled by exact powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from linear_icl._arrays import (
    Array,
    as_arrays,
    broadcast_batch,
    broadcast_start,
    check_shapes,
    like,
    power_of_two_scale,
    times_power_of_two,
)


@dataclass
class Prompt:
    """Blocks A, B, C (C may be None) whose largest entries lie in [1, 2), and the way back."""

    xp: Any
    A: Array
    B: Array
    C: Array | None
    batch: tuple[int, ...]
    scale_a: np.ndarray
    scale_b: np.ndarray
    scale_c: np.ndarray
    vector_labels: bool
    vector_query: bool

    @property
    def d(self) -> int:
        """The number of features."""
        return self.A.shape[-2]

    @property
    def n(self) -> int:
        """The number of examples."""
        return self.A.shape[-1]

    def answer_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """The caller's answer in units of ours, as factor · 2^exponent, which cannot overflow."""
        (a, of_a), (b, of_b), (c, of_c) = map(np.frexp, (self.scale_a, self.scale_b, self.scale_c))
        return b / a * c, of_b - of_a + of_c

    def weights(self, W: Array) -> Array:
        """Weights of the scaled problem → weights of the caller's problem and shape."""
        (a, of_a), (b, of_b) = np.frexp(self.scale_a), np.frexp(self.scale_b)
        W = times_power_of_two("W", W * like(b, W) / like(a, W), of_b - of_a)
        return W[..., 0, :] if self.vector_labels else W

    def prediction(self, D: Array) -> Array:
        """Predictions of the scaled problem → the caller's block D, scale and shape."""
        factor, exponent = self.answer_scale()
        D = times_power_of_two("D", D * like(factor, D), exponent)
        D = D[..., 0] if self.vector_query else D
        if self.vector_labels:
            D = D[0] if self.vector_query else D[..., 0, :]
        return D

    def start(self, W0: Any) -> Array:
        """A caller's starting weights in the scaled problem; zeros when None."""
        shape = (*self.batch, self.B.shape[-2], self.d)
        if W0 is None:
            return self.xp.zeros(shape, dtype=self.A.dtype, device=self.A.device)
        xp, _, W0 = as_arrays(A=self.A, W0=W0)
        W0 = W0[None, :] if self.vector_labels and W0.ndim == 1 else W0
        W0 = broadcast_start("W0", xp.astype(W0, self.A.dtype), shape)
        exponent = np.frexp(self.scale_a)[1] - np.frexp(self.scale_b)[1]
        return times_power_of_two("W0", W0, exponent)


def prepare(A: Any, B: Any, C: Any = None) -> Prompt:
    """Check and scale the blocks of a prompt.

    B of shape (n,) is a single row of labels and C of shape (d,) a single query; the results
    then lose that axis.
    """
    xp, A, B, C = as_arrays(A=A, B=B, C=C, optional=("C",))
    check_shapes(A, B, C)
    vector_labels, vector_query = B.ndim == 1, C is not None and C.ndim == 1
    blocks = {"A": A, "B": B[None, :] if vector_labels else B}
    if C is not None:
        blocks["C"] = C[:, None] if vector_query else C
    batch, arrays = broadcast_batch(xp, **blocks)
    scales = [power_of_two_scale(a) for a in arrays]
    scaled = [a / like(s, a) for a, s in zip(arrays, scales, strict=True)]
    return Prompt(
        xp=xp,
        A=scaled[0],
        B=scaled[1],
        C=scaled[2] if C is not None else None,
        batch=batch,
        scale_a=scales[0],
        scale_b=scales[1],
        scale_c=scales[2] if C is not None else np.ones((1, 1)),
        vector_labels=vector_labels,
        vector_query=vector_query,
    )
