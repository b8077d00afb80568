"""Distributed EAGLE over processes of this machine: time, messages, memory.

python benchmarks/scaling.py

Strong scaling (one problem, 1, 2, 4 processes), weak scaling (as many examples a process), the
all-reduce on its own (latency and bandwidth), and one large file, memory-mapped. About 8 minutes
and 4.5 GB in the folder for temporary files, which are removed. Every process has one thread.
"""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from provenance import provenance, save

from linear_icl.solvers._process_group import AllReduce
from linear_icl.solvers._ranks import join, launch

D, D_OUT, QUERIES = 300, 2, 2
EXAMPLES = 40_000
PROCESSES = (1, 2, 4)
BIG = {"d": 500, "n": 2_000_000, "ranks": 4}
SIZES = (1, 100, 1_000, 10_000, 100_000, 1_000_000)
BLOCK = 20_000


def write_problem(folder: Path, d: int, n: int, dtype: str) -> None:
    """One file of examples, one of labels B = WA + noise, one of queries; in blocks."""
    rng = np.random.default_rng(0)
    W, sizes = rng.standard_normal((D_OUT, d)), np.logspace(0, -2, d)[:, None]
    A = np.lib.format.open_memmap(folder / "A.npy", "w+", dtype=dtype, shape=(d, n))
    B = np.lib.format.open_memmap(folder / "B.npy", "w+", dtype=dtype, shape=(D_OUT, n))
    for start in range(0, n, BLOCK):
        block = rng.standard_normal((d, min(BLOCK, n - start)), dtype=np.float32) * sizes
        A[:, start : start + BLOCK] = block
        B[:, start : start + BLOCK] = W @ block + 0.1 * rng.standard_normal((D_OUT, block.shape[1]))
    A.flush(), B.flush()
    np.save(folder / "C.npy", rng.standard_normal((d, QUERIES)))


def solve(folder: Path, ranks: int, *options: str) -> dict[str, Any]:
    """One run of the command, and the numbers that it prints."""
    command = [sys.executable, "-m", "linear_icl.cli", "distributed", "--workers", str(ranks)]
    command += ["--parts", "A.npy", "--labels", "B.npy", "C.npy", "-o", "D.npy", "--threads", "1"]
    command += ["--timeout", "120", *options]
    begin = time.perf_counter()
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    whole = time.perf_counter() - begin
    if run.returncode:
        raise SystemExit(run.stdout + run.stderr)
    printed = dict(re.findall(r"^(\w+(?: \w+)?) +(\S.*)$", run.stdout, re.MULTILINE))
    reading, rounds, messages = map(float, re.findall(r"[\d.e+-]+(?=,| \()", printed["seconds"]))
    count, sent = map(int, re.findall(r"\d+", printed["messages"]))
    return {
        "processes": ranks,
        "seconds_whole": whole,
        "seconds_reading": reading,
        "seconds_rounds": rounds,
        "seconds_messages": messages,
        "share_messages_of_solve": messages / (reading + rounds),
        "messages": count,
        "bytes_from_each": sent,
        "peak_memory_mib": [int(text) for text in re.findall(r"\d+", printed["peak memory"])],
        "load_average": os.getloadavg()[0],
    }


def measure_messages(output: str) -> int:
    """Seconds of one all-reduce by its size, as the rank that is slowest sees it."""
    team = join(60.0)
    messages = AllReduce(team)
    rows = []
    for size in SIZES:
        part, times = [np.ones(size)], []
        for _ in range(200 if size <= 10_000 else 20):
            begin = time.perf_counter()
            messages.total(part)
            times.append(time.perf_counter() - begin)
        slowest = messages.largest([np.array([np.median(times), np.min(times)])])
        rows.append({"numbers": size, "bytes": 8 * size, "median": slowest[0], "least": slowest[1]})
    if team.rank == 0:
        Path(output).write_text(json.dumps(rows))
    team.gather("measured", {})
    messages.close()
    return 0


def messages(folder: Path, ranks: int) -> dict[str, Any]:
    """Latency and bandwidth of the all-reduce over the loopback interface."""
    output = folder / "messages.json"
    if launch(functools.partial(measure_messages, str(output)), ranks):
        raise SystemExit("the measurement of the messages failed")
    rows = json.loads(output.read_text())
    large, small = rows[-1], rows[0]
    return {
        "processes": ranks,
        "seconds": rows,
        # Of the least times: on a busy machine the medians are those of the scheduler.
        "latency_seconds": small["least"],
        "bytes_a_second": large["bytes"] / (large["least"] - small["least"]),
        "load_average": os.getloadavg()[0],
    }


def main() -> None:
    """Measure everything and write results/scaling.json."""
    begin = time.perf_counter()
    report = provenance(threads=1) | {
        "what": "Seconds of one run each. seconds_reading: the pass over the examples; "
        "seconds_rounds: everything after it; seconds_messages: inside the all-reduces, which is "
        "mostly waiting where there are more processes than free cores. All on the loopback "
        "interface of one machine.",
        "cores": os.cpu_count(),
        "problem": {"d": D, "d_out": D_OUT, "n_query": QUERIES, "n": EXAMPLES, "dtype": "float64"},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        report["messages"] = [messages(folder, ranks) for ranks in PROCESSES[1:]]
        write_problem(folder, D, EXAMPLES, "float64")
        report["strong"] = [solve(folder, ranks) for ranks in PROCESSES]
        report["weak"] = []
        for ranks in PROCESSES:
            write_problem(folder, D, ranks * EXAMPLES // PROCESSES[-1], "float64")
            report["weak"].append(solve(folder, ranks))
        report["seconds"] = time.perf_counter() - begin
        save("scaling", report)
        write_problem(folder, BIG["d"], BIG["n"], "float32")
        size = (folder / "A.npy").stat().st_size
        report["big"] = BIG | {"dtype": "float32", "file_bytes": size}
        report["big"] |= solve(folder, BIG["ranks"])
    report["seconds"] = time.perf_counter() - begin
    save("scaling", report)


if __name__ == "__main__":
    main()
