"""Solvers for in-context linear regression: direct, first order, Krylov, and EAGLE's family."""

from typing import Any

from linear_icl.results import Communication, SolverError, SolveResult, Status
from linear_icl.solvers import sketching
from linear_icl.solvers.conjugate_gradient import cgls, conjugate_gradient
from linear_icl.solvers.direct import least_squares, nystrom
from linear_icl.solvers.eagle import eagle, eagle_update
from linear_icl.solvers.gd_plus_plus import gd_plus_plus
from linear_icl.solvers.gradient_descent import gradient_descent
from linear_icl.solvers.stochastic_gradient_descent import stochastic_gradient_descent

__all__ = [
    "Communication",
    "SolveResult",
    "SolverError",
    "Status",
    "cgls",
    "conjugate_gradient",
    "eagle",
    "eagle_distributed",
    "eagle_update",
    "gd_plus_plus",
    "gradient_descent",
    "least_squares",
    "nystrom",
    "sketching",
    "stochastic_gradient_descent",
]


def __getattr__(name: str) -> Any:
    """``eagle_distributed`` when it is asked for: its module is a command as well."""
    if name == "eagle_distributed":
        from linear_icl.solvers.distributed import eagle_distributed

        return eagle_distributed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names: the reference is made from those that are listed."""
    return sorted({*globals(), *__all__})
