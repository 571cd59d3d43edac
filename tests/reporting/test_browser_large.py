"""A report of 12 methods x 5 adapters x 6 streams x 3 seeds in a real Chromium: by keys alone, on a phone, on paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_verdict import large

from acclimate.leaderboard import page as leaderboard
from acclimate.reporting.report import render
from chromium import MARKS, patient

pytestmark = MARKS
WHOLE = "section{content-visibility:visible!important}"
BROKEN = """() => Array.from(document.querySelectorAll('th[scope=row], .names text, .tick, h4, .tab')).flatMap(e => {
  const walk = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), out = [];
  for (let node; node = walk.nextNode();) {
    for (const word of node.data.matchAll(/\\S+/g)) {
      const range = document.createRange();
      range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      const lines = new Set(Array.from(range.getClientRects()).map(r => Math.round(r.top)));
      if (lines.size > 1) out.push(word[0]);
    }
  }
  return out;
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render(large()))
    return path


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page at a width; fails where anything was logged."""
    page, trouble = patient(browser.new_page(viewport={"width": request.param, "height": 800})), []
    page.on("console", lambda m: trouble.append(m.text))
    page.on("pageerror", lambda e: trouble.append(str(e)))
    page.goto(report.as_uri())
    page.add_style_tag(content=WHOLE)
    yield page
    page.close()
    assert trouble == []


@pytest.mark.parametrize("opened", [390], indirect=True)
def test_on_a_phone_names_are_whole_and_dots_can_be_seen(opened: Any) -> None:
    assert opened.evaluate("document.documentElement.scrollWidth") == 390
    assert opened.evaluate(BROKEN) == []
    wide = "found => found.map(p => parseFloat(getComputedStyle(p).strokeWidth) * p.getScreenCTM().a)"
    dots = opened.locator("#every-client .dots").evaluate_all(wide)
    assert len(dots) == 12 * 5 * 6 and min(dots) >= 4.0


@pytest.mark.parametrize("opened", [1280], indirect=True)
def test_keys_alone_sort_filter_and_switch(opened: Any) -> None:
    names = (
        "() => Array.from(document.querySelector('table.headline').tBodies[0].rows).filter(r => r.offsetParent).length"
    )
    assert opened.evaluate(names) == 60
    for _ in range(40):
        opened.keyboard.press("Tab")
        if opened.evaluate("document.activeElement.id") == "filter":
            break
    opened.keyboard.type("method11")
    opened.wait_for_timeout(300)
    assert opened.evaluate(names) == 5
    sort = opened.locator("table.headline thead button").first
    sort.focus()
    opened.keyboard.press("Enter")
    assert opened.evaluate("document.querySelectorAll('table.headline th[aria-sort]').length") >= 1


@pytest.mark.parametrize("opened", [1280], indirect=True)
def test_keys_read_a_chart_as_the_pointer_does(opened: Any) -> None:
    """The numbers of a round show while the pointer is over it, and by arrow keys in a chart that Tab has reached."""
    visible = "c => Array.from(c.querySelectorAll('.at')).filter(g => getComputedStyle(g.lastChild).opacity === '1')"
    read = f"c => ({visible})(c).map(g => Array.from(g.querySelectorAll('text')).map(t => t.textContent).join(' '))"
    chart = opened.locator("#learning-curves svg").first
    seeds = [run["metrics"][4]["val_accuracy"] for run in large() if run["results"]["label"] == "method0"]
    wanted = f"round 5 {100 * sum(seeds) / 3:.1f} ({100 * min(seeds):.1f} to {100 * max(seeds):.1f})"
    assert chart.evaluate(read) == []
    chart.locator(".at rect").nth(4).hover()
    assert chart.evaluate(read) == [wanted]
    opened.locator("#learning-curves h2").hover()
    for _ in range(200):
        opened.keyboard.press("Tab")
        if chart.evaluate("c => c === document.activeElement"):
            break
    for key in ("Home", *["ArrowRight"] * 5, "ArrowLeft"):
        opened.keyboard.press(key)
    assert chart.evaluate(read) == [wanted]
    assert ": round 5, " in chart.get_attribute("aria-label")
    opened.keyboard.press("Tab")
    assert chart.evaluate(read) == []


@pytest.mark.parametrize("opened", [1280], indirect=True)
def test_heat_maps_fill_the_width(opened: Any) -> None:
    """The maps of a row, with the gaps between them, are as wide as their section."""
    edges = (
        "found => found.filter(e => e.offsetParent || e.getClientRects().length).map(e => e.getBoundingClientRect())"
    )
    boxes = opened.locator("#method-and-adapter .view:visible svg.heat").evaluate_all(edges)
    room = opened.locator("#method-and-adapter .view:visible .heats").first.bounding_box()
    assert boxes and max(b["right"] for b in boxes) - min(b["left"] for b in boxes) > 0.95 * room["width"]


@pytest.mark.parametrize("opened", [1032], indirect=True)
def test_on_paper_nothing_is_cut_off_and_tools_are_left_out(opened: Any) -> None:
    opened.emulate_media(media="print")
    assert not opened.locator("#tools").is_visible()
    cut = """() => Array.from(document.querySelectorAll('.scroll, figure, table')).filter(e => e.offsetParent &&
        (e.getBoundingClientRect().right > 1033 || (getComputedStyle(e).overflowX !== 'visible' && e.scrollWidth >
        e.clientWidth + 1))).map(e => e.tagName + '.' + e.className + ' ' + e.scrollWidth)"""
    assert opened.evaluate(cut) == []
    assert len(opened.pdf(format="A4")) > 50_000


def made_board(folder: Path) -> None:
    """The page board.html of three stored submissions, two of them of one method."""
    board = Path(__file__).parents[2] / "results" / "leaderboard" / "brfl-v1" / "small"
    (folder / "small").mkdir()
    for name in ("local.v1.json", "local.v2.json", "fedper.v1.json"):
        shutil.copy(board / name, folder / "small")
    (folder / "board.html").write_text(leaderboard.html(folder))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_leaderboard_is_narrowed_by_words_and_to_one_row_per_method(browser: Any, tmp_path: Path, width: int) -> None:
    made_board(tmp_path)
    page = patient(browser.new_page(viewport={"width": width, "height": 800}))
    page.goto((tmp_path / "board.html").as_uri())
    rows = """() => Array.from(document.querySelector('table.board').tBodies[0].rows)
        .filter(r => r.offsetParent).map(r => r.cells[0].textContent + '/' + r.cells[1].textContent)"""
    whole = page.evaluate(rows)
    assert len(whole) == len(set(whole)) > 8 and page.evaluate("document.documentElement.scrollWidth") == width
    page.get_by_role("searchbox").fill("LOC t")
    assert set(page.evaluate(rows)) == {r for r in whole if r.startswith("local/") and "t" in r.partition("/")[2]}
    page.get_by_role("searchbox").fill("")
    page.get_by_label("the best row of every method").check()
    kept = page.evaluate(rows)
    assert kept == [
        next(r for r in whole if r.startswith(m)) for m in dict.fromkeys(r.partition("/")[0] for r in whole)
    ]
    assert page.locator("form.narrow output").text_content() == f"2 of {len(whole)} rows"
    page.locator("table.board thead button").nth(4).click()  # sorting keeps what is hidden hidden
    assert sorted(page.evaluate(rows)) == sorted(kept)
    page.close()


def test_a_leaderboard_is_sorted_by_keys_on_a_phone(browser: Any, tmp_path: Path) -> None:
    """Every heading is reached and seen: the first column stays, its heading with it, and hides no other."""
    made_board(tmp_path)
    page = patient(browser.new_page(viewport={"width": 390, "height": 800}))
    page.goto((tmp_path / "board.html").as_uri())
    heads = page.locator("table.board").first.locator("thead button")
    page.get_by_label("the best row of every method").focus()
    page.keyboard.press("Tab")  # the table itself, which arrow keys scroll
    read = "b => [b === document.activeElement, b.getBoundingClientRect().left]"
    edge = "t => [t.tHead.rows[0].cells[0], t.tBodies[0].rows[0].cells[0]].map(c => c.getBoundingClientRect().right)"
    for number in range(heads.count()):
        page.keyboard.press("Tab")
        focused, left = heads.nth(number).evaluate(read)
        first, below = page.locator("table.board").first.evaluate(edge)
        assert focused and first == pytest.approx(below) and (number == 0 or left >= first - 1), number
    values = "t => Array.from(t.tBodies[0].rows).map(r => Number(r.cells[4].dataset.v))"
    heads.nth(4).focus()
    for key, word in (("Space", "descending"), ("Enter", "ascending")):
        page.keyboard.press(key)
        assert page.locator("table.board").first.locator("th").nth(4).get_attribute("aria-sort") == word
        found = page.locator("table.board").first.evaluate(values)
        assert len(set(found)) > 5 and found == sorted(found, reverse=word == "descending")
    page.close()
