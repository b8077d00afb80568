"""Race GD, CG, GD++, EAGLE and a direct solver on one badly conditioned prompt.

python benchmarks/solver_race.py           measure, write results/solver_race.json, draw
python benchmarks/solver_race.py --draw    draw the stored measurement again

The prompt: d = n = 240, d' = n' = 2, κ(A) = 1e4, consistent, seed 0. The error is that of the
prediction, ‖D − D*‖_F/‖D*‖_F against the known answer, after every iteration. It is recorded in
one run and the time in others, so that measuring the error costs no time. Time is what one thread
spends (its CPU time, which on an idle machine is what a clock shows), the median of several runs,
everything included: norms, set-up, the final check.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from provenance import provenance
from threadpoolctl import threadpool_limits

from linear_icl import chapters, files, plotting, problems, solvers, theory

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "solver_race.json"
FIGURE = ROOT / "book" / "figures" / "solver_race.png"
SIZES = {"d": 240, "n": 240, "d_out": 2, "n_query": 2}
KAPPA, SEED = 1e4, 0
THREADS = 1
REPEATS = 9
POINTS = 160  # stored of every curve, spread evenly on a logarithmic axis
LIMIT = 30_000  # iterations of GD and CG: two seconds
TARGET = 1e-8
MEASURED = ("src/linear_icl/solvers", "src/linear_icl/problems.py", "src/linear_icl/_arrays.py")

Callback = Callable[[Any], None]


def racers(problem: problems.Completion) -> dict[str, Callable[[Callback], Any]]:
    """Each method as a function of its callback; tolerances that lead to round-off."""
    A, B, C = problem.A, problem.B, problem.C

    def weights_then_query(solve: Any, **options: Any) -> Callable[[Callback], Any]:
        return lambda callback: solve(A, B, callback=callback, **options).W @ C

    return {
        "gd": weights_then_query(solvers.gradient_descent, rtol=1e-15, maxiter=LIMIT),
        "cgls": weights_then_query(solvers.cgls, rtol=1e-15, maxiter=LIMIT),
        "gd++": lambda callback: solvers.gd_plus_plus(A, B, C, rtol=1e-12, callback=callback).D,
        "eagle": lambda callback: solvers.eagle(A, B, C, rtol=1e-12, callback=callback).D,
        "qr": lambda _: solvers.least_squares(A, B).W @ C,
    }


def race(problem: problems.Completion, name: str, run: Callable[[Callback], Any]) -> dict[str, Any]:
    """Errors and median seconds after every iteration of one method."""
    errors = [1.0]  # D = 0
    iterate = (lambda D: D) if name in ("eagle", "gd++") else (lambda W: W @ problem.C)
    final = run(lambda value: errors.append(float(problem.error(iterate(value)))))
    clocks = []
    for _ in range(REPEATS):
        ticks: list[float] = []
        start = time.process_time()
        run(lambda _, ticks=ticks: ticks.append(time.process_time()))
        ticks.append(time.process_time())
        clocks.append(np.array(ticks) - start)
    seconds = np.median(clocks, axis=0)
    steps = len(errors) - 1
    kept = np.unique(np.geomspace(1, max(steps, 1), POINTS).round().astype(int)) if steps else []
    reached = next((k for k, error in enumerate(errors) if error <= TARGET), None)
    return {
        "iterations": steps,
        "seconds": round(float(seconds[-1]), 6),
        "error": float(problem.error(final)),
        "iterations_to_target": reached,
        "seconds_to_target": _to_target(name, reached, seconds),
        "flops_per_iteration": theory.flops(name, **SIZES).step,
        "curve": {
            "iteration": [0, *map(int, kept)],
            "seconds": [0.0, *(round(float(seconds[k - 1]), 7) for k in kept)],
            "error": [1.0, *(float(f"{errors[k]:.4g}") for k in kept)],
        },
    }


def _to_target(name: str, reached: int | None, seconds: np.ndarray) -> float | None:
    if name == "qr":
        return round(float(seconds[-1]), 6)
    return None if reached is None else round(float(seconds[reached - 1]), 6)


def measure() -> dict[str, Any]:
    """Race all methods."""
    problem = problems.completion(**SIZES, kappa=KAPPA, rng=SEED)
    methods = {}
    with threadpool_limits(THREADS):
        for name, run in racers(problem).items():
            methods[name] = race(problem, name, run)
            print(f"{name:6} {methods[name]['iterations']:6d} iterations", flush=True)
    return {
        "problem": {**SIZES, "kappa": KAPPA, "spectrum": "log-uniform", "noise": 0.0, "seed": SEED},
        "error": "‖D − D*‖_F / ‖D*‖_F",
        "target": TARGET,
        "seconds": f"CPU seconds of one thread, median of {REPEATS} runs, set-up included",
        "repeats": REPEATS,
        **provenance(THREADS, MEASURED),
        "methods": methods,
    }


# ---------------------------------------------------------------------------------------------
# The figure


def draw(report: dict[str, Any]) -> plt.Figure:
    """Error against iterations and against seconds, with one vertical axis."""
    plotting.use_style()
    methods = report["methods"]
    figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=(8.4, 5.2))
    for ax, key in ((left, "iteration"), (right, "seconds")):
        for name in ("gd", "cgls", "gd++", "eagle"):
            _curve(ax, name, methods[name]["curve"], key)
        ax.set_xscale("log")
        ax.set_yscale("log")
        ax.set_ylim(2e-14, 20)
        ax.set_yticks([1e-12, 1e-9, 1e-6, 1e-3, 1])
        ax.minorticks_off()
    qr = methods["qr"]
    look = plotting.METHODS["qr"]
    right.plot([qr["seconds"]] * 2, [1, qr["error"]], color=look.color, linestyle=":", zorder=2)
    right.plot(qr["seconds"], qr["error"], color=look.color, marker=look.marker, markersize=10)
    right.set_xlim(qr["seconds"] / 6, 1.3 * methods["gd"]["seconds"])
    left.set_xlim(0.8, 1.3 * methods["gd"]["iterations"])
    left.set_xlabel("iteration")
    right.set_xlabel("seconds (one CPU thread)")
    left.set_ylabel("relative error of the prediction")
    left.set_title("Counted in iterations")
    right.set_title("Counted in seconds")
    _names(left, right, methods)
    return figure


def _curve(ax: Any, name: str, curve: dict[str, list[float]], key: str) -> None:
    look = plotting.METHODS[name]
    x, y = np.array(curve[key], dtype=float), np.array(curve["error"])
    x, y = x[1:], y[1:]
    # GD++ and EAGLE predict the same, layer by layer: triangles on the line of the other.
    few = len(x) < 60
    every = (0 if name == "eagle" else 1, 3) if few else 16
    style = {"linestyle": "none"} if name == "gd++" and key == "iteration" else {}
    ax.plot(
        x,
        y,
        **{"color": look.color, "linestyle": look.linestyle, "marker": look.marker, **style},
        markersize=7,
        linewidth=2.4,
        markevery=every,
        zorder=3,
    )


def _names(left: Any, right: Any, methods: dict[str, Any]) -> None:
    """Every curve by its name, beside it, with what it took to reach the target."""

    def write(ax: Any, name: str, text: str, x: float, y: float, **options: Any) -> None:
        color = plotting.METHODS[name].color
        ax.text(x, y, text, color=color, fontsize=13, weight="bold", linespacing=1.3, **options)

    def spaced(count: int) -> str:
        return f"{count:,}".replace(",", "\u2009")

    def clock(name: str) -> str:
        seconds = methods[name]["seconds_to_target"]
        return f"{seconds:.1f} s" if seconds >= 1 else f"{1e3 * seconds:.0f} ms"

    gd, cg, eagle, qr = (methods[name] for name in ("gd", "cgls", "eagle", "qr"))
    near = 1 / 1.35
    for ax, key, unit in ((left, "iteration", "iterations"), (right, "seconds", "seconds")):
        count = spaced(gd["iterations"]) if ax is left else f"{gd['seconds']:.1f}"
        write(ax, "gd", f"GD, after {count} {unit}", gd["curve"][key][-1], 1.7, ha="right")
    steps = spaced(cg["iterations_to_target"])
    write(left, "cgls", f"CG\n{steps}", 6000, 1e-7, ha="right", va="center")
    write(right, "cgls", f"CG\n{clock('cgls')}", 0.5, 1e-7, ha="right", va="center")
    x = eagle["iterations"] * 1.3
    steps = spaced(eagle["iterations_to_target"])
    write(left, "eagle", f"EAGLE\n{steps}", x, 1e-6, va="bottom")
    write(left, "gd++", "GD++\nthe same", x, 3e-7, va="top")
    x = eagle["seconds"] * 1.3
    write(right, "eagle", f"EAGLE\n{clock('eagle')}", x, 3e-10, va="top")
    x = methods["gd++"]["seconds"] * near
    write(right, "gd++", f"GD++\n{clock('gd++')}", x, 3e-6, ha="right", va="top")
    write(right, "qr", f"QR\n{clock('qr')}", qr["seconds"] * near, 1e-9, ha="right", va="center")
    corner = "$\\kappa(A) = 10^4$\n240 × 240\ngoal: $10^{-8}$"
    left.text(1.1, 2e-12, corner, fontsize=13, linespacing=1.4)


def main() -> None:
    """Measure and draw, or draw only."""
    plt.switch_backend("agg")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--draw", action="store_true", help="draw the stored measurement again")
    if not parser.parse_args().draw:
        files.write_text(RESULTS, chapters.as_json(measure()))
        print(f"wrote {RESULTS.relative_to(ROOT)}")
    figure = draw(json.loads(RESULTS.read_text(encoding="utf-8")))
    FIGURE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FIGURE.parent) as folder:
        drawn = Path(folder) / FIGURE.name
        figure.savefig(drawn, dpi=160, metadata={"Software": None})
        drawn.replace(FIGURE)
    print(f"wrote {FIGURE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
