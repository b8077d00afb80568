"""The differentiable layer: gradients by finite differences, and training through it."""

import numpy as np
import pytest
import torch

from linear_icl.results import SolverError
from linear_icl.transformers.solve_layer import EagleSolve


def prompt(shape=(), d=4, n=6, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*size):
        return torch.randn(*shape, *size, generator=generator, dtype=torch.float64)

    return draw(d, n), draw(2, n), draw(d, 3)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["newton-schulz", "minimax"])
def test_gradients_agree_with_finite_differences(ridge, schedule):
    inputs = [block.requires_grad_() for block in prompt((2,))]
    layer = EagleSolve(ridge, rtol=1e-12, schedule=schedule)
    assert torch.autograd.gradcheck(layer, inputs, atol=1e-5)


def test_the_answer_is_ridge_regression():
    A, B, C = prompt()
    for ridge in (0.0, 0.7):
        expected = B @ A.mT @ torch.linalg.inv(A @ A.mT + ridge * torch.eye(4).double()) @ C
        np.testing.assert_allclose(EagleSolve(ridge, rtol=1e-12)(A, B, C), expected, rtol=1e-9)


def test_features_can_be_trained_through_the_solve():
    torch.manual_seed(0)
    x = torch.rand(64, 1, 24, dtype=torch.float64) * 2 - 1
    phase = 3 * torch.rand(64, 1, 1, dtype=torch.float64)
    y = torch.sin(3 * x + phase)
    features = torch.nn.Linear(1, 6, dtype=torch.float64)
    solve = EagleSolve(ridge=1e-2)
    optimiser = torch.optim.Adam(features.parameters(), lr=0.05)

    def loss():
        lifted = torch.tanh(features(x.mT)).mT
        return (
            (solve(lifted[..., :16], y[..., :16], lifted[..., 16:]) - y[..., 16:]).square().mean()
        )

    before = loss().item()
    for _ in range(30):
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()
    assert loss().item() < 0.3 * before


def test_a_failed_solve_raises_instead_of_giving_gradients():
    _, B, C = prompt(n=4)
    # The rank cannot be told: one singular value above the round-off, one just below.
    A = torch.tensor([1.0, 0.3, 1.2e-15, 0.7e-15], dtype=torch.float64).diag()
    with pytest.raises(SolverError, match="rank"):
        EagleSolve()(A, B, C)
    with pytest.raises(ValueError, match="ridge"):
        EagleSolve(-1.0)
