"""Tutorials run top to bottom, and print what they say that they print."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w.])[+-]?\d+(?:\.\d+)?")
NEAR = 6.0
"""Points, or a client of eighteen in percent: another processor rounds otherwise, and training makes more of it."""
SLOW = {"compare"}
WIDEST = 98
"""Characters that a line of code has room for on a page of 1,400 pixels."""


@pytest.fixture(scope="module")
def tutorials():
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "scripts" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same(told, printed):
    """Whether two texts have the same words, and numbers that are near each other."""
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (told, printed)]
    words = [" ".join(NUMBER.sub("#", text).split()) for text in (told, printed)]
    return words[0] == words[1] and all(abs(a - b) <= NEAR for a, b in zip(*numbers, strict=True))


def test_the_comparison_can_fail():
    told = "fedthe  96.7 ±3  a tie\nstep 2\n"
    assert same(told, "fedthe  92.1 ±4  a tie\nstep 2\n")
    assert not same(told, "fedthe  90.1 ±4  a tie\nstep 2\n")
    assert not same(told, "fedthe  96.7 ±3  no tie\nstep 2\n")
    assert not same(told, "fedthe  96.7 ±3  a tie\n")


def pages():
    found = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
    assert {"compare", "deploy"} <= {p.stem for p in found}
    return [pytest.param(p, id=p.stem, marks=pytest.mark.slow if p.stem in SLOW else ()) for p in found]


@pytest.mark.parametrize("page", pages())
def test_a_tutorial_prints_what_it_says(page, tutorials, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = page.read_text()
    told, printed = tutorials.told(text), list(tutorials.printed(text, page.stem))
    assert len(told) == text.count("```python") and sum(map(bool, told)) >= 5
    wrong = [(a, b) for a, b in zip(told, printed, strict=True) if not same(a, b)]
    assert wrong == [], f"python scripts/tutorials.py {page.relative_to(ROOT)}"


@pytest.mark.parametrize("page", [p.values[0] for p in pages()], ids=lambda p: p.stem)
def test_no_line_of_a_block_is_cut_off(page):
    fenced = re.findall(r"^```(?:python|text)[^\n]*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert [line for block in fenced for line in block.splitlines() if len(line) > WIDEST] == []


def test_outputs_are_written_below_their_blocks(tutorials):
    text = 'a\n\n```python\nprint(1)\n```\n\nb\n\n```python\nx = 2\n```\n\n```text title="Output"\nold\n```\nc\n'
    outputs = list(tutorials.printed(text, "page"))
    assert outputs == ["1\n", ""] and tutorials.told(text) == ["", "old\n"]
    new = tutorials.written(text, outputs)
    assert new == 'a\n\n```python\nprint(1)\n```\n\n```text title="Output"\n1\n```\n\nb\n\n```python\nx = 2\n```\nc\n'
    assert tutorials.written(new, outputs) == new
