"""The base record of data sets that lie in files: where they are, what of them is read, and in which form."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import check
from ..ops import opening
from ..ops.places import DATA, data_root
from . import cache, formats, images
from .cache import ImageStream, Parsed
from .dataset import Dataset
from .world import Examples


class FileLayout(NamedTuple):
    """One way in which a set may lie on disk: folders to look in (relative to the root), and files that must be there.

    A file may have several spellings, separated by `|`.
    """

    folders: tuple[str, ...]
    files: tuple[str, ...]


class Sources(NamedTuple):
    """The files of a set, and how to read them. Names in the cache key are relative to `base`."""

    base: Path
    files: Sequence[Path]
    read: Callable[[], Parsed]
    detail: Mapping[str, Any] = {}
    """What else decides what `read` gives, for the cache key: lists of classes, fingerprints."""


class FilePart(NamedTuple):
    """Examples of one file, for `assemble`."""

    x: np.ndarray
    y: np.ndarray
    test: bool = False
    domain: int = 0


def counts(shape: tuple[int, ...], train: tuple[int, ...], test: tuple[int, ...]) -> dict[str, Any]:
    """The published figures of a set, from how many examples of each class its two parts have."""
    per_class = {"train": train, "test": test}
    return {"train": sum(train), "test": sum(test), "classes": len(train), "shape": shape, "per_class": per_class}


@dataclass(frozen=True)
class FileDataset(Dataset):
    """A data set in files. A new one defines `sources`; reading, caching, resizing and errors are done here."""

    root: str = ""
    """Folder that holds the data sets; where it is empty, the environment variable ACCLIMATE_DATA names the folder."""
    part: Literal["all", "train", "test"] = "all"
    """Official training set, official test set, or both (training rows first)."""
    size: int | None = None
    """Side to which images are resized (bilinear, to a square); None leaves them as they are."""
    channels: int | None = None
    """1 makes grey images, 3 makes RGB ones; None leaves arrays as they are, and reads image files as RGB."""

    superclass: ClassVar[tuple[int, ...] | None] = None
    """The superclass of every class, by number, where a set has them."""
    origin: ClassVar[str] = ""
    """Where people get the set, in words for the error message."""
    needs: ClassVar[str] = ""
    """Which files a complete set has, in words for the error message."""
    parts: ClassVar[tuple[str, ...]] = ("all", "train", "test")
    """Allowed values of `part`."""
    published: ClassVar[dict[str, Any]] = {}
    """What its authors say: train and test (counts), classes, shape, histograms; see `expected`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(self, "part", self.parts)
        if self.size is not None:
            check.whole(self, "size", 1, 4096)
        check.one_of(self, "channels", (None, 1, 3))
        if self.channels is not None:
            check.whole(self, "channels")  # 3.0 is one of the above to Python

    # --- to define -----------------------------------------------------------------------------------------------

    def sources(self) -> Sources:
        """Find the files, cheaply; raise `self.missing(...)` where they are not there."""
        raise TypeError(f"{type(self).__name__} must define sources()")

    def expected(self) -> dict[str, Any]:
        """The published figures for this record's settings, where a class has several variants."""
        return type(self).published

    # --- given ---------------------------------------------------------------------------------------------------

    def load(self) -> Examples:
        p = self.fetch()
        assert isinstance(p.x, np.ndarray)
        users = None if p.users is None else torch.from_numpy(p.users)
        y, domain = torch.from_numpy(p.y), torch.from_numpy(p.domain)
        names = p.user_names if users is not None else ()
        return Examples(_tensor(p.x), y, p.classes, domain, p.domains, users, self.superclass, user_names=names)

    def official_test(self) -> Tensor:
        """True for the rows of `load()` that belong to the official test set."""
        return torch.from_numpy(self.fetch().test)

    def fetch(self) -> Parsed:
        """The arrays from the cache, where they are put on the first call."""
        sources, name = self.sources(), f"{type(self).__module__}:{type(self).__qualname__}"
        try:
            key = {**self.options(), **sources.detail}
            return cache.fetch(name, key, sources.base, sources.files, lambda: self._fit(sources))
        except FileNotFoundError as e:
            if e.filename is None:
                raise
            raise self.missing(f"{e.filename} is not there") from e  # named by an official list

    def _fit(self, sources: Sources) -> Parsed:
        parsed = sources.read()
        if isinstance(parsed.x, ImageStream) or parsed.x.dtype != np.uint8:
            return parsed
        return dataclasses.replace(parsed, x=images.fit(parsed.x, self.size, self.channels))

    def options(self) -> dict[str, Any]:
        """The settings that change what is read: all but those of partition and normalisation, and the root."""
        federation = {f.name for f in dataclasses.fields(Dataset)} | {"root"}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in federation}

    @property
    def wanted(self) -> tuple[Literal["train", "test"], ...]:
        """The official parts that `part` names."""
        return ("train", "test") if self.part == "all" else (self.part,)

    def folder(self) -> Path | None:
        """The data root: `root`, else what ACCLIMATE_DATA names, else None."""
        return data_root(self.root)

    def locate(self, *layouts: FileLayout) -> tuple[int, Path, list[Path]]:
        """The first layout that is complete: its number, its folder, its files in order."""
        root, lacking = self.folder(), ""
        for number, layout in enumerate(layouts):
            for name in layout.folders:
                if root is None and not os.path.isabs(name):
                    continue
                folder = (root or Path()) / name
                if not folder.is_dir():
                    continue
                found = [_spelled(folder, file) for file in layout.files]
                if all(found):
                    return number, folder, [f for f in found if f is not None]
                if any(found) and not lacking:
                    gone = [w.split("|")[0] for w, f in zip(layout.files, found, strict=True) if f is None]
                    lacking = f"{folder} lacks {', '.join(gone[:4])}{', ...' if len(gone) > 4 else ''}"
        raise self.missing(lacking)

    def missing(self, lacking: str = "") -> FileNotFoundError:
        """The error for a set that is not there: which files, in which folder, from where to get them."""
        name, root = type(self).__name__, self.folder()
        if root is None:
            place = f"no data folder is set: name it with data.root= or the environment variable {DATA}"
        else:
            place = f"{lacking or f'{root} does not hold it'}" if root.is_dir() else f"the folder {root} does not exist"
            place += f" (data.root= or the environment variable {DATA} names the folder)"
        return FileNotFoundError(f"{name}: {place}. Needed: {self.needs}. Get it from {self.origin}")


def assemble(parts: Iterable[FilePart], classes: tuple[str, ...], domains: tuple[str, ...]) -> Parsed:
    """One set of the examples of several files, official training rows first."""
    ordered = sorted(parts, key=lambda p: p.test)  # stable: files keep their order within a part
    shapes = {p.x.shape[1:] for p in ordered}
    if len(shapes) > 1:
        raise ValueError(
            f"images of {' and '.join(str(s) for s in shapes)} in one set; set data.size= and data.channels="
        )
    counts = [len(p.y) for p in ordered]
    return Parsed(
        x=np.concatenate([p.x for p in ordered]),
        y=np.concatenate([p.y for p in ordered]),
        classes=classes,
        domain=np.repeat([p.domain for p in ordered], counts),
        domains=domains,
        test=np.repeat([p.test for p in ordered], counts),
    )


def listed(
    rows: Sequence[tuple[Path, int, int, bool]],
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    size: int | None,
    channels: int | None,
    upright: bool = False,
) -> Parsed:
    """One set of image files, given as (file, label, domain, official test), official training rows first."""
    rows = sorted(rows, key=lambda r: r[3])
    paths, y, domain, test = zip(*rows, strict=True)
    x = images.stream(paths, size, channels, upright)
    return Parsed(x, np.array(y), classes, np.array(domain), domains, np.array(test))


def text_lines(path: Path) -> list[str]:
    """The lines of a small text file that are not empty."""
    try:
        return [line.strip() for line in opening.text(path).splitlines() if line.strip()]
    except opening.FileProblem as e:
        raise ValueError(f"{path}: not a text file ({e}); {formats.AGAIN}") from e


def _spelled(folder: Path, names: str) -> Path | None:
    return next((folder / n for n in names.split("|") if (folder / n).is_file()), None)


def _tensor(x: np.ndarray) -> Tensor:
    if x.flags.writeable:
        return torch.from_numpy(x)
    with warnings.catch_warnings():  # mapped read-only because it is larger than memory; nobody writes to examples
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(x)
