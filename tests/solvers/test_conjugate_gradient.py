"""CG, PCG and CGLS: known answers, honest statuses, operators."""

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import prompt, relative_error, with_singular_values
from scipy.sparse.linalg import LinearOperator, aslinearoperator

from linear_icl import solvers
from linear_icl.solvers import Status


def spd(eigenvalues, seed=0):
    rng = np.random.default_rng(seed)
    Q = np.linalg.qr(rng.standard_normal((len(eigenvalues),) * 2))[0]
    S = (Q * eigenvalues) @ Q.T
    return (S + S.T) / 2


def test_a_two_by_two_system_solved_by_hand():
    # 4x + y = 1, x + 3y = 2 → x = 1/11, y = 7/11; two steps suffice.
    result = solvers.conjugate_gradient([[4.0, 1.0], [1.0, 3.0]], [1.0, 2.0])
    np.testing.assert_allclose(result.x, [1 / 11, 7 / 11], rtol=1e-12)
    assert result.iterations <= 2


def test_d_distinct_eigenvalues_need_at_most_d_steps():
    S = spd([1.0, 2.0, 5.0] * 4)
    result = solvers.conjugate_gradient(S, np.ones(12), rtol=1e-10)
    assert result.converged
    assert result.iterations == 3


def test_an_asymmetric_matrix_is_refused_with_its_asymmetry():
    A = np.eye(3)
    A[0, 1] = 1.0
    with pytest.raises(ValueError, match="not symmetric"):
        solvers.conjugate_gradient(A, np.ones(3))


def test_an_asymmetric_operator_is_never_called_converged_with_a_wrong_answer():
    A = np.eye(3)
    A[0, 1] = 1.0
    result = solvers.conjugate_gradient(lambda v: A @ v, np.ones(3))
    assert not result.converged or relative_error(result.x, np.array([0.0, 1, 1])) < 1e-6


@pytest.mark.parametrize("b", [np.zeros(3), np.zeros((3, 2))])
def test_zero_right_hand_sides_give_zero_at_once(b):
    result = solvers.conjugate_gradient(spd([1.0, 2, 3]), b)
    assert result.converged
    assert result.iterations == 0
    assert not result.x.any()


def test_zero_labels_do_not_yield_nan():
    A, B, _ = prompt(4, 6, 10.0)
    for solve in (solvers.cgls, solvers.gradient_descent):
        result = solve(A, 0 * B)
        assert result.converged
        assert result.iterations == 0
        assert not result.W.any()


def test_an_exact_start_stops_before_the_first_step():
    S = spd([1.0, 10.0, 100.0])
    x = np.array([1.0, -2.0, 3.0])
    result = solvers.conjugate_gradient(S, S @ x, x0=x)
    assert result.converged
    assert result.iterations == 0


def test_the_tolerance_is_relative_to_b_and_not_to_the_first_residual():
    S = spd([1.0, 10.0, 100.0])
    b = S @ np.ones(3)
    near = np.ones(3) + 1e-12
    assert solvers.conjugate_gradient(S, b, x0=near, rtol=1e-8).iterations == 0


def test_a_singular_consistent_system_gives_the_least_norm_solution():
    result = solvers.conjugate_gradient(np.diag([1.0, 0.0]), [1.0, 0.0])
    assert result.converged
    np.testing.assert_allclose(result.x, [1.0, 0.0])


def test_a_singular_inconsistent_system_is_not_called_converged():
    result = solvers.conjugate_gradient(np.diag([1.0, 0.0]), [1.0, 1.0])
    assert result.status is Status.NOT_POSITIVE_DEFINITE
    assert np.isfinite(result.x).all()


def test_indefinite_matrices_and_preconditioners_are_recognised():
    b = np.ones(2)
    assert (
        solvers.conjugate_gradient(np.diag([1.0, -3.0]), b).status is Status.NOT_POSITIVE_DEFINITE
    )
    result = solvers.conjugate_gradient(np.diag([1.0, 2.0]), b, M=np.diag([1.0, -1.0]))
    assert result.status is Status.NOT_POSITIVE_DEFINITE


def test_the_reported_residual_is_the_true_one():
    S = spd(np.geomspace(1, 1e-12, 30))
    b = np.random.default_rng(1).standard_normal(30)
    result = solvers.conjugate_gradient(S, b, rtol=1e-13, maxiter=5000)
    true = np.linalg.norm(b - S @ result.x) / np.linalg.norm(b)
    assert result.history[-1] == pytest.approx(true, rel=1e-6)
    assert result.converged == (true <= 1e-13)


def test_the_inverse_as_preconditioner_needs_one_step():
    S = spd(np.geomspace(1, 1e-5, 20))
    b = np.ones(20)
    result = solvers.conjugate_gradient(S, b, M=np.linalg.inv(S), rtol=1e-6)
    assert result.iterations <= 2
    assert result.iterations < solvers.conjugate_gradient(S, b, rtol=1e-6).iterations


@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_array, aslinearoperator])
def test_every_form_of_the_matrix_gives_the_same_answer(wrap):
    S = spd(np.geomspace(1, 100, 10))
    b = np.random.default_rng(0).standard_normal((10, 3))
    expected = np.linalg.solve(S, b)
    for M in (None, wrap(np.diag(1 / np.diag(S)))):
        result = solvers.conjugate_gradient(wrap(S), b, M=M, rtol=1e-12)
        assert result.converged
        np.testing.assert_allclose(result.x, expected, rtol=1e-9)


def test_columns_of_very_different_size_are_each_solved():
    S = spd(np.geomspace(1, 1e3, 8))
    b = np.stack([np.ones(8), 1e-200 * np.ones(8), 1e200 * np.arange(8.0)], axis=-1)
    result = solvers.conjugate_gradient(S, b, rtol=1e-11)
    assert result.converged
    exact = np.linalg.solve(S, b / np.abs(b).max(axis=0))
    np.testing.assert_allclose(result.x / np.abs(b).max(axis=0), exact, rtol=1e-7)


def test_a_batch_is_solved_member_by_member():
    S = np.stack([np.eye(3), spd([1.0, 50.0, 1000.0])])
    b = np.ones((2, 3, 1))
    result = solvers.conjugate_gradient(S, b, rtol=1e-10)
    assert result.converged
    assert list(result.iterations) == [1, 3]
    np.testing.assert_allclose(result.x, np.linalg.solve(S, b), rtol=1e-9)


def test_torch_runs_through_the_same_code():
    S, b = spd([1.0, 2.0, 3.0]), np.ones(3)
    result = solvers.conjugate_gradient(torch.tensor(S), torch.tensor(b))
    assert isinstance(result.x, torch.Tensor)
    np.testing.assert_allclose(result.x.numpy(), np.linalg.solve(S, b), rtol=1e-7)


@pytest.mark.parametrize("wrap", [np.asarray, scipy.sparse.csr_array, aslinearoperator])
@pytest.mark.parametrize("shape", [(8, 20), (20, 8)])
def test_cgls_finds_the_least_norm_least_squares_weights(wrap, shape):
    A, B, _ = prompt(*shape, 50.0, noise=0.5)
    result = solvers.cgls(wrap(A), B, rtol=1e-12)
    assert result.converged
    assert relative_error(result.W, B @ np.linalg.pinv(A)) < 1e-8


def test_cgls_keeps_the_accuracy_that_the_gram_matrix_loses():
    A, B, _ = prompt(20, 30, 1e6, d_out=1)
    exact = B @ np.linalg.pinv(A)
    through_data = solvers.cgls(A, B, rtol=1e-15, maxiter=2000).W
    gram = A @ A.T
    through_gram = solvers.conjugate_gradient(gram, (A @ B.T), rtol=1e-15, maxiter=2000).x.T
    assert relative_error(through_data, exact) < 0.1 * relative_error(through_gram, exact)


@settings(max_examples=25, deadline=None)
@given(
    d=st.integers(0, 6),
    n=st.integers(0, 6),
    exponent=st.integers(-145, 145),
    seed=st.integers(0, 20),
)
def test_cgls_and_descent_survive_any_shape_and_scale(d, n, exponent, seed):
    rng = np.random.default_rng(seed)
    scale = 10.0**exponent
    A, B = rng.standard_normal((d, n)), rng.standard_normal((2, n))
    for solve in (solvers.cgls, solvers.gradient_descent):
        result = solve(scale * A, scale * B, rtol=1e-5, maxiter=20000)
        assert np.isfinite(result.W).all()
        if result.converged and A.size and np.linalg.cond(A) < 20:
            expected = B @ np.linalg.pinv(A)
            np.testing.assert_allclose(result.W, expected, atol=1e-2 * np.abs(expected).max())


def test_shapes_and_kinds_are_checked():
    with pytest.raises(ValueError, match="square"):
        solvers.conjugate_gradient(np.ones((2, 3)), np.ones(2))
    with pytest.raises(ValueError, match="rows"):
        solvers.conjugate_gradient(np.eye(3), np.ones(2))
    with pytest.raises(TypeError, match="callable"):
        solvers.conjugate_gradient("matrix", np.ones(2))
    with pytest.raises(ValueError, match="M must have shape"):
        solvers.conjugate_gradient(np.eye(2), np.ones(2), M=np.eye(3))
    with pytest.raises(ValueError, match="x0"):
        solvers.conjugate_gradient(np.eye(2), np.ones(2), x0=np.ones(3))
    with pytest.raises(ValueError, match="one column an example"):
        solvers.cgls(np.eye(2), np.ones((1, 3)))
    with pytest.raises(ValueError, match="W0"):
        solvers.cgls(np.eye(2), np.ones((1, 2)), W0=np.ones((2, 2)))


@pytest.mark.parametrize(
    ("name", "value", "error", "word"),
    [
        ("A", scipy.sparse.csr_array([[1j, 0], [0, 1]]), TypeError, "complex128"),
        ("A", aslinearoperator(1j * np.eye(2)), TypeError, "complex128"),
        ("A", scipy.sparse.csr_array([[np.nan, 0], [0, 1]]), ValueError, "NaN"),
        ("A", aslinearoperator(np.ones((2, 3))), ValueError, "square"),
        (
            "A",
            LinearOperator((2, 2), matvec=lambda v: np.ones(3), dtype=float),
            ValueError,
            "failed",
        ),
        ("A", lambda v: np.ones(3), ValueError, "(2,)"),
        ("A", lambda v: [1.0, 2.0], TypeError, "list"),
        ("A", lambda v: v + 0j, TypeError, "complex128"),
        ("A", None, TypeError, "NoneType"),
        ("b", None, TypeError, "None"),
        ("M", 1j * np.eye(2), TypeError, "complex128"),
        ("M", np.eye(2, dtype=np.float16), TypeError, "float16"),
        ("M", np.ma.masked_less(np.eye(2), 1), TypeError, "masked"),
        ("M", [[1, 2], [3]], ValueError, "rectangular"),
        ("M", [[np.inf, 0], [0, 1]], ValueError, "infinite"),
        ("M", np.ones((5, 2, 2)), ValueError, "(5, 2, 2)"),
        ("x0", [np.nan, 0], ValueError, "NaN"),
    ],
)
def test_whatever_does_not_fit_is_named(name, value, error, word):
    given = {"A": np.eye(2), "b": np.ones(2)} | {name: value}
    with pytest.raises(error, match=rf"^{name}\b") as caught:
        solvers.conjugate_gradient(given.pop("A"), given.pop("b"), **given)
    assert word in str(caught.value)


def test_scipy_matrices_multiply_neither_tensors_nor_batches():
    S = scipy.sparse.eye_array(2).tocsr()
    with pytest.raises(TypeError, match="b is a torch tensor"):
        solvers.conjugate_gradient(S, torch.ones(2))
    with pytest.raises(ValueError, match=r"b must be .*two-dimensional.*\(3, 2, 1\)"):
        solvers.conjugate_gradient(S, np.ones((3, 2, 1)))
    with pytest.raises(ValueError, match=r"B must be .*two-dimensional.*\(3, 1, 2\)"):
        solvers.cgls(S, np.ones((3, 1, 2)))
    with pytest.raises(ValueError, match="b must have 2 rows"):
        solvers.conjugate_gradient(S, np.ones(3))


@pytest.mark.parametrize("solve", [solvers.conjugate_gradient, solvers.cgls])
def test_an_answer_beyond_the_range_of_the_dtype_is_refused(solve):
    with pytest.raises(ValueError, match="beyond the range of float64"):
        solve(np.array([[1e-9]]), np.array([[1e300]]))


@pytest.mark.parametrize("product", [lambda v: v * 1e-320, lambda v: v * 1e308])
def test_an_iterate_that_overflows_is_not_kept(product):
    result = solvers.conjugate_gradient(product, np.array([1.0, -2.0]))
    assert np.isfinite(result.x).all()


@pytest.mark.parametrize("solve", [solvers.conjugate_gradient, solvers.cgls])
def test_an_operator_that_yields_nan_ends_in_a_breakdown_with_a_finite_answer(solve):
    calls = []

    def product(v):
        calls.append(v)
        return v * (2.0 if len(calls) < 3 else np.nan)

    operator = LinearOperator((2, 2), matvec=product, rmatvec=product, dtype=float)
    result = solve(operator, np.array([1.0, 3.0]), rtol=1e-300)
    assert not result.converged
    assert np.isfinite(result.W if result.x is None else result.x).all()


def test_the_callback_sees_every_iterate_in_the_callers_shape():
    seen = []
    operator = LinearOperator((2, 2), matvec=lambda v: np.array([2.0, 3.0]) * v.ravel())
    result = solvers.conjugate_gradient(operator, [2e10, 3e10], callback=seen.append)
    assert [x.shape for x in seen] == [(2,)] * result.iterations
    np.testing.assert_allclose(seen[-1], [1e10, 1e10])


def test_every_example_counts():
    rng = np.random.default_rng(0)
    A = with_singular_values([1.0, 0.5], 2, 5, rng)
    B = rng.standard_normal((1, 5))
    for column in range(5):
        kept = np.delete(np.arange(5), column)
        whole, less = solvers.cgls(A, B).W, solvers.cgls(A[:, kept], B[:, kept]).W
        assert relative_error(less, whole) > 1e-6


def test_a_zero_right_hand_side_needs_no_step_from_any_start():
    A = [[2.0, 1], [1, 3]]
    for result in (
        solvers.conjugate_gradient(A, np.zeros(2), x0=np.ones(2)),
        solvers.cgls(A, np.zeros(2), W0=np.ones(2)),
    ):
        assert result.converged
        assert result.iterations == 0
        assert not (result.x if result.W is None else result.W).any()
