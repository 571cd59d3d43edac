"""MNIST and the sets in its format: FashionMNIST and EMNIST."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ..core import check
from . import formats
from .fileset import FileDataset, FileLayout, FilePart, Sources, assemble, counts

_DIGITS = tuple(string.digits)
_MERGED = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")  # letters whose cases look alike are one class


@dataclass(frozen=True)
class MNIST(FileDataset):
    """Handwritten digits, 28 x 28, grey (LeCun, Cortes and Burges)."""

    mean: tuple[float, ...] = (0.1307,)
    std: tuple[float, ...] = (0.3081,)

    folders: ClassVar[tuple[str, ...]] = ("MNIST/raw", "mnist/raw", "MNIST", "mnist", "")
    class_names: ClassVar[tuple[str, ...]] = _DIGITS
    origin: ClassVar[str] = "https://yann.lecun.com/exdb/mnist (mirror: https://ossci-datasets.s3.amazonaws.com/mnist/)"
    needs: ClassVar[str] = "MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz"
    published: ClassVar[dict[str, Any]] = counts(
        (1, 28, 28),
        train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
    )

    def sources(self) -> Sources:
        prefixes = dict(zip(("train", "test"), self._prefixes(), strict=True))
        names = [
            "|".join(f"{prefixes[p]}-{stem}{dot}{kind}-ubyte{gz}" for dot in "-." for gz in ("", ".gz"))
            for p in self.wanted
            for stem, kind in (("images", "idx3"), ("labels", "idx1"))
        ]
        _, base, found = self.locate(FileLayout(self.folders, tuple(names)))
        return Sources(
            base, found, lambda: assemble(self._read(found), self._classes(), (type(self).__name__.lower(),))
        )

    def _read(self, found: list[Path]) -> list[FilePart]:
        out = []
        for part, images, labels in zip(self.wanted, found[::2], found[1::2], strict=True):
            x = self._upright(formats.idx(images, 3))
            y = formats.labels(formats.idx(labels, 1), len(self._classes()), labels, self._first())
            formats.pairs(x, y, images)
            out.append(FilePart(x[:, None], y, part == "test"))
        return out

    def _prefixes(self) -> tuple[str, str]:
        return "train", "t10k"

    def _classes(self) -> tuple[str, ...]:
        return self.class_names

    def _upright(self, x: np.ndarray) -> np.ndarray:
        return x

    def _first(self) -> int:
        return 0


@dataclass(frozen=True)
class FashionMNIST(MNIST):
    """Zalando's pictures of clothes, 28 x 28, grey, in MNIST's format (Xiao et al., 2017)."""

    mean: tuple[float, ...] = (0.2860,)
    std: tuple[float, ...] = (0.3530,)

    # The last one is where Debian's package dataset-fashion-mnist puts the files.
    folders: ClassVar[tuple[str, ...]] = (
        *("FashionMNIST/raw", "fashion-mnist", "fashion_mnist", "fashionmnist", "FashionMNIST", "fashion"),
        *("", "/usr/share/datasets/fashion-mnist"),
    )
    class_names: ClassVar[tuple[str, ...]] = (
        *("t-shirt", "trouser", "pullover", "dress", "coat"),
        *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
    )
    origin: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist (or Debian's dataset-fashion-mnist)"
    needs: ClassVar[str] = "FashionMNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or .gz"
    published: ClassVar[dict[str, Any]] = counts((1, 28, 28), train=(6000,) * 10, test=(1000,) * 10)


@dataclass(frozen=True)
class EMNIST(MNIST):
    """Handwritten letters and digits of NIST, 28 x 28, grey, in MNIST's format (Cohen et al., 2017)."""

    subset: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced"
    """The one of the six published selections that is read."""
    mean: tuple[float, ...] = (0.1751,)
    std: tuple[float, ...] = (0.3332,)

    folders: ClassVar[tuple[str, ...]] = ("EMNIST/raw", "emnist", "gzip", "EMNIST", "emnist/gzip", "")
    origin: ClassVar[str] = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)"
    needs: ClassVar[str] = "EMNIST/raw/emnist-SUBSET-{train,test}-{images-idx3,labels-idx1}-ubyte, plain or .gz"
    published: ClassVar[dict[str, Any]] = {
        "byclass": {"train": 697932, "test": 116323, "classes": 62, "shape": (1, 28, 28)},
        "bymerge": {"train": 697932, "test": 116323, "classes": 47, "shape": (1, 28, 28)},
        "balanced": counts((1, 28, 28), train=(2400,) * 47, test=(400,) * 47),
        "letters": counts((1, 28, 28), train=(4800,) * 26, test=(800,) * 26),
        "digits": counts((1, 28, 28), train=(24000,) * 10, test=(4000,) * 10),
        "mnist": counts((1, 28, 28), train=(6000,) * 10, test=(1000,) * 10),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)

    def _prefixes(self) -> tuple[str, str]:
        return f"emnist-{self.subset}-train", f"emnist-{self.subset}-test"

    def _classes(self) -> tuple[str, ...]:
        every = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
        names = {"byclass": every, "bymerge": _MERGED, "balanced": _MERGED, "letters": tuple(string.ascii_uppercase)}
        return names.get(self.subset, _DIGITS)

    def expected(self) -> dict[str, Any]:
        return dict(self.published[self.subset])

    def _upright(self, x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1)  # EMNIST's files hold images with rows and columns exchanged

    def _first(self) -> int:
        return 1 if self.subset == "letters" else 0
