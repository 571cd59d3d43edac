"""USPS, SVHN and STL-10: digits from envelopes and house walls, and ten classes of pictures."""

from __future__ import annotations

import string
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from . import formats
from .fileset import FileDataset, FileLayout, FilePart, Sources, assemble, counts

_DIGITS = tuple(string.digits)


@dataclass(frozen=True)
class USPS(FileDataset):
    """Handwritten digits from envelopes, 16 x 16, grey (Hull, 1994)."""

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    origin: ClassVar[str] = (
        "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps (usps.bz2 and usps.t.bz2)"
    )
    needs: ClassVar[str] = "usps.h5, or usps.bz2 and usps.t.bz2, in USPS/ or usps/"
    published: ClassVar[dict[str, Any]] = counts(
        (1, 16, 16),
        train=(1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644),
        test=(359, 264, 198, 166, 200, 160, 170, 147, 166, 177),
    )

    def sources(self) -> Sources:
        folders = ("USPS", "usps", "USPS/raw", "")
        text = tuple({"train": "usps.bz2|usps", "test": "usps.t.bz2|usps.t"}[p] for p in self.wanted)
        which, base, found = self.locate(FileLayout(folders, text), FileLayout(folders, ("usps.h5",)))
        read = self._text if which == 0 else self._h5
        return Sources(base, found, lambda: assemble(read(found), _DIGITS, ("usps",)))

    def _text(self, found: list[Path]) -> list[FilePart]:
        out = []
        for part, path in zip(self.wanted, found, strict=True):
            y, x = formats.libsvm(path, 256)
            pixels = formats.to_uint8(x, path, -1.0, 1.0).reshape(-1, 1, 16, 16)
            out.append(FilePart(pixels, formats.labels(y, 10, path, first=1), part == "test"))
        return out

    def _h5(self, found: list[Path]) -> list[FilePart]:
        path, out = found[0], []
        h5py = formats.lazy("h5py", "h5py", "reading usps.h5 (usps.bz2 needs nothing)")
        try:
            with h5py.File(path, "r") as f:
                arrays = [(np.array(f[p]["data"]), np.array(f[p]["target"])) for p in self.wanted]
        except (OSError, KeyError, ValueError) as e:
            raise ValueError(
                f"{path}: lacks train/data, train/target, test/data or test/target ({e}); {formats.AGAIN}"
            ) from e
        for part, (x, y) in zip(self.wanted, arrays, strict=True):
            if x.size != len(x) * 256:
                raise ValueError(f"{path}: {part}/data has shape {x.shape}, expected 256 pixels each; {formats.AGAIN}")
            pixels = formats.to_uint8(x, path).reshape(-1, 1, 16, 16)
            out.append(FilePart(pixels, formats.labels(y, 10, path), part == "test"))
            formats.pairs(pixels, out[-1].y, path)
        return out


@dataclass(frozen=True)
class SVHN(FileDataset):
    """Street view house numbers, cropped digits, 32 x 32, RGB (Netzer et al., 2011)."""

    extra: bool = False
    """Whether the 531,131 easier digits of extra_32x32.mat are added to the training set."""
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    origin: ClassVar[str] = "http://ufldl.stanford.edu/housenumbers"
    needs: ClassVar[str] = "SVHN/train_32x32.mat and test_32x32.mat (and extra_32x32.mat for data.extra=true)"
    published: ClassVar[dict[str, Any]] = counts(
        (3, 32, 32),
        train=(4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
        test=(1744, 5099, 4149, 2882, 2523, 2384, 1977, 2019, 1660, 1595),
    )

    def expected(self) -> dict[str, Any]:
        if not self.extra:
            return self.published
        return {k: v for k, v in self.published.items() if k != "per_class"} | {"train": 73257 + 531131}

    def sources(self) -> Sources:
        extra = ["extra"] if self.extra and "train" in self.wanted else []
        names = [*self.wanted, *extra]
        spelled = tuple(f"{n}_32x32.mat|svhn_{n}_32x32.mat" for n in names)
        _, base, found = self.locate(FileLayout(("SVHN", "svhn", ""), spelled))

        def read() -> list[FilePart]:
            return [FilePart(*svhn_mat(path), name == "test") for name, path in zip(names, found, strict=True)]

        return Sources(base, found, lambda: assemble(read(), _DIGITS, ("svhn",)))


def svhn_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of one of SVHN's files, in which the label of zero is 10."""
    data = formats.mat(path, ("X", "y"))
    if data["X"].ndim != 4 or data["X"].shape[2] != 3 or data["X"].dtype != np.uint8:
        raise ValueError(
            f"{path}: X is {data['X'].dtype}{data['X'].shape}, expected uint8 [32, 32, 3, N]; {formats.AGAIN}"
        )
    x = data["X"].transpose(3, 2, 0, 1)
    y = formats.labels(data["y"], 11, path) % 10
    formats.pairs(x, y, path)
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
    published: ClassVar[dict[str, Any]] = counts((3, 96, 96), train=(500,) * 10, test=(800,) * 10)

    def sources(self) -> Sources:
        names = tuple(f"{p}_{kind}.bin" for p in self.wanted for kind in "Xy")
        _, base, found = self.locate(FileLayout(("stl10_binary", "STL10/stl10_binary", "stl10", "STL10", ""), names))

        def read() -> list[FilePart]:
            out = []
            for part, images, labels in zip(self.wanted, found[::2], found[1::2], strict=True):
                _, x = formats.fixed_records(images, 0, (3, 96, 96))
                y = formats.labels(np.frombuffer(labels.read_bytes(), np.uint8), 10, labels, first=1)
                formats.pairs(x, y, images)
                out.append(FilePart(x.transpose(0, 1, 3, 2), y, part == "test"))  # the file goes column by column
            return out

        return Sources(base, found, lambda: assemble(read(), self.class_names, ("stl10",)))
