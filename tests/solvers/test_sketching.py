"""Sketched EAGLE and SGD: the printed update, honest endings, and what sketches must be."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import prompt, relative_error

from linear_icl import solvers
from linear_icl.solvers import SolverError, Status, sketching
from linear_icl.transformers import attention, constructions, training, unrolling

KINDS = [sketching.columns, sketching.haar]


def first(sketch, n, layers):
    """S₁, …, S_L."""
    matrices = sketch.matrices(n)
    return [next(matrices) for _ in range(layers)]


# Sketches.


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(KINDS))
def test_columns_are_orthonormal_and_seeds_repeat_and_layers_differ(n, seed, kind):
    for r in {1, (n + 1) // 2, n}:
        draws = first(kind(r, rng=seed), n, 3)
        for S in draws:
            assert S.shape == (n, r)
            np.testing.assert_allclose(S.T @ S, np.eye(r), atol=1e-12)
        np.testing.assert_array_equal(draws, first(kind(r, rng=seed), n, 3))
        if n > 8 and r > 2:
            assert not np.array_equal(draws[0], draws[1])


def test_a_generator_goes_on_where_a_seed_starts_again():
    sketch = sketching.haar(2, rng=np.random.default_rng(5))
    once, again = first(sketch, 4, 1), first(sketch, 4, 1)
    assert not np.allclose(once, again)


def test_columns_sample_every_example_equally_often():
    total = sum(first(sketching.columns(3, rng=0), 12, 4000)).sum(axis=1)
    np.testing.assert_allclose(total / 4000, 3 / 12, atol=0.03)


def test_haar_sketches_have_the_moments_of_haar():
    # E SSᵀ = r/n I, E S = 0, and E S₁₁² = 1/n; without the signs E S₁₁ would not vanish.
    draws = np.array(first(sketching.haar(2, rng=1), 5, 8000))
    np.testing.assert_allclose((draws @ draws.mT).mean(axis=0), 2 / 5 * np.eye(5), atol=0.02)
    np.testing.assert_allclose(draws.mean(axis=0), 0, atol=0.02)
    np.testing.assert_allclose((draws**2).mean(axis=0), 1 / 5, atol=0.02)


# The update.


def test_one_sketched_layer_by_hand():
    # A = diag(2, 1), S = e₁: Ã = (2, 0)ᵀ, ρ = 1/4, so D = B̃Ã₁/4 = 1 and W = (1, 0).
    A, B, S = np.diag([2.0, 1.0]), [[2.0, 1.0]], [[[1.0], [0.0]]]
    seen = []
    solvers.eagle(A, B, [[1.0], [1.0]], sketch=S, maxiter=1, callback=seen.append)
    np.testing.assert_allclose(seen, [[[1.0]]])
    np.testing.assert_allclose(solvers.eagle(A, B, sketch=S, maxiter=1).W, [[1.0, 0.0]])
    found = solvers.stochastic_gradient_descent(A, B, sketch=S, step=0.5, maxiter=1)
    np.testing.assert_allclose(found.W, [[0.5, 0.0]])
    assert found.status is Status.MAXITER


@pytest.mark.parametrize("shape", [(7, 7), (5, 9), (9, 5)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("constants", [(1 / 3, 1.0), (0.29, 0.54)])
def test_the_solver_runs_the_printed_update_with_the_same_sketches(shape, kind, constants):
    A, B, C = prompt(*shape, 20.0, noise=0.2)
    eta, gamma = constants
    sketch, seen = kind(3, rng=4), []
    solvers.eagle(A, B, C, sketch=sketch, eta=eta, gamma=gamma, maxiter=12, callback=seen.append)
    D = np.zeros((2, 3))
    for found, S in zip(seen, first(sketch, shape[1], 12), strict=True):
        A, B, C, D = solvers.eagle_update(A, B, C, D, S, eta=eta, gamma=gamma)
        np.testing.assert_allclose(found, D, atol=1e-10 * np.abs(D).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["prediction", "estimation"])
def test_a_sketch_of_all_examples_changes_nothing(kind, form):
    A, B, C = prompt(8, 12, 100.0, noise=0.1)
    query = C if form == "prediction" else None
    plain, sketched = [], []
    solvers.eagle(A, B, query, form="data", callback=plain.append, maxiter=12)
    solvers.eagle(A, B, query, sketch=kind(12), callback=sketched.append, maxiter=12)
    np.testing.assert_allclose(sketched, plain, atol=1e-10 * np.abs(plain).max())


def test_stochastic_gradient_descent_is_the_textbook_step():
    A, B, _ = prompt(6, 10, 5.0, noise=0.3)
    sketch, seen = sketching.columns(4, rng=2), []
    solvers.stochastic_gradient_descent(
        A, B, sketch=sketch, step=0.7, maxiter=9, callback=seen.append, W0=np.ones((2, 6))
    )
    W = np.ones((2, 6))
    for found, S in zip(seen, first(sketch, 10, 9), strict=True):
        As, Bs = A @ S, B @ S
        W = W + 0.7 / np.linalg.norm(As, 2) ** 2 * (Bs - W @ As) @ As.T
        np.testing.assert_allclose(found, W, atol=1e-12)


def test_with_all_examples_it_is_gradient_descent():
    A, B, _ = prompt(6, 10, 5.0)
    plain, sketched = [], []
    solvers.gradient_descent(A, B, maxiter=20, callback=plain.append)
    solvers.stochastic_gradient_descent(
        A, B, sketch=sketching.haar(10), maxiter=20, callback=sketched.append
    )
    np.testing.assert_allclose(sketched, plain, atol=1e-12)


def test_attention_with_the_same_sketches_predicts_the_same():
    A, B, C = prompt(6, 8, 10.0)
    sketches = first(sketching.haar(3, rng=1), 8, 6)
    seen = []
    solvers.eagle(A, B, C, sketch=sketches, maxiter=6, callback=seen.append)
    steps = constructions.eagle_steps(A, 6, sketches=sketches)
    states = attention.row_stack(A, B, C, constructions.eagle(8, 3, *steps, sketches))
    for state, D in zip(states[1:], seen, strict=True):
        np.testing.assert_allclose(attention.read_out(state), D, atol=1e-10 * np.abs(D).max())


def test_learned_sketches_are_used_in_turn():
    model, _ = training.shipped("rank_limited-seed0")
    learned = unrolling.sketches(model)
    A, B, C = prompt(18, 18, 5.0)
    seen = []
    solvers.eagle(A, B, C, sketch=learned, maxiter=6, callback=seen.append)
    D = np.zeros((2, 3))
    for layer, found in enumerate(seen):
        A, B, C, D = solvers.eagle_update(A, B, C, D, learned[layer % 4])
        np.testing.assert_allclose(found, D, atol=1e-10 * np.abs(D).max())
    plain = training.shipped("unconstrained-seed0")[0]
    with pytest.raises(ValueError, match="rank-limited"):
        unrolling.sketches(plain)


# How it ends.


@pytest.mark.parametrize("shape", [(12, 12), (8, 24), (24, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_consistent_labels_lead_to_the_pseudoinverse(shape, kind):
    A, B, C = prompt(*shape, 20.0)
    W, sketch = B @ np.linalg.pinv(A), kind(shape[1] // 2, rng=1)
    result = solvers.eagle(A, B, C, sketch=sketch)
    assert result.converged
    assert result.history[-1] <= 1e-8 < result.history[-2]
    assert relative_error(result.D, W @ C) < 1e-6
    weights = solvers.eagle(A, B, sketch=sketch)
    assert weights.converged
    assert relative_error(weights.W, W) < 1e-6
    descended = solvers.stochastic_gradient_descent(A, B, sketch=sketch, rtol=1e-3)
    assert descended.converged
    assert relative_error(descended.W @ A, B) < 2e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_deficient_prompt_is_told_so_and_solved(kind):
    A, B, C = prompt(24, 24, 10.0, rank=12)
    W = B @ np.linalg.pinv(A, rcond=1e-13)
    result = solvers.eagle(A, B, C, sketch=kind(8, rng=3))
    assert result.converged
    assert result.rank == 12
    assert relative_error(result.D, W @ C) < 1e-6
    assert relative_error(solvers.eagle(A, B, sketch=kind(8, rng=3)).W, W) < 1e-6


@pytest.mark.parametrize("noise", [1e-6, 1e-2, 1.0])
@pytest.mark.parametrize("rank", [None, 8])
@pytest.mark.parametrize("form", ["prediction", "estimation", "sgd"])
def test_labels_that_no_weights_reproduce_are_never_called_solved(noise, rank, form):
    A, B, C = prompt(12, 36, 5.0, rank=rank, noise=noise)
    sketch = sketching.columns(9, rng=0)
    if form == "sgd":
        result = solvers.stochastic_gradient_descent(A, B, sketch=sketch, maxiter=20_000)
    else:
        result = solvers.eagle(A, B, C if form == "prediction" else None, sketch=sketch)
    assert result.status in (Status.STAGNATED, Status.MAXITER)
    answer = result.W if result.D is None else result.D
    assert np.isfinite(answer).all()
    # The floor is in proportion to the noise, and what is returned is not far above it.
    expected = B @ np.linalg.pinv(A, rcond=1e-12)
    expected = expected if result.D is None else expected @ C
    assert relative_error(answer, expected) < max(30 * noise, 1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_even_a_single_column_a_layer_does_not_hide_the_noise(kind):
    A, B, C = prompt(3, 12, 1.5, noise=1e-3)
    assert not solvers.eagle(A, B, C, sketch=kind(1, rng=0)).converged


def test_noise_is_no_obstacle_where_the_examples_do_not_outnumber_the_features():
    A, B, C = prompt(12, 12, 5.0, noise=0.5)
    result = solvers.eagle(A, B, C, sketch=sketching.columns(4, rng=0))
    assert result.converged
    assert relative_error(result.D, B @ np.linalg.inv(A) @ C) < 1e-6


@settings(max_examples=25, deadline=None)
@given(
    d=st.integers(1, 6),
    n=st.integers(1, 8),
    seed=st.integers(0, 10**6),
    noise=st.sampled_from([0.0, 1e-5, 0.1]),
    kind=st.sampled_from(KINDS),
    query=st.booleans(),
)
def test_whatever_is_called_converged_is_the_least_squares_answer(d, n, seed, noise, kind, query):
    rng = np.random.default_rng(seed)
    A, C = rng.standard_normal((d, n)), rng.standard_normal((d, 2))
    B = rng.standard_normal((2, d)) @ A + noise * rng.standard_normal((2, n))
    sketch = kind(1 + seed % n, rng=seed)
    result = solvers.eagle(A, B, C if query else None, sketch=sketch, maxiter=3000)
    if result.converged:
        W = B @ np.linalg.pinv(A)
        found, expected = (result.D, W @ C) if query else (result.W, W)
        size = np.linalg.norm(W) * (np.linalg.norm(C) if query else 1.0)
        assert np.linalg.norm(found - expected) <= 1e-7 * np.linalg.cond(A) * size


def test_steps_that_are_too_long_and_too_few_say_so():
    A, B, C = prompt(10, 10, 5.0)
    sketch = sketching.columns(5, rng=0)
    result = solvers.eagle(A, B, C, sketch=sketch, gamma=40.0)
    assert result.status is Status.BREAKDOWN
    assert np.isfinite(result.D).all()
    result = solvers.stochastic_gradient_descent(A, B, sketch=sketch, step=40.0)
    assert result.status is Status.BREAKDOWN
    assert np.isfinite(result.W).all()
    with pytest.raises(SolverError, match="limit"):
        solvers.eagle(A, B, C, sketch=sketch, maxiter=3, raise_on_failure=True)


@pytest.mark.parametrize("which", ["A", "B", "C"])
def test_a_zero_block_is_answered_at_once_without_nan(which):
    blocks = dict(zip("ABC", prompt(4, 5, 3.0), strict=True))
    blocks[which] = np.zeros_like(blocks[which])
    result = solvers.eagle(**blocks, sketch=sketching.columns(2))
    assert result.converged
    assert result.iterations == 0
    assert not result.D.any()
    if which != "C":
        A, B = blocks["A"], blocks["B"]
        for found in (
            solvers.eagle(A, B, sketch=sketching.columns(2)),
            solvers.stochastic_gradient_descent(A, B, sketch=sketching.columns(2)),
        ):
            assert found.converged
            assert not found.W.any()


def test_singular_consistent_and_zero_columns_are_solved():
    A, B = np.diag([1.0, 0.0]), [[1.0, 0.0]]
    sketch = sketching.columns(1, rng=0)
    for result in (
        solvers.eagle(A, B, sketch=sketch),
        solvers.stochastic_gradient_descent(A, B, sketch=sketch),
    ):
        assert result.converged
        np.testing.assert_allclose(result.W, [[1.0, 0.0]])
    result = solvers.eagle(A, B, [[1.0], [1.0]], sketch=sketch)
    assert result.converged
    np.testing.assert_allclose(result.D, [[1.0]])


def test_each_member_of_a_batch_has_its_own_scale_and_all_see_the_same_sketches():
    A = np.stack([np.eye(2), 1000 * np.eye(2)])
    sketch = sketching.columns(1, rng=0)
    W = solvers.eagle(A, np.array([[1.0, 2.0]]), sketch=sketch).W
    np.testing.assert_allclose(W, [[[1.0, 2.0]], [[1e-3, 2e-3]]], rtol=1e-7)
    hard, easy = prompt(12, 12, 1e2), prompt(12, 12, 3.0, rank=6, seed=1)
    blocks = [np.stack(pair) for pair in zip(hard, easy, strict=True)]
    sketch = sketching.haar(4, rng=0)
    together = solvers.eagle(*blocks, sketch=sketch)
    assert together.converged
    for k, alone in enumerate((hard, easy)):
        result = solvers.eagle(*alone, sketch=sketch)
        assert together.iterations[k] == result.iterations
        np.testing.assert_allclose(together.D[k], result.D, rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-150, 2.0**-300, 1e150])
@pytest.mark.parametrize("kind", KINDS)
def test_scaling_the_data_changes_nothing_but_the_scale(scale, kind):
    A, B, C = prompt(6, 8, 10.0)
    sketch = kind(4, rng=0)
    base = solvers.eagle(A, B, C, sketch=sketch)
    scaled = solvers.eagle(scale * A, B, C, sketch=sketch)
    assert scaled.status is base.status is Status.CONVERGED
    np.testing.assert_allclose(scaled.D * scale, base.D, rtol=1e-7)
    both = solvers.eagle(scale * A, scale * B, C, sketch=sketch)
    np.testing.assert_allclose(both.D, base.D, rtol=1e-7)
    assert both.iterations == base.iterations
    W = solvers.stochastic_gradient_descent(A, B, sketch=sketch).W
    scaled = solvers.stochastic_gradient_descent(scale * A, scale * B, sketch=sketch)
    np.testing.assert_allclose(scaled.W, W, rtol=1e-7)


def test_one_dimensional_labels_and_queries_lose_their_axis():
    A, sketch = np.diag([2.0, 1.0]), sketching.columns(1, rng=0)
    assert solvers.eagle(A, [2.0, 1.0], sketch=sketch).W.shape == (2,)
    assert float(solvers.eagle(A, [2.0, 1.0], [1.0, 1.0], sketch=sketch).D) == pytest.approx(2.0)
    found = solvers.stochastic_gradient_descent(A, [2.0, 1.0], sketch=sketch, atol=1e-3, rtol=0)
    assert np.abs(found.W @ A - [2.0, 1.0]).max() <= 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_and_numpy_agree_and_inputs_are_left_untouched(kind, dtype):
    blocks = prompt(5, 7, 5.0)
    A, B, C = (torch.tensor(block, dtype=dtype) for block in blocks)
    copies = [block.clone() for block in (A, B, C)]
    sketch, rtol = kind(3, rng=0), 1e-4
    result = solvers.eagle(A, B, C, sketch=sketch, rtol=rtol)
    assert result.converged
    assert result.D.dtype == dtype
    expected = solvers.eagle(*blocks, sketch=sketch, rtol=rtol).D
    np.testing.assert_allclose(result.D.numpy(), expected, atol=1e-3)
    solvers.stochastic_gradient_descent(A, B, sketch=sketch, rtol=rtol)
    for block, copy in zip((A, B, C), copies, strict=True):
        assert torch.equal(block, copy)
    for block in blocks:
        block.flags.writeable = False
    solvers.eagle(*blocks, sketch=sketch, rtol=rtol)


def test_gradients_flow_through_sketched_layers():
    A, B, C = (torch.tensor(block, requires_grad=True) for block in prompt(5, 7, 5.0))
    sketch = sketching.columns(3, rng=0)
    D = solvers.eagle(A, B, C, sketch=sketch, rtol=1e-12).D
    found = torch.autograd.grad(D.sum(), (B, C))
    exact = torch.autograd.grad((B @ torch.linalg.pinv(A) @ C).sum(), (B, C))
    W = (B @ torch.linalg.pinv(A)).detach()
    # D = BY with AY = C, and of all such Y the iteration has found one.
    np.testing.assert_allclose(
        (found[0] @ A.mT).detach(), (C.sum(1)[None] + 0 * W).detach(), atol=1e-8
    )
    np.testing.assert_allclose(found[1], exact[1], atol=1e-8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sketch": sketching.columns(3)}, "rank 3 is more than the 2 examples"),
        ({"sketch": "columns"}, "sketching.columns"),
        ({"sketch": []}, "sketching.columns"),
        ({"sketch": [np.eye(3)]}, r"sketch\[0\] must have shape \(2, r\)"),
        ({"sketch": [np.ones((2, 1))]}, "orthonormal"),
        ({"form": "gram"}, "sketch needs form='data'"),
        ({"schedule": "minimax"}, "sketch needs"),
        ({"atol": 1.0}, "atol"),
        ({"rcond": 0.1}, "rcond"),
        ({"rtol": -1.0}, "rtol"),
    ],
)
def test_bad_values_are_named(changes, message):
    arguments = {"A": np.eye(2), "B": np.ones((1, 2)), "C": np.ones((2, 1))}
    arguments |= {"sketch": sketching.columns(1)} | changes
    with pytest.raises(ValueError, match=message):
        solvers.eagle(**arguments)


def test_a_rank_and_a_step_must_be_positive():
    for rank in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="rank"):
            sketching.haar(rank)
    with pytest.raises(ValueError, match="step"):
        solvers.stochastic_gradient_descent(
            np.eye(2), np.ones(2), sketch=sketching.columns(1), step=0.0
        )
