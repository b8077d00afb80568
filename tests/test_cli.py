"""The command line, as a reader types it: every call is a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time

import nbformat
import numpy as np
import pytest
from test_chapters import NAME, texts, tiny_folder

import linear_icl
from linear_icl import chapters, cli

# What the console script runs, with the notebooks taken from a folder of the test's.
PROGRAM = """
import sys
from pathlib import Path
folder = Path(sys.argv.pop(1))
from linear_icl import chapters, cli
chapters.notebooks_folder = lambda: folder
cli.main()
"""


@pytest.fixture(scope="module")
def notebooks(tmp_path_factory):
    return tiny_folder(tmp_path_factory.mktemp("tiny") / "root", plot=False)


@pytest.fixture
def command(notebooks, tmp_path):
    def call(*arguments, cwd=tmp_path):
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, str(notebooks), *map(str, arguments)],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=100,
        )

    return call


@pytest.fixture
def files(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"A": rng.normal(size=(4, 7)), "B": rng.normal(size=(2, 7)), "C": np.eye(4)[:, :3]}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return arrays


# General


def test_help_states_the_exit_codes_and_loads_nothing_heavy(command):
    result = command("--help")
    assert result.returncode == 0
    assert "Exit codes" in result.stdout
    code = (
        "import sys, linear_icl.cli; "
        "print(*{'torch', 'matplotlib', 'papermill', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.split() == []


def test_the_version_is_the_packages(command):
    assert command("--version").stdout == f"linear-icl {linear_icl.__version__}\n"


@pytest.mark.parametrize("arguments", [["walk"], ["run"], ["solve"], ["run", "1", "--fast"]])
def test_a_command_that_does_not_exist_or_is_incomplete_ends_with_2(command, arguments):
    result = command(*arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["run", "-p", "n", "5", "-o", "x"], ["run", "-p", "n=5", "-o", "x"]),
        (["-p", "n", "-3"], ["-p", "n=-3"]),
        (["-p", "n=5", "-p", "d", "6"], ["-p", "n=5", "-p", "d=6"]),
        (["--parameter", "s", "a=b"], ["--parameter", "s=a=b"]),
        (["-p"], ["-p"]),
        (["-p", "n"], ["-p", "n"]),
        (["-p", "n", "-o", "x"], ["-p", "n", "-o", "x"]),
    ],
)
def test_a_parameters_name_and_value_are_joined(given, expected):
    assert cli._joined(given) == expected


# chapters


def test_chapters_lists_every_parameter_with_default_range_and_help(command):
    listed = command("chapters").stdout
    for name, chapter in chapters.CHAPTERS.items():
        assert f"{name}: {chapter.title}" in listed
        for p in chapter.parameters:
            assert f"{p.help} ({p.allowed})" in listed
    assert "07" not in command("chapters", "6").stdout
    assert command("chapters", "egle").returncode == 2


def test_chapters_writes_json(command):
    table = json.loads(command("chapters", "--json").stdout)
    assert table.keys() == chapters.CHAPTERS.keys()
    kappa = table["06_eagle"]["parameters"]["kappa"]
    assert (kappa["type"], kappa["low"], kappa["high"]) == ("float", 1.0, 1e12)


# run


def test_run_writes_notebook_report_and_page_where_it_is_told(command, tmp_path):
    output = "out {1}/new/a b.ipynb"
    result = command("run", "1", "-p", "d", "3", "-p", "n", "1e1", "-o", output, "--html")
    assert result.returncode == 0, result.stderr
    assert "product: 30" in result.stdout
    assert result.stderr == ""  # a progress bar belongs on a terminal only
    report = json.loads((tmp_path / "out {1}/new/a b.json").read_text())
    assert report["parameters"] == {"d": 3, "n": 10, "seed": 0}
    assert (tmp_path / "out {1}/new/a b.html").read_text().startswith("<!DOCTYPE html>")
    assert "30" in texts(nbformat.read(tmp_path / output, as_version=4))


def test_run_reads_parameters_from_yaml_and_the_command_line_wins(command, tmp_path):
    (tmp_path / "p.yaml").write_text("d: 1e1\nn: 7\n")  # YAML 1.1 makes a text of 1e1
    result = command("run", "01_icl", "-f", "p.yaml", "-p", "n", "6", "-o", "o.ipynb", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "o.json").read_text())["parameters"]["d"] == 10
    assert "product: 60" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "6", "-p", "kapa", "1e4"], "did you mean kappa?"),
        (["run", "6", "-p", "n", "-3"], "n = '-3' is not allowed: expected a whole number"),
        (["run", "6", "-p", "n", "2.5"], "n = '2.5' is not allowed: expected a whole number"),
        (["run", "6", "-p", "kappa", "0.5"], "expected a number from 1 to 1e12"),
        (["run", "6", "-p", "spectrum", "foo"], "expected one of log-uniform"),
        (["run", "6", "-p", "n", "3", "-p", "n", "4"], "n is given twice"),
        (["run", "6", "-p", "n"], "-p needs a name and a value"),
        (["run", "egle"], "did you mean 06_eagle?"),
        (["run", "1", "-f", "missing.yaml"], "No such file or directory: missing.yaml"),
        (["run", "1", "-f", "list.yaml"], "holds no parameters"),
        (["run", "1", "-f", "broken.yaml"], "is not YAML"),
        (["grid", "6", "-p", "kappa", "1e2,0.5"], "expected a number from 1 to 1e12"),
        (["grid", "6", "-p", "kapa", "1e2"], "did you mean kappa?"),
    ],
)
def test_a_wrong_parameter_ends_with_2_and_one_line_before_a_kernel_starts(
    command, tmp_path, arguments, words
):
    (tmp_path / "list.yaml").write_text("- 3\n")
    (tmp_path / "broken.yaml").write_text("n: [\n")
    result = command(*arguments, "-o", "new/out.ipynb")
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "new").exists()


def test_a_cell_that_fails_ends_with_1_and_writes_nothing(command, tmp_path):
    result = command("run", "1", "-p", "seed", "13", "-o", "new/out.ipynb")
    assert result.returncode == 1
    assert "ValueError: an unlucky seed" in result.stderr
    assert f"{NAME}: cell 6" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "new").exists()


def test_an_interrupted_run_ends_with_130_and_writes_nothing(notebooks, tmp_path):
    arguments = ["run", "1", "-p", "seed", "14", "-o", "new/out.ipynb"]
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(notebooks), *arguments],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        # Tests that run in the background ignore Ctrl-C; what they start must not.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        try:
            while process.poll() is None and not (tmp_path / "asleep").exists():
                time.sleep(0.1)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stderr.read().decode().endswith("linear-icl: interrupted\n")
        finally:
            process.kill()
    (tmp_path / "asleep").unlink()
    assert list(tmp_path.iterdir()) == []


# grid


def test_grid_writes_a_table_keeps_what_is_there_and_reports_failures(command, tmp_path):
    arguments = ["grid", "1", "-p", "d", "2,3", "-p", "seed", "13,0", "-o", "folder"]
    result = command(*arguments)
    assert result.returncode == 1
    assert "2 of 4 runs failed" in result.stderr
    assert result.stderr.count("an unlucky seed") == 2
    assert "done    01_icl_framing_d=2_seed=0.ipynb" in result.stdout
    table = (tmp_path / "folder" / f"{NAME}_grid.csv").read_text().splitlines()
    assert table[0].startswith("d,n,seed,status,seconds,product,third,nothing,error")
    assert len(table) == 5
    result = command("grid", "1", "-p", "d", "2,3", "-o", "folder", "-p", "seed", "0")
    assert result.returncode == 0
    assert result.stdout.count("kept    ") == 2


# solve


@pytest.mark.parametrize("method", ["eagle", "cg", "direct", "gd", "gd++"])
def test_solve_completes_the_block_with_every_method(command, files, tmp_path, method):
    result = command("solve", "A.npy", "B.npy", "C.npy", "-o", "new/D.npy", "--method", method)
    assert result.returncode == 0, result.stderr
    exact = files["B"] @ np.linalg.pinv(files["A"]) @ files["C"]
    assert np.load(tmp_path / "new" / "D.npy") == pytest.approx(exact, abs=1e-6)
    summary = dict(line.split(maxsplit=1) for line in result.stdout.splitlines()[:2])
    assert summary == {"method": method, "shapes": "A 4x7, B 2x7, C 4x3"}
    assert "rank              4\n" in result.stdout
    kappa = np.linalg.cond(files["A"])
    assert f"condition number  {kappa:.3g}\n" in result.stdout
    for word in ("status", "iterations", "residual", "seconds"):
        assert f"\n{word} " in result.stdout


@pytest.mark.parametrize("method", ["eagle", "cg", "direct", "gd", "gd++"])
def test_solve_writes_the_weights_when_there_are_no_queries(command, files, tmp_path, method):
    result = command("solve", "A.npy", "B.npy", "-o", "W.csv", "--method", method)
    assert result.returncode == 0, result.stderr
    exact = files["B"] @ np.linalg.pinv(files["A"])
    assert np.loadtxt(tmp_path / "W.csv", delimiter=",") == pytest.approx(exact, abs=1e-6)


def test_a_solve_that_does_not_converge_writes_nothing_unless_told_to(command, files, tmp_path):
    arguments = ["solve", "A.npy", "B.npy", "-o", "W.npy", "--method", "gd", "--maxiter", "2"]
    result = command(*arguments)
    assert result.returncode == 1
    assert "not converged, so W.npy was not written" in result.stderr
    assert "iteration limit" in result.stdout
    assert not (tmp_path / "W.npy").exists()
    assert command(*arguments, "--keep-unconverged").returncode == 1
    assert np.load(tmp_path / "W.npy").shape == (2, 4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["A.npy", "missing.npy", "-o", "D.npy"], "missing.npy: no such file"),
        (["A.npy", "text.npy", "-o", "D.npy"], "B: text.npy"),
        (["A.npy", "C.npy", "-o", "D.npy"], "B"),
        (["A.npy", "nan.csv", "-o", "D.npy"], "finite"),
        (["A.npy", "-o", "D.npy"], "A B or A B C"),
        (["A.npy", "B.npy", "C.npy", "C.npy", "-o", "D.npy"], "A B or A B C"),
        (["A.npy", "B.npy", "-o", "D.txt"], "must end in one of .npy"),
        (["A.npy", "B.npy", "-o", "./B.npy"], "would replace the input B"),
        (["A.npy", "B.npy", "-o", "D.npy", "--method", "lu"], "lu"),
        (["A.npy", "B.npy", "-o", "D.npy", "--rtol", "-1"], "rtol"),
        (["A.npy", "B.npy", "-o", "D.npy", "--method", "cg", "--rcond", "1e-9"], "--rcond"),
        (["A.npy", "B.npy", "-o", "D.npy", "--method", "direct", "--rtol", "1e-9"], "--rtol"),
        (["A.npy", "B.npy", "-o", "text.npy/D.npy"], "text.npy"),
    ],
)
def test_a_bad_file_or_option_ends_with_2_and_says_so(command, files, tmp_path, arguments, words):
    (tmp_path / "text.npy").write_text("1, 2, 3")
    (tmp_path / "nan.csv").write_text("1,2,nan,4,5,6,7\n")
    before = {f: f.read_bytes() for f in tmp_path.iterdir()}
    result = command("solve", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert {f: f.read_bytes() for f in tmp_path.iterdir()} == before


def test_solve_reads_named_arrays_and_a_batch(command, tmp_path):
    rng = np.random.default_rng(1)
    A, B = rng.normal(size=(3, 4, 6)), rng.normal(size=(3, 2, 6))
    np.savez(tmp_path / "data.npz", A=A, B=B)
    result = command("solve", "data.npz:A", "data.npz:B", "-o", "W.npy")
    assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "W.npy") == pytest.approx(B @ np.linalg.pinv(A), abs=1e-6)
    assert command("solve", "data.npz:A", "data.npz:B", "-o", "data.npz:W").returncode == 2


def test_solve_says_the_rank_of_a_singular_matrix(command, tmp_path):
    np.savetxt(tmp_path / "A.csv", [[1, 2, 3], [4, 5, 6], [7, 8, 9]], delimiter=",")
    np.savetxt(tmp_path / "Z.csv", np.zeros((1, 3)), delimiter=",")
    result = command("solve", "A.csv", "A.csv", "-o", "W.npy", "--method", "direct")
    assert "rank              2\n" in result.stdout
    result = command("solve", "A.csv", "Z.csv", "-o", "W.npy")
    assert result.returncode == 0, result.stderr
    assert not np.load(tmp_path / "W.npy").any()


# train and unroll


def test_train_writes_a_run_that_resumes_and_unrolls(command, tmp_path):
    arguments = ["train", "rank_limited", "--seed", "3", "-o", "run"]
    result = command(*arguments, "--steps", "1")
    assert result.returncode == 0, result.stderr
    assert "rank_limited, seed 3: 1 steps" in result.stdout
    assert result.stderr == ""
    result = command(*arguments, "--steps", "2")
    assert result.returncode == 2
    assert "--resume" in result.stderr
    result = command(*arguments, "--steps", "2", "--resume")
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["step"] == 2
    result = command(*arguments, "--steps", "2", "--resume")
    assert "nothing to do: run has 2 steps already" in result.stdout
    result = command("unroll", "run", "--figures", "pictures", "--prompts", "64")
    assert result.returncode == 0, result.stderr
    assert "rank_limited, trained for 2 steps, 64 fresh prompts" in result.stdout
    pictures = {p.name for p in (tmp_path / "pictures").iterdir()}
    assert pictures == {"weights.png", "steps.png", "sketches.png"}


def test_train_can_ask_for_the_weights(command, tmp_path):
    options = ["--task", "estimation", "--steps", "1", "-o", "run"]
    result = command("train", "unconstrained", *options)
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "run" / "manifest.json").read_text())["config"]
    assert (config["task"], config["model"]["n_query"]) == ("estimation", config["model"]["d"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "quantum", "-o", "x"], "quantum"),
        (["train", "unconstrained", "-o", "x", "--task", "guessing"], "guessing"),
        (["train", "unconstrained", "-o", "x", "--steps", "0"], "steps"),
        (["train", "unconstrained", "-o", "x", "--device", "toaster"], "cpu"),
        (["unroll", "nowhere"], "no trained model 'nowhere' comes with the package; there are: "),
        (["unroll", "run"], "damaged"),
    ],
)
def test_a_run_that_cannot_be_trained_or_read_ends_with_2(command, tmp_path, arguments, words):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "w.safetensors").write_bytes(b"not weights")
    manifest = {"config": {"model": {}}, "step": 1, "history": []}
    manifest["files"] = {"weights": {"name": "w.safetensors", "sha256": "0"}}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    result = command(*arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "x").exists()
