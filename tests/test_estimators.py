"""The scikit-learn estimators: their contract, and equality with scikit-learn's own."""

import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from linear_icl.estimators import DIRECT, ITERATIVE, EagleRegressor, NystromCompleter

ESTIMATORS = [EagleRegressor(), EagleRegressor("svd"), NystromCompleter(n_components=10)]
CHECKS = [
    (estimator, check)
    for index in range(len(ESTIMATORS))
    for estimator, check in estimator_checks_generator(ESTIMATORS[index])
]


def check_name(value):
    return getattr(getattr(value, "func", value), "__name__", type(value).__name__)


@pytest.mark.parametrize(("estimator", "check"), CHECKS, ids=check_name)
def test_scikit_learns_contract(estimator, check):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(clone(estimator))


def data(targets=1, weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 5)) + 3
    y = X @ rng.standard_normal((5, targets)) + rng.standard_normal((40, targets)) - 7
    weight = rng.uniform(0.1, 2, 40) if weighted else None
    return X, y[:, 0] if targets == 1 else y, weight


@pytest.mark.parametrize("solver", [*ITERATIVE, *DIRECT])
@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_every_solver_equals_scikit_learns_regression(solver, targets, weighted, fit_intercept):
    X, y, weight = data(targets, weighted)
    rtol = 1e-9 if solver == "gd" else 1e-12
    for alpha in (0.0, 2.0):
        ours = EagleRegressor(solver, alpha=alpha, fit_intercept=fit_intercept, rtol=rtol)
        theirs = Ridge(alpha) if alpha else LinearRegression()
        ours.fit(X, y, weight)
        theirs.set_params(fit_intercept=fit_intercept).fit(X, y, weight)
        np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=1e-5)
        np.testing.assert_allclose(ours.intercept_, theirs.intercept_, atol=1e-4)
        np.testing.assert_allclose(ours.predict(X), theirs.predict(X), atol=1e-4)


def test_it_works_in_pipelines_searches_and_pickles():
    X, y = load_diabetes(return_X_y=True)
    model = make_pipeline(StandardScaler(), EagleRegressor())
    reference = make_pipeline(StandardScaler(), LinearRegression())
    np.testing.assert_allclose(
        cross_val_score(model, X, y), cross_val_score(reference, X, y), rtol=1e-8
    )
    search = GridSearchCV(model, {"eagleregressor__alpha": [0.1, 10.0]}, cv=3).fit(X, y)
    expected = GridSearchCV(
        make_pipeline(StandardScaler(), Ridge()), {"ridge__alpha": [0.1, 10.0]}, cv=3
    ).fit(X, y)
    assert search.best_score_ == pytest.approx(expected.best_score_, rel=1e-8)
    copy = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(copy.predict(X), search.predict(X))


def test_collinear_features_give_the_least_norm_weights():
    X, y, _ = data()
    model = EagleRegressor().fit(np.hstack([X, X]), y)
    assert model.rank_ == 5
    half = LinearRegression().fit(X, y).coef_ / 2
    np.testing.assert_allclose(model.coef_, np.hstack([half, half]), atol=1e-9)


def test_a_solve_that_does_not_converge_warns():
    X, y, _ = data()
    with pytest.warns(ConvergenceWarning, match="iteration limit"):
        EagleRegressor("gd", max_iter=2).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"solver": "magic"}, "solver"), ({"alpha": -1.0}, "alpha"), ({"alpha": "a"}, "alpha")],
)
def test_bad_parameters_are_named(parameters, message):
    X, y, _ = data()
    with pytest.raises(ValueError, match=message):
        EagleRegressor(**parameters).fit(X, y)


def test_features_and_completed_blocks_agree_with_scikit_learns_nystroem():
    X = load_digits().data[:300] / 16
    ours = NystromCompleter(gamma=0.05, n_components=60, random_state=0).fit(X)
    theirs = Nystroem(gamma=0.05, n_components=60, random_state=0).fit(X)
    np.testing.assert_array_equal(ours.component_indices_, theirs.component_indices_)
    features = ours.transform(X)
    approximate = features @ features.T
    np.testing.assert_allclose(approximate, theirs.transform(X) @ theirs.transform(X).T, atol=1e-8)
    np.testing.assert_allclose(ours.complete(X, X), approximate, atol=1e-6)


def test_features_classify_digits():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(
        NystromCompleter(gamma=0.001, n_components=150, random_state=0),
        LogisticRegression(max_iter=2000, C=100),
    )
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.93
