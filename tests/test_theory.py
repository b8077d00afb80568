"""Theory: the counts are those of the formulas, and the bounds hold on real iterations."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl import problems, theory

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


def distributed_rounds(parts, C, D_star, eps, most):
    """Rounds of distributed EAGLE until ‖D − D*‖_F ≤ ε, on blocks of norm 1; most + 1 if never."""
    # In coordinates of its right singular vectors a block has full column rank: zero singular
    # values, which hundreds of steps would blow up from round-off, do not occur.
    compact = []
    for A, B in parts:
        _, sigma, Vt = np.linalg.svd(A, full_matrices=False)
        V = Vt[sigma > 1e-10 * sigma[0]].T / sigma[0]
        compact.append((A @ V, B @ V))
    parts, D = compact, np.zeros_like(D_star)
    for rounds in range(most + 1):
        if np.linalg.norm(D - D_star) <= eps:
            return rounds
        D = D + np.mean([B @ (A.T @ C) for A, B in parts], axis=0)
        C = C - np.mean([A @ (A.T @ C) for A, _ in parts], axis=0)
        parts = [(A @ T, B @ T) for A, B in parts for T in [(3 * np.eye(A.shape[1]) - A.T @ A) / 2]]
    return most + 1


@settings(max_examples=25, deadline=None)
@given(
    machines=st.integers(1, 6),
    share=st.floats(0.0, 1.0),
    log_kappa=st.floats(0.0, 4.0),
    log_eps=st.floats(-8.0, -1.0),
    seed=st.integers(0, 1000),
)
def test_the_explicit_bound_of_theorem_2_holds(machines, share, log_kappa, log_eps, seed):
    # α log-uniform between 0.02 and the largest value that M machines can have below 1.
    alpha = 1.0 if machines == 1 else 0.02 * (50 * (1 - 1 / machines)) ** share
    problem = problems.distributed(
        24, 48, 2, 2, machines=machines, alpha=alpha, kappa=10**log_kappa, rng=seed
    )
    norms = {
        "d_out": 2,
        "W_norm": np.linalg.norm(problem.W_star, 2),
        "C_norm": np.linalg.norm(problem.C),
    }
    bound = theory.iteration_bound(10**log_kappa, 10**log_eps, alpha=alpha, **norms)
    rounds = distributed_rounds(problem.parts, problem.C, problem.D_star, 10**log_eps, bound)
    assert rounds <= bound


@pytest.mark.parametrize("kappa", [1.0, 1.9, 2.1, 1e2, 1e6])
@pytest.mark.parametrize("alpha", [0.875, 0.5, 0.1, 0.003])
def test_the_bound_of_theorem_2_is_near_what_the_worst_direction_needs(kappa, alpha):
    # Every block's singular value is the smallest, and C lies along the worst direction.
    sigma, error, rounds = 1 / kappa, 1.0, 0
    while error > 1e-12:
        error *= 1 - alpha * sigma**2
        sigma = min(sigma * (3 - sigma**2) / 2, 1.0)
        rounds += 1
    bound = theory.iteration_bound(kappa, 1e-12, alpha=alpha)
    assert rounds <= bound <= rounds + 8


def test_the_bound_grows_linearly_in_the_inverse_diversity_and_in_log_kappa():
    bounds = [theory.iteration_bound(1e3, 1e-8, alpha=alpha) for alpha in (1e-2, 1e-3, 1e-4)]
    assert np.diff(bounds) == pytest.approx(np.log(1e8) * np.array([900, 9000]), rel=1e-2)
    small, large = (theory.iteration_bound(kappa, 1e-8, alpha=1e-3) for kappa in (1e3, 1e6))
    assert large - small == pytest.approx(math.log(1e3) / math.log(1.5), abs=1)


def test_no_step_less_is_enough_for_the_five_steps_of_the_bound():
    theta = 0.5
    for _ in range(5):
        theta = theta**2 * (3 - theta) / 2
    assert 1.23e-6 < theta < 1.24e-6


@pytest.mark.parametrize(
    ("blocks", "alpha"),
    [
        ([np.eye(3)], 1.0),
        ([np.eye(3), 7 * np.ones((3, 3)) + np.eye(3)], 1.0),
        # Two lines at an angle with cos θ = 3/5: (1 − 3/5)/2.
        ([[[1.0], [0.0]], [[3.0], [4.0]]], 0.2),
        ([[[1.0], [0.0]], [[-3.0], [4.0]]], 0.2),
        # Mutually orthogonal lines.
        ([np.eye(4)[:, i : i + 1] for i in range(4)], 0.25),
        # The three coordinate planes; every axis lies in two of them.
        ([np.eye(3)[:, [0, 1]], np.eye(3)[:, [1, 2]], np.eye(3)[:, [0, 2]]], 2 / 3),
        # Two planes that share an axis and are orthogonal otherwise.
        ([np.eye(3)[:, [0, 1]], np.eye(3)[:, [0, 2]]], 0.5),
        # Wide blocks of rank 1, along (1, 2) and (0, 1), with cos θ = 2/√5.
        ([[[1, 2, 3], [2, 4, 6]], [[0, 0, 0, 0], [1, 1, 1, 1]]], (1 - 2 / math.sqrt(5)) / 2),
        # A machine without examples, or with only zeros, has no range and no say but its share.
        ([np.eye(2), np.zeros((2, 0))], 0.5),
        ([np.eye(2), np.zeros((2, 5)), np.eye(2)], 2 / 3),
        # An angle of 1e-7: α = sin²(θ/2), which a sum of projectors would lose to rounding.
        ([[[1.0], [0.0]], [[1.0], [1e-7]]], 2.5e-15),
    ],
)
def test_the_diversity_index_is_that_of_the_true_ranges(blocks, alpha):
    assert theory.diversity_index(blocks) == pytest.approx(alpha, rel=1e-7)


def test_a_qr_of_a_wide_block_would_have_called_every_range_full():
    wide = np.array([[1.0, 2, 3], [2, 4, 6]])
    assert np.linalg.qr(wide)[0].shape == (2, 2)
    assert theory.diversity_index([wide, wide]) == pytest.approx(1)


def test_coincident_ranges_of_ill_conditioned_blocks_count_as_one():
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(30, 6)))[0]
    blocks = [basis @ np.diag(np.logspace(0, -8, 6)) @ rng.normal(size=(6, 10)) for _ in range(3)]
    assert theory.diversity_index(blocks, rcond=1e-12) == pytest.approx(1)


def test_the_diversity_index_is_the_smallest_positive_eigenvalue_of_the_mean_projector():
    rng = np.random.default_rng(4)
    blocks = [rng.normal(size=(9, r)) @ rng.normal(size=(r, 12)) for r in (2, 3, 3)]
    mean = sum(A @ np.linalg.pinv(A, rcond=1e-12) for A in blocks) / 3
    eigenvalues = np.linalg.eigvalsh(mean)
    assert theory.diversity_index(blocks) == pytest.approx(eigenvalues[eigenvalues > 1e-12][0])


def test_the_diversity_index_depends_on_neither_scale_nor_order_nor_array_type():
    rng = np.random.default_rng(5)
    blocks = [rng.normal(size=(6, 2)) for _ in range(3)]
    alpha = theory.diversity_index(blocks)
    scaled = [blocks[2] * 1e-150, blocks[0], blocks[1] * 1e150]
    assert theory.diversity_index(scaled) == pytest.approx(alpha)
    tensors = [torch.tensor(block, dtype=torch.float32) for block in blocks]
    assert theory.diversity_index(tensors) == pytest.approx(alpha, rel=1e-5)


def test_the_diversity_index_of_nothing_is_not_a_number():
    assert math.isnan(theory.diversity_index([np.zeros((3, 2)), np.zeros((3, 0))]))


LAN = {"latency": 5e-5, "bandwidth": 1e9, "rate": 1e10}
SOLVE = {"d": 100, "n": 1000, "machines": 4, "kappa": 1e3, "alpha": 0.1, "eps": 1e-8}


def test_a_round_costs_d_plus_d_out_numbers_a_query():
    cost = theory.communication_cost("average", **SOLVE, **LAN, d_out=3, n_query=2)
    assert cost.rounds == theory.iteration_bound(1e3, 1e-8, alpha=0.1)
    assert cost.bytes == cost.rounds * (100 + 3) * 2 * 8
    # Two sweeps of log2 4 = 2 messages; 2 (1 - 1/4) of the bytes through a link.
    assert cost.latency_seconds == pytest.approx(cost.rounds * 4 * 5e-5)
    assert cost.bandwidth_seconds == pytest.approx(1.5 * cost.bytes / 1e9)
    assert cost.seconds == pytest.approx(sum(cost[2:]))
    # One QR of the 250 examples with their labels, then a step a round on 100 columns.
    step = theory.flops("eagle", 100, 100, d_out=3, n_query=2).step
    work = 2 * 103**2 * 250 + cost.rounds * step
    assert cost.compute_seconds == pytest.approx(work / 1e10)


def test_freezing_saves_arithmetic_and_conjugate_gradients_save_rounds():
    average, frozen, cg, raw = (
        theory.communication_cost(method, **SOLVE | {"alpha": 0.01}, **LAN)
        for method in ("average", "frozen", "cg", "raw-cg")
    )
    assert frozen.rounds == average.rounds
    assert frozen.compute_seconds < average.compute_seconds / 10
    assert cg.rounds <= raw.rounds == 100 < frozen.rounds


def test_sums_and_data_travel_once():
    gram = theory.communication_cost("gram", **SOLVE, **LAN, d_out=3)
    assert (gram.rounds, gram.bytes) == (1, (100**2 + 300) * 8)
    gather = theory.communication_cost("gather", **SOLVE, **LAN, d_out=3)
    assert (gather.rounds, gather.bytes) == (1, 103 * 250 * 8)
    # The receiving machine has 250 of the 1000 examples itself.
    assert gather.bandwidth_seconds == pytest.approx(103 * 750 * 8 / 1e9)


@pytest.mark.parametrize("method", theory.COMMUNICATION_METHODS)
def test_one_machine_sends_nothing_and_costs_are_proportional_to_the_rates(method):
    alone = theory.communication_cost(method, **SOLVE | {"machines": 1}, **LAN)
    assert (alone.latency_seconds, alone.bandwidth_seconds) == (0, 0)
    large = SOLVE | {"n": 10**9, "machines": 10_000}
    unit = theory.communication_cost(method, **large, latency=1, bandwidth=1, rate=1)
    cost = theory.communication_cost(method, **large, **LAN)
    parts = (5e-5 * unit[2], unit[3] / 1e9, unit[4] / 1e10)
    assert cost[2:] == pytest.approx(parts)
    assert all(value > 0 for value in parts)


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


def test_flops_of_a_sketched_step_see_r_columns_and_pay_for_their_norm():
    # d = 6, r = 3: the Gram matrix 2·6·9, its largest eigenvalue 4/3·27, two gradient products.
    assert theory.flops("sgd", 6, 12, 2, rank=3).step == 108 + 36 + 2 * (2 * 6 * 3 * 2)
    assert theory.flops("eagle", 6, 12, 2, 4, rank=3).step == (
        theory.flops("eagle", 6, 3, 2, 4).step + 36
    )
    with pytest.raises(ValueError, match="rank"):
        theory.flops("qr", 6, 12, rank=3)
    with pytest.raises(ValueError, match="rank"):
        theory.flops("sgd", 6, 12, rank=13)


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
        (lambda: theory.iteration_bound(10, 1e-3, alpha=0.0), "alpha"),
        (lambda: theory.iteration_bound(10, 1e-3, alpha=1.5), "alpha"),
        (lambda: theory.diversity_index([]), "blocks is empty"),
        (lambda: theory.diversity_index([np.ones((2, 1)), np.ones((3, 1))]), "same d"),
        (lambda: theory.diversity_index([np.ones((4, 2, 1))]), "blocks"),
        (lambda: theory.diversity_index([np.ones((2, 1)), [[math.nan], [1]]]), r"blocks\[1\]"),
        (lambda: theory.diversity_index([np.eye(2)], rcond=1.0), "rcond"),
        (lambda: theory.communication_cost("send", **SOLVE, **LAN), "raw-cg"),
        (lambda: theory.communication_cost("cg", **SOLVE | {"machines": 2000}, **LAN), "machines"),
        (lambda: theory.communication_cost("cg", **SOLVE | {"alpha": 2}, **LAN), "alpha"),
        (lambda: theory.communication_cost("cg", **SOLVE, **LAN | {"rate": 0}), "rate"),
        (lambda: theory.communication_cost("cg", **SOLVE, **LAN | {"latency": -1}), "latency"),
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
