"""EAGLE's Gram form and its minimax schedule."""

import numpy as np
import pytest
import torch
from matrices import prompt, relative_error

from linear_icl import solvers
from linear_icl.solvers import Status


@pytest.mark.parametrize("kappa", [1.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("schedule", ["newton-schulz", "minimax"])
def test_refinement_brings_back_the_digits_of_the_data(kappa, noise, schedule):
    A, B, C = prompt(8, 200, kappa, noise=noise)
    W = B @ np.linalg.pinv(A)
    result = solvers.eagle(A, B, form="gram", schedule=schedule, rtol=1e-12)
    tolerance = 1e-13 * kappa + 1e-11
    assert relative_error(result.W, W) < tolerance
    assert relative_error(solvers.eagle(A, B, C, form="gram").D, W @ C) < tolerance + 1e-10


def test_without_refinement_the_condition_number_counts_twice():
    A, B, _ = prompt(8, 200, 1e5)
    W = B @ np.linalg.pinv(A)
    refined = relative_error(solvers.eagle(A, B, form="gram").W, W)
    plain = relative_error(solvers.eagle(A, B, form="gram", refine=False).W, W)
    assert refined < 1e-2 * plain


def test_auto_takes_the_gram_form_for_tall_data_only_and_falls_back():
    tall, square = prompt(5, 100, 10.0), prompt(9, 9, 10.0)
    passes = solvers.eagle(*tall).history
    assert len(passes) < solvers.eagle(*tall, form="data").history.size
    np.testing.assert_array_equal(
        solvers.eagle(*square).history, solvers.eagle(*square, form="data").history
    )
    deficient = prompt(5, 100, 10.0, rank=3, noise=0.1)
    result = solvers.eagle(*deficient)
    assert result.converged
    assert result.rank == 3
    hard = prompt(5, 100, 1e9)
    assert solvers.eagle(*hard, rtol=1e-4).converged


def test_a_gram_matrix_that_cannot_be_inverted_is_reported():
    A, B, _ = prompt(5, 100, 10.0, rank=3)
    result = solvers.eagle(A, B, form="gram")
    assert result.status is Status.BREAKDOWN
    assert "data" in result.message
    assert not result.W.any()


@pytest.mark.parametrize("scale", [1e-140, 1.0, 1e140])
def test_scale_batches_and_kinds_keep_their_promises(scale):
    members = [prompt(4, 60, kappa, noise=0.1, seed=seed) for seed, kappa in enumerate((5, 1e4))]
    A, B, C = (np.stack(blocks) for blocks in zip(*members, strict=True))
    result = solvers.eagle(scale * A, B, C, form="gram")
    expected = B @ np.linalg.pinv(A) @ C
    np.testing.assert_allclose(result.D * scale, expected, atol=1e-8 * np.abs(expected).max())
    assert result.iterations[1] > result.iterations[0]
    tensors = solvers.eagle(*(torch.tensor(a) for a in (A, B, C)), form="gram")
    assert isinstance(tensors.D, torch.Tensor)
    np.testing.assert_allclose(tensors.D.numpy(), expected, atol=1e-8 * np.abs(expected).max())
    vector = solvers.eagle(A[0], B[0, 0], C[0, :, 0], form="gram")
    assert float(vector.D) == pytest.approx(expected[0, 0, 0])


def test_single_precision_is_summed_in_double():
    A, B, _ = prompt(6, 300, 1e3)
    exact = B.astype(np.float32).astype(float) @ np.linalg.pinv(A.astype(np.float32).astype(float))
    W = solvers.eagle(A.astype(np.float32), B.astype(np.float32), form="gram").W
    assert W.dtype == np.float32
    assert relative_error(W, exact) < 3e-7


def test_a_memory_mapped_file_is_read_in_blocks(tmp_path):
    A, B, _ = prompt(5, 4000, 50.0, noise=0.1)
    np.save(tmp_path / "A.npy", A)
    mapped = np.load(tmp_path / "A.npy", mmap_mode="r")
    result = solvers.eagle(mapped, B)
    assert relative_error(result.W, B @ np.linalg.pinv(A)) < 1e-9


@pytest.mark.parametrize("name", ["A", "B"])
def test_non_finite_entries_are_found_on_the_way(name):
    blocks = dict(zip("AB", prompt(3, 50, 2.0)[:2], strict=True))
    blocks[name][0, 17] = np.inf
    with pytest.raises(ValueError, match=rf"{name} .*NaN or infinite"):
        solvers.eagle(**blocks, form="gram")


def test_a_query_of_another_kind_is_named():
    with pytest.raises(TypeError, match="A is a NumPy array but C is a torch tensor"):
        solvers.eagle(np.eye(2), np.eye(2), torch.eye(2, dtype=torch.float64), form="gram")


def test_options_that_do_not_go_together_are_refused():
    A, B, _ = prompt(3, 50, 2.0)
    with pytest.raises(ValueError, match="callback"):
        solvers.eagle(A, B, form="gram", callback=print)
    with pytest.raises(ValueError, match="eta"):
        solvers.eagle(A, B, schedule="minimax", eta=0.2)
    with pytest.raises(ValueError, match="schedule"):
        solvers.eagle(A, B, schedule="fast")
    with pytest.raises(ValueError, match="rcond"):
        solvers.eagle(A, B, form="gram", rcond=1e-3)


@pytest.mark.parametrize("kappa", [1e2, 1e3, 1e4, 1e5, 1e6, 1e8])
def test_minimax_needs_at_most_six_tenths_of_newton_schulz(kappa):
    A, B, _ = prompt(40, 40, kappa)
    C = A @ np.ones((40, 1))
    plain = solvers.eagle(A, B, C, rtol=1e-6)
    fast = solvers.eagle(A, B, C, rtol=1e-6, schedule="minimax")
    assert fast.converged
    assert fast.iterations <= 0.6 * plain.iterations
    assert relative_error(fast.D, B @ np.ones((40, 1))) < 1e-6


def test_minimax_survives_rank_deficiency():
    A, B, C = prompt(24, 24, 1e4, rank=12, noise=0.1)
    expected = B @ np.linalg.pinv(A, rcond=1e-12) @ C
    result = solvers.eagle(A, B, C, schedule="minimax", rcond=1e-12)
    assert result.converged
    assert relative_error(result.D, expected) < 1e-9


def test_a_batch_of_queries_alone_makes_a_batch_of_predictions():
    rng = np.random.default_rng(0)
    A, B, C = (
        rng.standard_normal((3, 40)),
        rng.standard_normal((2, 40)),
        rng.standard_normal((5, 3, 1)),
    )
    result = solvers.eagle(A, B, C, form="gram")
    assert result.statuses.shape == (5,)
    np.testing.assert_allclose(result.D, B @ np.linalg.pinv(A) @ C, atol=1e-12)
    with pytest.raises(ValueError, match="C"):
        solvers.eagle(np.stack([A] * 4), np.stack([B] * 4), C, form="gram")
