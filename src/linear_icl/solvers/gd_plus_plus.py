"""GD++: gradient descent whose examples are conditioned layer by layer (column tokens)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from array_api_compat import array_namespace

from linear_icl._arrays import Array, transpose
from linear_icl.results import SolveResult
from linear_icl.solvers._conditioning import condition
from linear_icl.solvers._spectrum import contracted, project_on_range


def gd_plus_plus(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    eta: float = 1 / 3,
    gamma: float = 1.0,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    rcond: float | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """GD++: complete D (or find W) by conditioning the features while descending.

    One layer, right-hand sides with the old values and ρ = ‖A‖₂⁻²:

    A ← A − ηρ AAᵀA,   C ← C − ηρ AAᵀC,   B ← B − γρ BAᵀA,   D ← D + γρ BAᵀC.

    The column-token attention layer moves A and C with one weight (ω_xx = −ηρ) and B and D
    with another (ω_yx = −γρ), and holds −D. B is the residual of the labels. The predictions
    are those of EAGLE with the same η and γ, layer by layer, in exact arithmetic.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column.
    B : array, shape (…, d', n) or (n,)
        Example labels.
    C : array, shape (…, d, n') or (d,), optional
        Query features; None asks for the weights W instead of predictions.
    eta, gamma : float
        Step of the conditioning and of the descent, in units of ρ; (1/3, 1) is the second-order
        choice.
    rtol, atol : float
        Stop once A is conditioned and ‖ΔD‖ ≤ max(rtol ‖D‖, atol), column by column of D (row by
        row of W).
    maxiter : int, optional
        Most layers allowed; default 400.
    rcond : float, optional
        Singular values below ``rcond`` times the largest count as zero; default
        max(d, n) · machine epsilon.
    callback : callable, optional
        Called with the current D (or W) after every layer.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``D`` or ``W``, ``rank``; ``history`` holds the relative increments ‖ΔD‖/‖D‖.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    von Oswald et al. (2023); Vladymyrov et al. (2024), theorem 5.1.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> result = solvers.gd_plus_plus([[2, 0], [0, 1]], [[2, 1]], [[1], [1]])
    >>> result.D.round(8), result.iterations
    (array([[2.]]), 7)
    """
    return condition(
        _ColumnTokens,
        A,
        B,
        C,
        eta=eta,
        gamma=gamma,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        rcond=rcond,
        callback=callback,
        raise_on_failure=raise_on_failure,
    )


class _ColumnTokens:
    """Column tokens tie (A, C) and (B, D)."""

    def __init__(self, A: Array, B: Array, C: Array | None) -> None:
        xp = array_namespace(A)
        if C is None:  # the weights are the predictions for the unit vectors
            C = xp.eye(A.shape[-2], dtype=A.dtype, device=A.device)
        self.labels = B
        self.A, self.B, self.C = A, B, C

    def step(self, eta: Array, gamma: float, norm: Array) -> Array:
        """One column-token attention layer with ω_xx = −η and ω_yx = −γ (here ρ = 1)."""
        A, B, C = self.A, self.B, self.C
        self.A = contracted(A, eta, norm)
        self.C = (C - eta * (A @ (transpose(A) @ C))) / norm
        self.B = B - gamma * ((B @ transpose(A)) @ A)
        return gamma * ((B @ transpose(A)) @ C)

    def read_out(self, purifications: int) -> Array:
        """D = B A_Lᵀ P C_L with the labels as they came in: theorem 5.1's last layer."""
        return (self.labels @ transpose(self.A)) @ project_on_range(self.A, self.C, purifications)
