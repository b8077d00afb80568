"""The table of claims: complete, decided where it says, and current."""

import json
import re

import nbformat
import pytest

from linear_icl import chapters, claims

FOLDER = chapters.notebooks_folder()
LABELS = [claim.label for claim in claims.CLAIMS]
DECIDED = [claim for claim in claims.CLAIMS if not claim.pending]
RECORDED = chapters.recorded()

# The statements of the source document, and the faults that this book adds.
SERIES = {"F": 1, "N": 3, "G": 3, "C": 2, "T": 1, "P": 4, "Q": 5, "E": 8, "R": 7, "X": 11, "I": 5}
ADDED = ["N4", "T2", "X12", "I6"]


def read(chapter):
    return nbformat.read(FOLDER / f"{chapter}.ipynb", as_version=4)


def results(notebook):
    return chapters.results_in(notebook)


# The table


def test_every_claim_stands_in_the_table_once():
    listed = [f"{letter}{k}" for letter, last in SERIES.items() for k in range(1, last + 1)]
    assert sorted(LABELS) == sorted(listed + ADDED)


@pytest.mark.parametrize("claim", claims.CLAIMS, ids=LABELS)
def test_a_claim_says_what_holds_and_which_verdicts_are_possible(claim):
    assert claim.statement.endswith(".")
    assert claim.finding.endswith(".")
    assert "|" not in claim.statement + claim.finding + claim.figure
    assert set(claim.allowed) < {*claims.VERDICTS} or claim.allowed == claims.VERDICTS
    assert claims.NOT_REPRODUCED in claim.allowed


def test_claims_of_a_theme_stand_together():
    themes = [claim.theme for claim in claims.CLAIMS]
    changes = [b for a, b in zip([None, *themes], themes, strict=False) if a != b]
    assert len(changes) == len(set(changes))


def test_an_unknown_label_is_refused():
    with pytest.raises(ValueError, match="no claim 'Z9'; there are F1, N1"):
        claims.claim("Z9")


def test_a_verdict_that_is_not_possible_is_refused():
    with pytest.raises(ValueError, match="recorded 'perhaps' for claim E1: expected corrected or"):
        claims.verdict("E1", {"06_eagle": {"E1": "perhaps"}})


def test_a_claim_without_a_verdict_is_pending():
    assert claims.verdict("E1", {}) == claims.PENDING
    assert claims.figure("E1", {}) == ""
    assert claims.figure("P2", {"05_gd_plus_plus": {}}) == ""


# Where the claims are decided


@pytest.mark.parametrize("claim", DECIDED, ids=[claim.label for claim in DECIDED])
def test_the_section_that_decides_is_in_its_notebook(claim):
    sources = [cell.source for cell in read(claim.chapter).cells if cell.cell_type == "markdown"]
    assert sum(source.count(f"({claim.target})=\n") for source in sources) == 1


@pytest.mark.parametrize("claim", DECIDED, ids=[claim.label for claim in DECIDED])
def test_the_notebook_that_decides_recorded_a_verdict_that_is_possible(claim):
    assert results(read(claim.chapter)).get(claim.label) in claim.allowed


@pytest.mark.parametrize("chapter", chapters.CHAPTERS)
def test_a_notebook_records_no_verdict_on_a_claim_that_is_not_in_the_table(chapter):
    found = results(read(chapter))
    verdicts = [key for key in found if re.fullmatch(r"[A-Z]\d{1,2}", key)]
    assert set(verdicts) <= set(LABELS)
    assert {found[key] for key in verdicts} <= set(claims.VERDICTS)


@pytest.mark.parametrize("claim", DECIDED, ids=[claim.label for claim in DECIDED])
def test_a_decided_claim_shows_what_was_measured(claim):
    figure = claims.figure(claim.label, RECORDED)
    assert re.search(r"\d", figure)
    assert "nan" not in figure


# What is collected


@pytest.mark.parametrize("chapter", chapters.CHAPTERS)
def test_the_collected_results_are_those_of_the_stored_notebooks(chapter):
    assert RECORDED[chapter] == results(read(chapter)), (
        "run `python -m linear_icl.chapters table`, and `execute 11` twice"
    )


def test_the_verdicts_shown_are_those_that_were_recorded_and_their_counts_add_up():
    shown = {
        label: verdict
        for output in chapters.outputs(read("11_claims"))
        for label, verdict in re.findall(
            r"^\| \[?(\w+)[^|]*\|[^|]*\| \*\*([\w ]+)\.\*\*",
            output.get("data", {}).get("text/markdown", ""),
            re.MULTILINE,
        )
    }
    verdicts = {label: claims.verdict(label, RECORDED) for label in LABELS}
    assert shown == verdicts, "run `python -m linear_icl.chapters execute 11` twice"
    counts = claims.counted(verdicts)
    assert sum(counts.values()) == len(claims.CLAIMS)
    assert RECORDED["11_claims"].items() >= counts.items()


def test_every_correction_is_seen_again_on_the_page():
    seen, of = RECORDED["11_claims"]["corrections_seen_again"].split(" of ")
    assert seen == of


def test_the_results_are_found_in_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "_results").mkdir()
    file = tmp_path / "_results" / "chapter_runs.json"
    file.write_text(json.dumps({"06_eagle": {"results": {"E1": "corrected"}}}))
    monkeypatch.setattr(chapters, "__file__", str(tmp_path / "chapters.py"))
    assert chapters.recorded() == {"06_eagle": {"E1": "corrected"}}
