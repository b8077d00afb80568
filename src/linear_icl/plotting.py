"""One style for every figure, a fixed look for every method, and the figures that recur."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

PANEL = "#fcfcfa"
INK = "#1f2328"
GUIDE = "#6a6e73"


class Method(NamedTuple):
    """How a method looks in every figure."""

    label: str
    color: str
    marker: str
    linestyle: Any


# Hues after Okabe and Ito (2008), darkened to a contrast of at least 4.5 : 1 on the panel, since
# names are written in them. Marker and line differ too, so that no figure rests on colour alone.
METHODS: dict[str, Method] = {
    "gd": Method("GD", "#c44e00", "o", "-"),
    "gd++": Method("GD++", "#a33c7c", "^", "--"),
    "cg": Method("CG", "#0072b2", "s", "-"),
    "pcg": Method("PCG", "#7450c8", "D", "--"),
    "cgls": Method("CGLS", "#1f2f78", "v", "-."),
    "eagle": Method("EAGLE", "#00785a", "P", "-"),
    "minimax": Method("EAGLE, minimax", "#5c7a00", "X", (0, (5, 1.5))),
    "qr": Method("direct (QR)", "#3d3d3d", "d", ":"),
    "svd": Method("direct (SVD)", "#3d3d3d", "h", (0, (1, 3))),
    "cholesky": Method("direct (Cholesky)", "#6e6e6e", "p", (0, (3, 1, 1, 1))),
}


def use_style() -> None:
    """Set the book's figure style for the rest of the session.

    Figures are 7.2 inches wide and opaque, so that they read the same on a light and on a dark
    page; no text is smaller than 12 points.

    Examples
    --------
    >>> use_style()
    >>> float(mpl.rcParams["figure.figsize"][0])
    7.2
    """
    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 4.2),
            "figure.dpi": 150,
            "figure.facecolor": PANEL,
            "figure.constrained_layout.use": True,
            "savefig.dpi": 150,
            "savefig.facecolor": PANEL,
            "savefig.transparent": False,
            "axes.facecolor": PANEL,
            "axes.edgecolor": GUIDE,
            "axes.labelcolor": INK,
            "axes.titlesize": 13,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.labelsize": 12,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.prop_cycle": cycler(color=[m.color for m in METHODS.values()][:8]),
            "grid.color": "#dddfe0",
            "grid.linewidth": 0.8,
            "font.size": 12,
            "font.family": "sans-serif",
            "font.sans-serif": ["DejaVu Sans"],
            "mathtext.fontset": "dejavusans",
            "text.color": INK,
            "xtick.labelsize": 12,
            "ytick.labelsize": 12,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.fontsize": 12,
            "legend.frameon": False,
            "lines.linewidth": 2.0,
            "lines.markersize": 6.5,
            "image.cmap": "cividis",
        }
    )


# ---------------------------------------------------------------------------------------------
# Recurring figures


def error_curves(
    ax: Axes,
    curves: Mapping[str, Any],
    *,
    xlabel: str = "iteration",
    ylabel: str = "relative error",
    xscale: str = "linear",
    labels: Mapping[str, str] | None = None,
) -> None:
    """Draw one error curve a method, each named at its own end instead of in a legend.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw; its vertical axis becomes logarithmic. Set limits *before*, so that the
        names stand inside them.
    curves : mapping
        Method name (a key of ``METHODS``) → errors, or a pair (x, errors). Without x, the
        errors belong to iterations 0, 1, 2, …. A single point is drawn as a marker. What cannot
        stand on a logarithmic axis, zeros above all, is left out.
    xlabel, ylabel : str
        Axis labels, with units.
    xscale : str
        ``"linear"``, ``"log"`` or ``"symlog"``, which keeps iteration 0 (linear up to 1).
    labels : mapping, optional
        Other names for some methods.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> error_curves(ax, {"gd": [1, 0.5, 0.25], "qr": ([0], [1e-15])})
    >>> [text.get_text() for text in ax.texts]
    ['GD', 'direct (QR)']
    >>> plt.close()
    """
    _require_methods(curves)
    ax.set_yscale("log")
    if xscale == "symlog":
        ax.set_xscale("symlog", linthresh=1)
    else:
        ax.set_xscale(xscale)
    ends = []
    for name, curve in curves.items():
        x, y = curve if isinstance(curve, tuple) else (np.arange(len(curve)), curve)
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        if x.shape != y.shape or x.ndim != 1:
            raise ValueError(
                f"the curve of {name!r} needs x and errors of one length in one dimension, got "
                f"shapes {x.shape} and {y.shape}"
            )
        shown = np.isfinite(x) & np.isfinite(y) & (y > 0) & ((x > 0) | (xscale != "log"))
        x, y = x[shown], y[shown]
        if len(x) == 0:
            continue
        method = METHODS[name]
        ax.plot(
            x,
            y,
            color=method.color,
            linestyle=method.linestyle,
            marker=method.marker,
            markevery=_evenly(ax, x),
            zorder=3,
        )
        label = (labels or {}).get(name, method.label)
        ends.append((label, method.color, x, y))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    _label_ends(ax, [_last_visible(ax, *end) for end in ends])


def slope_guide(ax: Axes, start: tuple[float, float], slope: float, factor: float = 10.0) -> None:
    """Draw a line of given slope on doubly logarithmic axes, with the slope written beside it.

    Parameters
    ----------
    ax : matplotlib Axes
        Axes with two logarithmic scales.
    start : pair of float
        Left end of the guide, in data units.
    slope : float
        The exponent p of y ∝ x^p.
    factor : float
        How far the guide reaches: from x to ``factor * x``.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> _ = ax.loglog([1, 100], [1, 1e4])
    >>> slope_guide(ax, (2, 30), 2)
    >>> ax.texts[0].get_text()
    'slope 2'
    >>> plt.close()
    """
    x, y = start
    if not (x > 0 and y > 0 and factor > 1):
        raise ValueError(f"start must be positive and factor > 1, got {start} and {factor}")
    xs = np.array([x, factor * x])
    ys = y * (xs / x) ** slope
    ax.plot(xs, ys, color=GUIDE, linestyle=(0, (4, 2)), linewidth=1.4, zorder=2)
    ax.annotate(
        f"slope {slope:g}",
        (xs[1], ys[1]),
        xytext=(6, 0),
        textcoords="offset points",
        color=GUIDE,
        va="center",
        fontsize=12,
    )


def annotate_line(
    ax: Axes, line: Any, text: str, *, at: float = 0.5, offset: tuple[float, float] = (6, 6)
) -> Annotation:
    """Write a text next to a line, in the line's colour.

    Parameters
    ----------
    ax : matplotlib Axes
        Where the line is.
    line : Line2D
        As returned by ``ax.plot``.
    text : str
        What to write.
    at : float
        Which point of the line: 0 its first, 1 its last.
    offset : pair of float, points
        Where the text begins, relative to that point.

    Returns
    -------
    annotation : Annotation

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> (line,) = ax.plot([0, 1, 2], [0, 1, 4])
    >>> annotate_line(ax, line, "quadratic").xy
    (1.0, 1.0)
    >>> plt.close()
    """
    if not 0 <= at <= 1:
        raise ValueError(f"at must lie in [0, 1], got {at!r}")
    x, y = np.asarray(line.get_xdata(), float), np.asarray(line.get_ydata(), float)
    if len(x) == 0:
        raise ValueError("line has no points")
    i = round(at * (len(x) - 1))
    return ax.annotate(
        text,
        (float(x[i]), float(y[i])),
        xytext=offset,
        textcoords="offset points",
        color=line.get_color(),
        fontsize=12,
    )


def spectrum_plot(
    ax: Axes,
    spectra: Mapping[str, Any],
    *,
    xlabel: str = "index i",
    ylabel: str = "singular value",
) -> None:
    """Draw singular values in descending order, one curve a matrix or a layer.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw; its vertical axis becomes logarithmic.
    spectra : mapping
        Label → singular values, in any order; values that are zero are left out. The curves go
        from light to dark in the order given, and are named at their right end.
    xlabel, ylabel : str
        Axis labels.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> spectrum_plot(ax, {"layer 0": [1, 0.1, 0.01], "layer 5": [1, 0.9, 0.4]})
    >>> plt.close()
    """
    ax.set_yscale("log")
    # The light end of the map would vanish on the panel.
    colors = mpl.colormaps["viridis_r"](np.linspace(0.35, 1.0, max(2, len(spectra))))
    ends = []
    for (label, sigma), color in zip(spectra.items(), colors, strict=False):
        values = np.sort(np.asarray(sigma, dtype=float))[::-1]
        values = values[values > 0]
        index = np.arange(1, len(values) + 1)
        ax.plot(index, values, color=color, marker="o", markersize=4, markevery=_evenly(ax, index))
        if len(values):
            ends.append((label, color, float(index[-1]), values[-1]))
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    _label_ends(ax, ends)


def block_matrix(ax: Axes, d: int, n: int, d_out: int, n_query: int) -> None:
    """Draw the prompt X = [[A, C], [B, D]] with its blocks and their sizes; D is what is asked.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw; its own axes are hidden.
    d, n, d_out, n_query : int
        Sizes of the blocks. Very thin blocks are drawn wider than they are, to be readable.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> _, ax = plt.subplots()
    >>> block_matrix(ax, d=5, n=8, d_out=1, n_query=2)
    >>> plt.close()
    """
    wide, narrow = _readable(n, n_query)
    tall, low = _readable(d, d_out)
    gap = 0.02
    names = {
        "A": (0, 0, wide, tall, f"$d \\times n$\n{d} × {n}", "features", "#e3eef7"),
        "C": (
            wide + gap,
            0,
            narrow,
            tall,
            f"$d \\times n'$\n{d} × {n_query}",
            "queries",
            "#e4f2ec",
        ),
        "B": (0, tall + gap, wide, low, f"$d' \\times n$   {d_out} × {n}", "labels", "#fbebdf"),
        "D": (wide + gap, tall + gap, narrow, low, f"{d_out} × {n_query}", "to predict", PANEL),
    }
    for name, (x, y, width, height, size, meaning, color) in names.items():
        asked = name == "D"
        ax.add_patch(
            Rectangle(
                (x, y),
                width,
                height,
                facecolor=color,
                edgecolor=INK,
                linewidth=1.6,
                linestyle=(0, (3, 2)) if asked else "-",
                zorder=3,
            )
        )
        flat = height < 0.45
        text = f"${name}$ = ?" if asked else f"${name}$   {meaning}" if flat else f"${name}$"
        ax.text(
            x + width / 2,
            y + height / 2 - (0 if flat else 0.08),
            text,
            ha="center",
            va="bottom" if flat else "center",
            fontsize=14 if flat else 22,
            zorder=4,
        )
        below = size if flat else f"{meaning}\n{size}"
        ax.text(
            x + width / 2,
            y + height / 2 + (0.015 if flat else 0.02),
            below,
            ha="center",
            va="top",
            fontsize=12,
            zorder=4,
        )
    ax.set_xlim(-0.01, wide + narrow + gap + 0.01)
    ax.set_ylim(tall + low + gap + 0.01, -0.01)
    ax.set_axis_off()


# ---------------------------------------------------------------------------------------------
# Tables


@dataclass(frozen=True)
class Table:
    """A small table that prints as text and displays as HTML; made by :func:`table`.

    Attributes
    ----------
    columns : tuple of str
        The headings.
    cells : tuple of tuple of str
        The formatted cells, row by row.
    numeric : tuple of bool
        Which columns hold numbers, and are set flush right.
    """

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]

    def __str__(self) -> str:
        lines = [self.columns, *self.cells]
        widths = [max(len(line[j]) for line in lines) for j in range(len(self.columns))]
        rule = "  ".join("-" * width for width in widths)
        text = [
            "  ".join(
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(line, widths, self.numeric, strict=True)
            ).rstrip()
            for line in lines
        ]
        return "\n".join([text[0], rule, *text[1:]])

    __repr__ = __str__

    def _repr_markdown_(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = ["---:" if right else ":---" for right in self.numeric]
        return "\n".join([line(self.columns), line(rule), *map(line, self.cells)])

    def _repr_html_(self) -> str:
        def row(tag: str, cells: Sequence[str]) -> str:
            parts = []
            for cell, right in zip(cells, self.numeric, strict=True):
                scope = ' scope="col"' if tag == "th" else ""
                align = "right" if right else "left"
                parts.append(
                    f'<{tag}{scope} style="text-align: {align}">{html.escape(cell)}</{tag}>'
                )
            return "<tr>" + "".join(parts) + "</tr>"

        body = "\n".join(row("td", cells) for cells in self.cells)
        # A wide table scrolls by itself, by keyboard too, so that a narrow page does not.
        return (
            '<div style="overflow-x: auto" tabindex="0" role="group" aria-label="table">\n'
            f'<table class="table">\n<thead>\n{row("th", self.columns)}\n</thead>\n'
            f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
        )


def table(
    rows: Sequence[Mapping[str, Any] | Sequence[Any]],
    columns: Sequence[str] | Mapping[str, str],
) -> Table:
    """Make a table for display from rows of values.

    Parameters
    ----------
    rows : sequence
        Each row a mapping from heading to value, or a sequence of values in the columns' order.
        None, and what a mapping lacks, is shown as a dash.
    columns : sequence or mapping
        The headings; as a mapping, heading → format of its numbers, such as ``".1e"`` or ``",d"``.
        Without a format, whole numbers are written out and others to three digits.

    Returns
    -------
    table : Table
        The same text for the same values, wherever it is run.

    Raises
    ------
    ValueError
        If a row has a value too many or too few, or a heading that is no column.

    Examples
    --------
    >>> table([["GD", 100, 1.23456], ["CG", 10, None]], {"method": "", "steps": "", "error": ".1e"})
    method  steps    error
    ------  -----  -------
    GD        100  1.2e+00
    CG         10        –
    """
    formats = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    headings = tuple(formats)
    values = []
    for number, row in enumerate(rows):
        if isinstance(row, Mapping):
            unknown = set(row) - set(headings)
            if unknown:
                raise ValueError(f"row {number} has no column for {', '.join(sorted(unknown))}")
            row = [row.get(heading) for heading in headings]
        if len(row) != len(headings):
            raise ValueError(
                f"row {number} has {len(row)} values, but there are {len(headings)} columns"
            )
        values.append(list(row))
    cells = tuple(
        tuple(_cell(value, spec) for value, spec in zip(row, formats.values(), strict=True))
        for row in values
    )
    numeric = tuple(
        all(value is None or _is_number(value) for value in column) and len(column) > 0
        for column in ([row[j] for row in values] for j in range(len(headings)))
    )
    return Table(headings, cells, numeric)


# ---------------------------------------------------------------------------------------------
# Details


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float | np.integer | np.floating)
    return number and not isinstance(value, bool)


def _cell(value: Any, spec: str) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not _is_number(value):
        return str(value)
    if not spec:
        spec = "d" if isinstance(value, int | np.integer) else ".3g"
    return format(value, spec)


def _require_methods(curves: Mapping[str, Any]) -> None:
    unknown = [name for name in curves if name not in METHODS]
    if unknown:
        raise ValueError(f"unknown method {unknown[0]!r}; expected one of {', '.join(METHODS)}")


def _evenly(ax: Axes, x: np.ndarray, markers: int = 8) -> list[int]:
    """Which points get a marker: about evenly spaced in what the eye sees."""
    if len(x) <= markers:
        return list(range(len(x)))
    seen = ax.get_xaxis().get_transform().transform(x)
    finite = np.isfinite(seen)
    targets = np.linspace(seen[finite].min(), seen[finite].max(), markers)
    distance = np.where(finite[:, None], np.abs(seen[:, None] - targets), np.inf)
    return sorted(set(distance.argmin(axis=0).tolist()))


def _last_visible(
    ax: Axes, label: str, color: str, x: np.ndarray, y: np.ndarray
) -> tuple[str, str, float, float]:
    """The end of a curve inside the axes' limits, which the caller may have set beforehand."""
    (x0, x1), (y0, y1) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    inside = np.flatnonzero((x >= x0) & (x <= x1) & (y >= y0) & (y <= y1))
    last = inside[-1] if len(inside) else -1
    return label, color, float(x[last]), float(y[last])


# Where a label may stand, in points from the end of its curve: offset, and which of its own sides
# it is anchored by. The first that is free is taken.
_PLACES = [
    (9, 0, "left", "center"),
    (8, 9, "left", "bottom"),
    (8, -9, "left", "top"),
    (0, 10, "center", "bottom"),
    (0, -10, "center", "top"),
    (-9, 0, "right", "center"),
    (-8, 9, "right", "bottom"),
    (-8, -9, "right", "top"),
    *((9, sign * step, "left", "center") for step in (22, 36, 50, 64) for sign in (1, -1)),
    *((-9, sign * step, "right", "center") for step in (22, 36, 50, 64) for sign in (1, -1)),
]


def _label_ends(ax: Axes, ends: Sequence[tuple[str, Any, float, float]]) -> None:
    """Name each curve at its end, where the name covers neither another name nor a curve."""
    notes = []
    for label, color, x, y in ends:
        note = ax.annotate(label, (x, y), (9, 0), textcoords="offset points", weight="bold")
        note.set(color=color, fontsize=12, zorder=5)
        _put(note, _PLACES[0])
        notes.append(note)
    # The layout makes room for the labels at their first places; then the axes stay put.
    ax.figure.canvas.draw()
    curves = [_trace(line) for line in ax.lines]
    placed: list[Bbox] = []
    for note in sorted(notes, key=lambda note: (-note.xy[0], -note.xy[1])):
        costs = []
        for order, place in enumerate(_PLACES):
            _put(note, place)
            costs.append(_crowding(ax, note.get_window_extent(), placed, curves) + order)
        _put(note, _PLACES[int(np.argmin(costs))])
        placed.append(note.get_window_extent())


def _put(note: Annotation, place: tuple[float, float, str, str]) -> None:
    note.set_position(place[:2])
    note.set(horizontalalignment=place[2], verticalalignment=place[3])


def _trace(line: Any) -> np.ndarray:
    """Points along a drawn line, in pixels, close enough together that no label slips through."""
    points = line.get_transform().transform(np.asarray(line.get_xydata(), dtype=float))
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2:
        return points
    length = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    at = np.linspace(0, length[-1], 400)
    return np.stack([np.interp(at, length, points[:, k]) for k in (0, 1)], axis=1)


def _crowding(ax: Axes, box: Bbox, placed: Sequence[Bbox], curves: Sequence[np.ndarray]) -> float:
    """How bad a place is for a label: names covered, frame crossed, curves covered."""
    frame = ax.get_window_extent()
    covered = sum(box.overlaps(other) for other in placed)
    outside = box.y0 < frame.y0 or box.y1 > frame.y1 or box.x0 < frame.x0
    box = box.padded(8)  # half a marker
    crossed = sum(
        bool(((points > (box.x0, box.y0)) & (points < (box.x1, box.y1))).all(axis=1).any())
        for points in curves
    )
    return 1000 * covered + 300 * outside + 30 * crossed


def _readable(large: int, small: int) -> tuple[float, float]:
    """Side lengths with sum 1 that neither block is too thin to hold its label."""
    share = min(max(small / (large + small), 0.2), 0.8)
    return 1 - share, share
