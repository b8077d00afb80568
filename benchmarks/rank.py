"""Measure rank-limited EAGLE: a layer, iterations against n/r, and time to an error beside SGD.

python benchmarks/rank.py [PART …]     parts: layer, iterations, time_to_error; default all

One thread. What is in results/rank.json already is kept, so that a run that was broken off goes on
where it stopped; delete the file to measure anew. Seconds are those of the processor, the least of
several runs: on a shared machine the clock on the wall measures the others too. About ten minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from provenance import RESULTS, provenance, save
from threadpoolctl import threadpool_limits

from linear_icl import problems, solvers, theory
from linear_icl.solvers import sketching

N, D_OUT, N_QUERY = 240, 2, 2
LAYER_SIZES = (N, 1920)
SEEDS = 10
TARGETS = (1e-2, 1e-4)
MOST = 2000  # iterations allowed
SKETCHES = {"columns": sketching.columns, "haar": sketching.haar}
# No run ends by its own tolerance: errors are counted from outside.
NEVER = 1e-300


class Reached(Exception):
    """The smallest wanted error has been reached."""


def prompt(kappa: float, n: int = N, seed: int = 0) -> problems.Completion:
    """The published setting: square, log-uniform, noiseless, two outputs and two queries."""
    return problems.completion(
        d=n, n=n, d_out=D_OUT, n_query=N_QUERY, kappa=kappa, spectrum="log-uniform", rng=seed
    )


def count(
    problem: problems.Completion,
    run: Callable[[int, Any], Any],
    targets: tuple[float, ...] = TARGETS,
) -> dict[float, int]:
    """Iterations after which each relative error of D is first reached."""
    reached: dict[float, int] = {}
    steps = 0

    def callback(found: Any) -> None:
        nonlocal steps
        steps += 1
        error = problem.error(found if found.shape[-1] == N_QUERY else found @ problem.C)
        for target in targets:
            if error <= target:
                reached.setdefault(target, steps)
        if len(reached) == len(targets):
            raise Reached

    with contextlib.suppress(Reached):
        run(MOST, callback)
    return reached


def seconds(run: Callable[[], Any], repeats: int) -> float:
    """The least processor time of several runs; with one thread, the time it needs alone."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def layer(rows: dict[str, Any], keep: Callable[[], None]) -> None:
    """Seconds of a layer that sees n, n/2, n/4 or n/8 columns (the median of a run), and flops."""
    for n in LAYER_SIZES:
        if str(n) in rows:
            continue
        problem = prompt(1e2, n)
        layers = 64 if n == N else 4
        row: dict[str, Any] = {}
        # Haar sketches are for the theory: their two products with S cost more than the layer.
        for kind, draw in SKETCHES.items() if n == N else [("columns", sketching.columns)]:
            for r in (n, n // 2, n // 4, n // 8):
                stamps: list[float] = []

                def stamp(_: Any, stamps: list[float] = stamps) -> None:
                    stamps.append(time.process_time())

                solvers.eagle(
                    problem.A,
                    problem.B,
                    problem.C,
                    sketch=draw(r),
                    rtol=NEVER,
                    maxiter=layers,
                    callback=stamp,
                )
                row.setdefault(kind, {})[str(r)] = {
                    "seconds": float(f"{np.median(np.diff(stamps)):.3g}")
                }
            for entry in row[kind].values():
                entry["of_full"] = round(entry["seconds"] / row[kind][str(n)]["seconds"], 3)
        full = theory.flops("eagle", n, n, D_OUT, N_QUERY, rank=n).step
        for r, entry in row["columns"].items():
            entry["flops"] = theory.flops("eagle", n, n, D_OUT, N_QUERY, rank=int(r)).step
            entry["flops_of_full"] = round(entry["flops"] / full, 3)
        rows[str(n)] = row
        print(n, row, flush=True)
        keep()


def iterations(rows: dict[str, Any], keep: Callable[[], None]) -> None:
    """Layers until the error of D is 1e-4, against n/r, and the exponent of the power law.

    Haar sketches with r = n/8 do not get there: A is down to its round-off before.
    """
    for kind, kappa, ratios in (
        ("columns", 1e2, (1, 2, 3, 4, 6, 8)),
        ("columns", 1e3, (1, 2, 3, 4, 6, 8)),
        ("haar", 1e2, (1, 2, 3, 4, 8)),
    ):
        row = rows.setdefault(f"{kind}, kappa {kappa:.0e}", {"counts": {}})
        for ratio in ratios:
            if str(ratio) in row["counts"]:
                continue
            found = []
            for seed in range(SEEDS):
                problem, sketch = prompt(kappa, seed=seed), SKETCHES[kind](N // ratio, seed)

                def run(most: int, callback: Any, p: Any = problem, S: Any = sketch) -> None:
                    solvers.eagle(
                        p.A, p.B, p.C, sketch=S, rtol=NEVER, maxiter=most, callback=callback
                    )

                found.append(count(problem, run, (1e-4,)).get(1e-4))
            row["counts"][str(ratio)] = found
            print(kind, kappa, ratio, found, flush=True)
            keep()
        medians = {int(k): float(np.median(v)) for k, v in row["counts"].items() if None not in v}
        row["median"] = {str(k): v for k, v in medians.items()}
        # From r = n/2 on: at r = n every layer is the whole of EAGLE, and nothing is random.
        points = np.log([(k, v) for k, v in medians.items() if k >= 2])
        row["exponent"] = round(float(np.polyfit(*points.T, 1)[0]), 3)
        print(kind, kappa, "exponent", row["exponent"], flush=True)
        keep()


def methods(A: Any, B: Any, C: Any) -> dict[str, tuple[str, int | None, Callable[[int, Any], Any]]]:
    """The flop model, the rank, and the run (most iterations, callback) of every method."""
    found: dict[str, Any] = {}
    for r in (N // 2, N // 4, N // 8):
        S = sketching.columns(r, rng=0)
        found[f"EAGLE, r = {r}"] = (
            "eagle",
            r,
            lambda most, callback, S=S: solvers.eagle(
                A, B, C, sketch=S, rtol=NEVER, maxiter=most, callback=callback
            ),
        )
        found[f"SGD, r = {r}"] = (
            "sgd",
            r,
            lambda most, callback, S=S: solvers.stochastic_gradient_descent(
                A, B, sketch=S, rtol=NEVER, maxiter=most, callback=callback
            ),
        )
    found["EAGLE, unsketched"] = (
        "eagle",
        None,
        lambda most, callback: solvers.eagle(
            A, B, C, form="data", rtol=NEVER, maxiter=most, callback=callback
        ),
    )
    found["CGLS"] = (
        "cgls",
        None,
        lambda most, callback: solvers.cgls(A, B, rtol=NEVER, maxiter=most, callback=callback),
    )
    return found


def time_to_error(rows: dict[str, Any], keep: Callable[[], None]) -> None:
    """Iterations, flops and seconds to an error of 1e-2 and of 1e-4 of D, side by side."""
    for kappa in (1e1, 1e2, 1e3):
        problem = prompt(kappa)
        A, B, C = problem.A, problem.B, problem.C
        table = rows.setdefault(f"kappa {kappa:.0e}", {})
        for name, (model, r, run) in methods(A, B, C).items():
            if name in table:
                continue
            reached = count(problem, run)
            cost = theory.flops(model, N, N, D_OUT, N_QUERY, rank=r)
            entries: dict[str, Any] = {}
            for target in TARGETS:
                steps = reached.get(target)
                if steps is None:
                    entries[f"{target:.0e}"] = {"not_within": MOST}
                    continue
                spent = seconds(lambda: run(steps, None), 1)  # noqa: B023
                if spent < 1:
                    spent = min(spent, seconds(lambda: run(steps, None), 4))  # noqa: B023
                entries[f"{target:.0e}"] = {
                    "iterations": steps,
                    "flops": float(f"{cost.total(steps):.3g}"),
                    "seconds": float(f"{spent:.3g}"),
                }
            table[name] = entries
            print(kappa, name, entries, flush=True)
            keep()
        if "QR" not in table:

            def direct(A: Any = A, B: Any = B, C: Any = C) -> Any:
                return solvers.least_squares(A, B, method="qr").W @ C

            table["QR"] = {
                "error": float(f"{problem.error(direct()):.2g}"),
                "flops": float(f"{theory.flops('qr', N, N, D_OUT, N_QUERY).total():.3g}"),
                "seconds": float(f"{seconds(direct, 9):.3g}"),
            }
            keep()


PARTS = {"layer": layer, "iterations": iterations, "time_to_error": time_to_error}


def main() -> None:
    """Run the parts that are named, from where the last run stopped."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    chosen = parser.parse_args().parts
    unknown = set(chosen) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    path = RESULTS / "rank.json"
    report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    with threadpool_limits(1):
        for name in chosen or PARTS:
            part = report.setdefault(name, {"rows": {}})
            part.update(provenance(threads=1))
            PARTS[name](part["rows"], lambda: save("rank", report))


if __name__ == "__main__":
    main()
