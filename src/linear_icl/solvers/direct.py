"""Direct reference solutions: singular values, QR, Cholesky."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from array_api_compat import is_torch_array

from linear_icl._arrays import (
    Array,
    check_tolerances,
    identity_where,
    is_singular,
    like,
    norms,
    to_numpy,
    transpose,
)
from linear_icl.results import SolveResult, Status, finish
from linear_icl.solvers._prompt import Prompt, prepare
from linear_icl.solvers._spectrum import default_rcond


def nystrom(A: Any, B: Any, C: Any, *, rcond: float | None = None) -> SolveResult:
    """Complete the block D of a prompt directly: D* = B A⁺ C.

    The problem: X = [[A, C], [B, D]] with rank X = rank A has D = B A⁺ C, and when the rank
    is larger this is its Nyström approximation. A⁺ comes from the singular value decomposition
    of A, never from AAᵀ, whose condition number is the square.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column. NumPy or torch, float32 or float64.
    B : array, shape (…, d', n) or (n,)
        Example labels.
    C : array, shape (…, d, n') or (d,)
        Query features.
    rcond : float, optional
        Singular values below ``rcond`` times the largest count as zero; default
        max(d, n) · machine epsilon.

    Returns
    -------
    SolveResult
        ``D`` of shape (…, d', n'), and the ``rank`` that was decided on.

    Raises
    ------
    TypeError, ValueError
        Shapes that do not fit, non-finite entries, sparse, masked, complex or half-precision
        input.

    References
    ----------
    Williams and Seeger (2001); Lutz et al. (2025), equation for the Nyström estimate.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> solvers.nystrom([[2, 0], [0, 1]], [[2, 1]], [[1], [1]]).D
    array([[2.]])
    """
    check_tolerances(1.0, 0.0, None, rcond)
    if C is None:
        raise TypeError("C is None; for the weights W use least_squares(A, B, method='svd')")
    prompt = prepare(A, B, C)
    W, rank = _svd_weights(prompt, rcond)
    return _direct_result(prompt, D=prompt.prediction(W @ prompt.C), rank=rank)


def least_squares(
    A: Any,
    B: Any,
    *,
    method: Literal["qr", "svd", "cholesky"] = "qr",
    rcond: float | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Least-squares weights, directly: minimise ‖B − W A‖_F over W.

    ``svd`` works for every A and gives the solution of least norm, W* = B A⁺. ``qr`` (of Aᵀ)
    and ``cholesky`` (of AAᵀ, condition number squared) need A of full row rank; otherwise the
    result says BREAKDOWN or NOT_POSITIVE_DEFINITE, and W is zero for the members concerned.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column.
    B : array, shape (…, d', n) or (n,)
        Example labels.
    method : {"qr", "svd", "cholesky"}
        The factorisation.
    rcond : float, optional
        Relative size below which a singular value (``svd``; ``qr``: the smallest, as estimated
        from R) counts as zero; default max(d, n) · machine epsilon.
    raise_on_failure : bool
        Raise :class:`SolverError` instead of returning a failed result.

    Returns
    -------
    SolveResult
        ``W`` of shape (…, d', d), or (d,) for one-dimensional labels.

    Raises
    ------
    TypeError, ValueError
        As in :func:`nystrom`, or an unknown ``method``.

    References
    ----------
    Björck (1996), chapters 2 and 3; Golub and Van Loan (2013), chapter 5.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> solvers.least_squares([[1.0, 2.0, 3.0]], [2.0, 4.0, 6.0]).W.round(12)
    array([2.])
    """
    if method not in ("qr", "svd", "cholesky"):
        raise ValueError(f"method must be 'qr', 'svd' or 'cholesky', got {method!r}")
    check_tolerances(1.0, 0.0, None, rcond)
    prompt = prepare(A, B)
    if method == "svd":
        W, rank = _svd_weights(prompt, rcond)
        return _direct_result(prompt, W=prompt.weights(W), rank=rank)
    solve = _qr_weights if method == "qr" else _cholesky_weights
    W, failed, status, note = solve(prompt, rcond)
    return _direct_result(
        prompt,
        W=prompt.weights(W),
        failed=failed,
        failure=status,
        note=note if failed.any() else "",
        raise_on_failure=raise_on_failure,
    )


def _svd_weights(prompt: Prompt, rcond: float | None) -> tuple[Array, np.ndarray]:
    xp, A, B = prompt.xp, prompt.A, prompt.B
    if 0 in A.shape[-2:] or 0 in A.shape:
        return B @ transpose(A), np.zeros(prompt.batch, dtype=int)
    U, sigma, Vh = xp.linalg.svd(A, full_matrices=False)
    rcond = default_rcond(A) if rcond is None else rcond
    keep = (sigma > rcond * sigma[..., :1]) & (sigma > 0)
    inverse = xp.where(keep, 1 / xp.where(keep, sigma, 1.0), 0.0)
    W = ((B @ transpose(Vh)) * inverse[..., None, :]) @ transpose(U)
    return W, to_numpy(keep).sum(axis=-1).astype(int)


def _qr_weights(prompt: Prompt, rcond: float | None) -> tuple[Array, np.ndarray, Status, str]:
    """Aᵀ = QR, so W Rᵀ = B Q."""
    xp, A, B = prompt.xp, prompt.A, prompt.B
    note = "A does not have full row rank, which QR needs; use method='svd'"
    if prompt.n < prompt.d or 0 in A.shape:
        failed = np.full(prompt.batch, prompt.n < prompt.d)
        return prompt.start(None), failed, Status.BREAKDOWN, note
    Q, R = xp.linalg.qr(transpose(A))
    failed = _singular(xp, R, default_rcond(A) if rcond is None else rcond)
    R = identity_where(failed, R)
    W = transpose(xp.linalg.solve(R, transpose(B @ Q)))
    return _zero_where(xp, failed, W), failed, Status.BREAKDOWN, note


def _cholesky_weights(prompt: Prompt, rcond: float | None) -> tuple[Array, np.ndarray, Status, str]:
    """Σ = LLᵀ, so W LLᵀ = BAᵀ."""
    xp, A, B = prompt.xp, prompt.A, prompt.B
    note = "Σ = AAᵀ is not positive definite in this precision; use method='svd'"
    if 0 in A.shape:
        failed = np.full(prompt.batch, prompt.d > 0)
        return prompt.start(None), failed, Status.NOT_POSITIVE_DEFINITE, note
    gram = A @ transpose(A)
    L, failed = _cholesky(xp, gram)
    # λ(Σ) = σ(L)². Round-off alone can make a singular Σ look positive definite.
    failed = failed | _singular(xp, L, (prompt.d * float(xp.finfo(A.dtype).eps)) ** 0.5)
    L = identity_where(failed, L)
    half = xp.linalg.solve(L, A @ transpose(B))
    W = transpose(xp.linalg.solve(transpose(L), half))
    return _zero_where(xp, failed, W), failed, Status.NOT_POSITIVE_DEFINITE, note


def _cholesky(xp: Any, gram: Array) -> tuple[Array, np.ndarray]:
    """Cholesky factors, member by member where some member has none."""
    batch = tuple(gram.shape[:-2])
    failed = np.zeros(batch, dtype=bool)
    try:
        return xp.linalg.cholesky(gram), failed
    except Exception as error:
        if not is_singular(error):
            raise
    if not batch:
        return xp.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device), np.array(True)
    parts = [_cholesky(xp, gram[index]) for index in range(batch[0])]
    return xp.stack([L for L, _ in parts]), np.stack([f for _, f in parts])


def _singular(xp: Any, T: Array, rcond: float) -> np.ndarray:
    """Whether σ_min ≤ rcond σ_max for triangular T, by iteration with TTᵀ and with its inverse.

    The diagonal alone does not tell: it may stay large while σ_min vanishes.
    """
    plain = T.detach() if is_torch_array(T) else T
    diagonal = np.abs(to_numpy(xp.linalg.diagonal(plain)))
    zero = diagonal.min(axis=-1) <= rcond**2 * diagonal.max(axis=-1)
    plain = identity_where(zero, plain)
    start = np.random.default_rng(0).standard_normal((T.shape[-1], 4))
    X = like(start, T) + 0.0 * plain[..., :1]
    # One step of each: a vanishing σ stands far below the others. Four starts leave no bad luck.
    Y = xp.linalg.solve(transpose(plain), X)
    Y = xp.linalg.solve(plain, Y / like(norms(Y, axis=-2)[..., None, :], Y))
    for _ in range(3):
        X = X / like(norms(X, axis=-2)[..., None, :], X)
        X = plain @ (transpose(plain) @ X)
    largest = norms(X, axis=-2).max(axis=-1) ** 0.5
    return zero | ~(1 / norms(Y, axis=-2).max(axis=-1) > rcond * largest)


def _zero_where(xp: Any, failed: np.ndarray, W: Array) -> Array:
    return xp.where(xp.asarray(failed[..., None, None], device=W.device), xp.zeros_like(W), W)


def _direct_result(
    prompt: Prompt,
    *,
    failed: np.ndarray | None = None,
    failure: Status = Status.BREAKDOWN,
    rank: np.ndarray | None = None,
    raise_on_failure: bool = False,
    note: str = "",
    **solution: Array,
) -> SolveResult:
    statuses = np.full(prompt.batch, Status.CONVERGED, dtype=object)
    if failed is not None:
        statuses[failed] = failure
    iterations = np.zeros(prompt.batch, dtype=int)
    return finish(
        statuses=statuses,
        iterations=iterations if prompt.batch else 0,
        history=np.empty((0, *prompt.batch)),
        rank=rank if rank is None or prompt.batch else int(rank),
        raise_on_failure=raise_on_failure,
        note=note,
        **solution,
    )
