"""Distributed EAGLE with one machine a process: torch.distributed carries the messages.

Every rank runs :func:`take_part`: it maps its own examples, agrees with the others that all is
well, and joins the loop of :mod:`linear_icl.solvers._machines`, in which one all-reduce is one
round. :func:`start` starts the ranks on this machine where torchrun has not done so.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import hashlib
import json
import math
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from linear_icl import files
from linear_icl._arrays import check_tolerances
from linear_icl.results import SolveResult
from linear_icl.solvers import _machines
from linear_icl.solvers._machines import Machine, State
from linear_icl.solvers._ranks import (
    Lost,
    Team,
    end_with_parent,
    join,
    launch,
    refuse,
    tidily,
    words,
)

CHECKPOINT = "state.safetensors"
# A block with more numbers than this is known by samples of its columns.
WHOLE = 1 << 24
SAMPLES = 64
# Blocks of examples after which the pages of a mapped file are given back.
BLOCKS = 32


@dataclasses.dataclass(frozen=True)
class Job:
    """What all ranks are told.

    Attributes
    ----------
    parts, labels : str
        The files of the A_μ and of the B_μ: a pattern that matches one file a rank, in sorted
        order, or has ``{rank}`` in it; or one file whose columns the ranks share, rank r of M
        taking those from ⌊rn/M⌋ to ⌊(r+1)n/M⌋.
    query : str, optional
        The file of C, which rank 0 reads; None asks for the weights W.
    output : str
        Where rank 0 writes D or W.
    method, rtol, maxiter, rcond
        As in :func:`linear_icl.solvers.eagle_distributed`.
    keep_unconverged : bool
        Write what did not converge, too.
    checkpoint, every, resume : str, int, bool
        A folder for the state of every so many rounds, and whether to go on from it.
    timeout : float, seconds
        Within this time of a rank's death or last sign of life the job ends.
    threads : int, optional
        Threads of linear algebra a rank; default: the cores, shared.
    """

    parts: str
    labels: str
    query: str | None
    output: str
    method: str = "cg"
    rtol: float = 1e-8
    maxiter: int | None = None
    rcond: float | None = None
    keep_unconverged: bool = False
    checkpoint: str | None = None
    every: int = 10
    resume: bool = False
    timeout: float = 30.0
    threads: int | None = None


def start(job: Job, workers: int | None = None) -> int:
    """Run a job and return its exit code: as one rank of torchrun's, or with ranks of its own.

    Raises
    ------
    ValueError
        Options that make no sense.
    """
    _check(job)
    if "RANK" in os.environ:
        if workers is not None:
            raise ValueError("--workers has no meaning under torchrun, which starts the ranks")
        if "TORCHELASTIC_RUN_ID" in os.environ:
            end_with_parent(os.getppid())
        return take_part(job)
    if workers is None:
        found = len(_matching(job.parts))
        workers = found if found > 1 else cores()
    return launch(functools.partial(take_part, job), workers)


def _check(job: Job) -> None:
    check_tolerances(job.rtol, 0.0, job.maxiter, job.rcond)
    if job.method not in _machines.METHODS:
        known = ", ".join(_machines.METHODS)
        raise ValueError(f"--method must be one of {known}; got {job.method!r}")
    if not (math.isfinite(job.timeout) and job.timeout > 0):
        raise ValueError(f"--timeout must be a number of seconds above 0, got {job.timeout}")
    if job.resume and job.checkpoint is None:
        raise ValueError("--resume needs --checkpoint, the folder to go on from")
    if Path(job.output).suffix.lower() not in files.EXTENSIONS:
        known = ", ".join(files.EXTENSIONS)
        raise ValueError(f"the output {job.output!r} must end in one of {known}")
    inputs = [*_matching(job.parts), *_matching(job.labels), *([job.query] if job.query else [])]
    if os.path.realpath(job.output) in {os.path.realpath(name) for name in inputs}:
        raise ValueError(f"the output {job.output!r} would replace an input")


def cores() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---------------------------------------------------------------------------------------------
# One rank


def take_part(job: Job) -> int:
    """Be one rank of a job, from its files to the exit code."""
    from threadpoolctl import threadpool_limits

    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    threads = job.threads or max(1, cores() // local)
    threadpool_limits(threads)
    team = None
    try:
        team = join(job.timeout)
        return _solve(job, team, threads)
    except Lost as lost:
        if team is None:
            print(f"linear-icl: {lost}", file=sys.stderr, flush=True)
        else:
            team.tell(str(lost))
            if "TORCHELASTIC_RUN_ID" in os.environ:
                team.end(lost.silent)
            team.leave()
        sys.stdout.flush()
        os._exit(lost.code)  # threads of a broken process group need not ever end


def _solve(job: Job, team: Team, threads: int) -> int:
    begin = time.perf_counter()
    block = Block(job, team)
    opened = team.together("opening the files", block.open)
    _check_shapes(job, opened)
    team.together("reading the examples", block.read)
    problem = {
        "method": job.method,
        "rcond": job.rcond,
        "blocks": [said["sum"] for said in opened],
        "query": None if block.query is None else checksum(block.query),
    }
    keeper = Keeper(job, team.rank, problem)
    packed = b""

    def pack() -> dict[str, Any]:
        nonlocal packed
        if team.rank == 0:
            C = np.eye(block.machine.d) if block.query is None else block.query
            packed = _packed(C, keeper.state())
        return {}

    team.together("preparing the query", pack)
    ready = time.perf_counter()
    messages = None
    try:
        messages = AllReduce(team)
        C, state = _unpacked(messages.broadcast(packed))
        result = _machines.run(
            [block.machine],
            C,
            messages,
            method=job.method,
            rtol=job.rtol,
            maxiter=job.maxiter,
            state=state,
            on_round=keeper.on_round,
        )
    except Lost:
        raise
    except Exception as error:
        if messages is not None:
            messages.close()  # neighbours that wait for this rank learn of it at once
        said = None if isinstance(error, Broken) else words(error)
        raise team.call_roll(f"in round {keeper.round + 1}", said) from None
    done = time.perf_counter()

    def write() -> dict[str, Any]:
        if team.rank == 0 and (result.converged or job.keep_unconverged):
            with tidily():
                files.write_array(job.output, result.D)
        return {
            "memory": peak_memory(),
            "threads": threads,
            "read": ready - begin,
            "rounds": done - ready,
            "messages": messages.seconds,
        }

    ends = team.together("writing the output", write)
    messages.close()
    if team.rank == 0:
        for name, value in _report(job, opened, result, messages, ends).items():
            print(f"{name:<17} {value}")
        if keeper.begun:
            print(f"{'checkpoint':<17} went on from round {keeper.begun}")
        sys.stdout.flush()
        if not result.converged and not job.keep_unconverged:
            team.tell(f"not converged, so {job.output} was not written (--keep-unconverged)")
    team.leave()
    return 0 if result.converged else 1


def _report(
    job: Job,
    opened: list[dict[str, Any]],
    result: SolveResult,
    messages: AllReduce,
    ends: list[dict[str, Any]],
) -> dict[str, str]:
    def most(name: str) -> float:
        return max(end[name] for end in ends)

    (features, labels), columns = opened[0]["rows"], [said["columns"] for said in opened]
    share = most("messages") / most("rounds")
    return {
        "method": job.method,
        "examples": f"{' + '.join(map(str, columns))}, {features} features, {labels} labels",
        "status": result.message,
        "residual": f"{result.history[-1]:.3g} of the query",
        "messages": f"{messages.calls} from each rank, {8 * messages.numbers} bytes in all",
        "ranks": f"{len(ends)}, threads: {', '.join(str(end['threads']) for end in ends)}",
        "seconds": f"reading {most('read'):.3g}, rounds {most('rounds'):.3g}, of which messages "
        f"{most('messages'):.3g} ({share:.0%})",
        "peak memory": ", ".join(f"{end['memory'] / 2**20:.0f}" for end in ends) + " MiB",
    }


def peak_memory() -> int:
    """The most physical memory that this process has had, in bytes."""
    if sys.platform == "linux":
        with open("/proc/self/status", encoding="ascii") as lines:
            return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---------------------------------------------------------------------------------------------
# The examples of one rank


class Block:
    """The files of one rank, opened first and read when all ranks have opened theirs."""

    machine: Machine

    def __init__(self, job: Job, team: Team) -> None:
        self.job, self.team = job, team
        self.query: np.ndarray | None = None

    def open(self) -> dict[str, Any]:
        """Map the files and say what the others must know of them."""
        rank, ranks = self.team.rank, self.team.size
        file, columns = _share(self.job.parts, "--parts", rank, ranks)
        labels, label_columns = _share(self.job.labels, "--labels", rank, ranks)
        self.team.alive(f"opening {file}")
        self.A, B = _open(file, columns), _open(labels, label_columns)
        self.B = B[None, :] if B.ndim == 1 else B
        self.files = file, labels
        for name, array in ((file, self.A), (labels, self.B)):
            if array.ndim != 2:
                raise ValueError(
                    f"{name}: has shape {array.shape}; a matrix with one example a column is "
                    "expected"
                )
        if self.A.shape[1] != self.B.shape[1]:
            raise ValueError(
                f"{file} has {self.A.shape[1]} columns, but {labels} has {self.B.shape[1]}; "
                "one example is one column of both"
            )
        said = {
            "files": self.files,
            "rows": [self.A.shape[0], self.B.shape[0]],
            "columns": self.A.shape[1],
            "sum": checksum(self.A, self.B),
        }
        if rank == 0 and self.job.query is not None:
            C = files.read_array(self.job.query)
            self.query = np.asarray(C[:, None] if C.ndim == 1 else C, dtype=np.float64)
            if C.ndim > 2:
                raise ValueError(f"{self.job.query}: has shape {C.shape}; a matrix is expected")
            said["query"] = self.query.shape[0]
        return said

    def read(self) -> dict[str, Any]:
        """The one pass over the examples, in bounded memory when their file is mapped."""
        passed = 0

        def progress() -> None:
            nonlocal passed
            passed += 1
            self.team.alive()
            if passed % BLOCKS == 0:
                _give_back(self.A)

        try:
            self.machine = Machine(self.A, self.B, rcond=self.job.rcond, progress=progress)
        except ValueError as error:
            for file in self.files:  # only now look for the entry that is not finite
                files.read_array(file)
            raise ValueError(f"{self.files[0]}: {error}") from None
        return {}


def _matching(pattern: str) -> list[str]:
    """The files that a pattern names; itself, where it is none."""
    return sorted(glob.glob(pattern)) if glob.has_magic(pattern) else [pattern]


Columns = Callable[[int], slice]  # of how many


def _share(pattern: str, option: str, rank: int, ranks: int) -> tuple[str, Columns]:
    """The file of this rank and its columns: a whole file, or a part of the only one."""
    if "{rank}" in pattern:
        return pattern.replace("{rank}", str(rank)), lambda n: slice(n)
    found = _matching(pattern)
    if len(found) == ranks:
        return found[rank], lambda n: slice(n)
    if len(found) == 1:
        return found[0], lambda n: slice(rank * n // ranks, (rank + 1) * n // ranks)
    raise ValueError(
        f"{option} {pattern!r} matches {len(found)} files for {ranks} ranks; one file a rank is "
        "expected, or one file for all"
    )


def _open(file: str, columns: Columns) -> np.ndarray:
    # A look for non-finite entries would be a second pass; the first one finds them as well.
    array = files.read_array(file, mmap=file.endswith(".npy"), check_finite=False)
    return array[..., columns(array.shape[-1])] if array.ndim else array


def _give_back(array: Any) -> None:
    """Let go of the pages of a mapped file that have been read."""
    while isinstance(array, np.ndarray):
        array = array.base
    if isinstance(array, mmap.mmap):
        array.madvise(mmap.MADV_DONTNEED)


def checksum(*arrays: np.ndarray) -> str:
    """Tells arrays from others; of large ones it looks at some columns only."""
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.shape} {array.dtype}".encode())
        if array.size <= WHOLE:
            digest.update(np.ascontiguousarray(array).data)
            continue
        for column in np.linspace(0, array.shape[-1] - 1, SAMPLES, dtype=int):
            digest.update(np.ascontiguousarray(array[..., column]).data)
            _give_back(array)
    return digest.hexdigest()


def _check_shapes(job: Job, opened: list[dict[str, Any]]) -> None:
    """All ranks know all shapes, and so reach the same verdict."""
    rows, labels = opened[0]["rows"]
    source = f"{opened[0]['files'][0]} of rank 0"
    if job.query is not None:
        rows, source = opened[0]["query"], job.query
    errors = {}
    for r, said in enumerate(opened):
        if said["rows"][0] != rows:
            errors[r] = f"{said['files'][0]} has {said['rows'][0]} rows, but {source} has {rows}"
        elif said["rows"][1] != labels:
            errors[r] = (
                f"{said['files'][1]} has {said['rows'][1]} rows, but {opened[0]['files'][1]} of "
                f"rank 0 has {labels}"
            )
    refuse(errors)


# ---------------------------------------------------------------------------------------------
# Checkpoints


class Keeper:
    """Rank 0 writes the replicated state every so many rounds, and reads it when going on.

    That is all there is to keep: every rank repeats its own layers by itself, to the same bits.
    """

    def __init__(self, job: Job, rank: int, problem: dict[str, Any]) -> None:
        self.job, self.rank = job, rank
        self.problem = problem
        self.file = Path(job.checkpoint or "") / CHECKPOINT
        self.begun = self.round = 0

    def on_round(self, state: State) -> None:
        """Note the round, and write the state when it is time."""
        from safetensors.numpy import save

        self.round = int(state["round"])
        if self.rank == 0 and self.job.checkpoint and self.round % self.job.every == 0:
            metadata = {"problem": json.dumps(self.problem, sort_keys=True)}
            with tidily(), files.replacing(self.file) as stream:
                stream.write(save(_plain(state), metadata))

    def state(self) -> State | None:
        """The state to go on from, if there is one and it is wanted."""
        from safetensors import SafetensorError, safe_open

        again = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
        if not self.job.checkpoint or not (self.job.resume or (again and self.file.exists())):
            return None
        if not self.file.exists():
            raise ValueError(f"--resume: there is no {self.file}")
        try:
            with safe_open(self.file, "np") as stored:
                problem = json.loads(stored.metadata()["problem"])
                state = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.file}: is not a readable checkpoint: {error}") from None
        for name, value in self.problem.items():
            if problem.get(name) != value:
                raise ValueError(
                    f"{self.file}: belongs to another job: its {_difference(name, problem, value)}"
                )
        self.begun = self.round = int(state["round"])
        return state


def _difference(name: str, problem: dict[str, Any], value: Any) -> str:
    theirs = problem.get(name)
    if name == "query":
        return "query is not the one given"
    if name != "blocks" or not isinstance(theirs, list):
        return f"{name} is {theirs}, not {value}"
    if len(theirs) != len(value):
        return f"number of ranks is {len(theirs)}, not {len(value)}"
    r = next(r for r, (a, b) in enumerate(zip(theirs, value, strict=True)) if a != b)
    return f"examples of rank {r} are not the ones given"


def _plain(arrays: State) -> State:
    """In the order of C, as the file format expects."""
    return {name: np.array(array, order="C") for name, array in arrays.items()}


def _packed(C: np.ndarray, state: State | None) -> bytes:
    from safetensors.numpy import save

    return save(_plain({"query": C} | {f"state {k}": v for k, v in (state or {}).items()}))


def _unpacked(data: bytes) -> tuple[np.ndarray, State | None]:
    from safetensors.numpy import load

    arrays = load(data)
    C = arrays.pop("query")
    return C, {name.removeprefix("state "): a for name, a in arrays.items()} or None


# ---------------------------------------------------------------------------------------------
# Messages


class Broken(RuntimeError):
    """A message did not get through."""


class AllReduce:
    """The communicator of :mod:`linear_icl.solvers._machines`: one all-reduce a message.

    Gloo adds the ranks' numbers in an order that depends on nothing but their count, and every
    rank gets the same bits.
    """

    def __init__(self, team: Team) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist, self.team, self.machines = torch, dist, team, team.size
        self.calls = self.numbers = 0
        self.seconds = 0.0
        with _named():
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore("rounds", team.store),
                rank=team.rank,
                world_size=team.size,
                timeout=timedelta(seconds=team.silence),
            )

    def total(self, parts: list[np.ndarray]) -> np.ndarray:
        """The sum over all ranks."""
        return self._reduced(sum(parts[1:], parts[0]), self.dist.ReduceOp.SUM)

    def largest(self, values: list[np.ndarray]) -> np.ndarray:
        """The largest of each entry."""
        return self._reduced(np.max(values, axis=0), self.dist.ReduceOp.MAX)

    def _reduced(self, part: np.ndarray, operation: Any) -> np.ndarray:
        message = self.torch.from_numpy(np.array(part, dtype=np.float64, order="C"))
        self.team.alive()
        begin = time.perf_counter()
        with _named():
            self.dist.all_reduce(message, operation)
        self.seconds += time.perf_counter() - begin
        self.calls, self.numbers = self.calls + 1, self.numbers + part.size
        return message.numpy()

    def broadcast(self, data: bytes) -> bytes:
        """What rank 0 has, to all."""
        length = self.torch.tensor([len(data)])
        with _named():
            self.dist.broadcast(length, 0)
            content = bytearray(data) if self.team.rank == 0 else bytearray(int(length))
            self.dist.broadcast(self.torch.frombuffer(content, dtype=self.torch.uint8), 0)
        return bytes(content)

    def close(self) -> None:
        """Let go of the connections; a neighbour that still waits for a message hears of it."""
        self.dist.destroy_process_group()


@contextmanager
def _named() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Broken(str(error)) from None
