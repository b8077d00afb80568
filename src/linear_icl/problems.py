"""Prompts to solve: synthetic ones with a known answer, real data, and a reader's own files.

Column convention throughout: A is d × n with one example a column, B is d' × n, C is d × n' and
D is d' × n'. Leading dimensions are batch dimensions.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from linear_icl import files, theory
from linear_icl._arrays import to_numpy

CONSTRUCTED_SPECTRA = ("log-uniform", "log-spaced", "clustered")
DRAWN_SPECTRA = ("gaussian", "student-t", "correlated", "sparse-rademacher")
SPECTRA = (*CONSTRUCTED_SPECTRA, *DRAWN_SPECTRA, "low-rank")


@dataclass(frozen=True, eq=False)
class Completion:
    """A prompt X = [[A, C], [B, D]] whose block D is to be predicted.

    Attributes
    ----------
    A : ndarray, shape (..., d, n)
        Features of the examples, one example a column.
    B : ndarray, shape (..., d', n)
        Labels of the examples.
    C : ndarray, shape (..., d, n')
        Features of the queries.
    D : ndarray, shape (..., d', n'), or None
        The block to predict, as generated or observed; None where nobody knows it.
    D_star : ndarray, shape (..., d', n'), or None
        The exact answer W* C. For synthetic prompts it belongs to the construction *without*
        noise; for real data it is the Nyström (least-squares) answer B A⁺ C in double precision.
    W_star : ndarray, shape (..., d', d), or None
        The weights behind ``D_star``; B A⁺ if there is no noise.
    kappa : float, ndarray of the batch's shape, or None
        Condition number of A: prescribed where it could be, measured otherwise.
    meta : mapping
        Where the prompt comes from.
    """

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray | None
    D_star: np.ndarray | None = None
    W_star: np.ndarray | None = None
    kappa: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def X(self) -> np.ndarray:
        """The prompt that a solver sees, shape (..., d + d', n + n'), with D masked to 0."""
        return prompt_matrix(self.A, self.B, self.C)

    def error(self, D: Any) -> Any:
        """Relative error ‖D − D*‖_F / ‖D*‖_F of an answer, one number a batch member."""
        if self.D_star is None:
            raise ValueError("this prompt has no D_star to compare with; its answer is unknown")
        return _relative_error(D, self.D_star)


@dataclass(frozen=True, eq=False, kw_only=True)
class DistributedCompletion(Completion):
    """A prompt whose examples lie on M machines; A and B are what all of them hold together.

    Everything else is as in :class:`Completion`, so a pooled solver takes it as it is.

    Attributes
    ----------
    sizes : tuple of int
        Examples on each machine, n_μ, at least one.
    alpha : float
        Diversity index of the blocks, see :func:`linear_icl.theory.diversity_index`.
    kappa_max : float
        Largest condition number of a block; ``kappa`` is that of the pooled A.
    """

    sizes: tuple[int, ...]
    alpha: float
    kappa_max: float

    @property
    def parts(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """What each machine holds, (A_μ, B_μ) of shapes (d, n_μ) and (d', n_μ): views."""
        cuts = np.cumsum(self.sizes)[:-1]
        blocks = (np.split(pooled, cuts, axis=-1) for pooled in (self.A, self.B))
        return list(zip(*blocks, strict=True))


@dataclass(frozen=True, eq=False)
class Regression:
    """Linear regression with scalar labels, as in-context learning poses it.

    Attributes
    ----------
    A : ndarray, shape (..., d, n)
        Features of the examples, one example a column.
    B : ndarray, shape (..., 1, n)
        Labels with noise, y_i = ⟨w, x_i⟩ + ε_i.
    C : ndarray, shape (..., d, n')
        Features of the queries, distributed as those of the examples.
    D : ndarray, shape (..., 1, n')
        Labels of the queries without noise, ⟨w, x⟩.
    W_true : ndarray, shape (..., 1, d)
        The weights w. With noise, or n < d, no method can find them exactly.
    sigma : float or ndarray of the batch's shape
        Standard deviation of the label noise.
    """

    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    W_true: np.ndarray
    sigma: Any

    @property
    def y(self) -> np.ndarray:
        """Labels as a vector, shape (..., n)."""
        return self.B[..., 0, :]

    @property
    def w(self) -> np.ndarray:
        """True weights as a vector, shape (..., d)."""
        return self.W_true[..., 0, :]

    @property
    def X(self) -> np.ndarray:
        """The prompt that a solver sees, shape (..., d + 1, n + n'), with D masked to 0."""
        return prompt_matrix(self.A, self.B, self.C)

    def error(self, D: Any) -> Any:
        """Relative error ‖D − W_true C‖_F / ‖W_true C‖_F, one number a batch member."""
        return _relative_error(D, self.D)


# ---------------------------------------------------------------------------------------------
# Synthetic prompts


def completion(
    d: int = 240,
    n: int = 240,
    d_out: int = 2,
    n_query: int = 2,
    *,
    kappa: float | None = None,
    rank: int | None = None,
    spectrum: str = "log-uniform",
    noise: float = 0.0,
    s: int | None = None,
    alpha: float | None = None,
    batch: int | tuple[int, ...] = (),
    dtype: Any = "float64",
    rng: Any = 0,
) -> Completion:
    r"""Generate a prompt whose exact answer is known.

    A gets the wanted spectrum; with :math:`A = U\,\mathrm{diag}(\sigma)\,V^\top`, C = Uc lies in
    the range of A, with queries of about unit length, and W* = ωUᵀ has standard normal ω. Then
    B = W* A + noise and D = W* C. Without noise the prompt is *consistent*: D = B A⁺ C exactly.

    Parameters
    ----------
    d, n, d_out, n_query : int
        Features, examples, outputs (d') and queries (n').
    kappa : float, optional
        Condition number of A, the ratio of its extreme positive singular values. None: 1e4 for
        the constructed spectra, *as drawn* for the others. Given for a drawn spectrum, the
        singular values are changed monotonically, :math:`\sigma_i \to \sigma_1
        (\sigma_i/\sigma_1)^t`, to hit it.
    rank : int, optional
        Rank of A. None: min(d, n) for the constructed spectra, as drawn for the others. Given,
        a drawn A is cut to its best approximation of that rank.
    spectrum : str
        Constructed (largest singular value 1, smallest positive one 1/κ, Haar orthogonal
        factors): ``"log-uniform"``, σ = exp(uniform); ``"log-spaced"``, a geometric sequence;
        ``"clustered"``, five groups, log-spaced, each 1 % wide. Drawn, entry by entry:
        ``"gaussian"``, N(0, 1); ``"student-t"`` with 4 degrees of freedom; ``"correlated"``,
        Gaussian columns with covariance 0.8^|i−j|; ``"sparse-rademacher"``, ±1/√p with
        probability p = 0.1, else 0. And ``"low-rank"``, the training distribution
        :math:`X = R_1 R_2^\top/\sqrt s` with rows of R₁ and R₂ from
        :math:`\mathcal N(0, \mathrm{diag}(\alpha^1, \dots, \alpha^s))`.
    noise : float
        Variance of the Gaussian noise on every entry of B; for ``"low-rank"``, of all of X.
        ``W_star`` and ``D_star`` are those before noise.
    s, alpha : int and float, optional
        Rank and decay of ``"low-rank"``, 10 and 0.7 by default; for no other spectrum.
    batch : int or tuple of int
        Leading dimensions: that many independent prompts.
    dtype : dtype
        ``float64`` or ``float32``. Everything is computed in float64 and rounded once.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``.

    Returns
    -------
    problem : Completion

    Raises
    ------
    TypeError, ValueError
        Naming the argument and what is allowed.

    References
    ----------
    Lutz et al. (NeurIPS 2025), section 5 (log-uniform) and Appendix B (low-rank).

    Examples
    --------
    >>> problem = completion(d=6, n=8, kappa=100.0, rank=4, rng=1)
    >>> problem.A.shape, problem.B.shape, problem.C.shape, problem.D.shape
    ((6, 8), (2, 8), (6, 2), (2, 2))
    >>> round(theory.condition_number(problem.A), 6)
    100.0
    >>> bool(problem.error(problem.B @ np.linalg.pinv(problem.A, rcond=1e-10) @ problem.C) < 1e-12)
    True
    """
    d, n = _count("d", d), _count("n", n)
    d_out, n_query = _count("d_out", d_out), _count("n_query", n_query)
    batch, dtype, noise = _batch(batch), _dtype(dtype), _number("noise", noise, 0.0)
    if spectrum not in SPECTRA:
        raise ValueError(f"spectrum must be one of {', '.join(SPECTRA)}; got {spectrum!r}")
    rng = np.random.default_rng(rng)
    meta = {"source": spectrum, "noise": noise}
    if spectrum == "low-rank":
        if kappa is not None or rank is not None:
            raise ValueError(
                "spectrum='low-rank' is the training distribution as drawn: leave kappa and rank "
                "None, and choose s (rank) and alpha (decay)"
            )
        s = _count("s", 10 if s is None else s)
        alpha = _number("alpha", 0.7 if alpha is None else alpha, 0.0, exclusive=True)
        return _low_rank(d, n, d_out, n_query, s, alpha, noise, batch, dtype, rng, meta)
    if s is not None or alpha is not None:
        raise ValueError(f"s and alpha belong to spectrum='low-rank', not to {spectrum!r}")
    limit = _rank(rank, d, n)
    kappa = _kappa(kappa, limit, dtype, spectrum)
    if spectrum in CONSTRUCTED_SPECTRA:
        assert kappa is not None
        sigma = _spectrum(spectrum, limit, kappa, batch, rng)
        U, V = _orthonormal(batch, d, limit, rng), _orthonormal(batch, n, limit, rng)
        A = (U * sigma[..., None, :]) @ _t(V)
        found: Any = np.full(batch, limit)
        measured: Any = np.full(batch, kappa)
    else:
        A, U, found, measured = _drawn(spectrum, (*batch, d, n), rank, kappa, rng)
    W = rng.normal(size=(*batch, d_out, U.shape[-1])) @ _t(U)
    C = U @ rng.normal(size=(*batch, U.shape[-1], n_query)) / np.sqrt(found)[..., None, None]
    B, D = W @ A, W @ C
    if noise:
        B = B + np.sqrt(noise) * rng.normal(size=B.shape)
    A, B, C, D, W = (a.astype(dtype) for a in (A, B, C, D, W))
    if not batch:
        found, measured = int(found), float(measured)
    return Completion(A, B, C, D, D, W, measured, {**meta, "rank": found})


def regression(
    d: int,
    n: int,
    n_query: int = 1,
    *,
    kappa: float | None = None,
    noise: Any = 0.0,
    x: str = "gaussian",
    batch: int | tuple[int, ...] = (),
    dtype: Any = "float64",
    rng: Any = 0,
) -> Regression:
    r"""Generate linear-regression prompts: y = ⟨w, x⟩ + ε with w ~ N(0, I).

    Parameters
    ----------
    d, n, n_query : int
        Features, examples and queries.
    kappa : float, optional
        Condition number of A; None leaves it as drawn. One linear map of feature space, which
        keeps A's largest singular value and shrinks the others monotonically, is applied to
        examples and queries alike.
    noise : float or array of the batch's shape
        Variance of ε.
    x : str
        ``"gaussian"``, entries N(0, 1), or ``"uniform"``, entries U(−1, 1).
    batch : int or tuple of int
        Leading dimensions: that many independent prompts.
    dtype : dtype
        ``float64`` or ``float32``.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``.

    Returns
    -------
    problem : Regression

    References
    ----------
    von Oswald et al. (ICML 2023), section 3 (uniform); Vladymyrov et al. (2024), section 6.

    Examples
    --------
    >>> problem = regression(d=3, n=5, batch=4, rng=0)
    >>> problem.A.shape, problem.y.shape, problem.D.shape
    ((4, 3, 5), (4, 5), (4, 1, 1))
    >>> bool(np.allclose(problem.W_true @ problem.A, problem.B))
    True
    """
    d, n, n_query = _count("d", d), _count("n", n), _count("n_query", n_query)
    batch, dtype = _batch(batch), _dtype(dtype)
    draws = {
        "gaussian": lambda rng, size: rng.normal(size=size),
        "uniform": lambda rng, size: rng.uniform(-1, 1, size=size),
    }
    if x not in draws:
        raise ValueError(f"x must be one of {', '.join(draws)}; got {x!r}")
    sigma = _standard_deviation(noise, batch)
    if kappa is not None:
        kappa = _kappa(kappa, min(d, n), dtype, "regression")
    rng = np.random.default_rng(rng)
    both = draws[x](rng, (*batch, d, n + n_query))
    A, C = both[..., :n], both[..., n:]
    if kappa is not None:
        C, A = _mapped(A, C, kappa)
    W = rng.normal(size=(*batch, 1, d))
    B, D = W @ A, W @ C
    B = B + sigma[..., None, None] * rng.normal(size=B.shape)
    A, B, C, D, W = (a.astype(dtype) for a in (A, B, C, D, W))
    return Regression(A, B, C, D, W, sigma if batch else float(sigma))


def distributed(
    d: int,
    n: int,
    d_out: int = 1,
    n_query: int = 1,
    *,
    machines: int,
    alpha: float,
    kappa: float,
    rank: int | None = None,
    noise: float = 0.0,
    rng: Any = 0,
) -> DistributedCompletion:
    r"""Generate a prompt cut over M machines, with prescribed diversity index and conditioning.

    Every block has the same rank r, largest singular value 1, smallest positive one 1/κ, the
    others log-uniform between, and singular vectors that are Haar distributed in its range.
    C lies in the joint range, with queries of about unit length, B = W* A + noise and D = W* C.

    **Which α exist.** If one range misses a direction of the joint range, the average projector
    is at most 1 − 1/M along it: α is 1, or at most 1 − 1/M. (One machine: α = 1. Blocks that all
    have d independent examples: α = 1.) All of these values are made, from groups of M
    dimensions in which the M ranges are

    - k = 1: one vector each, every two at the same angle, when α ≤ 1/M. With cosine c, M − 1
      eigenvalues are (1 − c)/M and one is (1 + (M − 1)c)/M;
    - k = M − 1: the hyperplanes orthogonal to such vectors, when α > 1/M, or d has no room for
      k = 1. One eigenvalue is 1 − (1 + (M − 1)c)/M, and M − 1 are 1 − (1 − c)/M.

    There are as many groups as r and d admit. Their smallest eigenvalues are log-spaced from α
    to k/M, so that the conditioned problem has a spread spectrum, not two or three eigenvalues
    that any Krylov method finishes in as many steps. At α = 1/M and 1 − 1/M, where lines or
    normals are orthogonal, no freedom is left. Directions of a range that fill no group are
    common to all machines.

    Parameters
    ----------
    d, n, d_out, n_query : int
        Features, examples on all machines together, outputs (d') and queries (n').
    machines : int
        M. Each gets n/M examples; if M does not divide n, the first n mod M get one more.
    alpha : float
        Diversity index: 1, or in (0, 1 − 1/M], which needs d ≥ M.
    kappa : float
        Condition number of every block.
    rank : int, optional
        Rank r of every block. None: the largest for α = 1, otherwise such that the groups fill
        as much of the d dimensions as n/M examples a machine can.
    noise : float
        Variance of the Gaussian noise on every entry of B. ``W_star`` and ``D_star`` are those
        before noise.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``.

    Returns
    -------
    problem : DistributedCompletion
        ``problem.parts`` are the machines' (A_μ, B_μ). ``meta`` has the rank of the pooled A and
        ``block_rank``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument and what is allowed.

    References
    ----------
    Lutz et al. (NeurIPS 2025), sections 4 and 5.

    Examples
    --------
    >>> problem = distributed(d=12, n=24, machines=3, alpha=0.1, kappa=100.0)
    >>> [A.shape for A, B in problem.parts]
    [(12, 8), (12, 8), (12, 8)]
    >>> round(theory.diversity_index([A for A, B in problem.parts]), 12)
    0.1
    >>> [round(theory.condition_number(A), 6) for A, B in problem.parts]
    [100.0, 100.0, 100.0]
    """
    d, n, machines = _count("d", d), _count("n", n), _count("machines", machines)
    d_out, n_query = _count("d_out", d_out), _count("n_query", n_query)
    noise = _number("noise", noise, 0.0)
    if n < machines:
        raise ValueError(f"n must be at least one example a machine, {machines}; got {n}")
    sizes = tuple(len(part) for part in np.array_split(np.arange(n), machines))
    rank, k, groups = _layout(d, sizes[-1], machines, alpha, rank)
    kappa = _kappa(kappa, rank, np.dtype("float64"), "distributed") or 1.0
    rng = np.random.default_rng(rng)
    ranges = _ranges(machines, float(alpha), rank, k, groups)
    joint = ranges.shape[1]
    basis = _orthonormal((), d, joint, rng)
    blocks = []
    for within, size in zip(ranges, sizes, strict=True):
        U = basis @ within @ _orthonormal((), rank, rank, rng)
        sigma = _spectrum("log-uniform", rank, kappa, (), rng)
        blocks.append((U * sigma) @ _orthonormal((), size, rank, rng).T)
    A = np.concatenate(blocks, axis=1)
    W = rng.normal(size=(d_out, joint)) @ basis.T
    C = basis @ rng.normal(size=(joint, n_query)) / np.sqrt(joint)
    B, D = W @ A, W @ C
    if noise:
        B = B + np.sqrt(noise) * rng.normal(size=B.shape)
    pooled = np.linalg.svd(A, compute_uv=False)
    return DistributedCompletion(
        A,
        B,
        C,
        D,
        D,
        W,
        float(pooled[0] / pooled[joint - 1]),
        {"source": "distributed", "noise": noise, "rank": joint, "block_rank": rank},
        sizes=sizes,
        alpha=float(alpha),
        kappa_max=kappa,
    )


def _layout(
    d: int, n_least: int, machines: int, alpha: float, rank: int | None
) -> tuple[int, int, int]:
    """The rank of a block, how many of a group's M dimensions it has, the number of groups."""
    alpha = _number("alpha", alpha, 0.0, exclusive=True)
    if alpha != 1 and alpha > (1 - 1 / machines) * (1 + 1e-15):
        raise ValueError(
            f"alpha must be 1, or in (0, 1 - 1/{machines}] for {machines} machines: a direction "
            f"that one of them misses has at most that share; got {alpha:g}"
        )
    if rank is not None and _count("rank", rank) > min(d, n_least):
        raise ValueError(
            f"rank must be at most min(d, n // machines) = {min(d, n_least)}, got {rank}"
        )
    if alpha == 1:
        return min(d, n_least) if rank is None else rank, 1, 0
    for k in (1, machines - 1) if alpha <= 1 / machines else (machines - 1,):
        block_rank = min(n_least, d * k // machines) if rank is None else rank
        groups = min(block_rank // k, (d - block_rank) // (machines - k))
        if groups > 0:
            return block_rank, k, groups
    given = "" if rank is None else f", rank = {rank}"
    raise ValueError(
        f"alpha = {alpha:g} cannot be made with d = {d}, {machines} machines and {n_least} "
        f"examples on the smallest{given}. A block needs rank r >= {k} and d >= r + {machines - k}"
        + (f", or r >= 1 and d >= r + {machines - 1}" if alpha <= 1 / machines else "")
    )


def _ranges(machines: int, alpha: float, rank: int, k: int, groups: int) -> np.ndarray:
    """Orthonormal bases of the ranges, in coordinates of their sum: (M, joint rank, rank)."""
    common = rank - groups * k
    ranges = np.zeros((machines, groups * machines + common, rank))
    for g, least in enumerate(np.geomspace(alpha, k / machines, groups)):
        rows, columns = slice(g * machines, (g + 1) * machines), slice(g * k, (g + 1) * k)
        ranges[:, rows, columns] = _equiangular(machines, least, k)
    ranges[:, groups * machines :, groups * k :] = np.eye(common)
    return ranges


def _equiangular(machines: int, alpha: float, k: int) -> np.ndarray:
    """M lines (k = 1) or hyperplanes (k = M − 1) in R^M whose average projector is ≥ α."""
    one_minus_c = machines * alpha / k
    largest = max(machines - (machines - 1) * one_minus_c, 0.0)  # 1 + (M − 1)c
    # The symmetric root of the vectors' Gram matrix (1 − c) I + c 11ᵀ holds them as rows.
    shift = (np.sqrt(largest) - np.sqrt(one_minus_c)) / machines
    lines = (np.sqrt(one_minus_c) * np.eye(machines) + shift)[:, :, None]
    return lines if k == 1 else np.linalg.qr(lines, mode="complete")[0][:, :, 1:]


def _low_rank(
    d: int,
    n: int,
    d_out: int,
    n_query: int,
    s: int,
    alpha: float,
    noise: float,
    batch: tuple[int, ...],
    dtype: np.dtype,
    rng: np.random.Generator,
    meta: dict[str, Any],
) -> Completion:
    deviations = alpha ** (np.arange(1, s + 1) / 2)
    R1 = rng.normal(size=(*batch, d + d_out, s)) * deviations
    R2 = rng.normal(size=(*batch, n + n_query, s)) * deviations
    X = R1 @ _t(R2) / np.sqrt(s)
    A, B, C, _ = blocks(X, d, n)
    rank = min(s, d, n)
    U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
    kappa = theory.condition_number(A)
    # A⁺ by hand: directions beyond the rank, or lost to a fast decay, hold round-off only.
    keep = sigma > max(d, n) * np.finfo(np.float64).eps * sigma[..., :1]
    keep[..., rank:] = False
    inverse = np.divide(1.0, sigma, out=np.zeros_like(sigma), where=keep)
    W = (B @ _t(Vt) * inverse[..., None, :]) @ _t(U)
    D_star = W @ C
    if noise:
        X = X + np.sqrt(noise) * rng.normal(size=X.shape)
    A, B, C, D, D_star, W = (a.astype(dtype) for a in (*blocks(X, d, n), D_star, W))
    meta = {**meta, "rank": rank, "s": s, "alpha": alpha}
    if noise:
        kappa = theory.condition_number(A)
    return Completion(A, B, C, D, D_star, W, kappa, meta)


def _spectrum(
    spectrum: str, rank: int, kappa: float, batch: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Singular values in [1/κ, 1], descending, both ends taken."""
    if spectrum == "log-uniform":
        exponent = np.sort(rng.uniform(size=(*batch, rank)), axis=-1)
    elif spectrum == "log-spaced":
        exponent = np.broadcast_to(np.linspace(0, 1, rank), (*batch, rank)).copy()
    else:
        group = np.arange(rank) * 5 // max(rank, 5)
        width = np.log(1.01) / np.log(kappa) if kappa > 1 else 0.0
        jitter = width * rng.uniform(-0.5, 0.5, size=(*batch, rank))
        exponent = np.sort(np.clip(group / max(group[-1], 1) + jitter, 0, 1), axis=-1)
    sigma = np.exp(-np.log(kappa) * exponent)
    sigma[..., 0] = 1.0
    sigma[..., -1] = 1 / kappa
    return sigma


def _drawn(
    spectrum: str,
    size: tuple[int, ...],
    rank: int | None,
    kappa: float | None,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Draw A, cut it to a rank, stretch its spectrum; return A, U, its rank and κ(A)."""
    A = _entries(spectrum, size, rng)
    U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
    # A small sparse draw easily has dependent, or empty, rows: it is then a problem of its rank.
    keep = sigma > max(size[-2:]) * np.finfo(np.float64).eps * sigma[..., :1]
    if rank is not None:
        keep[..., rank:] = False
    found = keep.sum(axis=-1)
    if (found < (rank or 1)).any():
        raise ValueError(
            f"an A drawn from {spectrum!r} has rank {found.min()}, but rank {rank or 1} is needed; "
            "ask for a smaller rank, a larger d and n, or another rng"
        )
    U, sigma = U * keep[..., None, :], np.where(keep, sigma, 0.0)
    if kappa is not None:
        sigma = _stretched(sigma, kappa)
    if rank is not None or kappa is not None:
        A = (U * sigma[..., None, :]) @ Vt
    smallest = np.min(np.where(keep, sigma, np.inf), axis=-1)
    return A, U, found, sigma[..., 0] / smallest


def _entries(spectrum: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    if spectrum == "gaussian":
        return rng.normal(size=size)
    if spectrum == "student-t":
        return rng.standard_t(4, size=size)
    if spectrum == "correlated":
        features = np.arange(size[-2])
        covariance = 0.8 ** np.abs(np.subtract.outer(features, features))
        return np.linalg.cholesky(covariance) @ rng.normal(size=size)
    p = 0.1
    signs = np.where(rng.uniform(size=size) < 0.5, 1.0, -1.0)
    return np.where(rng.uniform(size=size) < p, signs / np.sqrt(p), 0.0)


def _stretched(sigma: np.ndarray, kappa: float) -> np.ndarray:
    """σ_i → σ_1 (σ_i/σ_1)^t, monotone, with t such that the positive extremes have ratio κ."""
    positive, largest = sigma > 0, sigma[..., :1]
    log_ratio = np.log(np.where(positive, sigma, largest) / largest)
    end = log_ratio.min(axis=-1, keepdims=True)
    if kappa > 1 and not (end < 0).all():
        raise ValueError(f"all singular values agree, so kappa = {kappa:g} cannot be reached")
    share = np.divide(log_ratio, end, out=np.zeros_like(log_ratio), where=end < 0)
    return np.where(positive, largest * np.exp(-np.log(kappa) * share), 0.0)


def _mapped(A: np.ndarray, C: np.ndarray, kappa: float) -> tuple[np.ndarray, np.ndarray]:
    """Apply to C and A the map T that gives A the condition number κ; off range(A) the least."""
    U, sigma, Vt = np.linalg.svd(A, full_matrices=False)
    stretched = _stretched(sigma, kappa)
    factor = (stretched / sigma)[..., None, :]
    least = factor[..., -1:]
    mapped = least * C + (U * (factor - least)) @ (_t(U) @ C)
    return mapped, (U * stretched[..., None, :]) @ Vt


def _orthonormal(
    batch: tuple[int, ...], rows: int, columns: int, rng: np.random.Generator
) -> np.ndarray:
    """Haar distributed orthonormal columns (Mezzadri 2007: QR with the signs of R undone)."""
    Q, R = np.linalg.qr(rng.normal(size=(*batch, rows, columns)))
    return Q * np.sign(np.diagonal(R, axis1=-2, axis2=-1))[..., None, :]


# ---------------------------------------------------------------------------------------------
# Real data


def digits_kernel(
    n_landmarks: int = 200,
    n_query: int = 200,
    d_out: int = 100,
    *,
    gamma: float | None = None,
    dtype: Any = "float64",
    rng: Any = 0,
) -> Completion:
    r"""A real Nyström problem: fill in a block of a Gaussian kernel matrix of digit images.

    Three disjoint random sets of scikit-learn's 8 × 8 digits: landmarks L, rows R, queries Q.
    With :math:`k(x, z) = \exp(-\gamma\|x - z\|^2)`, the prompt is A = k(L, L), B = k(R, L),
    C = k(L, Q), and **D = k(R, Q) are the true kernel values**, which the Nyström answer
    ``D_star`` = B A⁺ C only approximates.

    Parameters
    ----------
    n_landmarks : int
        Landmarks: d = n.
    n_query, d_out : int
        Queries n' and rows d'. All three together at most 1797.
    gamma : float, optional
        Inverse squared width. None: 1/(2m), m the median squared distance between landmarks.
    dtype : dtype
        ``float64`` or ``float32``.
    rng : int, Generator or None
        Which images are drawn, as in ``numpy.random.default_rng``.

    Returns
    -------
    problem : Completion
        ``kappa`` is measured. ``meta`` has ``gamma``, and ``labels``, the digits of the queries.

    References
    ----------
    Williams and Seeger, *Using the Nyström method to speed up kernel machines* (2000).

    Examples
    --------
    >>> problem = digits_kernel(n_landmarks=50, n_query=20, d_out=10)
    >>> problem.D.shape
    (10, 20)
    >>> bool(np.linalg.norm(problem.D_star - problem.D) < 0.05 * np.linalg.norm(problem.D))
    True
    """
    d_out = _count("d_out", d_out)
    images, labels, gamma = _digits(n_landmarks, n_query, d_out, gamma, rng)
    landmarks, rows, queries = images
    A, C = (
        _gaussian_kernel(landmarks, landmarks, gamma),
        _gaussian_kernel(landmarks, queries, gamma),
    )
    B, D = _gaussian_kernel(rows, landmarks, gamma), _gaussian_kernel(rows, queries, gamma)
    return _observed(A, B, C, D, dtype, {"source": "digits", "gamma": gamma, "labels": labels[2]})


def digits_labels(
    n_landmarks: int = 200,
    n_query: int = 200,
    *,
    gamma: float | None = None,
    dtype: Any = "float64",
    rng: Any = 0,
) -> Completion:
    r"""Classify held-out digits by completing a prompt.

    As :func:`digits_kernel`, but B (10 × n) holds the landmarks' classes, one-hot, and
    **D (10 × n') those of the held-out queries**. The completed block B A⁺ C is kernel
    interpolation; its largest entry in a column names the digit, see :func:`digits_correct`.

    Parameters
    ----------
    n_landmarks, n_query : int
        Labelled and held-out images; together at most 1797.
    gamma : float, optional
        Inverse squared width; None as in :func:`digits_kernel`.
    dtype : dtype
        ``float64`` or ``float32``.
    rng : int, Generator or None
        Which images are drawn, as in ``numpy.random.default_rng``.

    Returns
    -------
    problem : Completion
        ``meta["labels"]`` are the digits of the queries, ``meta["images"]`` their 8 × 8 pixels
        in rows of 64.

    Examples
    --------
    >>> problem = digits_labels(n_landmarks=200, n_query=100)
    >>> digits_correct(problem, problem.D_star) > 90
    True
    """
    images, labels, gamma = _digits(n_landmarks, n_query, 0, gamma, rng)
    landmarks, _, queries = images
    A, C = (
        _gaussian_kernel(landmarks, landmarks, gamma),
        _gaussian_kernel(landmarks, queries, gamma),
    )
    B, D = (np.eye(10)[:, labels[i]] for i in (0, 2))
    meta = {"source": "digits", "gamma": gamma, "labels": labels[2], "images": queries}
    return _observed(A, B, C, D, dtype, meta)


def digits_machines(
    machines: int, *, by: str = "random", holdout: int = 397, rng: Any = 0
) -> DistributedCompletion:
    r"""Real data on M machines: classify digits from their pixels, by least squares.

    A (64 × n) holds the pixels of scikit-learn's digits, 0 to 16, B (10 × n) their classes,
    one-hot. The labels are not linear in the pixels, so every machine has its own best weights:
    where a machine has seen few of the classes, an average of local fits predicts something else
    than the pooled least squares in ``W_star`` and ``D_star``. The diversity index is small
    either way, since it belongs to the worst direction: pixels that few images use.

    Parameters
    ----------
    machines : int
        M; at most 10 by class.
    by : str
        ``"random"``: the images are dealt at random, n/M each. ``"class"``: each machine gets
        all images of consecutive digits, a single one if M = 10.
    holdout : int
        Images set aside as queries, 1 to 1796.
    rng : int, Generator or None
        Which images are held out and how they are dealt, as in ``numpy.random.default_rng``.

    Returns
    -------
    problem : DistributedCompletion
        D and ``meta["labels"]`` are the classes of the held-out images; see
        :func:`digits_correct`. ``alpha``, ``kappa`` and ``kappa_max`` are measured.

    Examples
    --------
    >>> problem = digits_machines(10, by="class")
    >>> len(problem.parts), problem.A.shape, problem.D.shape
    (10, (64, 1400), (10, 397))
    >>> digits_correct(problem, problem.D_star) > 360
    True
    """
    from sklearn.datasets import load_digits

    machines = _count("machines", machines)
    if by not in ("random", "class"):
        raise ValueError(f"by must be random or class; got {by!r}")
    if by == "class" and machines > 10:
        raise ValueError(f"machines must be at most 10, the number of classes; got {machines}")
    rng = np.random.default_rng(rng)
    images, labels = load_digits(return_X_y=True)
    A, B, C, D = split(images.T, np.eye(10)[:, labels], holdout, rng=rng)
    n = A.shape[1]
    if n < machines:
        raise ValueError(f"machines must be at most the {n} images not held out; got {machines}")
    if by == "random":
        machine = rng.permutation(np.arange(n) % machines)
    else:
        machine = B.argmax(axis=0) * machines // 10
    order, sizes = np.argsort(machine, kind="stable"), np.bincount(machine, minlength=machines)
    if sizes.min() == 0:
        raise ValueError(f"a machine gets no image: hold out fewer than {holdout}")
    meta = {"source": "digits", "by": by, "labels": D.argmax(axis=0)}
    pooled = _observed(A[:, order], B[:, order], C, D, "float64", meta)
    blocks = np.split(pooled.A, np.cumsum(sizes)[:-1], axis=1)
    return DistributedCompletion(
        **vars(pooled),
        sizes=tuple(sizes.tolist()),
        alpha=theory.diversity_index(blocks),
        kappa_max=max(theory.condition_number(block) for block in blocks),
    )


def digits_correct(problem: Completion, D: Any) -> int:
    """How many held-out digits a completed block D (10 × n') classifies rightly.

    Parameters
    ----------
    problem : Completion
        From :func:`digits_labels` or :func:`digits_machines`.
    D : array, shape (10, n')
        The completed block; the largest entry of a column names its digit.

    Returns
    -------
    correct : int
        Between 0 and n'.

    Examples
    --------
    >>> problem = digits_labels(n_landmarks=50, n_query=30)
    >>> digits_correct(problem, problem.D)
    30
    """
    if "labels" not in problem.meta or problem.D is None or problem.D.shape[0] != 10:
        raise ValueError("problem must come from digits_labels or digits_machines")
    D = np.asarray(D)
    if D.shape != problem.D.shape:
        raise ValueError(f"D must have shape {problem.D.shape}, got {D.shape}")
    return int((D.argmax(axis=0) == problem.meta["labels"]).sum())


def diabetes(
    *,
    standardize: bool = True,
    intercept: bool = True,
    holdout: int = 100,
    dtype: Any = "float64",
    rng: Any = 0,
) -> Completion:
    """A real regression: disease progression of 442 patients from ten measurements.

    Parameters
    ----------
    standardize : bool
        Bring every measurement to mean 0 and variance 1 over the examples (the queries are
        shifted and scaled alike). False leaves the units as measured, and a far larger κ(A).
    intercept : bool
        Add a row of ones as the last feature, d = 11. Without it the fit goes through the
        origin.
    holdout : int
        Patients set aside as queries, 1 to 441.
    dtype : dtype
        ``float64`` or ``float32``.
    rng : int, Generator or None
        Which patients are held out, as in ``numpy.random.default_rng``.

    Returns
    -------
    problem : Completion
        A is d × n, one patient a column; B (1 × n) the progression score, 25 to 346, in its own
        units; D the observed scores of the held-out patients, and ``D_star`` what least squares
        predicts. ``meta["features"]`` names the rows of A.

    References
    ----------
    Efron, Hastie, Johnstone and Tibshirani, *Least angle regression* (2004).

    Examples
    --------
    >>> problem = diabetes()
    >>> problem.A.shape, problem.D.shape
    ((11, 342), (1, 100))
    """
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    features = [str(name) for name in data.feature_names]
    A, B, C, D = split(data.data.T, data.target[None], holdout, rng=rng)
    if standardize:
        mean, deviation = A.mean(axis=1, keepdims=True), A.std(axis=1, keepdims=True)
        A, C = (A - mean) / deviation, (C - mean) / deviation
    if intercept:
        A, C = (np.vstack([a, np.ones(a.shape[1])]) for a in (A, C))
        features.append("intercept")
    return _observed(A, B, C, D, dtype, {"source": "diabetes", "features": tuple(features)})


def from_files(
    A: str | os.PathLike[str],
    B: str | os.PathLike[str],
    C: str | os.PathLike[str],
    D: str | os.PathLike[str] | None = None,
) -> Completion:
    """Read a reader's own prompt from ``.npy``, ``.npz``, ``.csv`` or ``.mtx`` files.

    Parameters
    ----------
    A, B, C : path
        Features of the examples (d × n, one example a column), their labels (d' × n, or n
        numbers in one dimension), features of the queries (d × n', or d numbers in one
        dimension). An array inside an ``.npz`` is ``"data.npz:A"``.
    D : path, optional
        The true block (d' × n'), if it is known.

    Returns
    -------
    problem : Completion
        All blocks in one dtype; ``D_star``, ``W_star`` and ``kappa`` are None: nothing is solved
        yet.

    Raises
    ------
    FileNotFoundError, ValueError
        Naming the block, the file, its shape and what was expected.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name, block in {"A": np.eye(3), "B": np.ones((2, 3)), "C": np.ones((3, 1))}.items():
    ...     files.write_array(folder / f"{name}.csv", block)
    >>> problem = from_files(folder / "A.csv", folder / "B.csv", folder / "C.csv")
    >>> problem.X.shape
    (5, 4)
    """
    paths = {"A": A, "B": B, "C": C} | ({} if D is None else {"D": D})
    read = {name: files.read_array(path, name) for name, path in paths.items()}
    a = read["A"]
    if a.ndim < 2:
        raise ValueError(f"A: {A}: must have shape (d, n), one example a column; got {a.shape}")
    d, n = a.shape[-2:]
    if read["B"].ndim == 1:
        read["B"] = read["B"][None, :]
    if read["C"].ndim == 1:
        read["C"] = read["C"][:, None]
    if "D" in read and read["D"].ndim == 1:
        one_query = read["C"].shape[-1] == 1
        read["D"] = read["D"][:, None] if one_query else read["D"][None, :]
    expected = {"B": ("d'", n), "C": (d, "n'")}
    expected["D"] = (read["B"].shape[-2], read["C"].shape[-1])
    for name, shape in expected.items():
        if name not in read:
            continue
        found = read[name].shape
        if found[:-2] != a.shape[:-2] or any(
            isinstance(want, int) and want != has
            for want, has in zip(shape, found[-2:], strict=True)
        ):
            want = ", ".join(str(length) for length in (*a.shape[:-2], *shape))
            fits_transposed = (name == "B" and found[-2] == n) or (name == "C" and found[-1] == d)
            hint = "; is it transposed? One example is a column" if fits_transposed else ""
            raise ValueError(
                f"{name}: {paths[name]}: must have shape ({want}) to go with A of shape "
                f"{a.shape}; got {found}{hint}"
            )
    dtype = np.result_type(*read.values())
    read = {name: np.asarray(block, dtype=dtype) for name, block in read.items()}
    meta = {"source": "files", **{name: os.fspath(path) for name, path in paths.items()}}
    return Completion(read["A"], read["B"], read["C"], read.get("D"), meta=meta)


def _digits(
    n_landmarks: int, n_query: int, n_rows: int, gamma: float | None, rng: Any
) -> tuple[list[np.ndarray], list[np.ndarray], float]:
    """Images (and labels) of landmarks, rows and queries, and the kernel's gamma."""
    from sklearn.datasets import load_digits

    n_landmarks, n_query = _count("n_landmarks", n_landmarks, 2), _count("n_query", n_query)
    images, labels = load_digits(return_X_y=True)
    wanted = n_landmarks + n_rows + n_query
    if wanted > len(images):
        raise ValueError(
            f"n_landmarks + n_query + d_out must be at most {len(images)}, the number of images; "
            f"got {n_landmarks} + {n_query} + {n_rows}"
        )
    order = np.random.default_rng(rng).permutation(len(images))[:wanted]
    cuts = [n_landmarks, n_landmarks + n_rows]
    sets = np.split(order, cuts)
    if gamma is None:
        distances = _squared_distances(images[sets[0]], images[sets[0]])
        gamma = 0.5 / float(np.median(distances[np.triu_indices(n_landmarks, 1)]))
    gamma = _number("gamma", gamma, 0.0, exclusive=True)
    return [images[i] for i in sets], [labels[i] for i in sets], gamma


def _squared_distances(x: np.ndarray, z: np.ndarray) -> np.ndarray:
    # Pixels are small whole numbers, so this is exact and symmetric to the last bit.
    return (x * x).sum(axis=1)[:, None] + (z * z).sum(axis=1)[None, :] - 2 * x @ z.T


def _gaussian_kernel(x: np.ndarray, z: np.ndarray, gamma: float) -> np.ndarray:
    return np.exp(-gamma * _squared_distances(x, z))


def _observed(
    A: np.ndarray, B: np.ndarray, C: np.ndarray, D: np.ndarray, dtype: Any, meta: dict[str, Any]
) -> Completion:
    """A prompt of real data, with its Nyström answer and measured condition number."""
    A, B, C, D = (np.asarray(a, dtype=np.float64) for a in (A, B, C, D))
    dtype = _dtype(dtype)
    W = B @ np.linalg.pinv(A)
    kappa = theory.condition_number(A)
    A, B, C, D, D_star, W = (a.astype(dtype) for a in (A, B, C, D, W @ C, W))
    return Completion(A, B, C, D, D_star, W, kappa, meta)


# ---------------------------------------------------------------------------------------------
# Prompts as matrices


def prompt_matrix(A: Any, B: Any, C: Any, D: Any = None) -> Any:
    """Put the blocks together, X = [[A, C], [B, D]].

    Parameters
    ----------
    A, B, C : array, shapes (..., d, n), (..., d', n), (..., d, n')
        The known blocks, of one array type.
    D : array, shape (..., d', n'), optional
        The block to predict; masked to 0 if not given.

    Returns
    -------
    X : array, shape (..., d + d', n + n')

    Examples
    --------
    >>> prompt_matrix(np.eye(2), np.ones((1, 2)), np.full((2, 1), 5.0))
    array([[1., 0., 5.],
           [0., 1., 5.],
           [1., 1., 0.]])
    """
    xp = array_namespace(A, B, C)
    if (
        min(A.ndim, B.ndim, C.ndim) < 2
        or A.shape[-1] != B.shape[-1]
        or A.shape[-2] != C.shape[-2]
        or not (A.shape[:-2] == B.shape[:-2] == C.shape[:-2])
    ):
        raise ValueError(
            "A (…, d, n), B (…, d', n) and C (…, d, n') must fit together; got shapes "
            f"{tuple(A.shape)}, {tuple(B.shape)} and {tuple(C.shape)}"
        )
    expected = (*B.shape[:-1], C.shape[-1])
    if D is None:
        D = xp.zeros(expected, dtype=B.dtype, device=device(B))
    if tuple(D.shape) != tuple(expected):
        raise ValueError(f"D must have shape {tuple(expected)}, got {tuple(D.shape)}")
    upper, lower = xp.concat([A, C], axis=-1), xp.concat([B, D], axis=-1)
    return xp.concat([upper, lower], axis=-2)


def blocks(X: Any, d: int, n: int) -> tuple[Any, Any, Any, Any]:
    """Cut a prompt into its blocks A, B, C, D; the inverse of :func:`prompt_matrix`.

    Parameters
    ----------
    X : array, shape (..., d + d', n + n')
        The prompt.
    d, n : int
        Features and examples.

    Returns
    -------
    A, B, C, D : array
        Views where the array type has them.

    Examples
    --------
    >>> A, B, C, D = blocks(np.arange(12.0).reshape(3, 4), d=2, n=3)
    >>> A.shape, B.shape, C.shape, D.shape
    ((2, 3), (1, 3), (2, 1), (1, 1))
    """
    d, n = _count("d", d), _count("n", n)
    if X.ndim < 2 or X.shape[-2] <= d or X.shape[-1] <= n:
        raise ValueError(
            f"X must have more than d = {d} rows and n = {n} columns, got shape {tuple(X.shape)}"
        )
    return X[..., :d, :n], X[..., d:, :n], X[..., :d, n:], X[..., d:, n:]


def split(
    features: Any, labels: Any, holdout: int, *, rng: Any = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Set some examples aside as queries, at random.

    Parameters
    ----------
    features : array, shape (d, N)
        One example a column.
    labels : array, shape (d', N) or (N,)
        Their labels.
    holdout : int
        How many become queries, 1 to N − 1.
    rng : int, Generator or None
        As in ``numpy.random.default_rng``.

    Returns
    -------
    A, B, C, D : ndarray
        Examples (d × n), labels (d' × n), queries (d × n') and their labels (d' × n'), with
        n + n' = N: every example is in exactly one of the two.

    Examples
    --------
    >>> A, B, C, D = split(np.arange(10.0).reshape(2, 5), np.arange(5.0), holdout=2)
    >>> A.shape, B.shape, C.shape, D.shape
    ((2, 3), (1, 3), (2, 2), (1, 2))
    """
    features, labels = np.asarray(features), np.atleast_2d(np.asarray(labels))
    if features.ndim != 2 or labels.ndim != 2 or features.shape[1] != labels.shape[1]:
        raise ValueError(
            "features (d, N) and labels (d', N) must have one column an example; got shapes "
            f"{features.shape} and {labels.shape}"
        )
    total, holdout = features.shape[1], _count("holdout", holdout)
    if holdout >= total:
        raise ValueError(f"holdout must be at most {total - 1} of {total} examples, got {holdout}")
    order = np.random.default_rng(rng).permutation(total)
    queries, examples = np.sort(order[:holdout]), np.sort(order[holdout:])
    return features[:, examples], labels[:, examples], features[:, queries], labels[:, queries]


# ---------------------------------------------------------------------------------------------
# Arguments


def _t(matrix: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrix, -1, -2)


def _relative_error(D: Any, expected: np.ndarray) -> Any:
    D = to_numpy(D)
    if D.shape != expected.shape:
        raise ValueError(f"D must have shape {expected.shape}, got {D.shape}")
    error = np.linalg.norm(D - expected, axis=(-2, -1)) / np.linalg.norm(expected, axis=(-2, -1))
    return float(error) if error.ndim == 0 else error


def _count(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be a whole number >= {least}, got {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number >= {least}, got {value!r}") from None
    if number < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {number}")
    return number


def _number(name: str, value: Any, least: float, *, exclusive: bool = False) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not (least <= number < np.inf) or (exclusive and number == least):
        relation = ">" if exclusive else ">="
        raise ValueError(f"{name} must be a finite number {relation} {least:g}, got {value!r}")
    return number


def _batch(batch: int | tuple[int, ...]) -> tuple[int, ...]:
    lengths = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    return tuple(_count("batch", length) for length in lengths)


def _dtype(dtype: Any) -> np.dtype:
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype must be float64 or float32, got {dtype!r}") from None
    if dtype not in (np.dtype("float64"), np.dtype("float32")):
        raise ValueError(f"dtype must be float64 or float32, got {dtype}")
    return dtype


def _rank(rank: int | None, d: int, n: int) -> int:
    if rank is None:
        return min(d, n)
    rank = _count("rank", rank)
    if rank > min(d, n):
        raise ValueError(f"rank must be at most min(d, n) = {min(d, n)}, got {rank}")
    return rank


def _kappa(kappa: float | None, rank: int, dtype: np.dtype, spectrum: str) -> float | None:
    if kappa is None:
        if spectrum in DRAWN_SPECTRA:
            return None
        return 1e4 if rank > 1 else 1.0
    kappa = _number("kappa", kappa, 1.0)
    if rank == 1 and kappa != 1:
        raise ValueError(f"kappa must be 1 for a matrix of rank 1, got {kappa:g}")
    limit = 1 / float(np.finfo(dtype).eps)
    if kappa >= limit:
        raise ValueError(
            f"kappa must be below {limit:.1e}, beyond which {dtype} cannot hold the smallest "
            f"singular value; got {kappa:g}"
        )
    return kappa


def _standard_deviation(noise: Any, batch: tuple[int, ...]) -> np.ndarray:
    try:
        variance = np.asarray(noise, dtype=np.float64)
        spread = np.broadcast_to(variance, batch)
    except (TypeError, ValueError):
        raise ValueError(
            f"noise must be a number, or an array of the batch's shape {batch}; got {noise!r}"
        ) from None
    if not (np.isfinite(spread) & (spread >= 0)).all():
        raise ValueError(f"noise is a variance, finite and >= 0; got {noise!r}")
    return np.sqrt(spread)
