"""EAGLE: golden values, invariants, statuses, and the inputs that break its kin."""

import warnings

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import prompt, relative_error, with_singular_values

from linear_icl import solvers
from linear_icl.solvers import SolverError, Status

GOLDEN = [1.25, 1.6044921875, 1.9030092167, 1.9952677586]
SMALL = ([[2.0, 0.0], [0.0, 1.0]], [[2.0, 1.0]], [[1.0], [1.0]])


def test_four_printed_layers_give_the_golden_values():
    A, B, C = (np.array(block) for block in SMALL)
    D = np.zeros((1, 1))
    for expected in GOLDEN:
        A, B, C, D = solvers.eagle_update(A, B, C, D)
        assert D[0, 0] == pytest.approx(expected, abs=1e-10)


def test_the_solver_passes_through_the_golden_values():
    seen = []
    result = solvers.eagle(*SMALL, callback=lambda D: seen.append(D.item()))
    np.testing.assert_allclose(seen[:4], GOLDEN, atol=1e-10)
    assert result.converged
    np.testing.assert_allclose(result.D, [[2.0]], rtol=1e-14)


@pytest.mark.parametrize("schedule", [(1 / 3, 1.0), (0.29, 0.54), (0.6, 1.5)])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (7, 7)])
def test_the_invariants_hold_at_every_layer(schedule, shape):
    eta, gamma = schedule
    A, B, C = prompt(*shape, 30.0, noise=0.3)
    C = A @ np.random.default_rng(1).standard_normal((shape[1], 3))
    W = B @ np.linalg.pinv(A)
    expected = W @ C
    D = np.zeros_like(expected)
    for _ in range(12):
        A, B, C, D = solvers.eagle_update(A, B, C, D, eta=eta, gamma=gamma)
        np.testing.assert_allclose(B @ A.T, W @ A @ A.T, atol=1e-12)
        np.testing.assert_allclose(D + W @ C, expected, atol=1e-11)


def test_the_printed_update_and_the_solver_are_the_same_iteration():
    A, B, C = prompt(8, 12, 100.0, noise=0.1)
    seen = []
    solvers.eagle(A, B, C, callback=lambda D: seen.append(D))
    D = np.zeros((2, 3))
    for iterate in seen:
        A, B, C, D = solvers.eagle_update(A, B, C, D)
        np.testing.assert_allclose(iterate, D, atol=1e-10 * np.abs(D).max())


def test_weights_times_query_equal_the_prediction_at_every_layer():
    A, B, C = prompt(8, 12, 100.0, noise=0.1)
    weights, predictions = [], []
    solvers.eagle(A, B, callback=weights.append)
    solvers.eagle(A, B, C, callback=predictions.append)
    for W, D in zip(weights, predictions, strict=False):
        np.testing.assert_allclose(W @ C, D, atol=1e-10 * np.abs(D).max())


@pytest.mark.parametrize("kappa", [1.0, 10.0, 1e3, 1e6])
@pytest.mark.parametrize("shape", [(20, 20), (12, 30), (30, 12)])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_agrees_with_the_pseudoinverse(kappa, shape, noise):
    A, B, C = prompt(*shape, kappa, noise=noise)
    W = B @ np.linalg.pinv(A)
    result = solvers.eagle(A, B, C, rtol=1e-10)
    assert result.converged
    assert relative_error(result.D, W @ C) < 1e-13 * kappa + 1e-10
    assert relative_error(solvers.eagle(A, B, rtol=1e-10).W, W) < 1e-13 * kappa + 1e-10


def test_the_number_of_layers_is_that_of_newton_schulz():
    kappa = 1e4
    sigma, layers = 1 / kappa, 0
    while 1 - sigma > 1e-8:
        sigma, layers = 0.5 * sigma * (3 - sigma**2), layers + 1
    A, B, C = prompt(30, 30, kappa)
    assert abs(solvers.eagle(A, B, C).iterations - layers) <= 2


@pytest.mark.parametrize("kappa", [1e2, 1e6, 1e10])
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("solve", [solvers.eagle, solvers.gd_plus_plus])
def test_a_rank_deficient_prompt_stops_by_itself_at_the_pseudoinverse(kappa, noise, solve):
    A, B, C = prompt(24, 24, kappa, rank=12, noise=noise)
    expected = B @ np.linalg.pinv(A, rcond=1e-13) @ C
    result = solve(A, B, C, rcond=1e-13)
    assert result.converged
    assert result.rank == 12
    assert result.iterations < 70
    assert relative_error(result.D, expected) < 1e-15 * kappa**1.1 + 1e-10
    weights = solve(A, B, rcond=1e-13)
    assert relative_error(weights.W @ C, expected) < 1e-15 * kappa**1.1 + 1e-10


def test_a_stopped_member_does_not_drift_while_its_batch_goes_on():
    hard, easy = prompt(12, 12, 1e8), prompt(12, 12, 10.0, rank=6, noise=0.5)
    A, B, C = (np.stack(blocks) for blocks in zip(hard, easy, strict=True))
    result = solvers.eagle(A, B, C)
    assert result.converged
    assert result.iterations[0] > 2 * result.iterations[1]
    alone = solvers.eagle(*easy)
    np.testing.assert_allclose(result.D[1], alone.D, rtol=1e-9)


def test_each_member_of_a_batch_has_its_own_scale():
    A = np.stack([np.eye(2), 1000 * np.eye(2)])
    W = solvers.eagle(A, np.array([[1.0, 2.0]])).W
    np.testing.assert_allclose(W, [[[1.0, 2.0]], [[1e-3, 2e-3]]], rtol=1e-14)


def test_a_small_increment_is_not_mistaken_for_convergence():
    # D = 1 after one layer and hardly moves for many more; the answer is 2.
    result = solvers.eagle(np.diag([1.0, 1e-4]), [[1.0, 1e-4]], [[1.0], [1.0]], rtol=1e-4)
    assert result.converged
    np.testing.assert_allclose(result.D, [[2.0]], rtol=1e-4)


@pytest.mark.parametrize("which", ["A", "B", "C"])
@pytest.mark.parametrize("solve", [solvers.eagle, solvers.gd_plus_plus])
def test_a_zero_block_is_answered_at_once_without_nan(which, solve):
    blocks = dict(zip("ABC", prompt(4, 5, 3.0), strict=True))
    blocks[which] = np.zeros_like(blocks[which])
    result = solve(**blocks)
    assert result.converged
    assert result.iterations == 0
    assert not result.D.any()


def test_the_learned_constants_taken_literally_stall_and_say_so():
    A, B, C = prompt(10, 10, 5.0)
    result = solvers.eagle(A, B, C, eta=1.0, gamma=1.9)
    assert result.status is Status.STAGNATED
    assert np.isfinite(result.D).all()
    with pytest.raises(SolverError, match="stopped improving"):
        solvers.eagle(A, B, C, eta=1.0, gamma=1.9, raise_on_failure=True)


def test_too_few_layers_are_reported():
    A, B, C = prompt(10, 10, 1e4)
    result = solvers.eagle(A, B, C, maxiter=5)
    assert result.status is Status.MAXITER
    assert result.iterations == 5
    assert result.history.shape == (6,)
    assert "limit" in result.message


@settings(max_examples=40, deadline=None)
@given(
    d=st.integers(0, 7),
    n=st.integers(0, 7),
    d_out=st.integers(0, 3),
    n_query=st.integers(0, 3),
    batch=st.sampled_from([(), (0,), (2,), (2, 1)]),
    exponent=st.integers(-145, 145),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 50),
)
def test_any_shape_and_scale_gives_the_pseudoinverse(
    d, n, d_out, n_query, batch, exponent, dtype, seed
):
    rng = np.random.default_rng(seed)
    scale = 10.0 ** (exponent if dtype == "float64" else exponent / 10)
    A = (rng.standard_normal((*batch, d, n)) * scale).astype(dtype)
    B = rng.standard_normal((d_out, n)).astype(dtype)
    C = rng.standard_normal((*batch[:1], d, n_query)).astype(dtype) if len(batch) < 2 else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = solvers.eagle(A, B, C, rtol=1e-4)
    answer = result.W if C is None else result.D
    assert answer.dtype == A.dtype
    assert answer.shape == (*batch, d_out, d if C is None else n_query)
    assert np.isfinite(answer).all()
    if result.converged and answer.size and n > 0 and d > 0:
        kappa = np.max(np.linalg.cond(A.astype(float) / scale))
        if kappa < 1e3:
            W = B.astype(float) @ np.linalg.pinv(A.astype(float) / scale)
            expected = W if C is None else W @ C
            size = np.linalg.norm(W) * (1.0 if C is None else np.linalg.norm(C))
            np.testing.assert_allclose(answer * np.float64(scale), expected, atol=1e-3 * size)


@pytest.mark.parametrize("scale", [1e-150, 2.0**-300, 1e150])
@pytest.mark.parametrize("solve", [solvers.eagle, solvers.gd_plus_plus])
def test_scaling_the_data_changes_nothing_but_the_scale(scale, solve):
    A, B, C = prompt(6, 8, 50.0)
    base = solve(A, B, C)
    np.testing.assert_allclose(solve(scale * A, B, C).D * scale, base.D, rtol=1e-12)
    scaled = solve(scale * A, scale * B, C)
    np.testing.assert_allclose(scaled.D, base.D, rtol=1e-12)
    assert scaled.iterations == base.iterations


def test_atol_is_in_the_units_of_the_answer():
    A, B, C = prompt(8, 8, 1e3)
    loose = solvers.eagle(A, 1e6 * B, C, rtol=0, atol=1e3)
    tight = solvers.eagle(A, 1e6 * B, C, rtol=0, atol=1e-3)
    exact = 1e6 * B @ np.linalg.pinv(A) @ C
    assert loose.iterations < tight.iterations
    assert np.abs(tight.D - exact).max() < 1e-2


def test_it_agrees_with_fifty_digits_on_a_hilbert_matrix():
    d = 5
    with mpmath.workdps(50):
        H = mpmath.hilbert(d)
        x = mpmath.lu_solve(H, mpmath.matrix([1] * d))
        expected = np.array([float(value) for value in x])
    A = np.array([[1 / (i + j + 1) for j in range(d)] for i in range(d)])
    W = solvers.eagle(A, np.ones(d), rtol=1e-12).W
    assert relative_error(W, expected) < 1e-10


def test_one_dimensional_labels_and_queries_lose_their_axis():
    A = np.diag([2.0, 1.0])
    assert solvers.eagle(A, [2.0, 1.0]).W.shape == (2,)
    assert float(solvers.eagle(A, [2.0, 1.0], [1.0, 1.0]).D) == pytest.approx(2.0)
    assert solvers.eagle(A, [2.0, 1.0], np.eye(2)).D.shape == (2,)
    assert solvers.eagle(A, [[2.0, 1.0]], [1.0, 1.0]).D.shape == (1,)


def test_torch_and_numpy_agree_and_gradients_flow():
    A, B, C = (torch.tensor(block) for block in prompt(5, 7, 20.0, noise=0.2))
    result = solvers.eagle(A, B, C, rtol=1e-12)
    assert isinstance(result.D, torch.Tensor)
    np.testing.assert_allclose(
        result.D.numpy(), solvers.eagle(A.numpy(), B.numpy(), C.numpy(), rtol=1e-12).D, rtol=1e-10
    )
    inputs = [block.requires_grad_() for block in (A, B, C)]
    assert torch.autograd.gradcheck(
        lambda A, B, C: solvers.eagle(A, B, C, rtol=1e-12).D, inputs, atol=1e-6
    )


def test_inputs_are_left_untouched_whatever_their_layout():
    A, B, C = prompt(6, 8, 10.0)
    copies = [block.copy() for block in (A, B, C)]
    wide = np.zeros((12, 16))
    wide[::2, ::2] = A
    expected = solvers.eagle(A, B, C).D
    for variant in (np.asfortranarray(A), wide[::2, ::2], np.broadcast_to(A, (2, 6, 8))):
        variant = variant.view()
        variant.flags.writeable = False
        np.testing.assert_allclose(
            solvers.eagle(variant, B, C).D, np.broadcast_to(expected, (*variant.shape[:-2], 2, 3))
        )
    for block, copy in zip((A, B, C), copies, strict=True):
        np.testing.assert_array_equal(block, copy)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"A": np.ones(3)}, r"A must have shape"),
        ({"B": np.ones((1, 4))}, r"one column an example.*\(1, 4\)"),
        ({"C": np.ones((4, 1))}, r"one row a feature"),
        ({"A": np.full((2, 2), np.nan)}, r"A .*NaN"),
        ({"rtol": -1.0}, r"rtol"),
        ({"rtol": 0.0}, r"rtol and atol are both 0"),
        ({"maxiter": 2.5}, r"maxiter"),
        ({"maxiter": True}, r"maxiter"),
        ({"rcond": 1.0}, r"rcond"),
        ({"eta": 0.0}, r"eta"),
        ({"gamma": "1"}, r"gamma"),
        ({"form": "fast"}, r"form"),
    ],
)
def test_bad_values_are_named(changes, message):
    arguments = {"A": np.eye(2), "B": np.ones((1, 2)), "C": np.ones((2, 1))} | changes
    with pytest.raises(ValueError, match=message):
        solvers.eagle(**arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": None}, "^C is None"),
        ({"B": [2, 1]}, "^B must be a matrix"),
        ({"D": [[0, 0]]}, "^D must have shape"),
        ({"S": [1.0, 2.0]}, "^S must have shape"),
        ({"S": 1.0}, "^S must have shape"),
    ],
)
def test_the_printed_update_names_the_block_that_does_not_fit(changes, message):
    blocks = {"A": [[2, 0], [0, 1]], "B": [[2, 1]], "C": [[1], [1]], "D": [[0]]} | changes
    with pytest.raises((TypeError, ValueError), match=message):
        solvers.eagle_update(**blocks)


@pytest.mark.parametrize("form", ["data", "gram"])
def test_only_the_answer_and_not_the_way_to_it_must_fit_into_the_dtype(form):
    A, B, C = np.array([[1.0, 2.0]]), np.array([[3.0, 6.0]]), np.array([[1.0]])
    D = solvers.eagle(1e-300 * A, 1e300 * B, 1e-300 * C, form=form).D
    np.testing.assert_allclose(D, [[3e300]])
    D = solvers.eagle(1e300 * A, 1e-300 * B, 1e300 * C, form=form).D
    np.testing.assert_allclose(D, [[3e-300]])
    with pytest.raises(ValueError, match="the answer D is beyond the range of float64"):
        solvers.eagle(1e-300 * A, 1e300 * B, C, form=form)


def test_labels_and_queries_of_any_size_give_zero_where_there_are_no_features():
    result = solvers.eagle([[0.0]], [[1e10]], [[1e299]])
    assert result.D == 0
    assert result.converged


@pytest.mark.parametrize("solve", [solvers.eagle, solvers.gd_plus_plus])
def test_a_step_of_any_size_diverges_without_a_warning(solve):
    result = solve([[2, 0], [0, 1]], [[2, 1]], gamma=1e300)
    assert not result.converged
    assert np.isfinite(result.W).all()


def test_a_sketch_of_orthonormal_columns_keeps_the_invariant_of_consistent_data():
    rng = np.random.default_rng(3)
    A = with_singular_values(np.geomspace(1, 0.1, 6), 6, 12, rng)
    W = rng.standard_normal((2, 6))
    B, C, D = W @ A, rng.standard_normal((6, 3)), np.zeros((2, 3))
    start = C.copy()
    for _ in range(120):
        S = np.linalg.qr(rng.standard_normal((12, 4)))[0]
        A, B, C, D = solvers.eagle_update(A, B, C, D, S)
        np.testing.assert_allclose(D + W @ C, W @ start, atol=1e-12)
    assert relative_error(D, W @ start) < 1e-3


@pytest.mark.parametrize("schedule", ["newton-schulz", "minimax"])
def test_weights_are_whole_when_one_layer_makes_a_deficient_matrix_an_isometry(schedule):
    # Two positive singular values, and the best cubic brings both to one value at once.
    A = np.array([[0.0, 0, 0, 0], [-2, 1, 2, 1], [-1, 0, 1, 1]])
    B = np.array([[-6.0, -1, -1, 1]])
    result = solvers.eagle(A, B, form="data", schedule=schedule)
    assert result.converged
    assert result.rank == 2
    np.testing.assert_allclose(result.W, [[0, 0, 2]], atol=1e-13)


@pytest.mark.parametrize("query", [True, False])
def test_a_right_hand_side_far_smaller_than_its_neighbour_is_solved_too(query):
    A = np.array([[2.0, 1], [1, 3]])
    B, C = np.array([[1, 2], [1e-170, 2e-170]]), np.array([[1, 1e-170], [1, 1e-170]])
    result = solvers.eagle(A, B, C) if query else solvers.eagle(A, B)
    expected = np.linalg.solve(A.T, B[0]) * np.array([[1], [1e-170]])
    if query:
        expected = expected.sum(axis=1, keepdims=True) * np.array([1, 1e-170])
        expected[1, 1] = result.D[1, 1]  # 1e-341 is no double
    found = result.D if query else result.W
    assert result.converged
    np.testing.assert_allclose(found, expected, rtol=1e-7)


def test_steps_that_raise_round_off_are_never_called_converged():
    result = solvers.eagle([[3.0, 4.0]], [[6.0, 9.0]], eta=0.94, gamma=0.5)
    assert not result.converged or abs(result.W[0, 0] - 2.16) < 1e-6


def test_a_matrix_whose_norm_overflows_is_refused():
    with pytest.raises(ValueError, match="A is too large"):
        solvers.eagle(np.full((2, 2), 1e308), np.full(2, 1e308))


def test_refinement_leaves_a_matrix_singular_to_working_precision_alone():
    A = [[0.9577587029597641, -0.19980212906658], [3.602812536705915e-17, 2.295714174862955e-15]]
    B = [[-0.48388721851968347, 0.10094577704129663]]
    assert np.isfinite(solvers.eagle(A, B, schedule="minimax").W).all()
