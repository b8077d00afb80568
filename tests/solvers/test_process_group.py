"""Distributed EAGLE over real processes, with real faults."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from linear_icl.solvers import _process_group, _ranks
from linear_icl.solvers.distributed import eagle_distributed

COMMAND = [sys.executable, "-m", "linear_icl.cli", "distributed"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
MODULE = ["-m", "linear_icl.solvers.distributed"]
FILES = ["--parts", "A_*.npy", "--labels", "B_*.npy", "C.npy", "-o", "D.npy"]
# Gradient descent on ill-conditioned data: as many rounds as one likes. Importing torch takes
# seconds, on a busy machine many; what is awaited here is awaited without hurry.
LONG = [*FILES, "--method", "gd", "--keep-unconverged", "--maxiter"]
FOREVER = [*LONG, "1000000000"]
PATIENCE = 240

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


def blocks(columns, kappa=1e3, d=12, seed=0):
    """Consistent examples, one part of them of rank 3, and queries."""
    rng = np.random.default_rng(seed)
    W, sizes = rng.standard_normal((2, d)), np.logspace(0, -np.log10(kappa), d)
    As = [sizes[:, None] * rng.standard_normal((d, n)) for n in columns]
    As[0] = As[0] @ rng.standard_normal((columns[0], 3)) @ rng.standard_normal((3, columns[0]))
    return [(A, W @ A) for A in As], rng.standard_normal((d, 3)), W


def save(folder, parts, C):
    folder.mkdir(parents=True, exist_ok=True)
    for r, (A, B) in enumerate(parts):
        np.save(folder / f"A_{r}.npy", A)
        np.save(folder / f"B_{r}.npy", B)
    np.save(folder / "C.npy", C)
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Four parts of 10, 30, 0 and 7 examples."""
    parts, C, W = blocks([10, 30, 0, 7])
    return save(tmp_path_factory.mktemp("ranks") / "small", parts, C), parts, C, W


@contextlib.contextmanager
def started(folder, command, **environment):
    """The command in a folder of its own, with its standard error in a file."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"} | environment
    with open(folder / "errors.txt", "w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # Tests that run in the background ignore Ctrl-C; what they start must not.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def ended(folder, process):
    """Exit code, standard output, standard error."""
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output, (folder / "errors.txt").read_text()


def run(folder, command, **environment):
    with started(folder, command, **environment) as process:
        return ended(folder, process)


def until(condition):
    """What the condition gives once it gives something."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("in vain")


def children(pid):
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def ranks_in_rounds(folder, process, ranks):
    """The process numbers of the ranks, by rank, once there has been a checkpoint."""
    until(lambda: (folder / "kept" / "state.safetensors").exists() or process.poll() is not None)
    found = children(process.pid)
    assert len(found) == ranks, (folder / "errors.txt").read_text()
    return found


def left(folder):
    """The processes that still run in a folder (a zombie does not run)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            if state != "Z" and os.readlink(entry / "cwd") == str(folder):
                found.append(entry.name)
    return found


def lethal(folder, rank, at):
    """Have a rank kill itself with -9 after a round, the first time that it is started."""
    (folder / "sitecustomize.py").write_text(
        "import os\n"
        "from linear_icl.solvers import _process_group\n"
        "on_round = _process_group.Keeper.on_round\n"
        "def fatal(self, state):\n"
        "    on_round(self, state)\n"
        "    first = os.environ.get('TORCHELASTIC_RESTART_COUNT', '0') == '0'\n"
        f"    if first and (self.rank, self.round) == ({rank}, {at}):\n"
        "        os.kill(os.getpid(), 9)\n"
        "_process_group.Keeper.on_round = fatal\n"
    )
    return {"PYTHONPATH": str(folder)}


def unhurt(folder):
    """No output, and no half of it under another name."""
    return not (folder / "D.npy").exists() and not list(folder.glob(".*.tmp"))


# Without faults


def test_four_processes_find_what_one_finds(small):
    folder, parts, C, W = small
    code, output, errors = run(folder, [*COMMAND, *FILES])
    assert (code, errors) == (0, "")
    D = np.load(folder / "D.npy")
    inside = eagle_distributed(parts, C, method="cg", rtol=1e-8)
    np.testing.assert_allclose(D, inside.D, rtol=1e-12, atol=1e-12 * np.abs(inside.D).max())
    np.testing.assert_allclose(D, W @ C, rtol=1e-7)
    assert "10 + 30 + 0 + 7, 12 features, 2 labels" in output
    # One message of (d + d') n' numbers a round, and one of 3 before the first.
    rounds = int(re.search(r"\((\d+) iteration", output)[1])
    calls, count = map(int, re.search(r"(\d+) from each rank, (\d+) bytes", output).groups())
    assert rounds == inside.iterations
    assert (calls, count) == (inside.communication.rounds, inside.communication.bytes)
    assert "threads: 1, 1, 1, 1" in output


@linux
def test_a_killed_job_goes_on_from_its_checkpoint_to_the_same_bits(small, tmp_path):
    keep = ["--checkpoint", "kept", "--every", "7"]
    undisturbed = save(tmp_path / "undisturbed", small[1], small[2])
    assert run(undisturbed, [*COMMAND, *LONG, "150"])[0] == 1  # not converged
    disturbed = save(tmp_path / "disturbed", small[1], small[2])
    killing = lethal(disturbed, rank=2, at=60)
    code, _, errors = run(disturbed, [*COMMAND, *LONG, "150", *keep], **killing)
    assert code == 1
    assert errors == "linear-icl: rank 2 was killed by SIGKILL, as happens when memory runs out\n"
    assert left(disturbed) == []
    assert unhurt(disturbed)

    code, output, errors = run(disturbed, [*COMMAND, *LONG, "150", *keep, "--resume"])
    assert (code, errors) == (1, "")
    assert "went on from round 56" in output
    assert "(150 iterations)" in output
    assert (disturbed / "D.npy").read_bytes() == (undisturbed / "D.npy").read_bytes()


# torchrun


@linux
def test_torchrun_starts_again_from_the_checkpoint(tmp_path):
    parts, C, _ = blocks([20, 20])
    folder = save(tmp_path, parts, C)
    command = [
        *(*TORCHRUN, "--nproc-per-node", "2", "--max-restarts", "1", "--rdzv-backend", "c10d"),
        *("--rdzv-endpoint", "127.0.0.1:0", *MODULE, *FILES, "--method", "average"),
        *("--checkpoint", "kept", "--every", "4"),
    ]
    code, output, errors = run(folder, command, **lethal(folder, rank=1, at=10))
    assert (code, "went on from round 8" in output) == (0, True), errors
    inside = eagle_distributed(parts, C, method="average")
    assert inside.iterations > 20
    assert f"({inside.iterations} iterations)" in output
    np.testing.assert_allclose(np.load(folder / "D.npy"), inside.D, rtol=1e-12)
    assert "found in sys.modules" not in errors


# Two hosts: two network namespaces with a slow line between them, or two loopback addresses.


@contextlib.contextmanager
def namespaces():
    """Commands that run what follows on the one host and on the other, if that is allowed."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need Linux, root and iproute2")
    names = [f"icl{os.getpid()}{side}" for side in "ab"]
    try:
        for name in names:
            if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
                pytest.skip("this system allows no network namespaces")
        line = f"ip link add eth0 netns {names[0]} type veth peer name eth0 netns {names[1]}"
        subprocess.run(line.split(), check=True)
        for k, name in enumerate(names):
            inside = ["ip", "netns", "exec", name]
            for command in (
                "ip link set lo up",
                "ip link set eth0 up",
                f"ip address add 10.9.8.{k + 1}/24 dev eth0",
            ):
                subprocess.run([*inside, *command.split()], check=True)
            if shutil.which("tc"):
                slow = "tc qdisc add dev eth0 root tbf rate 10mbit burst 16kb latency 100ms"
                subprocess.run([*inside, *slow.split()], capture_output=True)
        yield [["ip", "netns", "exec", name] for name in names]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def namespaces_are_possible():
    try:
        with namespaces():
            return True
    except pytest.skip.Exception:
        return False


@pytest.mark.parametrize("network", ["namespaces", "loopback"])
def test_two_hosts_that_share_no_folder_solve_together(network, tmp_path):
    if network == "loopback" and namespaces_are_possible():
        pytest.skip("two network namespaces were possible, which says more")
    parts, C, W = blocks([20, 30])
    hosts = [save(tmp_path / "first", parts, C), save(tmp_path / "second", parts, C)]
    for name in ("A_1.npy", "B_1.npy"):
        (hosts[0] / name).unlink()
    for name in ("A_0.npy", "B_0.npy", "C.npy"):
        (hosts[1] / name).unlink()
    given = ["--parts", "A_{rank}.npy", "--labels", "B_{rank}.npy", "C.npy", "-o", "D.npy"]
    environment = {"WORLD_SIZE": "2", "MASTER_PORT": str(free_port())}
    with contextlib.ExitStack() as stack:
        if network == "namespaces":
            inside = stack.enter_context(namespaces())
            environment |= {"MASTER_ADDR": "10.9.8.1", "GLOO_SOCKET_IFNAME": "eth0"}
        else:
            inside = [[], []]
            environment |= {"MASTER_ADDR": "127.0.0.2", "GLOO_SOCKET_IFNAME": "lo"}
        ranks = [
            stack.enter_context(
                started(
                    host, [*inside[r], sys.executable, *MODULE, *given], RANK=str(r), **environment
                )
            )
            for r, host in enumerate(hosts)
        ]
        ends = [ended(host, process) for host, process in zip(hosts, ranks, strict=True)]
    assert [end[0] for end in ends] == [0, 0], ends
    np.testing.assert_allclose(np.load(hosts[0] / "D.npy"), W @ C, rtol=1e-7)
    assert not (hosts[1] / "D.npy").exists()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


# Faults


@linux
@pytest.mark.parametrize(("starter", "ranks"), [("linear-icl", 4), ("torchrun", 2)])
def test_a_stopped_rank_ends_the_job_and_is_named(small, tmp_path, starter, ranks):
    folder = save(tmp_path, small[1][:ranks], small[2])
    command = COMMAND
    if starter == "torchrun":
        command = [*TORCHRUN, "--nproc-per-node", str(ranks), *MODULE]
    keep = ["--checkpoint", "kept", "--every", "3", "--timeout", "10"]
    with started(folder, [*command, *FOREVER, *keep]) as process:
        pids = ranks_in_rounds(folder, process, ranks)
        os.kill(pids[1], signal.SIGSTOP)
        begin = time.monotonic()
        code, _, errors = ended(folder, process)
        assert time.monotonic() < begin + 30
    assert code == 1
    message = (
        r"linear-icl: rank 1: no answer in round \d+: it was killed or stopped, is stuck, or "
        r"needs longer than --timeout allows for\n"
    )
    if starter == "torchrun":  # which has more to say
        assert re.search(message, errors)
    else:
        assert re.fullmatch(message, errors)
    assert left(folder) == []
    assert unhurt(folder)


@linux
def test_a_rank_that_hangs_while_it_opens_its_file_ends_the_job_and_is_named(small, tmp_path):
    folder = save(tmp_path, small[1], small[2])
    (folder / "sitecustomize.py").write_text(
        "import os, time\n"
        "from linear_icl import files\n"
        "read = files.read_array\n"
        "def hang(*args, **options):\n"
        "    if os.environ.get('RANK') == '3':\n"
        "        time.sleep(1000)\n"
        "    return read(*args, **options)\n"
        "files.read_array = hang\n"
    )
    code, _, errors = run(folder, [*COMMAND, *FILES, "--timeout", "8"], PYTHONPATH=str(folder))
    assert code == 1
    assert errors == (
        "linear-icl: rank 3 has given no sign of life for 4 s (opening A_3.npy): it was stopped, "
        "or a step takes longer than --timeout allows for\n"
    )
    assert left(folder) == []
    assert unhurt(folder)


def test_ranks_whose_files_are_cut_off_or_missing_end_the_job_and_are_named(small, tmp_path):
    folder = save(tmp_path, small[1], small[2])
    whole = (folder / "A_1.npy").read_bytes()
    (folder / "A_1.npy").write_bytes(whole[:-100])
    (folder / "A_3.npy").unlink()
    (folder / "A_3.npy").symlink_to("nowhere.npy")
    code, output, errors = run(folder, [*COMMAND, *FILES])
    assert (code, output) == (2, "")
    assert errors.count("\n") == 1
    assert "rank 1: A_1.npy: the header declares shape (12, 30)" in errors
    assert "the file is cut off or damaged; rank 3: A_3.npy: no such file" in errors
    assert unhurt(folder)


@linux
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGKILL", -9)])
def test_no_rank_outlives_the_launcher(small, tmp_path, name, code):
    folder = save(tmp_path, small[1][:2], small[2])
    keep = ["--checkpoint", "kept", "--every", "3"]
    with started(folder, [*COMMAND, *FOREVER, *keep]) as process:
        ranks_in_rounds(folder, process, 2)
        process.send_signal(getattr(signal, name))
        found, _, errors = ended(folder, process)
    said = "linear-icl: interrupted\n" if name == "SIGINT" else ""
    assert (found, errors) == (code, said)
    until(lambda: not left(folder))
    assert unhurt(folder)


# What ranks tell each other: here they are threads that share a store.


def verdicts(folder, monkeypatch, ranks=3, timeout=60.0, **options):
    """How the ranks of a job end."""
    import torch.distributed as dist

    monkeypatch.chdir(folder)
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=60))
    given = {"parts": "A_*.npy", "labels": "B_*.npy", "query": "C.npy", "output": "D.npy"}
    job = _process_group.Job(**(given | options))
    ends = {}

    def be(rank):
        try:
            _process_group._solve(job, _ranks.Team(store, rank, ranks, timeout), 1)
        except _ranks.Lost as lost:
            ends[rank] = str(lost)

    threads = [threading.Thread(target=be, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ends) == ranks
    assert len(set(ends.values())) == 1  # all ranks say the same
    return ends[0]


def with_entry(array, value):
    array = array.copy()
    array[1, 2] = value
    return array


FAULTS = {
    "rows": (
        {"A_1": lambda a: a[:-1]},
        "rank 1: A_1.npy has 11 rows, but C.npy has 12",
    ),
    "labels": (
        {"B_2": lambda b: b[:1]},
        "rank 2: B_2.npy has 1 rows, but B_0.npy of rank 0 has 2",
    ),
    "columns": (
        {"B_2": lambda b: b[:, 1:]},
        "rank 2: A_2.npy has 7 columns, but B_2.npy has 6; one example is one column of both",
    ),
    "nan": (
        {"A_1": lambda a: with_entry(a, np.nan)},
        "rank 1: A_1.npy: entry [1, 2] (counted from 0) is nan; finite numbers are expected",
    ),
    "infinite label": (
        {"B_0": lambda b: with_entry(b, np.inf)},
        "rank 0: B_0.npy: entry [1, 2] (counted from 0) is inf; finite numbers are expected",
    ),
    "infinite query": (
        {"C": lambda c: with_entry(c, np.inf)},
        "rank 0: C.npy: entry [1, 2] (counted from 0) is inf; finite numbers are expected",
    ),
    "dimensions": (
        {"A_2": lambda a: a[None]},
        "rank 2: A_2.npy: has shape (1, 12, 7); a matrix with one example a column is expected",
    ),
    "objects": (
        {"A_2": lambda a: a + 1j},
        "rank 2: A_2.npy: has dtype complex128; real numbers are expected",
    ),
    "two": (
        {"A_1": lambda a: a[:-1], "A_2": lambda a: a[:-2]},
        "rank 1: A_1.npy has 11 rows, but C.npy has 12; "
        "rank 2: A_2.npy has 10 rows, but C.npy has 12",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_rank_names_the_rank_whose_input_is_wrong(fault, tmp_path, monkeypatch):
    parts, C, _ = blocks([10, 30, 7])
    folder = save(tmp_path, parts, C)
    damages, message = FAULTS[fault]
    for name, damage in damages.items():
        np.save(folder / f"{name}.npy", damage(np.load(folder / f"{name}.npy")))
    assert verdicts(folder, monkeypatch) == message


def test_the_number_of_files_must_be_that_of_the_ranks(small, monkeypatch):
    message = verdicts(small[0], monkeypatch)
    assert "rank 0: --parts 'A_*.npy' matches 4 files for 3 ranks; one file a rank is" in message


def test_a_checkpoint_of_another_job_is_refused(tmp_path, monkeypatch):
    parts, C, _ = blocks([10, 30, 7])
    folder = save(tmp_path, parts, C)
    monkeypatch.chdir(folder)
    job = _process_group.Job("A", "B", "C", "D", checkpoint="kept", every=1)
    sums = [_process_group.checksum(A, B) for A, B in parts]
    problem = {
        "method": "cg",
        "rcond": None,
        "blocks": sums,
        "query": _process_group.checksum(C),
    }

    def refused(**changes):
        keeper = _process_group.Keeper(job, 0, problem | changes)
        keeper.on_round({"round": np.array(5)})
        return verdicts(folder, monkeypatch, checkpoint="kept", resume=True)

    start = "rank 0: kept/state.safetensors: belongs to another job: its "
    assert refused(method="gd") == start + "method is gd, not cg"
    assert refused(query="0") == start + "query is not the one given"
    assert refused(blocks=[*sums, "0"]) == start + "number of ranks is 4, not 3"
    changed = start + "examples of rank 1 are not the ones given"
    assert refused(blocks=[sums[0], "0", sums[2]]) == changed
    (folder / "kept" / "state.safetensors").write_bytes(b"nonsense")
    message = verdicts(folder, monkeypatch, checkpoint="kept", resume=True)
    assert message.startswith("rank 0: kept/state.safetensors: is not a readable checkpoint")
    message = verdicts(folder, monkeypatch, checkpoint="elsewhere", resume=True)
    assert message == "rank 0: --resume: there is no elsewhere/state.safetensors"


def test_a_checksum_sees_every_entry_of_a_small_array_and_the_shape_of_any():
    A = np.arange(12.0).reshape(3, 4)
    assert _process_group.checksum(A) == _process_group.checksum(np.asfortranarray(A))
    assert _process_group.checksum(A) != _process_group.checksum(A.reshape(4, 3))
    assert _process_group.checksum(A) != _process_group.checksum(with_entry(A, 6.5))


def test_a_large_mapped_array_is_known_by_samples_whose_pages_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(_process_group, "WHOLE", 10)
    A = np.arange(600.0).reshape(3, 200)
    np.save(tmp_path / "A.npy", A)
    mapped = np.load(tmp_path / "A.npy", mmap_mode="r")[:, 50:]
    assert _process_group.checksum(mapped) == _process_group.checksum(A[:, 50:])
    assert _process_group.checksum(mapped) != _process_group.checksum(A[:, :150])
    np.testing.assert_array_equal(mapped, A[:, 50:])


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_the_columns_of_one_file_are_shared_without_gap_or_overlap(ranks, tmp_path, monkeypatch):
    A = np.arange(6.0).reshape(2, 3)
    np.save(tmp_path / "A.npy", A)
    monkeypatch.chdir(tmp_path)
    shares = [
        _process_group._open(*_process_group._share("A.npy", "--parts", r, ranks))
        for r in range(ranks)
    ]
    np.testing.assert_array_equal(np.concatenate(shares, axis=1), A)


# Options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--method", "newton"], "--method must be one of average, frozen, cg"),
        (["--rtol", "-1"], "rtol must be a finite number >= 0"),
        (["--timeout", "0"], "--timeout must be a number of seconds above 0"),
        (["--resume"], "--resume needs --checkpoint"),
        (["-o", "D.txt"], "must end in one of .npy, .npz, .csv, .mtx"),
        (["-o", "C.npy"], "the output 'C.npy' would replace an input"),
        (["-o", "A_2.npy"], "the output 'A_2.npy' would replace an input"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_starts(
    small, options, words, monkeypatch, capsys
):
    from linear_icl import cli

    monkeypatch.chdir(small[0])
    monkeypatch.setattr(_process_group, "launch", None)
    with pytest.raises(SystemExit) as left:
        cli.main(["distributed", *FILES, *options])
    assert left.value.code == 2
    assert words in capsys.readouterr().err
