"""Distributed EAGLE: the examples stay on their machines, only what concerns the query travels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace, device, is_torch_array

from linear_icl._arrays import Array, as_arrays, to_numpy
from linear_icl.results import SolverError, SolveResult
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
    """Distributed EAGLE: complete D when the examples lie on M machines, or find the weights W.

    The problem: A = [A_1 … A_M], B = [B_1 … B_M], D* = B A⁺ C. Machine μ alone knows A_μ and B_μ;
    C and D are replicated. One round, with every ‖A_μ‖₂ brought to 1:

    A_μ ← A_μ − η A_μA_μᵀA_μ,   B_μ ← B_μ − η B_μA_μᵀA_μ   (each by itself),
    C ← C − γ/M Σ_μ A_μA_μᵀC,   D ← D + γ/M Σ_μ B_μA_μᵀC   (summed: (d + d')n' numbers a machine).

    When the labels fit, B = W*A, then D + W*C = D* in every round: what is left of C is what is
    missing in D. It fades as (1 − γα)^l once the blocks are conditioned, α the diversity index
    (theorem 2 of Lutz et al.: log κ_max + α⁻¹ log 1/ε rounds).

    **Labels with noise.** Conditioning reweights the examples. ``"cg"`` then arrives at
    (Σ W_μP_μ)(Σ P_μ)⁺C, W_μ the least squares of machine μ alone and P_μ the projector on
    range(A_μ): an average of local fits, *not* least squares on all examples. ``"average"`` and
    ``"frozen"`` do too for what is left of C after the conditioning, but the rounds before have
    weighed W_μ by the blocks as they were then. ``"pooled"`` and the baselines find the least
    squares of all examples.

    Parameters
    ----------
    parts : sequence of (A_μ, B_μ), shapes (d, n_μ) and (d', n_μ) or (n_μ,)
        Every machine's examples and labels. A part may be empty (n_μ = 0), wide, tall or
        rank-deficient; a long one may be memory-mapped and is read once.
    C : array, shape (d, n') or (d,), optional
        Query features; None asks for W (C = I, hence d(d + d') numbers a round).
    method : str
        - ``"average"``: the rounds above, as they are printed.
        - ``"frozen"``: the same rounds; a block that is a partial isometry is left as it is.
        - ``"cg"``: the blocks are conditioned first, without a message, and Σ P_μ X = C is
          solved by conjugate gradients in the form that makes the residual smallest. A product
          is a round of the same size; √(1/α) log 1/ε rounds.
        - ``"pooled"``: conjugate gradients on Σ A_μA_μᵀ, preconditioned by the average of the
          machines' inverses; two rounds a step, one of them d n' numbers. It wants C in the
          joint range. Few rounds when each machine's Σ_μ resembles the sum (examples of one
          distribution, n_μ > d), no gain when the Σ_μ differ at random.
        - ``"gd"``, ``"nesterov"``, ``"raw-cg"``: baselines on the data as they are, with the
          same messages: gradient descent and Nesterov's with adaptive restart, their step from
          at most 30 rounds of power iteration, and conjugate gradients.
    rtol, atol : float
        A column has converged when what is left of C is at most max(rtol ‖C‖, atol), carried
        along by the rounds (``"average"``, ``"frozen"``, ``"gd"``, ``"nesterov"``), or computed
        anew by one more round (the others). If C reaches out of the joint range, only what is
        left inside counts; its size is estimated from how it fades.
    maxiter : int, optional
        Most rounds; default 10 000.
    eta, gamma : float
        Step sizes; γ without effect on conjugate gradients.
    rcond : float, optional
        Singular values of A_μ below ``rcond`` times its largest count as zero; default
        d · machine epsilon: the rounding errors of many examples average out.
    callback : callable, optional
        Called with the current D (or W) after every round.
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``D`` (or ``W``); ``iterations`` counts rounds; ``history`` holds ‖C‖ over the query's, of
        the worst column; ``communication`` what was sent. The rounds run in float64 on the host,
        whatever is given; the result has the kind, dtype and device of the parts, without
        gradient.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit, naming the part.

    References
    ----------
    Lutz et al. (2025), algorithm 2 and theorem 2. Conjugate residuals: Saad (2003), section 6.8.

    Notes
    -----
    Of a block with more examples than features the QR's d × d factor does the same work. A
    rank-deficient block is left as it is once it is a partial isometry: further layers would
    only raise round-off in the empty directions.

    Examples
    --------
    Two machines, each of which sees one of the two features:

    >>> from linear_icl import solvers
    >>> parts = [([[2.0], [0.0]], [[4.0]]), ([[0.0], [1.0]], [[3.0]])]
    >>> result = solvers.eagle_distributed(parts, [[1.0], [1.0]], method="cg")
    >>> result.D, result.iterations, result.communication.numbers
    (array([[5.]]), 2, 9)
    """
    machines = _machines(parts, eta, rcond)
    template = _template(parts)
    C, query = _checked_query(machines[0], C)

    def returned(D: np.ndarray) -> Array:
        """D in the caller's shape, kind and dtype."""
        D = D[:, 0] if query is not None and query.ndim == 1 else D
        return template(D[0] if machines[0].vector_labels else D)

    def on_round(state: State) -> None:
        if callback is not None:
            callback(returned(state["D"] * state["scale"]))

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
    )
    D = returned(result.D)
    result = replace(result, D=None, W=D) if query is None else replace(result, D=D)
    if raise_on_failure and not result.converged:
        raise SolverError(result)
    return result


def _machines(parts: Any, eta: float, rcond: float | None) -> list[Machine]:
    """A machine for every part; all must agree on d, d' and on whether labels are a row."""
    machines: list[Machine] = []
    for k, part in enumerate(parts):
        try:
            A, B = part
        except (TypeError, ValueError):
            raise ValueError(f"part {k} must be a pair (A, B) of examples and labels") from None
        try:
            machines.append(Machine(A, B, eta=eta, rcond=rcond))
        except (TypeError, ValueError) as error:
            raise type(error)(f"part {k}: {error}") from None
        first, last = machines[0], machines[-1]
        if first.d != last.d:
            raise ValueError(f"part {k}: A has {last.d} features, but part 0 has {first.d}")
        if (first.d_out, first.vector_labels) != (last.d_out, last.vector_labels):
            raise ValueError(
                f"part {k}: B must have as many outputs as in part 0, "
                f"got shapes {np.shape(B)} and {np.shape(parts[0][1])}"
            )
    if not machines:
        raise ValueError("parts is empty; give one pair (A, B) a machine")
    return machines


def _template(parts: Any) -> Callable[[np.ndarray], Array]:
    """What turns host numbers into arrays of the kind, dtype and device of the parts."""
    blocks = [as_arrays(A=block, check_finite=False)[1] for part in parts for block in part]
    kinds = {is_torch_array(block) for block in blocks}
    if len(kinds) > 1:
        raise TypeError("the parts must all be NumPy arrays or all be torch tensors")
    xp = array_namespace(*blocks)
    dtype = xp.result_type(*blocks)
    return lambda D: xp.asarray(np.array(D), dtype=dtype, device=device(blocks[0]))


def _checked_query(machine: Machine, C: Any) -> tuple[np.ndarray, Array | None]:
    """C in float64 with two dimensions, I for None; and C as it was given."""
    if C is None:
        return np.eye(machine.d), None
    _, C = as_arrays(C=C)
    if C.ndim not in (1, 2) or C.shape[0] != machine.d:
        raise ValueError(
            f"C must have one row a feature: expected ({machine.d}, n') or ({machine.d},), "
            f"got {tuple(C.shape)}"
        )
    return to_numpy(C[:, None] if C.ndim == 1 else C), C


def main() -> None:
    """Solve with one machine a process: ``python -m linear_icl.solvers.distributed …``."""
    from linear_icl import cli

    cli.main(["distributed", *sys.argv[1:]])


if __name__ == "__main__":
    main()
