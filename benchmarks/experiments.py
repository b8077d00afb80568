"""Measure every experiment of the source document and of EAGLE's evaluation again.

python benchmarks/experiments.py [PART …]     parts: see PARTS below; default all

One thread. Each part writes results/experiments_PART.json after every cell of its table, and a
cell that stands there is not measured again: a run that was broken off goes on where it stopped,
and a file that is deleted is measured anew. Seconds are those of the processor: on a shared machine
the clock on the wall measures the others too. About eight minutes of one core.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from provenance import RESULTS, provenance, save
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from linear_icl import problems, solvers, theory
from linear_icl.solvers import sketching

N, D_OUT, N_QUERY = 240, 2, 2
# The published 1e-20 is a squared error.
TARGET = 1e-10
KAPPAS = (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
# Prompts a cell; the slow ones, which take thousands of iterations or layers, have fewer.
SEEDS, FEWER = 50, 10
# No run ends by its own tolerance: errors are counted from outside.
NEVER = 1e-300
MOST = {"gd": 20_000, "cg": 30_000, "cgls": 30_000, "gd++": 100, "eagle": 100, "minimax": 100}
# Iterations without an error half as large after which a method has come as far as it will.
PATIENCE = {"gd": 20_000, "cg": 4000, "cgls": 4000, "gd++": 5, "eagle": 5, "minimax": 5}
FINDS_WEIGHTS = ("gd", "cg", "cgls", "qr", "svd")

Cell = tuple[str, Callable[[], dict[str, Any]]]


class Settled(Exception):
    """Nothing more is to be seen in this run."""


class Watch:
    """Errors of the iterates and the processor seconds that they took, its own left out.

    Ends the run at the target, or where the errors stand still.
    """

    def __init__(self, error: Callable[[Any], float], patience: int, target: float = 0.0) -> None:
        self.error, self.patience, self.target = error, patience, target
        self.errors, self.best, self.since = [1.0], 1.0, 0
        self.seconds, self.begun = [0.0], time.process_time()

    def __call__(self, found: Any) -> None:
        """Take the iterate of one more step."""
        spent = time.process_time() - self.begun
        self.seconds.append(self.seconds[-1] + spent)
        error = float(self.error(found))
        self.errors.append(error)
        if error < 0.5 * self.best:
            self.best, self.since = error, 0
        elif self.best < 1e-5:  # before, EAGLE prepares A, and its error may stand still
            self.since += 1
        if error <= self.target or self.since >= self.patience:
            raise Settled
        self.begun = time.process_time()


def significant(value: Any, digits: int = 3) -> Any:
    """Three digits of a number or of each of a list; None where there is no finite one."""
    if isinstance(value, list | tuple | np.ndarray):
        return [significant(v, digits) for v in value]
    if value is None or not np.isfinite(value):
        return None
    return float(f"{value:.{digits}g}")


@functools.lru_cache(maxsize=1)
def prompt(kappa: float | None = 1e2, n: int = N, seed: int = 0, **options: Any) -> Any:
    """The published setting: square, log-uniform, noiseless, two outputs and two queries."""
    return problems.completion(n, n, D_OUT, N_QUERY, kappa=kappa, rng=seed, **options)


def start(name: str, A: Any, B: Any, C: Any, most: int, callback: Any) -> Any:
    """Run an iterative method to its end, or until the callback ends it."""
    options = {"rtol": NEVER, "maxiter": most, "callback": callback}
    if name == "gd":
        return solvers.gradient_descent(A, B, **options)
    if name == "cgls":
        return solvers.cgls(A, B, **options)
    if name == "cg":  # as published: on the normal equations, with the Gram matrix formed
        return solvers.conjugate_gradient(A @ A.T, A @ B.T, **options)
    if name == "gd++":
        return solvers.gd_plus_plus(A, B, C, **options)
    schedule = "minimax" if name == "minimax" else "newton-schulz"
    return solvers.eagle(A, B, C, form="data", schedule=schedule, **options)


def run(name: str, problem: Any, target: float = 0.0) -> Watch:
    """Relative errors of D and seconds after 0, 1, 2, … iterations."""

    def error(found: Any) -> float:
        weights = found.T if name == "cg" else found
        return problem.error(weights @ problem.C if name in FINDS_WEIGHTS else found)

    watch = Watch(error, PATIENCE[name], target)
    with contextlib.suppress(Settled):
        start(name, problem.A, problem.B, problem.C, MOST[name], watch)
    return watch


def first(course: list[float], target: float) -> int | None:
    """The first iteration with that error."""
    below = np.flatnonzero(np.asarray(course) <= target)
    return int(below[0]) if below.size else None


def descent_steps(problem: Any, target: float) -> int:
    """Gradient descent's iterations to an error, by the closed form of its course."""
    U, sigma, _ = np.linalg.svd(problem.A)
    left, right = problem.W_star @ U, U.T @ problem.C
    shrink = np.log1p(-np.minimum((sigma / sigma[0]) ** 2, 1 - 1e-16))

    def error(steps: float) -> float:
        return np.linalg.norm((left * np.exp(steps * shrink)) @ right)

    low, high = 0, 1
    while error(high) > target * error(0):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if error(middle) > target * error(0) else (low, middle)
    return high


def processor_seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The least processor time of several runs."""
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        with contextlib.suppress(Settled):
            run()
        times.append(time.process_time() - begin)
    return min(times)


# ---------------------------------------------------------------------------------------------
# One machine, no noise


def race() -> Iterator[Cell]:
    """Error against iterations, seconds and operations at κ = 1e4."""

    def measure(name: str, seeds: int) -> dict[str, Any]:
        runs = [run(name, prompt(1e4, seed=seed)) for seed in range(seeds)]
        found = [r.errors for r in runs]
        longest = max(map(len, found))
        table = np.array([[*c, *[min(c)] * (longest - len(c))] for c in found])
        at = np.unique(np.geomspace(1, longest - 1, 150).round().astype(int))
        # Of the fastest run, an iteration.
        second = min(r.seconds[-1] / (len(r.seconds) - 1) for r in runs)
        setup = min(r.seconds[1] for r in runs) - second
        cost = theory.flops(name, N, N, D_OUT, N_QUERY)
        return {
            "seeds": seeds,
            "iterations": at.tolist(),
            "median": significant(np.median(table[:, at], axis=0)),
            "low": significant(table[:, at].min(axis=0)),
            "high": significant(table[:, at].max(axis=0)),
            "seconds": significant(max(setup, 0.0) + second * at),
            "flops": [float(cost.total(int(k))) for k in at],
            "to_target": [first(c, TARGET) for c in found],
        }

    def direct(name: str) -> dict[str, Any]:
        p = prompt(1e4)

        def solve() -> Any:
            return solvers.least_squares(p.A, p.B, method=name).W @ p.C

        return {
            "error": significant(p.error(solve())),
            "seconds": significant(processor_seconds(solve, 9)),
            "flops": float(theory.flops(name, N, N, D_OUT, N_QUERY).total()),
        }

    for name in ("minimax", "eagle", "gd++", "cgls", "cg", "gd"):
        seeds = SEEDS if name in ("minimax", "eagle", "gd++") else FEWER
        yield name, lambda name=name, seeds=seeds: measure(name, seeds)
    for name in ("qr", "svd"):
        yield name, lambda name=name: direct(name)


def kappa() -> Iterator[Cell]:
    """Iterations to an error of 1e-10, and to the smallest error there is, against κ(A)."""

    def measure(name: str, kappa: float, seeds: int) -> dict[str, Any]:
        found = [run(name, prompt(kappa, seed=seed)).errors for seed in range(seeds)]
        return {
            "seeds": seeds,
            "most": MOST[name],
            "to_target": [first(c, TARGET) for c in found],
            "floor": significant([min(c) for c in found], 2),
            "to_floor": [first(c, 2 * min(c)) for c in found],
        }

    def closed_form(kappa: float) -> dict[str, Any]:
        steps = [descent_steps(prompt(kappa, seed=seed), TARGET) for seed in range(SEEDS)]
        return {"seeds": SEEDS, "to_target": steps}

    for kappa in KAPPAS:
        yield f"gd, kappa {kappa:.0e}", lambda k=kappa: closed_form(k)
        for name in ("minimax", "eagle", "gd++"):
            yield f"{name}, kappa {kappa:.0e}", lambda m=name, k=kappa: measure(m, k, SEEDS)
        for name in ("cgls", "cg"):
            seeds = FEWER if kappa <= 1e3 else 3  # up to a quarter of a minute each
            yield f"{name}, kappa {kappa:.0e}", lambda m=name, k=kappa, s=seeds: measure(m, k, s)
    yield "gd run, kappa 1e+01", lambda: measure("gd", 1e1, 3)


def deficient() -> Iterator[Cell]:
    """Rank 120 of 240: a query inside the range of A, and one with a part outside."""

    def outside(p: Any) -> Any:
        U = np.linalg.svd(p.A)[0][:, p.meta["rank"] :]
        return p.C + 0.1 * U @ np.random.default_rng(1).standard_normal((U.shape[1], N_QUERY))

    def solved(name: str, p: Any, C: Any) -> tuple[int, float, str]:
        if name == "svd":
            return 0, p.error(solvers.nystrom(p.A, p.B, C).D), "CONVERGED"
        if name == "cgls":
            result = solvers.cgls(p.A, p.B, rtol=1e-13, maxiter=MOST["cgls"])
            return int(np.max(result.iterations)), p.error(result.W @ C), result.status.name
        schedule = "minimax" if name == "minimax" else "newton-schulz"
        result = solvers.eagle(p.A, p.B, C, schedule=schedule, rtol=TARGET)
        return int(result.iterations), p.error(result.D), result.status.name

    def measure(name: str, kappa: float, inside: bool, seeds: int) -> dict[str, Any]:
        ends = []
        for seed in range(seeds):
            p = prompt(kappa, seed=seed, rank=N // 2)
            ends.append(solved(name, p, p.C if inside else outside(p)))
        steps, left, names = zip(*ends, strict=True)
        return {
            "seeds": seeds,
            "iterations": list(steps),
            "errors": significant(left, 2),
            "converged": sum(name == "CONVERGED" for name in names),
        }

    def unguarded(kappa: float, seeds: int) -> dict[str, Any]:
        """The printed update, which knows no rank, goes on for 150 layers."""
        courses = []
        for seed in range(seeds):
            p = prompt(kappa, seed=seed, rank=N // 2)
            D_of = layers([(p.A, p.B)], outside(p), 150, eta=1 / 3)
            courses.append([p.error(D) for D in D_of])
        return {
            "seeds": seeds,
            "best": significant([min(c) for c in courses], 2),
            "best_after": [1 + int(np.argmin(c)) for c in courses],
            "after_150": significant([c[-1] for c in courses], 2),
        }

    for kappa in (1e2, 1e4):
        for inside in (True, False):
            where = "inside" if inside else "outside"
            for name in ("eagle", "minimax", "svd", "cgls"):
                seeds = FEWER if name == "cgls" else SEEDS
                yield (
                    f"{name}, kappa {kappa:.0e}, {where}",
                    lambda m=name, k=kappa, i=inside, s=seeds: measure(m, k, i, s),
                )
        yield f"printed, kappa {kappa:.0e}, outside", lambda k=kappa: unguarded(k, FEWER)


def sizes() -> Iterator[Cell]:
    """n = d = 240, 1024, 1920 at κ = 1e2: iterations and seconds to 1e-10."""

    def measure(name: str, n: int, seeds: int) -> dict[str, Any]:
        steps, seconds, left = [], [], []
        for seed in range(seeds):
            p = prompt(1e2, n, seed)
            if name in ("qr", "svd"):

                def solve(p: Any = p) -> Any:
                    return solvers.least_squares(p.A, p.B, method=name).W @ p.C

                left.append(p.error(solve()))
                seconds.append(processor_seconds(solve, 1))
                continue
            watch = run(name, p, TARGET)
            steps.append(len(watch.errors) - 1)
            left.append(watch.errors[-1])
            seconds.append(watch.seconds[-1])
        cost = theory.flops(name, n, n, D_OUT, N_QUERY)
        return {
            "seeds": seeds,
            "iterations": steps,
            "seconds": significant(seconds),
            "errors": significant(left, 2),
            "flops": float(cost.total(max(steps, default=0))),
        }

    for n, seeds in ((240, SEEDS), (1024, 2), (1920, 1)):
        for name in ("minimax", "eagle", "cgls", "qr", "svd"):
            yield f"{name}, n {n}", lambda m=name, n=n, s=seeds: measure(m, n, s)


def drawn(kind: str, seed: int) -> problems.Completion:
    """A prompt of one of the published distributions: X = R₁R₂ᵀ/√r from two factors."""
    rng = np.random.default_rng(seed)
    if kind == "log-uniform":
        return prompt(1e2, seed=seed)
    d, n, r = N + D_OUT, N + N_QUERY, N
    if kind == "clustered":  # rows belong to one of five clusters: a factor of rank five
        r = 5
        R1, R2 = np.eye(r)[rng.integers(r, size=d)], rng.standard_normal((n, r))
    else:
        R1, R2 = (problems.completion(rows, r, 1, 1, spectrum=kind, rng=rng).A for rows in (d, n))
    A, B, C, D = problems.blocks(R1 @ R2.T / np.sqrt(r), N, N)
    return problems.Completion(A, B, C, D, D, kappa=theory.condition_number(A))


def distributions() -> Iterator[Cell]:
    """Six distributions of the data, as published: iterations to 1e-10."""

    def measure(kind: str, name: str, seeds: int) -> dict[str, Any]:
        found, kappas = [], []
        for seed in range(seeds):
            p = drawn(kind, seed)
            kappas.append(p.kappa)
            found.append(run(name, p).errors)
        return {
            "seeds": seeds,
            "kappa": significant(kappas),
            "most": MOST[name],
            "to_target": [first(c, TARGET) for c in found],
            "floor": significant([min(c) for c in found], 2),
            "to_floor": [first(c, 2 * min(c)) for c in found],
        }

    kinds = ("log-uniform", "gaussian", "student-t", "correlated", "sparse-rademacher", "clustered")
    for kind in kinds:
        for name, seeds in (("minimax", SEEDS), ("eagle", SEEDS), ("cgls", FEWER)):
            yield f"{name}, {kind}", lambda k=kind, m=name, s=seeds: measure(k, m, s)


# ---------------------------------------------------------------------------------------------
# Noise, step sizes, forms


def layers(parts: list[Any], C: Any, count: int, eta: float, rank: int | None = None) -> Any:
    """The printed update on one machine or several, with or without a sketch: D after each layer.

    With η = 0 the features stay as they are, and this is (stochastic) gradient descent.
    """
    norms = [np.linalg.norm(A, 2) for A, _ in parts]
    parts = [(A / norm, B / norm) for (A, B), norm in zip(parts, norms, strict=True)]
    sketches = sketching.columns(rank or 1, rng=0).matrices(parts[0][0].shape[1])
    D = np.zeros((parts[0][1].shape[0], C.shape[1]))
    for layer in range(count):
        new = []
        for A, B in parts:
            # ‖A‖₂ is 1 at the start and shrinks by exactly 1 − η a layer.
            rho = (1 - eta) ** (-2.0 * layer)
            if rank is not None:
                S = next(sketches)
                new.append(solvers.eagle_update(A, B, C, D, S, eta=eta, gamma=1.0))
            elif eta:
                new.append(solvers.eagle_update(A, B, C, D, eta=eta, gamma=1.0, rho=rho))
            else:
                step = A.T @ C
                new.append((A, B, C - A @ step, D + B @ step))
        parts = [(A, B) for A, B, _, _ in new]
        C = sum(part[2] for part in new) / len(new)
        D = sum(part[3] for part in new) / len(new)
        yield D


def noise() -> Iterator[Cell]:
    """Noise on all of X, all three regimes: errors against the noiseless answer, EAGLE and GD."""
    regimes = {"eagle": (60, 2000), "sketch": (300, 1000), "distributed": (200, 2000)}

    def measure(regime: str, sigma: float, seeds: int) -> dict[str, Any]:
        courses: dict[str, list[list[float]]] = {"eagle": [], "gd": []}
        direct, alphas = [], []
        for seed in range(seeds):
            if regime == "distributed":
                p = problems.distributed(
                    N, N, D_OUT, N_QUERY, machines=3, alpha=0.35, kappa=1e2, rng=seed
                )
            else:
                p = prompt(1e2, seed=seed)
            rng = np.random.default_rng([seed, 1])
            A, B, C = (x + sigma * rng.standard_normal(x.shape) for x in (p.A, p.B, p.C))
            parts = [(A, B)]
            if regime == "distributed":
                cuts = np.cumsum(p.sizes)[:-1]
                parts = list(zip(np.split(A, cuts, 1), np.split(B, cuts, 1), strict=True))
                alphas.append(theory.diversity_index([A for A, _ in parts]))
            for name, count, eta in zip(courses, regimes[regime], (1 / 3, 0.0), strict=True):
                rank = N // 4 if regime == "sketch" else None
                courses[name].append([1.0, *map(p.error, layers(parts, C, count, eta, rank))])
            direct.append(p.error(solvers.nystrom(A, B, C).D))
        found: dict[str, Any] = {"seeds": seeds, "direct": significant(direct)}
        found["alpha"] = significant(alphas)
        for name, course in courses.items():
            table = np.array(course)
            at = np.unique(np.geomspace(1, table.shape[1] - 1, 80).round().astype(int))
            found[name] = {
                "iterations": at.tolist(),
                "median": significant(np.median(table[:, at], axis=0)),
                "low": significant(table[:, at].min(axis=0)),
                "high": significant(table[:, at].max(axis=0)),
                "best": significant(table.min(axis=1)),
                "best_after": np.argmin(table, axis=1).tolist(),
                "last": significant(table[:, -1]),
            }
        return found

    for sigma in (0.01, 0.001):
        for regime in regimes:
            yield f"{regime}, sigma {sigma:g}", lambda r=regime, s=sigma: measure(r, s, 20)


SCALES = (0.2, 0.35, 0.6, 0.8, 1.0, 1.25, 1.5, 1.75, 2.0)


def steps() -> Iterator[Cell]:
    """The best error within 200 layers when the steps are scaled, and their ratio changed."""
    p = problems.completion(15, 15, D_OUT, N_QUERY, kappa=1e2, batch=20, rng=0)

    def measure(scale: float) -> dict[str, Any]:
        best = []
        for ratio in SCALES:
            eta, gamma = scale / 3 / np.sqrt(ratio), scale * np.sqrt(ratio)
            A, B, C, D = p.A, p.B, p.C, np.zeros_like(p.D)
            least = np.ones(20)
            with np.errstate(all="ignore"):
                for _ in range(200):
                    # Only ratios to ‖A‖₂ matter: it is kept at 1, and so is ρ.
                    norm = np.linalg.norm(A, 2, axis=(-2, -1))[:, None, None]
                    if not (np.isfinite(norm) & (norm > 0)).all() or not np.isfinite(C).all():
                        break
                    A, B = A / norm, B / norm
                    A, B, C, D = solvers.eagle_update(A, B, C, D, eta=eta, gamma=gamma, rho=1.0)
                    least = np.fmin(least, p.error(D))
            best.append(least)
        return {
            "ratios": list(SCALES),
            "median": significant([np.median(b) for b in best], 2),
            "worst": significant([np.max(b) for b in best], 2),
        }

    for scale in SCALES:
        yield f"scale {scale:g}", lambda s=scale: measure(s)


def forms() -> Iterator[Cell]:
    """The data form, which predicts D, beside the estimation form, which finds W."""

    def measure(seeds: int) -> dict[str, Any]:
        gaps, data, estimation = [], [], []
        for seed in range(seeds):
            p = prompt(1e2, seed=seed)
            courses: list[list[Any]] = [[], []]
            for course, query in zip(courses, (p.C, None), strict=True):
                # The same layers in both, beyond what either needs.
                options = {"form": "data", "rtol": NEVER, "maxiter": 20, "refine": False}
                solvers.eagle(p.A, p.B, query, callback=course.append, **options)
            predicted = [W @ p.C for W in courses[1]]
            size = np.linalg.norm(p.D_star)
            pairs = list(zip(courses[0], predicted, strict=False))
            gaps.append(max(np.linalg.norm(D - E) for D, E in pairs) / size)
            data.append(first([1.0, *map(p.error, courses[0])], TARGET))
            estimation.append(first([1.0, *map(p.error, predicted)], TARGET))
        return {
            "largest_difference": significant(gaps, 2),
            "data": data,
            "estimation": estimation,
        }

    def seconds(query: str) -> dict[str, Any]:
        p = prompt(1e2)
        C = {"two queries": p.C, "weights": None, "identity": np.eye(N)}[query]

        def run(layers: int) -> None:
            solvers.eagle(p.A, p.B, C, form="data", rtol=NEVER, maxiter=layers, refine=False)

        long, short = (processor_seconds(lambda k=k: run(k), 7) for k in (12, 2))
        return {"seconds_a_layer": significant((long - short) / 10)}

    yield "layer by layer", lambda: measure(20)
    for query in ("two queries", "weights", "identity"):
        yield query, lambda q=query: seconds(q)


# ---------------------------------------------------------------------------------------------
# Sparse matrices

# Name: published rank, condition number, non-zeros a row (density times columns), the divisor of
# the rank here, and the published seconds of EAGLE, SVD, CG and LSMR.
SUITE_SPARSE = {
    "Maragal_4": (801, 1.38e7, 0.013 * 1034, 1, (0.625, 0.849, 1.55, 2.34)),
    "Maragal_5": (2147, 1.22e6, 0.006 * 3320, 3, (0.632, 1.4, 1.75, 1.4)),
    "pf2177": (9662, 2.19e3, 0.00031 * 10178, 12, (3.43, 4.23, 1.75, 3.51)),
    "dwt_1007": (1000, 2.97e3, 0.0085 * 1007, 1, (0.64, 0.902, 4.65, 9.73)),
    "bcsstm13": (1241, 2.70e4, 0.0053 * 2003, 2, (0.697, 0.955, 3.17, 1.16)),
    "162bit": (3460, 1.68e4, 0.0029 * 3597, 4, (0.847, 2.35, 16.7, 57.1)),
    "N_pid": (2048, 2.47e2, 0.00057 * 3923, 2, (0.675, 1.15, 1.27, 1.96)),
}
SPARSE_METHODS = ("eagle", "minimax", "svd", "cg", "lsmr", "sparse lu")
RESIDUALS = (10**-1.5, 1e-6)


def sparse_matrix(size: int, kappa: float, a_row: float, rng: np.random.Generator) -> Any:
    """A sparse matrix of known singular values, log-uniform in [1/κ, 1].

    A permuted diagonal matrix, turned in planes of two rows or two columns, which changes no
    singular value and fills the matrix, until there are as many non-zeros a row as wanted.
    """
    sigma = np.exp(rng.uniform(-np.log(kappa), 0, size))
    sigma[:2] = 1, 1 / kappa
    A = np.diag(rng.permutation(sigma))[:, rng.permutation(size)]
    while np.count_nonzero(A) < a_row * size:
        for _ in range(max(1, size // 20)):
            for view in (A, A.T):
                i, j = rng.choice(size, 2, replace=False)
                c, s = np.cos(angle := rng.uniform(0, 2 * np.pi)), np.sin(angle)
                view[[i, j]] = c * view[i] + s * view[j], c * view[j] - s * view[i]
    return A


def sparse() -> Iterator[Cell]:
    """Matrices like seven of SuiteSparse: seconds to a residual, one right-hand side."""

    def measure(name: str) -> dict[str, Any]:
        rank, kappa, a_row, divisor, _ = SUITE_SPARSE[name]
        size, rng = rank // divisor, np.random.default_rng(list(SUITE_SPARSE).index(name))
        A = sparse_matrix(size, kappa, a_row, rng)
        sparse_A, sparse_T = scipy.sparse.csr_array(A), scipy.sparse.csr_array(A.T)
        b = rng.standard_normal((1, size)) @ A
        found: dict[str, Any] = {
            "size": size,
            "kappa": significant(np.linalg.cond(A)),
            "non_zeros": int(sparse_A.nnz),
            "methods": {},
        }

        def residual(w: Any) -> float:
            return float(np.linalg.norm(b - (sparse_T @ w.T).T) / np.linalg.norm(b))

        for method in SPARSE_METHODS:
            found["methods"][method] = solved(method, A, sparse_A, sparse_T, b, residual)
        return found

    def solved(
        method: str, A: Any, sparse_A: Any, sparse_T: Any, b: Any, residual: Any
    ) -> dict[str, Any]:
        if method in ("svd", "sparse lu"):
            last: dict[str, Any] = {}

            def solve() -> None:
                if method == "svd":
                    last["w"] = np.linalg.lstsq(A.T, b.T, rcond=None)[0].T
                else:
                    last["w"] = scipy.sparse.linalg.splu(sparse_T.tocsc()).solve(b[0])[None]

            seconds = processor_seconds(solve, 2)
            return {
                f"{target:.1e}": entry(0, seconds, residual(last["w"]), target)
                for target in RESIDUALS
            }
        if method == "lsmr":
            entries = {}
            for target in RESIDUALS:
                begin = time.process_time()
                w, _, steps, *_ = scipy.sparse.linalg.lsmr(
                    sparse_T, b[0], atol=0, btol=target, conlim=0, maxiter=20_000
                )
                spent = time.process_time() - begin
                entries[f"{target:.1e}"] = entry(int(steps), spent, residual(w[None]), target)
            return entries
        options = {"rtol": NEVER, "callback": (watch := Watch(residual, 20_000, RESIDUALS[-1]))}
        with contextlib.suppress(Settled):
            if method == "cg":
                solvers.cgls(sparse_A, b, maxiter=20_000, **options)
            else:
                schedule = "minimax" if method == "minimax" else "newton-schulz"
                options |= {"form": "data", "schedule": schedule, "refine": False}
                solvers.eagle(A, b, maxiter=100, **options)
        entries = {}
        for target in RESIDUALS:
            reached = first(watch.errors, target)
            at = len(watch.errors) - 1 if reached is None else reached
            entries[f"{target:.1e}"] = entry(at, watch.seconds[at], watch.errors[at], target)
        return entries

    def entry(steps: int, seconds: float, left: float, target: float) -> dict[str, Any]:
        return {
            "seconds": significant(seconds),
            "iterations": steps,
            "residual": significant(left, 2),
            "reached": bool(left <= 1.01 * target),
        }

    for name in SUITE_SPARSE:
        yield name, lambda name=name: measure(name)


PARTS: dict[str, Callable[[], Iterator[Cell]]] = {
    "race": race,
    "forms": forms,
    "steps": steps,
    "deficient": deficient,
    "noise": noise,
    "distributions": distributions,
    "kappa": kappa,
    "sparse": sparse,
    "sizes": sizes,
}


def main() -> None:
    """Measure the cells that are missing in the parts that are named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args().parts
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    with threadpool_limits(1):
        for part in chosen or PARTS:
            path = RESULTS / f"experiments_{part}.json"
            report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": {}}
            missing = [cell for cell in PARTS[part]() if cell[0] not in report["rows"]]
            for key, measure in tqdm(missing, desc=part, unit="cell", disable=None):
                begin = time.process_time()
                report["rows"][key] = measure()
                report |= provenance(threads=1, measured=("src", "benchmarks/experiments.py"))
                spent = report.get("processor_seconds", 0) + time.process_time() - begin
                report["processor_seconds"] = round(spent, 1)
                save(f"experiments_{part}", report)


if __name__ == "__main__":
    main()
