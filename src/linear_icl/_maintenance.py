"""Keep the committed notebooks current: execute them, check them, tell when they last ran.

python -m linear_icl.chapters execute [NAME …]   run notebooks in place and store the outputs
python -m linear_icl.chapters check              say what is wrong with the stored ones
python -m linear_icl.chapters table              collect the recorded results, and write the page
                                                 of parameters and last runs
python -m linear_icl.chapters cell NAME          print a chapter's `parameters` cell
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from linear_icl import chapters, files


def execute(names: list[str], notebooks: Path, runs: Path) -> list[str]:
    """Execute notebooks in place with their defaults, and note in `runs` when and how long.

    A notebook is rewritten only when it ran to its end. What failed is returned.
    """
    failures = []
    for name in [chapters.find(name) for name in names] or stored(notebooks):
        file = notebooks / f"{name}.ipynb"
        started = datetime.now(UTC)
        try:
            notebook, seconds = chapters.execute(file, {}, None)
        except (chapters.ChapterError, OSError) as error:
            failures.append(str(error))
            continue
        chapters.write_notebook(file, notebook)
        table = json.loads(runs.read_text(encoding="utf-8")) if runs.is_file() else {}
        table[name] = {
            "started": started.isoformat(timespec="seconds"),
            "seconds": round(seconds, 1),
            "versions": chapters.versions(),
            "machine": chapters.machine(),
            "results": chapters.results_in(notebook),
        }
        files.write_text(runs, chapters.as_json(dict(sorted(table.items()))))
        print(f"{name}: {seconds:.1f} s")
    return failures


def collect(notebooks: Path, runs: Path) -> dict[str, Any]:
    """Write into `runs` what each stored notebook recorded, and return the whole of it."""
    import nbformat

    table = json.loads(runs.read_text(encoding="utf-8")) if runs.is_file() else {}
    for name in stored(notebooks):
        notebook = nbformat.read(notebooks / f"{name}.ipynb", as_version=4)
        table[name] = table.get(name, {}) | {"results": chapters.results_in(notebook)}
    files.write_text(runs, chapters.as_json(dict(sorted(table.items()))))
    return table


def stored(notebooks: Path) -> list[str]:
    """Return the names of the notebooks in a folder."""
    return sorted(file.stem for file in notebooks.glob("*.ipynb"))


def page(notebooks: Path, runs: dict[str, Any]) -> str:
    """Return the page that lists each chapter's parameters and its last run."""
    lines = [
        "(chapter-runs)=",
        "# Parameters and last runs",
        "",
        "Each chapter is a notebook with a cell of parameters. Run it again with others by",
        "`linear-icl run CHAPTER -p NAME VALUE -o out.ipynb`; the outputs in this book come from",
        "the defaults and from the runs named here.",
    ]
    for name in stored(notebooks):
        if name in chapters.CHAPTERS:
            lines += ["", *_section(name, runs.get(name, {}))]
    return "\n".join(lines) + "\n"


def _section(name: str, last: dict[str, Any]) -> list[str]:
    chapter = chapters.CHAPTERS[name]
    lines = [
        f"## {chapter.title}",
        "",
        f"[`{name}`](../notebooks/{name}.ipynb)",
        "",
        "| parameter | default | allowed | meaning |",
        "|---|---|---|---|",
    ]
    for p in chapter.parameters:
        default = p.line.partition(" = ")[2].partition("  # ")[0]
        lines.append(f"| `{p.name}` | `{default}` | {p.allowed} | {p.help} |")
    if "started" not in last:  # its results were collected from a notebook that came executed
        return [*lines, "", "Not run yet."]
    when = last["started"].replace("T", " ").removesuffix("+00:00")[:16]
    where = f"{last['machine']['cpu']}, {last['machine']['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
    return [
        *lines,
        "",
        f"Last run: {when} UTC, {last['seconds']:.0f} seconds on {where}.",
        f"Versions: {versions}.",
    ]


def check(notebook: Any, name: str) -> list[str]:
    """Return what is wrong with a committed notebook, one sentence a fault.

    Parameters
    ----------
    notebook : NotebookNode
        The notebook, as nbformat reads it.
    name : str
        Its file name without ``.ipynb``.

    Returns
    -------
    list of str
        Empty if the notebook is executed without errors, agrees with the table of chapters,
        describes its figures, and holds nothing that differs from run to run.
    """
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    faults: list[str] = []
    if len(tagged) == 1:
        faults += _parameter_faults(tagged[0], notebook, name)
    else:
        faults += [f"{len(tagged)} cells are tagged `parameters`: expected exactly one"]
    if not any(True for _ in chapters.outputs(notebook)):
        faults += ["no cell has an output: the notebook was stored without them"]
    leftovers = [key for key in ("papermill", "widgets", "jupytext") if key in notebook.metadata]
    faults += [f"the notebook's metadata holds `{key}`" for key in leftovers]
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        faults += ["the kernel is not `python3`"]
    count = 0
    for number, cell in enumerate(notebook.cells, start=1):
        code = cell.cell_type == "code" and bool(cell.source.strip())
        count += code
        first = cell.source.strip().partition("\n")[0][:60]
        found = _cell_faults(cell, f"{name}-{number:03d}", count if code else None)
        faults += [f"cell {number} ({first}): {fault}" for fault in found]
    return faults


def _cell_faults(cell: Any, identity: str, count: int | None) -> Iterator[str]:
    if cell.get("id") != identity:
        yield f"its id is {cell.get('id')!r}, not {identity!r}"
    if "papermill" in cell.metadata or "execution" in cell.metadata:
        yield "its metadata holds times"
    if "injected-parameters" in cell.metadata.get("tags", []):
        yield "it holds parameters of another run"
    if count is not None and cell.execution_count is None:
        yield "it was not executed"
    elif count is not None and cell.execution_count != count:
        yield f"its execution count is {cell.execution_count}, not {count}"
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            yield f"it failed: {output.ename}: {output.evalue}"
        if output.get("name") == "stderr":
            yield f"it writes to stderr: {output.text.strip()[:80]}"
    if any(key.startswith("image/") for o in cell.get("outputs", []) for key in o.get("data", {})):
        book = cell.metadata.get("mystnb", {})
        if not book.get("image", {}).get("alt"):
            yield "its figure has no alternative text (mystnb, image, alt)"
        if not book.get("figure", {}).get("caption"):
            yield "its figure has no caption (mystnb, figure, caption)"


def _parameter_faults(cell: Any, notebook: Any, name: str) -> Iterator[str]:
    """Compare the ``parameters`` cell and the call of `validate` with the table of chapters."""
    if name not in chapters.CHAPTERS:
        yield "the notebook has no entry in chapters.CHAPTERS"
        return
    found = [_parsed(line) for line in cell.source.splitlines() if line.strip()]
    known = chapters.CHAPTERS[name].parameters
    for expected in known:
        if _parsed(expected.line) not in found:
            yield f"the `parameters` cell lacks the line: {expected.line}"
    if len(found) != len(known):
        yield f"the `parameters` cell has {len(found)} lines, not {len(known)}"
    names = {p.name for p in known}
    code = [c.source for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    if not any(_validated(source, name) == names for source in code[1:2]):
        yield f"the second code cell does not validate({name!r}, …) every parameter"


def _parsed(line: str) -> tuple[Any, ...] | str:
    """Return name, type, value and comment of a parameter's line, or the line itself."""
    match = re.fullmatch(r"(\w+): (\w+) = (.+?)\s+# (.*\S)\s*", line)
    if not match:
        return line
    try:
        value = ast.literal_eval(match[3])
    except (ValueError, SyntaxError):
        return line
    return match[1], match[2], type(value), value, match[4]


def _validated(source: str, name: str) -> set[str]:
    """Return the parameters that a cell passes to `validate`."""
    # IPython's magics are no Python; the words alone are compared.
    call = re.search(rf"validate\(\s*[\"']{name}[\"']\s*,([^)]*)\)", source)
    return set(re.findall(r"(\w+)\s*=", call[1])) if call else set()


def main(arguments: list[str], root: Path | None = None) -> int:
    """Run one of the commands in the repository `root`; return the exit status."""
    import nbformat

    parser = argparse.ArgumentParser(
        "python -m linear_icl.chapters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["execute", "check", "table", "cell"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a chapter, such as 06_eagle")
    options = parser.parse_args(arguments)
    root = chapters.notebooks_folder().parent if root is None else root
    notebooks, runs = root / "notebooks", root / "book" / "chapter_runs.json"
    if not notebooks.is_dir():
        print(f"there is no folder {notebooks}: work in a clone of the book", file=sys.stderr)
        return 2
    faults: list[str] = []
    try:
        if options.command == "execute":
            faults = execute(options.names, notebooks, runs)
        elif options.command == "cell":
            print("\n\n".join(chapters.parameters_cell(name) for name in options.names))
        elif options.command == "table":
            last = collect(notebooks, runs)
            files.write_text(root / "book" / "chapter_runs.md", page(notebooks, last))
        else:
            names = [chapters.find(name) for name in options.names] or stored(notebooks)
            for name in names:
                notebook = nbformat.read(notebooks / f"{name}.ipynb", as_version=4)
                faults += [f"{name}: {fault}" for fault in check(notebook, name)]
    except (ValueError, OSError) as error:
        faults.append(str(error))
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0
