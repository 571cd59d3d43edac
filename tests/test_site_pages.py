"""The built site: strictly, with the pages that its hook adds, and every page in a real Chromium at two widths."""

import functools
import http.server
import importlib.util
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from acclimate.experiment import catalogue
from acclimate.leaderboard import page as leaderboard
from chromium import CHROMIUM, MARKS, patient, playwright

pytestmark = [
    *MARKS,
    pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the docs extra is not installed"),
    pytest.mark.timeout(1200),
]
ROOT = Path(__file__).parents[1]
CUT = """() => {
  const width = document.documentElement.clientWidth;
  const scrolls = e => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const over = [...document.querySelectorAll("article *")].filter(
    e => e.getBoundingClientRect().width && e.getBoundingClientRect().right > width + 1 && !scrolls(e));
  const broken = [...document.images].filter(
    i => i.complete && !i.naturalWidth && i.loading != "lazy" && getComputedStyle(i).display != "none");
  const page = document.documentElement.scrollWidth > width + 1 ? ["the page"] : [];
  return [...page, ...over.map(e => e.tagName + " " + e.textContent.slice(0, 60)), ...broken.map(i => i.src)];
}"""
"""What is wider than the window and does not scroll by itself, and images that are not there."""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site; MkDocs checks links and anchors of its own accord."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


def text(built, page):
    return (built / page / "index.html").read_text()


def test_the_api_has_every_method_and_adapter(built):
    assert "acclimate.core.method.Method.client" in text(built, "api/core")
    for package, kind in (("methods", catalogue.METHODS), ("adapters", catalogue.ADAPTERS)):
        records = {type(record).__name__ for record in kind.values()}
        assert [n for n in records if f'id="acclimate.{package}.{n}"' not in text(built, f"api/{package}")] == []


def test_pages_from_elsewhere_are_there_whole(built):
    listed = re.findall(r"\| ([\w/.-]+\.json) \|$", (ROOT / "results" / "index.md").read_text(), re.MULTILINE)
    assert listed and [name for name in listed if f"<td>{name}</td>" not in text(built, "reproduced")] == []
    board = (built / "leaderboard" / "board.html").read_text()
    assert board == leaderboard.html(ROOT / "results" / "leaderboard" / "brfl-v1")
    assert text(built, "gallery").count("#only-light") == text(built, "gallery").count("#only-dark") == 5
    assert text(built, "contributing").count("<h2") == (ROOT / "CONTRIBUTING.md").read_text().count("\n## ")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.parametrize("width", [1400, 390])
def test_nothing_is_wider_than_the_window(built, width):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(built))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        wrong = looked_at(f"http://127.0.0.1:{server.server_port}", built, width)
        server.shutdown()
    assert wrong == {}


def looked_at(address, built, width):
    """What is wrong, by page."""
    wrong = {}
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, errors = patient(browser.new_page(viewport={"width": width, "height": 900})), []
        page.on("pageerror", lambda e: errors.append(str(e)))
        for path in sorted(p.relative_to(built).as_posix() for p in built.rglob("*.html")):
            page.goto(f"{address}/{path}")
            page.wait_for_timeout(50)
            if found := [*page.evaluate(CUT), *errors]:
                wrong[path] = found
            errors.clear()
        page.set_content("<article><p style='width: 3000px'>wide</p></article>")
        assert len(page.evaluate(CUT)) == 2, "the check would not notice"
        browser.close()
    return wrong
