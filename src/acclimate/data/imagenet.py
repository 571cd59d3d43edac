"""ImageNet at 32 x 32 pixels, and its natural shifts: ImageNet-A, ImageNet-R and ImageNet-V2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ..core import check
from . import formats, images
from .cache import ImageStream, Parsed
from .fileset import FileDataset, FileLayout, Sources, listed, text_lines
from .pickles import unpickle

_HALF = (0.5, 0.5, 0.5)
_MAP = "map_clsloc.txt"
_MAP_ORIGIN = f"{_MAP} from https://github.com/PatrykChrabaszcz/Imagenet32_Scripts"

_VARIANTS: dict[str, tuple[str, ...]] = {
    "a": ("imagenet-a", "ImageNet-A"),
    "r": ("imagenet-r", "ImageNet-R"),
    "v2": (
        *("imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency", "imagenet-v2", "ImageNetV2"),
        *("imagenetv2-threshold0.7-format-val", "imagenetv2-top-images-format-val"),
    ),
}


@dataclass(frozen=True)
class ImageNet32(FileDataset):
    """ImageNet downsampled to 32 x 32, RGB (Chrabaszcz et al., 2017), from its npz (or pickle) batches."""

    shared: bool = False
    """Whether only classes that ImageNet-A and ImageNet-R share are kept (their folders must lie in the same root)."""
    classes_file: str = ""
    """A file in the root that lists the classes to keep (WordNet ids, one per line); without one, all are kept."""
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF

    folders: ClassVar[tuple[str, ...]] = (
        *("imagenet32", "ImageNet32", "Imagenet32", "Imagenet32_train", "Imagenet32_val"),
        *("Imagenet32_train_npz", "Imagenet32_val_npz", ""),
    )
    origin: ClassVar[str] = "https://image-net.org/download-images (downsampled image data, 32x32 npz format)"
    needs: ClassVar[str] = f"imagenet32/train_data_batch_1..10.npz and val_data.npz; {_MAP_ORIGIN} names the classes"
    published: ClassVar[dict[str, Any]] = {
        "train": 1281167,
        "test": 50000,
        "classes": 1000,
        "shape": (3, 32, 32),
        "per_class": {"test": (50,) * 1000},
    }

    def expected(self) -> dict[str, Any]:
        return {"shape": (3, 32, 32)} if self.shared or self.classes_file else self.published

    def sources(self) -> Sources:
        members = {"train": [f"train_data_batch_{i}" for i in range(1, 11)], "test": ["val_data"]}
        batches: list[tuple[Path, bool]] = []
        for part in self.wanted:
            names = tuple(f"{m}.npz|{m}" for m in members[part])
            _, base, found = self.locate(FileLayout(self.folders, names))
            batches += [(f, part == "test") for f in found]
        root = self.folder()
        assert root is not None  # locate has found something in it
        numbered = _clsloc(self)
        chosen = _chosen(self, root)
        if chosen is not None and numbered is None:
            raise self.missing(f"to choose classes by name it needs {_MAP_ORIGIN}; {base} lacks it")
        names = numbered or tuple(f"class {i}" for i in range(1, 1001))
        detail = {"chosen": chosen, "names": names}
        return Sources(root, [f for f, _ in batches], lambda: self._read(batches, names, chosen), detail)

    def _read(self, batches: list[tuple[Path, bool]], names: tuple[str, ...], chosen: tuple[str, ...] | None) -> Parsed:
        if chosen is not None and (unknown := [c for c in chosen if c not in names]):
            raise ValueError(f"{type(self).__name__}: class {unknown[0]} is not one of the {len(names)} of ImageNet32")
        new = np.full(len(names), -1)
        classes = names if chosen is None else chosen
        new[[names.index(c) for c in classes]] = np.arange(len(classes))
        labels = [new[formats.labels(_batch(f, "labels"), len(names), f, first=1)] for f, _ in batches]
        keep = [np.flatnonzero(y >= 0) for y in labels]
        y = np.concatenate([y[k] for y, k in zip(labels, keep, strict=True)])
        test = np.repeat([t for _, t in batches], [len(k) for k in keep])

        def chunks() -> Iterator[np.ndarray]:
            for (path, _), rows, found in zip(batches, keep, labels, strict=True):
                data = _batch(path, "data")
                if data.dtype != np.uint8 or data.shape != (len(found), 3072):
                    raise ValueError(
                        f"{path}: data is {data.dtype}{data.shape}, expected uint8 [N, 3072]; {formats.AGAIN}"
                    )
                if len(rows):
                    yield images.fit(data.reshape(-1, 3, 32, 32)[rows], self.size, self.channels)

        side = self.size or 32
        x = ImageStream((len(y), self.channels or 3, side, side), chunks())
        return Parsed(x, y, classes, np.zeros(len(y), np.int64), ("imagenet32",), test)


@dataclass(frozen=True)
class ImageNetVariant(FileDataset):
    """Natural shifts of ImageNet: -A (adversarial), -R (renditions), -V2 (new pictures), in folders by class."""

    variant: Literal["a", "r", "v2"] = "a"
    shared: bool = False
    """Whether only classes that ImageNet-A and ImageNet-R share are kept (their folders must lie in the same root)."""
    classes_file: str = ""
    """A file in the root that lists the classes to keep (WordNet ids, one per line); without one, all are kept."""
    size: int | None = 32
    """Side to which images are resized (bilinear, to a square); they come in many sizes."""
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF

    parts: ClassVar[tuple[str, ...]] = ("all", "test")
    origin: ClassVar[str] = (
        "https://github.com/hendrycks/natural-adv-examples (-A), https://github.com/hendrycks/imagenet-r (-R) and "
        "https://github.com/modestyachts/ImageNetV2 (-V2)"
    )
    needs: ClassVar[str] = "imagenet-a/WNID/*.jpg, imagenet-r/WNID/*.jpg or imagenetv2-matched-frequency-format-val/..."
    published: ClassVar[dict[str, Any]] = {
        "a": {"test": 7500, "classes": 200},
        "r": {"test": 30000, "classes": 200},
        "v2": {"test": 10000, "classes": 1000, "per_class": {"test": (10,) * 1000}},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)

    def expected(self) -> dict[str, Any]:
        return {} if self.shared or self.classes_file else dict(self.published[self.variant])

    def sources(self) -> Sources:
        root = self.folder()
        folder = _variant_folder(root, self.variant)
        if root is None or folder is None:
            raise self.missing(f"{root} lacks {_VARIANTS[self.variant][0]}/")
        by_class = self._named(folder)
        chosen = _chosen(self, root)
        if chosen is not None and (gone := [c for c in chosen if c not in by_class]):
            raise self.missing(f"{folder} lacks the class {gone[0]}")
        classes = tuple(sorted(by_class)) if chosen is None else chosen
        rows = [(f, i, 0, True) for i, c in enumerate(classes) for f in by_class[c]]
        domain = (f"imagenet-{self.variant}",)
        read = partial(listed, rows, classes, domain, self.size, self.channels)
        return Sources(folder, [r[0] for r in rows], read, {"classes": classes})

    def _named(self, folder: Path) -> dict[str, list[Path]]:
        """Images by WordNet id. ImageNet-V2's folders are numbers: places in the sorted list of all ids."""
        found = images.classes(folder)
        if not all(name.isdigit() for name in found):
            return {name: paths for name, paths in found.items() if name.startswith("n")} or found
        ids = _clsloc(self)
        if ids is None or max(int(n) for n in found) >= len(ids):
            raise self.missing(f"the folders of {folder} are numbers; to name them it needs {_MAP_ORIGIN}")
        ids = tuple(sorted(ids))
        return {ids[int(name)]: paths for name, paths in found.items()}


def shared_classes(root: Path) -> tuple[str, ...]:
    """The classes (WordNet ids, sorted) that ImageNet-A and ImageNet-R in this folder have in common."""
    both = []
    for variant in ("a", "r"):
        folder = _variant_folder(root, variant)
        if folder is None:
            raise FileNotFoundError(
                f"shared=true needs the folders of ImageNet-A and ImageNet-R, but {root} lacks "
                f"{_VARIANTS[variant][0]}/; get it from {ImageNetVariant.origin}"
            )
        both.append({p.name for p in images.subfolders(folder)})
    common = tuple(sorted(n for n in both[0] & both[1] if n.startswith("n")))
    if not common:
        raise ValueError(
            f"ImageNet-A and ImageNet-R in {root} have no class folder in common; both need folders by WNID"
        )
    return common


def _chosen(record: ImageNet32 | ImageNetVariant, root: Path) -> tuple[str, ...] | None:
    """The classes that `shared` and `classes_file` leave, sorted; None: all."""
    chosen = shared_classes(root) if record.shared else None
    if record.classes_file:
        file = root / record.classes_file
        if not file.is_file():
            raise FileNotFoundError(f"{type(record).__name__}: classes_file={record.classes_file!r} is not in {root}")
        names = {line.split()[0] for line in text_lines(file)}
        chosen = tuple(sorted(names if chosen is None else names & set(chosen)))
    if chosen is not None and not chosen:
        raise ValueError(f"{type(record).__name__}: classes_file={record.classes_file!r} leaves no class")
    return chosen


def _variant_folder(root: Path | None, variant: str) -> Path | None:
    return None if root is None else next((root / n for n in _VARIANTS[variant] if (root / n).is_dir()), None)


def _clsloc(record: FileDataset) -> tuple[str, ...] | None:
    """WordNet ids by label from map_clsloc.txt, if it is there: ImageNet32 has an order of its own."""
    root = record.folder()
    if root is None:
        return None
    file = next((root / f / _MAP for f in ImageNet32.folders if (root / f / _MAP).is_file()), None)
    if file is None:
        return None
    ids: dict[int, str] = {}
    for k, line in enumerate(text_lines(file)):
        wnid, number, *_ = [*line.split(), "", ""]
        if not number.isdigit() or int(number) in ids:
            raise ValueError(f"{file}: line {k + 1} is not 'WNID NUMBER NAME'; {formats.AGAIN}")
        ids[int(number)] = wnid
    if sorted(ids) != list(range(1, len(ids) + 1)):
        raise ValueError(f"{file}: its numbers are not 1 to {len(ids)}; {formats.AGAIN}")
    return tuple(ids[i] for i in sorted(ids))


def _batch(path: Path, name: str) -> np.ndarray:
    if path.suffix == ".npz":
        return formats.npz(path, (name,))[name]
    data = unpickle(path)
    if name not in data:
        raise ValueError(f"{path}: has no '{name}'; {formats.AGAIN}")
    return np.asarray(data[name])
