"""Tables in text files: what they are packed and written in, the names of their columns, and their rows of cells."""

from __future__ import annotations

import bz2
import contextlib
import csv
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from ..ops import opening
from ..ops.layout import counted
from .formats import AGAIN

MISSING = frozenset(
    ("", "na", "n/a", "n.a.", "nan", "-nan", "null", "none", "?", "#n/a", "#na", "#null!", "<na>", "nat", "\\n")
) | {"#div/0!", "#value!", "#ref!", "#name?", "#num!"}
"""Cells that say nothing, in small letters: empty ones, what programs write for none, and errors of spreadsheets."""
STROKES = frozenset(("-", "--", "---", "\u2013", "\u2014", ".", "..", "..."))
"""Cells that say nothing where all others of the column are numbers, and are words otherwise."""
LONGEST_HEAD = 1 << 20
_PACKED: dict[bytes, Callable[..., Any]] = {
    rb"\x1f\x8b": gzip.open,
    rb"BZh[1-9]1AY&SY": bz2.open,
    rb"\xfd7zXZ\0": lzma.open,
}
_SHEET = "save its table there as CSV in UTF-8"
_OTHERS = {
    rb"PK\x03\x04": f"a spreadsheet (.xlsx, .ods) or another zip archive; {_SHEET}, or unpack the archive",
    rb"\xd0\xcf\x11\xe0": f"a spreadsheet (.xls); {_SHEET}",
    rb"PAR1\x15": "a Parquet file; let the name of a table end in .parquet, and write texts as CSV",
    rb"ARROW1\0": "a Feather file; write it as Parquet or CSV",
    rb'\s*\{\s*"': "JSON; write it as CSV, with pandas: read_json(path, lines=True).to_csv('new.csv', index=False)",
    rb"\s*\[\s*[{[]": "JSON; write it as CSV, with pandas: read_json(path).to_csv('new.csv', index=False)",
    rb"(?i)\s*<(!doctype|html)": "a page of the web; download the file itself",
    rb"\s*<\?xml": f"XML; {_SHEET}",
    rb"(?i)\s*@relation": "an ARFF file; write it as CSV, with a first line of names",
}
"""Files that are taken for tables in text, by how they begin, and what to do with each."""
_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?( ?%)?")
_POINTS_AND_COMMA = re.compile(r"[+-]?\d{1,3}(\.\d{3})+,\d+( ?%)?")
_COMMAS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d*)?( ?%)?")
_POINTS = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
_SHARE = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+) ?%")


def number(cell: str) -> float | None:
    """The number that a cell holds, NaN where it says nothing, None where it is a word. 12 % is 0.12."""
    try:
        return None if "_" in cell else float(cell)  # Python reads 1_12 as 112, which in a table is another name
    except ValueError:
        pass
    cell = cell.strip()
    if cell.casefold() in MISSING or cell in STROKES:
        return np.nan
    if cell.startswith("\u2212"):  # the minus sign of printed numbers
        return number(f"-{cell[1:]}")
    return number(cell[:-1]) / 100 if _SHARE.fullmatch(cell) else None  # type: ignore[operator]


@contextlib.contextmanager
def opened(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """The names of a text file's columns, and its rows of as many cells, without blank lines.

    Whatever is wrong with the text is said in a sentence.
    """
    try:
        with unpacked(path) as raw, _decoded(raw, path) as file:
            between, skipped = _begun(file, path)
            rows = csv.reader(file, delimiter=between, strict=True)
            names = _header(_next(rows, skipped, path) or [], path)
            yield names, _rows(rows, names, between, skipped, path)
    except UnicodeDecodeError as e:
        raise ValueError(
            f"{path}: is not text in UTF-8 (byte 0x{e.object[e.start]:02x}: {e.reason}); save the table as CSV in "
            f"UTF-8, or convert it, for example with iconv -f cp1252 -t utf-8 {path.name} > new.csv"
        ) from e
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as e:
        raise ValueError(f"{path}: cannot be unpacked ({e}); {AGAIN}") from e
    except OSError as e:
        if e.errno is None:  # how bz2 says "invalid data stream"
            raise ValueError(f"{path}: cannot be unpacked ({e}); {AGAIN}") from e
        raise


def unpacked(path: Path) -> IO[bytes]:
    """The bytes of a file, unpacked where it is packed."""
    with opening.opened(path) as file:
        head = file.read(16)
    unpack = next((how for mark, how in _PACKED.items() if re.match(mark, head)), open)
    return cast(IO[bytes], (gzip.open if path.suffix.lower() == ".gz" else unpack)(path, "rb"))


def _decoded(raw: IO[bytes], path: Path) -> IO[str]:
    """The text of bytes in UTF-8, or in UTF-16 where a mark says so, as spreadsheets' "Unicode text" is."""
    head = begin(raw, path)
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in head and not wide:
        raise ValueError(f"{path}: is not text in UTF-8 (it holds bytes of 0); save the table as CSV in UTF-8")
    return io.TextIOWrapper(raw, encoding="utf-16" if wide else "utf-8-sig", newline="")


def begin(raw: IO[bytes], path: Path) -> bytes:
    """How a file begins; refuses one that holds no lines of text."""
    head = raw.read(64)
    raw.seek(0)
    if what := next((said for mark, said in _OTHERS.items() if re.match(mark, head)), ""):
        raise ValueError(f"{path}: is {what}")
    return head


def _begun(file: IO[str], path: Path) -> tuple[str, int]:
    """What stands between cells, and how many lines were skipped: the file goes on at its line of names."""
    between, skipped = "", 0
    while True:
        here = file.tell()
        first = file.readline(LONGEST_HEAD)
        if not first:
            raise ValueError(f"{path}: is empty; it must have a first line that names the columns, and rows below")
        if found := re.fullmatch(r"sep=([,;\t|])", first.strip('\r\n" ')):  # for spreadsheets; they do not show it
            between = found[1]
        elif first.strip():
            file.seek(here)
            return between or mark_of(first), skipped
        skipped += 1


def mark_of(line: str) -> str:
    """What stands between the cells of a line of names: what makes most of them, quotes being heeded."""
    return max(",;\t|", key=lambda mark: len(next(csv.reader([line.rstrip("\r\n")], delimiter=mark), [])))


def _header(cells: list[str], path: Path) -> list[str]:
    names = [c.strip() for c in cells]
    if all(number(n) is not None for n in names):
        raise ValueError(f"{path}: its first line holds numbers, not names; put a line above it that names the columns")
    if twice := next((n for i, n in enumerate(names) if n and n in names[:i]), None):
        raise ValueError(f"{path}: has the column {twice!r} twice; rename one of them")
    return names


def _rows(rows: Any, names: list[str], between: str, skipped: int, path: Path) -> Iterator[list[str]]:
    """The rows below the line of names, in cells whose numbers have a point."""
    plain = _plain(between, path)
    while True:
        line = skipped + rows.line_num + 1
        row = _next(rows, skipped, path)
        if row is None:
            return
        if row and len(row) != len(names):
            raise ValueError(
                f"{path}: line {line} has {counted(len(row), 'cell')}, but the first line names "
                f"{counted(len(names), 'column')}; {_remedy(row, names, between)}"
            )
        if row:
            yield plain(row)


def _next(rows: Any, skipped: int, path: Path) -> list[str] | None:
    """The next row, None at the end. A quote that is never closed is an error: it would swallow all rows below."""
    line = skipped + rows.line_num + 1
    try:
        row: list[str] | None = next(rows, None)
    except csv.Error as e:
        raise ValueError(
            f"{path}: is no CSV from line {line} on ({e}); look there for a quote that is not closed, and write a "
            'quote inside quotes twice ("")'
        ) from e
    return row


def _remedy(row: list[str], names: list[str], between: str) -> str:
    """What to do about a row that has another number of cells than there are names."""
    if len(names) == 1 or names[0].startswith("#"):
        return f"the first line is {names[0][:40]!r}: remove what stands above the line of names"
    if len(row) == len(names) + 1 and not row[-1].strip():
        return f"the line ends in {between!r}: let the first line end so too, or no line"
    if len(row) == len(names) + 1 and row[0].strip() in ("0", "1"):
        return "if the row begins with its number, name that column too, or write the table without (row.names=FALSE)"
    return f"mend the row (a text with a {'comma' if between == ',' else repr(between)} in it needs quotes)"


def _plain(between: str, path: Path) -> Callable[[list[str]], list[str]]:
    """How the cells of a row get numbers with a point. With semicolons or tabs between cells, as where decimals have
    a comma, 1,5 is 1.5; with commas between them, 1,234 in quotes is 1234."""
    if between == ",":
        return lambda row: [c.replace(",", "") if "," in c and _COMMAS.fullmatch(c.strip()) else c for c in row]
    seen: dict[re.Pattern[str], str] = {}

    def plain(row: list[str]) -> list[str]:
        for i, cell in enumerate(row):
            if between == ";" and "." in cell and _POINTS.fullmatch(cell.strip()):
                seen.setdefault(_POINTS, cell.strip())
            if "," in cell and (number := _with_point(cell.strip(), between)):
                seen.setdefault(_COMMA, cell.strip())
                row[i] = number
        if len(seen) == 2:
            raise ValueError(
                f"{path}: has the numbers {seen[_COMMA]} and {seen[_POINTS]}: is the point there for thousands? Write "
                "numbers without a mark for thousands"
            )
        return row

    return plain


def _with_point(cell: str, between: str) -> str:
    """A number with a decimal comma, with a point; empty where it is none, as 1,234 between tabs, which may be 1234."""
    cell = cell.replace(".", "") if _POINTS_AND_COMMA.fullmatch(cell) else cell
    fits = _COMMA.fullmatch(cell) and not (between != ";" and _COMMAS.fullmatch(cell))
    return cell.replace(",", ".") if fits else ""
