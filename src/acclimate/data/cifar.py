"""CIFAR-10 and CIFAR-100, and the test sets made for them: CIFAR-10.1 (new pictures) and CIFAR-10-C (corruptions)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from ..core import check
from . import formats
from .cache import Parsed
from .fileset import FileDataset, FileLayout, FilePart, Sources, assemble, counts
from .images import channels_first
from .pickles import unpickle

CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

CIFAR100_SUPERCLASSES: dict[str, tuple[str, ...]] = {
    "aquatic_mammals": ("beaver", "dolphin", "otter", "seal", "whale"),
    "fish": ("aquarium_fish", "flatfish", "ray", "shark", "trout"),
    "flowers": ("orchid", "poppy", "rose", "sunflower", "tulip"),
    "food_containers": ("bottle", "bowl", "can", "cup", "plate"),
    "fruit_and_vegetables": ("apple", "mushroom", "orange", "pear", "sweet_pepper"),
    "household_electrical_devices": ("clock", "keyboard", "lamp", "telephone", "television"),
    "household_furniture": ("bed", "chair", "couch", "table", "wardrobe"),
    "insects": ("bee", "beetle", "butterfly", "caterpillar", "cockroach"),
    "large_carnivores": ("bear", "leopard", "lion", "tiger", "wolf"),
    "large_man-made_outdoor_things": ("bridge", "castle", "house", "road", "skyscraper"),
    "large_natural_outdoor_scenes": ("cloud", "forest", "mountain", "plain", "sea"),
    "large_omnivores_and_herbivores": ("camel", "cattle", "chimpanzee", "elephant", "kangaroo"),
    "medium_mammals": ("fox", "porcupine", "possum", "raccoon", "skunk"),
    "non-insect_invertebrates": ("crab", "lobster", "snail", "spider", "worm"),
    "people": ("baby", "boy", "girl", "man", "woman"),
    "reptiles": ("crocodile", "dinosaur", "lizard", "snake", "turtle"),
    "small_mammals": ("hamster", "mouse", "rabbit", "shrew", "squirrel"),
    "trees": ("maple_tree", "oak_tree", "palm_tree", "pine_tree", "willow_tree"),
    "vehicles_1": ("bicycle", "bus", "motorcycle", "pickup_truck", "train"),
    "vehicles_2": ("lawn_mower", "rocket", "streetcar", "tank", "tractor"),
}
"""The 20 superclasses of CIFAR-100 in label order, and the five classes of each."""

_FINE = tuple(sorted(name for names in CIFAR100_SUPERCLASSES.values() for name in names))
_COARSE = tuple(next(i for i, names in enumerate(CIFAR100_SUPERCLASSES.values()) if f in names) for f in _FINE)

CORRUPTIONS = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 corruptions of CIFAR-10-C in its usual order."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")

_SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class CIFAR10(FileDataset):
    """Ten classes of small pictures, 32 x 32, RGB (Krizhevsky, 2009), from its binary or its python layout."""

    mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465)
    std: tuple[float, ...] = (0.247, 0.243, 0.261)

    class_names: ClassVar[tuple[str, ...]] = CIFAR10_CLASSES
    folders: ClassVar[tuple[str, ...]] = ("", "CIFAR10/", "cifar10/")
    names: ClassVar[tuple[str, str]] = ("cifar-10-batches-bin", "cifar-10-batches-py")
    members: ClassVar[dict[str, tuple[str, ...]]] = {
        "train": tuple(f"data_batch_{i}" for i in range(1, 6)),
        "test": ("test_batch",),
    }
    heads: ClassVar[int] = 1
    """Label bytes in front of an image of the binary layout; the class is the last one."""
    origin: ClassVar[str] = (
        "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-10-binary.tar.gz or cifar-10-python.tar.gz)"
    )
    needs: ClassVar[str] = "cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin or the same in cifar-10-batches-py"
    published: ClassVar[dict[str, Any]] = counts(_SHAPE, train=(5000,) * 10, test=(1000,) * 10)

    def sources(self) -> Sources:
        wanted = [(m, part == "test") for part in self.wanted for m in self.members[part]]
        binary, python = ((*(f + n for f in self.folders), *self.folders) for n in self.names)
        which, base, found = self.locate(
            FileLayout(binary, tuple(f"{m}.bin" for m, _ in wanted)), FileLayout(python, tuple(m for m, _ in wanted))
        )
        one = self._binary if which == 0 else self._python

        def read() -> Parsed:
            parts = [FilePart(*one(path), test) for path, (_, test) in zip(found, wanted, strict=True)]
            return assemble(parts, self.class_names, (type(self).__name__.lower(),))

        return Sources(base, found, read)

    def _binary(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        head, x = formats.fixed_records(path, self.heads, _SHAPE)
        y = formats.labels(head[:, -1], len(self.class_names), path)
        self._check_coarse(head[:, 0], y, path)
        return x, y

    def _python(self, path: Path) -> tuple[np.ndarray, np.ndarray]:
        data = unpickle(path)
        key = "fine_labels" if self.heads == 2 else "labels"
        x = data.get("data")
        if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072 or key not in data:
            raise ValueError(
                f"{path}: needs 'data' (uint8 [N, 3072]) and '{key}', has {', '.join(data)}; {formats.AGAIN}"
            )
        y = formats.labels(data[key], len(self.class_names), path)
        formats.pairs(x, y, path)
        self._check_coarse(np.asarray(data.get("coarse_labels", ())), y, path)
        return x.reshape(-1, *_SHAPE), y

    def _check_coarse(self, coarse: np.ndarray, y: np.ndarray, path: Path) -> None:
        """Nothing to check: CIFAR-10 has no superclasses."""


@dataclass(frozen=True)
class CIFAR100(CIFAR10):
    """A hundred classes of small pictures in 20 superclasses, 32 x 32, RGB (Krizhevsky, 2009)."""

    mean: tuple[float, ...] = (0.5071, 0.4867, 0.4408)
    std: tuple[float, ...] = (0.2675, 0.2565, 0.2761)

    class_names: ClassVar[tuple[str, ...]] = _FINE
    superclass: ClassVar[tuple[int, ...] | None] = _COARSE
    superclasses: ClassVar[tuple[str, ...]] = tuple(CIFAR100_SUPERCLASSES)
    """The names of the superclasses."""
    folders: ClassVar[tuple[str, ...]] = ("", "CIFAR100/", "cifar100/")
    names: ClassVar[tuple[str, str]] = ("cifar-100-binary", "cifar-100-python")
    members: ClassVar[dict[str, tuple[str, ...]]] = {"train": ("train",), "test": ("test",)}
    heads: ClassVar[int] = 2
    origin: ClassVar[str] = (
        "https://www.cs.toronto.edu/~kriz/cifar.html (cifar-100-binary.tar.gz or cifar-100-python.tar.gz)"
    )
    needs: ClassVar[str] = "cifar-100-binary/{train,test}.bin or cifar-100-python/{train,test}"
    published: ClassVar[dict[str, Any]] = counts(_SHAPE, train=(500,) * 100, test=(100,) * 100)

    def _check_coarse(self, coarse: np.ndarray, y: np.ndarray, path: Path) -> None:
        if len(coarse) and not np.array_equal(coarse, np.array(_COARSE)[y]):
            raise ValueError(f"{path}: its superclass labels do not fit its class labels; {formats.AGAIN}")


@dataclass(frozen=True)
class CIFAR10_1(FileDataset):
    """CIFAR-10.1: new test pictures for CIFAR-10's classes, a natural shift (Recht et al., 2018)."""

    version: Literal["v4", "v6"] = "v6"
    """v6 is balanced and the one to use; v4 is the first release."""
    mean: tuple[float, ...] = CIFAR10.mean
    std: tuple[float, ...] = CIFAR10.std

    parts: ClassVar[tuple[str, ...]] = ("all", "test")
    class_names: ClassVar[tuple[str, ...]] = CIFAR10_CLASSES
    origin: ClassVar[str] = "https://github.com/modestyachts/CIFAR-10.1 (its folder datasets)"
    needs: ClassVar[str] = (
        "cifar10.1_VERSION_data.npy and cifar10.1_VERSION_labels.npy in CIFAR-10.1/datasets, or there"
    )
    published: ClassVar[dict[str, Any]] = {
        "v4": {"test": 2021, "classes": 10, "shape": _SHAPE},
        "v6": {"test": 2000, "classes": 10, "shape": _SHAPE, "per_class": {"test": (200,) * 10}},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)

    def expected(self) -> dict[str, Any]:
        return dict(self.published[self.version])

    def sources(self) -> Sources:
        folders = ("CIFAR-10.1/datasets", "CIFAR-10.1", "cifar-10.1", "cifar10.1", "")
        names = tuple(f"cifar10.1_{self.version}_{kind}.npy" for kind in ("data", "labels"))
        _, base, found = self.locate(FileLayout(folders, names))

        def read() -> Parsed:
            x, y = _images(found[0]), formats.labels(formats.npy(found[1]), 10, found[1])
            formats.pairs(x, y, found[0])
            return assemble([FilePart(x, y, True)], self.class_names, ("cifar10.1",))

        return Sources(base, found, read)


@dataclass(frozen=True)
class CIFAR10C(FileDataset):
    """CIFAR-10-C: the test pictures of CIFAR-10 under common corruptions (Hendrycks and Dietterich, 2019)."""

    corruptions: tuple[str, ...] = CORRUPTIONS
    """The corruptions that are read; each is a domain and holds all 10,000 pictures."""
    severity: int = 5
    """How strong the corruptions are, from 1 (mild) to 5."""
    mean: tuple[float, ...] = CIFAR10.mean
    std: tuple[float, ...] = CIFAR10.std

    parts: ClassVar[tuple[str, ...]] = ("all", "test")
    class_names: ClassVar[tuple[str, ...]] = CIFAR10_CLASSES
    origin: ClassVar[str] = "https://zenodo.org/record/2535967 (CIFAR-10-C.tar)"
    needs: ClassVar[str] = "CIFAR-10-C/labels.npy and CIFAR-10-C/CORRUPTION.npy for every corruption"
    published: ClassVar[dict[str, Any]] = {"test": 10000, "classes": 10, "shape": _SHAPE}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "severity", 1, 5)
        for c in self.corruptions:
            if c not in (*CORRUPTIONS, *EXTRA_CORRUPTIONS):
                allowed = ", ".join((*CORRUPTIONS, *EXTRA_CORRUPTIONS))
                raise ValueError(f"CIFAR10C: corruptions has {c!r}; allowed are {allowed}")
        if not self.corruptions or len(set(self.corruptions)) != len(self.corruptions):
            raise check.FieldError(
                f"CIFAR10C: corruptions={self.corruptions!r} must name at least one, each once", "corruptions"
            )

    def expected(self) -> dict[str, Any]:
        count = 10000 * len(self.corruptions)
        per_class = {"test": (1000 * len(self.corruptions),) * 10}
        return {
            **self.published,
            "test": count,
            "domains": dict.fromkeys(self.corruptions, 10000),
            "per_class": per_class,
        }

    def sources(self) -> Sources:
        names = ("labels.npy", *(f"{c}.npy" for c in self.corruptions))
        _, base, found = self.locate(FileLayout(("CIFAR-10-C", "cifar-10-c", "cifar10c", ""), names))

        def read() -> Parsed:
            y = formats.labels(formats.npy(found[0]), 10, found[0])
            if len(y) % 5:
                raise ValueError(f"{found[0]}: {len(y)} labels are not five severities of one set; {formats.AGAIN}")
            rows = slice(len(y) // 5 * (self.severity - 1), len(y) // 5 * self.severity)
            parts = []
            for i, path in enumerate(found[1:]):
                x = _images(path)
                formats.pairs(x, y, path)
                parts.append(FilePart(x[rows], y[rows], True, i))
            return assemble(parts, self.class_names, self.corruptions)

        return Sources(base, found, read)


def _images(path: Path) -> np.ndarray:
    x = formats.npy(path, 4)
    if x.dtype != np.uint8:
        raise ValueError(f"{path}: images of type {x.dtype}, expected uint8; {formats.AGAIN}")
    return channels_first(x, str(path))
