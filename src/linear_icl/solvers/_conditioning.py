"""The loop that GD++ and EAGLE share: condition A, add what the prediction still lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from linear_icl._arrays import (
    Array,
    check_number,
    check_tolerances,
    identity_where,
    is_singular,
    like,
    norms,
    transpose,
)
from linear_icl.results import SolveResult, Status
from linear_icl.solvers._members import Members
from linear_icl.solvers._prompt import Prompt, prepare
from linear_icl.solvers._spectrum import Spectrum

# Newton-Schulz needs 2.5 ln κ(A) steps and a few more: 95 where κ(A) = 1e16.
DEFAULT_MAXITER = 400
# Passes of refinement at the most; the first one or two do the work.
REFINEMENTS = 4
# A product in extended precision takes about this many times as long as one in double.
LONG_COST = 50
# Layers without a smaller increment after which a conditioned iteration has hit round-off.
PATIENCE = 10


class Layers(Protocol):
    """A prompt on its way through the layers; ``A`` enters with ‖A‖₂ = 1."""

    A: Array

    def step(self, eta: Array, gamma: float, norm: Array) -> Array:
        """One layer; A leaves it divided by ``norm``. Returns what the prediction gains."""

    def read_out(self, purifications: int) -> Array:
        """The whole prediction, through the projector on range(A)."""


@np.errstate(over="ignore", invalid="ignore")  # what diverges is found, and gets its status
def condition(
    layers: Callable[[Array, Array, Array | None], Layers],
    A: Any,
    B: Any,
    C: Any,
    *,
    eta: float | None,
    gamma: float,
    rtol: float,
    atol: float,
    maxiter: int | None,
    rcond: float | None,
    callback: Callable[[Array], None] | None,
    raise_on_failure: bool,
    refine: bool = False,
) -> SolveResult:
    """Run layers until the prediction D (the weights W when C is None) stands still for good.

    ``eta=None`` takes the minimax step of each layer and member.
    """
    check_tolerances(rtol, atol, maxiter, rcond, callback)
    if eta is not None:
        check_number("eta", eta)
    check_number("gamma", gamma)
    prompt = prepare(A, B, C)
    spectrum = Spectrum.of(prompt.A, rcond)
    prediction = _nothing_yet(prompt)
    given = prompt.A if refine and C is None else None
    prompt = _with_unit_norm(prompt, spectrum)
    state = layers(prompt.A, prompt.B, prompt.C)
    prompt.A = None  # from here on the layers alone hold it: memory for one A less
    finish = prompt.weights if C is None else prompt.prediction
    axis = -1 if C is None else -2  # a right-hand side is a row of W, a column of D
    factor, exponent = prompt.answer_scale()
    floor = np.ldexp(atol / factor, -exponent)[..., 0]
    zero = _vanishing(prompt, spectrum)
    members = Members(zero.shape)
    members.record(np.where(zero, 0.0, 1.0))
    members.stop(zero, Status.CONVERGED)
    least, since_least = np.full(zero.shape, np.inf), np.zeros(zero.shape, dtype=int)
    limit = DEFAULT_MAXITER if maxiter is None else maxiter
    note = ""

    while members.running.any() and members.iterations.max() < limit:
        lacking = spectrum.lacking(gamma)[..., None]
        steps = spectrum.minimax_eta() if eta is None else np.full(prompt.batch, eta)
        norm = like(spectrum.step(steps)[..., None, None], state.A)
        increment = state.step(like(steps[..., None, None], state.A), gamma, norm)
        size = norms(increment, axis)
        members.stop(~np.isfinite(size), Status.BREAKDOWN)
        members.count_step()
        prediction = members.keep(prediction + increment, prediction, axis)
        if callback is not None:
            callback(finish(prediction))
        whole = norms(prediction, axis)
        members.record(size / np.where(whole > 0, whole, 1.0))

        # A small increment proves nothing while some σ is small: the direction of σ still
        # lacks (1 − γσ²)/γσ² times what this layer has added to it.
        target = np.maximum(rtol * whole, floor)
        arrived = members.running & (size * np.maximum(lacking, 0.01) <= target)
        # Rank-deficient prompts are read out whole, once A is a partial isometry.
        arrived = np.where(spectrum.full[..., None], arrived, spectrum.isometric[..., None])
        arrived &= members.running & ~spectrum.lost[..., None]
        if arrived.any():
            doubtful = arrived & (_disagrees(state.A, spectrum) | ~spectrum.separated)[..., None]
            if doubtful.any():
                note = "The singular values near rcond do not tell the rank apart from round-off"
            arrived &= ~doubtful
            members.stop(doubtful, Status.STAGNATED)
            deficient = arrived & ~spectrum.full[..., None]
            if deficient.any():
                whole_prediction = state.read_out(spectrum.purifications())
                prediction = members.keep_where(deficient, whole_prediction, prediction, axis)
            members.stop(arrived, Status.CONVERGED)

        # Increments may well grow while A is being conditioned; afterwards they must shrink.
        smaller = (size < least) | (spectrum.deviation > 0.5)[..., None]
        since_least = np.where(smaller, 0, since_least + 1)
        least = np.where(smaller, size, least)
        lost = spectrum.lost[..., None] & (size <= target)
        members.stop(lost | (since_least >= PATIENCE), Status.STAGNATED)

    if given is not None:
        found = spectrum.full & (spectrum.rank > 0) & (spectrum.deviation <= 0.1)
        found &= spectrum.separated
        if found.any():
            # With the data as given: dividing A by its norm has already cost ε κ(A).
            norm = like(spectrum.norm[..., None], prediction)
            W, size = _refined(given, prompt.B, spectrum, state.A, prediction / norm, found)
            prediction, size = W * norm, size * spectrum.norm
            within = size <= np.maximum(rtol * norms(prediction, axis), floor)
            members.confirm(within & found[..., None])
    name = "W" if C is None else "D"
    return members.result(
        rank=spectrum.rank if prompt.batch else int(spectrum.rank),
        raise_on_failure=raise_on_failure,
        note=note,
        **{name: finish(prediction)},
    )


def _with_unit_norm(prompt: Prompt, spectrum: Spectrum) -> Prompt:
    """The one norm computation of a solve: ‖A‖₂ = 1 from here on."""
    norm = spectrum.norm[..., None]
    largest = float(prompt.xp.finfo(prompt.A.dtype).max)
    if not (prompt.scale_a * norm <= largest).all():
        raise ValueError("A is too large: ‖A‖₂ is beyond the range of its numbers")
    A = prompt.A / like(norm, prompt.A)
    return dataclasses.replace(prompt, A=A, scale_a=prompt.scale_a * norm)


def _refined(
    A: Array, B: Array, spectrum: Spectrum, Q: Array, W: Array, found: np.ndarray
) -> tuple[Array, np.ndarray]:
    """W ← W + (B − WA)A⁺ on the original data, A⁺ from the polar factor Q that was found.

    A = HQ with H = AQᵀ symmetric positive definite, so that A⁺ = AᵀH⁻² by two solves with the
    condition number κ(A), not κ(A)² (when n < d: A = QH with H = QᵀA, A⁺ = H⁻¹Qᵀ). A step is
    taken when the step after it would be at most half as long; the length of the one not taken
    is returned too, and measures what may still be wrong.
    """
    xp = array_namespace(A)
    wide = A.shape[-1] >= A.shape[-2]
    H = A @ transpose(Q) if wide else transpose(Q) @ A
    H = identity_where(~found, H)
    # The gradient lets a large residual cancel in all its digits, but weighs them with κ².
    moderate = (spectrum.kappa < 1e8)[..., None]

    def correction(W: Array) -> Array:
        residual, gradient = _residual(A, B, W)
        if not wide:
            return transpose(xp.linalg.solve(transpose(H), transpose(residual))) @ transpose(Q)
        through_gradient = xp.linalg.solve(transpose(H), transpose(gradient))
        through_factor = transpose(residual @ transpose(Q))
        right = Members.keep_where(moderate, through_gradient, through_factor, axis=-1)
        return transpose(xp.linalg.solve(transpose(H), right))

    try:
        step = correction(W)
    except Exception as error:
        if not is_singular(error):
            raise
        return W, np.full(tuple(W.shape[:-1]), np.inf)  # κ(A) = 1/ε: nothing to gain
    size = norms(step, axis=-1)
    for _ in range(REFINEMENTS):
        next_step = correction(W + step)
        next_size = norms(next_step, axis=-1)
        better = (next_size < 0.5 * size) & found[..., None]
        if not better.any():
            break
        W = Members.keep_where(better, W + step, W, axis=-1)
        step = Members.keep_where(better, next_step, step, axis=-1)
        size = np.where(better, next_size, size)
    return W, size


def _residual(A: Array, B: Array, W: Array) -> tuple[Array, Array]:
    """B − WA and (B − WA)Aᵀ, in more digits than A has where that is cheap.

    These digits decide what refinement gains; a large residual cancels in the gradient.
    """
    xp, dtype = array_namespace(A), A.dtype
    if dtype == xp.float32:
        A, B, W = (xp.astype(block, xp.float64) for block in (A, B, W))
    elif is_numpy_array(A) and LONG_COST * W.shape[-2] <= min(A.shape[-2:]) + LONG_COST:
        A, B, W = (xp.astype(block, np.longdouble) for block in (A, B, W))
    residual = B - W @ A
    gradient = residual @ transpose(A)
    return xp.astype(residual, dtype), xp.astype(gradient, dtype)


def _nothing_yet(prompt: Prompt) -> Array:
    last = prompt.d if prompt.C is None else prompt.C.shape[-1]
    shape = (*prompt.batch, prompt.B.shape[-2], last)
    return prompt.xp.zeros(shape, dtype=prompt.A.dtype, device=prompt.A.device)


def _vanishing(prompt: Prompt, spectrum: Spectrum) -> np.ndarray:
    """Right-hand sides whose answer is zero: no range, no labels, or no query."""
    labels = norms(prompt.B, axis=-1) == 0
    nothing = (spectrum.rank == 0)[..., None]
    if prompt.C is None:
        return nothing | labels
    return nothing | labels.all(axis=-1, keepdims=True) | (norms(prompt.C, axis=-2) == 0)


def _disagrees(A: Array, spectrum: Spectrum) -> np.ndarray:
    """‖A‖_F² counts the conditioned directions; it must agree with what was foreseen."""
    measured = norms(A.reshape(*A.shape[:-2], -1), axis=-1) ** 2
    return ~(np.abs(measured - np.sum(spectrum.sigma**2, axis=-1)) <= 0.1)
