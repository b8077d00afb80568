"""Where a measurement comes from, and its file: shared by the scripts of this folder."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from linear_icl import chapters, files

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def provenance(threads: int, measured: Sequence[str] = ("src",)) -> dict[str, Any]:
    """Date, commit, machine, versions and threads of a measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(measured),
        "machine": chapters.machine(),
        "versions": chapters.versions(),
        "threads": threads,
    }


def commit(measured: Sequence[str]) -> str:
    """The commit that was measured; "+" where what is measured had been edited since."""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
        edits = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", *measured], capture_output=True
        )
    except FileNotFoundError:
        return "unknown: git is not installed"
    return head.stdout.strip() + ("+" if edits.returncode else "")


def save(name: str, report: dict[str, Any]) -> None:
    """Write results/NAME.json whole or not at all."""
    files.write_text(RESULTS / f"{name}.json", chapters.as_json(report))
    print(f"wrote results/{name}.json", flush=True)


def seconds(run: Callable[[], Any], repeats: int = 3) -> float:
    """The shortest of several wall-clock times: the one that others disturbed least."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best
