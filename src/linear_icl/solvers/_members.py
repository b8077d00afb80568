"""Which members of a batch still run, and how the others ended."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import array_namespace, device

from linear_icl.results import SolveResult, Status, finish


class Members:
    """Book-keeping of an iteration that serves many right-hand sides at once.

    ``shape`` is the batch shape with the number of right-hand sides last. Each of them starts
    running and stops on its own; the result reports the gravest of a member's right-hand sides.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.running = np.ones(shape, dtype=bool)
        self.iterations = np.zeros(shape, dtype=int)
        self.statuses = np.full(shape, Status.MAXITER, dtype=object)
        self._history: list[np.ndarray] = []

    def record(self, watched: np.ndarray) -> None:
        """Append the watched quantity of the right-hand sides still running."""
        self._history.append(np.where(self.running, watched, np.nan))

    def correct(self, watched: np.ndarray, where: np.ndarray) -> None:
        """Replace the last recorded value by one computed anew."""
        self._history[-1] = np.where(where & self.running, watched, self._history[-1])

    def stop(self, where: np.ndarray, status: Status) -> None:
        """End the running right-hand sides selected by ``where``."""
        where = where & self.running
        self.statuses[where] = status
        self.running = self.running & ~where

    def confirm(self, where: np.ndarray) -> None:
        """Call converged what a later, independent measurement has shown to be so."""
        self.statuses[where] = Status.CONVERGED

    def count_step(self) -> None:
        """One more step for everything still running."""
        self.iterations = self.iterations + self.running

    def keep(self, new: Any, old: Any, axis: int) -> Any:
        """``new`` where a right-hand side (constant along ``axis``) still runs, else ``old``."""
        return new if self.running.all() else self.keep_where(self.running, new, old, axis)

    @staticmethod
    def keep_where(where: np.ndarray, new: Any, old: Any, axis: int) -> Any:
        """``new`` for the right-hand sides (constant along ``axis``) in ``where``, else ``old``."""
        xp = array_namespace(new)
        mask = xp.asarray(np.expand_dims(where, axis), device=device(new))
        return xp.where(mask, new, old)

    def result(self, *, raise_on_failure: bool, note: str = "", **fields: Any) -> SolveResult:
        """The :class:`SolveResult`, with the right-hand sides of each member taken together."""
        batch = self.running.shape[:-1]
        order = list(Status)
        codes = np.vectorize(order.index, otypes=[int])(self.statuses)
        gravest = np.max(codes, axis=-1, initial=order.index(Status.CONVERGED))
        statuses = np.empty(batch, dtype=object)
        statuses[...] = np.array(order, dtype=object)[gravest]
        iterations = np.max(self.iterations, axis=-1, initial=0)
        history = np.array(self._history).reshape(len(self._history), *self.running.shape)
        missing = np.isnan(history).all(axis=-1)
        worst = np.max(np.where(np.isnan(history), -np.inf, history), axis=-1, initial=-np.inf)
        return finish(
            statuses=statuses,
            iterations=int(iterations) if not batch else iterations,
            history=np.where(missing, np.nan, worst),
            raise_on_failure=raise_on_failure,
            note=note,
            **fields,
        )
