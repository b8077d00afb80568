"""EAGLE: the update that trained linear transformers are found to run (row tokens)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from array_api_compat import array_namespace

from linear_icl._arrays import (
    Array,
    as_arrays,
    broadcast_batch,
    check_number,
    check_shapes,
    check_tolerances,
    transpose,
)
from linear_icl.results import SolveResult
from linear_icl.solvers._conditioning import DEFAULT_MAXITER, condition
from linear_icl.solvers._gram import Examples, solve_gram
from linear_icl.solvers._spectrum import contracted, cubic, project_on_range
from linear_icl.solvers.sketching import Sketch, solve_sketched

# From this many examples a feature on, form="auto" works on the Gram matrix.
TALL = 8


def eagle(
    A: Any,
    B: Any,
    C: Any = None,
    *,
    form: Literal["auto", "data", "gram"] = "auto",
    schedule: Literal["newton-schulz", "minimax"] = "newton-schulz",
    eta: float = 1 / 3,
    gamma: float = 1.0,
    sketch: Sketch | Sequence[Any] | None = None,
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    rcond: float | None = None,
    refine: bool = True,
    callback: Callable[[Array], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """EAGLE: complete the block D of a prompt X = [[A, C], [B, D]], or find the weights W.

    The problem: D* = B A⁺ C. One layer, right-hand sides with the old values, ρ = ‖A‖₂⁻²:

    A ← A − ηρ AAᵀA,   B ← B − ηρ BAᵀA,   C ← C − γρ AAᵀC,   D ← D + γρ BAᵀC.

    With (η, γ) = (1/3, 1) A runs through the Newton–Schulz iteration for its polar factor, and
    D is exact after O(log κ(A) + log log 1/ε) layers (theorem 1 of Lutz et al.). Without C the
    same conditioned regression is descended in the weights, W ← W + γρ (B − WA)Aᵀ, and then
    W C equals D layer by layer. A layer costs 4 d n min(d, n) flops and more: count them, not
    layers, against other methods.

    Parameters
    ----------
    A : array, shape (…, d, n)
        Example features, one example a column. NumPy or torch, float32 or float64.
    B : array, shape (…, d', n) or (n,)
        Example labels.
    C : array, shape (…, d, n') or (d,), optional
        Query features; None (estimation form) asks for W.
    form : {"auto", "data", "gram"}
        ``"data"`` updates the blocks themselves. ``"gram"`` sums Σ = AAᵀ and BAᵀ in one pass
        over the examples, finds Σ⁻¹ by EAGLE in d × d matrices, and refines W on the data;
        everything in float64, A read in blocks (a memory-mapped A is never held whole). It
        needs full row rank and κ(A) below 2e6. ``"auto"`` takes the Gram form when it can and
        n ≥ 8 d, the data form otherwise.
    schedule : {"newton-schulz", "minimax"}
        ``"newton-schulz"`` keeps η. ``"minimax"`` takes η = 1/(1 + l + l²) with l the ratio of
        the extreme singular values of the layer's A: the odd cubic that brings them nearest
        to 1, in about half the layers.
    eta, gamma : float
        η and γ above, with ρ taken from each prompt and each layer.
    sketch : Sketch or sequence of arrays, shape (n, r), optional
        Computation-limited layers, each of which sees r combinations of the examples: Ã = AS
        and B̃ = BS in the update, one S a layer for the whole batch. ``sketching.columns(r)``,
        ``sketching.haar(r)``, or matrices to be used in turn, such as those that
        ``unrolling.sketches`` reads off a trained network. See the notes.
    rtol, atol : float
        A column of D (row of W) has converged when what is left to add is, by a bound that
        knows the singular values, at most max(rtol ‖D‖, atol).
    maxiter : int, optional
        Most layers allowed; default 400, with sketches 400 ⌈n/r⌉.
    rcond : float, optional
        Singular values below ``rcond`` times the largest count as zero and take no part;
        default max(d, n) · machine epsilon.
    refine : bool
        Correct W with residuals of the data. Gram form: W ← W + (B − WA)Aᵀ·Σ⁻¹, one more pass
        each until it stands still; without, the digits lost to κ(A)² stay lost, one pass in
        all. Data form, full rank, no query: W ← W + (B − WA)A⁺ with A⁺ from the polar factor,
        which mends the round-off of the layers for the price of half a layer.
    callback : callable, optional
        Called with the current D (or W) after every layer (data form, which ``"auto"`` then
        takes).
    raise_on_failure : bool
        Raise :class:`SolverError` when not converged.

    Returns
    -------
    SolveResult
        ``D`` (or ``W``), ``rank``; ``history`` holds the relative increments ‖ΔD‖/‖D‖ of the
        worst column, 1 at the start (Gram form: the corrections ‖ΔW‖/‖W‖, one a pass).

    Raises
    ------
    TypeError, ValueError
        Input that does not fit: shapes, non-finite entries, sparse, masked, complex or
        half-precision arrays, tolerances that make no sense.

    References
    ----------
    Lutz et al. (2025), algorithm 1 and theorem 1; Higham (2008), section 8.3; the minimax
    schedule: Amsel et al. (2025).

    Notes
    -----
    ‖A‖₂ is computed once, as the largest of the singular values; the others tell the rank and
    when to stop. When A is rank-deficient, the round-off that grows in the empty directions is
    projected away at the end.

    **With a sketch**, A ← A − ηρ ÃÃᵀÃSᵀ, B ← B − ηρ B̃ÃᵀÃSᵀ, C ← C − γρ ÃÃᵀC and
    D ← D + γρ B̃ÃᵀC with ρ = ‖Ã‖₂⁻², computed anew a layer. A layer costs
    O(d r min(d, r) + d r n'), besides the singular values of A once, for the rank; it takes
    more than n/r times as many of them. Without C the
    weights follow W ← W + γρ (B̃ − WÃ)Ãᵀ; the layers no longer commute, so W C and D have the
    same limit but are not equal layer by layer.

    Convergence is then judged by residuals, once a pass of ⌈n/r⌉ layers. A row of W has
    converged when ‖B − WA‖ ≤ rtol ‖B‖. A column of D = BY has when C, which is the residual of
    AY = C, has fallen to rtol ‖C‖ (within range(A), by ‖AᵀC‖/σ_min, if the rank is below d)
    *and* a query of known answer, a random combination Az of the examples, is answered Bz up to
    rtol ‖Bz‖. Labels that no weights reproduce fail the second test: there the sketched
    iteration does not lead to least squares, but to a floor, and ends as STAGNATED or MAXITER.
    It also ends so when A has become so small that its round-off shows. What is returned is the
    answer of the best pass, by that measure, as noise grows in the layers. ``history`` holds the
    larger of the two ratios of the worst column (the residual of the worst row), one a pass.
    form="gram", schedule="minimax", atol and rcond are refused with a sketch.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> result = solvers.eagle([[2, 0], [0, 1]], [[2, 1]], [[1], [1]])
    >>> result.D.round(8), result.iterations, result.status.name
    (array([[2.]]), 7, 'CONVERGED')
    >>> sketch = solvers.sketching.columns(1, rng=0)
    >>> result = solvers.eagle([[2, 0], [0, 1]], [[2, 1]], [[1], [1]], sketch=sketch)
    >>> result.D.round(8), result.status.name
    (array([[2.]]), 'CONVERGED')
    """
    if form not in ("auto", "data", "gram"):
        raise ValueError(f"form must be 'auto', 'data' or 'gram', got {form!r}")
    if schedule not in ("newton-schulz", "minimax"):
        raise ValueError(f"schedule must be 'newton-schulz' or 'minimax', got {schedule!r}")
    if schedule == "minimax" and eta != 1 / 3:
        raise ValueError(f"schedule='minimax' chooses eta itself; leave eta out (got {eta!r})")
    if form == "gram" and callback is not None:
        raise ValueError("callback needs form='data': the Gram form has no prediction a layer")
    if form == "gram" and rcond is not None:
        raise ValueError("rcond needs form='data': the Gram form decides no rank")
    check_tolerances(rtol, atol, maxiter, rcond)
    check_number("eta", eta)
    check_number("gamma", gamma)
    if sketch is not None:
        if form == "gram" or schedule == "minimax":
            # The minimax step needs all singular values of a layer's A, which sketches change.
            raise ValueError("sketch needs form='data' and schedule='newton-schulz'")
        if atol != 0 or rcond is not None:
            raise ValueError("with a sketch convergence is relative: leave atol and rcond out")
        return solve_sketched(
            A,
            B,
            C,
            sketch,
            eta=eta,
            gamma=gamma,
            rtol=rtol,
            maxiter=maxiter,
            callback=callback,
            raise_on_failure=raise_on_failure,
        )
    steps = None if schedule == "minimax" else eta
    if form == "gram" or (form == "auto" and callback is None and rcond is None):
        examples, query = _with_query(Examples(A, B), C)
        mapped = isinstance(A, np.memmap)
        if form == "gram" or mapped or examples.n >= TALL * examples.d > 0:
            result = solve_gram(
                examples,
                query,
                eta=steps,
                gamma=gamma,
                rtol=rtol,
                atol=atol,
                maxiter=DEFAULT_MAXITER if maxiter is None else maxiter,
                refine=refine,
                raise_on_failure=raise_on_failure,
                decline=form == "auto" and not mapped,
            )
            if result is not None:
                return result
    return condition(
        _RowTokens,
        A,
        B,
        C,
        eta=steps,
        gamma=gamma,
        rtol=rtol,
        atol=atol,
        maxiter=maxiter,
        rcond=rcond,
        callback=callback,
        raise_on_failure=raise_on_failure,
        refine=refine,
    )


def _with_query(examples: Examples, C: Any) -> tuple[Examples, Array | None]:
    """C checked against A; the examples repeated where C alone is a batch."""
    if C is None:
        return examples, None
    A, B = examples.A, examples.B
    xp, _, C = as_arrays(A=A[..., :1], C=C)
    check_shapes(A, B[..., 0, :] if examples.vector_labels else B, C)
    if C.ndim > 2:
        batch, _ = broadcast_batch(xp, A=A, B=B, C=C)
        if batch != examples.batch:
            examples = Examples(*(xp.broadcast_to(M, (*batch, *M.shape[-2:])) for M in (A, B)))
    return examples, C


class _RowTokens:
    """Row tokens tie (A, B) and (C, D)."""

    def __init__(self, A: Array, B: Array, C: Array | None) -> None:
        xp = array_namespace(A)
        self.A, self.B, self.C, self.query = A, B, C, C
        # Without a query the weights take the place of D: WC = D for every layer.
        self.W = None if C is not None else xp.zeros_like(B @ transpose(A))

    def step(self, eta: Array, gamma: float, norm: Array) -> Array:
        """One row-token attention layer (here ρ = 1), with D's sign as EAGLE prints it."""
        A, B, C = self.A, self.B, self.C
        self.A = contracted(A, eta, norm)
        self.B = (B - eta * ((B @ transpose(A)) @ A)) / norm
        if C is None:
            increment = gamma * ((B - self.W @ A) @ transpose(A))
            self.W = self.W + increment
            return increment
        self.C = C - gamma * (A @ (transpose(A) @ C))
        return gamma * (B @ (transpose(A) @ C))

    def read_out(self, purifications: int) -> Array:
        """W P = B_L A_Lᵀ P, and D = W P C with the query as it came in."""
        A, labels = self.A, self.B @ transpose(self.A)
        if self.query is None:
            return transpose(project_on_range(A, transpose(labels), purifications))
        return labels @ project_on_range(A, self.query, purifications)


def eagle_update(
    A: Any,
    B: Any,
    C: Any,
    D: Any,
    S: Any = None,
    *,
    eta: float = 1 / 3,
    gamma: float = 1.0,
    rho: float | Array | None = None,
) -> tuple[Array, Array, Array, Array]:
    """One layer of EAGLE as it is printed: nothing rescaled, nothing decided.

    With Ã = AS, B̃ = BS and ρ = ‖Ã‖₂⁻², all right-hand sides with the old values:

    A ← A − ηρ ÃÃᵀÃSᵀ,  B ← B − ηρ B̃ÃᵀÃSᵀ,  C ← C − γρ ÃÃᵀC,  D ← D + γρ B̃ÃᵀC.

    Attention moves C and D with the same sign; EAGLE turns D's, so that D is the prediction.

    Parameters
    ----------
    A, B, C, D : array, shapes (…, d, n), (…, d', n), (…, d, n'), (…, d', n')
        The blocks of the prompt.
    S : array, shape (…, n, r), optional
        Sketch with orthonormal columns; None is the identity (unconstrained).
    eta, gamma : float
        Step sizes in units of ρ.
    rho : float or array, optional
        ρ instead of ‖Ã‖₂⁻²; an array broadcasts against the batch as (…, 1, 1).

    Returns
    -------
    tuple of arrays
        The four blocks after the layer.

    Raises
    ------
    TypeError, ValueError
        Input that does not fit.

    References
    ----------
    Lutz et al. (2025), algorithm 1.

    Examples
    --------
    >>> from linear_icl import solvers
    >>> A, B, C, D = solvers.eagle_update([[2, 0], [0, 1]], [[2, 1]], [[1], [1]], [[0]])
    >>> D
    array([[1.25]])
    """
    xp, A, B, C, D, S = as_arrays(A=A, B=B, C=C, D=D, S=S, optional=("S",))
    check_shapes(A, B, C)
    for name, block in (("B", B), ("C", C)):
        if block.ndim < 2:
            raise ValueError(f"{name} must be a matrix here, got shape {tuple(block.shape)}")
    if D.ndim < 2 or (D.shape[-2], D.shape[-1]) != (B.shape[-2], C.shape[-1]):
        expected = (B.shape[-2], C.shape[-1])
        raise ValueError(
            f"D must have shape (…, {expected[0]}, {expected[1]}) to go with B and C, "
            f"got {tuple(D.shape)}"
        )
    if S is not None and (S.ndim < 2 or S.shape[-2] != A.shape[-1]):
        raise ValueError(f"S must have shape (…, {A.shape[-1]}, r), got {tuple(S.shape)}")
    sketch = (lambda block: block) if S is None else (lambda block: block @ S)
    expand = (lambda block: block) if S is None else (lambda block: block @ transpose(S))
    As, Bs = sketch(A), sketch(B)
    if rho is None:
        norm = xp.linalg.matrix_norm(As, ord=2, keepdims=True)
        rho = xp.where(norm > 0, xp.where(norm > 0, norm, 1.0) ** -2.0, 0.0)
    return (
        A - eta * rho * expand(cubic(As, As)),
        B - eta * rho * expand(cubic(As, Bs)),
        C - gamma * rho * (As @ (transpose(As) @ C)),
        D + gamma * rho * (Bs @ (transpose(As) @ C)),
    )
