"""Gradient descent for least squares: what one linear-attention layer does, repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from linear_icl._arrays import Array, check_number, check_tolerances, like, norms, transpose
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members
from linear_icl.solvers._prompt import Prompt, prepare
from linear_icl.solvers._spectrum import Spectrum


def gradient_descent(
    A: Any,
    B: Any,
    *,
    step: float | None = None,
    W0: Any = None,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Gradient descent on ½‖B − W A‖_F²: W ← W + η (B − W A) Aᵀ.

    With η = 1/λ_max(AAᵀ) the error in the direction of singular value σ shrinks by
    1 − σ²/σ_max² a step: O(κ(A)² log 1/ε) steps. With η > 2/λ_max it diverges, and says so.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column.
    B : array, shape (…, d', n) or (n,)
        Example labels. Every row is a regression of its own.
    step : float, optional
        η, in units of 1/‖A‖². Default 1/λ_max(AAᵀ), for each member of a batch its own.
    W0 : array, shape (…, d', d) or (d,), optional
        Starting weights; default zero, which leads to the solution of least norm.
    rtol, atol : float
        A row has converged when its gradient ‖(B − WA)Aᵀ‖ ≤ max(rtol ‖BAᵀ‖, atol).
    maxiter : int, optional
        Most steps allowed; default 10 000.
    callback : callable, optional
        Called with the current W after every step.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``W``; ``history`` holds the relative gradient norm ‖(B − WA)Aᵀ‖/‖BAᵀ‖.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit, a step that is not positive, tolerances that make no sense.

    References
    ----------
    Nesterov (2018), section 2.1.5; as an attention layer: von Oswald et al. (2023).

    Examples
    --------
    >>> from linear_icl import solvers
    >>> result = solvers.gradient_descent([[2, 0], [0, 1]], [[2, 1]])
    >>> result.W.round(6), result.status.name
    (array([[1., 1.]]), 'CONVERGED')
    """
    check_tolerances(rtol, atol, maxiter, None, callback)
    if step is not None:
        check_number("step", step)
    prompt = prepare(A, B)
    A, B, W = prompt.A, prompt.B, prompt.start(W0)
    eta = _step_sizes(prompt, step)
    # The caller's gradient per unit of ours is 2^exponent.
    exponent = sum(np.frexp(scale)[1] - 1 for scale in (prompt.scale_a, prompt.scale_b))
    start = norms(B @ transpose(A), axis=-1)
    target = np.maximum(rtol * start, np.ldexp(atol, -exponent)[..., 0])
    members = Members((*prompt.batch, B.shape[-2]))
    limit = 10_000 if maxiter is None else maxiter
    first = None
    with np.errstate(over="ignore", invalid="ignore"):
        while True:
            gradient = (B - W @ A) @ transpose(A)
            size = norms(gradient, axis=-1)
            first = size if first is None else first
            members.record(size / np.where(start > 0, start, 1.0))
            members.stop(size <= target, Status.CONVERGED)
            # A step that multiplies the gradient by 1e16 over the start will not come back.
            grown = ~(size <= 1e16 * np.maximum(first, start))
            members.stop(grown, Status.BREAKDOWN)
            if not members.running.any() or members.iterations.max(initial=0) == limit:
                break
            members.count_step()
            W = members.keep(W + eta * gradient, W, axis=-1)
            if callback is not None:
                callback(prompt.weights(W))
    diverged = any(status is Status.BREAKDOWN for status in members.statuses.flat)
    return members.result(
        W=prompt.weights(W),
        raise_on_failure=raise_on_failure,
        note="The iterates diverge: take a step below 2/λ_max(AAᵀ)" if diverged else "",
    )


def _step_sizes(prompt: Prompt, step: float | None) -> Array:
    """η for the scaled problem: the caller's, or 1/λ_max of each member."""
    if step is None:
        eta = Spectrum.of(prompt.A, 0.0).norm[..., None] ** -2.0
    else:
        eta = step * prompt.scale_a**2
    return like(eta, prompt.A)
