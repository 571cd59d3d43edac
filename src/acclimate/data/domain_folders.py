"""Base records of sets with domains: a choice of domains, and image folders DOMAIN/CLASS with official lists."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..core import check
from . import formats, images
from .fileset import FileDataset, Sources, listed, text_lines

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Domains(FileDataset):
    """A set with domains, of which some may be chosen. The order of `domains` numbers them."""

    domains: tuple[str, ...] = ()
    """The domains that are read, in the order that numbers them."""

    every: ClassVar[tuple[str, ...]] = ()
    """All domains that there are."""
    places: ClassVar[tuple[str, ...]] = ()
    """Folders under the root in which the domains may lie."""

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        for d in self.domains:
            if d not in self.every:
                raise check.FieldError(
                    f"{name}: domains={self.domains!r} has {d!r}; allowed are {', '.join(self.every)}", "domains"
                )
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise check.FieldError(
                f"{name}: domains={self.domains!r} must name at least one of {', '.join(self.every)}, each once",
                "domains",
            )

    def expected(self) -> dict[str, Any]:
        full, part = type(self).published, self.part
        out: dict[str, Any] = {k: full[k] for k in ("classes", "shape") if k in full}
        if part in full.get("domains", {}):
            out["domains"] = {d: full["domains"][part][d] for d in self.domains}
            out[part] = sum(out["domains"].values())
        if part == "all" and "per_domain_class" in full:
            counts = np.sum([full["per_domain_class"][d] for d in self.domains], axis=0)
            out["per_class"] = {"all": tuple(int(n) for n in counts)}
        return out

    def _lacks(self, found: list[str], place: Path) -> FileNotFoundError:
        gone = [d for d in self.domains if d not in found]
        there = f"; data.domains={','.join(found)} uses those that are there" if found else ""
        return self.missing(f"{place} lacks {', '.join(gone)}{there}")


Row = tuple[Path, int, int, bool]  # file, label, domain, official test


@dataclass(frozen=True)
class DomainFolders(Domains):
    """A set in folders DOMAIN/CLASS/IMAGE. Official lists of training and test files are used where they are there."""

    mean: tuple[float, ...] = _IMAGENET_MEAN
    std: tuple[float, ...] = _IMAGENET_STD

    class_names: ClassVar[tuple[str, ...]] = ()
    """All classes, where the set is known to have exactly these folders."""
    aliases: ClassVar[dict[str, str]] = {}
    """Other names of domain folders, in lower case without spaces, dashes and underscores."""
    lists: ClassVar[dict[str, str]] = {}
    """Names of the official lists by part, `{}` standing for the domain."""
    list_folders: ClassVar[tuple[str, ...]] = ("", "splits", "lists")
    first_label: ClassVar[int] = 0
    """The number of the first class in the lists."""

    def sources(self) -> Sources:
        base, folders = self._find()
        lists = self._lists(base)
        if lists:
            rows, classes = self._listed(base, lists, folders)
        elif self.part != "all":
            wanted = ", ".join(self.lists[p].format(self.domains[0]) for p in self.lists) or "none exist"
            raise ValueError(
                f"{type(self).__name__}: part={self.part!r} needs official lists of its files in {base} ({wanted}); "
                f"use part='all' and let data.split cut every client's share"
            )
        else:
            rows, classes = self._scanned(base, folders)
        paths = [*(f for pair in lists for f in pair.values()), *(r[0] for r in rows)]
        return Sources(base, paths, lambda: listed(rows, classes, self.domains, self.size, self.channels))

    def _find(self) -> tuple[Path, dict[str, Path]]:
        root, nearest = self.folder(), (Path(), list[str]())
        for place in self.places if root is not None else ():
            base = Path(root or "", place)
            if not base.is_dir():
                continue
            found = {_plain(p.name): p for p in images.subfolders(base)}
            found |= {alias: found[other] for other, alias in self.aliases.items() if other in found}
            by_name = {d: found[_plain(d)] for d in self.domains if _plain(d) in found}
            if len(by_name) == len(self.domains):
                return base, by_name
            if len(by_name) > len(nearest[1]):
                nearest = (base, list(by_name))
        raise self._lacks(nearest[1], nearest[0]) if nearest[1] else self.missing()

    def _scanned(self, base: Path, folders: dict[str, Path]) -> tuple[list[Row], tuple[str, ...]]:
        found = {d: images.classes(folder) for d, folder in folders.items()}
        classes = tuple(sorted({c for by_class in found.values() for c in by_class}, key=str.casefold))
        if self.class_names and classes != self.class_names:
            odd = sorted(set(classes) ^ set(self.class_names))
            raise ValueError(
                f"{base}: its class folders are not those of {type(self).__name__}: {', '.join(odd[:5])} "
                f"{'is' if len(odd) == 1 else 'are'} missing or unknown; for a set of your own use ImageFolder"
            )
        number = {c: i for i, c in enumerate(classes)}
        rows = [(f, number[c], i, False) for i, d in enumerate(self.domains) for c in found[d] for f in found[d][c]]
        return rows, classes

    def _lists(self, base: Path) -> list[dict[str, Path]]:
        """The lists of every domain, or none at all unless all are there."""
        for inner in self.list_folders:
            found = [{p: base / inner / name.format(d) for p, name in self.lists.items()} for d in self.domains]
            if self.lists and all(f.is_file() for pair in found for f in pair.values()):
                return found
        return []

    def _listed(
        self, base: Path, lists: list[dict[str, Path]], folders: dict[str, Path]
    ) -> tuple[list[Row], tuple[str, ...]]:
        names: dict[int, str] = {}
        rows: list[Row] = []
        for i, pair in enumerate(lists):
            for part, path in pair.items():
                for k, line in enumerate(text_lines(path)):
                    where, _, label = line.rpartition(" ")
                    pieces = where.split("/")
                    if len(pieces) < 3 or not label.isdigit() or int(label) < self.first_label:
                        raise ValueError(f"{path}: line {k + 1} is not 'domain/class/image label'; {formats.AGAIN}")
                    number = int(label) - self.first_label
                    if names.setdefault(number, pieces[-2]) != pieces[-2]:
                        raise ValueError(
                            f"{path}: line {k + 1} gives {pieces[-2]} the label of {names[number]}; {formats.AGAIN}"
                        )
                    if part in self.wanted:
                        rows.append((folders[self.domains[i]] / pieces[-2] / pieces[-1], number, i, part == "test"))
        gaps = sorted(set(range(max(names, default=-1) + 1)) - set(names))
        twice = [n for n in names.values() if list(names.values()).count(n) > 1]
        if gaps or twice or not rows:
            what = f"no file has the label {gaps[0] + self.first_label}" if gaps else "they are empty"
            what = f"{twice[0]} has two labels" if twice and not gaps else what
            raise ValueError(f"{base}: official lists: {what}; {formats.AGAIN}")
        return rows, tuple(names[i] for i in sorted(names))


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace(" ", "").replace("-", "")
