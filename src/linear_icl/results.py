"""How a solve ended: a status, a sentence, and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np


class Status(Enum):
    """Why an iteration stopped. The value is the sentence a reader sees."""

    CONVERGED = "the requested accuracy was reached and verified"
    MAXITER = "the iteration limit was reached before the requested accuracy"
    STAGNATED = "the iteration stopped improving before the requested accuracy"
    NOT_POSITIVE_DEFINITE = "the matrix, or the preconditioner, is not positive definite"
    BREAKDOWN = "the iteration cannot go on: a needed quantity vanished or is not finite"


# The overall status of a batch is the gravest of its members'.
_GRAVITY = list(Status)


class SolverError(RuntimeError):
    """A solve that did not converge, raised when ``raise_on_failure=True``.

    The attribute ``result`` holds the :class:`SolveResult` with the last finite iterate.
    """

    def __init__(self, result: SolveResult) -> None:
        super().__init__(result.message)
        self.result = result


@dataclass(frozen=True)
class Communication:
    """What a distributed solve has sent, counted on its messages.

    Attributes
    ----------
    rounds : int
        Messages a machine has sent: the rounds of the iteration, and one to agree on the start.
    numbers : int
        Numbers a machine has put into them, all rounds together.
    bytes : int
        The same in bytes; every number travels in double precision.
    """

    rounds: int
    numbers: int

    @property
    def bytes(self) -> int:
        """Eight bytes a number."""
        return 8 * self.numbers


@dataclass(frozen=True)
class SolveResult:
    """What a solver returns.

    The solution stands under its own name: ``x`` for a linear system, ``W`` for the weights of
    a regression, ``D`` for the completed block of a prompt; the other two are None.

    Attributes
    ----------
    x, W, D : array or None
        The solution, or the last finite iterate, in the caller's array type, dtype and device.
    statuses : ndarray of Status
        One status per batch member (shape ``()`` without a batch).
    iterations : int or ndarray of int
        Steps taken; per member for a batch. 0 for a direct method.
    history : ndarray of float, shape (steps + 1,) + batch shape
        What the solver's stopping rule watches, one entry a step, from the start on; the
        solver's own page says which quantity it is. NaN once a member has stopped.
    rank : int, ndarray of int or None
        Numerical rank, where the method decides one; per member for a batch.
    message : str
        The outcome in plain words.
    communication : Communication or None
        What the machines have sent, where there are several.
    """

    statuses: np.ndarray
    iterations: int | np.ndarray
    history: np.ndarray
    message: str
    x: Any = None
    W: Any = None
    D: Any = None
    rank: int | np.ndarray | None = None
    communication: Communication | None = None

    @property
    def status(self) -> Status:
        """The gravest status of the batch; CONVERGED only if every member converged."""
        return max(self.statuses.flat, key=_GRAVITY.index, default=Status.CONVERGED)

    @property
    def converged(self) -> bool:
        """True if every member of the batch converged."""
        return self.status is Status.CONVERGED


def finish(*, raise_on_failure: bool = False, note: str = "", **fields: Any) -> SolveResult:
    """Build a :class:`SolveResult`, write its message, and raise if that was asked for."""
    statuses = fields["statuses"]
    counts = {s: int(sum(t is s for t in statuses.flat)) for s in Status}
    if statuses.size == 1:
        message = statuses.flat[0].value
    else:
        message = "; ".join(f"{c} of {statuses.size}: {s.value}" for s, c in counts.items() if c)
        message = message or "an empty batch"
    steps = int(np.max(fields["iterations"], initial=0))
    message = f"{message} ({steps} iteration{'' if steps == 1 else 's'})"
    result = SolveResult(message=f"{message}. {note}".rstrip(". ") + ".", **fields)
    if raise_on_failure and not result.converged:
        raise SolverError(result)
    return result
