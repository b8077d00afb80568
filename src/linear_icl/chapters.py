"""The parameters of the notebooks; run one chapter, run a grid, keep the committed ones current.

:data:`CHAPTERS` is the one place where a chapter's parameters are described. The ``parameters``
cell of each notebook repeats them, and a test compares the two.
"""

from __future__ import annotations

import csv
import difflib
import io
import itertools
import json
import math
import numbers
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from linear_icl import files

RESULTS_MIME = "application/vnd.linear-icl.results+json"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a chapter: a plain scalar with its default, its meaning and its range.

    Attributes
    ----------
    name : str
        The variable's name in the notebook.
    type : type
        ``int``, ``float``, ``str`` or ``bool``.
    default : int, float, str or bool
        What the committed notebook was run with.
    help : str
        The comment behind the parameter in the notebook.
    low, high : float or None
        Smallest and largest value allowed, both included.
    choices : tuple
        The values allowed, if they are few.
    """

    name: str
    type: type
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[Any, ...] = ()

    @property
    def allowed(self) -> str:
        """The values allowed, in words."""
        if self.choices:
            return f"one of {', '.join(map(str, self.choices))}"
        noun = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
        words = noun[self.type]
        if self.low is not None and self.high is not None:
            return f"{words} from {_short(self.low, '')} to {_short(self.high, '')}"
        if self.low is not None:
            return f"{words}, at least {_short(self.low, '')}"
        if self.high is not None:
            return f"{words}, at most {_short(self.high, '')}"
        return words

    @property
    def line(self) -> str:
        """The parameter as a line of the notebook's ``parameters`` cell."""
        value = _short(self.default) if self.type is float else repr(self.default)
        return (
            f"{self.name}: {self.type.__name__} = {value.replace(chr(39), chr(34))}  # {self.help}"
        )

    def check(self, value: Any) -> Any:
        """Return `value` as a plain Python scalar of the parameter's type.

        Raises
        ------
        ValueError
            If the value has another type, is not finite, or is not allowed.
        """
        converted = _convert(value, self.type)
        refused = (
            converted is None
            or (self.choices and converted not in self.choices)
            or (self.low is not None and converted < self.low)
            or (self.high is not None and converted > self.high)
        )
        if refused:
            raise ValueError(f"{self.name} = {value!r} is not allowed: expected {self.allowed}")
        return converted


@dataclass(frozen=True)
class Chapter:
    """A notebook's title and its parameters."""

    title: str
    parameters: tuple[Parameter, ...]


_SEED = Parameter("seed", int, 0, "seed of every random draw", low=0, high=2**31 - 1)


def _size(name: str, default: int, text: str, high: int = 2000, low: int = 1) -> Parameter:
    return Parameter(name, int, default, text, low=low, high=high)


def _kappa(default: float) -> Parameter:
    return Parameter("kappa", float, default, "condition number of A", low=1.0, high=1e12)


def _rtol(default: float) -> Parameter:
    return Parameter("rtol", float, default, "relative tolerance of the solvers", 1e-14, 0.1)


# To add a chapter, add its entry; the notebook's `parameters` cell repeats the lines that
# `python -m linear_icl.chapters cell NAME` prints.
CHAPTERS: dict[str, Chapter] = {
    "01_icl_framing": Chapter(
        "Transformers as learners",
        (
            _size("d", 8, "features: length of an input", high=64),
            _size("n", 32, "examples in the prompt", high=1000),
            _SEED,
        ),
    ),
    "02_normal_equations": Chapter(
        "The normal equations",
        (
            _size("d", 40, "features: length of an input", high=500, low=2),
            _size("n", 80, "examples in the prompt"),
            _kappa(1e4),
            _SEED,
        ),
    ),
    "03_gradient_descent": Chapter(
        "Gradient descent",
        (
            _size("d", 40, "features: length of an input", low=2),
            _size("n", 80, "examples in the prompt", low=2),
            _kappa(1e2),
            _rtol(1e-8),
            _SEED,
        ),
    ),
    "04_conjugate_gradient": Chapter(
        "Conjugate gradient",
        (
            _size("d", 100, "features: length of an input", low=2),
            _size("n", 200, "examples in the prompt", low=2),
            _kappa(1e3),
            _rtol(1e-8),
            _SEED,
        ),
    ),
    "05_gd_plus_plus": Chapter(
        "GD++: gradient descent with a preconditioner",
        (
            _size("d", 20, "features: length of an input", high=200, low=2),
            _size("n", 40, "examples in the prompt", high=400, low=2),
            _kappa(1e3),
            _size("layers", 24, "layers of the transformer", high=60),
            Parameter(
                "noise", float, 5.0, "largest standard deviation of the label noise", 0.1, 100.0
            ),
            _SEED,
        ),
    ),
    "06_eagle": Chapter(
        "EAGLE",
        (
            _size("d", 240, "rows of A: features of an input", low=2),
            _size("n", 240, "columns of A: examples in the prompt", low=2),
            _size("d_out", 2, "rows of B: length of a label"),
            _size("n_query", 2, "columns of C: queries"),
            _kappa(1e4),
            Parameter(
                "spectrum",
                str,
                "log-uniform",
                "distribution of the singular values of A",
                # All that take a condition number, which low-rank does not.
                choices=(
                    "log-uniform",
                    "log-spaced",
                    "gaussian",
                    "student-t",
                    "correlated",
                    "sparse-rademacher",
                    "clustered",
                ),
            ),
            Parameter("noise", float, 0.0, "variance of the noise on B", 0.0, 10.0),
            _rtol(1e-8),
            _SEED,
        ),
    ),
    "07_rank_restricted_attention": Chapter(
        "Rank-restricted attention and many machines",
        (
            _size("d", 60, "features: length of an input", high=500, low=4),
            _size("n", 120, "examples on all machines together", low=8),
            _size("rank", 15, "columns r of the smallest sketch, at most n"),
            _size("machines", 3, "machines M", high=64, low=2),
            Parameter(
                "alpha", float, 0.1, "diversity index: 1, or at most 1 - 1/machines", 0.005, 1.0
            ),
            Parameter("kappa", float, 1e2, "condition number of a machine's block", 1.0, 1e6),
            Parameter(
                "method",
                str,
                "cg",
                "method of the two processes",
                choices=("average", "frozen", "cg", "pooled", "raw-cg"),
            ),
            Parameter(
                "noise", float, 1e-4, "variance of the noise on B, where there is any", 1e-8, 1.0
            ),
            _SEED,
        ),
    ),
    "08_training_transformers": Chapter(
        "Training transformers",
        (
            Parameter(
                "regime",
                str,
                "unconstrained",
                "compute regime of the model trained here",
                choices=("unconstrained", "rank_limited", "distributed"),
            ),
            _size("d", 18, "features: length of an input", high=64, low=2),
            _size("n", 18, "examples in the prompt", high=64, low=2),
            _size("rank", 5, "width r of queries and keys, rank-limited, at most n", high=64),
            _size("machines", 3, "machines of the distributed model, a divisor of n", high=64),
            _size("layers", 4, "layers of the model trained here", high=12),
            _size("steps", 600, "training steps, 512 prompts each", high=20_000, low=50),
            Parameter("noise", float, 0.0, "variance of the noise on the prompts", 0.0, 1.0),
            _SEED,
        ),
    ),
    "09_experiments": Chapter(
        "Experiments: ours beside theirs",
        (
            Parameter("live", bool, True, "measure a small version while the notebook runs"),
            _size("n", 60, "size of the small version: features and examples", 500, low=2),
            Parameter(
                "kappa", float, 1e3, "largest condition number of the small version", 10.0, 1e6
            ),
            Parameter(
                "matrix", str, "", 'file with a matrix of your own, such as "a.mtx"; empty: none'
            ),
            _SEED,
        ),
    ),
    "10_implications": Chapter(
        "What the evidence supports",
        (
            _size("prompts", 1024, "prompts of every measurement", high=8192, low=64),
            Parameter(
                "ratio",
                float,
                4.0,
                "largest over smallest scale of an example column, in the training here",
                1.5,
                10.0,
            ),
            _size(
                "steps", 1000, "steps of the training here, 256 prompts each", high=20_000, low=50
            ),
            _SEED,
        ),
    ),
    "11_claims": Chapter(
        "Claims, and what holds",
        (
            _size("prompts", 5, "random prompts that a claim is measured on", high=20, low=2),
            _size("d", 12, "features: length of an input", high=24, low=8),
            _SEED,
        ),
    ),
    "12_gallery": Chapter(
        "Three real uses",
        (
            _size("landmarks", 200, "labelled digits", high=1000, low=20),
            _size("n", 200_000, "examples in the file", high=20_000_000, low=1000),
            _size("d", 40, "features of an example in the file", high=200, low=1),
            _size("steps", 100, "training steps through the layer", high=10_000),
            _SEED,
        ),
    ),
}


def _short(value: float, whole: str = ".0") -> str:
    """Write a float as a reader would: 1e4, 0.5, 1e-8; `whole` marks a whole number."""
    if isinstance(value, int):
        return str(value)
    plain = repr(value).removesuffix(".0") + (whole if value == int(value) else "")
    if value == 0 or 1e-3 < abs(value) < 1e3:
        return plain
    mantissa, exponent = f"{Decimal(repr(value)).normalize():e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _convert(value: Any, kind: type) -> Any:
    """Return `value` as a finite scalar of type `kind`, or None if it is not one."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if kind is str:
        return value if isinstance(value, str) else None
    if kind is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        value = words.get(value.strip().lower(), value) if isinstance(value, str) else value
        return value if isinstance(value, bool) else None
    if isinstance(value, str):  # YAML 1.1 reads 1e-3 and 1e4 as strings
        try:
            value = int(value)
        except ValueError:
            try:
                value = float(value)
            except ValueError:
                return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        converted = kind(value)
        return converted if math.isfinite(converted) and converted == value else None
    except (ValueError, OverflowError):  # int(nan), float(10**400)
        return None


def _suggest(word: str, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f"; there are {', '.join(words)}"


def find(name: str) -> str:
    """Return the chapter that a number, a name or the beginning of a name stands for.

    Parameters
    ----------
    name : str
        ``"6"``, ``"06"``, ``"06_eagle"``, ``"eagle"`` or an unambiguous beginning.

    Raises
    ------
    ValueError
        If no chapter or more than one matches; the message lists or suggests names.

    Examples
    --------
    >>> find("6")
    '06_eagle'
    """
    if name in CHAPTERS:
        return name
    key = name.zfill(2) if name.isdigit() else name
    titles = {chapter: chapter.split("_", 1)[-1] for chapter in CHAPTERS}
    found = [c for c, title in titles.items() if c.startswith(key) or title.startswith(key)]
    if key and len(found) == 1:
        return found[0]
    if key and found:
        raise ValueError(f"chapter {name!r} is ambiguous: {', '.join(found)}")
    short = difflib.get_close_matches(key, list(titles.values()), n=1, cutoff=0.6)
    if short:
        full = next(c for c, title in titles.items() if title == short[0])
        raise ValueError(f"there is no chapter {name!r}: did you mean {full}?")
    raise ValueError(f"there is no chapter {name!r}{_suggest(name, CHAPTERS)}")


def validate(chapter: str, /, **values: Any) -> dict[str, Any]:
    """Check the values of a chapter's parameters and return them as plain Python scalars.

    A notebook's second code cell calls it with all its parameters, and the runner calls it
    before a kernel starts. NumPy scalars and numbers that YAML reads as text ("1e-3") are
    accepted, so a notebook takes the values back from the result.

    Parameters
    ----------
    chapter : str
        The notebook's name, such as ``"06_eagle"``.
    **values
        The parameters, by name.

    Returns
    -------
    dict
        The values given, in the order given, as ``int``, ``float``, ``str`` or ``bool``.

    Raises
    ------
    ValueError
        If a name is unknown, or a value has the wrong type, is not finite, or out of range.

    Examples
    --------
    >>> validate("06_eagle", kappa="1e6", n=500)
    {'kappa': 1000000.0, 'n': 500}
    """
    known = {p.name: p for p in CHAPTERS[find(chapter)].parameters}
    for name in values:
        if name not in known:
            raise ValueError(
                f"chapter {find(chapter)} has no parameter {name!r}{_suggest(name, known)}"
            )
    return {name: known[name].check(value) for name, value in values.items()}


def record(**results: Any) -> None:
    """Show a chapter's main results and store them in the notebook for the runner.

    Call it in the last cell. The table shows what a reader sees; the same values go to the
    JSON file that :func:`run` writes beside the executed notebook. Numbers keep three
    significant digits, so that the outputs are the same on every machine: record quantities
    that are that stable, not the last digits of a rounding error.

    Parameters
    ----------
    **results
        Numbers, booleans, texts, or short lists of these, by name. NumPy values are accepted.

    Raises
    ------
    TypeError
        If a value is none of these.
    """
    from IPython.display import display

    values = {name: _plain(name, value) for name, value in results.items()}
    rows = [(name.replace("_", " "), show(value)) for name, value in values.items()]
    width = max((len(name) for name, _ in rows), default=0)
    text = "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
    lines = ["| result | value |", "|---|---|"]
    lines += [f"| {name} | {value.replace('|', '&#124;')} |" for name, value in rows]
    bundle = {"text/plain": text, "text/markdown": "\n".join(lines), RESULTS_MIME: values}
    display(bundle, raw=True)


def _plain(name: str, value: Any) -> Any:
    """Return a recorded value as JSON holds it, with floats of three significant digits."""
    if isinstance(value, np.generic | np.ndarray) or type(value).__module__.startswith("torch"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(name, v) for v in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, numbers.Real):
        # JSON has no word for NaN and infinity, a text has.
        return float(f"{value:.3g}") if math.isfinite(value) else str(float(value))
    kind = type(value).__name__
    raise TypeError(f"{name} is a {kind}: record takes numbers, booleans, texts and lists")


def show(value: Any, digits: str = ".3g") -> str:
    """A recorded result in words, numbers in the given format."""
    if isinstance(value, list):
        return ", ".join(show(item, digits) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, digits) if isinstance(value, float) else str(value)


def defaults(chapter: str) -> dict[str, Any]:
    """Return the default values of a chapter's parameters."""
    return {p.name: p.default for p in CHAPTERS[find(chapter)].parameters}


def parameters_cell(chapter: str) -> str:
    """Return the source of a chapter's ``parameters`` cell."""
    return "\n".join(p.line for p in CHAPTERS[find(chapter)].parameters)


# ---------------------------------------------------------------------------------------------
# Running a chapter


class ChapterError(RuntimeError):
    """A chapter that could not be run to its end.

    The message names the chapter, the cell and the error; ``traceback`` holds the kernel's own
    report, which may be empty.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:  # it crosses processes in run_grid
        return type(self), (str(self), self.traceback)


def notebooks_folder() -> Path:
    """Return the folder of the notebooks: the repository's, or the copy that was installed."""
    package = Path(__file__).resolve().parent
    installed = package / "_notebooks"
    return installed if installed.is_dir() else package.parents[1] / "notebooks"


def measurements(name: str) -> dict[str, Any]:
    """Return what a script in ``benchmarks`` measured, as committed with its provenance.

    Parameters
    ----------
    name : str
        The file in ``benchmarks/results``, without ``.json``.

    Raises
    ------
    FileNotFoundError
        There is no such file; the message names those that there are.

    Examples
    --------
    >>> measurements("column_models")["test_prompts"]
    20000
    """
    package = Path(__file__).resolve().parent
    installed = package / "_results"
    folder = installed if installed.is_dir() else package.parents[1] / "benchmarks" / "results"
    file = folder / f"{name}.json"
    if not file.is_file():
        known = ", ".join(sorted(other.stem for other in folder.glob("*.json"))) or "none"
        raise FileNotFoundError(f"there are no measurements {name!r} in {folder}; found: {known}")
    return json.loads(file.read_text(encoding="utf-8"))


def recorded() -> dict[str, dict[str, Any]]:
    """Return what the committed notebooks recorded, chapter by chapter.

    ``python -m linear_icl.chapters execute`` and ``table`` keep it current.

    Examples
    --------
    >>> recorded()["04_conjugate_gradient"]["C1"]
    'confirmed'
    """
    package = Path(__file__).resolve().parent
    installed = package / "_results" / "chapter_runs.json"
    file = installed if installed.is_file() else package.parents[1] / "book" / "chapter_runs.json"
    runs = json.loads(file.read_text(encoding="utf-8"))
    return {chapter: run["results"] for chapter, run in runs.items()}


def _notebook_file(chapter: str, folder: Path | None) -> Path:
    file = (notebooks_folder() if folder is None else Path(folder)) / f"{chapter}.ipynb"
    if not file.is_file():
        raise FileNotFoundError(f"the notebook of chapter {chapter} is not in {file.parent}")
    return file


def run(
    chapter: str,
    output: str | os.PathLike[str],
    parameters: Mapping[str, Any] | None = None,
    *,
    html: bool = False,
    progress: bool | None = None,
    notebooks: Path | None = None,
) -> dict[str, Any]:
    """Run one chapter with other parameters.

    The executed notebook is written to `output`, and beside it a ``.json`` with what was run
    and what came out. Everything is written at the end: a run that fails or is interrupted
    leaves no file, and files of an earlier run stay as they were.

    Parameters
    ----------
    chapter : str
        A chapter as :func:`find` understands it.
    output : str or path
        The executed notebook, ending in ``.ipynb``. Missing folders are created.
    parameters : dict, optional
        Values that differ from the defaults, checked by :func:`validate` before a kernel starts.
    html : bool
        Also write a self-contained ``.html`` beside the notebook.
    progress : bool, optional
        Show a progress bar; by default only on a terminal.
    notebooks : path, optional
        The folder to find the chapter's notebook in, if not :func:`notebooks_folder`.

    Returns
    -------
    dict
        The content of the ``.json``: ``chapter``, ``parameters`` (all, defaults included),
        ``results`` (what the notebook recorded), ``seed``, ``started`` (ISO, UTC), ``seconds``,
        ``versions``, ``machine``.

    Raises
    ------
    ValueError
        If the chapter, a parameter or the output's name is not valid.
    FileNotFoundError
        If the chapter's notebook is not there.
    ChapterError
        If a cell fails or the kernel dies.
    """
    chapter = find(chapter)
    given = validate(chapter, **(parameters or {}))
    source = _notebook_file(chapter, notebooks)
    output = Path(output)
    if output.suffix != ".ipynb":
        raise ValueError(f"the output {str(output)!r} must end in .ipynb")
    if output.resolve() == source.resolve():
        raise ValueError(f"the output {str(output)!r} is the chapter itself: choose another name")
    _require_writable(output)
    started = datetime.now(UTC)
    notebook, seconds = execute(source, given, progress)
    values = defaults(chapter) | given
    report = {
        "chapter": chapter,
        "parameters": values,
        "results": results_in(notebook),
        "seed": values.get("seed"),
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "versions": versions(),
        "machine": machine(),
    }
    page = ""
    if html:
        from linear_icl import _html

        page = _html.render(notebook, CHAPTERS[chapter].title)
    write_notebook(output, notebook)
    if html:
        files.write_text(output.with_suffix(".html"), page)
    # Last, because a grid takes the .json as the sign that all of it is there.
    files.write_text(output.with_suffix(".json"), as_json(report))
    return report


def _require_writable(output: Path) -> None:
    """Refuse what could not be written, before the time of a run is spent."""
    if output.is_dir():
        raise ValueError(f"the output {str(output)!r} is a folder")
    existing = next(parent for parent in output.absolute().parents if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(f"the output {str(output)!r} cannot be written: see {str(existing)!r}")


def execute(source: Path, parameters: dict[str, Any], progress: bool | None) -> tuple[Any, float]:
    """Execute a notebook through papermill; return it, normalised, and the seconds it took."""
    import nbformat
    from papermill.exceptions import PapermillExecutionError

    chapter = source.stem
    notebook = nbformat.read(source, as_version=4)
    shown = sys.stderr.isatty() if progress is None else progress
    for attempt in itertools.count(1):
        begin = time.perf_counter()
        try:
            executed = _papermill(notebook, parameters, {"desc": chapter} if shown else False)
            break
        except PapermillExecutionError as error:
            code = error.source.strip().splitlines()[0]
            raise ChapterError(
                f"{chapter}: cell {error.cell_index + 1} (In [{error.exec_count}]: {code}) failed: "
                f"{error.ename}: {error.evalue}",
                "\n".join(error.traceback),
            ) from error
        except RuntimeError as error:
            # Kernels that start at the same moment can be given the same port (Windows).
            if not _start_failed(error) or attempt == 5:
                raise ChapterError(f"{chapter}: the kernel stopped: {error}") from error
            time.sleep(0.5 * attempt + 0.01 * (os.getpid() % 50))
    seconds = time.perf_counter() - begin
    normalise(executed, chapter)
    return executed, seconds


def _papermill(notebook: Any, parameters: dict[str, Any], progress: Any) -> Any:
    import papermill
    from traitlets.config import Config

    with tempfile.TemporaryDirectory(prefix="linear-icl-", ignore_cleanup_errors=True) as folder:
        config = Config()
        # A kernel is interrupted before it is shut down, and at times reports that as an error.
        config.NotebookClient.extra_arguments = ["--IPKernelApp.log_level=CRITICAL"]
        if os.name == "posix":
            # Sockets in a private folder: no port to lose to another kernel, no open door.
            config.KernelManager.transport = "ipc"
            config.KernelManager.connection_file = os.path.join(folder, "kernel.json")
        # Notebook in, notebook out: papermill would fill in {braces} in a path.
        return papermill.execute_notebook(
            notebook,
            None,
            parameters=parameters,
            progress_bar=progress,
            kernel_name="python3",
            language="python",
            record_timing=False,
            config=config,
        )


def _start_failed(error: RuntimeError) -> bool:
    # nbclient's DeadKernelError, a subclass, is a kernel that died while it ran a cell.
    return type(error) is RuntimeError and "kernel" in str(error).lower()


def normalise(notebook: Any, name: str) -> None:
    """Remove from an executed notebook, in place, what differs from run to run.

    Cells get the ids ``<name>-001``, ``<name>-002``, …, code cells the execution counts 1, 2, …;
    metadata of tools, times and versions go; consecutive pieces of one stream are joined.
    """
    for key in ("papermill", "widgets", "jupytext"):
        notebook.metadata.pop(key, None)
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    count = 0
    for number, cell in enumerate(notebook.cells, start=1):
        cell["id"] = f"{name}-{number:03d}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        if cell.cell_type != "code":
            continue
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        cell.outputs = _joined_streams(cell.outputs)
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def _joined_streams(outputs: Iterable[Any]) -> list[Any]:
    joined: list[Any] = []
    for output in outputs:
        stream = output.get("name")
        if stream and joined and joined[-1].get("name") == stream:
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def results_in(notebook: Any) -> dict[str, Any]:
    """Return what the notebook's calls of :func:`record` stored."""
    results: dict[str, Any] = {}
    for output in outputs(notebook):
        results |= output.get("data", {}).get(RESULTS_MIME, {})
    return results


def outputs(notebook: Any) -> Iterator[Any]:
    """Yield a notebook's outputs, cell after cell."""
    for cell in notebook.cells:
        yield from cell.get("outputs", [])


def versions() -> dict[str, str]:
    """Return the versions that a run depends on."""
    names = ("numpy", "scipy", "torch", "linear-icl")
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in names}


def machine() -> dict[str, Any]:
    """Return the processor's name and its number of cores."""
    model = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").is_file():
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
        model = found[1] if found else model
    return {"cpu": model, "cores": os.cpu_count()}


def as_json(value: Any) -> str:
    """Write a value as JSON that every reader understands: no NaN, no infinity."""
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_notebook(path: Path, notebook: Any) -> None:
    """Write a notebook, whole or not at all."""
    import nbformat

    files.write_text(path, nbformat.writes(notebook) + "\n")


# ---------------------------------------------------------------------------------------------
# Running a grid


def run_grid(
    chapter: str,
    grid: Mapping[str, Sequence[Any]],
    output_dir: str | os.PathLike[str],
    *,
    workers: int = 1,
    resume: bool = True,
    progress: bool | None = None,
    notebooks: Path | None = None,
) -> list[dict[str, Any]]:
    """Run one chapter at every combination of the parameters given.

    Each point becomes a notebook and a ``.json`` such as ``06_eagle_kappa=1e4_n=500.ipynb``;
    ``06_eagle_grid.csv`` and ``06_eagle_grid.json`` hold the table of all points. A point that
    fails does not stop the others: its row says why, and the next call runs it again.

    Parameters
    ----------
    chapter : str
        A chapter as :func:`find` understands it.
    grid : dict of sequences
        The values of each parameter that varies. All are checked before the first run.
    output_dir : str or path
        The folder of the results, created if missing.
    workers : int
        How many points run at the same time, each in a process of its own.
    resume : bool
        Keep points that an earlier call finished with the same parameters.
    progress : bool, optional
        Show a progress bar; by default only on a terminal.
    notebooks : path, optional
        The folder to find the chapter's notebook in, if not :func:`notebooks_folder`.

    Returns
    -------
    list of dict
        One row a point, in the grid's order: all parameters, ``status`` (``done``, ``kept`` or
        ``failed``), ``seconds``, the results, ``error``, and ``notebook``, the file's name.

    Raises
    ------
    ValueError
        If the chapter, a parameter, a value or `workers` is not valid.
    """
    from joblib import Parallel, delayed
    from tqdm import tqdm

    chapter = find(chapter)
    if workers < 1:
        raise ValueError(f"workers = {workers} is not allowed: expected a whole number, at least 1")
    folder = Path(output_dir)
    points = _points(chapter, grid)
    _notebook_file(chapter, notebooks)
    shown = sys.stderr.isatty() if progress is None else progress
    # joblib's processes need no "if __name__ == '__main__'" in the caller's script, and share
    # the cores among the workers.
    jobs = Parallel(n_jobs=workers, return_as="generator")(
        delayed(_grid_point)(
            chapter, point, folder / _point_file(chapter, point), resume, notebooks
        )
        for point in points
    )
    rows = list(tqdm(jobs, total=len(points), desc=chapter, unit="run", disable=not shown))
    files.write_text(folder / f"{chapter}_grid.csv", _csv(rows))
    files.write_text(folder / f"{chapter}_grid.json", as_json(rows))
    return rows


def _points(chapter: str, grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the grid's points, checked, each once."""
    axes = {}
    for name, values in grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ValueError(f"the grid needs a list of values for {name}, not {values!r}")
        checked = [validate(chapter, **{name: value})[name] for value in values]
        if not checked:
            raise ValueError(f"the grid has no value for {name}")
        axes[name] = list(dict.fromkeys(checked))
    return [dict(zip(axes, point, strict=True)) for point in itertools.product(*axes.values())]


def _point_file(chapter: str, point: Mapping[str, Any]) -> str:
    words = [f"{name}={_short(v, '') if isinstance(v, float) else v}" for name, v in point.items()]
    return re.sub(r"[^\w.=+-]", "-", "_".join([chapter, *words])) + ".ipynb"


def _grid_point(
    chapter: str, point: dict[str, Any], output: Path, resume: bool, notebooks: Path | None
) -> dict[str, Any]:
    """Run one point, or take it from an earlier call, and return its row of the table."""
    values = defaults(chapter) | point
    row = values | {"status": "kept", "seconds": None}
    report = _finished(output, chapter, values) if resume else None
    error = ""
    if report is None:
        try:
            report = run(chapter, output, point, progress=False, notebooks=notebooks)
            row["status"] = "done"
        except (ChapterError, OSError) as failure:
            row["status"], error = "failed", str(failure)
    if report is not None:
        row["seconds"] = report["seconds"]
        # A result may carry a parameter's name, such as n.
        row |= {f"result {k}" if k in row else k: v for k, v in report["results"].items()}
    return row | {"error": error, "notebook": output.name}


def _finished(output: Path, chapter: str, values: dict[str, Any]) -> dict[str, Any] | None:
    """Return the report of an earlier run of this very point, or None."""
    try:
        report = json.loads(output.with_suffix(".json").read_text(encoding="utf-8"))
        same = report["chapter"] == chapter and report["parameters"] == values
        complete = output.is_file() and {"results", "seconds"} <= report.keys()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report if same and complete else None


def _csv(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    columns = [c for c in columns if c not in ("error", "notebook")] + ["error", "notebook"]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()})
    return text.getvalue()


if __name__ == "__main__":
    from linear_icl import _maintenance

    sys.exit(_maintenance.main(sys.argv[1:]))
