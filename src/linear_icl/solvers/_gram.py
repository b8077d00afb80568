"""EAGLE on the Gram matrix: one pass over the examples, then d × d work only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from linear_icl._arrays import (
    Array,
    as_arrays,
    broadcast_batch,
    check_shapes,
    like,
    norms,
    power_of_two_scale,
    times_power_of_two,
    to_numpy,
    transpose,
)
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members
from linear_icl.solvers._spectrum import Spectrum

# Σ carries κ(A)²; beyond this κ(A) the refinement no longer contracts in double precision.
LARGEST_KAPPA = 2e6
# Numbers in one block of examples: small enough for the cache, large enough for BLAS.
BLOCK_SIZE = 1 << 18
MAX_PASSES = 6


class Examples:
    """A and B as blocks of columns in float64, scaled by powers of two, checked on the way.

    Memory-mapped arrays are never held whole. ``gram`` is the one pass that everything needs.
    """

    def __init__(self, A: Any, B: Any) -> None:
        xp, A = as_arrays(A=A, check_finite=False)
        _, B = as_arrays(B=B, check_finite=False)
        if is_torch_array(A) != is_torch_array(B):
            raise TypeError("A and B must both be NumPy arrays or both be torch tensors")
        check_shapes(A, B)
        self.vector_labels = B.ndim == 1
        self.xp, self.dtype = xp, xp.result_type(A, B)
        B = B[None, :] if self.vector_labels else B
        self.batch, (self.A, self.B) = broadcast_batch(xp, A=A, B=B)
        self.d, self.n = self.A.shape[-2:]
        first = slice(0, self._width())
        self.scale_a = power_of_two_scale(self.A[..., first])
        self.scale_b = power_of_two_scale(self.B[..., first])
        # The caller's weights per unit of ours are 2^exponent.
        self.exponent = np.frexp(self.scale_b)[1] - np.frexp(self.scale_a)[1]

    def _width(self) -> int:
        return max(1, BLOCK_SIZE // max(1, self.d * int(np.prod(self.batch))))

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Scaled float64 blocks (A_k, B_k) of columns."""
        xp = self.xp
        for start in range(0, self.n, self._width()):
            columns = slice(start, start + self._width())
            A = xp.astype(self.A[..., columns], xp.float64)
            B = xp.astype(self.B[..., columns], xp.float64)
            yield A / like(self.scale_a, A), B / like(self.scale_b, B)

    def gram(self) -> tuple[Array, Array]:
        """Σ = AAᵀ and V = BAᵀ.

        Raises
        ------
        ValueError
            Non-finite entries: they show in the sums, which saves a pass to look for them.
        """
        sigma = sum_v = None
        with np.errstate(over="ignore", invalid="ignore"):
            for A, B in self.blocks():
                S, V = A @ transpose(A), B @ transpose(A)
                sigma, sum_v = (S, V) if sigma is None else (sigma + S, sum_v + V)
        if not np.isfinite(to_numpy(sigma)).all():
            raise ValueError(f"A (shape {tuple(self.A.shape)}) holds NaN or infinite entries")
        if not np.isfinite(to_numpy(sum_v)).all():
            raise ValueError(f"B (shape {tuple(self.B.shape)}) holds NaN or infinite entries")
        return sigma, sum_v

    def gradient(self, W: Array) -> Array:
        """(B − WA)Aᵀ with the residual formed example by example, as the data have it."""
        total = 0.0 * W
        for A, B in self.blocks():
            total = total + (B - W @ A) @ transpose(A)
        return total


def solve_gram(
    examples: Examples,
    C: Any,
    *,
    eta: float | None,
    gamma: float,
    rtol: float,
    atol: float,
    maxiter: int,
    refine: bool,
    raise_on_failure: bool,
    decline: bool,
) -> SolveResult | None:
    """Weights through Σ⁺, refined on the data; None when declined as too ill-conditioned."""
    sigma, V = examples.gram()
    # Features of one size: exact, as the factors are powers of two, and the same W, as Σ must
    # be regular here anyway. With a singular Σ it would change which W has the least norm.
    units = _feature_sizes(sigma)
    sigma, V = sigma / (units * transpose(units)), V / units
    spectrum = Spectrum(*_gram_spectrum(sigma))
    solvable = (spectrum.sigma[..., -1:] > 1 / LARGEST_KAPPA).all(axis=-1) & spectrum.full
    if decline and not solvable.all():
        return None
    largest = like(spectrum.norm[..., None] ** 2, sigma)
    layers, remaining, inverse = _inverse(sigma / largest, spectrum, eta, gamma, maxiter, solvable)
    inverse = inverse / largest
    W = (V @ inverse) / units
    members = Members(tuple(W.shape[:-1]))
    members.iterations = members.iterations + layers[..., None]
    zero = norms(V, axis=-1) == 0
    members.record(np.where(zero, 0.0, 1.0))
    members.stop(zero, Status.CONVERGED)
    members.stop(~solvable[..., None] & ~zero, Status.BREAKDOWN)
    members.stop((remaining > max(rtol, 1e-3))[..., None] & ~zero, Status.MAXITER)
    floor = np.ldexp(atol, -examples.exponent)[..., 0]
    least = np.full(members.running.shape, np.inf)
    for _ in range(MAX_PASSES):
        if not members.running.any():
            break
        gradient = examples.gradient(W) / units if refine else V - (W * units) @ sigma
        correction = (gradient @ inverse) / units
        W = members.keep(W + correction, W, axis=-1)
        size, whole = norms(correction, axis=-1), norms(W, axis=-1)
        members.record(size / np.where(whole > 0, whole, 1.0))
        members.stop(size <= np.maximum(rtol * whole, floor), Status.CONVERGED)
        # A correction that is not much smaller than the last one has reached round-off.
        members.stop(size > 0.5 * least, Status.STAGNATED)
        least = size
    note = "" if solvable.all() else "AAᵀ is singular to working precision: use form='data'"
    hopeless = ~solvable[..., None] & np.ones_like(zero)
    W = members.keep_where(hopeless, 0.0 * W, W, axis=-1)
    return _result(examples, C, W, members, spectrum, note, raise_on_failure)


def _feature_sizes(sigma: Array) -> Array:
    """Powers of two below ‖row i of A‖ = √Σᵢᵢ, shape (…, 1, d); 1 for a row of zeros."""
    diagonal = to_numpy(array_namespace(sigma).linalg.diagonal(sigma))
    exponent = np.frexp(np.sqrt(np.where(diagonal > 0, diagonal, 1.0)))[1] - 1
    return like(np.ldexp(1.0, exponent)[..., None, :], sigma)


def _gram_spectrum(gram: Array) -> tuple[np.ndarray, float, float]:
    """√λ of Σ, machine epsilon, and the relative size below which a σ cannot be told from 0."""
    epsilon = float(np.finfo(np.float64).eps)
    plain = gram.detach() if is_torch_array(gram) else gram
    squares = to_numpy(array_namespace(gram).linalg.eigvalsh(plain))[..., ::-1]
    return np.sqrt(np.maximum(squares, 0.0)), epsilon, (gram.shape[-1] * epsilon) ** 0.5


def _inverse(
    E: Array,
    spectrum: Spectrum,
    eta: float | None,
    gamma: float,
    maxiter: int,
    solvable: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, Array]:
    """E⁻¹ for E = AAᵀ with ‖E‖₂ = 1, by EAGLE's estimation form with labels I.

    V ← V(I − ηE)², E ← (I − ηE)²E, W ← W + γ(V − WE): every matrix is a polynomial in E.
    """
    xp = array_namespace(E)
    identity = xp.eye(E.shape[-1], dtype=E.dtype, device=device(E))
    V, W = identity + 0.0 * E, 0.0 * E
    remaining = np.where(solvable[..., None], np.ones_like(spectrum.sigma), 0.0)
    layers = np.zeros(solvable.shape, dtype=int)
    while (remaining > spectrum.epsilon).any() and layers.max(initial=0) < maxiter:
        steps = spectrum.minimax_eta() if eta is None else np.full(solvable.shape, eta)
        layers = layers + (remaining > spectrum.epsilon).any(axis=-1)
        remaining = remaining * np.abs(1 - gamma * spectrum.sigma**2)
        norm = like(spectrum.step(steps)[..., None, None], E)
        damp = identity - like(steps[..., None, None], E) * E
        W = W + gamma * (V - W @ E)
        V, E = ((V @ damp) @ damp) / norm**2, (damp @ (damp @ E)) / norm**2
    return layers, remaining.max(axis=-1, initial=0.0), W


def _result(
    examples: Examples,
    C: Any,
    W: Array,
    members: Members,
    spectrum: Spectrum,
    note: str,
    raise_on_failure: bool,
) -> SolveResult:
    xp = examples.xp
    rank = spectrum.rank if examples.batch else int(spectrum.rank)
    shared: dict[str, Any] = {"rank": rank, "note": note, "raise_on_failure": raise_on_failure}
    if C is None:
        W = times_power_of_two("W", W, examples.exponent)
        W = W[..., 0, :] if examples.vector_labels else W
        return members.result(W=xp.astype(W, examples.dtype), **shared)
    queries = xp.astype(C[:, None] if C.ndim == 1 else C, xp.float64)
    scale_c = power_of_two_scale(queries)
    D = W @ (queries / like(scale_c, queries))
    D = times_power_of_two("D", D, examples.exponent + np.frexp(scale_c)[1] - 1)
    D = D[..., 0] if C.ndim == 1 else D
    if examples.vector_labels:
        D = D[0] if C.ndim == 1 else D[..., 0, :]
    return members.result(D=xp.astype(D, xp.result_type(examples.dtype, C.dtype)), **shared)
