"""The parameters of the notebooks; run one chapter, run a grid, keep the committed ones current.

:data:`CHAPTERS` is the one place where a chapter's parameters are described. The ``parameters``
cell of each notebook repeats them, and a test compares the two.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

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
            _size("d", 8, "features: length of an input"),
            _size("n", 32, "examples in the prompt"),
            _SEED,
        ),
    ),
    "02_normal_equations": Chapter(
        "The normal equations",
        (
            _size("d", 40, "features: length of an input"),
            _size("n", 80, "examples in the prompt"),
            _kappa(1e4),
            _SEED,
        ),
    ),
    "03_gradient_descent": Chapter(
        "Gradient descent",
        (
            _size("d", 40, "features: length of an input"),
            _size("n", 80, "examples in the prompt"),
            _kappa(1e2),
            _rtol(1e-8),
            _SEED,
        ),
    ),
    "04_conjugate_gradient": Chapter(
        "Conjugate gradient",
        (
            _size("d", 100, "features: length of an input"),
            _size("n", 200, "examples in the prompt"),
            _kappa(1e3),
            _rtol(1e-8),
            _SEED,
        ),
    ),
    "05_gd_plus_plus": Chapter(
        "GD++: gradient descent with a preconditioner",
        (
            _size("d", 20, "features: length of an input"),
            _size("n", 40, "examples in the prompt"),
            _kappa(1e3),
            _size("layers", 12, "layers of the transformer", high=100),
            _SEED,
        ),
    ),
    "06_eagle": Chapter(
        "EAGLE",
        (
            _size("d", 240, "rows of A: features of an input"),
            _size("n", 240, "columns of A: examples in the prompt"),
            _size("d_out", 2, "rows of B: length of a label"),
            _size("n_query", 2, "columns of C: queries"),
            _kappa(1e4),
            Parameter(
                "spectrum",
                str,
                "log-uniform",
                "distribution of the singular values of A",
                choices=(
                    "log-uniform",
                    "log-spaced",
                    "gaussian",
                    "student-t",
                    "correlated",
                    "sparse-rademacher",
                    "clustered",
                    "low-rank",
                ),
            ),
            Parameter("noise", float, 0.0, "standard deviation of the noise on B", 0.0, 10.0),
            _rtol(1e-8),
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
    mantissa, exponent = f"{value:.15e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


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
    except (ValueError, OverflowError):  # int(nan), float(10**400)
        return None
    return converted if math.isfinite(converted) and converted == value else None


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
    rows = [(name.replace("_", " "), _show(value)) for name, value in values.items()]
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


def _show(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_show, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def defaults(chapter: str) -> dict[str, Any]:
    """Return the default values of a chapter's parameters."""
    return {p.name: p.default for p in CHAPTERS[find(chapter)].parameters}


def parameters_cell(chapter: str) -> str:
    """Return the source of a chapter's ``parameters`` cell."""
    return "\n".join(p.line for p in CHAPTERS[find(chapter)].parameters)
