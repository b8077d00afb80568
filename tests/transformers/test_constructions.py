"""Constructed weights against the solvers, in every layer."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linear_icl import solvers
from linear_icl.transformers import attention, constructions

prompts = given(
    seed=st.integers(0, 2**32 - 1),
    d=st.integers(1, 6),
    n=st.integers(1, 8),
    d_out=st.integers(1, 3),
    n_query=st.integers(1, 3),
)


def draw(seed, d, n, d_out, n_query):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(d, n)), rng.normal(size=(d_out, n)), rng.normal(size=(d, n_query))


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def assert_runs_eagle(states, A, B, C, steps, sketches):
    """The blocks of the network, D with its sign turned, are EAGLE's in every layer."""
    blocks = A, B, C, np.zeros((B.shape[0], C.shape[1]))
    for state, eta_rho, gamma_rho, S in zip(states[1:], *steps, sketches, strict=True):
        blocks = solvers.eagle_update(*blocks, S, eta=eta_rho, gamma=gamma_rho, rho=1.0)
        for found, expected in zip(state[:3], blocks[:3], strict=True):
            assert_close(found, expected)
        assert_close(attention.read_out(state), blocks[3])


def test_eagle_gives_the_golden_values_layer_by_layer():
    # A = diag(2, 1), B = [2, 1], C = [1, 1]ᵀ: 5/4, 1.6044921875 exactly.
    A, B, C = np.diag([2.0, 1.0]), np.array([[2.0, 1.0]]), np.ones((2, 1))
    steps = constructions.eagle_steps(A, 4)
    states = attention.row_stack(A, B, C, constructions.eagle(2, 1, *steps))
    found = [float(attention.read_out(state)[0, 0]) for state in states]
    np.testing.assert_allclose(
        found, [0, 1.25, 1.6044921875, 1.9030092167, 1.9952677586], rtol=0, atol=1e-10
    )


@settings(max_examples=30, deadline=None)
@prompts
def test_a_row_token_stack_runs_eagle(seed, d, n, d_out, n_query):
    A, B, C = draw(seed, d, n, d_out, n_query)
    steps = constructions.eagle_steps(A, 6)
    states = attention.row_stack(A, B, C, constructions.eagle(n, n_query, *steps))
    assert_runs_eagle(states, A, B, C, steps, [None] * 6)


@settings(max_examples=30, deadline=None)
@prompts
def test_a_row_token_stack_runs_eagle_with_a_sketch_a_layer(seed, d, n, d_out, n_query):
    A, B, C = draw(seed, d, n, d_out, n_query)
    rng = np.random.default_rng(seed)
    rank = 1 + seed % n
    sketches = [np.linalg.qr(rng.normal(size=(n, rank)))[0] for _ in range(5)]
    steps = constructions.eagle_steps(A, 5, sketches=sketches)
    layers = constructions.eagle(n, n_query, *steps, sketches)
    assert all(np.linalg.matrix_rank(W_QK) == rank for W_QK, _ in layers)
    assert_runs_eagle(attention.row_stack(A, B, C, layers), A, B, C, steps, sketches)


def test_the_factors_have_the_widths_of_the_trained_models_and_merge_to_the_layers():
    sketches = [np.eye(7)[:, :3]] * 2
    for chosen, key, value in ((None, 9, 9), (sketches, 3, 5)):
        factors = constructions.eagle_factors(7, 2, [0.1, 0.2], [0.3, 0.4], chosen)
        layers = constructions.eagle(7, 2, [0.1, 0.2], [0.3, 0.4], chosen)
        for four, (W_QK, W_VP) in zip(factors, layers, strict=True):
            assert [W.shape for W in four] == [(9, key), (9, key), (9, value), (9, value)]
            assert_close(four[0] @ four[1].T, W_QK)
            assert_close(four[2] @ four[3].T, W_VP)


@settings(max_examples=30, deadline=None)
@prompts
def test_a_column_token_stack_runs_gd_plus_plus(seed, d, n, d_out, n_query):
    A, B, C = draw(seed, d, n, d_out, n_query)
    eta_rho, gamma_rho = constructions.eagle_steps(A, 8)
    iterates = []
    solvers.gd_plus_plus(A, B, C, maxiter=8, callback=iterates.append)
    depth = len(iterates)
    layers = constructions.gd_plus_plus(d, d_out, eta_rho[:depth], gamma_rho[:depth])
    states = attention.column_stack(A, B, C, layers)
    for state, D in zip(states[1:], iterates, strict=True):
        np.testing.assert_allclose(attention.read_out(state), D, atol=1e-10 * np.abs(D).max())


@settings(max_examples=30, deadline=None)
@prompts
def test_a_column_token_stack_runs_gradient_descent(seed, d, n, d_out, n_query):
    A, B, C = draw(seed, d, n, d_out, n_query)
    step = 1 / np.linalg.norm(A, 2) ** 2
    iterates = []
    solvers.gradient_descent(A, B, step=step, maxiter=6, callback=iterates.append)
    layers = constructions.gradient_descent(d, d_out, [step] * len(iterates))
    states = attention.column_stack(A, B, C, layers)
    for (A_l, B_l, C_l, D_l), W in zip(states[1:], iterates, strict=True):
        assert_close(-D_l, W @ C)
        assert_close(B_l, B - W @ A)
        np.testing.assert_array_equal(A_l, A)
        np.testing.assert_array_equal(C_l, C)


@settings(max_examples=30, deadline=None)
@prompts
def test_von_oswalds_four_matrices_take_one_step_from_given_weights(seed, d, n, d_out, n_query):
    A, B, C = draw(seed, d, n, d_out, n_query)
    W_0 = np.random.default_rng(seed).normal(size=(d_out, d))
    step = 0.3
    W_1 = W_0 + step / n * (B - W_0 @ A) @ A.T
    E = np.block([[A, C], [B, -W_0 @ C]])
    four = constructions.von_oswald(W_0, step, n)
    E_1 = E + attention.linear_attention(E, *four, examples=n)
    assert_close(-E_1[d:, n:], W_1 @ C)
    assert_close(E_1[:d], E[:d])
    assert_close(E_1[d:, :n], B - (W_1 - W_0) @ A)


def test_one_von_oswald_layer_from_zero_is_the_first_layer_of_gradient_descent():
    four = constructions.von_oswald(np.zeros((2, 3)), step=0.5, n=10)
    [(Q, P)] = constructions.gradient_descent(3, 2, [0.05])
    found_q, found_p = attention.merge(*four)
    assert_close(found_q, Q)
    assert_close(found_p, P)


def test_diagonal_weights_move_features_and_labels_by_their_four_products():
    rng = np.random.default_rng(7)
    A, B, C = draw(7, 3, 5, 2, 2)
    D = rng.normal(size=(2, 2))
    xx, xy, yx, yy = 0.1, 0.2, 0.3, 0.4
    [(Q, P)] = constructions.diagonal(3, 2, [(xx, xy, yx, yy)])
    found = attention.column_layer(A, B, C, D, Q, P)
    assert_close(found[0], A + xx * A @ A.T @ A + xy * A @ B.T @ B)
    assert_close(found[1], B + yx * B @ A.T @ A + yy * B @ B.T @ B)
    assert_close(found[2], C + xx * A @ A.T @ C + xy * A @ B.T @ D)
    assert_close(found[3], D + yx * B @ A.T @ C + yy * B @ B.T @ D)


@pytest.mark.parametrize("machines", [1, 2, 3])
def test_one_head_a_machine_runs_distributed_eagle(machines):
    rng = np.random.default_rng(machines)
    parts = [(rng.normal(size=(5, 4)), rng.normal(size=(2, 4))) for _ in range(machines)]
    C, D = rng.normal(size=(5, 2)), np.zeros((2, 2))
    steps = [constructions.eagle_steps(A, 6) for A, _ in parts]
    eta_rho, gamma_rho = np.stack([e for e, _ in steps], 1), np.stack([g for _, g in steps], 1)
    layers = constructions.eagle_distributed(4, 2, machines, eta_rho, gamma_rho)
    states = attention.distributed_stack(parts, C, layers)
    for X in states[1:]:
        # Every machine runs the update on its own blocks; C and D are averaged.
        updated = [solvers.eagle_update(A, B, C, D) for A, B in parts]
        parts = [(A, B) for A, B, _, _ in updated]
        C = np.mean([new for _, _, new, _ in updated], axis=0)
        D = np.mean([new for _, _, _, new in updated], axis=0)
        for mu, (A, B) in enumerate(parts):
            assert_close(X[mu, :5, :4], A)
            assert_close(X[mu, 5:, :4], B)
            assert_close(X[mu, :5, 4:], C)
            assert_close(-X[mu, 5:, 4:], D)


def test_distributed_weights_let_only_query_columns_travel():
    [(_, W_VP)] = constructions.eagle_distributed(3, 2, 4, [0.5], [1.0])
    for mu in range(4):
        for nu in range(4):
            if mu != nu:
                np.testing.assert_array_equal(W_VP[mu, nu, :3], 0)
                np.testing.assert_array_equal(W_VP[mu, nu, :, :3], 0)


def test_the_steps_of_a_batch_are_those_of_its_largest_prompt():
    rng = np.random.default_rng(8)
    A = rng.normal(size=(4, 3, 5))
    alone = [constructions.eagle_steps(member, 1)[0][0] for member in A]
    together = constructions.eagle_steps(A, 1)[0][0]
    assert together == pytest.approx(min(alone), rel=1e-12)


def test_constructed_weights_run_in_torch_too():
    A, B, C = draw(9, 4, 6, 2, 3)
    layers = constructions.eagle(6, 3, *constructions.eagle_steps(A, 3))
    tensors = [tuple(map(torch.from_numpy, pair)) for pair in layers]
    found = attention.row_stack(*map(torch.from_numpy, (A, B, C)), tensors)
    expected = attention.row_stack(A, B, C, layers)
    assert_close(attention.read_out(found[-1]).numpy(), attention.read_out(expected[-1]))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: constructions.eagle(3, 1, [1], [1], [np.eye(2)]), r"shape \(3, r\)"),
        (lambda: constructions.eagle(3, 1, [1, 2], [1], [np.eye(3)] * 2), "got 2 and 1 and 2"),
        (lambda: constructions.eagle_steps(np.zeros((2, 3)), 2), "A is zero in layer 0"),
        (lambda: constructions.eagle_distributed(2, 1, 3, [[1, 2]], [1]), r"\(layers, 3\)"),
    ],
)
def test_input_that_does_not_fit_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()
