"""Measure the distributed solvers: rounds, bytes, flops and seconds against α, M and noise.

python benchmarks/distributed.py [PART …]      parts: diversity, pooled; default all

One BLAS thread, all machines in this process one after the other. What has been measured of
the same version is not measured again, so that an interrupted run can go on.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
from provenance import RESULTS, ROOT, provenance, save, seconds
from threadpoolctl import threadpool_limits

from linear_icl import problems, solvers
from linear_icl.solvers._machines import Machine

SEED, THREADS, TARGET = 0, 1, 1e-6
# Cheap ones first; the printed rounds are dear, as they go on conditioning to the end.
STAGES = (("cg", "frozen", "raw-cg", "pooled"), ("nesterov", "gd"), ("average",))
METHODS = tuple(method for stage in STAGES for method in stage)
# Rounds after which a method is left.
LIMIT = 4000
# (M, α): α on eight machines, and M at equal α. Other pairs do not exist (α ≤ 1 − 1/M, or 1).
CASES = (
    *((8, alpha) for alpha in (1.0, 0.83, 0.35, 0.1, 0.01)),
    *((machines, alpha) for alpha in (0.35, 0.1) for machines in (3, 5)),
    *((machines, 1.0) for machines in (1, 3, 5)),
)


def significant(value: float) -> float:
    """Three digits."""
    return float(f"{value:.3g}")


def flops(method: str, parts: Any, n_query: int, rounds: int) -> float:
    """Floating point operations of the busiest machine, by the sizes of its products."""
    worst = 0.0
    for A, B in parts:
        (d, n), d_out = A.shape, B.shape[0]
        n = min(d, n)
        product = 2 * (2 * d + d_out) * n * n_query
        labels = n if method == "pooled" else d_out
        layer = 4 * d * n * n + 4 * labels * d * n
        layers = {"average": rounds, "gd": 0, "nesterov": 0, "raw-cg": 0}.get(
            method, Machine(A, B).layers_needed()
        )
        worst = max(worst, rounds * product + layers * layer)
    return significant(worst)


def measured(method: str, parts: Any, C: Any, exact: Any) -> dict[str, Any]:
    """One method to the target, and how far its D is from the exact one."""
    found: dict[str, Any] = {}

    def solve() -> None:
        found["result"] = solvers.eagle_distributed(
            parts, C, method=method, rtol=TARGET, maxiter=LIMIT
        )

    time = seconds(solve, 1)
    result = found["result"]
    sent = result.communication
    return {
        "method": method,
        "status": result.status.name,
        "rounds": result.iterations,
        "messages": sent.rounds,
        "numbers": sent.numbers,
        "bytes": sent.bytes,
        "flops_a_machine": flops(method, parts, C.shape[1], result.iterations),
        "seconds": significant(time),
        "left_of_C": significant(result.history[-1]),
        "error": significant(np.linalg.norm(result.D - exact) / np.linalg.norm(exact)),
    }


def diversity() -> Iterator[tuple[dict[str, Any], Any]]:
    """d = n = 1000, n' = d' = 2, κ_max = 1e3, no noise."""
    made = functools.cache(
        lambda machines, alpha: problems.distributed(
            1000, 1000, 2, 2, machines=machines, alpha=alpha, kappa=1e3, rng=SEED
        )
    )
    for stage in STAGES:
        for (machines, alpha), method in itertools.product(CASES, stage):
            row = {"machines": machines, "alpha": alpha}

            def measure(case: Any = (machines, alpha), method: str = method) -> dict[str, Any]:
                problem = made(*case)
                found = measured(method, problem.parts, problem.C, problem.D_star)
                return {"kappa": significant(problem.kappa)} | found

            yield row, measure


def pooled() -> Iterator[tuple[dict[str, Any], Any]]:
    """Noise: examples of one distribution (covariance of condition 1e6), d = 200, M = 4."""
    d, machines = 200, 4
    for n in (1600, 400, 240, 160, 100):
        rng = np.random.default_rng(SEED)
        factor = np.linalg.qr(rng.standard_normal((d, d)))[0] * np.geomspace(1, 1e-3, d)
        W, C = rng.standard_normal((2, d)), rng.standard_normal((d, 2))
        parts = []
        for _ in range(machines):
            A = factor @ rng.standard_normal((d, n))
            parts.append((A, W @ A + 0.1 * rng.standard_normal((2, n))))
        A, B = (np.concatenate(blocks, axis=1) for blocks in zip(*parts, strict=True))
        exact = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T @ C
        for method in METHODS:
            row = {"examples_a_machine": n, "kappa": significant(np.linalg.cond(A))}
            yield row, lambda m=method, p=parts, C=C, D=exact: measured(m, p, C, D)


PARTS = {"diversity": diversity, "pooled": pooled}


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    version = measured_version()
    with threadpool_limits(THREADS):
        for part in arguments.parts or PARTS:
            name = "distributed" if part == "diversity" else f"distributed_{part}"
            path = RESULTS / f"{name}.json"
            before = json.loads(path.read_text()) if path.exists() else {}
            rows = before["rows"] if before.get("version") == version else []
            for k, (row, measure) in enumerate(PARTS[part]()):
                if k < len(rows):
                    continue
                rows.append(row | measure())
                print(rows[-1], flush=True)
                report = {"target": TARGET, "limit": LIMIT, "version": version, "rows": rows}
                save(name, report | provenance(THREADS, MEASURED))


# What a measurement depends on; an edit elsewhere does not make it another one.
MEASURED = (
    "src/linear_icl/solvers/_machines.py",
    "src/linear_icl/solvers/distributed.py",
    "benchmarks/distributed.py",
)


def measured_version() -> str:
    """One name for the text of the measured files."""
    hashes = subprocess.run(
        ["git", "-C", str(ROOT), "hash-object", *MEASURED], capture_output=True, text=True
    )
    return hashes.stdout.replace("\n", " ").strip()


if __name__ == "__main__":
    main()
