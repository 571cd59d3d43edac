"""Run the tutorials top to bottom, and write what each block prints below it.

    python scripts/tutorials.py [PAGE ...]

A page's Python blocks run in order in one module, in a folder that is thrown away.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import sys
import tempfile
import types
from collections.abc import Iterator
from pathlib import Path

PAGES = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(
    r'^(?P<code>```python\n(?P<python>.*?)^```\n)(?:\n```text title="Output"\n(?P<output>.*?)^```\n)?', re.M | re.S
)
"""A block of Python, and what it prints where it prints something."""


def printed(text: str, name: str) -> Iterator[str]:
    """What each Python block of a page prints, in order; in the current folder."""
    module = types.ModuleType(f"tutorial_{name}")
    sys.modules[module.__name__] = module
    for block in BLOCK.finditer(text):
        lines = text[: block.start("python")].count("\n")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("\n" * lines + block["python"], f"{name}.md", "exec"), module.__dict__)
        yield "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())
    del sys.modules[module.__name__]


def told(text: str) -> list[str]:
    """What a page says that each of its blocks prints."""
    return [block["output"] or "" for block in BLOCK.finditer(text)]


def written(text: str, outputs: list[str]) -> str:
    """The page with these outputs."""
    left = iter(outputs)

    def block(match: re.Match[str]) -> str:
        output = next(left)
        return match["code"] + (f'\n```text title="Output"\n{output}```\n' if output else "")

    return BLOCK.sub(block, text)


def main() -> None:
    """Run and write pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES)
    for page in [p.resolve() for p in parser.parse_args().pages]:
        text = page.read_text()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            outputs = list(printed(text, page.stem))
        page.write_text(written(text, outputs))
        print(f"wrote {os.path.relpath(page)}")


if __name__ == "__main__":
    main()
