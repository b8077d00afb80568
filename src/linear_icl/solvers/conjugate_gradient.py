"""Conjugate gradients: for SPD systems, preconditioned, and for least squares (CGLS)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_array_api_obj

from linear_icl._arrays import (
    Array,
    as_arrays,
    broadcast_batch,
    broadcast_start,
    check_shapes,
    check_tolerances,
    like,
    norms,
    power_of_two_scale,
    times_power_of_two,
    to_numpy,
    transpose,
)
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members
from linear_icl.solvers._operators import (
    check_scipy,
    divided,
    is_dense,
    is_scipy,
    left_product,
    right_products,
)


@np.errstate(over="ignore", invalid="ignore")  # what overflows is found, and ends the column
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
    check_tolerances(rtol, atol, maxiter, None, callback)
    dense, dense_M = is_dense("A", A), M is not None and is_dense("M", M)
    xp, A_entries, b, x0, M_entries = as_arrays(
        A=A if dense else None,
        b=b,
        x0=x0,
        M=M if dense_M else None,
        optional=("x0", *(() if dense else ("A",)), *(() if dense_M else ("M",))),
    )
    A, M = A_entries if dense else A, M_entries if dense_M else M
    if dense:
        _check_symmetric(xp, A)
    vector = b.ndim == 1
    b = _right_hand_sides(A, b)
    d = b.shape[-2]
    for name, matrix in (("A", A), ("M", M)):
        if is_scipy(matrix):
            check_scipy(name, matrix, "b", b)
    if M is not None and hasattr(M, "shape"):
        _check_preconditioner(M, b)
    apply_A = left_product(A, "A", vector)
    apply_M = (lambda r: r) if M is None else left_product(M, "M", vector)

    scale = power_of_two_scale(b, axes=(-2,))
    unit, exponent = like(scale, b), np.frexp(scale)[1] - 1
    b = b / unit
    x = _start(xp, x0, b, unit, vector)
    size_b = norms(b, axis=-2)
    x = Members.keep_where(size_b == 0, 0.0 * x, x, axis=-2)  # b = 0: whatever x0 is
    members = Members((*b.shape[:-2], b.shape[-1]))
    stopping = _Stopping(
        members,
        target=np.maximum(rtol * size_b, np.ldexp(atol, -exponent)[..., 0, :]),
        whole=size_b,
        limit=10 * d if maxiter is None else maxiter,
        axis=-2,
    )

    r = b - apply_A(x)
    z = apply_M(r)
    p, rz = z, _dot(r, z)
    while True:
        (r,), again = stopping.verified((r,), lambda: (b - apply_A(x),))  # noqa: B023
        if stopping.over():
            break
        if again.any():
            z = apply_M(r)
            p, rz = Members.keep_where(again, z, p, axis=-2), _dot(r, z)
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
        further = x + a * p
        members.stop(_not_finite(further, axis=-2), Status.BREAKDOWN)
        x = members.keep(further, x, axis=-2)
        r = members.keep(r - a * Ap, r, axis=-2)
        z = apply_M(r)
        rz_new = _dot(r, z)
        p = z + (rz_new / _safe(xp, rz)) * p
        rz = rz_new
        if callback is not None:
            callback((x * unit)[..., 0] if vector else x * unit)
    x = times_power_of_two("x", x, exponent)
    return members.result(x=x[..., 0] if vector else x, raise_on_failure=raise_on_failure)


@np.errstate(over="ignore", invalid="ignore")
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
    check_tolerances(rtol, atol, maxiter, None, callback)
    A, B, W, vector = _regression(A, B, W0)
    times_A, times_At = right_products(A)
    xp = array_namespace(B)
    scale = power_of_two_scale(B, axes=(-1,))
    B = B / like(scale, B)
    # ‖BAᵀ‖ stands for the size of A, which an operator does not tell.
    image = times_At(B)
    if bool(_not_finite(image, axis=-1).any()):
        raise ValueError("A is too large: BAᵀ is beyond the range of its numbers")
    size_a = power_of_two_scale(image)
    times_A, times_At = divided(times_A, size_a), divided(times_At, size_a)
    of_B, of_A = np.frexp(scale)[1] - 1, np.frexp(size_a)[1] - 1
    W = times_power_of_two("W0", W, of_A - of_B)
    start = norms(times_At(B), axis=-1)
    W = Members.keep_where(start == 0, 0.0 * W, W, axis=-1)  # BAᵀ = 0: whatever W0 is
    members = Members(tuple(B.shape[:-1]))
    stopping = _Stopping(
        members,
        target=np.maximum(rtol * start, np.ldexp(atol, -of_A - of_B)[..., 0]),
        whole=start,
        limit=10 * min(A.shape[-2:]) if maxiter is None else maxiter,
        axis=-1,
    )

    def residuals(W: Array) -> tuple[Array, Array]:
        R = B - times_A(W)
        return R, times_At(R)

    R, S = residuals(W)
    P, size2 = S, _dot(S, S, axis=-1)
    while True:
        (R, S), again = stopping.verified((R, S), lambda: residuals(W))  # noqa: B023
        if stopping.over():
            break
        if again.any():
            P, size2 = Members.keep_where(again, S, P, axis=-1), _dot(S, S, axis=-1)
        Q = times_A(P)
        QQ = _dot(Q, Q, axis=-1)
        members.stop(~(to_numpy(QQ)[..., 0] > 0), Status.BREAKDOWN)
        if not members.running.any():
            break
        members.count_step()
        a = size2 / _safe(xp, QQ)
        further = W + a * P
        members.stop(_not_finite(further, axis=-1), Status.BREAKDOWN)
        W = members.keep(further, W, axis=-1)
        R = members.keep(R - a * Q, R, axis=-1)
        S = members.keep(times_At(R), S, axis=-1)
        size2_new = _dot(S, S, axis=-1)
        P = S + (size2_new / _safe(xp, size2)) * P
        size2 = size2_new
        if callback is not None:
            given = times_power_of_two("W", W, of_B - of_A)
            callback(given[0] if vector else given)
    W = times_power_of_two("W", W, of_B - of_A)
    return members.result(W=W[0] if vector else W, raise_on_failure=raise_on_failure)


class _Stopping:
    """The recursion's residual may only claim convergence; the true one decides.

    ``target`` is the size to reach and ``whole`` what sizes are recorded relative to, both of
    the shape of ``members``; a right-hand side lies along ``axis``.
    """

    def __init__(
        self, members: Members, *, target: np.ndarray, whole: np.ndarray, limit: int, axis: int
    ) -> None:
        self.members, self.target, self.limit, self.axis = members, target, limit, axis
        self.relative = np.where(whole > 0, whole, 1.0)
        self.least = np.full(target.shape, np.inf)

    def verified(
        self, carried: tuple[Array, ...], computed: Callable[[], tuple[Array, ...]]
    ) -> tuple[tuple[Array, ...], np.ndarray]:
        """The residuals, and where they have been replaced by the true ones.

        The last of ``carried`` and of ``computed()`` is the one that is measured. Where a claim
        proves wrong, the iteration goes on from the true residuals, unless the claim before was
        as far off.
        """
        members, nowhere = self.members, np.zeros(self.target.shape, dtype=bool)
        size = norms(carried[-1], self.axis)
        members.record(size / self.relative)
        claimed = members.running & ((size <= self.target) | self._out_of_steps())
        if not claimed.any():
            return carried, nowhere
        true = computed()
        size = norms(true[-1], self.axis)
        members.correct(size / self.relative, claimed)
        members.stop(claimed & (size <= self.target), Status.CONVERGED)
        if self._out_of_steps():
            return carried, nowhere
        members.stop(claimed & ~(size < 0.5 * self.least), Status.STAGNATED)
        self.least = np.where(claimed, size, self.least)
        again = claimed & members.running
        pairs = zip(true, carried, strict=True)
        return tuple(Members.keep_where(again, t, c, self.axis) for t, c in pairs), again

    def over(self) -> bool:
        """True when nothing runs any more, or the iteration limit is reached."""
        return self._out_of_steps() or not self.members.running.any()

    def _out_of_steps(self) -> bool:
        return bool(self.members.iterations.max(initial=0) == self.limit)


def _dot(u: Array, v: Array, axis: int = -2) -> Array:
    """Inner products along one axis, kept as an axis of length 1."""
    xp = array_namespace(u)
    return xp.sum(u * v, axis=axis, keepdims=True)


def _not_finite(a: Array, axis: int) -> np.ndarray:
    """Where a right-hand side along the axis holds NaN or infinity."""
    xp = array_namespace(a)
    return to_numpy(xp.any(~xp.isfinite(a), axis=axis)).astype(bool)


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


def _right_hand_sides(A: Any, b: Array) -> Array:
    """b as (…, d, k), held against A where A has a shape."""
    given = tuple(b.shape)
    b = b[:, None] if b.ndim == 1 else b
    if b.ndim < 2:
        raise ValueError(f"b must have shape (d,) or (…, d, k), got {given}")
    if not hasattr(A, "shape"):
        return b
    if A.shape[-2] != A.shape[-1]:
        raise ValueError(f"A must be square, got shape {tuple(A.shape)}")
    if A.shape[-1] != b.shape[-2]:
        raise ValueError(
            f"b must have {A.shape[-1]} rows to go with A of shape {tuple(A.shape)}, "
            f"got shape {given}"
        )
    xp = array_namespace(b)
    batch, _ = broadcast_batch(xp, A=A, b=b) if is_array_api_obj(A) else (tuple(b.shape[:-2]), [])
    return xp.broadcast_to(b, (*batch, *b.shape[-2:]))


def _check_preconditioner(M: Any, b: Array) -> None:
    d, batch = b.shape[-2], tuple(b.shape[:-2])
    lead = tuple(M.shape[:-2])
    if tuple(M.shape[-2:]) != (d, d) or lead != batch[len(batch) - len(lead) :]:
        raise ValueError(f"M must have shape ({d}, {d}), or {(*batch, d, d)}, got {tuple(M.shape)}")


def _start(xp: Any, x0: Any, b: Array, unit: Array, vector: bool) -> Array:
    if x0 is None:
        return xp.zeros_like(b)
    x0 = x0[:, None] if vector and x0.ndim == 1 else x0
    return broadcast_start("x0", x0, tuple(b.shape)) / unit


def _regression(A: Any, B: Any, W0: Any) -> tuple[Any, Array, Array, bool]:
    """Checked A (an array scaled to itself, sparse, or an operator), B and starting W."""
    operator = is_scipy(A)
    if operator:
        xp, B, W0 = as_arrays(B=B, W0=W0, optional=("W0",))
    else:
        xp, A, B, W0 = as_arrays(A=A, B=B, W0=W0, optional=("W0",))
    check_shapes(A, B)
    vector = B.ndim == 1
    B = B[None, :] if vector else B
    if operator:
        check_scipy("A", A, "B", B)
    else:
        _, (A, B) = broadcast_batch(xp, A=A, B=B)
    shape = (*B.shape[:-1], A.shape[-2])
    if W0 is None:
        return A, B, xp.zeros(shape, dtype=B.dtype, device=B.device), vector
    W0 = W0[None, :] if vector and W0.ndim == 1 else W0
    return A, B, broadcast_start("W0", W0, shape), vector
