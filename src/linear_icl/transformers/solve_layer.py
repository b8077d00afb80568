"""EAGLE as a differentiable layer: a regression solved inside a network."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from linear_icl import solvers
from linear_icl._arrays import check_number


class EagleSolve(nn.Module):
    """The layer (A, B, C) ↦ D = B (AᵀA + αI)⁻¹AᵀC, solved by EAGLE and differentiable.

    Every prompt of a batch is regressed on its own: D is what least squares (ridge regression
    for α > 0) predicts for the queries C from the examples A and their labels B. Gradients go
    through the layers of the iteration, whose limit does not depend on the step sizes.

    Parameters
    ----------
    ridge : float
        α >= 0 in the units of AAᵀ; a positive one keeps gradients bounded where A is nearly
        rank-deficient.
    rtol : float
        Relative tolerance of the solve.
    schedule : {"newton-schulz", "minimax"}
        The step sizes of EAGLE.

    Raises
    ------
    SolverError
        In ``forward``, when a prompt does not converge: no gradient of a wrong answer.

    References
    ----------
    Lutz et al. (2025), algorithm 1.

    Examples
    --------
    >>> import torch
    >>> from linear_icl.transformers.solve_layer import EagleSolve
    >>> A = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64, requires_grad=True)
    >>> B, C = torch.tensor([[2.0, 1.0]]).double(), torch.tensor([[1.0], [1.0]]).double()
    >>> D = EagleSolve()(A, B, C)
    >>> D.sum().backward()
    >>> A.grad.round(decimals=6)
    tensor([[-0.5000, -1.0000],
            [-0.5000, -1.0000]], dtype=torch.float64)
    """

    def __init__(
        self,
        ridge: float = 0.0,
        *,
        rtol: float = 1e-8,
        schedule: Literal["newton-schulz", "minimax"] = "newton-schulz",
    ) -> None:
        super().__init__()
        self.ridge = check_number("ridge", ridge, strictly=False)
        self.rtol, self.schedule = rtol, schedule

    def forward(self, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
        """A (…, d, n), B (…, d', n), C (…, d, n') → D (…, d', n')."""
        if self.ridge > 0:  # d further examples √α·I with labels 0
            d = A.shape[-2]
            penalty = self.ridge**0.5 * A.new_ones(d).diag().expand(*A.shape[:-2], d, d)
            A = torch.cat([A, penalty], dim=-1)
            B = torch.cat([B, B.new_zeros(*B.shape[:-1], d)], dim=-1)
        result = solvers.eagle(
            A, B, C, form="data", schedule=self.schedule, rtol=self.rtol, raise_on_failure=True
        )
        return result.D

    def extra_repr(self) -> str:
        """What ``print`` shows."""
        return f"ridge={self.ridge:g}, rtol={self.rtol:g}, schedule={self.schedule!r}"
