"""The docs site: its navigation, its links and anchors, its API pages, and the pages that come from elsewhere."""

import importlib
import importlib.util
import re
import unicodedata
from pathlib import Path
from types import SimpleNamespace

import pytest

import acclimate
from acclimate.leaderboard import TRACKS
from acclimate.recipes.index import index

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def site():
    spec = importlib.util.spec_from_file_location("site_hook", ROOT / "scripts" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(page):
    return FENCE.sub("", page.read_text())


def headings(page):
    """The text of every heading, without its marks."""
    for text in re.findall(r"^#{1,6} +(.+?) *#*$", prose(page), re.MULTILINE):
        yield re.sub(r"[`*]|\]\([^)]*\)|\[", "", text)


def anchors(page):
    """Those that the site gives a page's headings, and those that GitHub does."""
    site, github = set(), set()
    for text in headings(page):
        plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        site.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
        github.add(re.sub(r"[^\w\s-]", "", text.strip().lower()).replace(" ", "-"))
    return site, github


def problems(page):
    """Links of a page that lead nowhere, in the site or on GitHub."""
    for match in LINK.finditer(prose(page)):
        target = match[1] or match[2]
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and any(anchor not in known for known in anchors(there))
        ):
            yield target


@pytest.mark.parametrize("page", [pytest.param(p, id=str(p.relative_to(ROOT))) for p in PAGES])
def test_links_and_anchors_lead_somewhere(page):
    assert list(problems(page)) == []


def test_a_bad_link_is_found(tmp_path):
    (tmp_path / "there.md").write_text("# A title, `quoted`\n\n## Two  parts\n")
    (tmp_path / "page.md").write_text(
        "# Page\n[a](there.md#a-title-quoted) [b](there.md#no) [c](gone.md) [d](#page) [e](https://example.org/x)\n"
        '<img src="gone.svg">\n```text\n[f](gone-too.md)\n```\n'
    )
    assert list(problems(tmp_path / "page.md")) == ["there.md#no", "gone.md", "gone.svg"]


def nav():
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    return re.findall(r"(?:- |: )([\w/.-]+\.md)$", text, re.MULTILINE)


def test_every_page_is_in_the_navigation_once(site):
    here = {p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md")}
    assert sorted(nav()) == sorted(here | set(site.PAGES.values()))


def targets(page):
    """(what a page of the API documents, the members that it lists)"""
    for block in re.findall(r"^::: (\S+)\n((?:    .*\n)*)", page.read_text() + "\n", re.MULTILINE):
        listed = re.search(r"members: \[(.*)\]", block[1])
        yield block[0], [m.strip() for m in listed[1].split(",")] if listed else []


def found(path):
    """A module, or a name in one."""
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


API = sorted(p for p in (DOCS / "api").glob("*.md") if p.stem != "index")


@pytest.mark.parametrize("page", [pytest.param(p, id=p.stem) for p in API])
def test_the_api_names_what_there_is(page):
    assert list(targets(page))
    for path, members in targets(page):
        assert path.startswith(f"acclimate.{page.stem}")
        assert [m for m in members if not hasattr(found(path), m)] == [], path


def test_every_package_has_a_page_and_every_short_name_is_documented():
    packages = {p.parent.name for p in (ROOT / "src" / "acclimate").glob("*/__init__.py")} - {"cli"}
    assert {p.stem for p in API} == packages
    listing = (DOCS / "api" / "index.md").read_text()
    assert [p for p in packages if f"[{p}]({p}.md)" not in listing] == []
    documented = set()
    for page in API:
        for path, members in targets(page):
            thing = found(path)
            names = members or getattr(thing, "__all__", None) or [n for n in vars(thing) if not n.startswith("_")]
            documented |= {path.rpartition(".")[2], *names}
    assert sorted(set(acclimate.__all__) - documented - packages - {"__version__"}) == []


def test_links_of_the_repository_are_turned_into_links_of_the_site(site):
    text = "[a](../results/index.md) [b](papers/fedthe.md#on-cifar-10) [c](../results/leaderboard/brfl-v1) [d](https://x.org/y)"
    assert site.relinked(text, "gallery.md") == (
        "[a](reproduced.md) [b](papers/fedthe.md#on-cifar-10) c (`results/leaderboard/brfl-v1`) [d](https://x.org/y)"
    )
    assert site.relinked("[a](../../CONTRIBUTING.md#code)", "guides/tour.md") == "[a](../contributing.md#code)"
    assert site.relinked("[a](docs/fleet.md) [b](LICENSE)", "contributing.md") == "[a](fleet.md) b (`LICENSE`)"
    assert site.relinked("![a](gallery.md.png)", "index.md") == "![a](gallery.md.png)"
    within = site.relinked("so ([a](results/x.json)) and [b](LICENSE))", "contributing.md")
    assert within == "so (a: `results/x.json`) and b (`LICENSE`))"


def test_no_line_breaks_within_an_option(site):
    gap = '<span class="w"> </span>'
    page = "<p><code>up --site A-B</code> and <code>-o</code>, a--b, <code>a-b --</code></p>\n"
    page += (
        f'<code><span class="gp">$ </span>run{gap}--all-rows{gap}-o{gap}x-y\n<span class="go">said --so</span></code>'
    )
    kept = site.on_page_content(page, None, None, None)
    options = re.findall(r'<span class="option">([^<]*)</span>', kept)
    assert options == ["--site", "-o", "--all-rows", "-o"]
    assert re.sub(r'<span class="option">([^<]*)</span>', r"\1", kept) == page
    assert ".option { white-space: nowrap; }" in (DOCS / "site.css").read_text()


def test_the_index_of_results_has_the_width_of_the_page(site):
    page = SimpleNamespace(file=SimpleNamespace(src_uri="reproduced.md"), meta={})
    site.on_page_markdown("# Reproduced\n", page, None, None)
    assert page.meta == {"hide": ["toc"]}


def test_pictures_follow_the_palette(site):
    home = site.PICTURE.sub(site.palettes, (DOCS / "index.md").read_text())
    assert "(first-run-light.svg#only-light)![" in home and "(first-run-dark.svg#only-dark)" in home
    gallery = site.PICTURE.sub(site.palettes, (DOCS / "gallery.md").read_text())
    assert gallery.count("{ .plot }") == 10 and "<picture>" not in home + gallery


def test_the_index_of_results_is_that_of_its_files(site):
    assert (ROOT / "results" / "index.md").read_text() == index(ROOT / "results"), (
        "acclimate reproduce index results -o results/index.md"
    )
    assert site.source("reproduced.md") == "results/index.md" and "reproduced.md" in nav()


def test_the_leaderboard_page_has_every_track_and_every_row(site):
    page = (DOCS / "leaderboard.md").read_text()
    assert [t.name for t in TRACKS.values() if f"| `{t.name}` | {t.about} |" not in page] == []
    assert page.count(site.LINK_HERE) == page.count(site.TABLES_HERE) == 1
    made = site.on_page_markdown(page, SimpleNamespace(file=SimpleNamespace(src_uri="leaderboard.md")), None, None)
    assert (
        f"]({site.BOARD_PAGE})" in made.partition("Examples and splits")[0]
    )  # from the page's source, before its words
    shown = site.tracks()
    for table in (ROOT / site.BOARD).glob("*.md"):
        assert [line for line in table.read_text().splitlines()[1:] if line not in shown] == []


def test_screenshots_are_small_and_shown():
    text = "".join(p.read_text() for p in PAGES)
    for path in (DOCS / "screens").iterdir():
        assert path.stat().st_size < 150_000 and f"screens/{path.name})" in text
