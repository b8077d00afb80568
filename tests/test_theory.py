"""Theory: the counts are those of the formulas, and the bounds hold on real iterations."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl import theory

KAPPAS = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e8)


def eagle(A, B, C, steps, eta=1 / 3, gamma=1.0):
    """The printed update, written out once more: all right-hand sides use the old values."""
    D = np.zeros((B.shape[0], C.shape[1]))
    for _ in range(steps):
        rho = 1 / np.linalg.norm(A, 2) ** 2
        A, B, C, D = (
            A - eta * rho * A @ A.T @ A,
            B - eta * rho * B @ A.T @ A,
            C - gamma * rho * A @ A.T @ C,
            D + gamma * rho * B @ A.T @ C,
        )
    return A, C, D


def test_condition_number_leaves_zero_singular_values_out():
    assert theory.condition_number(np.diag([8.0, 2.0, 0.0])) == 4.0
    assert theory.condition_number([[1, 2, 3], [4, 5, 6], [7, 8, 9]]) == pytest.approx(
        16.84810335 / 1.06836951, rel=1e-8
    )


def test_condition_number_of_a_batch_is_each_member_alone():
    A = np.stack([np.eye(2), 1000 * np.diag([1.0, 0.1]), np.diag([1e-150, 1e-152])])
    assert theory.condition_number(A) == pytest.approx([1, 10, 100])
    assert theory.gram_condition_number(A) == pytest.approx([1, 100, 1e4])


def test_condition_number_of_a_tensor_is_a_tensor():
    A = torch.stack([torch.eye(2), torch.diag(torch.tensor([4.0, 1.0]))])
    kappa = theory.condition_number(A)
    assert isinstance(kappa, torch.Tensor)
    assert kappa.dtype == torch.float32
    assert kappa.tolist() == [1, 4]


def test_condition_number_of_zero_is_not_a_number():
    assert math.isnan(theory.condition_number(np.zeros((2, 3))))
    assert np.isnan(theory.condition_number(np.zeros((2, 2, 3)))).all()


def test_condition_number_obeys_rcond():
    A = np.diag([1.0, 1e-3, 1e-9])
    assert theory.condition_number(A) == pytest.approx(1e9)
    assert theory.condition_number(A, rcond=1e-6) == pytest.approx(1e3)


@pytest.mark.parametrize(
    ("A", "rcond", "word"),
    [
        ([1.0, 2.0], None, "shape"),
        (np.zeros((0, 3)), None, "shape"),
        ([[np.nan]], None, "A"),
        ([[1.0]], 1.0, "rcond"),
        ([[1.0]], -1e-3, "rcond"),
    ],
)
def test_condition_number_names_what_is_wrong(A, rcond, word):
    with pytest.raises(ValueError, match=word):
        theory.condition_number(A, rcond)


def test_newton_schulz_steps_to_1e_minus_8_are_the_known_table():
    found = [theory.newton_schulz_iterations(kappa, 1e-8) for kappa in KAPPAS]
    assert found == [10, 16, 21, 27, 33, 38, 50]


def test_minimax_steps_to_1e_minus_8_are_the_known_table():
    found = [theory.minimax_iterations(kappa, 1e-8) for kappa in KAPPAS]
    assert found == [6, 9, 11, 13, 16, 18, 23]


@pytest.mark.parametrize("kappa", [1.0, 1.5, 30.0, 1e6, 1e12])
@pytest.mark.parametrize("eps", [0.3, 1e-8, 1e-30])
def test_newton_schulz_steps_agree_with_fifty_digits(kappa, eps):
    with mpmath.workdps(50):
        sigma, steps = 1 / mpmath.mpf(kappa), 0
        while 1 - sigma > eps:
            sigma, steps = sigma * (3 - sigma**2) / 2, steps + 1
    assert theory.newton_schulz_iterations(kappa, eps) == steps


@given(st.floats(1e-8, 1), st.floats(1, 1e3))
def test_the_minimax_cubic_equioscillates_about_one(lower, ratio):
    upper = lower * ratio
    s, c, low, high = theory.minimax_coefficients(lower, upper)
    x = np.linspace(lower, upper, 2001)
    p = c * (s * x - x**3)
    ends = c * (s * np.array([lower, upper]) - np.array([lower, upper]) ** 3)
    assert ends == pytest.approx([low, low], rel=1e-9)
    assert p.max() == pytest.approx(high, rel=1e-5)
    assert p.min() >= low - 1e-9
    assert low + high == pytest.approx(2)


def test_no_nearby_cubic_is_better_than_the_minimax_one():
    s, c, low, _ = theory.minimax_coefficients(0.1, 1.0)
    x = np.linspace(0.1, 1, 5001)
    for ds in (-0.01, 0, 0.01):
        for dc in (-0.01, 0, 0.01):
            distance = abs((c + dc) * ((s + ds) * x - x**3) - 1).max()
            assert distance >= (1 - low) * (1 - 1e-6)


def test_one_step_suffices_when_all_singular_values_agree():
    assert theory.gradient_descent_iterations(1, 1e-8) == 1
    assert theory.conjugate_gradient_iterations(1, 1e-8) == 1
    assert theory.newton_schulz_iterations(1, 1e-8) == 0
    assert theory.minimax_iterations(1, 1e-8) == 0
    assert theory.newton_schulz_burn_in(1) == 0


@pytest.mark.parametrize("kappa", [2.0, 50.0, 1e4])
def test_gradient_descent_needs_exactly_the_predicted_steps(kappa):
    steps = theory.gradient_descent_iterations(kappa, 1e-6)
    assert (1 - 1 / kappa) ** steps <= 1e-6 < (1 - 1 / kappa) ** (steps - 1)


def test_conjugate_gradients_never_need_more_than_the_bound():
    rng = np.random.default_rng(0)
    eigenvalues = np.geomspace(1e-4, 1, 200)
    b = rng.normal(size=200)
    steps = theory.conjugate_gradient_iterations(1e4, 1e-6)
    assert steps == 726
    x, r = np.zeros(200), b
    p = r
    for _ in range(steps):
        a = (r @ r) / (p @ (eigenvalues * p))
        x, new = x + a * p, r - a * eigenvalues * p
        p, r = new + (new @ new) / (r @ r) * p, new
    error = np.sqrt((eigenvalues * (x - b / eigenvalues) ** 2).sum() / (b**2 / eigenvalues).sum())
    assert error <= 1e-6


@given(st.floats(2, 1e10))
def test_newton_schulz_never_beats_its_burn_in(kappa):
    assert theory.newton_schulz_iterations(kappa, 0.5) >= theory.newton_schulz_burn_in(kappa / 2)


def test_scalars_follow_the_matrices():
    rng = np.random.default_rng(1)
    U, _ = np.linalg.qr(rng.normal(size=(5, 5)))
    V, _ = np.linalg.qr(rng.normal(size=(7, 5)))
    sigma = np.geomspace(3, 0.01, 5)
    A, C = U @ np.diag(sigma) @ V.T, rng.normal(size=(5, 2))
    W = rng.normal(size=(2, 5))
    history = theory.spectrum_after(sigma, 12, eta=0.3, gamma=0.8)
    A_12, C_12, D_12 = eagle(A, W @ A, C, 12, eta=0.3, gamma=0.8)
    q = history.remaining[-1]
    assert np.linalg.svd(A_12, compute_uv=False) == pytest.approx(np.sort(history.sigma[-1])[::-1])
    assert pytest.approx(U @ np.diag(q) @ U.T @ C) == C_12
    assert pytest.approx(W @ C - W @ U @ np.diag(q) @ U.T @ C) == D_12


def test_golden_values_follow_from_the_scalars():
    # A = diag(2, 1), B = [2, 1], C = [1, 1]: W* = [1, 1], so D = 2 - q_1 - q_2.
    remaining = theory.spectrum_after([2.0, 1.0], 4).remaining
    assert 2 - remaining[1:].sum(axis=1) == pytest.approx(
        [1.25, 1.6044921875, 1.9030092167, 1.9952677586], abs=1e-10
    )


@pytest.mark.parametrize("scale", [1e-150, 1.0, 1e150])
def test_spectrum_after_does_not_depend_on_the_scale(scale):
    sigma = np.array([[1.0, 0.5, 0.0], [1e-3, 0.0, 0.0]])
    history = theory.spectrum_after(scale * sigma, 5)
    assert history.sigma.shape == history.remaining.shape == (6, 2, 3)
    reference = theory.spectrum_after(sigma, 5)
    assert history.remaining == pytest.approx(reference.remaining)
    assert history.sigma == pytest.approx(scale * reference.sigma)
    assert (history.remaining[:, :, 2] == 1).all()


@settings(max_examples=300)
@given(st.floats(1, 1e12), st.floats(-30, -0.01))
def test_the_explicit_bound_of_theorem_1_holds(kappa, log_eps):
    eps = 10.0**log_eps
    bound = theory.iteration_bound(kappa, eps)
    # The smallest and the largest singular value are the worst and the best direction.
    with mpmath.workdps(60):
        sigma, left, needed = 1 / mpmath.mpf(kappa), mpmath.mpf(1), 0
        while left > eps:
            left *= 1 - sigma**2
            sigma = sigma * (3 - sigma**2) / 2
            needed += 1
    assert needed <= bound <= needed + 9


def test_the_bound_is_tight_in_log_kappa_and_holds_on_a_matrix():
    rise = theory.iteration_bound(1e100, 1e-8) - theory.iteration_bound(1e50, 1e-8)
    assert rise == pytest.approx(50 * math.log(10) / math.log(1.5), abs=1)
    rng = np.random.default_rng(2)
    U, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    V, _ = np.linalg.qr(rng.normal(size=(30, 20)))
    A = U @ np.diag(np.geomspace(1, 1e-3, 20)) @ V.T
    W, C = rng.normal(size=(3, 20)), rng.normal(size=(20, 4))
    norms = {"d_out": 3, "W_norm": np.linalg.norm(W, 2), "C_norm": np.linalg.norm(C)}
    for eps in (1e-1, 1e-6):
        steps = theory.iteration_bound(1e3, eps, **norms)
        assert np.linalg.norm(eagle(A, W @ A, C, steps)[2] - W @ C) <= eps


def test_an_error_above_the_start_needs_no_step():
    assert theory.iteration_bound(1e4, 6.001, d_out=4, W_norm=1.0, C_norm=3.0) == 0


def test_flops_of_a_step_are_counted_from_the_products():
    # By hand for d = 3, n = 5, d' = 2, n' = 4.
    assert theory.flops("gd", 3, 5, 2, 4) == (2 * 3 * 2 * 4, 2 * (2 * 3 * 5) * 2)
    # AAᵀ, (AAᵀ)A, BAᵀ, (BAᵀ)A, AᵀC, A(AᵀC), B(AᵀC)
    products = [(3, 5, 3), (3, 3, 5), (2, 5, 3), (2, 3, 5), (5, 3, 4), (3, 5, 4), (2, 5, 4)]
    assert theory.flops("eagle", 3, 5, 2, 4).step == sum(2 * a * b * c for a, b, c in products)
    assert theory.flops("minimax", 3, 5, 2, 4) == theory.flops("eagle", 3, 5, 2, 4)
    # AAᵀ, (AAᵀ)A, BAᵀ, (BAᵀ)A, (AAᵀ)C, (BAᵀ)C
    products = [(3, 5, 3), (3, 3, 5), (2, 5, 3), (2, 3, 5), (3, 3, 4), (2, 3, 4)]
    assert theory.flops("gd++", 3, 5, 2, 4).step == sum(2 * a * b * c for a, b, c in products)


def test_an_eagle_step_costs_about_min_d_n_gradient_steps():
    step = theory.flops("eagle", 240, 240, 2, 2).step / theory.flops("gd", 240, 240, 2, 2).step
    assert 120 < step < 125


def test_direct_methods_have_no_steps_and_iterative_ones_a_total():
    for method in ("qr", "svd", "cholesky"):
        count = theory.flops(method, 10, 40)
        assert count.step == 0
        assert count.total() == count.setup > 0
    count = theory.flops("cg", 10, 40)
    assert count.total(7) == count.setup + 7 * count.step
    order = [theory.flops(method, 100, 1000).setup for method in ("cholesky", "qr", "svd")]
    assert order == sorted(order)


def test_every_method_counts_with_and_without_queries():
    for method in theory._FLOPS:
        for n_query in (0, 3):
            count = theory.flops(method, 6, 4, 2, n_query)
            assert count.total(2) > 0
            assert all(isinstance(value, int) for value in count)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: theory.gradient_descent_iterations(0.5, 1e-3), "kappa_gram"),
        (lambda: theory.conjugate_gradient_iterations(math.nan, 1e-3), "kappa_gram"),
        (lambda: theory.newton_schulz_iterations(10, 0), "eps"),
        (lambda: theory.minimax_iterations(10, 1), "eps"),
        (lambda: theory.newton_schulz_burn_in(math.inf), "kappa"),
        (lambda: theory.minimax_coefficients(0, 1), "lower"),
        (lambda: theory.minimax_coefficients(2, 1), "upper"),
        (lambda: theory.spectrum_after([1.0, -1.0], 3), "sigma"),
        (lambda: theory.spectrum_after([0.0], 3), "positive"),
        (lambda: theory.spectrum_after([1.0], 2.5), "steps"),
        (lambda: theory.iteration_bound(10, 0.0), "eps"),
        (lambda: theory.iteration_bound(10, 1e-3, W_norm=math.inf), "W_norm"),
        (lambda: theory.flops("gauss", 2, 2), "method"),
        (lambda: theory.flops("gd", 2.5, 2), "d must be"),
        (lambda: theory.flops("gd", 2, 0), "n must be"),
        (lambda: theory.flops("gd", 2, 2, 1, -1), "n_query"),
    ],
)
def test_a_wrong_argument_is_named(call, word):
    with pytest.raises(ValueError, match=word):
        call()
