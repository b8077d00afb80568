"""Say what is wrong with the built site, without a browser.

python book/check_site.py [_build/html]

Every page is read as a browser would: whatever it would load (scripts, styles, fonts, images)
has to be a file of the site, and every internal link and anchor has to lead somewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Elements whose address a browser fetches unasked, and the attributes that hold it.
LOADED = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "source": ("src", "srcset"),
    "video": ("src", "poster"),
    "audio": ("src",),
    "iframe": ("src",),
    "embed": ("src",),
    "object": ("data",),
    "input": ("src",),
    "image": ("href",),
    "use": ("href",),
}
LOADED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "modulepreload", "manifest"}
EXTERNAL = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
# A directive or a role that was not understood stands in the text as it was written.
MARKUP = re.compile(
    r"\{(?:prf|cite|exercise|solution|bibliography|figure|numref|ref|eq|doc)[:}][^<]*"
)
IN_STYLE = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")


class Page(HTMLParser):
    """What one page loads, where it links to, and the anchors that it offers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.images_without_text: list[str] = []
        self.markup: list[str] = []
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag in ("style", "script", "pre", "code"):
            self._open.append(tag)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and LOADED_LINKS & set(values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))
        for name in LOADED.get(tag, ()):
            if name in values:
                parts = values[name].split(",") if name == "srcset" else [values[name]]
                self.loads += [part.split()[0] for part in parts if part.split()]
        self.loads += _in_style(values.get("style", ""))
        if tag == "img" and not values.get("alt", "").strip():
            self.images_without_text.append(values.get("src", ""))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open == ["style"]:
            self.loads += _in_style(data)
        elif not self._open:
            self.markup += MARKUP.findall(data)


def _in_style(text: str) -> list[str]:
    return [first or second for first, second in IN_STYLE.findall(text)]


@cache
def read(file: Path) -> Page:
    """Return a page of the site, parsed."""
    return Page(file.read_text(encoding="utf-8"))


def pages(site: Path) -> list[Path]:
    """Return the pages of the site."""
    # The theme leaves templates among the static files.
    return [file for file in sorted(site.rglob("*.html")) if "_static" not in file.parts]


def faults(site: Path) -> Iterator[str]:
    """Yield what is wrong with the site, one sentence a fault."""
    if not pages(site):
        yield f"{site} holds no page: build the book first"
    for file in pages(site):
        page, name = read(file), file.relative_to(site).as_posix()
        for address in page.loads:
            yield from (f"{name}: {fault}" for fault in _load_faults(address, file))
        for address in page.links:
            yield from (f"{name}: {fault}" for fault in _link_faults(address, file))
        for text in page.markup:
            yield f"{name}: {text[:60]!r} was not understood"
        for source in page.images_without_text:
            yield f"{name}: the image {source} has no alternative text"
    for file in sorted(site.rglob("*.css")):
        name = file.relative_to(site).as_posix()
        for address in _in_style(file.read_text(encoding="utf-8")):
            yield from (f"{name}: {fault}" for fault in _load_faults(address, file))


def _load_faults(address: str, file: Path) -> Iterator[str]:
    if address.startswith(("data:", "#")) or not address:
        return
    if EXTERNAL.match(address):
        yield f"it would load {address} from the network"
    elif not _target(address, file).is_file():
        yield f"it loads {address}, which is not there"


def _link_faults(address: str, file: Path) -> Iterator[str]:
    parts = urlsplit(address)
    if parts.scheme or parts.netloc:
        return
    target = _target(address, file)
    if not target.is_file():
        yield f"the link {address} leads nowhere"
    elif parts.fragment and target.suffix == ".html":
        anchors = read(target).anchors
        if not {parts.fragment, unquote(parts.fragment)} & anchors:
            yield f"the link {address} names an anchor that is not there"


def _target(address: str, file: Path) -> Path:
    path = unquote(urlsplit(address).path)
    target = (file.parent / path).resolve() if path else file.resolve()
    return target / "index.html" if target.is_dir() else target


def main(arguments: list[str]) -> int:
    """Print the faults of a site; return 1 if there are any."""
    site = Path(arguments[0] if arguments else "_build/html")
    found = list(faults(site))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
