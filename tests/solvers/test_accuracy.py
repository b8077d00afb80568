"""Correct digits against certified or exactly known answers, beside LAPACK's."""

import math

import mpmath
import numpy as np
import pytest
import scipy.linalg
import statsmodels.datasets.longley
from sklearn.linear_model import LinearRegression

from linear_icl import solvers
from linear_icl.estimators import EagleRegressor

# Where long double is no longer than double, refinement gains less.
EXTENDED = np.finfo(np.longdouble).eps < 1e-18


def digits(found, exact):
    """Log relative error of the worst coefficient, NIST's measure, at most 16."""
    worst = max(abs(a - b) / abs(b) for a, b in zip(found, exact, strict=True))
    return min(16.0, -math.log10(max(worst, 1e-16)))


def in_high_precision(A, b):
    """The exact least-squares solution of the numbers as stored, rounded once."""
    with mpmath.workdps(80):
        M, y = mpmath.matrix(A.tolist()), mpmath.matrix(b.tolist())
        return np.array([float(w) for w in mpmath.lu_solve(M * M.T, M * y)])


def wampler(weights, residual):
    """x = 0…20, degree 5. (−1)^x binom(20, x) is orthogonal to polynomials of degree < 20."""
    x = np.arange(21.0)
    A = np.stack([x**power for power in range(6)])
    zigzag = np.array([(-1.0) ** k * math.comb(20, k) for k in range(21)])
    return A, sum(w * row for w, row in zip(weights, A, strict=True)) + residual * zigzag, weights


def longley():
    data = statsmodels.datasets.longley.load_pandas()
    A = np.vstack([np.ones(16), data.exog.to_numpy().T])
    b = data.endog.to_numpy(dtype=float)
    return A, b, in_high_precision(A, b)


def hilbert(d, n):
    A = np.array([[1 / (i + j + 1) for j in range(n)] for i in range(d)])
    b = np.cos(np.arange(n))
    return A, b, in_high_precision(A, b)


def vandermonde(d, n):
    A = np.stack([np.linspace(0.1, 1, n) ** power for power in range(d)])
    b = np.sin(3 * np.linspace(0.1, 1, n))
    return A, b, in_high_precision(A, b)


PROBLEMS = {
    "Wampler 1": lambda: wampler([1.0] * 6, 0.0),
    "Wampler 2": lambda: wampler([0.1**power for power in range(6)], 0.0),
    "Wampler 3": lambda: wampler([1.0] * 6, 0.01),
    "Wampler 4": lambda: wampler([1.0] * 6, 1.0),
    "Wampler 5": lambda: wampler([1.0] * 6, 100.0),
    "Longley": longley,
    "Hilbert 6": lambda: hilbert(6, 6),
    "Hilbert 8": lambda: hilbert(8, 8),
    "Hilbert 10": lambda: hilbert(10, 10),
    "Hilbert 6 x 20": lambda: hilbert(6, 20),
    "Vandermonde 8": lambda: vandermonde(8, 8),
    "Vandermonde 8 x 30": lambda: vandermonde(8, 30),
    "Vandermonde 11 x 40": lambda: vandermonde(11, 40),
}


def with_intercept(model, A, b):
    """The coefficients when the constant is the model's intercept: the features get centred."""
    model.fit(A[1:].T, b)
    return np.r_[model.intercept_, model.coef_]


def lapack_digits(A, b, exact):
    """The best that NumPy and SciPy reach on the same numbers."""
    found = [np.linalg.lstsq(A.T, b, rcond=None)[0], scipy.linalg.lstsq(A.T, b)[0]]
    return max(digits(w, exact) for w in found)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("schedule", ["newton-schulz", "minimax"])
def test_eagle_has_at_least_the_digits_of_lapack(name, schedule):
    A, b, exact = PROBLEMS[name]()
    result = solvers.eagle(A, b, schedule=schedule, rcond=1e-16)
    assert result.converged
    slack = 0.0 if EXTENDED else 1.5
    assert digits(result.W, exact) >= lapack_digits(A, b, exact) - slack


@pytest.mark.parametrize("name", [name for name in PROBLEMS if name[0] in "WL"])
def test_the_estimator_has_at_least_the_digits_of_scikit_learn(name):
    A, b, exact = PROBLEMS[name]()
    ours = digits(with_intercept(EagleRegressor(rtol=1e-8), A, b), exact)
    theirs = digits(with_intercept(LinearRegression(), A, b), exact)
    assert ours >= theirs - (0.0 if EXTENDED else 1.5)


def test_column_scaling_changes_the_answer_of_a_deficient_problem():
    # Two equal features: least norm shares the weight equally, whatever scale that is in.
    A = np.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]])
    scaled = A * np.array([[1.0], [10.0]])
    plain = solvers.eagle(A, [2.0, 4.0, 6.0]).W
    rescaled = solvers.eagle(scaled, [2.0, 4.0, 6.0]).W * [1.0, 10.0]
    np.testing.assert_allclose(plain, [1.0, 1.0], atol=1e-9)
    assert abs(rescaled[0] - 1.0) > 0.5
