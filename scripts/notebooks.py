"""Make the notebooks of the examples out of the tutorials of the docs: examples/PAGE.ipynb of docs/tutorials/PAGE.md.

    python scripts/notebooks.py

Text becomes cells of text and Python becomes cells of code. What blocks print is left out: a notebook prints it itself.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES, NOTEBOOKS = ROOT / "docs" / "tutorials", ROOT / "examples"
BLOCK = re.compile(r'^```(?:python|text title="Output")\n.*?^```\n', re.M | re.S)
LINK = re.compile(r"(\]\()(?!\w+:)([^)#\s]+)")
"""A link to a file beside the page or above it, and not to the web."""
ABOUT = "*Made of the page `docs/tutorials/{page}` by `python scripts/notebooks.py`; it needs `pip install acclimate`.*"


def cells(text: str, page: str) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    out, at = [], 0
    for block in BLOCK.finditer(text):
        out.append(_cell("markdown", _links(text[at : block.start()])))
        if block[0].startswith("```python"):
            out.append(_cell("code", block[0].partition("\n")[2].removesuffix("```\n")))
        at = block.end()
    out.append(_cell("markdown", _links(text[at:])))
    kept = [cell for cell in out if cell["source"]]
    kept.insert(1, _cell("markdown", ABOUT.format(page=page)))
    return [{"id": f"cell-{number}", **cell} for number, cell in enumerate(kept)]


def _cell(kind: str, text: str) -> dict[str, Any]:
    code: dict[str, Any] = {"execution_count": None, "outputs": []} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text.strip().splitlines(keepends=True), **code}


def _links(text: str) -> str:
    """Links as they are from the folder of the examples: to pages of the docs, and to notebooks of other tutorials."""

    def there(match: re.Match[str]) -> str:
        target = match[2]
        if "/" not in target:
            return match[1] + target.replace(".md", ".ipynb")
        return match[1] + "../docs/" + target.removeprefix("../")

    return LINK.sub(there, text)


def notebook(text: str, page: str) -> str:
    """A tutorial as the text of a notebook."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"kernelspec": kernel, "language_info": {"name": "python"}}
    body = {"cells": cells(text, page), "metadata": about, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the notebooks."""
    for page in sorted(PAGES.glob("*.md")):
        place = NOTEBOOKS / f"{page.stem}.ipynb"
        place.write_text(notebook(page.read_text(), page.name))
        print(f"wrote {place.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
