"""Solvers for in-context linear regression: direct, first order, Krylov, and EAGLE's family."""

from linear_icl.results import SolverError, SolveResult, Status
from linear_icl.solvers import sketching
from linear_icl.solvers.conjugate_gradient import cgls, conjugate_gradient
from linear_icl.solvers.direct import least_squares, nystrom
from linear_icl.solvers.eagle import eagle, eagle_update
from linear_icl.solvers.gd_plus_plus import gd_plus_plus
from linear_icl.solvers.gradient_descent import gradient_descent
from linear_icl.solvers.stochastic_gradient_descent import stochastic_gradient_descent

__all__ = [
    "SolveResult",
    "SolverError",
    "Status",
    "cgls",
    "conjugate_gradient",
    "eagle",
    "eagle_update",
    "gd_plus_plus",
    "gradient_descent",
    "least_squares",
    "nystrom",
    "sketching",
    "stochastic_gradient_descent",
]
