"""Condition numbers, iteration counts and operation counts: what the book's theorems predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from linear_icl._arrays import as_arrays, to_numpy

# ---------------------------------------------------------------------------------------------
# Condition numbers


def condition_number(A: Any, rcond: float | None = None) -> Any:
    r"""Ratio of the extreme *positive* singular values, :math:`\kappa(A)`.

    Singular values of at most ``rcond`` times the largest count as zero, so that a
    rank-deficient matrix has the condition number of the problem that is really solved.

    Parameters
    ----------
    A : array, shape (..., d, n)
        One matrix, or a batch of them.
    rcond : float, optional
        Cut-off relative to the largest singular value of each matrix. Default:
        ``max(d, n)`` times the rounding unit of the dtype, as in ``numpy.linalg.matrix_rank``.

    Returns
    -------
    kappa : float, or array of shape (...)
        NaN for a matrix without a positive singular value.

    Raises
    ------
    ValueError
        If ``A`` is not a matrix of finite numbers, or ``rcond`` lies outside [0, 1).

    Examples
    --------
    >>> condition_number([[2.0, 0.0], [0.0, 0.5]])
    4.0
    >>> condition_number([[3.0, 0.0], [0.0, 0.0]])
    1.0
    """
    xp, A = as_arrays(A=A)
    if A.ndim < 2 or 0 in A.shape[-2:]:
        raise ValueError(f"A must have shape (..., d, n) with d, n >= 1; got {tuple(A.shape)}")
    if rcond is None:
        rcond = max(A.shape[-2:]) * float(xp.finfo(A.dtype).eps)
    elif not 0 <= rcond < 1:
        raise ValueError(f"rcond must lie in [0, 1) or be None, got {rcond!r}")
    sigma = xp.linalg.svdvals(A)
    largest = xp.max(sigma, axis=-1, keepdims=True)
    positive = (sigma > rcond * largest) & (sigma > 0)
    smallest = xp.min(xp.where(positive, sigma, largest), axis=-1)
    largest = largest[..., 0]
    zero = largest == 0
    kappa = largest / xp.where(zero, xp.ones_like(smallest), smallest)
    kappa = xp.where(zero, xp.full_like(kappa, math.nan), kappa)
    return float(kappa) if kappa.ndim == 0 else kappa


def gram_condition_number(A: Any, rcond: float | None = None) -> Any:
    r"""Condition number of the Gram matrix, :math:`\kappa(AA^\top) = \kappa(A)^2`.

    It is computed from the singular values of A, never from the Gram matrix, whose small
    eigenvalues are lost to rounding once :math:`\kappa(A)` exceeds about 1e8.

    Parameters
    ----------
    A : array, shape (..., d, n)
        One matrix, or a batch of them.
    rcond : float, optional
        Cut-off relative to the largest singular value of A, as in :func:`condition_number`.

    Returns
    -------
    kappa : float, or array of shape (...)

    Examples
    --------
    >>> gram_condition_number([[2.0, 0.0], [0.0, 0.5]])
    16.0
    """
    return condition_number(A, rcond) ** 2


# ---------------------------------------------------------------------------------------------
# Machines


def diversity_index(blocks: Sequence[Any], rcond: float | None = None) -> float:
    r"""How well M machines see each other's directions: the diversity index α.

    With :math:`P_\mu` the orthogonal projector on the range of :math:`A_\mu`, α is the smallest
    *positive* eigenvalue of :math:`\frac1M\sum_\mu P_\mu`. It is 1 if all ranges coincide, 1/M if
    they are mutually orthogonal, (1 − cos θ)/2 for two ranges whose largest principal angle
    θ ≤ π/2 is the only positive one; no α lies strictly between 1 − 1/M and 1.

    If :math:`Q_\mu` holds an orthonormal basis of the range, from an SVD, the eigenvalues are the
    squared singular values of :math:`[Q_1 \dots Q_M]/\sqrt M`, which resolves angles that the
    projectors themselves would lose to rounding. Rounding the data turns a range by up to
    :math:`\kappa(A_\mu)` rounding units, so eigenvalues of at most
    :math:`(\max(d, \sum_\mu\mathrm{rank}\,A_\mu)\, u\, \max_\mu\kappa(A_\mu))^2` count as zero,
    with u the rounding unit of the dtype: 3e-19 at d = 240 and κ = 1e4.

    Parameters
    ----------
    blocks : sequence of M arrays, shape (d, n_μ) each
        :math:`A_1, \dots, A_M`, one example a column. A block may be wide, rank-deficient, zero,
        or without any column.
    rcond : float, optional
        A singular value of at most ``rcond`` times the largest of its block counts as zero.
        Default: ``max(d, n_μ)`` times the rounding unit of the dtype.

    Returns
    -------
    alpha : float
        NaN if no block has a range, that is, all are zero.

    Raises
    ------
    ValueError
        If there is no block, the blocks are not matrices of d rows each, or ``rcond`` lies
        outside [0, 1).

    References
    ----------
    Lutz et al. (NeurIPS 2025), section 4.

    Examples
    --------
    >>> round(diversity_index([[[1.0], [0.0]], [[0.0], [1.0]]]), 12)
    0.5
    >>> round(diversity_index([[[1.0], [0.0]], [[0.6], [0.8]]]), 12)
    0.2
    """
    if len(blocks) == 0:
        raise ValueError("blocks is empty; at least one matrix A_μ of shape (d, n_μ) is needed")
    _, *arrays = as_arrays(**{f"blocks[{i}]": block for i, block in enumerate(blocks)})
    if any(a.ndim != 2 or a.shape[0] != arrays[0].shape[0] for a in arrays):
        raise ValueError(
            "blocks must be matrices A_μ of shape (d, n_μ) with the same d; got "
            f"{', '.join(str(tuple(a.shape)) for a in arrays)}"
        )
    if rcond is not None and not 0 <= rcond < 1:
        raise ValueError(f"rcond must lie in [0, 1) or be None, got {rcond!r}")
    unit = float(np.finfo(str(arrays[0].dtype).removeprefix("torch.")).eps)
    bases, kappa = [], 1.0
    for A in map(to_numpy, arrays):
        U, sigma, _ = np.linalg.svd(A, full_matrices=False)
        cut = max(A.shape) * unit if rcond is None else rcond
        sigma = sigma[(sigma > cut * sigma[:1]) & (sigma > 0)]
        bases.append(U[:, : len(sigma)])
        if len(sigma):
            kappa = max(kappa, sigma[0] / sigma[-1])
    joint = np.concatenate(bases, axis=1)
    if joint.shape[1] == 0:
        return math.nan
    sigma = np.linalg.svd(joint / math.sqrt(len(bases)), compute_uv=False)
    # The leading direction is never round-off, however badly conditioned the blocks are.
    cut = min(max(joint.shape) * unit * kappa, sigma[0] / 2)
    return float(sigma[sigma > cut][-1] ** 2)


# ---------------------------------------------------------------------------------------------
# Iteration counts


def gradient_descent_iterations(kappa_gram: float, eps: float) -> int:
    r"""Steps after which gradient descent has reduced the error to ``eps`` of its start.

    With the step :math:`1/\lambda_{\max}(\Sigma)` every error component shrinks by at least
    :math:`1 - 1/\kappa(\Sigma)` a step; the count solves :math:`(1 - 1/\kappa)^k \le \epsilon`.

    Parameters
    ----------
    kappa_gram : float
        :math:`\kappa(\Sigma) = \kappa(A)^2`, at least 1.
    eps : float
        Wanted reduction of the error norm, in (0, 1).

    Returns
    -------
    iterations : int

    References
    ----------
    Nesterov, *Introductory Lectures on Convex Optimization* (2004), section 2.1.5.

    Examples
    --------
    >>> gradient_descent_iterations(100.0, 1e-6)
    1375
    """
    kappa, eps = _at_least_one("kappa_gram", kappa_gram), _fraction("eps", eps)
    if kappa == 1:
        return 1
    return math.ceil(math.log(eps) / math.log1p(-1 / kappa))


def conjugate_gradient_iterations(kappa_gram: float, eps: float) -> int:
    r"""Steps that suffice for conjugate gradients, from the Chebyshev bound.

    In the energy norm
    :math:`\|e_k\| \le 2 \bigl(\frac{\sqrt\kappa - 1}{\sqrt\kappa + 1}\bigr)^k \|e_0\|`.
    It is an upper bound: clustered spectra need fewer steps, and in exact arithmetic d suffice.

    Parameters
    ----------
    kappa_gram : float
        Condition number of the matrix that CG is run on, at least 1.
    eps : float
        Wanted reduction of the energy norm of the error, in (0, 1).

    Returns
    -------
    iterations : int

    References
    ----------
    Saad, *Iterative Methods for Sparse Linear Systems* (2003), equation (6.128).

    Examples
    --------
    >>> conjugate_gradient_iterations(100.0, 1e-6)
    73
    """
    kappa, eps = _at_least_one("kappa_gram", kappa_gram), _fraction("eps", eps)
    if kappa == 1:
        return 1
    root = math.sqrt(kappa)
    return math.ceil(math.log(eps / 2) / (math.log1p(-1 / root) - math.log1p(1 / root)))


def newton_schulz_iterations(kappa: float, eps: float) -> int:
    r"""Steps of :math:`\sigma \leftarrow \frac12\sigma(3 - \sigma^2)` from 1/κ to 1 − ``eps``.

    This is what EAGLE with η = 1/3 does to the smallest singular value of A once the largest is
    scaled to 1.

    Parameters
    ----------
    kappa : float
        :math:`\kappa(A)`, at least 1; not that of the Gram matrix.
    eps : float
        Wanted distance of the smallest singular value from 1, in (0, 1).

    Returns
    -------
    iterations : int

    Examples
    --------
    >>> [newton_schulz_iterations(kappa, 1e-8) for kappa in (1e1, 1e4, 1e8)]
    [10, 27, 50]
    """
    sigma, eps = 1 / _at_least_one("kappa", kappa), _fraction("eps", eps)
    steps = 0
    while sigma < 0.5 and 1 - sigma > eps:
        sigma = sigma * (3 - sigma**2) / 2
        steps += 1
    # From here the distance from 1 itself, which rounding would otherwise swallow.
    distance = 1 - sigma
    while distance > eps:
        distance = distance**2 * (3 - distance) / 2
        steps += 1
    return steps


def newton_schulz_burn_in(kappa: float) -> float:
    r"""Steps that no cubic with η = 1/3 can save: :math:`\ln\kappa(A) / \ln\frac32`.

    A small singular value grows by less than 3/2 a step, so κ(A) falls by at most that factor.

    Parameters
    ----------
    kappa : float
        :math:`\kappa(A)`, at least 1.

    Returns
    -------
    steps : float

    Examples
    --------
    >>> round(newton_schulz_burn_in(1e4), 2)
    22.72
    """
    return math.log(_at_least_one("kappa", kappa)) / math.log(1.5)


class MinimaxCubic(NamedTuple):
    r"""The cubic :math:`p(\sigma) = c\,(s\sigma - \sigma^3)` that is nearest to 1 on an interval.

    Attributes
    ----------
    s, c : float
        The coefficients. One EAGLE step has :math:`\eta\rho = 1/s`, followed by a rescaling of
        A and B by :math:`cs`.
    lower, upper : float
        The interval that the singular values lie in afterwards, :math:`1 \mp e`.
    """

    s: float
    c: float
    lower: float
    upper: float


def minimax_coefficients(lower: float, upper: float) -> MinimaxCubic:
    r"""The best odd cubic on [lower, upper]: it equioscillates about 1.

    With :math:`s = l^2 + lu + u^2`, :math:`\hat p(\sigma) = s\sigma - \sigma^3` takes its
    smallest value at both ends and its largest at :math:`x_m = \sqrt{s/3}`;
    :math:`c = 2/(\hat p(l) + \hat p(x_m))` puts the two at equal distance e from 1.

    Parameters
    ----------
    lower, upper : float
        ``0 < lower <= upper``. ``upper`` must be a guaranteed bound on the largest singular
        value: p falls steeply beyond it and changes sign. ``lower`` may be a guess; one too
        large costs steps, never correctness.

    Returns
    -------
    cubic : MinimaxCubic
        The coefficients and the interval that the singular values lie in afterwards.

    References
    ----------
    Amsel, Persson, Musco and Gower, *The Polar Express* (2025): composing the best cubics is
    optimal among compositions of cubics.

    Examples
    --------
    >>> cubic = minimax_coefficients(0.5, 1.0)
    >>> [round(cubic.c * (cubic.s * x - x**3), 4) for x in (0.5, 1.0)]
    [0.914, 0.914]
    """
    l, u = float(lower), float(upper)  # noqa: E741
    if not (0 < l <= u < math.inf):
        raise ValueError(f"0 < lower <= upper is required, got lower={lower!r}, upper={upper!r}")
    s = l * l + l * u + u * u
    x_m = math.sqrt(s / 3)
    top, bottom = 2 * x_m**3, l * u * (l + u)
    # top - bottom = (x_m - l)²(2x_m + l), written without cancellation.
    gap = (u - l) * (u + 2 * l) / (3 * (x_m + l))
    e = gap**2 * (2 * x_m + l) / (top + bottom)
    return MinimaxCubic(s=s, c=2 / (top + bottom), lower=1 - e, upper=1 + e)


def minimax_iterations(kappa: float, eps: float) -> int:
    r"""Steps of the best cubics until every singular value in [1/κ, 1] is within ``eps`` of 1.

    Parameters
    ----------
    kappa : float
        :math:`\kappa(A)`, at least 1, known beforehand.
    eps : float
        Wanted distance from 1, in (0, 1).

    Returns
    -------
    iterations : int

    Examples
    --------
    >>> [minimax_iterations(kappa, 1e-8) for kappa in (1e1, 1e4, 1e8)]
    [6, 13, 23]
    """
    lower, upper = 1 / _at_least_one("kappa", kappa), 1.0
    eps = _fraction("eps", eps)
    steps = 0
    while upper - lower > 0 and max(1 - lower, upper - 1) > eps:
        _, _, lower, upper = minimax_coefficients(lower, upper)
        steps += 1
    return steps


class SpectrumHistory(NamedTuple):
    """How EAGLE treats each singular direction, step by step.

    Attributes
    ----------
    sigma : ndarray, shape (steps + 1, ..., r)
        Singular values of A before each step, and after the last.
    remaining : ndarray, shape (steps + 1, ..., r)
        Fraction of C, and of the error of D, that is left along each direction.
    """

    sigma: np.ndarray
    remaining: np.ndarray


def spectrum_after(
    sigma: Any, steps: int, eta: float = 1 / 3, gamma: float = 1.0
) -> SpectrumHistory:
    r"""Follow EAGLE's singular values as scalars: each one evolves alone.

    With :math:`\rho = 1/\max_i\sigma_i^2`, a step takes
    :math:`\sigma \leftarrow \sigma(1 - \eta\rho\sigma^2)` and
    :math:`q \leftarrow q\,(1 - \gamma\rho\sigma^2)`, both right-hand sides with the old σ. If
    :math:`u_i` are the left singular vectors of A, then
    :math:`D_l - D^* = -\sum_i q_{l,i}\, W^* u_i u_i^\top C`.

    Parameters
    ----------
    sigma : array, shape (..., r)
        Singular values of A, nonnegative, at least one of them positive.
    steps : int
        Number of steps, at least 0.
    eta, gamma : float
        Step factors of A and of C, D.

    Returns
    -------
    history : SpectrumHistory

    Examples
    --------
    >>> history = spectrum_after([2.0, 1.0], steps=2)
    >>> history.remaining[1]
    array([0.  , 0.75])
    >>> history.sigma[1].round(4)
    array([1.3333, 0.9167])
    """
    sigma = np.array(sigma, dtype=np.float64)
    if sigma.ndim == 0 or not np.isfinite(sigma).all() or (sigma < 0).any():
        raise ValueError("sigma must be an array of finite numbers >= 0")
    if not (sigma.max(axis=-1) > 0).all():
        raise ValueError("sigma must hold at least one positive number along its last axis")
    if isinstance(steps, bool) or int(steps) != steps or steps < 0:
        raise ValueError(f"steps must be a whole number >= 0, got {steps!r}")
    sigmas, remaining = [sigma], [np.ones_like(sigma)]
    for _ in range(int(steps)):
        # Scaled first, so that tiny and huge matrices behave alike.
        largest = sigma.max(axis=-1, keepdims=True)
        share = np.divide(sigma, largest, out=np.zeros_like(sigma), where=largest > 0) ** 2
        sigma = np.abs(sigma * (1 - eta * share))
        sigmas.append(sigma)
        remaining.append(remaining[-1] * (1 - gamma * share))
    return SpectrumHistory(np.stack(sigmas), np.stack(remaining))


def iteration_bound(
    kappa: float,
    eps: float,
    *,
    alpha: float = 1.0,
    d_out: int = 1,
    W_norm: float = 1.0,
    C_norm: float = 1.0,
) -> int:
    r"""Steps after which EAGLE is certain to have :math:`\|D_L - D^*\|_F \le \epsilon`.

    Theorems 1 and 2 with their constants, for S = I, η = 1/3 and γ = 1. Write
    :math:`\delta = \epsilon / (\sqrt{d'}\,\|W^*\|_2\|C\|_F)`. Scaled to largest value 1, the
    smallest singular value grows from 1/κ as :math:`\sigma\leftarrow\frac12\sigma(3-\sigma^2)`.

    1. While :math:`\sigma \le \frac12`, the factor is :math:`\frac32(1 - \sigma^2/3) \ge
       \frac{11}{8}`. Going back from the last such value, the σ² fall at least as fast as a
       geometric series, hence all the losses together are at most :math:`e^{64/627}`, and
       :math:`\sigma > \frac12` after :math:`K = 1 + \lfloor (\ln\frac\kappa2 + \frac{64}{627})
       / \ln\frac32 \rfloor` steps (0 if κ < 2).
    2. From there :math:`\theta = 1 - \sigma` obeys :math:`\theta \leftarrow
       \frac12\theta^2(3-\theta) \le \frac32\theta^2`, so :math:`\frac32\theta \le
       (\frac34)^{2^m}` after m further steps.
    3. **One range** (α = 1; Theorem 1). The error along a direction is the product of all
       :math:`1 - \sigma^2 \le 2\theta`; the last factor alone is at most δ if
       :math:`2^m \ge \ln\frac{4}{3\delta} / \ln\frac43`. Hence :math:`L = K + m + 1`.
    4. **M machines** (α < 1; Theorem 2, for B = W* A). Every block is scaled to
       :math:`\|A_\mu\|_2 = 1` and conditioned alone, so 1 and 2 hold for all of them with the
       largest κ. A round takes :math:`C \leftarrow (I - G)C` with
       :math:`G = \frac1M\sum_\mu A_\mu A_\mu^\top`, and :math:`D - D^* = -W^* C` throughout.
       Always :math:`0 \preceq G \preceq I`, so that no round does harm. Since
       :math:`A_\mu A_\mu^\top \succeq (1-\theta)^2 P_\mu`, the norm of I − G on the joint range,
       which C never leaves, is at most :math:`1 - \alpha(1-\theta)^2`. Five steps after K,
       θ has fallen from 1/2 to 1.24e-6. Hence
       :math:`L = K + 5 + \lceil \ln\delta / \ln(1 - \alpha(1 - 1.24\cdot10^{-6})^2) \rceil`.

    M itself does not occur, nor does κ in the slow phase, of about
    :math:`\alpha^{-1}\ln\frac1\delta` rounds.

    Parameters
    ----------
    kappa : float
        :math:`\kappa(A)`, or the largest :math:`\kappa(A_\mu)`; at least 1.
    eps : float
        Wanted Frobenius norm of the error, positive, in the units of D.
    alpha : float
        Diversity index, in (0, 1]; see :func:`diversity_index`. One machine has α = 1.
    d_out : int
        d', the number of outputs.
    W_norm : float
        :math:`\|W^*\|_2`.
    C_norm : float
        :math:`\|C\|_F`, with C in the (joint) range of A.

    Returns
    -------
    iterations : int

    References
    ----------
    Lutz et al. (NeurIPS 2025), Theorems 1 and 2, state the orders; the constants are derived
    here.

    Examples
    --------
    >>> iteration_bound(1e4, 1e-8)
    30
    >>> [iteration_bound(1e4, 1e-8, alpha=alpha) for alpha in (0.5, 0.1, 0.01)]
    [54, 202, 1860]
    """
    kappa = _at_least_one("kappa", kappa)
    for name, value in (("eps", eps), ("d_out", d_out), ("W_norm", W_norm), ("C_norm", C_norm)):
        if not (0 < value < math.inf):
            raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    alpha = _diversity(alpha)
    log_delta = math.log(eps) - 0.5 * math.log(d_out) - math.log(W_norm) - math.log(C_norm)
    if log_delta >= 0:
        return 0
    if alpha < 1:
        slow = math.log1p(-alpha * (1 - 1.24e-6) ** 2)
        return _burn_in(kappa) + 5 + math.ceil(log_delta / slow)
    doublings = math.log2((math.log(4 / 3) - log_delta) / math.log(4 / 3))
    return _burn_in(kappa) + math.ceil(doublings) + 1


def _burn_in(kappa: float) -> int:
    """Steps after which the smallest singular value is certain to exceed 1/2."""
    if kappa < 2:
        return 0
    return 1 + math.floor((math.log(kappa / 2) + 64 / 627) / math.log(1.5))


# ---------------------------------------------------------------------------------------------
# Operation counts


class Flops(NamedTuple):
    """Floating-point operations of a method, an addition and a multiplication counting as two.

    Attributes
    ----------
    setup : int
        What is done once. A direct method is all setup.
    step : int
        What every iteration costs.
    """

    setup: int
    step: int

    def total(self, iterations: int = 0) -> int:
        """Operations of the whole solve with that many iterations."""
        return self.setup + iterations * self.step


def flops(
    method: str, d: int, n: int, d_out: int = 1, n_query: int = 1, *, rank: int | None = None
) -> Flops:
    r"""Count the floating-point operations of a solver, leading terms only.

    A product of a p × q with a q × r matrix is 2pqr. With :math:`k = \min(d, n)` and
    :math:`m = \max(d, n)`; predicting :math:`D = WC` adds :math:`2dd'n'` to the setup of every
    method that finds W first.

    ============ ==================================== =======================================
    method       setup                                step
    ============ ==================================== =======================================
    gd           –                                    4dnd'  (WA and RAᵀ)
    sgd          –                                    4drd' + 2drk + 4/3 k³  (the last two: ρ)
    cgls         –                                    4dnd' + 6dd' + 4nd'
    cg           2d²n + 2dnd'  (Σ and BAᵀ)            2d²d' + 10dd'
    pcg          as cg                                4d²d' + 12dd'  (dense M)
    gd++         –                                    4d²n + 4dnd' + 2d²n' + 2dd'n'
    eagle        –                                    4dnk + 4dnd' + 4dnn' + 2nd'n'
    eagle, r     –                                    as eagle with n = r, and 4/3 k³  (ρ)
    minimax      as eagle                             as eagle
    eagle-gram   2d²n + 2dnd'                         4d³ + 4d²d' + 2d²n' + 2dd'n'
    qr           2mk² − ⅔k³ + 4mkd' − k²d'            –
    svd          6mk² + 20k³ + 4mkd'                  –
    cholesky     d²n + ⅓d³ + 2dnd' + 2d²d'            –
    ============ ==================================== =======================================

    ``svd`` is the R-SVD with both thin factors; ``eagle`` forms whichever of AAᵀ and AᵀA is
    smaller. With ``n_query=0`` EAGLE is the estimation form, W ← W + γρ(B − WA)Aᵀ, and the terms
    in n' are replaced by 4dnd' (data) or 2d²d' (Gram). With a ``rank`` a step samples r columns,
    and k = min(d, r); ρ is then found anew in every step, as the largest eigenvalue of a k × k
    Gram matrix.

    Parameters
    ----------
    method : str
        One of the names above; the keys of ``plotting.METHODS``, ``eagle-gram`` and ``sgd``.
    d, n, d_out, n_query : int
        Features, examples, outputs, queries.
    rank : int, optional
        r, the columns that a step of ``eagle`` or ``sgd`` samples; default all.

    Returns
    -------
    flops : Flops
        ``flops.total(iterations)`` is the cost of a solve.

    References
    ----------
    Golub and Van Loan, *Matrix Computations* (4th ed., 2013), sections 5.2 and 8.6.

    Examples
    --------
    >>> flops("gd", d=100, n=200).step
    80000
    >>> flops("eagle", d=240, n=240, d_out=2, n_query=2).step // flops(
    ...     "gd", d=240, n=240, d_out=2).step
    122
    """
    for name, value, least in (("d", d, 1), ("n", n, 1), ("d_out", d_out, 1)):
        _require_count(name, value, least)
    _require_count("n_query", n_query, 0)
    if method not in _FLOPS:
        raise ValueError(f"method must be one of {', '.join(_FLOPS)}; got {method!r}")
    if rank is not None:
        _require_count("rank", rank, 1)
        if method not in ("eagle", "sgd") or rank > n:
            raise ValueError(
                f"rank is for 'eagle' and 'sgd' and at most n; got {rank} of {method!r}"
            )
        n = rank
    setup, step = _FLOPS[method](int(d), int(n), int(d_out), int(n_query))
    if rank is not None and method == "eagle":
        step += 4 * min(d, rank) ** 3 / 3
    return Flops(round(setup), round(step))


def _flops_apply(d: int, n: int, p: int, q: int) -> int:
    """AAᵀC and BAᵀC, or (B − WA)Aᵀ, from the data."""
    return 4 * d * n * q + 2 * n * p * q if q else 4 * d * n * p


def _flops_eagle(d: int, n: int, p: int, q: int) -> tuple[float, float]:
    return 0, 4 * d * n * min(d, n) + 4 * d * n * p + _flops_apply(d, n, p, q)


def _flops_eagle_gram(d: int, n: int, p: int, q: int) -> tuple[float, float]:
    queries = 2 * d * d * q + 2 * d * p * q if q else 2 * d * d * p
    return 2 * d * d * n + 2 * d * n * p, 4 * d**3 + 4 * d * d * p + queries


def _flops_qr(d: int, n: int, p: int, q: int) -> tuple[float, float]:
    k, m = min(d, n), max(d, n)
    return 2 * m * k * k - 2 * k**3 / 3 + 4 * m * k * p - k * k * p + 2 * d * p * q, 0


def _flops_svd(d: int, n: int, p: int, q: int) -> tuple[float, float]:
    k, m = min(d, n), max(d, n)
    return 6 * m * k * k + 20 * k**3 + 4 * m * k * p + 2 * d * p * q, 0


_FLOPS: dict[str, Callable[[int, int, int, int], tuple[float, float]]] = {
    "gd": lambda d, n, p, q: (2 * d * p * q, 4 * d * n * p),
    "sgd": lambda d, n, p, q: (
        2 * d * p * q,
        4 * d * n * p + 2 * d * n * min(d, n) + 4 * min(d, n) ** 3 / 3,
    ),
    "cgls": lambda d, n, p, q: (2 * d * p * q, 4 * d * n * p + 6 * d * p + 4 * n * p),
    "cg": lambda d, n, p, q: (
        2 * d * d * n + 2 * d * n * p + 2 * d * p * q,
        2 * d * d * p + 10 * d * p,
    ),
    "pcg": lambda d, n, p, q: (
        2 * d * d * n + 2 * d * n * p + 2 * d * p * q,
        4 * d * d * p + 12 * d * p,
    ),
    "gd++": lambda d, n, p, q: (0, 4 * d * d * n + 4 * d * n * p + 2 * d * d * q + 2 * d * p * q),
    "eagle": _flops_eagle,
    "minimax": _flops_eagle,
    "eagle-gram": _flops_eagle_gram,
    "qr": _flops_qr,
    "svd": _flops_svd,
    "cholesky": lambda d, n, p, q: (
        d * d * n + d**3 / 3 + 2 * d * n * p + 2 * d * d * p + 2 * d * p * q,
        0,
    ),
}


# ---------------------------------------------------------------------------------------------
# Communication


class CommunicationCost(NamedTuple):
    """What a distributed solve costs, as :func:`communication_cost` predicts it.

    Attributes
    ----------
    rounds : int
        All-reduce operations, one after the other.
    bytes : int
        What one machine puts into them in all.
    latency_seconds, bandwidth_seconds, compute_seconds : float
        Waiting for messages to start, moving bytes, and arithmetic.
    """

    rounds: int
    bytes: int
    latency_seconds: float
    bandwidth_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The three together: no overlap is assumed."""
        return self.latency_seconds + self.bandwidth_seconds + self.compute_seconds


COMMUNICATION_METHODS = ("average", "frozen", "cg", "raw-cg", "gram", "gather")


def communication_cost(
    method: str,
    *,
    d: int,
    n: int,
    machines: int,
    kappa: float,
    alpha: float,
    eps: float,
    latency: float,
    bandwidth: float,
    rate: float,
    d_out: int = 1,
    n_query: int = 1,
    itemsize: int = 8,
) -> CommunicationCost:
    r"""Predict the rounds, bytes and seconds of solving with n examples on M machines.

    An all-reduce of b bytes takes :math:`2\lceil\log_2 M\rceil` latencies and moves
    :math:`2(1 - \frac1M)b` bytes through each link, by recursive halving and doubling. Machines
    hold :math:`n_\mu = \lceil n/M\rceil` examples; a block longer than d is read once, by a QR that
    leaves d columns with the same products, and costs d × d work from then on. With K the
    conditioning steps and L the bound of :func:`iteration_bound`, m that of
    :func:`conjugate_gradient_iterations` (at most d, as exact arithmetic promises; that flatters
    ``raw-cg``, which rounding makes several times as long), and q = (d + d')n' numbers:

    ========= ====================== ============ ============================================
    method    rounds                 numbers each arithmetic of a machine
    ========= ====================== ============ ============================================
    average   L(κ, α)                q            an EAGLE step a round
    frozen    L(κ, α)                q            K EAGLE steps, then two products a round
    cg        m(1/α)                 q            K steps without a message, then two products
    raw-cg    m(κ²/α)                q            two products a round
    gram      1                      d² + dd'     Gram matrix, then Cholesky, on each
    gather    1                      (d + d')n_μ  QR of all n examples, on one machine
    ========= ====================== ============ ============================================

    ``cg`` is conjugate gradients on :math:`G = \frac1M\sum_\mu A_\mu A_\mu^\top` of the
    conditioned blocks, whose positive eigenvalues lie in [α, 1]; ``raw-cg`` on that of the
    normalised data, where :math:`\alpha/\kappa^2` takes the place of α. The error of D is W*
    times the residual, hence both in the form that makes the residual smallest, for which the
    same Chebyshev bound holds. ``gather`` moves :math:`(1 - \frac1M)` of the data into one
    machine, whose memory the model does not check.

    **Often ``gram`` wins.** Its one message is as long as those of d²/((d + d')n') rounds, about
    d/n', and its Cholesky factor costs a twelfth of one EAGLE step on d columns. It loses
    only where fewer rounds do and bandwidth decides, or blocks are short (n_μ ≪ d), or where ε
    asks for more than the κ² rounding units that are left after squaring the condition number.

    Parameters
    ----------
    method : str
        One of the names above.
    d, n, machines : int
        Features, examples in all, and M.
    kappa : float
        Largest condition number of a block.
    alpha : float
        Diversity index, in (0, 1].
    eps : float
        Wanted error relative to :math:`\sqrt{d'}\,\|W^*\|_2\|C\|_F`, in (0, 1).
    latency : float
        Seconds that a message takes to start, >= 0.
    bandwidth : float
        Bytes a second through the link of a machine.
    rate : float
        Floating-point operations a second of a machine.
    d_out, n_query : int
        d' and n'. The weights are the answer to n' = d queries, C = I.
    itemsize : int
        Bytes of a number: 8 for float64, 4 for float32.

    Returns
    -------
    cost : CommunicationCost
        Proportional to the latency, 1/bandwidth and 1/rate: with all three equal to 1 its parts
        are the coefficients to fit measured seconds with.

    References
    ----------
    Thakur, Rabenseifner and Gropp, *Optimization of collective communication operations in
    MPICH* (2005), section 4.4.

    Examples
    --------
    >>> network = dict(latency=5e-5, bandwidth=1e9, rate=1e10)
    >>> problem = dict(d=1000, n=10**9, machines=10_000, kappa=1e3, alpha=1.0, eps=1e-8)
    >>> for method in ("average", "gram", "gather"):
    ...     cost = communication_cost(method, **problem, **network)
    ...     print(f"{method:8}{cost.rounds:3} rounds {cost.seconds:9.2f} s")
    average  24 rounds     29.69 s
    gram      1 rounds     10.07 s
    gather    1 rounds 208407.13 s
    """
    if method not in COMMUNICATION_METHODS:
        raise ValueError(
            f"method must be one of {', '.join(COMMUNICATION_METHODS)}; got {method!r}"
        )
    counts = {"d": d, "n": n, "machines": machines, "d_out": d_out, "n_query": n_query}
    for name, count in {**counts, "itemsize": itemsize}.items():
        _require_count(name, count, 1)
    if machines > n:
        raise ValueError(f"machines must be at most n = {n}, got {machines}")
    kappa, alpha, eps = _at_least_one("kappa", kappa), _diversity(alpha), _fraction("eps", eps)
    for name, value in (("bandwidth", bandwidth), ("rate", rate)):
        if not (0 < value < math.inf):
            raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    if not (0 <= latency < math.inf):
        raise ValueError(f"latency must be a finite number >= 0, got {latency!r}")
    n_local = -(-n // machines)
    if method == "gather":
        rounds, numbers = 1, (d + d_out) * n_local
        work = flops("qr", d, n, d_out, n_query).setup
        starts, moved = 1, machines - 1.0
    else:
        rounds, numbers, work = _rounds(method, d, n_local, d_out, n_query, kappa, alpha, eps)
        starts, moved = 2, 2 * (1 - 1 / machines)
    size = rounds * numbers * itemsize
    return CommunicationCost(
        rounds,
        size,
        rounds * starts * math.ceil(math.log2(machines)) * latency,
        moved * size / bandwidth,
        work / rate,
    )


def _rounds(
    method: str, d: int, n: int, d_out: int, n_query: int, kappa: float, alpha: float, eps: float
) -> tuple[int, int, int]:
    """Rounds, numbers in each, and operations of one machine with n examples."""
    if method == "gram":
        work = flops("cholesky", d, n, d_out, n_query).setup
        return 1, d * d + d * d_out, work
    setup = 2 * (d + d_out) ** 2 * n if n > d else 0
    n = min(n, d)
    step, apply = flops("eagle", d, n, d_out, n_query).step, _flops_apply(d, n, d_out, n_query)
    conditioning = _burn_in(kappa) + 5
    if method in ("average", "frozen"):
        rounds = iteration_bound(kappa, eps, alpha=alpha)
        conditioning = rounds if method == "average" else min(conditioning, rounds)
    else:
        kappa_gram = 1 / alpha if method == "cg" else kappa**2 / alpha
        rounds = min(d, conjugate_gradient_iterations(kappa_gram, eps))
        conditioning = conditioning if method == "cg" else 0
    return rounds, (d + d_out) * n_query, setup + conditioning * (step - apply) + rounds * apply


# ---------------------------------------------------------------------------------------------
# Arguments


def _diversity(alpha: float) -> float:
    if not (0 < alpha <= 1):
        raise ValueError(f"alpha is a diversity index, in (0, 1]; got {alpha!r}")
    return float(alpha)


def _at_least_one(name: str, value: float) -> float:
    if not (1 <= value < math.inf):
        raise ValueError(f"{name} is a condition number: finite and >= 1, got {value!r}")
    return float(value)


def _fraction(name: str, value: float) -> float:
    if not (0 < value < 1):
        raise ValueError(f"{name} must lie strictly between 0 and 1, got {value!r}")
    return float(value)


def _require_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
