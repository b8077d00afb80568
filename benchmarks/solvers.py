"""Measure the solvers: iterations, rate of a step, tall and streamed data, batches, side by side.

python benchmarks/solvers.py [PART …] [--threads 2]     parts: see PARTS below; default all

Ratios are formed within one run on one machine; each part writes results/solvers_PART.json.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from provenance import provenance, save, seconds
from threadpoolctl import threadpool_limits

from linear_icl import problems, solvers, theory

SEED = 0


def relative(found: Any, exact: Any) -> float:
    """‖found − exact‖ / ‖exact‖ with two digits."""
    return float(f"{np.linalg.norm(found - exact) / np.linalg.norm(exact):.2g}")


def conditioned(d: int, n: int, kappa: float, rng: np.random.Generator) -> np.ndarray:
    """A d × n matrix with log-spaced singular values; cheap to build for n ≫ d."""
    left = np.linalg.qr(rng.standard_normal((d, d)))[0]
    right = np.linalg.qr(rng.standard_normal((n, d)))[0]
    return np.ascontiguousarray((left * np.geomspace(1, 1 / kappa, d)) @ right.T)


def iterations() -> list[dict[str, Any]]:
    """Layers of the two schedules to 1e-6; the spectrum that minimax needs is measured by it."""
    rows = []
    for kappa in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e8):
        problem = problems.completion(d=240, n=240, kappa=kappa, rng=SEED)
        blocks = problem.A, problem.B, problem.C
        counts = {
            schedule: solvers.eagle(*blocks, rtol=1e-6, schedule=schedule)
            for schedule in ("newton-schulz", "minimax")
        }
        times = {
            schedule: seconds(
                lambda s=schedule: solvers.eagle(*blocks, rtol=1e-6, schedule=s)  # noqa: B023
            )
            for schedule in counts
        }
        plain, fast = (counts[s].iterations for s in ("newton-schulz", "minimax"))
        rows.append(
            {
                "kappa": kappa,
                "newton_schulz": plain,
                "minimax": fast,
                "ratio": round(fast / plain, 3),
                "seconds_ratio": round(times["minimax"] / times["newton-schulz"], 3),
                "errors": [float(f"{problem.error(counts[s].D):.2g}") for s in counts],
            }
        )
    return rows


def step() -> list[dict[str, Any]]:
    """A layer of the data form, in GEMM time: two products of n³ each."""
    rows = []
    for n in (240, 1024, 1920):
        problem = problems.completion(d=n, n=n, kappa=1e4, rng=SEED)
        A = problem.A
        repeats = 3 if n > 1000 else 9
        gemm = seconds(lambda A=A: A @ A, repeats)
        gram = seconds(lambda A=A: A @ A.T, repeats)
        spectrum = seconds(lambda A=A: np.linalg.eigvalsh(A @ A.T), repeats)

        def run(steps: int, p: Any = problem) -> Any:
            return solvers.eagle(p.A, p.B, p.C, maxiter=steps, rtol=1e-14)

        two, ten = (seconds(lambda k=k: run(k), repeats) for k in (2, 10))
        per_step = (ten - two) / 8
        tracemalloc.start()
        run(3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append(
            {
                "n": n,
                "gemm_seconds": round(gemm, 6),
                "gemm_gflops": round(2 * n**3 / gemm / 1e9, 1),
                "symmetric_product_seconds": round(gram, 6),
                "spectrum_seconds": round(spectrum, 6),
                "step_seconds": round(per_step, 6),
                "share_of_gemm_rate": round(2 * gemm / per_step, 3),
                "peak_memory_in_A": round(peak / A.nbytes, 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def tall() -> list[dict[str, Any]]:
    """n = 400 000, d = 100: the Gram form against numpy.linalg.lstsq."""
    rows = []
    for kappa in (1e2, 1e4, 1e6):
        rng = np.random.default_rng(SEED)
        A = conditioned(100, 400_000, kappa, rng)
        B = rng.standard_normal((1, 100)) @ A + 1e-3 * rng.standard_normal((1, 400_000)) / 632
        found: dict[str, Any] = {}

        def lstsq(A: Any = A, B: Any = B, found: dict = found) -> None:
            found["lstsq"] = np.linalg.lstsq(A.T, B.T, rcond=None)[0].T

        def eagle(A: Any = A, B: Any = B, found: dict = found) -> None:
            found["eagle"] = solvers.eagle(A, B, form="gram", schedule="minimax")

        def cholesky(A: Any = A, B: Any = B, found: dict = found) -> None:
            found["cholesky"] = solvers.least_squares(A, B, method="cholesky").W

        times = {f.__name__: seconds(f, 3) for f in (lstsq, eagle, cholesky)}
        rows.append(
            {
                "kappa": kappa,
                "seconds": {name: round(value, 3) for name, value in times.items()},
                "lstsq_over_eagle": round(times["lstsq"] / times["eagle"], 2),
                "eagle_disagreement": relative(found["eagle"].W, found["lstsq"]),
                "cholesky_disagreement": relative(found["cholesky"], found["lstsq"]),
                "passes": len(found["eagle"].history),
                "status": found["eagle"].status.name,
            }
        )
        print(rows[-1], flush=True)
    return rows


def stream() -> dict[str, Any]:
    """n = 5·10⁶ single-precision examples from a file of 1 GB, never held whole."""
    d, n, block = 50, 5_000_000, 100_000
    rng = np.random.default_rng(SEED)
    W = rng.standard_normal((1, d))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "A.npy"
        A = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, d))
        B = np.empty((1, n), dtype=np.float32)
        for start in range(0, n, block):
            A[start : start + block] = rng.standard_normal((block, d), dtype=np.float32)
            B[:, start : start + block] = W @ A[start : start + block].T
        A.flush()
        del A
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        mapped = np.load(path, mmap_mode="r").T
        tracemalloc.start()
        result = solvers.eagle(mapped, B, schedule="minimax", rtol=1e-6)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        once = seconds(lambda: solvers.eagle(mapped, B, refine=False, rtol=1e-6), 1)
        whole = seconds(lambda: solvers.eagle(mapped, B, rtol=1e-6), 1)
        size = path.stat().st_size
    return {
        "d": d,
        "n": n,
        "file_bytes": size,
        "allocated_peak_bytes": peak,
        "resident_before_kb": before,
        "seconds_one_pass": round(once, 2),
        "seconds_with_refinement": round(whole, 2),
        "status": result.status.name,
        "error": relative(result.W, W),
    }


def batches() -> list[dict[str, Any]]:
    """Many prompts in one call, against a loop and against torch's batched factorisations."""
    rows = []
    for count, n in ((10_000, 20), (256, 240)):
        problem = problems.completion(d=n, n=n, kappa=1e2, batch=(count,), rng=SEED)
        A, B, C = (torch.tensor(x) for x in (problem.A, problem.B, problem.C))
        few = max(1, count // 20)
        runs = {
            "eagle, one call": lambda: solvers.eagle(A, B, C),  # noqa: B023
            "minimax eagle, one call": lambda: solvers.eagle(A, B, C, schedule="minimax"),  # noqa: B023
            "torch.linalg.lstsq gelsy": lambda: torch.linalg.lstsq(A.mT, B.mT, driver="gelsy"),  # noqa: B023
            "torch.linalg.lstsq gels": lambda: torch.linalg.lstsq(A.mT, B.mT, driver="gels"),  # noqa: B023
            "torch.linalg.lstsq gelsd": lambda: torch.linalg.lstsq(A.mT, B.mT, driver="gelsd"),  # noqa: B023
            "torch.linalg.lstsq gelss": lambda: torch.linalg.lstsq(A.mT, B.mT, driver="gelss"),  # noqa: B023
            "torch.linalg.pinv": lambda: torch.linalg.pinv(A),  # noqa: B023
        }
        times = {name: seconds(run, 2) for name, run in runs.items()}

        def loop(few: int = few, A: Any = A, B: Any = B, C: Any = C) -> None:
            for k in range(few):
                solvers.eagle(A[k], B[k], C[k])

        times["eagle, a loop"] = seconds(loop, 1) * count / few
        result = solvers.eagle(A, B, C)
        rows.append(
            {
                "prompts": count,
                "n": n,
                "seconds": {name: float(f"{value:.3g}") for name, value in times.items()},
                "status": result.status.name,
                "worst_error": float(f"{np.max(problem.error(result.D.numpy())):.2g}"),
            }
        )
        print(rows[-1], flush=True)
    return rows


def side_by_side() -> list[dict[str, Any]]:
    """All methods to the same final error 1e-8 of D; what stopped short says how far it came."""
    rows = []
    for n in (240, 1024, 1920):
        for kappa in (1e2, 1e4, 1e6):
            problem = problems.completion(d=n, n=n, kappa=kappa, rng=SEED)
            A, B, C = problem.A, problem.B, problem.C
            limit = {240: 20_000, 1024: 3000, 1920: 1000}[n]
            row: dict[str, Any] = {"n": n, "kappa": kappa, "target": TARGET, "methods": {}}
            for name, run in methods(A, B, C, limit).items():
                key, options = ACCURACY[name]
                outcome: dict[str, Any] = {}
                for tolerance in options:

                    def once(run: Any = run, t: float = tolerance, o: dict = outcome) -> None:
                        o["D"], o["iterations"] = run(t)

                    time = seconds(once, 1)
                    error = problem.error(outcome["D"])
                    if error <= TARGET or outcome["iterations"] >= limit:
                        break
                if time < 1:  # small times again, without what the first call warms up
                    time = min(time, seconds(once, 3))
                flops = theory.flops(key, n, n, B.shape[0], C.shape[1])
                row["methods"][name] = {
                    "iterations": int(outcome["iterations"]),
                    "flops": float(f"{flops.total(outcome['iterations']):.3g}"),
                    "seconds": float(f"{time:.3g}"),
                    "error": float(f"{error:.2g}"),
                    "reached": bool(error <= TARGET),
                }
            rows.append(row)
            print(n, kappa, {k: (v["iterations"], v["seconds"]) for k, v in row["methods"].items()})
    return rows


TARGET = 1e-8
# The flop model of each method, and the tolerances to try until the error is small enough.
LADDER = (1e-8, 1e-10, 1e-12, 1e-14)
ACCURACY = {
    "GD": ("gd", (1e-12,)),
    "CGLS": ("cgls", LADDER),
    "LSQR": ("cgls", LADDER),
    "LSMR": ("cgls", LADDER),
    "EAGLE": ("eagle", (1e-8, 1e-10)),
    "EAGLE minimax": ("minimax", (1e-8, 1e-10)),
    "QR": ("qr", (0.0,)),
    "SVD": ("svd", (0.0,)),
}


def methods(A: Any, B: Any, C: Any, limit: int) -> dict[str, Any]:
    """Each method as a function of its tolerance, returning D and its iterations."""

    def weights(result: Any) -> tuple[Any, int]:
        return result.W @ C, result.iterations

    def krylov(solve: Any, tolerance: float) -> tuple[Any, int]:
        runs = [solve(A.T, b, atol=tolerance, btol=tolerance, conlim=0, limit=limit) for b in B]
        return np.stack([w for w, _ in runs]) @ C, max(k for _, k in runs)

    def lsqr(M: Any, b: Any, *, atol: float, btol: float, conlim: float, limit: int) -> Any:
        found = scipy.sparse.linalg.lsqr(M, b, atol=atol, btol=btol, conlim=conlim, iter_lim=limit)
        return found[0], found[2]

    def lsmr(M: Any, b: Any, *, atol: float, btol: float, conlim: float, limit: int) -> Any:
        found = scipy.sparse.linalg.lsmr(M, b, atol=atol, btol=btol, conlim=conlim, maxiter=limit)
        return found[0], found[2]

    def predicted(result: Any) -> tuple[Any, int]:
        return result.D, result.iterations

    return {
        "GD": lambda t: weights(solvers.gradient_descent(A, B, rtol=t, maxiter=limit)),
        "CGLS": lambda t: weights(solvers.cgls(A, B, rtol=t, maxiter=limit)),
        "LSQR": lambda t: krylov(lsqr, t),
        "LSMR": lambda t: krylov(lsmr, t),
        "EAGLE": lambda t: predicted(solvers.eagle(A, B, C, rtol=t)),
        "EAGLE minimax": lambda t: predicted(solvers.eagle(A, B, C, rtol=t, schedule="minimax")),
        "QR": lambda _: weights(solvers.least_squares(A, B, method="qr")),
        "SVD": lambda _: predicted(solvers.nystrom(A, B, C)),
    }


PARTS = {
    "iterations": iterations,
    "step": step,
    "tall": tall,
    "stream": stream,
    "batches": batches,
    "side_by_side": side_by_side,
}


def main() -> None:
    """Run the parts that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    torch.set_num_threads(arguments.threads)
    with threadpool_limits(arguments.threads):
        for name in arguments.parts or PARTS:
            print(f"--- {name}", flush=True)
            save(f"solvers_{name}", {"rows": PARTS[name](), **provenance(arguments.threads)})


if __name__ == "__main__":
    main()
