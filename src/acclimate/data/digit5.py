"""Digit-5: handwritten, printed on photographs, photographed, synthetic and scanned digits, each kind a domain."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from . import formats, images
from .cache import Parsed
from .domain_folders import Domains
from .fileset import FilePart, Sources, assemble
from .vision import svhn_mat

_MATS = {
    "mnist": ("mnist_data.mat",),
    "mnistm": ("mnistm_with_label.mat",),
    "svhn": ("svhn_train_32x32.mat", "svhn_test_32x32.mat"),
    "usps": ("usps_28x28.mat",),
    "syn": ("syn_number.mat",),
}
_ALL_MATS = ", ".join(name for names in _MATS.values() for name in names)


@dataclass(frozen=True)
class Digit5(Domains):
    """Digits of five kinds: MNIST, MNIST-M (on photographs), SVHN, synthetic ones and USPS (Peng et al., 2019).

    Read from DOMAIN/{train,test}.npz (x [N, H, W, C] or [N, H, W], y), or from the .mat files of the original release.
    """

    domains: tuple[str, ...] = ("mnist", "mnistm", "svhn", "syn", "usps")
    """The domains that are read, in the order that numbers them."""
    size: int | None = 32
    """Side to which images are resized; the domains come in 28 and 32."""
    channels: int | None = 3
    """3 makes all images RGB, 1 grey; MNIST and USPS are grey, the others RGB."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    every: ClassVar[tuple[str, ...]] = domains
    places: ClassVar[tuple[str, ...]] = ("digit5", "Digit5", "Digit-Five", "DigitFive", "digits", "")
    origin: ClassVar[str] = "http://ai.bu.edu/M3SDA (Digit-Five, of Peng et al.)"
    needs: ClassVar[str] = f"digit5/DOMAIN/{{train,test}}.npz, or digit5/ with {_ALL_MATS}"
    published: ClassVar[dict[str, Any]] = {"classes": 10, "shape": (3, 32, 32)}

    def sources(self) -> Sources:
        root, nearest = self.folder(), (list[str](), Path())
        for place in self.places if root is not None else ():
            base = Path(root or "", place)
            found = {d: paths for d in self.every if (paths := self._paths(base, d))}
            if all(d in found for d in self.domains):
                paths = [f for d in self.domains for f in found[d]]
                return Sources(base, paths, partial(self._read, found))
            if len(found) > len(nearest[0]):
                nearest = ([d for d in self.domains if d in found], base)
        raise self._lacks(*nearest) if nearest[0] else self.missing()

    def _paths(self, base: Path, domain: str) -> list[Path]:
        split = [base / domain / f"{part}.npz" for part in self.wanted]
        mats = [base / name for name in _MATS[domain]]
        return next((paths for paths in (split, mats) if all(p.is_file() for p in paths)), [])

    def _read(self, found: dict[str, list[Path]]) -> Parsed:
        parts = []
        for i, domain in enumerate(self.domains):
            npz = found[domain][0].suffix == ".npz"
            for part in self.wanted:
                path = found[domain][self.wanted.index(part)] if npz else found[domain][0]
                if not npz and domain == "svhn":
                    path = found[domain][part == "test"]
                x, y = _npz(path) if npz else _mat(path, domain, part)
                formats.pairs(x, y, path)
                parts.append(FilePart(images.fit(x, self.size, self.channels), y, part == "test", i))
        return assemble(parts, tuple("0123456789"), self.domains)


def _npz(path: Path) -> tuple[np.ndarray, np.ndarray]:
    data = formats.npz(path, ("x", "y"))
    if data["x"].dtype != np.uint8:
        raise ValueError(f"{path}: x is of type {data['x'].dtype}, expected uint8; save pixels 0 to 255")
    return images.channels_first(data["x"], f"{path}: x"), formats.labels(data["y"], 10, path)


def _mat(path: Path, domain: str, part: Literal["train", "test"]) -> tuple[np.ndarray, np.ndarray]:
    """One of the five .mat files, each with names of its own."""
    if domain == "svhn":
        return svhn_mat(path)
    if domain == "usps":
        cells = formats.mat(path, ("dataset",))["dataset"]
        if cells.shape != (2, 2):
            raise ValueError(f"{path}: dataset has shape {cells.shape}, expected 2 x 2 cells; {formats.AGAIN}")
        pixels, label = (np.asarray(c) for c in cells[int(part == "test")])
        x = formats.to_uint8(pixels.astype(np.float64), path).reshape(len(pixels), 1, 28, 28)
        return x, formats.labels(label, 11, path) % 10
    if domain == "syn":
        data = formats.mat(path, (f"{part}_data", f"{part}_label"))
        return _bytes(data[f"{part}_data"], path), formats.labels(data[f"{part}_label"], 10, path)
    name = {"mnist": f"{part}_28", "mnistm": part}[domain]
    data = formats.mat(path, (name, f"label_{part}"))
    onehot = data[f"label_{part}"]
    if onehot.ndim != 2 or onehot.shape[1] != 10 or not (onehot.sum(1) == 1).all():
        raise ValueError(f"{path}: label_{part} has shape {onehot.shape}, expected one-hot rows of 10; {formats.AGAIN}")
    return _bytes(data[name], path), onehot.argmax(1).astype(np.int64)


def _bytes(x: np.ndarray, path: Path) -> np.ndarray:
    x = images.channels_first(x, str(path))
    return x if x.dtype == np.uint8 else formats.to_uint8(x.astype(np.float64), path, 0.0, 255.0)
