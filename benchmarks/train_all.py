"""Train every shipped model, skipping what is done and resuming the rest.

python benchmarks/train_all.py runs [--workers 2] [--only unconstrained rank_limited]
python benchmarks/train_all.py runs --ship [--partial]

Long: six to seven hours of one core. Each worker trains one model at a time on one thread. Stop it
at any moment; the next call goes on. Pause with ``kill -STOP`` and ``kill -CONT``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch

from linear_icl.transformers import training
from linear_icl.transformers.training import CHECKPOINTS, PUBLISHED, TrainingConfig, read_manifest

ESTIMATION = dataclasses.replace(PUBLISHED["unconstrained"], n_query=PUBLISHED["unconstrained"].d)
# Seed 0 of everything first, so that a short reproduction already shows the three regimes.
RUNS = {
    f"{regime}-seed{seed}": TrainingConfig(model, seed)
    for seed in range(5)
    for regime, model in PUBLISHED.items()
}
RUNS |= {
    f"{regime}-seed0-noise0.01": TrainingConfig(model, noise=0.01)
    for regime, model in PUBLISHED.items()
}
RUNS |= {
    "estimation-seed0": TrainingConfig(ESTIMATION, task="estimation"),
    # With the standard scale 0.1 the first gradients of these larger prompts overflow.
    "estimation-seed0-rank5": TrainingConfig(ESTIMATION, rank=5, scale=0.05, task="estimation"),
}


def train_one(folder: Path) -> None:
    """One run, in this process, on one thread."""
    torch.set_num_threads(1)
    begun = CHECKPOINTS / folder.name
    if not folder.exists() and begun.exists() and "state" in read_manifest(begun)["files"]:
        shutil.copytree(begun, folder)
    training.train(RUNS[folder.name], folder, resume=True)


def finished(folder: Path) -> bool:
    """True when the folder holds the last checkpoint."""
    there = (folder / "manifest.json").exists()
    return there and read_manifest(folder)["step"] >= RUNS[folder.name].steps


def ship(out: Path, partial: bool) -> None:
    """Copy weights and manifest of every finished run into the package, without Adam's state.

    With ``partial`` also the last checkpoint of runs under way, with Adam's state, from which
    ``train_one`` goes on; the manifest says how many steps they have.
    """
    for name in RUNS:
        folder, target = out / name, CHECKPOINTS / name
        begun = (folder / "manifest.json").exists()
        if not (begun if partial else finished(folder)):
            print("not begun:" if partial else "not finished:", name)
            continue
        training.load(folder)  # refuses what is damaged
        manifest = read_manifest(folder)
        files = manifest["files"]
        if finished(folder):
            del files["state"]
            (target / "state.safetensors").unlink(missing_ok=True)
        target.mkdir(parents=True, exist_ok=True)
        for kind, entry in files.items():
            shutil.copyfile(folder / entry["name"], target / f"{kind}.safetensors")
            entry["name"] = f"{kind}.safetensors"
        (target / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        training.load(target)
        print("shipped:", name, f"({manifest['step']} steps)")


def main() -> None:
    """Keep ``workers`` runs going until all are finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--one", choices=list(RUNS), metavar="NAME", help="only this, in here")
    parser.add_argument("--ship", action="store_true", help="copy finished runs to the package")
    parser.add_argument("--partial", action="store_true", help="with --ship: unfinished ones too")
    arguments = parser.parse_args()
    if arguments.ship:
        ship(arguments.out, arguments.partial)
        return
    if arguments.one:
        train_one(arguments.out / arguments.one)
        return
    for start in arguments.only:
        if not any(name.startswith(start) for name in RUNS):
            parser.error(f"nothing begins with {start!r}; there are: {', '.join(RUNS)}")
    chosen = [name for name in RUNS if name.startswith(tuple(arguments.only))]
    waiting = [name for name in chosen if not finished(arguments.out / name)]
    running: dict[subprocess.Popen, str] = {}
    failed = []
    while waiting or running:
        while waiting and len(running) < arguments.workers:
            name = waiting.pop(0)
            command = [sys.executable, __file__, str(arguments.out), "--one", name]
            running[subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})] = name
            print(time.strftime("%H:%M:%S"), "start", name, flush=True)
        time.sleep(2)
        for process in [p for p in running if p.poll() is not None]:
            name = running.pop(process)
            print(time.strftime("%H:%M:%S"), "end", name, process.returncode, flush=True)
            if process.returncode:
                failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
