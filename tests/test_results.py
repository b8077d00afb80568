"""Statuses and messages say what happened, for one problem and for batches."""

import numpy as np
import pytest

from linear_icl import solvers
from linear_icl.solvers import SolverError, Status


def test_a_batch_reports_the_gravest_status_and_counts_members():
    A = np.stack([np.eye(4), np.diag([1.0, 1e-1, 1e-2, 1e-3])])
    result = solvers.eagle(A, np.ones((1, 4)), maxiter=10)
    assert [s.name for s in result.statuses] == ["CONVERGED", "MAXITER"]
    assert result.status is Status.MAXITER
    assert not result.converged
    assert "1 of 2" in result.message
    assert result.iterations.shape == (2,)
    assert result.history.shape == (11, 2)
    assert np.isnan(result.history[-1, 0])


def test_the_error_carries_the_result():
    with pytest.raises(SolverError) as caught:
        solvers.gradient_descent(np.diag([1.0, 0.01]), [1.0, 1.0], maxiter=3, raise_on_failure=True)
    assert caught.value.result.status is Status.MAXITER
    assert caught.value.result.iterations == 3


def test_the_result_cannot_be_changed():
    result = solvers.nystrom(np.eye(2), np.ones((1, 2)), np.ones((2, 1)))
    with pytest.raises(AttributeError):
        result.D = None
