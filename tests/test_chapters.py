"""The table of chapters, and running them. The notebooks here are tiny ones, made for the test."""

import csv
import json
import re
import shutil

import nbformat
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from linear_icl import _maintenance, chapters

NAME = "01_icl_framing"  # its parameters: d, n, seed

MARKDOWN = r"""# A tiny chapter
The bound $\kappa_1 * \kappa_2 * 2$, written `$PATH`.

$$
\begin{aligned} A &= U \Sigma V^\top \\ \|A\|_F &\le 1 \end{aligned}
$$ (eq-bound)

````{prf:theorem} Rate
:label: theorem-rate
It holds for $n > 1$ with step {math}`\eta`.
````

By {prf:ref}`theorem-rate` and {numref}`fig-line`,
see [notation](../book/notation.md) {cite:p}`lutz`.

```{exercise}
:label: exercise-one
Why?
```

```{solution} exercise-one
:class: dropdown
Because.
```
"""
ALT = {"image": {"alt": "a rising line"}, "figure": {"caption": "A line", "name": "fig-line"}}
CODE = {
    "parameters": chapters.parameters_cell(NAME),
    "validate": "import os, tempfile, time\nfrom pathlib import Path\n"
    "import numpy as np\nfrom linear_icl import chapters\n"
    f"globals().update(chapters.validate('{NAME}', d=d, n=n, seed=seed))",
    "print": "print('first', flush=True)\ntime.sleep(0.05)\nprint('second')\nd * n",
    "plot": "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
    "fail": "if seed == 13:\n    raise ValueError('an unlucky seed')\n"
    "if seed == 14:\n    Path(tempfile.gettempdir(), 'asleep').touch()\n    time.sleep(120)\n"
    "if seed == 15:\n    os._exit(9)",
    "record": "chapters.record(product=d * n, third=np.float64(1 / 3), nothing=float('nan'))",
}


def tiny_notebook(plot=True):
    notebook = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "x"}})
    notebook.cells = [new_markdown_cell(MARKDOWN)]
    for name, source in CODE.items():
        if name != "plot" or plot:
            cell = new_code_cell(source)
            cell.metadata = {"parameters": {"tags": ["parameters"]}, "plot": {"mystnb": ALT}}.get(
                name, {}
            )
            notebook.cells.append(nbformat.from_dict(cell))
    return notebook


def tiny_folder(folder, plot=True):
    (folder / "notebooks").mkdir(parents=True)
    (folder / "book").mkdir()
    nbformat.write(tiny_notebook(plot), folder / "notebooks" / f"{NAME}.ipynb")
    return folder / "notebooks"


@pytest.fixture
def notebooks(tmp_path):
    return tiny_folder(tmp_path / "root", plot=False)


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """A folder whose notebook was executed in place."""
    root = tmp_path_factory.mktemp("executed") / "root"
    tiny_folder(root)
    assert _maintenance.main(["execute"], root) == 0
    return root


def texts(notebook):
    return [
        output.get("text") or output["data"]["text/plain"]
        for output in chapters.outputs(notebook)
        if "text" in output or "text/plain" in output.get("data", {})
    ]


# The table


@pytest.mark.parametrize("name", chapters.CHAPTERS)
def test_the_defaults_of_a_chapter_are_allowed_and_a_seed_is_among_them(name):
    defaults = chapters.defaults(name)
    assert chapters.validate(name, **defaults) == defaults
    assert "seed" in defaults


@pytest.mark.parametrize("name", chapters.CHAPTERS)
def test_a_parameters_cell_is_plain_python_with_the_defaults(name):
    values = {}
    exec(chapters.parameters_cell(name), values)
    assert {k: values[k] for k in chapters.defaults(name)} == chapters.defaults(name)


def test_the_spectra_to_choose_from_are_those_that_take_a_condition_number():
    from linear_icl import problems

    chapter = chapters.CHAPTERS["06_eagle"]
    spectrum = next(p for p in chapter.parameters if p.name == "spectrum")
    assert set(spectrum.choices) == set(problems.SPECTRA) - {"low-rank"}


@pytest.mark.parametrize("name", ["6", "06", "06_", "eagle", "06_eagle", "eag"])
def test_a_chapter_is_found_by_number_name_or_beginning(name):
    assert chapters.find(name) == "06_eagle"


@pytest.mark.parametrize(
    ("name", "words"),
    [("egle", "did you mean 06_eagle"), ("g", "ambiguous"), ("99", "there are"), ("", "there are")],
)
def test_an_unknown_or_ambiguous_chapter_is_refused_with_names(name, words):
    with pytest.raises(ValueError, match=words):
        chapters.find(name)


# Validation


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean kappa"):
        chapters.validate("06_eagle", kapa=1e4)
    with pytest.raises(ValueError, match="there are d, n"):
        chapters.validate("06_eagle", colour=1)


@pytest.mark.parametrize(
    "given",
    [
        {"n": -3},
        {"n": 2.5},
        {"n": "2.5"},
        {"n": True},
        {"n": float("nan")},
        {"n": 10**400},
        {"n": None},
        {"n": [3]},
        {"kappa": 0.5},
        {"kappa": float("inf")},
        {"kappa": "many"},
        {"kappa": 10**400},
        {"kappa": 1j},
        {"kappa": np.array([1.0])},
        {"spectrum": "foo"},
        {"spectrum": 3},
    ],
)
def test_a_wrong_value_is_refused_naming_parameter_value_and_what_is_allowed(given):
    [(name, value)] = given.items()
    allowed = {"n": "a whole number", "kappa": "a number", "spectrum": "one of log-uniform"}
    with pytest.raises(ValueError, match="is not allowed: expected") as error:
        chapters.validate("06_eagle", **given)
    assert str(error.value).startswith(f"{name} = {value!r}")
    assert allowed[name] in str(error.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(np.int64(240), 240), (np.array(240), 240), ("240", 240), (240.0, 240), ("1e3", 1000)],
)
def test_a_whole_number_is_accepted_in_whatever_form_it_comes(value, expected):
    result = chapters.validate("06_eagle", n=value)["n"]
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize("value", ["1e4", "1E+4", "10000", 10000, np.float32(1e4), np.int8(100)])
def test_a_number_is_accepted_as_text_that_yaml_made_of_it(value):
    result = chapters.validate("06_eagle", kappa=value)["kappa"]
    assert result == float(value)
    assert type(result) is float


def test_true_and_false_are_read_as_such_and_nothing_else_is():
    switch = chapters.Parameter("switch", bool, False, "on or off")
    for value in (True, np.True_, "yes", "True"):
        assert switch.check(value) is True
    for value in (1, "1", "on", 0.0, None):
        with pytest.raises(ValueError, match="true or false"):
            switch.check(value)


@given(st.floats(1, 1e12), st.integers(2, 2000))
def test_every_allowed_value_survives_validation(kappa, n):
    assert chapters.validate("06_eagle", kappa=kappa, n=n) == {"kappa": kappa, "n": n}
    assert chapters.validate("06_eagle", kappa=repr(kappa), n=str(n)) == {"kappa": kappa, "n": n}


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_default_is_written_so_that_it_reads_back_unchanged(value):
    line = chapters.Parameter("x", float, value, "a number").line
    values = {}
    exec(line, values)
    assert values["x"] == value
    assert type(values["x"]) is float


# The record


def test_a_record_refuses_what_json_and_a_table_cannot_hold():
    with pytest.raises(TypeError, match="error is a dict"):
        chapters.record(error={})


# A run


def test_a_run_writes_notebook_and_report_into_a_new_folder_with_braces(notebooks, tmp_path):
    output = tmp_path / "out {1}" / "new" / "a b.ipynb"
    report = chapters.run("1", output, {"d": np.int64(5), "n": "6"}, notebooks=notebooks)
    assert sorted(f.name for f in output.parent.iterdir()) == ["a b.ipynb", "a b.json"]
    assert json.loads(output.with_suffix(".json").read_text()) == report
    assert report["parameters"] == {"d": 5, "n": 6, "seed": 0}
    assert report["results"] == {"product": 30, "third": 0.333, "nothing": "nan"}
    assert report["chapter"] == NAME
    assert report["seed"] == 0
    assert report["seconds"] > 0
    assert report["started"].endswith("+00:00")
    assert {"python", "numpy", "torch", "scipy", "linear-icl"} <= report["versions"].keys()
    assert report["machine"].keys() == {"cpu", "cores"}
    notebook = nbformat.read(output, as_version=4)
    nbformat.validate(notebook)
    assert "first\nsecond\n" in texts(notebook)
    assert "papermill" not in json.dumps(notebook)


def test_the_outputs_do_not_depend_on_the_working_directory(notebooks, tmp_path, monkeypatch):
    found = []
    for folder in ("/", notebooks):
        monkeypatch.chdir(folder)
        output = tmp_path / f"{len(found)}.ipynb"
        chapters.run(NAME, output, {"d": 3}, notebooks=notebooks)
        found.append(output.read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("given", [{"kapa": 1}, {"d": -3}, {"d": 2.5}])
def test_nothing_starts_when_a_parameter_is_wrong(notebooks, tmp_path, monkeypatch, given):
    monkeypatch.setattr(chapters, "execute", pytest.fail)
    with pytest.raises(ValueError, match=next(iter(given))):
        chapters.run(NAME, tmp_path / "out.ipynb", given, notebooks=notebooks)


def test_an_output_that_cannot_be_written_is_refused_before_the_run(
    notebooks, tmp_path, monkeypatch
):
    monkeypatch.setattr(chapters, "execute", pytest.fail)
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.ipynb").mkdir()
    source = notebooks / f"{NAME}.ipynb"
    outputs = [tmp_path / "out.txt", tmp_path / "file" / "out.ipynb", tmp_path / "folder.ipynb"]
    for output in [*outputs, source]:
        with pytest.raises(ValueError, match="the output"):
            chapters.run(NAME, output, notebooks=notebooks)


def test_a_failing_cell_is_named_and_leaves_earlier_files_as_they_were(notebooks, tmp_path):
    output = tmp_path / "results" / "out.ipynb"
    output.parent.mkdir()
    output.write_text("earlier")
    message = r"01_icl_framing: cell 6 \(In \[5\]: if seed == 13:\) failed: .*an unlucky seed"
    with pytest.raises(chapters.ChapterError, match=message) as error:
        chapters.run(NAME, output, {"seed": 13}, html=True, notebooks=notebooks)
    assert "ValueError" in error.value.traceback
    assert [f.name for f in output.parent.iterdir()] == ["out.ipynb"]
    assert output.read_text() == "earlier"


def test_a_kernel_that_dies_in_a_cell_is_reported(notebooks, tmp_path):
    with pytest.raises(chapters.ChapterError, match="the kernel stopped"):
        chapters.run(NAME, tmp_path / "out.ipynb", {"seed": 15}, notebooks=notebooks)
    assert not (tmp_path / "out.ipynb").exists()


def test_a_kernel_that_fails_to_start_is_started_again(notebooks, tmp_path, monkeypatch):
    real, attempts = chapters._papermill, []

    def unlucky(*arguments):
        attempts.append(arguments)
        if len(attempts) < 3:
            raise RuntimeError("Kernel died before replying to kernel_info")
        return real(*arguments)

    monkeypatch.setattr(chapters, "_papermill", unlucky)
    monkeypatch.setattr(chapters.time, "sleep", lambda _: None)
    report = chapters.run(NAME, tmp_path / "out.ipynb", notebooks=notebooks)
    assert len(attempts) == 3
    assert report["results"]["product"] == 256


def test_the_page_of_a_run_loads_nothing_and_shows_theorems_figures_and_maths(tmp_path):
    folder = tiny_folder(tmp_path / "root")
    output = tmp_path / "out.ipynb"
    chapters.run(NAME, output, html=True, notebooks=folder)
    page = output.with_suffix(".html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", page)
    assert not re.search(r"url\(|@import", page)
    assert "HELD" not in page
    assert "{prf" not in page
    assert page.count('display="block"') == 1
    assert "<mtable" in page
    for words in (
        "<strong>Theorem 1 (Rate).</strong>",
        "By Theorem 1 and Figure 1,\nsee notation [lutz].",
        "<summary>Solution of Exercise 1</summary>",
        "<code>$PATH</code>",
        'alt="a rising line"',
        "Figure 1. A line",
        "<td>0.333</td>",
    ):
        assert words in page


# A grid


def test_a_grid_keeps_going_after_a_failure_and_resumes(notebooks, tmp_path):
    folder = tmp_path / "grid"
    values = {"d": [2, "3", 2], "seed": [0, 13]}
    rows = chapters.run_grid(NAME, values, folder, workers=2, notebooks=notebooks)
    assert [(r["d"], r["seed"], r["status"]) for r in rows] == [
        (2, 0, "done"),
        (2, 13, "failed"),
        (3, 0, "done"),
        (3, 13, "failed"),
    ]
    assert [r.get("product") for r in rows] == [64, None, 96, None]
    assert "an unlucky seed" in rows[1]["error"]
    assert sorted(f.name for f in folder.glob("*.ipynb")) == [
        "01_icl_framing_d=2_seed=0.ipynb",
        "01_icl_framing_d=3_seed=0.ipynb",
    ]
    with open(folder / f"{NAME}_grid.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["product"] for row in table] == ["64", "", "96", ""]
    assert json.loads((folder / f"{NAME}_grid.json").read_text()) == rows

    (folder / "01_icl_framing_d=3_seed=0.json").write_text("{")  # cut off
    times = {f: f.stat().st_mtime_ns for f in folder.glob("*=0.ipynb")}
    rows = chapters.run_grid(NAME, values | {"seed": [0]}, folder, notebooks=notebooks)
    assert [r["status"] for r in rows] == ["kept", "done"]
    assert [r["product"] for r in rows] == [64, 96]
    changed = [f.name for f, time in times.items() if f.stat().st_mtime_ns != time]
    assert changed == ["01_icl_framing_d=3_seed=0.ipynb"]


def test_a_grid_is_refused_before_the_first_run_when_any_value_is_wrong(
    notebooks, tmp_path, monkeypatch
):
    monkeypatch.setattr(chapters, "run", pytest.fail)
    for grid in ({"d": [3, -3]}, {"d": []}, {"d": "34"}, {"d": 3}, {"e": [3]}):
        with pytest.raises(ValueError, match=f"{next(iter(grid))}"):
            chapters.run_grid(NAME, grid, tmp_path / "grid", notebooks=notebooks)
    with pytest.raises(ValueError, match="workers"):
        chapters.run_grid(NAME, {}, tmp_path / "grid", workers=0, notebooks=notebooks)
    assert not (tmp_path / "grid").exists()


# The committed notebooks


def test_executing_in_place_twice_changes_nothing_and_passes_the_check(executed):
    file = executed / "notebooks" / f"{NAME}.ipynb"
    before = file.read_bytes()
    assert _maintenance.main(["execute", "1"], executed) == 0
    assert file.read_bytes() == before
    assert _maintenance.main(["check"], executed) == 0
    runs = json.loads((executed / "book" / "chapter_runs.json").read_text())
    assert runs[NAME].keys() == {"started", "seconds", "versions", "machine", "results"}


def test_the_table_collects_what_the_stored_notebooks_recorded(executed):
    file = executed / "book" / "chapter_runs.json"
    before = json.loads(file.read_text())
    file.unlink()
    assert _maintenance.main(["table"], executed) == 0
    runs = json.loads(file.read_text())
    assert runs == {NAME: {"results": before[NAME]["results"]}}
    assert runs[NAME]["results"]["product"] == 8 * 32
    assert "Not run yet." in (executed / "book" / "chapter_runs.md").read_text()
    file.write_text(chapters.as_json(before))


def test_a_notebook_that_fails_is_not_rewritten(notebooks, tmp_path, capsys):
    file = notebooks / f"{NAME}.ipynb"
    file.write_text(file.read_text().replace("seed == 13", "seed == 0"))
    before = file.read_bytes()
    assert _maintenance.main(["execute"], notebooks.parent) == 1
    assert file.read_bytes() == before
    assert "cell 5 (In [4]: if seed == 0:)" in capsys.readouterr().err


def test_the_page_of_last_runs_lists_parameters_and_is_the_same_each_time(executed):
    file = executed / "book" / "chapter_runs.md"
    assert _maintenance.main(["table"], executed) == 0
    first = file.read_text(encoding="utf-8")
    assert _maintenance.main(["table"], executed) == 0
    assert file.read_text(encoding="utf-8") == first
    assert "(../notebooks/01_icl_framing.ipynb)" in first
    for p in chapters.CHAPTERS[NAME].parameters:
        assert f"| `{p.name}` | `{p.default}` | {p.allowed} | {p.help} |" in first
    assert "Last run: 20" in first
    assert f"numpy {np.__version__}" in first


def _clear_outputs(notebook):
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []


def _set(key, value, cell=4):
    return lambda notebook: notebook.cells[cell].__setitem__(key, value)


def _replace(old, new, cell):
    def change(notebook):
        notebook.cells[cell].source = notebook.cells[cell].source.replace(old, new)

    return change


_ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": []}
_STDERR = {"output_type": "stream", "name": "stderr", "text": "a warning"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_clear_outputs, "no cell has an output"),
        (_set("execution_count", None), "cell 5 .* not executed"),
        (_set("execution_count", 9), "cell 5 .* execution count is 9"),
        (_set("id", "other"), "cell 5 .* id is 'other'"),
        (_set("metadata", {}), "cell 5 .* no alternative text"),
        (_set("metadata", {"mystnb": {"image": {"alt": "x"}}}), "cell 5 .* no caption"),
        (_set("metadata", {"execution": {}}), "cell 5 .* holds times"),
        (_set("metadata", {"tags": ["injected-parameters"]}), "cell 5 .* another run"),
        (_set("metadata", {"tags": ["parameters"]}), "2 cells are tagged"),
        (_set("metadata", {}, cell=1), "0 cells are tagged"),
        (_set("outputs", [nbformat.from_dict(_ERROR)]), "cell 5 .* failed: ValueError: no"),
        (_set("outputs", [nbformat.from_dict(_STDERR)]), "cell 5 .* stderr: a warning"),
        (_replace("d: int = 8", "d: int = 9", 1), "lacks the line: d: int = 8"),
        (_replace("n: int", "n: float", 1), "lacks the line: n: int = 32"),
        (_replace("features: length", "features", 1), "lacks the line: d: int = 8"),
        (_replace("n: int", "x: int = 1  # more\nn: int", 1), "4 lines, not 3"),
        (_replace("n=n, ", "", 2), "second code cell"),
        (lambda notebook: notebook.metadata.update(papermill={}), "holds `papermill`"),
        (lambda notebook: notebook.metadata.kernelspec.update(name="x"), "not `python3`"),
    ],
)
def test_the_check_says_what_is_wrong_and_where(executed, tmp_path, capsys, change, words):
    root = tmp_path / "root"
    shutil.copytree(executed, root)
    file = root / "notebooks" / f"{NAME}.ipynb"
    notebook = nbformat.read(file, as_version=4)
    change(notebook)
    nbformat.write(notebook, file)
    assert _maintenance.main(["check"], root) == 1
    assert re.search(f"{NAME}: .*{words}", capsys.readouterr().err)


def test_a_notebook_without_an_entry_in_the_table_is_reported(executed):
    notebook = nbformat.read(executed / "notebooks" / f"{NAME}.ipynb", as_version=4)
    assert "no entry" in _maintenance.check(notebook, "99_other")[0]


def test_a_parameters_cell_is_printed_for_authors(executed, capsys):
    assert _maintenance.main(["cell", "1"], executed) == 0
    assert capsys.readouterr().out == chapters.parameters_cell(NAME) + "\n"
    assert _maintenance.main(["cell", "99"], executed) == 1


def test_measurements_are_read_with_where_and_when_they_were_made():
    found = chapters.measurements("column_models")
    assert {"date", "commit", "machine", "versions", "threads"} <= found.keys()


def test_measurements_that_are_not_there_are_named_with_those_that_are():
    with pytest.raises(FileNotFoundError, match=r"'nothing' in .*: .*column_models"):
        chapters.measurements("nothing")
