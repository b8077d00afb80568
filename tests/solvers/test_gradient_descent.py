"""Gradient descent: rate, divergence, and what it leaves alone."""

import numpy as np
import pytest
import torch
from matrices import prompt, relative_error

from linear_icl import solvers
from linear_icl.solvers import Status


def test_one_step_from_zero_by_hand():
    # η BAᵀ with A = diag(2, 1), B = (2, 1), η = 1/4: (4, 1)/4.
    result = solvers.gradient_descent(np.diag([2.0, 1.0]), [2.0, 1.0], maxiter=1)
    np.testing.assert_allclose(result.W, [1.0, 0.25])
    assert result.status is Status.MAXITER


def test_every_direction_shrinks_by_one_minus_eta_sigma_squared():
    sigma, eta, steps = np.array([1.0, 0.6, 0.2]), 0.9, 7
    A = np.diag(sigma)
    result = solvers.gradient_descent(A, sigma, step=eta, maxiter=steps, rtol=1e-14)
    np.testing.assert_allclose(1 - result.W, (1 - eta * sigma**2) ** steps, rtol=1e-8)


def test_the_number_of_steps_grows_with_the_square_of_kappa():
    steps = [
        solvers.gradient_descent(*prompt(6, 6, kappa)[:2], rtol=1e-6, maxiter=10**6).iterations
        for kappa in (4.0, 16.0)
    ]
    assert steps[1] / steps[0] == pytest.approx(16, rel=0.35)


@pytest.mark.parametrize(("factor", "converges"), [(1.9, True), (2.1, False)])
def test_it_diverges_beyond_two_over_the_largest_eigenvalue(factor, converges):
    A, B, _ = prompt(5, 8, 3.0)
    result = solvers.gradient_descent(A, B, step=factor, maxiter=5000)
    assert result.converged is converges
    assert np.isfinite(result.W).all()
    if not converges:
        assert result.status is Status.BREAKDOWN
        assert "step" in result.message


def test_zero_start_leads_to_the_least_norm_solution_and_others_do_not():
    A, B, _ = prompt(9, 4, 3.0)
    expected = B @ np.linalg.pinv(A)
    assert relative_error(solvers.gradient_descent(A, B, rtol=1e-12).W, expected) < 1e-9
    started = solvers.gradient_descent(A, B, W0=np.ones((2, 9)), rtol=1e-12)
    assert started.converged
    assert relative_error(started.W, expected) > 1e-2
    np.testing.assert_allclose(started.W @ A, B, atol=1e-9)


def test_a_start_of_another_kind_is_named():
    with pytest.raises(TypeError, match="but W0 is a torch tensor"):
        solvers.gradient_descent(np.eye(2), np.eye(2), W0=torch.eye(2))


def test_a_step_must_be_positive():
    for step in (0.0, -1.0, np.nan, "fast"):
        with pytest.raises(ValueError, match="step"):
            solvers.gradient_descent(np.eye(2), np.ones(2), step=step)
