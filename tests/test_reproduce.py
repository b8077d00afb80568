"""Measuring everything again: the list is complete, and the comparison sees what matters."""

import importlib.util
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def reproduce():
    """The script as a module."""
    sys.path.insert(0, str(FOLDER))
    spec = importlib.util.spec_from_file_location("reproduce", FOLDER / "reproduce.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["reproduce"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(FOLDER))


def test_every_script_that_measures_is_in_the_list_and_every_result_belongs_to_one(reproduce):
    commands = [c.split()[0] for part in reproduce.PARTS.values() for c in part.commands]
    scripts = {f"benchmarks/{f.name}" for f in FOLDER.glob("*.py")}
    helpers = {"benchmarks/provenance.py", "benchmarks/reproduce.py"}
    assert scripts - helpers <= set(commands)
    root = FOLDER.parent
    written = {f for part in reproduce.PARTS.values() for p in part.results for f in root.glob(p)}
    assert set((FOLDER / "results").glob("*.json")) <= written


def test_equal_results_do_not_differ(reproduce):
    result = {"rows": [{"error": 1e-3, "iterations": 7, "status": "CONVERGED"}], "date": "then"}
    found = reproduce.compare(result, result | {"date": "now"})
    assert (found.same, found.differing, found.ratios) == (3, [], [])


def test_seconds_are_a_ratio_and_never_a_difference(reproduce):
    found = reproduce.compare({"seconds": {"qr": 1.0}}, {"seconds": {"qr": 3.0}})
    assert (found.same, found.differing, found.ratios) == (0, [], [3.0])


def test_a_number_that_moved_is_named_with_both_values(reproduce):
    found = reproduce.compare({"rows": [{"iterations": 100}]}, {"rows": [{"iterations": 120}]})
    assert found.differing == ["rows[0].iterations: 100 → 120"]


def test_a_row_that_is_gone_or_new_is_named(reproduce):
    found = reproduce.compare({"a": 1}, {"b": 1})
    assert found.differing == ["a: gone", "b: new"]


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (100.0, 104.0, True),
        (100.0, 110.0, False),
        (2e-12, 6e-12, True),
        (1e-9, 1e-11, False),
        (3e-16, 1e-14, True),
        (0.0, 0.0, True),
        (1.0, -1.0, False),
    ],
)
def test_numbers_agree_to_a_tolerance_and_round_off_to_its_order(reproduce, old, new, same):
    assert reproduce.alike(old, new) is same
