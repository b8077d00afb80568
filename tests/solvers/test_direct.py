"""Direct solutions against NumPy, by hand, and where they must say no."""

import numpy as np
import pytest
import torch
from matrices import prompt, relative_error

from linear_icl import solvers
from linear_icl.solvers import SolverError, Status


@pytest.mark.parametrize("method", ["qr", "svd", "cholesky"])
def test_every_factorisation_agrees_with_numpy(method):
    A, B, _ = prompt(7, 20, 30.0, noise=0.4)
    W = solvers.least_squares(A, B, method=method).W
    expected = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T
    np.testing.assert_allclose(W, expected, rtol=1e-10)


def test_the_rank_is_decided_and_reported():
    A = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    result = solvers.least_squares(A, A, method="svd")
    assert result.rank == 2
    # A A⁺ is the projector on the range; by hand its first row is (5, 2, −1)/6.
    np.testing.assert_allclose(result.W[0], [5 / 6, 2 / 6, -1 / 6], atol=1e-12)
    eagle = solvers.eagle(A, A)
    assert eagle.rank == 2
    np.testing.assert_allclose(eagle.W[0], [5 / 6, 2 / 6, -1 / 6], atol=1e-10)


def test_a_small_singular_value_that_is_round_off_is_cut():
    M = np.array([[0, 1, 0, 1, 2, 0], [0, 2, 0, 0, 1, 0], [1, 0, 1, 0, 0, 4], [0, 0, 0, 2, 3, 0]])
    # x Mᵀᵀ = e₁: the least-norm x of Mᵀx = e₁ is (0, 0, 1/18, 0).
    e1 = np.zeros(6)
    e1[0] = 1.0
    for result in (solvers.least_squares(M, e1, method="svd"), solvers.eagle(M, e1)):
        assert result.rank == 3
        np.testing.assert_allclose(result.W, [0, 0, 1 / 18, 0], atol=1e-12)


def test_duplicate_landmarks_give_the_pseudoinverse_result():
    rng = np.random.default_rng(0)
    points = rng.standard_normal((6, 2))
    kernel = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1))
    landmarks = [0, 0, 1]
    A, B, C = kernel[np.ix_(landmarks, landmarks)], kernel[:, landmarks], kernel[landmarks]
    expected = B @ np.linalg.pinv(A, rcond=1e-12) @ C
    np.testing.assert_allclose(solvers.nystrom(A, B, C).D, expected, atol=1e-10)
    np.testing.assert_allclose(solvers.eagle(A, B, C).D, expected, atol=1e-10)


def test_factorisations_that_need_full_rank_say_so():
    A, B, _ = prompt(6, 9, 10.0, rank=4)
    qr = solvers.least_squares(A, B, method="qr")
    assert qr.status is Status.BREAKDOWN
    assert "svd" in qr.message
    assert solvers.least_squares(A[:, :3], B[:, :3]).status is Status.BREAKDOWN
    singular = np.diag([1.0, 0.0])
    chol = solvers.least_squares(singular, [[1.0, 0.0]], method="cholesky")
    assert chol.status is Status.NOT_POSITIVE_DEFINITE
    with pytest.raises(SolverError, match="positive definite"):
        solvers.least_squares(singular, [[1.0, 0.0]], method="cholesky", raise_on_failure=True)


def test_one_bad_member_does_not_spoil_its_batch():
    A = np.stack([np.diag([1.0, 0.0]), np.diag([2.0, 4.0])])
    B = np.array([[2.0, 4.0]])
    for method in ("qr", "cholesky"):
        result = solvers.least_squares(A, B, method=method)
        assert [s is Status.CONVERGED for s in result.statuses] == [False, True]
        np.testing.assert_allclose(result.W[1], [[1.0, 1.0]])
        assert np.isfinite(result.W).all()


def test_half_precision_is_refused_with_the_reason():
    gram = np.array([[1, 1.0005], [1.0005, 1.00101]], dtype=np.float16)
    with pytest.raises(TypeError, match=r"float16.*float32"):
        solvers.least_squares(gram, np.ones(2, dtype=np.float16))
    with pytest.raises(TypeError, match="bfloat16"):
        solvers.eagle(torch.eye(2, dtype=torch.bfloat16), torch.ones(1, 2))


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (np.ma.masked_array(np.eye(2)), TypeError, "masked"),
        (np.eye(2) * 1j, TypeError, "complex"),
        (np.array([["a", "b"]]), TypeError, "dtype"),
        (np.array([[None, 1.0]]), TypeError, "dtype object"),
        ([[1.0, 2.0], [3.0]], ValueError, "rectangular"),
        (np.array([[np.inf, 1.0]]), ValueError, "NaN or infinite"),
    ],
)
def test_unusable_arrays_are_refused(bad, error, message):
    with pytest.raises(error, match=message):
        solvers.least_squares(bad, np.ones(2))


def test_sparse_input_is_refused_with_a_pointer():
    import scipy.sparse

    with pytest.raises(TypeError, match="cgls"):
        solvers.eagle(scipy.sparse.eye_array(3), np.ones((1, 3)))


def test_numpy_and_torch_are_not_mixed():
    with pytest.raises(TypeError, match="torch"):
        solvers.eagle(torch.eye(2), np.ones((1, 2)))


def test_a_missing_block_is_named():
    for blocks, name in (((None, [1]), "A"), (([[1]], None), "B"), (([[1]], [[1]], None), "C")):
        solve = solvers.nystrom if len(blocks) == 3 else solvers.least_squares
        with pytest.raises(TypeError, match=f"^{name} is None"):
            solve(*blocks)


def test_a_numpy_matrix_is_taken_as_an_array():
    A = np.array([[2.0, 1.0], [0.0, 1.0]])
    W = solvers.least_squares(A.view(np.matrix), np.ones((1, 2)).view(np.matrix)).W
    assert type(W) is np.ndarray
    np.testing.assert_allclose(W @ A, np.ones((1, 2)))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("maxiter", "x"),
        ("maxiter", float("nan")),
        ("maxiter", float("inf")),
        ("maxiter", [1]),
        ("maxiter", 2.5),
        ("maxiter", True),
        ("rcond", "x"),
        ("rcond", [0.1]),
        ("rcond", torch.tensor(0.1)),
        ("rtol", 10**400),
        ("rtol", torch.tensor(0.1)),
        ("gamma", np.array([1.0, 2.0])),
        ("callback", 3),
    ],
)
def test_options_of_a_wrong_kind_are_named(option, value):
    with pytest.raises((TypeError, ValueError), match=f"^{option} must"):
        solvers.gd_plus_plus([[1.0]], [[1.0]], **{option: value})


def test_integers_are_promoted_and_lists_join_a_tensor():
    assert solvers.nystrom([[2, 0], [0, 1]], [[2, 1]], [[1], [1]]).D.dtype == np.float64
    result = solvers.nystrom(torch.eye(2, dtype=torch.float64), [[2.0, 1.0]], [[1.0], [1.0]])
    assert result.D.item() == pytest.approx(3.0)


def test_batches_broadcast_and_empty_ones_are_fine():
    A, B, C = prompt(4, 6, 5.0)
    many = np.stack([A, 2 * A, 3 * A])
    D = solvers.nystrom(many, B, C).D
    np.testing.assert_allclose(D * np.array([1, 2, 3])[:, None, None], np.stack([D[0]] * 3))
    assert solvers.nystrom(many[:0], B, C).D.shape == (0, 2, 3)
    with pytest.raises(ValueError, match="broadcast"):
        solvers.nystrom(many, np.stack([B, B]), C)


def test_the_gram_matrix_loses_the_digits_that_qr_keeps():
    A, B, _ = prompt(12, 40, 1e6)
    exact = B @ np.linalg.pinv(A)
    errors = {
        m: relative_error(solvers.least_squares(A, B, method=m).W, exact)
        for m in ("qr", "cholesky")
    }
    assert errors["qr"] < 1e-3 * errors["cholesky"]


@pytest.mark.parametrize("method", ["qr", "cholesky"])
@pytest.mark.parametrize(("d", "n", "rank"), [(2, 2, 1), (3, 5, 2), (20, 40, 19)])
def test_round_off_does_not_pass_for_a_rank(method, d, n, rank):
    rng = np.random.default_rng(0)
    A = rng.standard_normal((200, d, rank)) @ rng.standard_normal((200, rank, n))
    result = solvers.least_squares(A, rng.standard_normal((200, 1, n)), method=method)
    assert all(status is not Status.CONVERGED for status in result.statuses)
    assert not result.W.any()


def test_the_diagonal_of_r_does_not_hide_a_vanishing_singular_value():
    # Kahan's matrix: all diagonal entries above 1e-3, σ_min below 1e-16 of σ_max.
    d, c = 90, 0.4
    sine = np.sqrt(1 - c * c)
    R = sine ** np.arange(d)[:, None] * (np.eye(d) - c * np.triu(np.ones((d, d)), 1))
    assert np.diag(R).min() > 1e-4
    assert np.linalg.svd(R, compute_uv=False)[-1] < 1e-14
    assert not solvers.least_squares(R.T, np.ones(d)).converged
