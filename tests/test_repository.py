"""The files around the code agree with one another."""

import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

import linear_icl

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
PINS = [
    Requirement(line)
    for line in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith(("#", "-e"))
]


def test_every_requirement_is_pinned_exactly_and_once():
    for pin in PINS:
        assert re.fullmatch(r"==[^*,]+", str(pin.specifier)), pin
    names = [pin.name.lower() for pin in PINS]
    assert len(names) == len(set(names))


def test_the_pins_allow_what_the_package_asks_for():
    pinned = {pin.name.lower(): str(pin.specifier).removeprefix("==") for pin in PINS}
    for line in PROJECT["dependencies"]:
        asked = Requirement(line)
        assert asked.specifier.contains(pinned[asked.name.lower()]), line


def test_requirements_install_the_package_itself():
    assert "-e ." in (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()


def test_one_version_everywhere():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"] == metadata.version("linear-icl")
    assert linear_icl.__version__ == PROJECT["version"]


def test_the_table_of_contents_holds_every_page_and_every_notebook():
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    listed = [contents["root"]]
    listed += [entry["file"] for part in contents["parts"] for entry in part["chapters"]]
    pages = {file: file.read_text(encoding="utf-8") for file in ROOT.glob("book/*.md")}
    included = re.findall(r"\{include\} (\S+)", "".join(pages.values()))
    there = [file for file in pages if file.name not in included]
    there += ROOT.glob("notebooks/*.ipynb")
    assert sorted(listed) == sorted(
        file.relative_to(ROOT).with_suffix("").as_posix() for file in there
    )


def test_the_line_that_brings_the_launch_buttons_is_documented_as_it_stands():
    assert CONFIG["launch_buttons"]["binderhub_url"]
    how_to_run = (ROOT / "book" / "how_to_run.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^repository: .*$", how_to_run, re.MULTILINE)
    assert yaml.safe_load(line)["repository"].keys() == CONFIG["repository"].keys()


def test_every_paper_of_the_bibliography_has_its_own_key():
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    keys = re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE)
    assert len(keys) == len(set(keys)) == text.count("\n@")


def test_every_cited_key_is_in_the_bibliography():
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    keys = set(re.findall(r"^@\w+\{([^,]+),", text, re.MULTILINE))
    for file in [*ROOT.glob("book/*.md"), *ROOT.glob("notebooks/*.ipynb")]:
        for cited in re.findall(r"\{cite:\w+\}`([^`]+)`", file.read_text(encoding="utf-8")):
            assert {key.strip() for key in cited.split(",")} <= keys, file.name


@pytest.mark.parametrize("target", ["book", "serve", "test", "lint", "notebooks", "clean"])
def test_make_help_explains(target):
    make = shutil.which("make")
    said = subprocess.run([make, "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.search(rf"make {target}\s+\w", said.stdout), said.stdout


def test_a_python_that_is_too_old_is_refused_in_words(tmp_path):
    for name in ("Makefile", "requirements.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    old = tmp_path / "python3.10"
    old.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'Python 3.10.0' || exit 1\n")
    old.chmod(0o755)
    run = subprocess.run(
        ["make", "setup", f"PYTHON={old}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in run.stderr
    assert "Python 3.10.0" in run.stderr
    assert not (tmp_path / ".venv").exists()


def test_continuous_integration_runs_the_test_command_on_every_python():
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert steps.rstrip().endswith("exec make test")
    tests = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8"))
    job = tests["jobs"]["tests"]
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    assert job["steps"][-1]["run"] == ".ci/run"
