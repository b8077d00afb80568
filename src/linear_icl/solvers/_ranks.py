"""Processes that work together: started, watched, and ended all of them when one fails.

Nothing here knows of EAGLE. A job of M ranks shares a key-value store, hosted by whoever
started the ranks: by :func:`launch` on one machine, by torchrun's agent else. Through it the
ranks learn of each other what an all-reduce cannot say: who is missing, and why.
"""

from __future__ import annotations

import ctypes
import json
import math
import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

# Seconds between two looks at the store or at the children.
LOOK = 0.05


class Lost(RuntimeError):
    """The job cannot go on. The message names the rank and the reason."""

    def __init__(self, message: str, code: int = 1, silent: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.code, self.silent = code, silent


def join(timeout: float) -> Team:
    """Meet the other ranks of the job, whoever has started them."""
    import torch.distributed as dist

    # Importing torch takes long on a busy machine, and a rank that dies is seen without this.
    patience = 10 * timeout
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=timedelta(seconds=patience)))
        # torchrun starts all ranks again after a failure: each attempt has its own keys.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"linear-icl/{attempt}", store)
    except (ValueError, RuntimeError) as error:
        raise Lost(f"the ranks do not find each other: {_first_line(error)}") from None
    team = Team(store, rank, size, timeout)
    team.pids = [said["pid"] for said in team.gather("joined", {"pid": os.getpid()}, patience)]
    return team


class Team:
    """The ranks of a job, as one of them sees it.

    Parameters
    ----------
    store : torch.distributed.Store
        What they share.
    rank, size : int
        This one, and how many there are.
    timeout : float, seconds
        Within this time of a rank's death or last sign of life the job has ended. Half of it
        is what a rank may stay silent for, and the deadline of an all-reduce.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: float) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.silence = timeout / 2
        self.stage = "starting"
        self.pids: list[int] = []
        self._sign, self._signed = 0, -math.inf

    def alive(self, stage: str | None = None) -> None:
        """Give a sign of life, at most one a second; to be called wherever work goes on."""
        self.stage = stage or self.stage
        now = time.monotonic()
        if stage is not None or now > self._signed + 1:
            self._sign, self._signed = self._sign + 1, now
            sign = json.dumps(f"{self._sign} {self.stage}")
            self._ask(lambda: self.store.set(f"sign/{self.rank}", sign))

    def together(self, stage: str, work: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """Every rank works, then all know how all fared: what each returned, by rank.

        Raises
        ------
        Lost
            On every rank, when one of them failed or fell silent.
        """
        self.alive(stage)
        try:
            said = work()
        except Exception as error:
            said = {"error": words(error)}
        heard = self.gather(stage, said)
        refuse({r: told["error"] for r, told in enumerate(heard) if "error" in told})
        return heard

    def gather(
        self, key: str, said: dict[str, Any], silence: float | None = None
    ) -> list[dict[str, Any]]:
        """What every rank says, by rank."""
        self._ask(lambda: self.store.set(f"{key}/{self.rank}", json.dumps(said)))
        limit = silence or self.silence
        signs: dict[int, tuple[str, float]] = {}
        while missing := self._missing(key):
            if self._has("broken"):  # for one who has fallen behind the last message failed
                raise self.call_roll(f"while {key}")
            self.alive()
            now = time.monotonic()
            for r in missing:
                sign = self._sign_of(r)
                if signs.get(r, ("never", 0))[0] != sign:
                    signs[r] = sign, now
                elif now > signs[r][1] + limit:
                    stage = sign.partition(" ")[2] or "starting"
                    raise Lost(
                        f"rank {r} has given no sign of life for {limit:.0f} s ({stage}): it was "
                        "stopped, or a step takes longer than --timeout allows for",
                        silent=[r],
                    )
            time.sleep(LOOK)
        return [self._heard(key, r) for r in self._all]

    def call_roll(self, where: str, error: str | None = None) -> Lost:
        """Why the rounds broke off: every rank that still can says so, the others are named.

        A broken connection only says that some neighbour is gone, who may have gone because of
        another; whoever does not answer here is the cause.
        """
        self._ask(lambda: self.store.set("broken", ""))
        self._ask(lambda: self.store.set(f"roll/{self.rank}", json.dumps(error)))
        end = time.monotonic() + min(4.0, self.silence)
        while (missing := self._missing("roll")) and time.monotonic() < end:
            time.sleep(LOOK)
        told = {r: self._heard("roll", r) for r in self._all if r not in missing}
        causes = {r: said for r, said in told.items() if said is not None}
        for r in missing:
            causes[r] = (
                f"no answer {where}: it was killed or stopped, is stuck, or needs longer than "
                "--timeout allows for"
            )
        if not causes:
            return Lost(f"a connection between the ranks broke {where}; all of them are alive")
        try:
            refuse(causes, code=1)
        except Lost as lost:
            lost.silent = missing
            return lost
        raise AssertionError

    def tell(self, message: str) -> None:
        """Print a message once a host: the first rank does, the others wait until it has."""
        host = os.environ.get("GROUP_RANK", "0")
        with suppress(RuntimeError):
            if self.store.add(f"told/{host}", 1) > 1:
                end = time.monotonic() + 2
                while not self.store.check([f"printed/{host}"]) and time.monotonic() < end:
                    time.sleep(LOOK)
                return
        print(f"linear-icl: {message}", file=sys.stderr, flush=True)
        with suppress(RuntimeError):
            self.store.set(f"printed/{host}", "")

    def leave(self) -> None:
        """The last word; rank 0, which may host the store, goes after the others."""
        with suppress(Lost):
            self._ask(lambda: self.store.set(f"left/{self.rank}", ""))
            end = time.monotonic() + 1
            while self.rank == 0 and self._missing("left") and time.monotonic() < end:
                time.sleep(LOOK)

    def end(self, ranks: Sequence[int]) -> None:
        """Kill those of the ranks that torchrun's agent here has started too.

        The agent would give a stopped process 30 seconds to hear a signal that it cannot hear.
        """
        for rank in ranks:
            with suppress(OSError, IndexError):
                stat = Path(f"/proc/{self.pids[rank]}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == os.getppid():
                    os.kill(self.pids[rank], signal.SIGKILL)

    @property
    def _all(self) -> range:
        return range(self.size)

    def _missing(self, key: str) -> list[int]:
        if self._has(*(f"{key}/{r}" for r in self._all)):
            return []
        return [r for r in self._all if not self._has(f"{key}/{r}")]

    def _heard(self, key: str, rank: int) -> Any:
        return json.loads(self._ask(lambda: self.store.get(f"{key}/{rank}")))

    def _sign_of(self, rank: int) -> str:
        return self._heard("sign", rank) if self._has(f"sign/{rank}") else ""

    def _has(self, *keys: str) -> bool:
        return self._ask(lambda: self.store.check(list(keys)))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RuntimeError as error:  # what torch raises when the store's host is gone
            raise Lost(
                f"rank {self.rank} has lost the process that started the ranks ({self.stage}): "
                f"{_first_line(error)}"
            ) from None


def refuse(errors: Mapping[int, str], code: int = 2) -> None:
    """Raise :class:`Lost` if there are errors, each told with its rank."""
    if errors:
        raise Lost("; ".join(f"rank {r}: {text}" for r, text in sorted(errors.items())), code)


def words(error: BaseException) -> str:
    """An exception in one line, as the user should read it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, (ValueError, TypeError, OSError)):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


# ---------------------------------------------------------------------------------------------
# Starting and ending


def end_with_parent(parent: int) -> None:
    """Have this process end with the one that started it, even if that is killed with -9."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)  # it was gone before


def launch(work: Callable[[], int], workers: int) -> int:
    """Start ranks on this machine that do the work, wait for them, return the job's exit code.

    When one fails all are ended, whichever way this process itself is left.
    """
    # Importing torch takes seconds: on Linux once for all ranks, which are forked before this
    # process has a thread. Where forking is not safe every rank imports it by itself.
    import torch.distributed  # noqa: F401

    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    listener = socket.create_server(("127.0.0.1", 0))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    ranks: list[Any] = []
    try:
        for rank in range(workers):
            environment = _environment(rank, workers, listener.getsockname()[1])
            process = context.Process(target=_be, args=(work, environment, os.getpid()))
            process.start()
            ranks.append(process)
        store = _host(listener)
        code = _watch(ranks)
        del store  # the ranks have talked through it until here
        return code
    finally:
        _end(ranks)


@contextmanager
def tidily() -> Iterator[None]:
    """Where files are written: being ended goes through the clean-up, not straight away."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _be(work: Callable[[], int], environment: dict[str, str], parent: int) -> None:
    """The life of a rank."""
    os.setpgid(0, 0)  # Ctrl-C reaches the one who started the ranks alone
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    end_with_parent(parent)
    os.environ.update(environment)
    sys.exit(work())


def _environment(rank: int, workers: int, port: int) -> dict[str, str]:
    """What torchrun would set, for ranks that talk over the loopback interface."""
    loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "GLOO_SOCKET_IFNAME": loopback[0] if loopback else "lo",
    }


def _host(listener: socket.socket) -> Any:
    # The socket listens already, so that no other process can take the port.
    import torch.distributed as dist

    return dist.TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def _watch(ranks: Sequence[Any]) -> int:
    """Wait until all are done, or one has failed: the exit code."""
    deadline = float("inf")
    while True:
        codes = [rank.exitcode for rank in ranks]
        for r, code in enumerate(codes):
            if code is not None and code < 0:
                name = signal.Signals(-code).name
                hint = ", as happens when memory runs out" if name == "SIGKILL" else ""
                print(f"linear-icl: rank {r} was killed by {name}{hint}", file=sys.stderr)
                return 1
        done = [code for code in codes if code is not None]
        if any(done):  # the others have the same news and are about to leave
            deadline = min(deadline, time.monotonic() + 1)
        if len(done) == len(codes) or time.monotonic() > deadline:
            return max(done)
        time.sleep(LOOK)


def _end(ranks: Sequence[Any]) -> None:
    """End what still runs."""
    for rank in ranks:
        rank.terminate()
    end = time.monotonic() + 1
    for rank in ranks:
        rank.join(max(0.0, end - time.monotonic()))
        rank.kill()  # a stopped process does not hear the first signal
        rank.join()
