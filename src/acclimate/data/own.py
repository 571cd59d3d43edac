"""A user's own data: arrays in an .npz file, folders of images, or a set from the Hugging Face hub."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from . import formats, images, numbering
from .cache import ImageStream, Parsed
from .dataset import CountedClients, Inputs
from .fileset import FileDataset, Sources, listed
from .group_partitions import ByClient
from .partition import Partition
from .world import Examples

log = logging.getLogger("acclimate")
_PARTS = ("train", "training", "test", "testing", "val", "valid", "validation", "eval")
_UNREAD = (
    ".heic",
    ".heif",
    ".avif",
    ".jfif",
    ".jp2",
    ".dcm",
    ".nii",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
    ".svg",
    ".psd",
    ".tga",
)


@dataclass(frozen=True)
class OwnFiles(FileDataset):
    """The base of files that a user brings."""

    origin: ClassVar[str] = "your own files"

    def load(self) -> Examples:
        found = super().load()
        if len(found.classes) < 2:
            raise ValueError(
                f"{type(self).__name__}: all {len(found.y):,} examples are of one class, {found.classes[0]!r}; a model "
                f"learns to tell at least two apart{self._other_classes()}"
            )
        return found

    def _other_classes(self) -> str:
        """Where there may be more than one class."""
        return ""

    def _place(self, field: str, needs: str = "") -> Path:
        """The path that a field names: in the data root, or as it stands. `needs` says what is there, where that is not
        the data."""
        text, name, needs = getattr(self, field), type(self).__name__, needs or self.needs
        if not text:
            raise ValueError(f"{name}: {field}='' must name your {needs}; set data.{field}=")
        root = self.folder()
        tried = [*([root / text] if root else []), Path(text).expanduser()]
        found = next((p for p in tried if os.path.exists(p)), None)  # a link to itself is not there either
        if found is None:
            raise FileNotFoundError(
                f"{name}: {field}={text!r} is not there (looked for {' and '.join(str(p.absolute()) for p in tried)}); "
                f"it must name your {needs}, absolute or in the folder that data.root= or ACCLIMATE_DATA names"
            )
        return found

    def missing(self, lacking: str = "") -> FileNotFoundError:
        return FileNotFoundError(
            f"{type(self).__name__}: {lacking}; is it a link that leads nowhere? Mend or remove it"
        )


@dataclass(frozen=True)
class Arrays(OwnFiles):
    """Your arrays in an .npz file: x and y, and if you have them domain, user and test (true: official test row).

    x is uint8 images ([N, H, W], [N, H, W, C] or [N, C, H, W]) or float features of any shape. y and domain are numbers
    from 0 or names; arrays `classes` and `domains` may name the numbers, or say how names are numbered. user is any
    numbers or names.
    """

    file: str = ""
    """The .npz file, absolute or in the data root."""
    layout: Literal["auto", "chw", "hwc"] = "auto"
    """Where the channel axis of images is; `auto` takes the axis of length 1 or 3."""

    needs: ClassVar[str] = ".npz file with arrays x and y"

    def sources(self) -> Sources:
        path = self._place("file")
        if not path.is_file():
            raise FileNotFoundError(f"Arrays: file={self.file!r} is a folder; it must name your {self.needs}")
        if path.suffix.lower() in (".csv", ".tsv", ".parquet"):
            raise ValueError(
                f"Arrays: file={self.file!r} is a table; use data=table and name its labels with data.label="
            )
        # Entries that are in the cache from an older reader must not be met again.
        return Sources(path.parent, [path], lambda: self._read(path), {"names": "numbered by classes", "reader": 3})

    def inputs(self) -> Inputs:
        """Floats [N, features] are vectors, [N, sensors, time] windows; all else counts as images."""
        kinds: dict[int, Inputs] = {2: "vectors", 3: "windows"}
        try:
            dtype, ndim = formats.npz_header(self._place("file"), "x")
        except (ValueError, OSError):  # said when it is read
            return "images"
        return kinds.get(ndim, "images") if dtype.kind == "f" else "images"

    def _read(self, path: Path) -> Parsed:
        data = formats.npz(path, ("x", "y"), ("domain", "user", "test", "classes", "domains"))
        n = numbering.rows(data, path)
        y, classes = numbering.numbered(data["y"], data.get("classes"), path, "y")
        one: numbering.Numbered = np.zeros(n, np.int64), (path.stem,)
        domain, domains = (
            numbering.numbered(data["domain"], data.get("domains"), path, "domain") if "domain" in data else one
        )
        users, names = numbering.grouped(data["user"], path, "user") if "user" in data else (None, ())
        test = numbering.marked(data["test"], path) if "test" in data else np.zeros(n, bool)
        rows = np.arange(n) if self.part == "all" else np.flatnonzero(test == (self.part == "test"))
        if "test" not in data and self.part != "all":
            raise ValueError(f"{path}: part={self.part!r} needs an array 'test' (true for test rows); use part='all'")
        if len(rows) == 0:
            raise ValueError(f"{path}: part={self.part!r} has no rows; 'test' says which rows are which")
        return Parsed(
            x=self._x(data["x"], path)[rows],
            y=y[rows],
            classes=classes,
            domain=domain[rows],
            domains=domains,
            test=test[rows],
            users=None if users is None else users[rows],
            user_names=names,
        )

    def _x(self, x: np.ndarray, path: Path) -> np.ndarray:
        if x.dtype == np.uint8:
            return images.channels_first(x, f"{path}: x", self.layout)
        if x.dtype.kind != "f":
            raise ValueError(
                f"{path}: x is of type {x.dtype}, expected uint8 (images) or float (features); save it again as "
                "x.astype(numpy.uint8) or x.astype(numpy.float32)"
            )
        if self.size is not None or self.channels is not None:
            raise ValueError(f"{path}: x is {x.dtype}; data.size and data.channels are for uint8 images only")
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).reshape(len(x), -1).all(1))[0])
            raise ValueError(f"{path}: x[{row}] holds values that are not finite; remove or replace them")
        return images.floats_first(x, self.layout).astype(np.float32)


@dataclass(frozen=True)
class ImageFolder(CountedClients, OwnFiles):
    """Your images in folders. `levels` says what the folders stand for, from the outside in.

    Domains are clients: a folder of sites needs no partition. Folders of classes alone are dealt by Dirichlet(0.1).
    """

    partition: Partition = ByClient()
    clients: int = 0
    """How many clients train; 0: one per domain. Where there are no domains 10, or of fewer images so many that each
    trains on 32, but at least 2."""
    path: str = ""
    """The outermost folder, absolute or in the data root."""
    levels: Literal["domain/class", "class", "part/class", "part/domain/class"] = "domain/class"
    """Meaning of the folder levels; the parts are folders train and test (or val)."""

    needs: ClassVar[str] = "folder of images, DOMAIN/CLASS/IMAGE unless data.levels says otherwise"

    def _other_classes(self) -> str:
        read = {"domain/class": "class", "part/domain/class": "part/class"}.get(self.levels)
        return f"; if the outer folders are the classes, set data.levels={read}" if read else ""

    def _named(self) -> int | None:
        """How many domains are trained on, or clients can be dealt to; None where the folder is not there."""
        root = self.folder()
        tried = [*([root / self.path] if root else []), Path(self.path).expanduser()]
        base = next((p for p in tried if self.path and p.is_dir()), None)
        if base is None:
            return None
        if not isinstance(self.partition, ByClient) or "domain" not in self.levels:
            return self.sharers(len(self.sources().files))
        outer = [p for part, p in self._parts(base) if part in self.wanted] if "part" in self.levels else [base]
        names = {p.name for folder in outer for p in images.subfolders(folder)} - set(self.held_out)
        return len(names) if len(names) > 1 else self.sharers(len(self.sources().files))

    def sources(self) -> Sources:
        base, levels = self._place("path"), self.levels.split("/")
        if not base.is_dir():
            raise FileNotFoundError(f"ImageFolder: path={self.path!r} is a file; it must name your {self.needs}")
        if self.part != "all" and "part" not in levels:
            raise ValueError(f"ImageFolder: part={self.part!r} needs levels='part/class' or 'part/domain/class'")
        found: list[tuple[str, str, str, Path]] = []  # part, domain, class, file
        for part, outer in self._parts(base) if "part" in levels else [("train", base)]:
            inner = images.subfolders(outer) if "domain" in levels else [outer]
            if levels == ["domain", "class"]:
                _check_domains(outer, inner)
            for folder in inner:
                domain = folder.name if "domain" in levels else base.name
                found += [(part, domain, c, f) for c, paths in images.classes(folder).items() for f in paths]
        if not found:
            raise ValueError(f"{base}: has no folders; expected {self.levels}/IMAGE.jpg inside (data.levels)")
        # numbering.Numbered over all parts, so that training and test set agree on them.
        domains, classes = tuple(sorted({d for _, d, _, _ in found})), tuple(sorted({c for _, _, c, _ in found}))
        rows = [
            (f, classes.index(c), domains.index(d), part == "test") for part, d, c, f in found if part in self.wanted
        ]
        if not rows:
            raise ValueError(f"{base}: part={self.part!r} has no images")
        read = partial(listed, rows, classes, domains, self.size, self.channels, upright=True)
        detail = {"classes": classes, "domains": domains, "upright": True}
        return Sources(base, [r[0] for r in rows], partial(_told, base, [r[0].parent for r in rows], read), detail)

    def _parts(self, base: Path) -> list[tuple[str, Path]]:
        test = next((base / n for n in ("test", "val", "validation") if (base / n).is_dir()), None)
        if test is None or not (base / "train").is_dir():
            raise FileNotFoundError(f"{base}: levels={self.levels!r} needs the folders train and test (or val) in it")
        return [("train", base / "train"), ("test", test)]


def _check_domains(base: Path, folders: Sequence[Path]) -> None:
    """Refuse folders of classes, and of the parts of a set, in place of domains: they would be clients."""
    if bare := next((p for p in folders if not images.subfolders(p) and images.has_any(p)), None):
        raise ValueError(
            f"{bare}: holds images in place of folders of classes; if it is a class, set data.levels=class"
        )
    if len(folders) > 1 and all(p.name.casefold() in _PARTS for p in folders):
        names = " and ".join(p.name for p in folders)
        raise ValueError(f"{base}: {names} are parts of a set, not domains; set data.levels=part/class")


def _told(base: Path, folders: Sequence[Path], read: Callable[[], Parsed]) -> Parsed:
    """What is read, after a warning about images beside it in formats that are not."""
    names = [n for folder in set(folders) for n in os.listdir(folder) if not n.startswith(".")]
    other = Counter(end for n in names if (end := Path(n).suffix.lower()) in _UNREAD)
    if other:
        said = ", ".join(f"{count} {end}" for end, count in sorted(other.items()))
        log.warning("%s: %s are images that are not read, and left out; convert them to .png or .jpg", base, said)
    return read()


@dataclass(frozen=True)
class HuggingFace(OwnFiles):
    """A set of images from the Hugging Face hub, or one saved with `save_to_disk` in the data root."""

    dataset: str = ""
    """The set's name on the hub (`ylecun/mnist`), or a folder."""
    config: str = ""
    """The set's configuration, where it has several."""
    image: str = ""
    """The column of images; where it is empty, image or img."""
    label: str = ""
    """The column of labels; where it is empty, label, labels or fine_label."""
    domain: str = ""
    """A column that names the domain of an example."""
    user: str = ""
    """A column that names the person or device an example comes from."""

    needs: ClassVar[str] = "set on the Hugging Face hub"

    def sources(self) -> Sources:
        hub = formats.lazy("datasets", "acclimate[huggingface]", "HuggingFace")
        images.pillow()
        parts = self._open(hub)
        # The files are in the hub's own cache; fingerprints name their content.
        return Sources(Path(), [], lambda: self._read(parts), {"fingerprints": [str(d._fingerprint) for _, d in parts]})

    def _open(self, hub: Any) -> list[tuple[str, Any]]:
        if not self.dataset:
            raise ValueError("HuggingFace: dataset='' must name a set on the hub; set data.dataset=")
        root = self.folder()
        local = root / self.dataset if root else Path(self.dataset)
        found = (
            hub.load_from_disk(str(local)) if local.is_dir() else hub.load_dataset(self.dataset, self.config or None)
        )
        if not isinstance(found, dict):
            found = {"train": found}
        names = {"train": ("train",), "test": ("test", "validation", "val")}
        out: list[tuple[str, Any]] = [
            (p, found[n]) for p in self.wanted for n in [next((n for n in names[p] if n in found), None)] if n
        ]
        if not out or (self.part != "all" and len(out) != 1):
            raise ValueError(f"HuggingFace: {self.dataset} has no {self.part} split, only {', '.join(found)}")
        return out

    def _read(self, parts: list[tuple[str, Any]]) -> Parsed:
        sets = [d for _, d in parts]
        image = self._column(sets[0], "image", ("image", "img"))
        label = self._column(sets[0], "label", ("label", "labels", "fine_label"))
        y, classes = _column(sets, label)
        one: numbering.Numbered = np.zeros(len(y), np.int64), (self.dataset,)
        domain, domains = _column(sets, self._column(sets[0], "domain", ())) if self.domain else one
        users, names = None, tuple[str, ...]()
        if self.user:
            column = self._column(sets[0], "user", ())
            marks = np.concatenate([np.asarray(d[column]) for d in sets])
            users, names = numbering.grouped(marks, Path(self.dataset), column)
        test = np.repeat([p == "test" for p, _ in parts], [len(d) for d in sets])
        first = images.to_array(sets[0][0][image], self.size, self.channels)
        x = ImageStream((len(y), *first.shape), self._chunks(sets, image, first.shape))
        return Parsed(x, y, classes, domain, domains, test, users, names)

    def _chunks(self, sets: Sequence[Any], column: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        for d in sets:
            for start in range(0, len(d), 512):
                pictures = d[start : start + 512][column]
                arrays = [images.to_array(p, self.size, self.channels) for p in pictures]
                if odd := [a.shape for a in arrays if a.shape != shape]:
                    raise ValueError(f"HuggingFace: {self.dataset} has images of {shape} and {odd[0]}; set data.size=")
                yield np.stack(arrays)

    def _column(self, d: Any, field: str, usual: tuple[str, ...]) -> str:
        named, there = getattr(self, field), list(d.column_names)
        found = next((c for c in ((named,) if named else usual) if c in there), None)
        if found is None:
            wanted = named or " or ".join(usual)
            raise ValueError(
                f"HuggingFace: {self.dataset} has no column {wanted}, only {', '.join(there)}; set data.{field}="
            )
        return found


def _column(sets: Sequence[Any], name: str) -> numbering.Numbered:
    values = np.concatenate([np.asarray(d[name]) for d in sets])
    first, *others = (getattr(d.features[name], "names", None) for d in sets)
    if odd := next((n for n in others if n != first), None):
        raise ValueError(
            f"HuggingFace: the column {name} names {first} in one split and {odd} in another; read one part"
        )
    return numbering.numbered(values, None if first is None else np.asarray(first), Path(name), name)
