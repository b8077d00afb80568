"""Sketches S of the examples, one a layer, and the layers that see the data through them.

Solvers take a :class:`Sketch`, or matrices with orthonormal columns to be used in turn. The
learned ones are read off a trained rank-limited network:

>>> from linear_icl import solvers
>>> from linear_icl.transformers import training, unrolling
>>> model, _ = training.shipped("rank_limited-seed0")
>>> sketch = unrolling.sketches(model)  # four matrices of shape (18, 5)
>>> A = B = [[1.0] * 18]
>>> solvers.eagle(A, B, [[3.0]], sketch=sketch).D.round(6)
array([[3.]])
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, cycle
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from linear_icl._arrays import (
    Array,
    like,
    norms,
    to_numpy,
    transpose,
)
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members
from linear_icl.solvers._prompt import Prompt, prepare
from linear_icl.solvers._spectrum import Spectrum

# Passes over the examples in which the watched quantity must fall by a hundredth.
PATIENCE = 100
DEFAULT_PASSES = 400
# Not a seed that a sketch would be given: S = z would answer the query of known answer at once.
PROBE_SEED = 0x0EA61E5EED


class Sketch:
    """A rule that draws a fresh S ∈ R^{n×r} with orthonormal columns for every layer.

    Made by :func:`columns` or :func:`haar`. With a seed as ``rng`` every solve draws the same
    S₁, S₂, …; a Generator goes on from where it stands.

    Attributes
    ----------
    rank : int
        r, at least 1 and at most the number of examples.

    Examples
    --------
    >>> from linear_icl.solvers import sketching
    >>> S = next(sketching.haar(2, rng=0).matrices(n=5))
    >>> (S.T @ S).round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    """

    def __init__(
        self, rank: int, rng: Any, draw: Callable[[np.random.Generator, int, int], np.ndarray]
    ) -> None:
        if isinstance(rank, bool) or not isinstance(rank, int | np.integer) or rank < 1:
            raise ValueError(f"rank must be a whole number >= 1, got {rank!r}")
        self.rank = int(rank)
        self._rng, self._draw = rng, draw

    def draws(self, n: int) -> Iterator[np.ndarray]:
        """What stands for S₁, S₂, …: the numbers of its columns, or S itself."""
        if self.rank > n:
            raise ValueError(f"sketch: rank {self.rank} is more than the {n} examples there are")
        rng = np.random.default_rng(self._rng)
        return (self._draw(rng, n, self.rank) for _ in count())

    def matrices(self, n: int) -> Iterator[np.ndarray]:
        """S₁, S₂, … without end, as matrices of shape (n, r)."""
        for S in self.draws(n):
            yield np.eye(n)[:, S] if S.ndim == 1 else S


def columns(rank: int, rng: Any = 0) -> Sketch:
    """Sample r examples a layer without replacement: S holds columns of the identity.

    A S is then an indexing of A, no product: the cheap choice.

    Parameters
    ----------
    rank : int
        r.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``.

    Returns
    -------
    Sketch

    References
    ----------
    Lutz et al. (2025), section 5 (computation-limited regime).

    Examples
    --------
    >>> from linear_icl.solvers import sketching
    >>> next(sketching.columns(2, rng=0).matrices(n=3))
    array([[0., 1.],
           [0., 0.],
           [1., 0.]])
    """
    return Sketch(rank, rng, lambda rng, n, r: rng.permutation(n)[:r])


def haar(rank: int, rng: Any = 0) -> Sketch:
    """Draw the range of S uniformly among all r-dimensional subspaces.

    S is the orthogonal factor of a Gaussian matrix, with the signs that make R's diagonal
    positive: without them the distribution would be the factorisation's, not Haar's.
    With r far below n (n/8 of n = 240, κ(A) = 100) the layers of EAGLE shrink A to its round-off
    before it is conditioned, and say so; sampling columns then goes further.

    Parameters
    ----------
    rank, rng
        As for :func:`columns`.

    Returns
    -------
    Sketch

    References
    ----------
    Mezzadri (2007), *How to generate random matrices from the classical compact groups*.

    Examples
    --------
    >>> from linear_icl.solvers import sketching
    >>> next(sketching.haar(2, rng=0).matrices(n=4)).shape
    (4, 2)
    """
    return Sketch(rank, rng, _orthonormal)


def _orthonormal(rng: np.random.Generator, n: int, r: int) -> np.ndarray:
    Q, R = np.linalg.qr(rng.standard_normal((n, r)))
    return Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)


def solve_sketched(
    A: Any,
    B: Any,
    C: Any,
    sketch: Sketch | Sequence[Any],
    *,
    eta: float,
    gamma: float,
    W0: Any = None,
    rtol: float,
    atol: float = 0.0,
    maxiter: int | None,
    callback: Callable[[Array], None] | None,
    raise_on_failure: bool,
) -> SolveResult:
    """Sketched layers until the residual is gone; η = 0 leaves A and B alone, which is SGD.

    Residuals are looked at once a pass: after every ⌈n/r⌉ layers, which read n columns.
    """
    prompt = prepare(A, B, C)
    r, draws = _draws(sketch, prompt.n)
    limit = DEFAULT_PASSES * -(-prompt.n // r) if maxiter is None else maxiter
    # Where A is left alone no round-off grows in it: SGD needs no spectrum.
    spectrum = Spectrum.of(prompt.A, None) if eta else None
    deficient = (spectrum.rank < prompt.d)[..., None] if spectrum else np.asarray(False)
    epsilon = spectrum.epsilon if spectrum else 0.0
    blocks = _Weights(prompt, W0) if C is None else _Prediction(prompt, spectrum)
    name, axis = ("W", -1) if C is None else ("D", -2)
    finish = prompt.weights if C is None else prompt.prediction
    zero = blocks.vanishing()
    members = Members(zero.shape)
    watched = np.where(zero, 0.0, blocks.watched())
    size_b = norms(prompt.B, axis=-1) * prompt.scale_b[..., 0]
    target = np.maximum(rtol, atol / np.where(size_b > 0, size_b, 1.0)) if atol else rtol
    members.record(watched)
    members.stop(watched <= target, Status.CONVERGED)
    # Noise in B outgrows what A explains of it, so the last iterate need not be the best one.
    best, least = blocks.answer, watched
    mark, since_mark = watched, np.zeros(zero.shape, dtype=int)
    note, layer, first = "", 0, blocks.size()

    while members.running.any() and layer < limit:
        S, layer = next(draws), layer + 1
        with np.errstate(over="ignore", invalid="ignore"):
            blocks.step(S, eta, gamma)
        members.count_step()
        if callback is not None:
            callback(finish(blocks.answer))
        passes = -(-prompt.n // S.shape[-1])
        if layer % passes and layer != limit:
            continue
        with np.errstate(over="ignore", invalid="ignore"):
            watched = blocks.watched()
        members.record(watched)
        better = members.running & (watched <= least)
        best = members.keep_where(better, blocks.answer, best, axis)
        least = np.where(better, watched, least)
        members.stop(~(watched <= 1e16), Status.BREAKDOWN)
        # Round-off in A keeps its size while the update makes A smaller. What it adds to D goes
        # with its square, and only where range(A) leaves directions empty.
        round_off = (epsilon * first / blocks.size())[..., None]
        doubtful = deficient & (round_off**2 > rtol)
        members.stop((watched <= target) & ~doubtful, Status.CONVERGED)
        eroded = members.running & (doubtful | (round_off > 0.01))
        if eroded.any():
            note = "The layers have made A so small that its round-off shows"
        fallen = watched < 0.99 * mark
        since_mark = np.where(fallen, 0, since_mark + 1)
        mark = np.where(fallen, watched, mark)
        members.stop(eroded | (since_mark >= PATIENCE), Status.STAGNATED)
    rank: Any = spectrum.rank if spectrum else None
    return members.result(
        rank=int(rank) if spectrum and not prompt.batch else rank,
        raise_on_failure=raise_on_failure,
        note=note,
        **{name: finish(best)},
    )


class _Blocks:
    """A and B on their way through the layers; the data as given stay in ``prompt``."""

    answer: Array

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        # Copies, as a layer changes columns in place.
        self.A, self.B = 1.0 * prompt.A, 1.0 * prompt.B

    def size(self) -> np.ndarray:
        """‖A‖_F, 1 where A is zero."""
        size = norms(self.A.reshape(*self.prompt.batch, self.A.shape[-2] * self.A.shape[-1]), -1)
        return np.where(size > 0, size, 1.0)

    def step(self, S: np.ndarray, eta: float, gamma: float) -> None:
        """One layer, A ← A − ηρ ÃÃᵀÃSᵀ and B ← B − ηρ B̃ÃᵀÃSᵀ: Ã = AS, B̃ = BS, ρ = ‖Ã‖₂⁻²."""
        As, Bs = _through(self.A, S), _through(self.B, S)
        wide = As.shape[-1] > As.shape[-2]
        gram = As @ transpose(As) if wide else transpose(As) @ As
        rho = _reciprocal(gram)
        self.advance(As, Bs, gamma * rho)
        if eta:
            cubic = gram @ As if wide else As @ gram
            labels = (Bs @ transpose(As)) @ As if wide else Bs @ gram
            self.A = _added(self.A, -eta * rho * cubic, As, S)
            self.B = _added(self.B, -eta * rho * labels, Bs, S)

    def advance(self, As: Array, Bs: Array, step: Array) -> None:
        """The part of a layer that A and B do not depend on."""
        raise NotImplementedError


class _Prediction(_Blocks):
    """C and D, with a query beside them whose answer is known: C = Az has D = Bz."""

    def __init__(self, prompt: Prompt, spectrum: Any) -> None:
        super().__init__(prompt)
        self.spectrum = spectrum
        xp = prompt.xp
        z = like(np.random.default_rng(PROBE_SEED).standard_normal((prompt.n, 1)), prompt.A)
        self.C = xp.concat([prompt.C, prompt.A @ z], axis=-1)
        self.known = prompt.B @ z
        self.found = xp.zeros_like(self.known)
        self.answer = xp.zeros_like(prompt.B @ (transpose(prompt.A) @ prompt.C))

    def vanishing(self) -> np.ndarray:
        """Queries whose prediction is zero."""
        nothing = ~(_norm(self.prompt.A) > 0) | ~(_norm(self.prompt.B) > 0)
        return nothing | (norms(self.prompt.C, axis=-2) == 0)

    def advance(self, As: Array, Bs: Array, step: Array) -> None:
        """C ← C − γρ ÃÃᵀC and D ← D + γρ B̃ÃᵀC."""
        scores = step * (transpose(As) @ self.C)
        self.C = self.C - As @ scores
        gain = Bs @ scores
        self.answer = self.answer + gain[..., :-1]
        self.found = self.found + gain[..., -1:]

    def watched(self) -> np.ndarray:
        """The residual of every query, or the miss at the known answer where that is larger."""
        C, start = self.C[..., :-1], norms(self.prompt.C, axis=-2)
        start = np.where(start > 0, start, 1.0)
        residual = norms(C, axis=-2) / start
        spectrum = self.spectrum
        if not np.all(spectrum.rank == self.prompt.d):
            # Of the part outside range(A) nothing can be told: ‖P C‖ ≤ ‖AᵀC‖/σ_min instead.
            within = norms(transpose(self.prompt.A) @ C, axis=-2) / start
            smallest = (spectrum.norm[..., 0] / spectrum.kappa)[..., None]
            deficient = (spectrum.rank < self.prompt.d)[..., None]
            residual = np.where(deficient, within / smallest, residual)
        size = _norm(self.known)
        return np.maximum(residual, _norm(self.known - self.found) / np.where(size > 0, size, 1.0))


class _Weights(_Blocks):
    """W in the estimation form, whose residual B − WA is that of the data as given."""

    def __init__(self, prompt: Prompt, W0: Any) -> None:
        super().__init__(prompt)
        self.answer = prompt.start(W0)
        self.started = W0 is not None

    def vanishing(self) -> np.ndarray:
        """Rows whose weights are zero."""
        nothing = ~(_norm(self.prompt.A) > 0)
        return (nothing | (norms(self.prompt.B, axis=-1) == 0)) & (not self.started)

    def advance(self, As: Array, Bs: Array, step: Array) -> None:
        """W ← W + γρ (B̃ − WÃ)Ãᵀ."""
        self.answer = self.answer + step * ((Bs - self.answer @ As) @ transpose(As))

    def watched(self) -> np.ndarray:
        """‖B − WA‖/‖B‖ of every row."""
        size = norms(self.prompt.B, axis=-1)
        residual = self.prompt.B - self.answer @ self.prompt.A
        return norms(residual, axis=-1) / np.where(size > 0, size, 1.0)


def _draws(sketch: Any, n: int) -> tuple[int, Iterator[np.ndarray]]:
    """The (least) rank of a sketch, and what stands for S₁, S₂, …"""
    if isinstance(sketch, Sketch):
        return sketch.rank, sketch.draws(n)
    if not isinstance(sketch, Sequence) or isinstance(sketch, str) or not len(sketch):
        raise ValueError(
            "sketch must be sketching.columns(r), sketching.haar(r) or a list of matrices, "
            f"got {type(sketch).__name__}"
        )
    matrices = [np.asarray(S, dtype=np.float64) for S in sketch]
    for number, S in enumerate(matrices):
        if S.ndim != 2 or S.shape[0] != n or not 1 <= S.shape[1] <= n:
            raise ValueError(f"sketch[{number}] must have shape ({n}, r), got {S.shape}")
        if not np.allclose(S.T @ S, np.eye(S.shape[1]), atol=1e-6):
            raise ValueError(f"sketch[{number}] must have orthonormal columns")
    return min(S.shape[1] for S in matrices), cycle(matrices)


def _through(block: Array, S: np.ndarray) -> Array:
    """block · S."""
    if S.ndim == 2:
        return block @ like(S, block)
    xp = array_namespace(block)
    return xp.take(block, xp.asarray(S, device=device(block)), axis=-1)


def _added(block: Array, change: Array, sketched: Array, S: np.ndarray) -> Array:
    """block + change · Sᵀ, in its own memory; ``sketched`` is block · S."""
    if S.ndim == 2:
        return block + change @ transpose(like(S, block))
    block[..., array_namespace(block).asarray(S, device=device(block))] = sketched + change
    return block


def _reciprocal(gram: Array) -> Array:
    """1/‖gram‖₂, shape (…, 1, 1); 0 where gram is zero."""
    plain = gram.detach() if hasattr(gram, "detach") else gram
    largest = to_numpy(array_namespace(gram).linalg.eigvalsh(plain))[..., -1:, None]
    positive = largest > 0
    return like(np.where(positive, 1 / np.where(positive, largest, 1.0), 0.0), gram)


def _norm(block: Array) -> np.ndarray:
    """Frobenius norms, shape (…, 1)."""
    return norms(norms(block, axis=-1), axis=-1)[..., None]
