"""Which data the numbers of the papers need, and which of it is here."""

from __future__ import annotations

from collections.abc import Iterable

from ..data import FileDataset
from ..data.domain_folders import Domains
from ..experiment import ConfigError, catalogue
from . import needs
from .coverage import cells
from .record import Cell, Recipe, records


def here(recipes: Iterable[Recipe]) -> list[str]:
    """The data sets of recipes that this machine has, as `--data` takes them: `CIFAR10`, `Digit5 (mnist, usps)`."""
    out: dict[str, dict[str, None]] = {}
    for record in _sets(recipes):
        for name in needs.parts(record):
            if not needs.missing(needs.part(record, name)):
                out.setdefault(type(record).__name__, {})[name] = None
    whole = {type(r).__name__: r.every for r in _sets(recipes) if isinstance(r, Domains)}
    names = []
    for name, found in sorted(out.items()):
        some = name in whole and len(found) < len(whole[name])
        names.append(f"{name} ({', '.join(sorted(found))})" if some else name)
    return names


def _sets(recipes: Iterable[Recipe]) -> dict[FileDataset, None]:
    own = [c for r in recipes for c in cells(r) if isinstance(c, Cell)]
    values = dict.fromkeys(v for c in own for v in (c.training.data, c.stream))
    return dict.fromkeys(r for v in values for r in records(v) if isinstance(r, FileDataset))


def named(text: str, recipes: Iterable[Recipe]) -> frozenset[str]:
    """What `--data` names: `CIFAR10; Digit5 (mnist, usps)`, as `needs.missing` takes it."""
    known = {type(r).__name__ for r in _sets(recipes)}
    out: set[str] = set()
    for word in (w.strip() for w in text.split(";") if w.strip()):
        name, _, some = word.partition("(")
        if name.strip() not in known:
            raise ConfigError(f"--data: no data set '{name.strip()}'; {catalogue.nearest(name.strip(), sorted(known))}")
        some = some.rstrip(") ")
        out |= {f"{name.strip()} ({d.strip()})" for d in some.split(",")} if some else {name.strip()}
    return frozenset(out)
