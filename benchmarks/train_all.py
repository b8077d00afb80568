"""Train every shipped model: three regimes, several seeds; skips what is done, resumes the rest.

python benchmarks/train_all.py runs [--workers 2] [--only unconstrained rank_limited]
python benchmarks/train_all.py runs --ship [--partial]

Long: three to five hours of one core. Each worker trains one model at a time on one thread. Stop it
at any moment; the next call goes on. Pause with ``kill -STOP`` and ``kill -CONT``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

STEPS = 20_000
REGIMES = {
    "unconstrained": {},
    "rank_limited": {"rank": 5},
    "distributed": {"machines": 3},
}
# Seed 0 of everything first, so that a short reproduction already shows the three regimes.
RUNS = [(regime, seed, 0.0) for seed in range(5) for regime in REGIMES]
RUNS += [(regime, 0, 0.01) for regime in REGIMES]


def name(regime: str, seed: int, noise: float) -> str:
    """The folder of a run."""
    return f"{regime}-seed{seed}" + (f"-noise{noise:g}" if noise else "")


def train_one(folder: str, regime: str, seed: int, noise: float) -> None:
    """One run, in this process, on one thread."""
    import torch

    from linear_icl.transformers.model import ModelConfig
    from linear_icl.transformers.training import CHECKPOINTS, TrainingConfig, read_manifest, train

    torch.set_num_threads(1)
    begun = CHECKPOINTS / Path(folder).name
    if not Path(folder).exists() and begun.exists() and "state" in read_manifest(begun)["files"]:
        shutil.copytree(begun, folder)
    model = ModelConfig(regime=regime, **REGIMES[regime])
    train(TrainingConfig(model=model, seed=seed, steps=STEPS, noise=noise), folder, resume=True)


def finished(folder: Path) -> bool:
    """True when the folder holds the last checkpoint."""
    from linear_icl.transformers.training import read_manifest

    return (folder / "manifest.json").exists() and read_manifest(folder)["step"] >= STEPS


def ship(out: Path, partial: bool) -> None:
    """Copy weights and manifest of every finished run into the package, without Adam's state.

    With ``partial`` also the last checkpoint of runs under way, with Adam's state, from which
    ``train_one`` goes on; the manifest says how many steps they have.
    """
    from linear_icl.transformers import training

    for run in RUNS:
        folder, target = out / name(*run), training.CHECKPOINTS / name(*run)
        begun = (folder / "manifest.json").exists()
        if not (begun if partial else finished(folder)):
            print("not begun:" if partial else "not finished:", name(*run))
            continue
        training.load(folder)  # refuses what is damaged
        manifest = training.read_manifest(folder)
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
        print("shipped:", name(*run), f"({manifest['step']} steps)")


def main() -> None:
    """Keep ``workers`` runs going until all are finished."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--one", nargs=3, metavar=("REGIME", "SEED", "NOISE"))
    parser.add_argument("--ship", action="store_true", help="copy finished runs to the package")
    parser.add_argument("--partial", action="store_true", help="with --ship: unfinished ones too")
    arguments = parser.parse_args()
    if arguments.ship:
        ship(arguments.out, arguments.partial)
        return
    if arguments.one:
        regime, seed, noise = arguments.one
        folder = arguments.out / name(regime, int(seed), float(noise))
        train_one(str(folder), regime, int(seed), float(noise))
        return
    waiting = [r for r in RUNS if r[0] in arguments.only]
    waiting = [r for r in waiting if not finished(arguments.out / name(*r))]
    running: dict[subprocess.Popen, tuple] = {}
    failed = []
    while waiting or running:
        while waiting and len(running) < arguments.workers:
            run = waiting.pop(0)
            command = [sys.executable, __file__, str(arguments.out), "--one", *map(str, run)]
            running[subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})] = run
            print(time.strftime("%H:%M:%S"), "start", name(*run), flush=True)
        time.sleep(2)
        for process in [p for p in running if p.poll() is not None]:
            run = running.pop(process)
            print(time.strftime("%H:%M:%S"), "end", name(*run), process.returncode, flush=True)
            if process.returncode:
                failed.append(name(*run))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
