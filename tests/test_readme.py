"""What the README shows is run, in the order in which a reader would run it."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(language="sh"):
    return [
        line
        for kind, text in SNIPPETS
        if kind == language
        for line in text.splitlines()
        if line.strip()
    ]


def test_every_snippet_is_of_a_kind_that_is_run():
    assert {kind for kind, _ in SNIPPETS} == {"python", "sh"}


def test_every_make_command_has_its_target():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = [line.split()[1] for line in commands() if line.startswith("make ")]
    assert {"book", "test"} <= set(called)
    for target in called:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_every_link_leads_to_a_file():
    for address in re.findall(r"\]\(([^)#]+)\)", README):
        assert address.startswith("https://") or (ROOT / address).is_file(), address


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reader")


def test_the_snippets_run_in_order_and_print_what_they_say(folder):
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    names = {}
    for kind, text in SNIPPETS:
        if kind == "python":
            printed = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
                exec(compile(text, "README.md", "exec"), names)
            assert printed.getvalue().splitlines() == re.findall(r"# → (.*)", text)
            continue
        for line in text.splitlines():
            words = shlex.split(line)
            if words[0] in {"make", "git", "cd", "."}:  # the set-up that this test runs in
                continue
            run = subprocess.run(
                words,
                cwd=folder,
                env=os.environ | {"PATH": path},
                capture_output=True,
                text=True,
                check=False,
            )
            assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"
    assert (folder / "D.npy").is_file()
    assert (folder / "out.ipynb").is_file()
