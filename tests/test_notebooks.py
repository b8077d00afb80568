"""The committed notebooks: sound as stored, and sound when run again with other parameters."""

import json
from pathlib import Path

import nbformat
import papermill
import pytest

from linear_icl import _maintenance, chapters

FOLDER = chapters.notebooks_folder()
STORED = _maintenance.stored(FOLDER)

# Small, and off every default.
OTHER_VALUES = {
    "01_icl_framing": {"d": 5, "n": 21, "seed": 3},
    "02_normal_equations": {"d": 12, "n": 30, "kappa": 1e3, "seed": 3},
    "03_gradient_descent": {"d": 12, "n": 30, "kappa": 20.0, "rtol": 1e-6, "seed": 3},
    "04_conjugate_gradient": {"d": 30, "n": 50, "kappa": 1e2, "rtol": 1e-6, "seed": 3},
    "05_gd_plus_plus": {"d": 10, "n": 24, "kappa": 1e2, "layers": 8, "noise": 2.0, "seed": 3},
    "06_eagle": {
        "d": 60,
        "n": 80,
        "d_out": 3,
        "n_query": 4,
        "kappa": 1e3,
        "spectrum": "log-spaced",
        "noise": 0.01,
        "rtol": 1e-7,
        "seed": 3,
    },
    "07_rank_restricted_attention": {
        "d": 40,
        "n": 88,
        "rank": 11,
        "machines": 4,
        "alpha": 0.2,
        "kappa": 30.0,
        "method": "frozen",
        "noise": 0.001,
        "seed": 3,
    },
    "08_training_transformers": {
        "regime": "rank_limited",
        "d": 6,
        "n": 8,
        "rank": 3,
        "machines": 2,
        "layers": 3,
        "steps": 60,
        "noise": 0.01,
        "seed": 3,
    },
    "09_experiments": {
        "live": False,
        "n": 20,
        "kappa": 100.0,
        "matrix": str(Path(__file__).with_name("small.mtx")),
        "seed": 3,
    },
    "10_implications": {"prompts": 128, "ratio": 2.0, "steps": 60, "seed": 3},
    "11_claims": {"prompts": 3, "d": 8, "seed": 3},
    "12_gallery": {"landmarks": 60, "n": 20_000, "d": 7, "steps": 80, "seed": 3},
}


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def texts(notebook):
    """The text outputs that have to be the same in every run."""
    return [
        (output.get("text"), output.get("data", {}).get("text/plain"))
        for cell in notebook.cells
        if "nbval-ignore-output" not in cell.metadata.get("tags", [])
        for output in cell.get("outputs", [])
        if not any(mime.startswith("image/") for mime in output.get("data", {}))
    ]


def test_every_chapter_of_the_table_has_its_notebook_and_every_notebook_its_chapter():
    assert sorted(chapters.CHAPTERS) == STORED
    assert OTHER_VALUES.keys() == chapters.CHAPTERS.keys()


@pytest.mark.parametrize("name", STORED)
def test_a_stored_notebook_is_executed_described_and_agrees_with_the_table(name):
    assert _maintenance.check(read(name), name) == []


@pytest.mark.parametrize("name", STORED)
def test_a_notebook_records_results(name):
    recorded = [o.data[chapters.RESULTS_MIME] for o in _recording_outputs(read(name))]
    assert len(recorded) == 1
    assert recorded[0]


def _recording_outputs(notebook):
    return [o for o in chapters.outputs(notebook) if chapters.RESULTS_MIME in o.get("data", {})]


@pytest.mark.parametrize("name", STORED)
def test_other_values_differ_from_the_defaults(name):
    values = chapters.validate(name, **OTHER_VALUES[name])
    assert values.keys() == chapters.defaults(name).keys()
    assert not values.items() & chapters.defaults(name).items()


@pytest.mark.parametrize("name", STORED)
def test_a_notebook_runs_with_other_parameters(name, tmp_path):
    report = chapters.run(name, tmp_path / "out.ipynb", OTHER_VALUES[name])
    assert report["parameters"] == OTHER_VALUES[name]
    assert (
        report["results"].keys()
        == _recording_outputs(read(name))[0].data[chapters.RESULTS_MIME].keys()
    )
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == report


@pytest.mark.parametrize("name", STORED[:1])
def test_plain_papermill_gives_the_same_text_outputs(name, tmp_path, monkeypatch):
    chapters.run(name, tmp_path / "ours.ipynb", OTHER_VALUES[name])
    monkeypatch.chdir(tmp_path)
    plain = papermill.execute_notebook(
        FOLDER / f"{name}.ipynb", "plain.ipynb", OTHER_VALUES[name], progress_bar=False
    )
    chapters.normalise(plain, name)
    assert texts(plain) == texts(nbformat.read(tmp_path / "ours.ipynb", as_version=4))
