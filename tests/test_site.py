"""The built site: every link leads somewhere, and every page is right in a real browser."""

import functools
import http.server
import importlib.util
import shutil
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = ROOT / "_build" / "html"
NOT_BUILT = f"{SITE} is not there: run `make book` first"

spec = importlib.util.spec_from_file_location("check_site", ROOT / "book" / "check_site.py")
check_site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_site)

# index.html at the top only leads to the first page.
PAGES = [
    name
    for page in check_site.pages(SITE)
    if (name := page.relative_to(SITE).as_posix()) != "index.html"
]
# Every page is laid out at both widths in both themes; axe, which is slow, sees each width and
# each theme once.
LOOKS = ((1280, "light", "dark"), (390, "dark", "light"))


# ---- Without a browser ---------------------------------------------------------------------------


def test_the_site_is_complete_without_a_network_and_every_link_leads_somewhere():
    assert PAGES, NOT_BUILT
    assert list(check_site.faults(SITE)) == []


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "from the network"),
        ('<link rel="stylesheet" href="//cdn.example/x.css">', "from the network"),
        ("<style>@import 'https://cdn.example/x.css';</style>", "from the network"),
        ('<p style="background: url(http://cdn.example/x.png)">', "from the network"),
        ('<img alt="a" src="none.png">', "is not there"),
        ('<img alt="" src="data:image/png;base64,AA==">', "no alternative text"),
        ('<a href="none.html">', "leads nowhere"),
        ('<a href="#none">', "an anchor that is not there"),
        ('<a href="page.html#none">', "an anchor that is not there"),
        ("<p>```{prf:theorem} of {cite:p}</p>", "not understood"),
    ],
)
def test_a_fault_of_a_page_is_found(tmp_path, html, fault):
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    (found,) = check_site.faults(tmp_path)
    assert fault in found


@pytest.mark.parametrize(
    "html",
    [
        '<a href="https://elsewhere.example/">',
        '<h1 id="a%20b"><a href="#a%20b">',
        '<img alt="a" src="data:image/png;base64,AA==">',
        '<link rel="canonical" href="https://elsewhere.example/">',
        "<p><code>{cite:p}`key`</code> and <script>'{ref}'</script></p>",
    ],
)
def test_a_sound_page_has_no_fault(tmp_path, html):
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert list(check_site.faults(tmp_path)) == []


def test_a_site_that_was_not_built_is_a_fault(tmp_path):
    assert "build the book first" in next(check_site.faults(tmp_path))


# ---- In a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip(f"not tested in a browser: none of {', '.join(names)} is on the PATH")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-background-networking"]
        )
        yield browser
        browser.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="module")
def address():
    """The address of the site on a static server of this machine."""
    handler = functools.partial(_Quiet, directory=SITE)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Tab:
    """A page in a browser without a network, and what went wrong in it."""

    def __init__(self, browser, home, width=1280, theme="light"):
        self.home, self.faults = home, []
        self.context = browser.new_context(
            viewport={"width": width, "height": 800}, reduced_motion="reduce"
        )
        # A busy machine is no fault of the page.
        self.context.set_default_timeout(120_000)
        self.context.add_init_script(
            f"try {{ if (!localStorage.mode) {{ localStorage.mode = '{theme}';"
            f" localStorage.theme = '{theme}' }} }} catch (denied) {{}}"
        )
        self.context.route(lambda url: not url.startswith((home, "data:")), self._refuse)
        self.page = self.context.new_page()
        self.page.on("console", self._note_message)
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("requestfailed", lambda r: self.faults.append(f"failed: {r.url}"))
        self.page.on("response", self._note_response)

    def _refuse(self, route):
        self.faults.append(f"external request: {route.request.url}")
        route.abort()

    def _note_message(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _note_response(self, response):
        if response.status >= 400:
            self.faults.append(f"status {response.status}: {response.url}")

    def open(self, name):
        self.page.goto(f"{self.home}/{name}", wait_until="load")
        self.page.evaluate("window.MathJax?.startup?.promise")
        self.page.evaluate("document.fonts.ready.then(() => null)")
        # The page looks again at what scrolls when its letters have arrived.
        self.page.wait_for_timeout(150)
        return self.page

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


# What is wrong with the page as it is laid out, each fault a sentence.
LAYOUT = """() => {
  const faults = [];
  const words = (e) => e.outerHTML.slice(0, 120);
  for (const e of document.querySelectorAll("mjx-merror, mjx-container [data-mjx-error]"))
    faults.push("maths not rendered: " + words(e));
  for (const e of document.querySelectorAll(".math"))
    if (!e.querySelector("mjx-container")) faults.push("maths not rendered: " + words(e));
  for (const image of document.images) {
    const inText = image.closest("article");
    if (!image.complete || !image.naturalWidth) faults.push("image not loaded: " + image.src);
    if (!image.alt.trim()) faults.push("image without alternative text: " + image.src);
    if (inText && getComputedStyle(image).filter !== "none")
      faults.push("image dimmed: " + image.src);
  }
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push("the page scrolls sideways");
  const boxed = (e) => {
    for (let p = e; p && p !== document.body; p = p.parentElement)
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX)) return true;
    return false;
  };
  for (const e of document.querySelectorAll("article.bd-article *")) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > width + 1 && !boxed(e)) faults.push("cut off: " + words(e));
  }
  return faults;
}"""


# Thousands of coloured words of code have some dozen kinds: one of each is enough to look at.
ONE_OF_EACH_KIND = """() => {
  const seen = new Set();
  for (const word of document.querySelectorAll(".highlight span")) {
    if (seen.has(word.className)) word.replaceWith(...word.childNodes);
    seen.add(word.className);
  }
}"""


@functools.cache
def axe():
    from axe_playwright_python.sync_playwright import Axe

    return Axe()


def accessibility_faults(page):
    """What axe-core finds serious or critical, each with its place."""
    # Preloading would fetch the style sheets once more, and those they import from a wrong place.
    options = {"resultTypes": ["violations"], "preload": False}
    page.evaluate(ONE_OF_EACH_KIND)
    found = axe().run(page, options=options).response["violations"]
    return [
        f"{violation['id']}: {node['html'][:160]} {node['failureSummary'][:300]}"
        for violation in found
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


@pytest.mark.parametrize(("width", "theme", "other"), LOOKS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_whole_at_every_width_in_every_theme(browser, address, name, width, theme, other):
    with Tab(browser, address, width, theme) as tab:
        page = tab.open(name)
        assert page.evaluate("document.documentElement.dataset.theme") == theme
        faults = page.evaluate(LAYOUT)
        page.evaluate(f"document.documentElement.dataset.theme = '{other}'")
        faults += page.evaluate(LAYOUT)
        page.evaluate(f"document.documentElement.dataset.theme = '{theme}'")
        faults += accessibility_faults(page) + tab.faults
    assert not faults, "\n".join(faults)


def test_the_address_of_the_site_leads_to_its_first_page(browser, address):
    with Tab(browser, address) as tab:
        tab.page.goto(f"{address}/")
        tab.page.wait_for_url("**/book/index.html")
        assert "Linear ICL" in tab.page.title()


def test_the_pages_follow_one_another_from_the_first_to_the_last(browser, address):
    with Tab(browser, address) as tab:
        page = tab.open("book/index.html")
        seen = [page.url]
        while page.locator("a.right-next").count():
            page.locator("a.right-next").click()
            page.wait_for_load_state("load")
            assert page.locator("a.left-prev").count() == 1
            seen.append(page.url)
        chapters = [name for name in PAGES if name.startswith("notebooks/")]
        assert {f"{address}/{name}" for name in chapters} <= set(seen)
        assert len(set(seen)) == len(seen) > len(chapters)


@pytest.mark.parametrize("words", ["Newton–Schulz", "condition number", "eagle_update"])
def test_the_search_finds(browser, address, words):
    with Tab(browser, address) as tab:
        page = tab.open("book/index.html")
        page.keyboard.press("Control+k")
        page.keyboard.type(words)
        page.keyboard.press("Enter")
        page.wait_for_url("**/search.html?q=*")
        page.wait_for_selector("#search-results li a")
        page.wait_for_function(
            "/found/.test(document.querySelector('#search-results .search-summary')?.textContent)"
        )
        assert page.locator("#search-results li").count() > 0
        assert tab.faults == []


# The colour of an image's corner pixels, as a browser paints them: opaque and near white.
CORNERS = """() => [...document.querySelectorAll("article.bd-article figure img")].map((image) => {
  const canvas = document.createElement("canvas");
  canvas.width = image.naturalWidth;
  canvas.height = image.naturalHeight;
  const paper = canvas.getContext("2d");
  paper.drawImage(image, 0, 0);
  const style = getComputedStyle(image);
  return {
    source: image.src,
    corner: [...paper.getImageData(0, 0, 1, 1).data],
    dimmed: style.filter !== "none" || style.opacity !== "1" || style.mixBlendMode !== "normal",
  };
})"""


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("notebooks/")])
def test_figures_stay_readable_when_the_theme_is_switched(browser, address, name):
    with Tab(browser, address) as tab:
        page = tab.open(name)
        before = page.evaluate(CORNERS)
        for _ in range(3):
            page.locator("button.theme-switch-button:visible").first.click()
            if page.evaluate("document.documentElement.dataset.theme") == "dark":
                break
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert before, "the chapter shows no figure"
        assert page.evaluate(CORNERS) == before
        for figure in before:
            *colour, opacity = figure["corner"]
            assert opacity == 255, figure
            assert min(colour) > 240, figure
            assert not figure["dimmed"], figure


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("notebooks/")])
def test_a_chapter_can_be_downloaded_as_the_notebook_that_is_stored(browser, address, name):
    with Tab(browser, address) as tab:
        page = tab.open(name)
        link = page.locator("a[href$='.ipynb'][download], .btn-download-source-button").first
        file = link.get_attribute("href").removeprefix("../")
        stored = ROOT / Path(name).with_suffix(".ipynb")
        assert (SITE / file).read_bytes() == stored.read_bytes()


def test_the_book_reads_from_a_file_without_any_server(browser):
    with Tab(browser, SITE.as_uri()) as tab:
        for name in ("book/index.html", "book/notation.html", *PAGES[-2:]):
            page = tab.open(name)
            assert [f for f in page.evaluate(LAYOUT) if "dimmed" not in f] == []
        assert page.evaluate("document.fonts.check('16px \"Source Serif 4\"')")
        page = tab.open("search.html?q=Newton–Schulz")
        page.wait_for_selector("#search-results li a")
        assert tab.faults == []


def test_the_menus_open_on_a_small_screen(browser, address):
    with Tab(browser, address, width=390) as tab:
        page = tab.open("book/how_to_run.html")
        page.locator("button.secondary-toggle:visible").first.click()
        page.locator("dialog a", has_text="Run a notebook").click()
        page.wait_for_url("**/book/how_to_run.html#run-a-notebook")
        page.locator("button.primary-toggle:visible").first.click()
        page.locator("dialog a", has_text="Glossary").click()
        page.wait_for_url("**/book/glossary.html")
        assert tab.faults == []
