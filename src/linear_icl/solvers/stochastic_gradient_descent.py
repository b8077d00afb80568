"""Stochastic gradient descent for least squares: gradient steps on sketched examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from linear_icl._arrays import Array, check_number, check_tolerances
from linear_icl.results import SolveResult
from linear_icl.solvers.sketching import Sketch, solve_sketched


def stochastic_gradient_descent(
    A: Any,
    B: Any,
    *,
    sketch: Sketch | Sequence[Any],
    step: float = 1.0,
    W0: Any = None,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Gradient descent on ½‖B − W A‖_F² that sees r combinations of the examples a step.

    With Ã = AS, B̃ = BS and ρ = ‖Ã‖₂⁻², one S ∈ R^{n×r} a step:

    W ← W + ηρ (B̃ − WÃ)Ãᵀ.

    This is sketched EAGLE (:func:`eagle` with ``sketch``, no query) whose A and B stay as they
    are. Sampling columns makes it SGD with batches of r examples; r = n is gradient descent.
    Labels that no weights reproduce leave it at a floor, as the step does not shrink.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column.
    B : array, shape (…, d', n) or (n,)
        Example labels. Every row is a regression of its own.
    sketch : Sketch or sequence of arrays, shape (n, r)
        ``sketching.columns(r)``, ``sketching.haar(r)``, or matrices with orthonormal columns
        to be used in turn; one S a step for the whole batch.
    step : float
        η, in units of ρ; above 2 it diverges.
    W0 : array, shape (…, d', d) or (d,), optional
        Starting weights; default zero, which leads to the solution of least norm.
    rtol, atol : float
        A row has converged when its residual ‖B − WA‖ ≤ max(rtol ‖B‖, atol), looked at once a
        pass of ⌈n/r⌉ steps. Without a fall by a hundredth in 100 passes it has stagnated.
    maxiter : int, optional
        Most steps allowed; default 10 000.
    callback : callable, optional
        Called with the current W after every step.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``W`` of the pass with the least residual; ``history`` holds the relative residual
        ‖B − WA‖/‖B‖ of the worst row, one a pass.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit, a step that is not positive, tolerances that make no sense.

    References
    ----------
    Lutz et al. (2025), section 5 (the baseline of the computation-limited regime).

    Examples
    --------
    >>> from linear_icl import solvers
    >>> sketch = solvers.sketching.columns(1, rng=0)
    >>> result = solvers.stochastic_gradient_descent([[2, 0], [0, 1]], [[2, 1]], sketch=sketch)
    >>> result.W.round(6), result.status.name
    (array([[1., 1.]]), 'CONVERGED')
    """
    check_tolerances(rtol, atol, maxiter, None, callback)
    check_number("step", step)
    return solve_sketched(
        A,
        B,
        None,
        sketch,
        eta=0.0,
        gamma=step,
        W0=W0,
        rtol=rtol,
        atol=atol,
        maxiter=10_000 if maxiter is None else maxiter,
        callback=callback,
        raise_on_failure=raise_on_failure,
    )
