"""Digits, letters, clothes and street numbers: MNIST, FashionMNIST, EMNIST, USPS, SVHN and STL-10."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from . import files
from .fileset import FileDataset, Layout, Part, Sources, assemble

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
    published: ClassVar[dict[str, Any]] = {
        "train": 60000,
        "test": 10000,
        "classes": 10,
        "shape": (1, 28, 28),
        "per_class": {
            "train": (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
            "test": (980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        },
    }

    def sources(self) -> Sources:
        prefixes = dict(zip(("train", "test"), self._prefixes(), strict=True))
        names = [
            "|".join(f"{prefixes[p]}-{stem}{dot}{kind}-ubyte{gz}" for dot in "-." for gz in ("", ".gz"))
            for p in self.wanted
            for stem, kind in (("images", "idx3"), ("labels", "idx1"))
        ]
        _, base, found = self.locate(Layout(self.folders, tuple(names)))
        return Sources(
            base, found, lambda: assemble(self._read(found), self._classes(), (type(self).__name__.lower(),))
        )

    def _read(self, found: list[Path]) -> list[Part]:
        out = []
        for part, images, labels in zip(self.wanted, found[::2], found[1::2], strict=True):
            x = self._upright(files.idx(images, 3))
            y = files.labels(files.idx(labels, 1), len(self._classes()), labels, self._first())
            files.pairs(x, y, images)
            out.append(Part(x[:, None], y, part == "test"))
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
    published: ClassVar[dict[str, Any]] = {
        "train": 60000,
        "test": 10000,
        "classes": 10,
        "shape": (1, 28, 28),
        "per_class": {"train": (6000,) * 10, "test": (1000,) * 10},
    }


def _emnist(train: int, test: int, classes: int, per_class: tuple[int, int] | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {"train": train, "test": test, "classes": classes, "shape": (1, 28, 28)}
    if per_class:
        out["per_class"] = {"train": (per_class[0],) * classes, "test": (per_class[1],) * classes}
    return out


@dataclass(frozen=True)
class EMNIST(MNIST):
    """Handwritten letters and digits of NIST, 28 x 28, grey, in MNIST's format (Cohen et al., 2017)."""

    subset: Literal["byclass", "bymerge", "balanced", "letters", "digits", "mnist"] = "balanced"
    """Which of the six published selections."""
    mean: tuple[float, ...] = (0.1751,)
    std: tuple[float, ...] = (0.3332,)

    folders: ClassVar[tuple[str, ...]] = ("EMNIST/raw", "emnist", "gzip", "EMNIST", "emnist/gzip", "")
    origin: ClassVar[str] = "https://www.nist.gov/itl/products-and-services/emnist-dataset (gzip.zip)"
    needs: ClassVar[str] = "EMNIST/raw/emnist-SUBSET-{train,test}-{images-idx3,labels-idx1}-ubyte, plain or .gz"
    published: ClassVar[dict[str, Any]] = {
        "byclass": _emnist(697932, 116323, 62),
        "bymerge": _emnist(697932, 116323, 47),
        "balanced": _emnist(112800, 18800, 47, (2400, 400)),
        "letters": _emnist(124800, 20800, 26, (4800, 800)),
        "digits": _emnist(240000, 40000, 10, (24000, 4000)),
        "mnist": _emnist(60000, 10000, 10, (6000, 1000)),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.subset not in self.published:
            raise ValueError(f"EMNIST: subset={self.subset!r} must be one of {', '.join(self.published)}")

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


@dataclass(frozen=True)
class USPS(FileDataset):
    """Handwritten digits from envelopes, 16 x 16, grey (Hull, 1994)."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    origin: ClassVar[str] = (
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps (usps.bz2 and usps.t.bz2)"
    )
    needs: ClassVar[str] = "usps.h5, or usps.bz2 and usps.t.bz2, in USPS/ or usps/"
    published: ClassVar[dict[str, Any]] = {
        "train": 7291,
        "test": 2007,
        "classes": 10,
        "shape": (1, 16, 16),
        "per_class": {
            "train": (1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
            "test": (359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
        },
    }

    def sources(self) -> Sources:
        folders = ("USPS", "usps", "USPS/raw", "")
        text = tuple({"train": "usps.bz2|usps", "test": "usps.t.bz2|usps.t"}[p] for p in self.wanted)
        which, base, found = self.locate(Layout(folders, text), Layout(folders, ("usps.h5",)))
        read = self._text if which == 0 else self._h5
        return Sources(base, found, lambda: assemble(read(found), _DIGITS, ("usps",)))

    def _text(self, found: list[Path]) -> list[Part]:
        out = []
        for part, path in zip(self.wanted, found, strict=True):
            y, x = files.libsvm(path, 256)
            pixels = files.to_uint8(x, path, -1.0, 1.0).reshape(-1, 1, 16, 16)
            out.append(Part(pixels, files.labels(y, 10, path, first=1), part == "test"))
        return out

    def _h5(self, found: list[Path]) -> list[Part]:
        path, out = found[0], []
        h5py = files.lazy("h5py", "h5py", "reading usps.h5 (usps.bz2 needs nothing)")
        try:
            with h5py.File(path, "r") as f:
                arrays = [(np.array(f[p]["data"]), np.array(f[p]["target"])) for p in self.wanted]
        except (OSError, KeyError, ValueError) as e:
            raise ValueError(
                f"{path}: lacks train/data, train/target, test/data or test/target ({e}); {files.AGAIN}"
            ) from e
        for part, (x, y) in zip(self.wanted, arrays, strict=True):
            if x.size != len(x) * 256:
                raise ValueError(f"{path}: {part}/data has shape {x.shape}, expected 256 pixels each; {files.AGAIN}")
            pixels = files.to_uint8(x, path).reshape(-1, 1, 16, 16)
            out.append(Part(pixels, files.labels(y, 10, path), part == "test"))
            files.pairs(pixels, out[-1].y, path)
        return out


@dataclass(frozen=True)
class SVHN(FileDataset):
    """Street view house numbers, cropped digits, 32 x 32, RGB (Netzer et al., 2011)."""

    extra: bool = False
    """Add the 531,131 easier digits of extra_32x32.mat to the training set."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    origin: ClassVar[str] = "http://ufldl.stanford.edu/housenumbers"
    needs: ClassVar[str] = "SVHN/train_32x32.mat and test_32x32.mat (and extra_32x32.mat for data.extra=true)"
    published: ClassVar[dict[str, Any]] = {
        "train": 73257,
        "test": 26032,
        "classes": 10,
        "shape": (3, 32, 32),
        "per_class": {
            "train": (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
            "test": (1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
        },
    }

    def expected(self) -> dict[str, Any]:
        if not self.extra:
            return self.published
        return {k: v for k, v in self.published.items() if k != "per_class"} | {"train": 73257 + 531131}

    def sources(self) -> Sources:
        names = [n for n in self.wanted for n in ((n, "extra") if n == "train" and self.extra else (n,))]
        spelled = tuple(f"{n}_32x32.mat|svhn_{n}_32x32.mat" for n in names)
        _, base, found = self.locate(Layout(("SVHN", "svhn", ""), spelled))

        def read() -> list[Part]:
            return [Part(*svhn_mat(path), name == "test") for name, path in zip(names, found, strict=True)]

        return Sources(base, found, lambda: assemble(read(), _DIGITS, ("svhn",)))


def svhn_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of one of SVHN's files, in which the label of zero is 10."""
    data = files.mat(path, ("X", "y"))
    if data["X"].ndim != 4 or data["X"].shape[2] != 3 or data["X"].dtype != np.uint8:
        raise ValueError(
            f"{path}: X is {data['X'].dtype}{data['X'].shape}, expected uint8 [32, 32, 3, N]; {files.AGAIN}"
        )
    x = data["X"].transpose(3, 2, 0, 1)
    y = files.labels(data["y"], 11, path) % 10
    files.pairs(x, y, path)
    return x, y


@dataclass(frozen=True)
class STL10(FileDataset):
    """Ten classes of ImageNet pictures, 96 x 96, RGB; the labelled ones only (Coates et al., 2011)."""

    mean: tuple[float, ...] = (0.4467, 0.4398, 0.4066)
    std: tuple[float, ...] = (0.2603, 0.2566, 0.2713)

    class_names: ClassVar[tuple[str, ...]] = (
        *("airplane", "bird", "car", "cat", "deer"),
        *("dog", "horse", "monkey", "ship", "truck"),
    )
    origin: ClassVar[str] = "https://cs.stanford.edu/~acoates/stl10 (stl10_binary.tar.gz)"
    needs: ClassVar[str] = "stl10_binary/{train,test}_{X,y}.bin"
    published: ClassVar[dict[str, Any]] = {
        "train": 5000,
        "test": 8000,
        "classes": 10,
        "shape": (3, 96, 96),
        "per_class": {"train": (500,) * 10, "test": (800,) * 10},
    }

    def sources(self) -> Sources:
        names = tuple(f"{p}_{kind}.bin" for p in self.wanted for kind in "Xy")
        _, base, found = self.locate(Layout(("stl10_binary", "STL10/stl10_binary", "stl10", "STL10", ""), names))

        def read() -> list[Part]:
            out = []
            for part, images, labels in zip(self.wanted, found[::2], found[1::2], strict=True):
                _, x = files.fixed_records(images, 0, (3, 96, 96))
                y = files.labels(np.frombuffer(labels.read_bytes(), np.uint8), 10, labels, first=1)
                files.pairs(x, y, images)
                out.append(Part(x.transpose(0, 1, 3, 2), y, part == "test"))  # the file goes column by column
            return out

        return Sources(base, found, lambda: assemble(read(), self.class_names, ("stl10",)))
