"""GD++: the column-token layer, its rate, and its twin EAGLE."""

import numpy as np
import pytest
from matrices import prompt, relative_error

from linear_icl import solvers


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (8, 8)])
def test_it_predicts_what_eagle_predicts_layer_by_layer(shape):
    A, B, C = prompt(*shape, 200.0, noise=0.3)
    ours, theirs = [], []
    solvers.gd_plus_plus(A, B, C, callback=ours.append)
    solvers.eagle(A, B, C, callback=theirs.append)
    assert len(ours) == len(theirs)
    for left, right in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-11 * np.abs(right).max())


@pytest.mark.parametrize("schedule", [(1 / 3, 1.0), (0.2, 0.7)])
def test_it_is_the_printed_column_token_update(schedule):
    eta, gamma = schedule
    A, B, C = prompt(6, 9, 20.0, noise=0.1)
    seen = []
    solvers.gd_plus_plus(A, B, C, eta=eta, gamma=gamma, callback=seen.append)
    D = np.zeros((2, 3))
    for iterate in seen:
        rho = np.linalg.norm(A, 2) ** -2
        A, B, C, D = (
            A - eta * rho * A @ A.T @ A,
            B - gamma * rho * B @ A.T @ A,
            C - eta * rho * A @ A.T @ C,
            D + gamma * rho * B @ A.T @ C,
        )
        np.testing.assert_allclose(iterate, D, atol=1e-11 * np.abs(D).max())


def test_the_weights_agree_with_the_predictions():
    A, B, C = prompt(6, 9, 20.0, noise=0.1)
    weights = solvers.gd_plus_plus(A, B, rtol=1e-12)
    assert relative_error(weights.W, B @ np.linalg.pinv(A)) < 1e-10
    assert relative_error(weights.W @ C, solvers.gd_plus_plus(A, B, C, rtol=1e-12).D) < 1e-10


def test_layers_grow_with_the_logarithm_of_kappa():
    layers = [
        solvers.gd_plus_plus(*prompt(10, 10, kappa), rtol=1e-9).iterations
        for kappa in (1e1, 1e3, 1e5)
    ]
    growth = np.log(1e2) / np.log(1.5)
    assert layers[1] - layers[0] == pytest.approx(growth, abs=2.5)
    assert layers[2] - layers[1] == pytest.approx(growth, abs=2.5)
