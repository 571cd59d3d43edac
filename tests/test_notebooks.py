"""Notebooks are the tutorials of the docs, hold no outputs, and run top to bottom."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
PAGES = ROOT / "docs" / "tutorials"


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "scripts" / "notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code(path):
    cells = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_a_page_becomes_cells(maker):
    page = "# A\n\ntext [b](b.md), [c](../guides/c.md#d) and [web](https://x.org/e.md)\n"
    page += "\n```python\nx = 1\nprint(x)\n```\n"
    page += '\n```text title="Output"\n1\n```\n\nend ![p](../screens/p.png)\n\n```console\n$ acclimate list\n```\n'
    first, about, block, end = maker.cells(page, "a.md")
    assert "".join(first["source"]) == (
        "# A\n\ntext [b](b.ipynb), [c](../docs/guides/c.md#d) and [web](https://x.org/e.md)"
    )
    assert "docs/tutorials/a.md" in about["source"][0]
    assert block == {
        "id": "cell-2",
        "cell_type": "code",
        "metadata": {},
        "source": ["x = 1\n", "print(x)"],
        "execution_count": None,
        "outputs": [],
    }
    assert "".join(end["source"]) == "end ![p](../docs/screens/p.png)\n\n```console\n$ acclimate list\n```"


def test_notebooks_are_the_tutorials(maker):
    assert {"compare", "deploy"} <= {p.stem for p in NOTEBOOKS}
    if PAGES.exists():
        assert [p.stem for p in NOTEBOOKS] == [p.stem for p in sorted(PAGES.glob("*.md"))]
    for path in NOTEBOOKS:
        body = json.loads(path.read_text())
        assert (body["nbformat"], body["nbformat_minor"]) == (4, 5)
        ids = [cell["id"] for cell in body["cells"]]
        assert len(ids) == len(set(ids)) and all(not cell.get("outputs") for cell in body["cells"])
        page = PAGES / f"{path.stem}.md"
        if page.exists():
            targets = re.findall(r"\]\((?!\w+:)([^)#\s]+)", path.read_text())
            assert targets and [t for t in targets if not (path.parent / t).exists()] == []
            assert path.read_text() == maker.notebook(page.read_text(), page.name), "python scripts/notebooks.py"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys):
    """As a kernel runs it: its cells in order, in one namespace. Another test reads what they print."""
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "__main__"}
    for number, text in enumerate(code(path)):
        exec(compile(text, f"{path.name}, cell {number}", "exec"), space)
    said = capsys.readouterr().out
    assert len(said.splitlines()) >= 10 and "nan" not in said
