"""Conjugate gradients: for SPD systems, preconditioned, and for least squares (CGLS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator

from linear_icl._arrays import (
    Array,
    as_arrays,
    broadcast_batch,
    broadcast_start,
    check_tolerances,
    like,
    norms,
    power_of_two_scale,
    to_numpy,
    transpose,
)
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members

Product = Callable[[Array], Array]


def conjugate_gradient(
    A: Any,
    b: Any,
    *,
    x0: Any = None,
    M: Any = None,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Preconditioned conjugate gradients for A x = b with A symmetric positive definite.

    After k steps x minimises the A-norm of the error over a Krylov space of dimension k:
    O(√κ(A) log 1/ε) steps, and at most d in exact arithmetic.

    Parameters
    ----------
    A : array (…, d, d), SciPy sparse matrix, LinearOperator or callable
        The matrix or its product. An array that is not symmetric is refused; of a callable
        symmetry cannot be checked, but no wrong x is ever called converged.
    b : array, shape (d,) or (…, d, k)
        Right-hand sides; each column is a system of its own.
    x0 : array of b's shape, optional
        Where to start; default zero.
    M : array, sparse matrix, LinearOperator or callable, optional
        Preconditioner, M ≈ A⁻¹ as in SciPy (it is *applied*, not solved with). Symmetric
        positive definite.
    rtol, atol : float
        A column has converged when ‖b − Ax‖ ≤ max(rtol ‖b‖, atol), with the residual computed
        anew at the end, not the one carried along by the recursion.
    maxiter : int, optional
        Most steps allowed; default 10 d.
    callback : callable, optional
        Called with the current x after every step.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``x``; ``history`` holds ‖r‖/‖b‖ of the recursion, the last entry computed anew.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit, or an array A that is not symmetric.

    References
    ----------
    Hestenes and Stiefel (1952); Saad (2003), algorithm 9.1.

    Notes
    -----
    When the recursion claims convergence and the true residual disagrees, the iteration starts
    again from the true residual; when that gains nothing, the status is STAGNATED.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> solvers.conjugate_gradient([[4.0, 1.0], [1.0, 3.0]], [1.0, 2.0]).x.round(6)
    array([0.090909, 0.636364])
    """
    check_tolerances(rtol, atol, maxiter, None)
    dense = is_array_api_obj(A) or isinstance(A, (list, tuple))
    if dense:
        xp, A, b, x0 = as_arrays(A=A, b=b, x0=x0)
        _check_symmetric(xp, A)
    else:
        xp, b, x0 = as_arrays(b=b, x0=x0)
    vector = b.ndim == 1
    b = b[:, None] if vector else b
    if b.ndim < 2:
        raise ValueError(f"b must have shape (d,) or (…, d, k), got {tuple(b.shape)}")
    if dense and A.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"b must have {A.shape[-1]} rows to go with A of shape {tuple(A.shape)}, "
            f"got shape {tuple(b[..., 0].shape if vector else b.shape)}"
        )
    if dense:
        batch = np.broadcast_shapes(tuple(A.shape[:-2]), tuple(b.shape[:-2]))
        b = xp.broadcast_to(b, (*batch, *b.shape[-2:]))
    d = b.shape[-2]
    apply_A = _product(A, "A", d, vector)
    apply_M = (lambda r: r) if M is None else _product(M, "M", d, vector)

    scale = power_of_two_scale(b, axes=(-2,))
    unit = like(scale, b)
    b = b / unit
    x = _start(xp, x0, b, unit, vector)
    size_b = norms(b, axis=-2)
    target = np.maximum(rtol * size_b, atol / scale[..., 0, :])
    relative = np.where(size_b > 0, size_b, 1.0)
    members = Members((*b.shape[:-2], b.shape[-1]))
    limit = 10 * d if maxiter is None else maxiter

    r = b - apply_A(x)
    z = apply_M(r)
    p, rz = z, _dot(r, z)
    verified = np.full(members.running.shape, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            size = norms(r, axis=-2)
            members.record(size / relative)
            out_of_steps = members.iterations.max(initial=0) == limit
            claimed = members.running & ((size <= target) | out_of_steps)
            if claimed.any():
                true_r = b - apply_A(x)
                true_size = norms(true_r, axis=-2)
                members.correct(true_size / relative, claimed)
                members.stop(claimed & (true_size <= target), Status.CONVERGED)
                if out_of_steps:
                    break
                members.stop(claimed & ~(true_size < 0.5 * verified), Status.STAGNATED)
                verified = np.where(claimed, true_size, verified)
                again = claimed & members.running
                if again.any():  # the recursion has drifted: go on from the true residual
                    mask = xp.asarray(again[..., None, :], device=b.device)
                    r = xp.where(mask, true_r, r)
                    z = apply_M(r)
                    p, rz = xp.where(mask, z, p), _dot(r, z)
            _stop_indefinite(members, rz)
            if not members.running.any():
                break
            Ap = apply_A(p)
            pAp = _dot(p, Ap)
            _stop_indefinite(members, pAp)
            if not members.running.any():
                break
            members.count_step()
            a = rz / _safe(xp, pAp)
            x = members.keep(x + a * p, x, axis=-2)
            r = members.keep(r - a * Ap, r, axis=-2)
            z = apply_M(r)
            rz_new = _dot(r, z)
            p = z + (rz_new / _safe(xp, rz)) * p
            rz = rz_new
            if callback is not None:
                callback((x * unit)[..., 0] if vector else x * unit)
    x = x * unit
    return members.result(x=x[..., 0] if vector else x, raise_on_failure=raise_on_failure)


def cgls(
    A: Any,
    B: Any,
    *,
    W0: Any = None,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Conjugate gradients for least squares: minimise ‖B − W A‖_F without forming AAᵀ.

    Mathematically CG on W AAᵀ = BAᵀ, but every residual is that of the data: O(κ(A) log 1/ε)
    steps, each two products with A.

    Parameters
    ----------
    A : array (…, d, n), SciPy sparse matrix or LinearOperator of shape (d, n)
        Example features, one example a column.
    B : array, shape (…, d', n) or (n,)
        Example labels. Every row is a regression of its own.
    W0 : array, shape (…, d', d) or (d,), optional
        Starting weights; default zero, which leads to the solution of least norm.
    rtol, atol : float
        A row has converged when ‖(B − WA)Aᵀ‖ ≤ max(rtol ‖BAᵀ‖, atol), computed anew at the end.
    maxiter : int, optional
        Most steps allowed; default 10 min(d, n).
    callback : callable, optional
        Called with the current W after every step.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``W``; ``history`` holds ‖(B − WA)Aᵀ‖/‖BAᵀ‖, the last entry computed anew.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Björck (1996), algorithm 7.4.1.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> solvers.cgls([[2, 0], [0, 1]], [[2, 1]]).W.round(6)
    array([[1., 1.]])
    """
    check_tolerances(rtol, atol, maxiter, None)
    A, B, W, vector = _regression(A, B, W0)
    times_A, times_At = _right_products(A)
    xp = array_namespace(B)
    scale = power_of_two_scale(B, axes=(-1,))
    B = B / like(scale, B)
    # ‖BAᵀ‖ stands for the size of A, which an operator does not tell.
    size_a = power_of_two_scale(times_At(B))
    times_A, times_At = _divided(times_A, size_a), _divided(times_At, size_a)
    unit = like(scale / size_a, B)
    W = W / unit
    start = norms(times_At(B), axis=-1)
    target = np.maximum(rtol * start, atol / (scale * size_a)[..., 0])
    relative = np.where(start > 0, start, 1.0)
    members = Members(tuple(B.shape[:-1]))
    limit = 10 * min(A.shape[-2:]) if maxiter is None else maxiter

    R = B - times_A(W)
    S = times_At(R)
    P, size2 = S, _dot(S, S, axis=-1)
    verified = np.full(members.running.shape, np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            size = norms(S, axis=-1)
            members.record(size / relative)
            out_of_steps = members.iterations.max(initial=0) == limit
            claimed = members.running & ((size <= target) | out_of_steps)
            if claimed.any():
                true_R = B - times_A(W)
                true_S = times_At(true_R)
                true_size = norms(true_S, axis=-1)
                members.correct(true_size / relative, claimed)
                members.stop(claimed & (true_size <= target), Status.CONVERGED)
                if out_of_steps:
                    break
                members.stop(claimed & ~(true_size < 0.5 * verified), Status.STAGNATED)
                verified = np.where(claimed, true_size, verified)
                again = claimed & members.running
                if again.any():
                    mask = xp.asarray(again[..., None], device=B.device)
                    R, S = xp.where(mask, true_R, R), xp.where(mask, true_S, S)
                    P, size2 = xp.where(mask, S, P), _dot(S, S, axis=-1)
            if not members.running.any():
                break
            Q = times_A(P)
            QQ = _dot(Q, Q, axis=-1)
            members.stop(~(to_numpy(QQ)[..., 0] > 0), Status.BREAKDOWN)
            if not members.running.any():
                break
            members.count_step()
            a = size2 / _safe(xp, QQ)
            W = members.keep(W + a * P, W, axis=-1)
            R = members.keep(R - a * Q, R, axis=-1)
            S = members.keep(times_At(R), S, axis=-1)
            size2_new = _dot(S, S, axis=-1)
            P = S + (size2_new / _safe(xp, size2)) * P
            size2 = size2_new
            if callback is not None:
                callback((W * unit)[0] if vector else W * unit)
    W = W * unit
    return members.result(W=W[0] if vector else W, raise_on_failure=raise_on_failure)


def _dot(u: Array, v: Array, axis: int = -2) -> Array:
    """Inner products along one axis, kept as an axis of length 1."""
    xp = array_namespace(u)
    return xp.sum(u * v, axis=axis, keepdims=True)


def _safe(xp: Any, a: Array) -> Array:
    """The denominator, 1 where it is 0 (those columns have stopped already)."""
    return xp.where(a == 0, xp.ones_like(a), a)


def _stop_indefinite(members: Members, quadratic_form: Array) -> None:
    """pᵀAp ≤ 0 or rᵀM r ≤ 0 with p, r ≠ 0: the matrix is not positive definite."""
    value = to_numpy(quadratic_form)[..., 0, :]
    members.stop(~np.isfinite(value), Status.BREAKDOWN)
    members.stop(value <= 0, Status.NOT_POSITIVE_DEFINITE)


def _check_symmetric(xp: Any, A: Array) -> None:
    if A.ndim < 2 or A.shape[-1] != A.shape[-2]:
        raise ValueError(f"A must be square, (…, d, d); got shape {tuple(A.shape)}")
    if 0 in A.shape:
        return
    asymmetry = float(xp.max(xp.abs(A - transpose(A))))
    size = float(xp.max(xp.abs(A)))
    if asymmetry > 100 * A.shape[-1] * xp.finfo(A.dtype).eps * size:
        raise ValueError(
            f"A is not symmetric: max|A − Aᵀ| = {asymmetry:.3g} with max|A| = {size:.3g}. "
            "Conjugate gradients need a symmetric positive definite matrix; "
            "for least squares use solvers.cgls"
        )


def _product(A: Any, name: str, d: int, vector: bool) -> Product:
    """v ↦ A v for a matrix in any of the accepted forms, v of shape (…, d, k)."""
    if isinstance(A, (list, tuple)):
        A = np.asarray(A, dtype=float)
    if is_array_api_obj(A) or issparse(A) or isinstance(A, LinearOperator):
        if tuple(A.shape[-2:]) != (d, d):
            raise ValueError(f"{name} must have shape (…, {d}, {d}), got {tuple(A.shape)}")
        return lambda v: A @ v
    if not callable(A):
        raise TypeError(
            f"{name} must be an array, a SciPy sparse matrix, a LinearOperator or a callable, "
            f"got {type(A).__name__}"
        )
    return lambda v: A(v[..., 0])[..., None] if vector else A(v)


def _start(xp: Any, x0: Any, b: Array, unit: Array, vector: bool) -> Array:
    if x0 is None:
        return xp.zeros_like(b)
    x0 = x0[:, None] if vector and x0.ndim == 1 else x0
    return broadcast_start("x0", x0, tuple(b.shape)) / unit


def _regression(A: Any, B: Any, W0: Any) -> tuple[Any, Array, Array, bool]:
    """Checked A (an array scaled to itself, sparse, or an operator), B and starting W."""
    operator = issparse(A) or isinstance(A, LinearOperator)
    if operator:
        xp, B, W0 = as_arrays(B=B, W0=W0)
    else:
        xp, A, B, W0 = as_arrays(A=A, B=B, W0=W0)
        if A.ndim < 2:
            raise ValueError(f"A must have shape (…, d, n), got {tuple(A.shape)}")
    vector = B.ndim == 1
    B = B[None, :] if vector else B
    if B.ndim < 2 or B.shape[-1] != A.shape[-1]:
        raise ValueError(
            f"B must have one column an example: expected (…, d', {A.shape[-1]}) to go with "
            f"A of shape {tuple(A.shape)}, got {tuple(B[0].shape if vector else B.shape)}"
        )
    if not operator:
        _, (A, B) = broadcast_batch(xp, A=A, B=B)
    shape = (*B.shape[:-1], A.shape[-2])
    if W0 is None:
        return A, B, xp.zeros(shape, dtype=B.dtype, device=B.device), vector
    W0 = W0[None, :] if vector and W0.ndim == 1 else W0
    return A, B, broadcast_start("W0", W0, shape), vector


def _right_products(A: Any) -> tuple[Product, Product]:
    """W ↦ W A and R ↦ R Aᵀ."""
    if issparse(A):
        return lambda W: (A.T @ W.T).T, lambda R: (A @ R.T).T
    if isinstance(A, LinearOperator):
        return lambda W: A.rmatmat(W.T).T, lambda R: A.matmat(R.T).T
    return lambda W: W @ A, lambda R: R @ transpose(A)


def _divided(product: Product, scale: np.ndarray) -> Product:
    """The product with a matrix divided by ``scale``."""

    def scaled(v: Array) -> Array:
        return product(v) / like(scale, v)

    return scaled
