"""One executed chapter as one HTML file that loads nothing: maths as MathML, figures embedded.

The chapters are written in MyST Markdown, which nbconvert does not know. What they use of it
(theorems, exercises with folded solutions, figures with captions, roles) is turned into plain
Markdown and HTML first.
"""

from __future__ import annotations

import copy
import html
import re
from collections import Counter
from typing import Any

_FENCE = re.compile(r"^\s*(`{3,}|~{3,}|:{3,})\{([\w:-]+)\}[ \t]*(.*?)\s*$")
_ROLE = re.compile(r"\{([\w:-]+)\}(`+)(.+?)\2", re.DOTALL)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#)[^)\s]*\)")
# Code comes first, so that a dollar sign in it is no maths.
_MATHS = re.compile(
    r"(?P<code>^[ \t]*(?P<fence>`{3,}|~{3,}).*?^[ \t]*(?P=fence)[ \t]*$|(?P<tick>`+).+?(?P=tick))"
    r"|\$\$(?P<display>.+?)\$\$(?:[ \t]*\([\w:-]+\))?"
    r"|(?P<environment>\\begin\{(?P<name>equation|align|gather)\*?\}.+?\\end\{(?P=name)\*?\})"
    r"|(?<![\\$])\$(?P<inline>[^$\s](?:[^$]*?[^$\s\\])?)\$(?!\d)",
    re.DOTALL | re.MULTILINE,
)

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }}
body {{ font: 1rem/1.6 system-ui, sans-serif; }}
pre, code {{ font-size: .9rem; }}
pre {{ overflow-x: auto; margin: 0; }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .7rem; border-bottom: 1px solid #8886; text-align: left; }}
img, svg {{ max-width: 100%; height: auto; background: #fff; }}
math[display=block] {{ overflow-x: auto; overflow-y: hidden; margin: 1rem 0; }}
mtd[columnalign=right] {{ text-align: right; padding-right: 0; }}
mtd[columnalign=left] {{ text-align: left; }}
.cell {{ margin: .6rem 0; }}
.prompt {{ display: none; }}
.input_area {{ background: #f6f7f9; color: #1b1f24; padding: .6rem .8rem; border-radius: .3rem; }}
.output_area {{ padding: .4rem .8rem; }}
.directive, details {{ border-left: .25rem solid #58c; padding: .1rem 1rem; margin: 1rem 0; }}
.caption {{ font-style: italic; }}
{highlighting}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""


def render(notebook: Any, title: str) -> str:
    """Return an executed notebook as a self-contained HTML page."""
    from nbconvert import HTMLExporter
    from pygments.formatters import HtmlFormatter

    notebook = copy.deepcopy(notebook)
    notebook.cells = [c for c in notebook.cells if "remove-cell" not in c.metadata.get("tags", [])]
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _directives(cell.source, names, counts)
    captions = _caption_figures(notebook, names, counts)
    held: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _inline(cell.source, names, held)
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/markdown" in data:
                data["text/markdown"] = _inline(data["text/markdown"], names, held)
    exporter = HTMLExporter(template_name="basic", exclude_anchor_links=True)
    body, _ = exporter.from_notebook_node(notebook)
    for number, caption in captions.items():
        text = _inline(html.escape(caption, quote=False), names, held)
        body = body.replace(f"CAPTION{number}HELD", text)
    body = re.sub(r"MATHS(\d+)HELD", lambda match: held[int(match[1])], body)
    style = HtmlFormatter(style="default").get_style_defs(".highlight")
    return _PAGE.format(title=html.escape(title), highlighting=style, body=body)


def _caption_figures(notebook: Any, names: dict[str, str], counts: Counter[str]) -> dict[int, str]:
    """Give each figure its alternative text and a numbered caption; return the captions."""
    from nbformat.v4 import new_markdown_cell

    cells, captions = [], {}
    for cell in notebook.cells:
        cells.append(cell)
        book = cell.metadata.get("mystnb", {})
        figure = book.get("figure", {})
        for output in cell.get("outputs", []):
            for mime in (m for m in output.get("data", {}) if m.startswith("image/")):
                output.metadata[mime] = {"alt": html.escape(book.get("image", {}).get("alt", ""))}
        if figure.get("caption"):
            counts["Figure"] += 1
            number = counts["Figure"]
            names[figure.get("name", "")] = f"Figure {number}"
            captions[number] = figure["caption"]
            text = f'<p class="caption">Figure {number}. CAPTION{number}HELD</p>'
            cells.append(new_markdown_cell(text, id=f"figure-{number}"))
    notebook.cells = cells
    return captions


def _directives(text: str, names: dict[str, str], counts: Counter[str]) -> str:
    """Replace MyST's directives and targets by Markdown and HTML, from the outside in."""
    lines, done = text.split("\n"), []
    while lines:
        line = lines.pop(0)
        match = _FENCE.match(line)
        if not match:
            if not re.fullmatch(r"\([\w:-]+\)=\s*", line):
                done.append(line)
            continue
        fence, kind, argument = match.groups()
        closing = re.compile(rf"^\s*{re.escape(fence[0])}{{{len(fence)},}}\s*$")
        body: list[str] = []
        while lines and not closing.match(line := lines.pop(0)):
            body.append(line)
        done.append(_directive(kind, argument, body, names, counts))
    return "\n".join(done)


def _directive(
    kind: str, argument: str, body: list[str], names: dict[str, str], counts: Counter[str]
) -> str:
    options: dict[str, str] = {}
    while body and (match := re.fullmatch(r":([\w-]+):\s*(.*)", body[0].strip())):
        options[match[1]] = match[2]
        body.pop(0)
    text = "\n".join(body)
    short = kind.rpartition(":")[2]
    if short == "math":
        return f"\n$$\n{text}\n$$\n"
    if short in ("bibliography", "contents", "tableofcontents"):
        return "\n*See the bibliography of the book.*\n" if short == "bibliography" else ""
    if short in ("code", "code-block", "sourcecode"):
        return f"\n```{argument}\n{text}\n```\n"
    heading = short.capitalize()
    # The arguments of these are a label and a title, not a name for the heading.
    if short in ("solution", "solution-start"):
        heading = f"Solution of {names.get(argument, 'the exercise')}"
    elif (kind.startswith("prf:") and short != "proof") or short == "exercise":
        counts[heading] += 1
        heading = f"{heading} {counts[heading]}"
        names[options.get("label", "")] = heading
        heading += f" ({argument})" if argument else ""
    elif argument:
        heading = argument
    inner = _directives(text, names, counts)
    if "dropdown" in options.get("class", "") or short in ("dropdown", "solution"):
        return f"\n<details>\n<summary>{heading}</summary>\n\n{inner}\n\n</details>\n"
    return f'\n<div class="directive">\n\n**{heading}.**\n\n{inner}\n\n</div>\n'


def _inline(text: str, names: dict[str, str], held: list[str]) -> str:
    """Replace roles, links to other pages and maths; the maths is put into `held`."""

    def role(match: re.Match[str]) -> str:
        kind, _, content = match.groups()
        if kind == "math":
            return f"${content}$"
        if kind.startswith("cite"):
            return f"[{content}]"
        shown, _, target = content.removesuffix(">").rpartition("<")
        name = names.get(target.strip(), target.strip())
        return shown.strip().replace("%s", name.split()[-1]) if shown else name

    def maths(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        display = match["inline"] is None
        held.append(_mathml(match["display"] or match["environment"] or match["inline"], display))
        word = f"MATHS{len(held) - 1}HELD"
        return f"\n\n{word}\n\n" if display else word

    return _MATHS.sub(maths, _LINK.sub(r"\1", _ROLE.sub(role, text)))


def _mathml(tex: str, display: bool) -> str:
    """Return MathML, or the formula as it was written if it cannot be converted."""
    from latex2mathml.converter import convert

    tex = re.sub(r"\\label\{[^}]*\}|\\nonumber|\\notag", "", tex).strip()
    tex = re.sub(r"\\tag\{([^}]*)\}", r"\\qquad\\text{(\1)}", tex)
    # The converter would number these, or does not know them.
    tex = re.sub(r"(begin|end)\{(equation|gather|align)(ed)?\*?\}", r"\1{split}", tex)
    tex = tex.replace(r"\operatorname*", r"\operatorname")
    try:
        return convert(tex, display="block" if display else "inline")
    except Exception:  # any of the converter's many errors: the reader still gets the formula
        return f"<code>{html.escape(tex)}</code>"
