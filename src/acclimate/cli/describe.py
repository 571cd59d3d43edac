"""What the command line prints: listings, a record's fields and paper, the doctor's findings, the results table."""

from __future__ import annotations

import ast
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import platform
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from ..core.nn import available
from ..eval.selection_table import Selection
from ..eval.table import Table, percent
from ..experiment import ConfigError, catalogue, labels
from ..ops import layout
from ..ops.places import data_root
from ..version import __version__
from .json_out import document

EXTRAS = {
    "flower": ("flwr",),
    "ray": ("ray",),
    "privacy": ("dp_accounting",),
    "track": ("tensorboard", "mlflow", "sqlalchemy", "alembic"),
    "tune": ("optuna",),
    "serve": ("starlette", "uvicorn", "prometheus_client"),
    "export": ("onnx", "onnxscript", "onnxruntime"),
    "backbones": ("efficientnet_lite_pytorch",),
    "tables": ("pyarrow",),
    "text": ("tokenizers",),
    "images": ("PIL", "h5py"),
    "huggingface": ("datasets", "PIL"),
    "docs": ("mkdocs", "mkdocstrings"),
    "dev": ("pytest", "hypothesis", "ruff", "mypy"),
}
"""The extras of pyproject.toml, and modules by which each is known to be installed."""


def listing(kind: str | None = None) -> str:
    """All names of a kind, each with what it is in a sentence, and how it differs from its record's defaults."""
    plurals = [k.plural for k in catalogue.KINDS if k.entries]
    if kind is not None and kind not in plurals:
        raise ConfigError(f"there is no kind '{kind}'; {catalogue.nearest(kind, plurals)}")
    out = []
    for k in catalogue.KINDS:
        if k.entries and kind in (None, k.plural):
            width = max(map(len, k.entries))
            out.append(f"{k.plural}:")
            out += [f"  {name.ljust(width)}  {sentence(name, record)}" for name, record in k.entries.items()]
    return "\n".join(out)


def sentence(name: str, record: Any) -> str:
    """What a record is."""
    summary = catalogue.SUMMARIES.get(name) or inspect.cleandoc(type(record).__doc__ or "")
    first = summary.split("\n\n")[0].replace("\n", " ")
    changed = labels.differences(_default(record), record)
    return f"{first} [{', '.join(changed)}]" if changed else first


def _default(record: Any) -> Any:
    try:
        return type(record)()
    except TypeError:
        return record


def details(name: str) -> str:
    """A record's class, where it comes from, and every field with default and meaning."""
    found = [(k, k.entries[name]) for k in catalogue.KINDS if name in k.entries]
    if not found:
        names = sorted({n for k in catalogue.KINDS for n in k.entries})
        raise ConfigError(f"there is no '{name}'; {catalogue.nearest(name, names)}")
    return "\n\n".join(_details(k.name, name, record) for k, record in found)


def _details(kind: str, name: str, record: Any) -> str:
    cls = type(record)
    module = inspect.getmodule(cls)
    out = [f"{kind} {name} = {cls.__module__}.{cls.__qualname__}", "", inspect.cleandoc(cls.__doc__ or "")]
    if module is not None and module.__doc__:
        out += ["", inspect.cleandoc(module.__doc__)]
    notes, fields = field_notes(cls), dataclasses.fields(record)
    out += ["", "fields:" if fields else "no fields"]
    for f in fields:
        value = getattr(record, f.name)
        shown = labels.label(value) if dataclasses.is_dataclass(value) else repr(value)
        out.append(f"  {f.name}: {_type(f.type)} = {shown}")
        if note := notes.get(f.name):
            out += textwrap.wrap(note, 100, initial_indent="      ", subsequent_indent="      ")
        if dataclasses.is_dataclass(value):
            out += [f"      .{g.name} = {getattr(value, g.name)!r}" for g in dataclasses.fields(value)]
    if traces := getattr(record, "traces", None):
        out += ["", "traces, with analysis=true:", *(f"  {name}: {meaning}" for name, meaning in traces.items())]
    return "\n".join(out)


def _type(hint: Any) -> str:
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))


def field_notes(cls: type) -> dict[str, str]:
    """The strings that stand below fields in a class body, of the class and its bases."""
    notes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for here, below in zip(body.body, body.body[1:], strict=False):
            if (
                isinstance(here, ast.AnnAssign)
                and isinstance(here.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ):
                notes[here.target.id] = " ".join(below.value.value.split())
    return notes


Finding = tuple[str, bool, str]
"""What was looked at, whether it is there, and what is to be said or done."""


def findings() -> list[Finding]:
    """What is there, and what to do about what is not."""
    out = [
        ("acclimate", True, __version__),
        ("python", True, platform.python_version()),
        ("torch", True, f"{torch.__version__}, {layout.counted(torch.get_num_threads(), 'thread')}"),
    ]
    if torch.cuda.is_available():
        out.append(("device", True, f"cuda: {torch.cuda.get_device_name()}"))
        out.append(("kernels", available.AVAILABLE, available.said()))
    else:
        out.append(("device", False, "cpu (torch sees no CUDA device; for a GPU install a CUDA build of torch)"))
    out += [("digits", *_digits()), ("data root", *_root())]
    for extra, modules in EXTRAS.items():
        there = all(importlib.util.find_spec(m) is not None for m in modules)
        state = "installed" if there else f"not installed: pip install 'acclimate[{extra}]'"
        out.append(("extra", there, f"{extra}: {state}"))
    return out


def doctor() -> str:
    """One line per finding."""
    lines = []
    for what, _, says in findings():
        first, *more = layout.wrapped(says, layout.room(), " " * 12)
        lines += [f"{what:<11} {first.lstrip()}", *more]
    return "\n".join(lines)


def _digits() -> tuple[bool, str]:
    try:
        return True, f"embedded, from scikit-learn {importlib.metadata.version('scikit-learn')}"
    except importlib.metadata.PackageNotFoundError:
        return False, "not available: pip install scikit-learn"


def _root() -> tuple[bool, str]:
    root = data_root()
    if root is None:
        return False, "none; set ACCLIMATE_DATA to the folder that holds your data sets"
    if not root.is_dir():
        return False, f"ACCLIMATE_DATA={root} is not a folder; create it or change the variable"
    return True, f"{root} ({len(list(root.iterdir()))} entries)"


WIDE = 100_000
"""How many columns output has where no window limits it."""
NARROW = 80
"""How many columns a table should need at most."""


def console() -> Console:
    """Standard output: as wide as the window or COLUMNS, or as needed where a file or a program reads it.

    Square brackets are printed as they are: names, reasons and folders may have them.
    """
    found = Console(markup=False)
    return found if found.is_terminal else Console(markup=False, width=layout.room() or WIDE)


def results_table(table: Table, root: Path, notes: Sequence[str] = ()) -> None:
    """Print the results of the last round, and of the validation-selected one where it differs; then the notes."""
    out = console()
    print_pivot(out, table, "last", f"{table.caption()}; upload per client and round")
    if any(r["selection"] == "validation" and r["round"] != _last(table, r) for r in table.rows):
        print_pivot(out, table, "validation", "accuracy at the validation-selected round")
    for line in table.not_run():
        out.print(line, style="dim", highlight=False)
    for note in notes:
        out.print(note, highlight=False)
    report = root / "report.html"
    out.print(f"run folder: {root}\nreport:     {report}", highlight=False, soft_wrap=True)


def run_document(
    table: Table, root: Path, notes: Sequence[str], failed: Mapping[str, Any], selected: Mapping[str, Selection]
) -> str:
    """The same as JSON, with runs that failed, and with what strategies chose in runs that were asked to."""
    rows = {"rows": list(table.rows), "refused": list(table.refused), "failed": dict(failed)}
    chosen = {label: selection.to_dict() for label, selection in selected.items()}
    places = {"folder": str(root), "report": str(root / "report.html")}
    return document("run", **places, **rows, selected=chosen, notes=list(notes))


def _last(table: Table, row: Any) -> int:
    return max(r["round"] for r in table.rows if r["selection"] == "last" and r["method"] == row["method"])


def print_pivot(out: Console, table: Table, selection: str, title: str) -> None:
    """Methods down and streams across, in blocks of as many streams as the window has room for."""
    blocks: list[list[str]] = [[]]
    wide = _pivot(table, selection, table.streams(), out.width)
    fold = _width(out, wide) > min(out.width, NARROW)
    for stream in table.streams():
        wider = _pivot(table, selection, [*blocks[-1], stream], out.width, fold)
        if blocks[-1] and _width(out, wider) > out.width:
            blocks.append([])
        blocks[-1].append(stream)
    out.print(title, style="italic", highlight=False)
    for streams in blocks:
        out.print(_pivot(table, selection, streams, out.width, fold))


def _width(out: Console, table: RichTable) -> int:
    return out.measure(table, options=out.options.update(max_width=WIDE)).maximum


def _folded(stream: str) -> str:
    """A long name on two lines, broken at its last hyphen: it is wider than the numbers below it."""
    head, hyphen, last = stream.rpartition("-")
    return f"{head}{hyphen}\n{last}" if head and len(stream) > 9 else stream


def _pivot(table: Table, selection: str, streams: list[str], room: int, fold: bool = False) -> RichTable:
    """A block of streams. Names of methods are whole up to half of the room, and go on in the next line beyond it."""
    upload, exchanged = table.uploads(), table.exchanged(selection)
    out = RichTable(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 0 if fold else 1, 0, 0),
    )
    out.add_column("method", overflow="fold", max_width=room // 2)
    out.add_column("adapter", no_wrap=True)
    for s in streams:
        out.add_column(Text(_folded(s) if fold else s), justify="right", no_wrap=True)
    out.add_column("upload", justify="right", no_wrap=True)
    if exchanged:
        out.add_column("exchanged", justify="right", no_wrap=True)
    rows = table.pivot(selection)
    best = {s: max((c[s][0] for _, c in rows if s in c), default=None) for s in streams}
    for (method, adapter), cells in rows:
        marked = [
            Text(percent(*cells[s]), "bold green" if cells[s][0] == best[s] else "") if s in cells else "-"
            for s in streams
        ]
        told = [size(upload[method]), *([size(exchanged[method, adapter])] if exchanged else [])]
        out.add_row(Text(method), Text(adapter), *marked, *told)  # text: brackets in names stay
    return out


def size(count: float) -> str:
    """Bytes for people: `460 kB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
