"""Distributed EAGLE: examples split over machines, only what concerns the query is sent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from linear_icl._arrays import Array, as_arrays, to_numpy
from linear_icl.results import SolveResult
from linear_icl.solvers._machines import InProcess, Machine, State, run


def eagle_distributed(
    parts: Sequence[tuple[Any, Any]],
    C: Any = None,
    *,
    method: Literal["average", "frozen", "cg", "pooled", "gd", "nesterov", "raw-cg"] = "average",
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    eta: float = 1 / 3,
    gamma: float = 1.0,
    rcond: float | None = None,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Distributed."""
    machines = _machines(parts, eta, rcond)
    C, query = _query(machines[0], C)

    def caller(D: np.ndarray) -> Array:
        if query is not None and query.ndim == 1:
            D = D[:, 0]
        if machines[0].vector_labels:
            D = D[0]
        return D

    def on_round(state: State) -> None:
        if callback is not None:
            callback(caller(state["D"] * state["scale"]))

    result = run(
        machines,
        C,
        InProcess(len(machines)),
        method=method,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        gamma=gamma,
        on_round=on_round,
        raise_on_failure=raise_on_failure,
    )
    D = caller(result.D)
    return replace(result, D=None, W=D) if query is None else replace(result, D=D)


def _machines(parts: Any, eta: float, rcond: float | None) -> list[Machine]:
    machines = []
    for k, (A, B) in enumerate(parts):
        try:
            machines.append(Machine(A, B, eta=eta, rcond=rcond))
        except (TypeError, ValueError) as error:
            raise type(error)(f"part {k}: {error}") from None
    return machines


def _query(machine: Machine, C: Any) -> tuple[np.ndarray, Array | None]:
    if C is None:
        return np.eye(machine.d), None
    _, C = as_arrays(C=C)
    return to_numpy(C[:, None] if C.ndim == 1 else C), C


def main() -> None:
    """Solve with one machine a process: ``python -m linear_icl.solvers.distributed …``."""
    from linear_icl import cli

    cli.main(["distributed", *sys.argv[1:]])


if __name__ == "__main__":
    main()
