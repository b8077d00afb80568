"""The solvers as scikit-learn estimators: rows are samples here, as scikit-learn has it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    MultiOutputMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.utils import check_random_state
from sklearn.utils.validation import (
    _check_sample_weight,
    check_array,
    check_is_fitted,
    validate_data,
)

from linear_icl import solvers
from linear_icl._arrays import check_number
from linear_icl.results import SolveResult

ITERATIVE: dict[str, Callable[..., SolveResult]] = {
    "eagle": solvers.eagle,
    "gd++": solvers.gd_plus_plus,
    "cgls": solvers.cgls,
    "gd": solvers.gradient_descent,
}
DIRECT: tuple[Literal["qr", "svd", "cholesky"], ...] = ("qr", "svd", "cholesky")


class EagleRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Linear least squares and ridge regression by EAGLE, or by any other solver of the book.

    Minimises Σᵢ wᵢ ‖yᵢ − W xᵢ − c‖² + α‖W‖_F². The penalty is added as d further examples
    √α·I with labels 0, so that every solver sees a plain least-squares problem.

    Parameters
    ----------
    solver : {"eagle", "gd++", "cgls", "gd", "qr", "svd", "cholesky"}
        Which solver. ``"qr"`` and ``"cholesky"`` need features that are linearly independent.
    alpha : float
        Ridge penalty, >= 0, in the units of the summed (not averaged) squared loss.
    fit_intercept : bool
        Fit the constant c, by centring; it is not penalised.
    rtol : float
        Relative tolerance of the iterative solvers.
    max_iter : int or None
        Their iteration limit; None leaves it to the solver.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
        The weights W.
    intercept_ : float or ndarray of shape (n_targets,)
        The constant c.
    n_iter_ : int
        Iterations taken; a direct solver counts as one.
    rank_ : int or None
        Numerical rank of the centred design, where the solver decides one.
    result_ : SolveResult
        How the solve ended.

    Notes
    -----
    A solve that does not converge warns with scikit-learn's ``ConvergenceWarning``.

    References
    ----------
    Lutz et al. (2025); ridge by augmentation: Björck (1996), section 2.7.

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.estimators import EagleRegressor
    >>> X = np.array([[0.0], [1.0], [2.0]])
    >>> model = EagleRegressor().fit(X, [1.0, 3.0, 5.0])
    >>> model.coef_.round(8), round(model.intercept_, 8)
    (array([2.]), 1.0)
    """

    def __init__(
        self,
        solver: Literal["eagle", "gd++", "cgls", "gd", "qr", "svd", "cholesky"] = "eagle",
        *,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        rtol: float = 1e-10,
        max_iter: int | None = None,
    ) -> None:
        self.solver = solver
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.rtol = rtol
        self.max_iter = max_iter

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> EagleRegressor:
        """Fit to X of shape (n_samples, n_features) and y of shape (n_samples[, n_targets])."""
        if self.solver not in (*ITERATIVE, *DIRECT):
            names = ", ".join((*ITERATIVE, *DIRECT))
            raise ValueError(f"solver must be one of {names}, got {self.solver!r}")
        check_number("alpha", self.alpha, strictly=False)
        dtypes = (np.float64, np.float32)
        X, y = validate_data(self, X, y, multi_output=True, y_numeric=True, dtype=dtypes)
        y = y.astype(X.dtype, copy=False)
        targets = y.reshape(len(y), -1)
        weight = None
        if sample_weight is not None:
            weight = _check_sample_weight(sample_weight, X, dtype=X.dtype, ensure_non_negative=True)
            if not weight.any():
                raise ValueError("sample_weight is zero everywhere; at least one must be positive")
        mean_x = np.zeros(X.shape[1], dtype=X.dtype)
        mean_y = np.zeros(targets.shape[1], dtype=X.dtype)
        if self.fit_intercept:
            mean_x = np.average(X, axis=0, weights=weight).astype(X.dtype)
            mean_y = np.average(targets, axis=0, weights=weight).astype(X.dtype)
        A, B = (X - mean_x).T, (targets - mean_y).T
        if weight is not None:
            A, B = A * np.sqrt(weight), B * np.sqrt(weight)
        if self.alpha > 0:
            root = np.sqrt(X.dtype.type(self.alpha))
            A = np.concatenate([A, root * np.eye(len(A), dtype=X.dtype)], axis=1)
            B = np.concatenate([B, np.zeros((len(B), len(A)), dtype=X.dtype)], axis=1)
        self.result_ = self._solve(A, B)
        if not self.result_.converged:
            warnings.warn(
                f"{type(self).__name__}(solver={self.solver!r}): {self.result_.message}",
                ConvergenceWarning,
                stacklevel=2,
            )
        coefficients = self.result_.W
        intercept = mean_y - coefficients @ mean_x
        self.coef_ = coefficients[0] if y.ndim == 1 else coefficients
        self.intercept_ = float(intercept[0]) if y.ndim == 1 else intercept
        self.n_iter_ = max(1, int(self.result_.iterations))
        self.rank_ = self.result_.rank
        return self

    def _solve(self, A: np.ndarray, B: np.ndarray) -> SolveResult:
        for method in DIRECT:
            if self.solver == method:
                return solvers.least_squares(A, B, method=method)
        return ITERATIVE[self.solver](A, B, rtol=self.rtol, maxiter=self.max_iter)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions for X of shape (n_samples, n_features)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return X @ self.coef_.T + self.intercept_


class NystromCompleter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Kernel matrices and features from a few landmarks, completed by EAGLE.

    With landmarks Z and A = k(Z, Z), B = k(X, Z), C = k(Z, Y), the block D = k(X, Y) of a
    kernel matrix is completed as B A⁺ C without being evaluated. The same A gives features
    φ(x) = A^{+1/2} k(Z, x) whose inner products are these completed values.

    Parameters
    ----------
    kernel : str
        A kernel that scikit-learn's ``pairwise_kernels`` knows by name.
    gamma : float or None
        Its width, where it has one; None is scikit-learn's 1/n_features.
    n_components : int
        Number of landmarks, drawn from the training samples without replacement.
    rtol : float
        Relative tolerance of EAGLE.
    rcond : float
        Singular values of A below this fraction of the largest count as zero.
    random_state : int, RandomState or None
        Chooses the landmarks.

    Attributes
    ----------
    landmarks_ : ndarray of shape (n_components, n_features)
        The landmarks Z.
    component_indices_ : ndarray of int
        Which training samples they are.
    normalization_ : ndarray
        A^{+1/2}.

    References
    ----------
    Williams and Seeger (2001); Drineas and Mahoney (2005).

    Examples
    --------
    >>> import numpy as np
    >>> from linear_icl.estimators import NystromCompleter
    >>> X = np.linspace(0, 1, 12)[:, None]
    >>> completer = NystromCompleter(gamma=1.0, n_components=6, random_state=0).fit(X)
    >>> exact = np.exp(-((X - X.T) ** 2))
    >>> bool(np.abs(completer.complete(X, X) - exact).max() < 1e-4)
    True
    """

    def __init__(
        self,
        kernel: str = "rbf",
        *,
        gamma: float | None = None,
        n_components: int = 100,
        rtol: float = 1e-8,
        rcond: float = 1e-12,
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.n_components = n_components
        self.rtol = rtol
        self.rcond = rcond
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> NystromCompleter:
        """Draw the landmarks from X of shape (n_samples, n_features)."""
        X = validate_data(self, X, dtype=(np.float64, np.float32), ensure_min_samples=2)
        if self.n_components < 1:
            raise ValueError(f"n_components must be >= 1, got {self.n_components!r}")
        count = min(self.n_components, len(X))
        self.component_indices_ = check_random_state(self.random_state).permutation(len(X))[:count]
        self.landmarks_ = X[self.component_indices_]
        self.gram_ = self._kernel(self.landmarks_, self.landmarks_)
        values, vectors = np.linalg.eigh(self.gram_)
        kept = values > self.rcond * values[-1]
        inverse_root = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
        self.normalization_ = (vectors * inverse_root) @ vectors.T
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of shape (n_samples, n_landmarks)."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32))
        return self._kernel(X, self.landmarks_) @ self.normalization_

    def complete(self, X: Any, Y: Any) -> np.ndarray:
        """The block k(X, Y), completed from k(X, Z), k(Z, Z) and k(Z, Y) by EAGLE."""
        check_is_fitted(self)
        X, Y = check_array(X), check_array(Y)
        result = solvers.eagle(
            self.gram_,
            self._kernel(X, self.landmarks_),
            self._kernel(self.landmarks_, Y),
            rtol=self.rtol,
            rcond=self.rcond,
        )
        if not result.converged:
            warnings.warn(result.message, ConvergenceWarning, stacklevel=2)
        return result.D

    def _kernel(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return pairwise_kernels(X, Y, metric=self.kernel, filter_params=True, gamma=self.gamma)

    @property
    def _n_features_out(self) -> int:
        return len(self.landmarks_)
