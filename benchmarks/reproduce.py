"""Measure everything again from nothing, and say what differs from what is committed.

python benchmarks/reproduce.py [PART …] [--accept]    parts: see PARTS below; default all
make reproduce [PARTS="experiments rank"]             the same

Works in a copy of the tracked files, in runs/reproduce/tree, from which a part's results are
removed before it begins: nothing of the repository is overwritten, and no number survives that was
not measured again. What is finished stands in runs/reproduce/journal.json and is not done again; a
part that was broken off is started again, and goes on where it was if its script can. To start
anew, delete runs/reproduce. ``--accept`` copies the results of finished parts over the committed
ones. Everything takes hours, the trainings alone six to seven of one core.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provenance import ROOT, commit

from linear_icl import chapters, files

WORK = ROOT / "runs" / "reproduce"
CHECKPOINTS = "src/linear_icl/transformers/checkpoints"


@dataclass(frozen=True)
class Part:
    """Commands, and what they write, as patterns relative to the repository."""

    commands: Sequence[str]
    results: Sequence[str]


def _script(name: str, *results: str) -> Part:
    found = results or (name,)
    return Part([f"benchmarks/{name}.py"], [f"benchmarks/results/{each}.json" for each in found])


# In this order: what comes later reads what came before.
PARTS: dict[str, Part] = {
    "rank_limited": _script("rank_limited"),
    "column_models": Part(
        ["benchmarks/column_models.py"],
        ["benchmarks/results/column_models.json", f"{CHECKPOINTS}/columns.*"],
    ),
    "train_all": Part(
        ["benchmarks/train_all.py runs/models", "benchmarks/train_all.py runs/models --ship"],
        [f"{CHECKPOINTS}/*/*"],
    ),
    "train_step": _script("train_step"),
    "implications": _script("implications"),
    "solver_race": Part(
        ["benchmarks/solver_race.py"],
        ["benchmarks/results/solver_race.json", "book/figures/solver_race.png"],
    ),
    "solvers": _script("solvers", "solvers_*"),
    "solver_page": Part(
        ["benchmarks/solver_page.py"],
        ["book/solver_measurements.md", "book/figures/choosing_a_solver.png"],
    ),
    "rank": _script("rank"),
    "distributed": _script("distributed", "distributed", "distributed_*"),
    "scaling": _script("scaling"),
    "experiments": _script("experiments", "experiments_*"),
    "notebooks": Part(
        ["-m linear_icl.chapters execute", "-m linear_icl.chapters table"],
        ["notebooks/*.ipynb", "book/chapter_runs.json", "book/chapter_runs.md"],
    ),
}
# The notebooks are their own sources, and the record of their runs is compared, not started from.
KEPT = ("notebooks",)


# ---------------------------------------------------------------------------------------------
# Running


def copy_tree(tree: Path) -> None:
    """Copy the tracked files as they are now."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def run(name: str, part: Part, tree: Path, journal: dict[str, Any], lock: int) -> bool:
    """Run a part in the copy; the journal tells whether it had begun before."""
    if name not in journal["parts"]:
        for pattern in () if name in KEPT else part.results:
            for file in tree.glob(pattern):
                file.unlink()
        journal["parts"][name] = {"status": "begun", "seconds": 0.0}
        write_journal(journal)
    entry = journal["parts"][name]
    begin = time.monotonic()
    # The copy's package goes before the installed one, in the notebooks' kernels too.
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONUNBUFFERED": "1"}
    try:
        for command in part.commands:
            # It holds the lock too: if this process is killed, no second one starts beside it.
            with subprocess.Popen(
                [sys.executable, *shlex.split(command)],
                cwd=tree,
                env=environment,
                pass_fds=[lock],
            ) as process:
                try:
                    status = process.wait()
                except BaseException:
                    process.terminate()
                    raise
            if status:
                print(f"{name}: failed with status {status}", file=sys.stderr)
                return False
        entry["status"] = "finished"
    finally:
        entry["seconds"] = round(entry["seconds"] + time.monotonic() - begin, 1)
        write_journal(journal)
    return True


def write_journal(journal: dict[str, Any]) -> None:
    """Write the journal whole or not at all."""
    files.write_text(WORK / "journal.json", chapters.as_json(journal))


# ---------------------------------------------------------------------------------------------
# Comparing

# What a measurement tells about the machine, and not about the mathematics.
MACHINE = (
    "second",
    "_ms",
    "memory",
    "peak",
    "resident",
    "load",
    "gflops",
    "gemm",
    "bytes_a",
    "lstsq_over",
)
IGNORED = ("date", "started", "commit", "machine", "versions", "version")
TOLERANCE = 0.05
# Below this an error is round-off, and only its order of magnitude is compared.
ROUND_OFF = 1e-8


@dataclass
class Comparison:
    """What two results have in common."""

    same: int = 0
    differing: list[str] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def add(self, path: str, old: Any, new: Any) -> None:
        """Compare two leaves of the results."""
        words = path.lower()
        numbers = all(isinstance(x, int | float) and not isinstance(x, bool) for x in (old, new))
        if any(word in words for word in MACHINE):
            if numbers and old > 0 and new > 0:
                self.ratios.append(new / old)
        elif old == new or (numbers and alike(old, new)):
            self.same += 1
        else:
            self.differing.append(f"{path}: {old!r} → {new!r}")


def alike(old: float, new: float) -> bool:
    """Whether two numbers are the same up to the tolerance."""
    larger, smaller = max(abs(old), abs(new)), min(abs(old), abs(new))
    if larger < ROUND_OFF:
        return smaller > 0.03 * larger or larger < 1e-13
    return math.isclose(old, new, rel_tol=TOLERANCE)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every number, text and flag with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in IGNORED:
                yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def compare(old: Any, new: Any) -> Comparison:
    """Compare two results leaf by leaf; seconds and the like as ratios only."""
    found, before, after = Comparison(), dict(leaves(old)), dict(leaves(new))
    for path in before.keys() | after.keys():
        if path not in after or path not in before:
            found.differing.append(f"{path}: {'gone' if path not in after else 'new'}")
        else:
            found.add(path, before[path], after[path])
    found.differing.sort()
    return found


def report(part: Part, tree: Path, shown: int = 8) -> None:
    """Print how a part's results compare with those of the repository."""
    for pattern in part.results:
        names = {
            f.relative_to(base).as_posix() for base in (ROOT, tree) for f in base.glob(pattern)
        }
        for name in sorted(n for n in names if n.endswith(".json")):
            if not ((ROOT / name).exists() and (tree / name).exists()):
                print(f"  {name}: {'missing' if (ROOT / name).exists() else 'not committed yet'}")
                continue
            old, new = (json.loads((base / name).read_text("utf-8")) for base in (ROOT, tree))
            found = compare(old, new)
            text = f"{found.same} values as committed, {len(found.differing)} not"
            if found.ratios:
                low, middle, high = (f(found.ratios) for f in (min, statistics.median, max))
                text += f"; seconds times {middle:.2g} ({low:.2g} to {high:.2g})"
            print(f"  {name}: {text}")
            for line in found.differing[:shown]:
                print(f"    {line}")
            if len(found.differing) > shown:
                print(f"    … and {len(found.differing) - shown} more")


def accept(part: Part, tree: Path) -> None:
    """Copy a part's results over those of the repository."""
    for pattern in part.results:
        for file in tree.glob(pattern):
            target = ROOT / file.relative_to(tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            with files.replacing(target) as stream:
                stream.write(file.read_bytes())
            print(f"  accepted {target.relative_to(ROOT)}")


def main() -> int:
    """Run what is not finished, in order, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--accept", action="store_true", help="take the results over")
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    chosen = [name for name in PARTS if name in arguments.parts or not arguments.parts]
    # Ended from outside, it ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (WORK / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"a reproduction is still running in {WORK}", file=sys.stderr)
        return 2
    tree, file = WORK / "tree", WORK / "journal.json"
    if file.exists():
        journal = json.loads(file.read_text(encoding="utf-8"))
        if journal["commit"] != commit(["."]):
            print(f"goes on with what was copied of {journal['commit'][:12]}; see {tree}")
    else:
        shutil.rmtree(tree, ignore_errors=True)
        copy_tree(tree)
        journal = {"commit": commit(["."]), "parts": {}}
        write_journal(journal)
    failed = []
    try:
        for number, name in enumerate(chosen, start=1):
            finished = journal["parts"].get(name, {}).get("status") == "finished"
            print(f"=== {number}/{len(chosen)} {name}{' (finished before)' if finished else ''}")
            if not finished and not run(name, PARTS[name], tree, journal, lock.fileno()):
                failed.append(name)
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    print("\n=== Compared with what is committed")
    for name in chosen:
        if name in failed:
            print(f"{name}: failed")
            continue
        print(f"{name}: {journal['parts'][name]['seconds']:.0f} s")
        report(PARTS[name], tree)
        if arguments.accept:
            accept(PARTS[name], tree)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
