"""Write what `solvers.py` measured as a page and a figure of the book.

python benchmarks/solver_page.py     book/solver_measurements.md, book/figures/choosing_a_solver.png
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch
from provenance import RESULTS, ROOT

from linear_icl import files, plotting

NAMES = ("GD", "CGLS", "LSQR", "LSMR", "EAGLE", "EAGLE minimax", "QR", "SVD")


def read(part: str) -> dict[str, Any]:
    """One stored measurement."""
    return json.loads((RESULTS / f"solvers_{part}.json").read_text())


def number(value: float) -> str:
    """Three significant digits, or fewer."""
    return f"{value:.3g}"


def power(value: float) -> str:
    """1e4 as a reader likes it."""
    mantissa, exponent = f"{value:.0e}".split("e")
    factor = "" if mantissa == "1" else mantissa + " \\cdot "
    return f"${factor}10^{{{int(exponent)}}}$"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def origin(report: dict[str, Any]) -> str:
    """The small print under a table."""
    threads = f"{report['threads']} thread{'s' if report['threads'] > 1 else ''}"
    cpu, torch = report["machine"]["cpu"], report["versions"]["torch"]
    return (
        f"*{cpu}, {threads}, NumPy {report['versions']['numpy']}, torch {torch}; "
        f"commit {report['commit'][:10]}, {report['date'][:10]}.*\n"
    )


def side_by_side() -> list[str]:
    """Iterations, flops and seconds of every method to the same error."""
    report = read("side_by_side")
    lines = ["### Everything side by side\n"]
    lines.append(
        "Square prompts, $n = d$, two labels and two queries, log-uniform singular values. Every "
        "method was asked for a relative error of $10^{-8}$ in $D$; a dagger says that it stopped "
        "short of it, at its limit of iterations. In each cell: iterations · GFlop · seconds. The "
        "fastest is in bold.\n"
    )
    rows = []
    for row in report["rows"]:
        reached = {k: v["seconds"] for k, v in row["methods"].items() if v["reached"]}
        fastest = min(reached, key=lambda name: reached[name])
        cells = [str(row["n"]), power(row["kappa"])]
        for name in NAMES:
            found = row["methods"][name]
            steps = f"{found['iterations']} · " if found["iterations"] else ""
            text = f"{steps}{number(found['flops'] / 1e9)} · {number(found['seconds'])}"
            text = f"**{text}**" if name == fastest else text
            cells.append(text + ("" if found["reached"] else " †"))
        rows.append(cells)
    return [*lines, *table(["n", "κ(A)", *NAMES], rows), origin(report)]


def tall() -> list[str]:
    """The Gram form on tall data."""
    report = read("tall")
    rows = [
        [
            power(row["kappa"]),
            number(row["seconds"]["lstsq"]),
            number(row["seconds"]["eagle"]),
            number(row["seconds"]["cholesky"]),
            number(row["lstsq_over_eagle"]),
            f"{row['eagle_disagreement']:.0e}",
            f"{row['cholesky_disagreement']:.0e}",
        ]
        for row in report["rows"]
    ]
    header = ["κ(A)", "`lstsq` s", "Gram EAGLE s", "Cholesky s", "ratio"]
    header += ["EAGLE's difference", "Cholesky's difference"]
    return [
        "### Tall data\n",
        "$d = 100$ features, $n = 400\\,000$ examples, double precision: seconds, the ratio of "
        "`numpy.linalg.lstsq` to EAGLE's Gram form, and how far the weights are from those of "
        "`lstsq`.\n",
        *table(header, rows),
        origin(report),
    ]


def stream() -> list[str]:
    """The file that is not held in memory."""
    report = read("stream")
    row = report["rows"]
    return [
        "### A file larger than the memory used\n",
        f"{row['n']:,} examples of {row['d']} features in single precision, a file of "
        f"{row['file_bytes'] / 2**30:.2f} GiB, memory-mapped: {number(row['seconds_one_pass'])} s "
        f"for one pass, {number(row['seconds_with_refinement'])} s with refinement, with "
        f"{row['allocated_peak_bytes'] / 2**20:.0f} MiB allocated at the peak.\n",
        origin(report),
    ]


def batches() -> list[str]:
    """Many prompts at once."""
    report = read("batches")
    names = list(report["rows"][0]["seconds"])
    rows = [[name, *(number(row["seconds"][name]) for row in report["rows"])] for name in names]
    header = ["seconds", *(f"{r['prompts']:,} of {r['n']} × {r['n']}" for r in report["rows"])]
    return ["### Many prompts in one call\n", *table(header, rows), origin(report)]


def schedules() -> list[str]:
    """Newton–Schulz against minimax, and the rate of a layer."""
    report, step = read("iterations"), read("step")
    rows = [
        [power(r["kappa"]), str(r["newton_schulz"]), str(r["minimax"]), number(r["ratio"])]
        for r in report["rows"]
    ]
    steps = [
        [
            str(r["n"]),
            number(1e3 * r["step_seconds"]),
            number(1e3 * r["gemm_seconds"]),
            f"{100 * r['share_of_gemm_rate']:.0f} %",
            number(1e3 * r["spectrum_seconds"]),
            number(r["peak_memory_in_A"]),
        ]
        for r in step["rows"]
    ]
    header = ["n = d", "layer ms", "GEMM ms", "share of the GEMM rate"]
    header += ["singular values ms", "peak memory / A"]
    return [
        "### The two schedules\n",
        "Layers to $10^{-6}$, $n = d = 240$. Neither is told κ: both take it from the singular "
        "values that are computed once.\n",
        *table(["κ(A)", "Newton–Schulz", "minimax", "ratio"], rows),
        origin(report),
        "One layer of the data form counts as two matrix products of $n^3$; below is the share of "
        "this machine's measured rate for such products, what the singular values cost once, and "
        "the memory allocated.\n",
        *table(header, steps),
        origin(step),
    ]


def decision() -> plt.Figure:
    """The figure: four questions, five answers."""
    plotting.use_style()
    figure, ax = plt.subplots(figsize=(7.2, 7.4))
    ax.set_axis_off()
    ax.set_xlim(0, 10)
    ax.set_ylim(0.2, 10.4)
    look = {name: plotting.METHODS[name].color for name in ("cgls", "eagle", "qr", "svd")}

    def box(x: float, y: float, text: str, color: str, width: float = 4.3) -> None:
        patch = FancyBboxPatch(
            (x - width / 2, y - 0.62),
            width,
            1.24,
            boxstyle="round,pad=0.06,rounding_size=0.16",
            facecolor="white" if color == plotting.INK else color,
            edgecolor=color,
            linewidth=1.8,
        )
        ax.add_patch(patch)
        ink = plotting.INK if color == plotting.INK else "white"
        ax.text(x, y, text, ha="center", va="center", color=ink, fontsize=12.5)

    def arrow(start: tuple[float, float], end: tuple[float, float], word: str) -> None:
        style = {"arrowstyle": "-|>", "color": plotting.INK, "linewidth": 1.5}
        ax.annotate("", end, start, arrowprops=style)
        across = start[1] == end[1]
        middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
        shift = (0, 0.22) if across else (0.35, 0)
        ax.text(middle[0] + shift[0], middle[1] + shift[1], word, ha="center", va="center")

    questions = [
        (9.4, "Is A sparse, or only\na product with A?"),
        (7.2, "Many more examples\nthan features (n ≥ 8 d)?"),
        (5.0, "Weights to the last digit, or\nnothing but matrix products?"),
        (2.8, "May A be rank-deficient?"),
    ]
    answers = [
        (9.4, "cgls\n(conjugate_gradient)", look["cgls"]),
        (7.2, "eagle: Gram form\none pass, then d × d", look["eagle"]),
        (5.0, "eagle\nschedule='minimax'", look["eagle"]),
        (2.8, "least_squares 'svd'\nor nystrom", look["svd"]),
    ]
    for (y, text), (_, answer, color) in zip(questions, answers, strict=True):
        box(2.4, y, text, plotting.INK)
        box(7.7, y, answer, color)
        arrow((4.65, y), (5.45, y), "yes")
    for (upper, _), (lower, _) in itertools.pairwise(questions):
        arrow((2.4, upper - 0.72), (2.4, lower + 0.72), "no")
    arrow((2.4, 2.08), (2.4, 1.6), "no")
    box(2.4, 0.9, "least_squares 'qr'", look["qr"])
    return figure


def main() -> None:
    """Write the page and draw the figure."""
    parts = [schedules, side_by_side, tall, stream, batches]
    lines = [line for part in parts for line in part()]
    files.write_text(ROOT / "book" / "solver_measurements.md", "\n".join(lines))
    figure = decision()
    figure.savefig(ROOT / "book" / "figures" / "choosing_a_solver.png")


if __name__ == "__main__":
    main()
