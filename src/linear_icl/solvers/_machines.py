"""The rounds of the distributed solvers, over whatever machines and messages there are.

Every method sends the same message: a machine takes the replicated d × n' block R and answers
with A_μA_μᵀR over B_μA_μᵀR, (d + d')n' numbers; the sum over the machines is all it learns of the
others. The methods differ in how A_μ is conditioned and in what they make of the sum.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from linear_icl._arrays import (
    check_number,
    check_tolerances,
    norms,
    power_of_two_scale,
    to_numpy,
)
from linear_icl.results import Communication, SolveResult, Status, finish
from linear_icl.solvers._gram import Examples
from linear_icl.solvers._spectrum import Spectrum, contracted, project_on_range

DEFAULT_MAXITER = 10_000
# Newton-Schulz makes any A of double precision a partial isometry in 95 layers.
MOST_LAYERS = 400
# Rounds of power iteration, at most, with which gradient descent finds its step.
POWER_ROUNDS = 30
# Entries beyond this cannot be squared any more: the rounds diverge.
LARGEST = 1e150
EPSILON = float(np.finfo(np.float64).eps)

# What all machines hold alike: the blocks, what the method carries along, the counters. It is
# all a checkpoint needs, since each machine can repeat its own layers by itself.
State = dict[str, np.ndarray]


class Communicator(Protocol):
    """How machines hear of each other."""

    machines: int
    """M, over every process."""

    def total(self, parts: list[np.ndarray]) -> np.ndarray:
        """The sum of one array of each machine, over every process; ``parts`` are the local ones.

        Every process must get the same bits, and the same bits every time.
        """

    def largest(self, values: list[np.ndarray]) -> np.ndarray:
        """The largest of each entry, over every machine of every process."""


class InProcess:
    """All machines in this process: sums in the order of the machines."""

    def __init__(self, machines: int) -> None:
        self.machines = machines

    def total(self, parts: list[np.ndarray]) -> np.ndarray:
        """The sum of the parts, first to last."""
        result = parts[0].copy()
        for part in parts[1:]:
            result += part
        return result

    def largest(self, values: list[np.ndarray]) -> np.ndarray:
        """The largest of each entry."""
        return np.max(values, axis=0)


class Machine:
    """One machine: its own examples (A_μ, B_μ) and the layers it runs on them by itself.

    With more examples than features the block is replaced by A_μQ, B_μQ, Q the d orthonormal
    rows spanned by A_μ: every message and every layer depends on A_μA_μᵀ and B_μA_μᵀ alone, which
    stay the same. Q is never formed, and the examples are read once, block by block, by a QR
    that keeps κ(A_μ) where the Gram matrix would square it.

    Parameters
    ----------
    A, B : arrays, shapes (d, n_μ) and (d', n_μ) or (n_μ,)
        Examples and labels, NumPy or torch, possibly memory-mapped; n_μ = 0 is allowed.
    eta : float
        EAGLE's η.
    rcond : float, optional
        Singular values below ``rcond`` times the largest count as zero; default d · machine
        epsilon of A: n_μ examples are as good as d, and their rounding errors average out.
    progress : callable
        Called once a block of examples.
    """

    def __init__(
        self,
        A: Any,
        B: Any,
        *,
        eta: float = 1 / 3,
        rcond: float | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        check_number("eta", eta)
        check_tolerances(1.0, 0.0, None, rcond)
        examples = Examples(A, B)
        if examples.batch:
            raise ValueError(f"A must have shape (d, n), without a batch; got {tuple(A.shape)}")
        self.dtype, self.vector_labels = examples.dtype, examples.vector_labels
        self.d, self.d_out, self.n = examples.d, examples.B.shape[-2], examples.n
        if rcond is None:
            kind = str(examples.A.dtype).removeprefix("torch.")
            rcond = self.d * float(np.finfo(kind).eps)
        A, B = _without_surplus(examples, progress)
        scale = power_of_two_scale(A)
        A = A / scale
        self.spectrum = Spectrum.of(A, rcond)
        self.rank = int(self.spectrum.rank)
        norm = self.spectrum.norm[0]
        size = norm * scale[0, 0] * examples.scale_a[0, 0]
        self.norm = float(size) if self.rank else 0.0
        # ‖A_μ‖ = 1 from here on; dividing A_μ and B_μ alike leaves W_μ as it is.
        self.A = A / norm
        self.B = B * (examples.scale_b / examples.scale_a / (norm * scale))
        self.eta, self.weight, self.layer = eta, 1.0, 0
        self.largest_label = float(np.max(np.abs(self.B), initial=0.0))

    def facts(self) -> np.ndarray:
        """What all must agree on beforehand: ‖A_μ‖, the size of the labels, layers needed."""
        return np.array([self.norm, self.largest_label, self.layers_needed()])

    def layers_needed(self) -> float:
        """Layers until A_μ is a partial isometry, foreseen from its spectrum; ∞ for never."""
        spectrum = copy.deepcopy(self.spectrum)
        for layer in range(MOST_LAYERS):
            if spectrum.isometric:
                return layer
            spectrum.step(self.eta)
        return np.inf

    def products(self, R: np.ndarray) -> np.ndarray:
        """The message: A_μA_μᵀR over B_μA_μᵀR."""
        inner = self.A.T @ R
        if self.weight != 1:
            inner *= self.weight
        return np.concatenate([self.A @ inner, self.B @ inner])

    def step(self, *, freeze: bool) -> None:
        """One layer: A_μ ← A_μ − η A_μA_μᵀA_μ, B_μ ← B_μ − η B_μA_μᵀA_μ, then ‖A_μ‖ = 1 again.

        A partial isometry is a fixed point. A rank-deficient one is repelling: directions that
        are zero come back as round-off and grow by half a layer, so there the layers end.
        """
        if self.spectrum.isometric and (freeze or not self.spectrum.full):
            return
        norm = self.spectrum.step(self.eta)
        eta, top = np.full((1, 1), self.eta), norm.reshape(1, 1)
        B = (self.B - self.eta * ((self.B @ self.A.T) @ self.A)) / top
        self.A, self.B = contracted(self.A, eta, top), B
        self.layer += 1
        if self.spectrum.isometric and not self.spectrum.full:
            self._purify()

    def condition(self) -> None:
        """All the layers that A_μ needs to become a partial isometry."""
        for _ in range(MOST_LAYERS):
            if self.spectrum.isometric:
                return
            self.step(freeze=True)

    def invert(self) -> None:
        """Find A_μ⁺ and range(A_μ) by EAGLE, then take the block back as it was.

        With labels I the weights are A_μ⁺ itself: A_μ⁺ = J A_μᵀ once A_μ is a partial isometry
        and J what has become of I.
        """
        A, B = self.A, self.B
        self.smallest = 1 / float(self.spectrum.kappa)
        self.B = np.eye(A.shape[1])
        self.condition()
        self.inverse, self.range = self.B @ self.A.T, self.A
        self.A, self.B = A, B

    def precondition(self, R: np.ndarray) -> np.ndarray:
        """(Σ_μ⁺ + (I − P_μ)/λ_min) R, λ_min the smallest positive eigenvalue of Σ_μ = A_μA_μᵀ.

        What this machine has not seen it takes to be as weak as the weakest it has seen.
        """
        if self.rank == 0:
            return np.zeros_like(R)
        unseen = R - self.range @ (self.range.T @ R)
        seen = self.inverse.T @ (self.inverse @ R)
        return (seen + unseen / self.smallest**2) / self.weight

    def _purify(self) -> None:
        """Take the round-off of the empty directions out again; NaN if it cannot be told apart."""
        self.A = project_on_range(self.A, self.A, self.spectrum.purifications())
        self.B = (self.B @ self.A.T) @ self.A
        counted = np.sum(self.A**2)
        if not self.spectrum.separated or abs(counted - self.rank) > 0.1:
            self.A = np.full_like(self.A, np.nan)  # all hear of it in the next message


def _without_surplus(
    examples: Examples, progress: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    """A and B with at most d columns and the same AAᵀ and BAᵀ, in one pass over the examples."""
    d = examples.d
    blocks = [np.zeros((0, d + examples.B.shape[-2]))]
    rows = 0
    for A, B in examples.blocks():
        progress()
        blocks.append(np.concatenate([to_numpy(A), to_numpy(B)]).T)
        rows += blocks[-1].shape[0]
        if examples.n > d and rows > 4 * d:
            blocks, rows = [_triangle(np.concatenate(blocks))], 0
    both = np.concatenate(blocks)
    if examples.n > d:
        both = _triangle(both)[:d]
    for name, block in (("A", both[:, :d]), ("B", both[:, d:])):
        if not np.isfinite(block).all():
            raise ValueError(f"{name} holds NaN or infinite entries")
    return np.ascontiguousarray(both[:, :d].T), np.ascontiguousarray(both[:, d:].T)


def _triangle(rows: np.ndarray) -> np.ndarray:
    """R of a QR factorisation, without Q."""
    R: Any = np.linalg.qr(rows, mode="r")
    return R


class _Method:
    """What a method sends and what it makes of the sum. ``s`` is the replicated state.

    C is what is left of the query, D what has been predicted: D + W*C = D* in every round.
    """

    # Whether blocks are conditioned round by round, or ahead of the first round.
    layered = ahead = False

    def __init__(self, s: State, machines: int, gamma: float) -> None:
        self.s, self.machines, self.gamma = s, machines, gamma

    @staticmethod
    def carried(C: np.ndarray, D: np.ndarray) -> State:
        """What the method adds to the state."""
        return {}

    def prepare(self, machine: Machine, norm: float) -> None:
        """Bring a machine to the round that the state stands at."""

    def message(self, machine: Machine) -> np.ndarray:
        """What a machine sends in this round."""
        return machine.products(self.s["C"])

    def after(self, machine: Machine) -> None:
        """What a machine does by itself once its message is sent."""

    def seen(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """The residual that went in and its image, for :func:`_judge_outside`."""
        return self.s["C"], self._split(total)[0]

    def receive(self, total: np.ndarray) -> None:
        """Use the sum."""
        raise NotImplementedError

    def _split(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        d = self.s["C"].shape[0]
        return total[:d] / self.machines, total[d:] / self.machines

    def _move(self, step: Any, of_C: np.ndarray, of_D: np.ndarray) -> None:
        """C ← C − step·(…), D ← D + step·(…), for the columns that still run."""
        step = np.where(self.s["running"], step, 0.0)
        self.s["C"] = self.s["C"] - step * of_C
        self.s["D"] = self.s["D"] + step * of_D


class _Average(_Method):
    """As printed: a layer on every machine, C and D averaged."""

    layered, freeze = True, False

    def prepare(self, machine: Machine, norm: float) -> None:
        for _ in range(int(self.s["round"])):
            machine.step(freeze=self.freeze)

    def after(self, machine: Machine) -> None:
        machine.step(freeze=self.freeze)

    def receive(self, total: np.ndarray) -> None:
        self._move(self.gamma, *self._split(total))


class _Frozen(_Average):
    """The same, but a machine leaves its block alone once that is a partial isometry."""

    freeze = True


class _Conjugate(_Method):
    """Conjugate gradients, in the form that makes the residual smallest (conjugate residuals).

    The search directions' images follow from the residual's, so that the message is the same as
    in gradient descent. Recurrences drift; what they claim is checked by one more round, with X:
    C = C₀ − E X.
    """

    ahead = True

    @staticmethod
    def carried(C: np.ndarray, D: np.ndarray) -> State:
        """X with C = C₀ − E X, the direction P with its images, and the state of the check."""
        columns = C.shape[1]
        return {
            "C0": C,
            "X": np.zeros_like(C),
            "P": np.zeros_like(C),
            "EP": np.zeros_like(C),
            "VP": np.zeros_like(D),
            "bend": np.zeros(columns),
            "checking": np.array(False),
            "claimed": np.zeros(columns, dtype=bool),
            "outside": np.zeros(columns, dtype=bool),
            "checked": np.full(columns, np.inf),
            "drift": np.zeros(columns),
        }

    def prepare(self, machine: Machine, norm: float) -> None:
        machine.condition()

    def message(self, machine: Machine) -> np.ndarray:
        return machine.products(self.s["X" if self.s["checking"] else "C"])

    def seen(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self.s["checking"] else super().seen(total)

    def receive(self, total: np.ndarray) -> None:
        s, (G, H) = self.s, self._split(total)
        if s["checking"]:
            _check(s, G, H)
            return
        C = s["C"]
        bend = np.sum(C * G, axis=0)
        self._turn(_over(bend, s["bend"]), C, G, H)
        self._walk(_over(bend, np.sum(s["EP"] ** 2, axis=0)))
        s["bend"] = bend

    def _turn(self, beta: np.ndarray, R: np.ndarray, G: np.ndarray, H: np.ndarray) -> None:
        """The next direction and its images."""
        s = self.s
        s["P"], s["EP"], s["VP"] = R + beta * s["P"], G + beta * s["EP"], H + beta * s["VP"]

    def _walk(self, step: np.ndarray) -> None:
        s = self.s
        step = np.where(s["claimed"] | ~s["running"], 0.0, step)
        s["X"] = s["X"] + step * s["P"]
        self._move(step, s["EP"], s["VP"])


class _RawConjugate(_Conjugate):
    """The same on the data as they are."""

    ahead = False

    def prepare(self, machine: Machine, norm: float) -> None:
        machine.weight = (machine.norm / norm) ** 2


class _Pooled(_RawConjugate):
    """Conjugate gradients on the data as they are, preconditioned by the conditioned blocks.

    Two rounds a step: the machines' inverses are averaged, then the direction is multiplied.
    """

    ahead = True

    @staticmethod
    def carried(C: np.ndarray, D: np.ndarray) -> State:
        """Z = M⁻¹C as well, and whether it is known yet."""
        return _Conjugate.carried(C, D) | {"Z": np.zeros_like(C), "ready": np.array(False)}

    def prepare(self, machine: Machine, norm: float) -> None:
        super().prepare(machine, norm)
        machine.invert()

    def message(self, machine: Machine) -> np.ndarray:
        s = self.s
        if s["ready"] or s["checking"]:
            return machine.products(s["X" if s["checking"] else "Z"])
        return machine.precondition(s["C"])

    def seen(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None

    def receive(self, total: np.ndarray) -> None:
        s = self.s
        if s["checking"]:
            super().receive(total)
            return
        if s["ready"]:
            G, H = self._split(total)
            bend = np.sum(s["C"] * s["Z"], axis=0)
            self._turn(_over(bend, s["bend"]), s["Z"], G, H)
            self._walk(_over(bend, np.sum(s["P"] * s["EP"], axis=0)))
            s["bend"] = bend
        else:
            s["Z"] = total / self.machines
        s["ready"] = ~s["ready"]


class _GradientDescent(_Method):
    """C ← C − ΣA_μA_μᵀC/λ, on the data as they are, after λ_max has been found."""

    @staticmethod
    def carried(C: np.ndarray, D: np.ndarray) -> State:
        """The power iteration that comes first; its start is the same everywhere."""
        probe = np.random.default_rng(0).standard_normal(C.shape)
        return {"looking": np.array(1), "top": np.array(0.0), "probe": probe / norms(probe, 0)}

    def prepare(self, machine: Machine, norm: float) -> None:
        machine.weight = (machine.norm / norm) ** 2

    def message(self, machine: Machine) -> np.ndarray:
        if self.s["looking"]:
            return machine.products(self.s["probe"])[: machine.d]
        return machine.products(self._point()[0])

    def seen(self, total: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        return None if self.s["looking"] else (self._point()[0], self._split(total)[0])

    def receive(self, total: np.ndarray) -> None:
        if self.s["looking"]:
            self._look(total / self.machines)
            return
        (C, D), (G, H) = self._point(), self._split(total)
        self._advance(C - self.gamma / self.s["top"] * G, D + self.gamma / self.s["top"] * H)

    def _point(self) -> tuple[np.ndarray, np.ndarray]:
        return self.s["C"], self.s["D"]

    def _advance(self, C: np.ndarray, D: np.ndarray) -> None:
        running = self.s["running"]
        self.s["C"] = np.where(running, C, self.s["C"])
        self.s["D"] = np.where(running, D, self.s["D"])

    def _look(self, image: np.ndarray) -> None:
        """Power iteration: the estimate lies below λ_max, by a few per cent at most."""
        s = self.s
        size = norms(image, axis=0)
        found = 1.1 * np.max(size, initial=0.0)
        settled = found <= 1.005 * s["top"] or s["looking"] >= POWER_ROUNDS or found == 0
        s["top"] = np.array(found if found > 0 else 1.0)
        s["looking"] = np.array(0 if settled else s["looking"] + 1)
        s["probe"] = image / np.where(size > 0, size, 1.0)


class _Nesterov(_GradientDescent):
    """With Nesterov's momentum, which starts anew whenever it points uphill (no κ needed)."""

    @staticmethod
    def carried(C: np.ndarray, D: np.ndarray) -> State:
        """The point before, and the momentum."""
        more = {"C_old": C, "D_old": D, "momentum": np.ones(C.shape[1])}
        return _GradientDescent.carried(C, D) | more

    def _point(self) -> tuple[np.ndarray, np.ndarray]:
        s = self.s
        theta = (s["momentum"] - 1) / _next_momentum(s["momentum"])
        return s["C"] + theta * (s["C"] - s["C_old"]), s["D"] + theta * (s["D"] - s["D_old"])

    def _advance(self, C: np.ndarray, D: np.ndarray) -> None:
        s = self.s
        uphill = norms(C, axis=0) > norms(s["C"], axis=0)
        s["momentum"] = np.where(uphill, 1.0, _next_momentum(s["momentum"]))
        s["C_old"], s["D_old"] = s["C"], s["D"]
        super()._advance(C, D)


def _next_momentum(t: np.ndarray) -> np.ndarray:
    return (1 + np.sqrt(1 + 4 * t**2)) / 2


def _over(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a/b, and 0 where b is 0: those columns are at their end."""
    return np.where(b == 0, 0.0, a / np.where(b == 0, 1.0, b))


METHODS: dict[str, type[_Method]] = {
    "average": _Average,
    "frozen": _Frozen,
    "cg": _Conjugate,
    "pooled": _Pooled,
    "gd": _GradientDescent,
    "nesterov": _Nesterov,
    "raw-cg": _RawConjugate,
}


def run(
    machines: list[Machine],
    C: np.ndarray,
    communicator: Communicator,
    *,
    method: str = "average",
    rtol: float = 1e-8,
    atol: float = 0.0,
    maxiter: int | None = None,
    gamma: float = 1.0,
    state: State | None = None,
    on_round: Callable[[State], None] | None = None,
    raise_on_failure: bool = False,
) -> SolveResult:
    """Rounds until what is left of C is small: the one loop of all methods and all transports.

    ``machines`` are this process's, fresh, all of the same d and d'; ``C`` is (d, n') in float64
    and the same everywhere. ``state`` continues a run from what ``on_round`` was given after
    any of its rounds, to the same bits. Returns D of shape (d', n').
    """
    check_tolerances(rtol, atol, maxiter, None)
    check_number("gamma", gamma)
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    norm, labels, layers = communicator.largest([machine.facts() for machine in machines])
    s = (
        _start(machines[0], C, METHODS[method])
        if state is None
        else {k: v.copy() for k, v in state.items()}
    )
    s["messages"], s["numbers"] = s["messages"] + 1, s["numbers"] + 3
    rounds = METHODS[method](s, communicator.machines, gamma)
    for machine in machines:
        rounds.prepare(machine, norm if norm > 0 else 1.0)
    scale = s["scale"]
    whole = norms(C / scale, axis=0)
    target = np.maximum(rtol * whole, atol / scale)
    relative = np.where(whole > 0, whole, 1.0)
    if state is None:
        _record(s, np.where((norm > 0) and (labels > 0), whole / relative, 0.0))
        _stop(s, (whole == 0) | (norm == 0) | (labels == 0), Status.CONVERGED)
    note = ""
    if rounds.ahead and layers == np.inf:
        _stop(s, s["running"], Status.BREAKDOWN)
        note = "Layers with this eta (default 1/3) do not make every block a partial isometry"
    if not rounds.layered:
        layers = 0  # the same operator from the first round on
    limit = DEFAULT_MAXITER if maxiter is None else maxiter

    while s["running"].any() and s["round"] < limit:
        messages = [rounds.message(machine) for machine in machines]
        total = communicator.total(messages)
        s["messages"], s["numbers"] = s["messages"] + 1, s["numbers"] + messages[0].size
        diverged = not (np.abs(total[: len(C)]) < LARGEST).all()
        if diverged or not np.isfinite(total).all():
            _stop(s, s["running"], Status.BREAKDOWN)
            note = "A message was not finite: the steps are too long, or a block has no clear rank"
            break
        if s["round"] >= layers:
            _judge_outside(s, rounds.seen(total), layers, target, rounds.layered)
        with np.errstate(over="ignore", invalid="ignore"):
            rounds.receive(total)
        for machine in machines:
            rounds.after(machine)
        s["round"] = s["round"] + 1
        left = norms(s["C"], axis=0)
        _record(s, left / relative)
        _judge(s, left, target)
        if on_round is not None:
            on_round(s)
    return finish(
        statuses=_gravest(s["status"]),
        iterations=int(s["round"]),
        history=s["history"].copy(),
        raise_on_failure=raise_on_failure,
        note=note,
        communication=Communication(int(s["messages"]), int(s["numbers"])),
        D=s["D"] * scale,
    )


def _start(machine: Machine, C: np.ndarray, carried: type[_Method]) -> State:
    """The state before the first round."""
    scale = power_of_two_scale(C)[0, 0]
    C = C / scale
    columns = C.shape[1]
    D = np.zeros((machine.d_out, columns))
    return {
        "round": np.array(0),
        "messages": np.array(0),
        "numbers": np.array(0),
        "scale": np.array(scale),
        "C": C,
        "D": D,
        "running": np.ones(columns, dtype=bool),
        "status": np.full(columns, _CODES.index(Status.MAXITER)),
        "history": np.zeros(0),
        # C a while ago, its image, and the slowest rate that C has been seen to lose its parts.
        "anchor_round": np.array(-1.0),
        "anchor": C,
        "anchor_image": np.zeros_like(C),
        "slowest": np.ones(columns),
        **carried.carried(C, D),
    }


_CODES = list(Status)


def _record(s: State, left: np.ndarray) -> None:
    """Append the worst column's ‖C‖ in units of the query's."""
    s["history"] = np.append(s["history"], np.max(left, initial=0.0))


def _stop(s: State, where: np.ndarray, status: Status) -> None:
    where = where & s["running"]
    s["status"] = np.where(where, _CODES.index(status), s["status"])
    s["running"] = s["running"] & ~where


def _gravest(codes: np.ndarray) -> np.ndarray:
    status = np.empty((), dtype=object)
    status[()] = _CODES[np.max(codes, initial=_CODES.index(Status.CONVERGED))]
    return status


def _judge_outside(
    s: State,
    seen: tuple[np.ndarray, np.ndarray] | None,
    layers: float,
    target: np.ndarray,
    conditioned: bool,
) -> None:
    """End columns of C of which only a part out of the joint range is left, by all one can tell.

    That part has no image and stays as it is, while the rest fades, each component at the rate
    of its eigenvalue. What has faded over the last third of the rounds shows, by its Rayleigh
    quotient, the slowest rate at work; divided by it, the size of the image estimates the rest.
    An image that is lost in round-off is the end in any case: conjugate directions made of it
    would be noise.
    """
    if seen is None:
        return
    C, image = seen
    size, then = norms(image, axis=0), s["anchor_round"]
    lost = s["running"] & (size <= 64 * EPSILON * norms(C, axis=0))
    due = then < 0 or s["round"] - layers >= 1.5 * (then - layers) + 4
    if not (due or lost.any()):
        return
    faded, faded_image = s["anchor"] - C, s["anchor_image"] - image
    moved = norms(faded, axis=0)
    if then >= 0:
        rate = _over(np.sum(faded * faded_image, axis=0), moved**2)
        told = (moved > 1e-10 * norms(s["anchor"], axis=0)) & (rate > 0)
        s["slowest"] = np.where(told, np.minimum(s["slowest"], rate), s["slowest"])
    still = lost | (moved <= target / 2) & (due and then >= 0)
    outside = still & (size <= target / 2 * s["slowest"])
    if due:
        s["anchor_round"], s["anchor"], s["anchor_image"] = s["round"] * 1.0, C, image
    if "checking" in s:
        s["claimed"], s["outside"] = s["claimed"] | outside, s["outside"] | outside
    else:
        # On raw data a weak direction that has not moved yet looks the same as one outside.
        _stop(s, outside, Status.CONVERGED if conditioned else Status.STAGNATED)
    _stop(s, lost & ~outside, Status.STAGNATED)


def _check(s: State, image: np.ndarray, prediction: np.ndarray) -> None:
    """Put the true residual and the prediction of X in the place of the recurrences'."""
    running, true = s["running"], s["C0"] - image
    s["drift"] = norms(true - s["C"], axis=0)
    s["C"] = np.where(running, true, s["C"])
    s["D"] = np.where(running, prediction, s["D"])
    s["bend"] = np.zeros_like(s["bend"])  # the next direction is the residual itself


def _judge(s: State, left: np.ndarray, target: np.ndarray) -> None:
    """Stop the columns that have arrived; of recurrences, only after a check."""
    arrived = left <= target
    if "checking" not in s:
        _stop(s, arrived, Status.CONVERGED)
    elif s["checking"]:
        claimed = s["claimed"]
        right = arrived | (s["outside"] & (s["drift"] <= target))
        _stop(s, claimed & right, Status.CONVERGED)
        _stop(s, claimed & ~(left < 0.5 * s["checked"]), Status.STAGNATED)
        s["checked"] = np.where(claimed, left, s["checked"])
        s["claimed"], s["outside"] = np.zeros_like(claimed), np.zeros_like(claimed)
        s["checking"] = np.array(False)
    else:
        s["claimed"] = s["claimed"] | arrived
        s["checking"] = np.array(bool((s["claimed"] | ~s["running"]).all()))
