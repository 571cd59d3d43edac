"""The gallery shows what is stored: its files are those that its command makes, its numbers those of the results."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gallery(bench):
    return bench("gallery")


@pytest.fixture(scope="module")
def files(gallery):
    return gallery.made(ROOT / "results", ROOT / "docs" / "gallery.md", ROOT / "docs" / "gallery")


def test_the_files_are_those_of_the_command(files):
    stale = [path.name for path, text in files.items() if path.read_text() != text]
    assert stale == [], "python benchmarks/gallery.py"
    assert len(files) == 11 and {p.name for p in (ROOT / "docs" / "gallery").iterdir()} == {
        path.name for path in files if path.suffix == ".svg"
    }


@pytest.mark.parametrize("paper", ["fedthe", "fedtta", "fedicon", "fedspl", "fedpcl"])
def test_numbers_are_those_of_the_stored_results(paper):
    """Read from the JSON files without the code that draws: every accuracy shown is in one, with its difference."""
    stored = set()
    for path in (ROOT / "results" / paper).glob("*.json"):
        for cell in json.loads(path.read_text())["cells"]:
            if cell["percent"] and cell["difference"] is not None:
                gap = f"{round(cell['difference'], 1) + 0.0:+.1f}"
                stored.add((cell["row"], f"{cell['mean']:.1f}", f"{cell['published']['mean']:.1f}", gap))
    told = re.compile(
        r"<title>([^<]+), [^,<]+: ours ([\d.]+), published ([\d.]+)</title>.*?>([+-][\d.]+)</text></g>", re.S
    )
    page = (ROOT / "docs" / "gallery.md").read_text().split(f"gallery/{paper}-light.svg")[1]
    count = int(re.search(r"(\d+) of \d+ published accuracies are measured", page)[1])
    for theme in ("light", "dark"):
        drawn = (ROOT / "docs" / "gallery" / f"{paper}-{theme}.svg").read_text()
        shown = told.findall(drawn)
        assert len(shown) == len(re.findall(r": ours \d", drawn)) == count >= 30
        assert {s for s in shown if (s[0].replace("&#x27;", "'"), *s[1:]) not in stored} == set()


def test_a_dot_stands_where_its_axis_says(gallery):
    drawn = (ROOT / "docs" / "gallery" / "fedtta-light.svg").read_text()
    ticks = re.findall(
        r'<text x="([\d.]+)" y="\d+" text-anchor="middle" font-size="11" fill="#59636e">([\d.]+)</text>', drawn
    )
    (x0, low), _, (x1, high) = ((float(x), float(v)) for x, v in ticks[:3])
    group = re.search(r"<title>[^<]+: ours ([\d.]+), published ([\d.]+)</title>.*?</g>", drawn, re.S)
    ring, dot = (float(x) for x in re.findall(r'<circle cx="([\d.]+)"', group[0]))
    for x, told in ((dot, group[1]), (ring, group[2])):
        assert low + (x - x0) / (x1 - x0) * (high - low) == pytest.approx(float(told), abs=0.2)


def test_colours_tell_near_from_far(gallery):
    drawn = (ROOT / "docs" / "gallery" / "fedthe-dark.svg").read_text()
    near, far = (gallery.DOTS[state][1] for state in ("near", "far"))
    gaps = {c: [abs(float(g)) for g in re.findall(rf'fill="{c}">([+-][\d.]+)</text></g>', drawn)] for c in (near, far)}
    assert max(gaps[near]) <= 3.0 <= min(gaps[far])
    told = re.search(
        r"(\d+) of \d+ published accuracies are measured, (\d+) within", (ROOT / "docs/gallery.md").read_text()
    )
    assert (len(gaps[near]) + len(gaps[far]), len(gaps[near])) == (int(told[1]), int(told[2]))


def test_a_page_without_a_place_is_refused(gallery, tmp_path):
    (tmp_path / "page.md").write_text("# Nothing\n")
    with pytest.raises(SystemExit, match="has no place for the gallery"):
        gallery.made(ROOT / "results", tmp_path / "page.md", tmp_path / "gallery")
