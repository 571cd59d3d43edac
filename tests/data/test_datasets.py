"""Every data set, on small files in its documented layout: what is read, what is refused, and what the messages say."""

from __future__ import annotations

import bz2
import dataclasses
import errno
import gzip
import json
import pickle
import re
import struct
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from acclimate.data import IID, Digits
from acclimate.data.check_sets import check_published
from acclimate.data.cifar import CIFAR10, CIFAR10_1, CIFAR10C, CIFAR100, CIFAR100_SUPERCLASSES
from acclimate.data.digit5 import Digit5
from acclimate.data.domains import PACS, DomainNet, OfficeCaltech10, OfficeHome
from acclimate.data.fileset import FileDataset
from acclimate.data.imagenet import ImageNet32, ImageNetVariant, shared_classes
from acclimate.data.leaf import FEMNIST
from acclimate.data.mnist import EMNIST, MNIST, FashionMNIST
from acclimate.data.own import Arrays, HuggingFace, ImageFolder
from acclimate.data.tinyimagenet import TinyImageNet
from acclimate.data.vision import STL10, SVHN, USPS
from acclimate.experiment import record as config
from acclimate.experiment import settings

EVERY: tuple[FileDataset, ...] = (
    *(MNIST(), FashionMNIST(), EMNIST(), USPS(), SVHN(), STL10(), CIFAR10(), CIFAR100(), CIFAR10_1(), CIFAR10C()),
    *(TinyImageNet(), ImageNet32(), ImageNetVariant(), Digit5(), PACS(), OfficeCaltech10(), OfficeHome(), DomainNet()),
    FEMNIST(),
)


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root that ACCLIMATE_DATA names, and a cache of its own."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "data"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def picture(path: Path, side: int = 8, seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(side, side, 3, seed=seed)).save(path)


def loaded(dataset: FileDataset) -> tuple[np.ndarray, list[int], np.ndarray]:
    """Images, labels and official-test marks; twice, the second time from the cache."""
    first, again = dataset.load(), dataset.load()
    assert first.x.dtype == torch.uint8
    assert first.y.dtype == torch.int64
    assert torch.equal(first.x, again.x)
    assert torch.equal(first.y, again.y)
    return again.x.numpy(), again.y.tolist(), dataset.official_test().numpy()


# --- all of them -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dataset", EVERY, ids=lambda d: type(d).__name__)
def test_a_missing_set_says_which_files_where_and_from_where(
    dataset: FileDataset, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FashionMNIST, "folders", ("FashionMNIST/raw",))  # a Debian machine may have it
    for part in dataset.parts:
        with pytest.raises(FileNotFoundError) as e:
            dataclasses.replace(dataset, part=part).load()
        message = str(e.value)
        for expected in (type(dataset).__name__, str(root), "Needed: ", "http", "data.root=", "ACCLIMATE_DATA"):
            assert expected in message
    monkeypatch.delenv("ACCLIMATE_DATA")
    with pytest.raises(FileNotFoundError, match=r"no data folder is set: name it with data.root= or .*ACCLIMATE_DATA"):
        dataset.load()
    with pytest.raises(FileNotFoundError, match="the folder /nowhere/at/all does not exist"):
        dataclasses.replace(dataset, root="/nowhere/at/all").load()
    (finding,) = check_published(dataset)
    assert finding.startswith(f"missing: {type(dataset).__name__}")


@pytest.mark.parametrize("dataset", [*EVERY, Arrays(), ImageFolder(), HuggingFace()], ids=lambda d: type(d).__name__)
def test_records_are_settings(dataset: FileDataset) -> None:
    experiment = config.Experiment(data=dataset)
    assert config.loads(config.dumps(experiment)) == experiment
    (changed,) = settings.expand(
        [("data.size", 16), ("data.channels", 1), ("data.root", "/x"), ("data.part", "all")], experiment
    )
    assert isinstance(changed.data, FileDataset)
    assert (changed.data.size, changed.data.channels, changed.data.root) == (16, 1, "/x")
    for bad in ({"size": 0}, {"channels": 2}, {"part": "validation"}):
        with pytest.raises(ValueError, match=f"{type(dataset).__name__}: {next(iter(bad))}="):
            dataclasses.replace(dataset, **bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("dataset", EVERY, ids=lambda d: type(d).__name__)
def test_published_figures_agree_with_each_other(dataset: FileDataset) -> None:
    variants: list[FileDataset] = [dataset]
    if isinstance(dataset, EMNIST):
        variants = [EMNIST(subset=s) for s in EMNIST.published]  # type: ignore[arg-type]
    for variant in variants:
        want = variant.expected()
        for part, counts in want.get("per_class", {}).items():
            assert len(counts) == want["classes"]
            assert sum(counts) == want[part]
        if "all" in want and "domains" in want:
            assert sum(want["domains"].values()) == want["all"]
    assert dataset.origin
    assert dataset.needs


PUBLISHED = {
    MNIST(): (60000, 10000, 10, (1, 28, 28)),
    FashionMNIST(): (60000, 10000, 10, (1, 28, 28)),
    EMNIST(subset="balanced"): (112800, 18800, 47, (1, 28, 28)),
    EMNIST(subset="letters"): (124800, 20800, 26, (1, 28, 28)),
    EMNIST(subset="digits"): (240000, 40000, 10, (1, 28, 28)),
    EMNIST(subset="mnist"): (60000, 10000, 10, (1, 28, 28)),
    USPS(): (7291, 2007, 10, (1, 16, 16)),
    SVHN(): (73257, 26032, 10, (3, 32, 32)),
    STL10(): (5000, 8000, 10, (3, 96, 96)),
    CIFAR10(): (50000, 10000, 10, (3, 32, 32)),
    CIFAR100(): (50000, 10000, 100, (3, 32, 32)),
    TinyImageNet(): (100000, 10000, 200, (3, 64, 64)),
}
DOMAIN_SIZES = {
    PACS(): {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
    OfficeCaltech10(): {"amazon": 958, "caltech10": 1123, "dslr": 157, "webcam": 295},
}


def test_histograms_sum_to_the_published_sizes() -> None:
    for dataset, totals in PUBLISHED.items():
        want = dataset.expected()
        assert tuple(want[k] for k in ("train", "test", "classes", "shape")) == totals, dataset
    assert {type(d): d.expected()["domains"] for d in DOMAIN_SIZES} == {type(d): n for d, n in DOMAIN_SIZES.items()}
    assert (PACS().expected()["classes"], OfficeCaltech10().expected()["classes"]) == (7, 10)
    assert all(d.every == type(d).domains for d in EVERY if isinstance(d, PACS | OfficeCaltech10 | Digit5))


# --- MNIST and its kin -----------------------------------------------------------------------------------------------


def mnist(
    folder: Path, gz: bool = True, prefixes: tuple[str, str] = ("train", "t10k"), first: int = 0
) -> dict[str, Any]:
    made = {
        p: (noise(n, 28, 28, seed=n), np.arange(n, dtype=np.uint8) % 10 + first)
        for p, n in zip(prefixes, (30, 20), strict=True)
    }
    for prefix, (x, y) in made.items():
        for stem, array in ((f"{prefix}-images-idx3-ubyte", x), (f"{prefix}-labels-idx1-ubyte", y)):
            write(folder / (stem + ".gz" if gz else stem), gzip.compress(idx(array)) if gz else idx(array))
    return made


@pytest.mark.parametrize("gz", [True, False])
@pytest.mark.parametrize("place", ["MNIST/raw", "mnist", ""])
def test_mnist(root: Path, gz: bool, place: str) -> None:
    made = mnist(root / place, gz)
    x, y, test = loaded(MNIST())
    assert np.array_equal(x[:30, 0], made["train"][0])
    assert np.array_equal(x[30:, 0], made["t10k"][0])
    assert y == [*(i % 10 for i in range(30)), *(i % 10 for i in range(20))]
    assert test.tolist() == [False] * 30 + [True] * 20
    assert len(MNIST(part="train").load().y) == 30
    assert MNIST(part="test").official_test().all()
    assert loaded(MNIST(size=32, channels=3))[0].shape == (50, 3, 32, 32)


def test_only_the_wanted_part_must_be_there(root: Path) -> None:
    mnist(root)
    (root / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(MNIST(part="train").load().y) == 30
    with pytest.raises(FileNotFoundError, match=rf"{re.escape(str(root))} lacks t10k-labels-idx1-ubyte "):
        MNIST().load()


def test_labels_and_images_must_belong_together(root: Path) -> None:
    mnist(root, gz=False)
    write(root / "t10k-labels-idx1-ubyte", idx(np.zeros(19, np.uint8)))
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte: 20 images, but 19 labels"):
        MNIST().load()
    write(root / "t10k-labels-idx1-ubyte", idx(np.full(20, 10, np.uint8)))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte: label 10 of example 0 must be 0 to 9"):
        MNIST().load()


def test_fashion_mnist_is_found_where_debian_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FashionMNIST.folders[-1] == "/usr/share/datasets/fashion-mnist"
    mnist(tmp_path / "usr")
    monkeypatch.setattr(FashionMNIST, "folders", (*FashionMNIST.folders[:-1], str(tmp_path / "usr")))
    monkeypatch.delenv("ACCLIMATE_DATA")
    examples = FashionMNIST().load()
    assert examples.classes[9] == "ankle boot"
    assert examples.domains == ("fashionmnist",)


def test_emnist_is_upright_and_letters_start_at_one(root: Path) -> None:
    made = mnist(root / "EMNIST/raw", prefixes=("emnist-letters-train", "emnist-letters-test"), first=1)
    dataset = EMNIST(subset="letters")
    x, y, _ = loaded(dataset)
    assert np.array_equal(x[0, 0], made["emnist-letters-train"][0][0].T)
    assert y[:3] == [0, 1, 2]
    assert dataset.load().classes[:3] == ("A", "B", "C")
    assert len(EMNIST(subset="bymerge")._classes()) == 47
    assert len(EMNIST(subset="byclass")._classes()) == 62


# --- USPS, SVHN, STL-10 ----------------------------------------------------------------------------------------------


def test_usps_from_libsvm_text(root: Path) -> None:
    x = np.linspace(-1, 1, 256)
    line = " ".join(f"{i + 1}:{v:.6f}" for i, v in enumerate(x))
    write(root / "USPS/usps.bz2", bz2.compress(f"1 {line}\n10 {line}\n".encode()))
    write(root / "USPS/usps.t.bz2", bz2.compress(f"4 {line}\n".encode()))
    pixels, y, test = loaded(USPS())
    assert pixels.shape == (3, 1, 16, 16)
    assert y == [0, 9, 3]
    assert test.tolist() == [False, False, True]
    assert pixels[0].reshape(-1).tolist() == list(range(256))


def test_usps_h5_needs_h5py(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root / "usps.h5", b"")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match="pip install h5py"):
        USPS().load()


def test_usps_from_h5(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for h5py, which the test environment does not have."""
    x = np.linspace(0, 1, 256, dtype=np.float32)[None].repeat(2, 0)
    content = {"train": {"data": x, "target": np.array([0, 9])}, "test": {"data": x[:1], "target": np.array([5])}}

    class File(dict):  # type: ignore[type-arg]
        def __init__(self, path: Path, mode: str) -> None:
            assert mode == "r"
            super().__init__(content)

        def __enter__(self) -> File:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setitem(sys.modules, "h5py", types.SimpleNamespace(File=File))  # type: ignore[arg-type]
    write(root / "usps/usps.h5", b"1")
    pixels, y, test = loaded(USPS())
    assert y == [0, 9, 5]
    assert test.tolist() == [False, False, True]
    assert pixels[2].reshape(-1).tolist() == list(range(256))
    content["train"]["target"] = np.array([0, 10])
    write(root / "usps/usps.h5", b"2")
    with pytest.raises(ValueError, match=r"usps.h5: label 10 of example 1 must be 0 to 9"):
        USPS().load()
    del content["test"]["target"]
    with pytest.raises(ValueError, match=r"usps.h5: lacks train/data"):
        USPS().load()


def svhn(path: Path, n: int, seed: int = 0) -> np.ndarray:
    from scipy.io import savemat

    x = noise(32, 32, 3, n, seed=seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {"X": x, "y": (np.arange(n, dtype=np.uint8) % 10 + 1)[:, None]}, do_compression=True)
    return x


def test_svhn(root: Path) -> None:
    train = svhn(root / "SVHN/train_32x32.mat", 12)
    svhn(root / "SVHN/test_32x32.mat", 10, 1)
    x, y, test = loaded(SVHN())
    assert np.array_equal(x[5], train[..., 5].transpose(2, 0, 1))
    assert y[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert int(test.sum()) == 10
    with pytest.raises(FileNotFoundError, match=r"lacks extra_32x32.mat"):
        SVHN(extra=True).load()
    svhn(root / "SVHN/extra_32x32.mat", 4, 2)
    assert SVHN(extra=True).official_test().tolist() == [False] * 16 + [True] * 10
    assert len(SVHN(extra=True, part="test").load().y) == 10


def test_stl10_goes_column_by_column(root: Path) -> None:
    x = noise(12, 3, 96, 96)
    for part, rows in (("train", slice(0, 7)), ("test", slice(7, 12))):
        write(root / f"stl10_binary/{part}_X.bin", x[rows].transpose(0, 1, 3, 2).tobytes())
        write(root / f"stl10_binary/{part}_y.bin", bytes(range(1, 11))[rows] if part == "train" else bytes([10] * 5))
    found, y, test = loaded(STL10())
    assert np.array_equal(found, x)
    assert y == [0, 1, 2, 3, 4, 5, 6, 9, 9, 9, 9, 9]
    assert int(test.sum()) == 5
    assert loaded(STL10(size=32))[0].shape == (12, 3, 32, 32)
    write(root / "stl10_binary/test_y.bin", bytes([0] * 5))
    with pytest.raises(ValueError, match=r"test_y.bin: label 0 of example 0 must be 1 to 10"):
        STL10().load()


# --- CIFAR -----------------------------------------------------------------------------------------------------------


def cifar10(folder: Path, layout: str, n: int = 6) -> np.ndarray:
    x = noise(6 * n, 3072)
    for i, name in enumerate([f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]):
        part, y = x[i * n : (i + 1) * n], (np.arange(n) + i) % 10
        if layout == "bin":
            write(folder / f"{name}.bin", np.concatenate([y[:, None].astype(np.uint8), part], 1).tobytes())
        else:
            body = {b"batch_label": b"x", b"labels": y.tolist(), b"data": part, b"filenames": [b"a.png"] * n}
            write(folder / name, pickle.dumps(body, 2))
    return x.reshape(-1, 3, 32, 32)


@pytest.mark.parametrize(
    ("layout", "place"),
    [
        ("bin", "cifar-10-batches-bin"),
        ("py", "cifar-10-batches-py"),
        ("bin", ""),
        ("py", "cifar10/cifar-10-batches-py"),
    ],
)
def test_cifar10(root: Path, layout: str, place: str) -> None:
    made = cifar10(root / place, layout)
    x, y, test = loaded(CIFAR10())
    assert np.array_equal(x, made)
    assert y == [(j + i) % 10 for i in range(6) for j in range(6)]
    assert test.tolist() == [False] * 30 + [True] * 6
    assert np.array_equal(loaded(CIFAR10(part="test"))[0], made[30:])
    examples = CIFAR10().load()
    assert examples.domains == ("cifar10",)
    assert examples.classes[9] == "truck"


def test_both_layouts_of_cifar10_give_the_same_world(root: Path, tmp_path: Path) -> None:
    cifar10(root / "cifar-10-batches-bin", "bin")
    cifar10(tmp_path / "other" / "cifar-10-batches-py", "py")
    worlds = [CIFAR10(root=str(r), partition=IID(), clients=3).world(1) for r in (root, tmp_path / "other")]
    assert worlds[0].card() == worlds[1].card()
    assert worlds[0].mean == (0.4914, 0.4822, 0.4465)


def test_cifar10_with_damage(root: Path) -> None:
    folder = root / "cifar-10-batches-bin"
    cifar10(folder, "bin")
    whole = (folder / "data_batch_3.bin").read_bytes()
    write(folder / "data_batch_3.bin", whole[:-100])
    with pytest.raises(
        ValueError, match=r"data_batch_3.bin: 18338 bytes are not a whole number of records of 3073 bytes"
    ):
        CIFAR10().load()
    write(folder / "data_batch_3.bin", b"\x0b" + whole[1:])
    with pytest.raises(ValueError, match=r"data_batch_3.bin: label 11 of example 0 must be 0 to 9"):
        CIFAR10().load()
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(FileNotFoundError, match=r"cifar-10-batches-bin lacks data_batch_3.bin .*kriz/cifar"):
        CIFAR10().load()
    assert len(CIFAR10(part="test").load().y) == 6
    assert check_published(CIFAR10())[0].startswith("missing: ")


def test_a_malicious_cifar_batch_is_refused(root: Path, tmp_path: Path) -> None:
    cifar10(root / "cifar-10-batches-py", "py")
    target = tmp_path / "owned"
    write(root / "cifar-10-batches-py/data_batch_2", f"cbuiltins\nexec\n(Vopen({str(target)!r}, 'w')\ntR.")
    with pytest.raises(ValueError, match=r"data_batch_2: refused.*builtins.exec"):
        CIFAR10().load()
    assert not target.exists()


def cifar100(folder: Path, layout: str) -> None:
    for name, n in (("train", 200), ("test", 100)):
        x, y = noise(n, 3072, seed=n), np.arange(n) % 100
        coarse = np.array(CIFAR100.superclass)[y]
        if layout == "bin":
            rows = np.concatenate([coarse[:, None].astype(np.uint8), y[:, None].astype(np.uint8), x], 1)
            write(folder / f"{name}.bin", rows.tobytes())
        else:
            body = {b"fine_labels": y.tolist(), b"coarse_labels": coarse.tolist(), b"data": x}
            write(folder / name, pickle.dumps(body, 2))


@pytest.mark.parametrize(("layout", "place"), [("bin", "cifar-100-binary"), ("py", "cifar-100-python")])
def test_cifar100(root: Path, layout: str, place: str) -> None:
    cifar100(root / place, layout)
    x, y, test = loaded(CIFAR100())
    assert np.array_equal(x[:200].reshape(200, -1), noise(200, 3072, seed=200))
    assert y == [i % 100 for i in range(300)]
    assert int(test.sum()) == 100


def test_cifar100_superclasses() -> None:
    # The published mapping of fine to coarse labels.
    coarse = (
        "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 "
        "12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 "
        "9 19 2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13"
    )
    assert CIFAR100.superclass == tuple(int(c) for c in coarse.split())
    assert len(CIFAR100.superclasses) == 20
    assert all(CIFAR100.superclass.count(i) == 5 for i in range(20))
    fine = CIFAR100.class_names
    assert fine[0] == "apple"
    assert fine[99] == "worm"
    assert CIFAR100.superclasses[CIFAR100.superclass[fine.index("tractor")]] == "vehicles_2"
    assert sum(len(v) for v in CIFAR100_SUPERCLASSES.values()) == 100


def test_cifar100_with_superclasses_that_do_not_fit(root: Path) -> None:
    cifar100(root / "cifar-100-binary", "bin")
    data = bytearray((root / "cifar-100-binary/test.bin").read_bytes())
    data[0] = (data[0] + 1) % 20
    write(root / "cifar-100-binary/test.bin", bytes(data))
    with pytest.raises(ValueError, match=r"test.bin: its superclass labels do not fit"):
        CIFAR100().load()


@pytest.mark.parametrize("version", ["v4", "v6"])
def test_cifar10_1(root: Path, version: Any) -> None:
    folder = root / "CIFAR-10.1/datasets"
    folder.mkdir(parents=True)
    x = noise(20, 32, 32, 3)
    np.save(folder / f"cifar10.1_{version}_data.npy", x)
    np.save(folder / f"cifar10.1_{version}_labels.npy", np.arange(20, dtype=np.int32) % 10)
    found, y, test = loaded(CIFAR10_1(version=version))
    assert np.array_equal(found, x.transpose(0, 3, 1, 2))
    assert y == [i % 10 for i in range(20)]
    assert test.all()
    with pytest.raises(ValueError, match=r"CIFAR10_1: part='train' must be one of 'all', 'test'"):
        CIFAR10_1(part="train")
    findings = check_published(CIFAR10_1(version=version))
    assert any(f.startswith("differs: examples 20, published 2,0") for f in findings)


def test_cifar10c(root: Path) -> None:
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    x = {c: noise(50, 32, 32, 3, seed=i) for i, c in enumerate(("fog", "snow"))}
    np.save(folder / "labels.npy", np.tile(np.arange(10, dtype=np.uint8), 5))
    for c, a in x.items():
        np.save(folder / f"{c}.npy", a)
    dataset = CIFAR10C(corruptions=("snow", "fog"), severity=3)
    examples = dataset.load()
    assert examples.domains == ("snow", "fog")
    assert examples.domain.tolist() == [0] * 10 + [1] * 10
    assert np.array_equal(examples.x[:10].numpy(), x["snow"][20:30].transpose(0, 3, 1, 2))
    assert examples.y.tolist() == [*range(10), *range(10)]
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10-C lacks gaussian_noise.npy, shot_noise.npy, "):
        CIFAR10C().load()
    for bad, message in (
        ({"severity": 0}, "between 1 and 5"),
        ({"severity": 6}, "5"),
        ({"corruptions": ("rain",)}, "rain"),
    ):
        with pytest.raises(ValueError, match=f"CIFAR10C: .*{message}"):
            CIFAR10C(**bad)  # type: ignore[arg-type]
    np.save(folder / "fog.npy", x["fog"][:40])
    with pytest.raises(ValueError, match=r"fog.npy: 40 images, but 50 labels"):
        dataset.load()


# --- ImageNet --------------------------------------------------------------------------------------------------------


def tiny(folder: Path) -> None:
    wnids = ["n02", "n01", "n03"]
    write(folder / "wnids.txt", "\n".join(wnids) + "\n")
    lines = []
    for i, w in enumerate(wnids):
        for k in range(2):
            picture(folder / f"train/{w}/images/{w}_{k}.JPEG", 64, i)
        write(folder / f"train/{w}/{w}_boxes.txt", "ignored")
        picture(folder / f"val/images/val_{i}.JPEG", 64, i + 10)
        lines.append(f"val_{i}.JPEG\t{w}\t0\t0\t62\t62")
    write(folder / "val/val_annotations.txt", "\n".join(lines) + "\n")


def test_tiny_imagenet(root: Path) -> None:
    folder = root / "tiny-imagenet-200"
    tiny(folder)
    x, y, test = loaded(TinyImageNet())
    assert x.shape == (9, 3, 64, 64)
    assert y == [0, 0, 1, 1, 2, 2, 1, 0, 2]
    assert test.tolist() == [False] * 6 + [True] * 3
    assert TinyImageNet().load().classes == ("n01", "n02", "n03")
    assert loaded(TinyImageNet(part="test", size=32))[0].shape == (3, 3, 32, 32)
    (folder / "val/images/val_1.JPEG").unlink()
    with pytest.raises(FileNotFoundError, match=r"val_1.JPEG is not there"):
        TinyImageNet().load()
    write(folder / "val/val_annotations.txt", "val_0.JPEG\tn99\t0\t0\t62\t62\n")
    with pytest.raises(ValueError, match=r"val_annotations.txt: line 1 .*'n99', which wnids.txt lacks"):
        TinyImageNet().load()


IDS = ("n07", "n03", "n05", "n01")  # map_clsloc.txt is not sorted


def imagenet32(folder: Path, pickled: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate([f"train_data_batch_{k}" for k in range(1, 11)] + ["val_data"]):
        body = {"data": noise(8, 3072, seed=i), "labels": np.arange(8) % 4 + 1, "mean": np.zeros(3072)}
        if pickled:
            write(folder / name, pickle.dumps({**body, "labels": body["labels"].tolist()}, 2))
        else:
            np.savez(folder / f"{name}.npz", **body)


@pytest.mark.parametrize("pickled", [False, True])
def test_imagenet32(root: Path, pickled: bool) -> None:
    imagenet32(root / "imagenet32", pickled)
    x, y, test = loaded(ImageNet32())
    assert x.shape == (88, 3, 32, 32)
    assert np.array_equal(x[80:].reshape(8, -1), noise(8, 3072, seed=10))
    assert y == [0, 1, 2, 3] * 22
    assert int(test.sum()) == 8
    assert ImageNet32().load().classes[:2] == ("class 1", "class 2")
    write(root / "map_clsloc.txt", "".join(f"{w} {i + 1} name\n" for i, w in enumerate(IDS)))
    assert ImageNet32().load().classes == IDS
    write(root / "chosen.txt", "n05\nn01\n")
    examples = ImageNet32(classes_file="chosen.txt", part="test").load()
    assert examples.classes == ("n01", "n05")
    assert examples.y.tolist() == [1, 0, 1, 0]
    assert np.array_equal(examples.x[0].numpy().reshape(-1), noise(8, 3072, seed=10)[2])


def test_imagenet_variants_share_classes_with_imagenet32(root: Path) -> None:
    for variant, names in (("imagenet-a", ("n01", "n05", "n09")), ("imagenet-r", ("n05", "n01", "n03"))):
        for i, n in enumerate(names):
            for k in range(2):
                picture(root / variant / n / f"{k}.jpg", 20 + i, seed=k)
    write(root / "imagenet-r/README.txt", "a file between the folders")
    assert shared_classes(root) == ("n01", "n05")
    alone = ImageNetVariant(variant="a").load()
    assert alone.classes == ("n01", "n05", "n09")
    assert alone.x.shape == (6, 3, 32, 32)
    shared = ImageNetVariant(variant="r", shared=True).load()
    assert shared.classes == ("n01", "n05")
    assert shared.y.tolist() == [0, 0, 1, 1]
    assert shared.domains == ("imagenet-r",)
    imagenet32(root / "imagenet32")
    with pytest.raises(FileNotFoundError, match=r"ImageNet32: .*map_clsloc.txt from https://github.com/Patryk"):
        ImageNet32(shared=True).load()
    write(root / "imagenet32/map_clsloc.txt", "".join(f"{w} {i + 1} name\n" for i, w in enumerate(IDS)))
    same = ImageNet32(shared=True, part="test").load()
    assert same.classes == shared.classes
    assert same.y.tolist() == [1, 0, 1, 0]
    write(root / "one.txt", "n05\n")
    assert ImageNetVariant(variant="a", shared=True, classes_file="one.txt").load().classes == ("n05",)
    with pytest.raises(FileNotFoundError, match=r"classes_file='none.txt' is not in"):
        ImageNetVariant(classes_file="none.txt").load()
    # V2's folders are numbers: places in the sorted list of ids.
    for k in range(4):
        picture(root / f"imagenetv2-matched-frequency-format-val/{k}/x.jpeg", 16, seed=k)
    v2 = ImageNetVariant(variant="v2", shared=True).load()
    assert v2.classes == ("n01", "n05")
    pixel = ImageNetVariant(variant="v2").load().x
    assert torch.equal(v2.x, pixel[[0, 2]])  # n01 and n05 are numbers 0 and 2 of n01 n03 n05 n07
    (root / "imagenet32/map_clsloc.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"are numbers; to name them it needs map_clsloc.txt"):
        ImageNetVariant(variant="v2").load()


def test_shared_classes_need_both_folders(root: Path) -> None:
    picture(root / "imagenet-a/n01/0.jpg")
    with pytest.raises(FileNotFoundError, match=r"lacks imagenet-r/; get it from http"):
        ImageNetVariant(shared=True).load()
    picture(root / "imagenet-r/n02/0.jpg")
    with pytest.raises(ValueError, match="no class folder in common"):
        ImageNetVariant(shared=True).load()


# --- domains ---------------------------------------------------------------------------------------------------------


def digit5_npz(root: Path, domains: tuple[str, ...]) -> dict[str, np.ndarray]:
    made = {}
    for i, d in enumerate(domains):
        for part, n in (("train", 10), ("test", 5)):
            made[d + part] = noise(n, 32, 32, 3, seed=i * 10 + n)
            (root / "digit5" / d).mkdir(parents=True, exist_ok=True)
            np.savez_compressed(root / "digit5" / d / f"{part}.npz", x=made[d + part], y=np.arange(n))
    return made


def test_digit5_from_npz(root: Path) -> None:
    made = digit5_npz(root, ("mnist", "usps", "svhn"))
    dataset = Digit5(domains=("usps", "mnist"))
    examples = dataset.load()
    assert examples.domains == ("usps", "mnist")
    assert examples.domain.tolist() == [0] * 10 + [1] * 10 + [0] * 5 + [1] * 5
    assert np.array_equal(examples.x[10:20].numpy(), made["mnisttrain"].transpose(0, 3, 1, 2))
    assert dataset.official_test().tolist() == [False] * 20 + [True] * 10
    assert Digit5(domains=("usps",), part="test").load().y.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileNotFoundError, match=r"digit5 lacks mnistm, syn; data.domains=mnist,svhn,usps uses those"):
        Digit5().load()
    with pytest.raises(ValueError, match=r"Digit5: domains=.*'font'; allowed are mnist, mnistm, svhn, syn, usps"):
        Digit5(domains=("mnist", "font"))
    with pytest.raises(ValueError, match=r"at least one of .*, each once"):
        Digit5(domains=("mnist", "mnist"))


def test_digit5_from_mat(root: Path) -> None:
    from scipy.io import savemat

    folder, onehot = root / "Digit-Five", np.eye(10)
    folder.mkdir()
    x28, x32 = noise(10, 28, 28, 1), noise(10, 32, 32, 3)
    rgb28 = noise(10, 28, 28, 3, seed=1)
    split = {f"label_{p}": onehot for p in ("train", "test")}
    savemat(folder / "mnist_data.mat", {f"{p}_{s}": x28 for p in ("train", "test") for s in (28, 32)} | split)
    savemat(folder / "mnistm_with_label.mat", {"train": rgb28, "test": rgb28} | split)
    svhn(folder / "svhn_train_32x32.mat", 10)
    svhn(folder / "svhn_test_32x32.mat", 10)
    cells = np.empty((2, 2), object)
    for i in range(2):
        cells[i, 0], cells[i, 1] = np.linspace(0, 1, 7840).reshape(10, 1, 28, 28), np.arange(10)[:, None]
    savemat(folder / "usps_28x28.mat", {"dataset": cells})
    label = np.arange(10)[:, None]
    savemat(
        folder / "syn_number.mat",
        {f"{p}_{k}": v for p in ("train", "test") for k, v in (("data", x32), ("label", label))},
    )
    examples = Digit5().load()
    assert examples.x.shape == (100, 3, 32, 32)
    assert examples.domains == Digit5.every
    rows = {d: examples.x[:50][examples.domain[:50] == i].numpy() for i, d in enumerate(examples.domains)}
    assert np.array_equal(rows["syn"], x32.transpose(0, 3, 1, 2))
    assert examples.y[:50].reshape(5, 10).tolist()[0] == list(range(10))
    assert examples.y[20:30].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0]  # SVHN calls zero ten
    assert rows["usps"].max() > 250
    plain = Digit5(domains=("mnistm",), size=28).load()
    assert np.array_equal(plain.x[:10].numpy(), rgb28.transpose(0, 3, 1, 2))
    assert Digit5(channels=1).load().x.shape == (100, 1, 32, 32)
    savemat(folder / "mnist_data.mat", {"train_28": x28, "label_train": np.arange(10)[:, None]})
    with pytest.raises(ValueError, match=r"mnist_data.mat: label_train has shape .*one-hot"):
        Digit5(domains=("mnist",), part="train").load()


def folders(base: Path, domains: tuple[str, ...], classes: tuple[str, ...], each: int = 2, side: int = 8) -> None:
    for i, d in enumerate(domains):
        for j, c in enumerate(classes):
            for k in range(each):
                picture(base / d / c / f"pic_{k}.png", side, seed=i * 100 + j * 10 + k)


def test_pacs_from_folders(root: Path) -> None:
    folders(root / "PACS", PACS.every, PACS.class_names)
    examples = PACS().load()
    assert examples.x.shape == (56, 3, 8, 8)
    assert examples.classes == PACS.class_names
    assert examples.domain.tolist() == [i for i in range(4) for _ in range(14)]
    assert examples.y[:4].tolist() == [0, 0, 1, 1]
    chosen = PACS(domains=("sketch", "photo")).load()
    assert chosen.domains == ("sketch", "photo")
    assert torch.equal(chosen.x[:14], examples.x[42:])
    with pytest.raises(ValueError, match=r"PACS: part='test' needs official lists.*use part='all'"):
        PACS(part="test").load()
    for bad in (("clipart",), ()):
        with pytest.raises(ValueError, match="PACS: domains="):
            PACS(domains=bad)
    findings = check_published(PACS())
    assert "differs: domain photo 14, published 1,670" in findings
    assert any(f.startswith("differs: class histogram (all) in 7 classes (dog: 8 for 1729") for f in findings)


def test_wrong_and_empty_class_folders_are_named(root: Path) -> None:
    folders(root / "PACS", PACS.every, (*PACS.class_names[:-1], "cat"), each=1)
    with pytest.raises(ValueError, match="class folders are not those of PACS: cat, person are missing or unknown"):
        PACS().load()
    (root / "PACS/photo/horse/pic_0.png").unlink()
    with pytest.raises(ValueError, match=r"photo/horse: class folder without images"):
        PACS().load()


def test_pacs_with_official_lists_does_not_leak(root: Path) -> None:
    folders(root / "PACS", PACS.every, PACS.class_names)
    for d in PACS.every:
        lines = [f"{d}/{c}/pic_{{}}.png {i + 1}" for i, c in enumerate(PACS.class_names)]
        for part, ks in (("train", (1,)), ("crossval", (0,)), ("test", (0, 1))):
            write(root / f"PACS/{d}_{part}_kfold.txt", "\n".join(line.format(k) for k in ks for line in lines))
    whole, train, test = PACS(), PACS(part="train"), PACS(part="test")
    assert len(whole.load().y) == 56
    assert whole.official_test().tolist() == [False] * 28 + [True] * 28
    seen = {bytes(x) for x in train.load().x.numpy().reshape(28, -1)}
    assert not seen & {bytes(x) for x in test.load().x.numpy().reshape(28, -1)}
    write(root / "PACS/photo_train_kfold.txt", "photo/dog/pic_9.png 1\n")
    with pytest.raises(FileNotFoundError, match=r"photo/dog/pic_9.png is not there"):
        train.load()
    for bad, message in (
        ("photo/dog/pic_0.png 2", "gives dog the label of elephant"),
        ("photo/dog 1", "line 1 is not"),
    ):
        write(root / "PACS/photo_train_kfold.txt", bad)
        with pytest.raises(ValueError, match=rf"photo_train_kfold.txt: .*{message}"):
            train.load()


def test_domainnet_takes_its_classes_from_the_lists(root: Path) -> None:
    domains, classes = ("real", "sketch"), ("The_Eiffel_Tower", "ant", "zebra")
    folders(root / "DomainNet", domains, classes)
    order = ("ant", "The_Eiffel_Tower", "zebra")
    assert DomainNet(domains=domains).load().classes == order  # without lists: the order of the lists, by letters
    for d in domains:
        for part, k in (("train", 0), ("test", 1)):
            write(
                root / f"DomainNet/{d}_{part}.txt", "".join(f"{d}/{c}/pic_{k}.png {i}\n" for i, c in enumerate(order))
            )
    dataset = DomainNet(domains=domains)
    assert dataset.load().classes == order
    assert dataset.load().y.tolist() == [0, 1, 2] * 4
    assert int(dataset.official_test().sum()) == 6
    assert DomainNet(domains=("sketch",), part="test").load().y.tolist() == [0, 1, 2]
    write(root / "DomainNet/real_train.txt", "real/zebra/pic_0.png 7\n")
    with pytest.raises(ValueError, match="official lists: no file has the label 3"):
        dataset.load()
    write(root / "DomainNet/real_train.txt", "real/zebra/pic_0.png 3\n")
    with pytest.raises(ValueError, match="official lists: zebra has two labels"):
        dataset.load()


def test_office_sets_find_their_folders_under_other_names(root: Path) -> None:
    folders(root / "OfficeHome", ("Art", "Clipart", "Product", "Real World"), ("Alarm_Clock", "bed"), each=1)
    examples = OfficeHome().load()
    assert examples.domains == ("art", "clipart", "product", "real_world")
    assert examples.classes == ("Alarm_Clock", "bed")
    folders(root / "office_caltech_10", ("amazon", "caltech", "dslr", "webcam"), ("back_pack", "mug"), each=1)
    assert OfficeCaltech10().load().domains == ("amazon", "caltech10", "dslr", "webcam")
    with pytest.raises(FileNotFoundError, match=r"DomainNet: .*quickdraw"):
        DomainNet().load()


def test_mixed_sizes_need_a_size(root: Path) -> None:
    folders(root / "OfficeHome", ("Art", "Clipart", "Product"), ("bed",), each=1)
    folders(root / "OfficeHome", ("Real World",), ("bed",), each=1, side=9)
    with pytest.raises(
        ValueError, match=r"Art/bed/pic_0.png is 8 x 8 pixels and .*Real World/bed/pic_0.png 9 x 9: .*data.size="
    ):
        OfficeHome().load()
    assert OfficeHome(size=6).load().x.shape == (4, 3, 6, 6)


# --- natural users ---------------------------------------------------------------------------------------------------


def leaf(path: Path, users: dict[str, int], seed: int = 0) -> None:
    generator = np.random.default_rng(seed)
    data = {
        u: {"x": generator.random((n, 784)).round(4).tolist(), "y": generator.integers(0, 62, n).tolist()}
        for u, n in users.items()
    }
    write(path, json.dumps({"users": list(users), "num_samples": list(users.values()), "user_data": data}))


def test_femnist_knows_its_writers(root: Path) -> None:
    folder = root / "femnist/data"
    leaf(folder / "all_data/all_data_0.json", {"f0": 3, "f1": 2})
    leaf(folder / "all_data/all_data_1.json", {"f2": 4, "f3": 0})
    examples = FEMNIST().load()
    assert examples.users is not None
    assert examples.users.tolist() == [0] * 3 + [1] * 2 + [2] * 4
    assert examples.x.shape == (9, 1, 28, 28)
    assert len(examples.classes) == 62
    with pytest.raises(FileNotFoundError, match="FEMNIST"):
        FEMNIST(part="train").load()
    leaf(folder / "train/a.json", {"f0": 2, "f1": 1})
    leaf(folder / "test/a.json", {"f1": 1, "f0": 1})
    train = FEMNIST(part="train").load()
    assert train.users is not None
    assert len(train.y) == 3
    for f in (folder / "all_data").iterdir():
        f.unlink()
    both = FEMNIST().load()
    assert both.users is not None
    assert both.users.tolist() == [0, 0, 1, 1, 0]
    assert FEMNIST().official_test().tolist() == [False] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{", "not LEAF's json"),
        ("[]", "not LEAF's json"),
        ('{"users": ["a"], "user_data": {}}', "user 'a' has no 'x' and 'y'"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [1]}}}', r"user 'a' has x of shape \(1, 1\)"),
        ('{"users": ["a"], "user_data": {"a": {"x": [[0.5]], "y": [62]}}}', "label 62 of example 0 must be 0 to 61"),
        ('{"users": [], "user_data": {}}', "no user has any example"),
    ],
)
def test_femnist_with_damage(root: Path, body: str, message: str) -> None:
    write(root / "femnist/all_data/x.json", body)
    with pytest.raises(ValueError, match=rf"x.json: .*{message}"):
        FEMNIST().load()


# --- your own --------------------------------------------------------------------------------------------------------


def test_arrays(root: Path) -> None:
    x = noise(6, 10, 12, 3)
    rows = {"y": list("babacb"), "domain": [0, 0, 1, 1, 1, 0], "user": [5, 5, 0, 0, 1, 1], "test": [0, 0, 0, 0, 1, 1]}
    np.savez(root / "mine.npz", x=x, **rows, domains=["day", "night"])
    dataset = Arrays(file="mine.npz")
    examples = dataset.load()
    assert examples.classes == ("a", "b", "c")
    assert examples.y.tolist() == [1, 0, 1, 0, 2, 1]
    assert examples.domains == ("day", "night")
    assert examples.users is not None
    assert examples.users.tolist() == [2, 2, 0, 0, 1, 1]
    assert np.array_equal(examples.x.numpy(), x.transpose(0, 3, 1, 2))
    assert Arrays(file="mine.npz", part="test").load().y.tolist() == [2, 1]
    assert dataset.official_test().tolist() == [False] * 4 + [True] * 2
    assert Arrays(file="mine.npz", size=8, channels=1).load().x.shape == (6, 1, 8, 8)
    assert Arrays(file=str(root / "mine.npz"), root="/nowhere").load().y.tolist() == examples.y.tolist()


@pytest.mark.parametrize("kind", [str, bytes])
def test_arrays_number_names_as_classes_says(root: Path, kind: type) -> None:
    names = np.array(["oak", "ash", "oak", "fir"]).astype(kind)
    classes = np.array(["oak", "elm", "fir", "ash"]).astype(kind)
    np.savez(root / "n.npz", x=np.zeros((4, 5)), y=names, classes=classes, domain=names[::-1], domains=classes)
    examples = Arrays(file="n.npz").load()
    assert examples.classes == examples.domains == ("oak", "elm", "fir", "ash")
    assert examples.y.tolist() == [0, 3, 0, 2]
    assert examples.domain.tolist() == [2, 0, 3, 0]


def test_arrays_of_features(root: Path) -> None:
    np.savez(root / "f.npz", x=np.random.default_rng(0).normal(size=(20, 7)), y=np.arange(20) % 4)
    examples = Arrays(file="f.npz").load()
    assert examples.x.dtype == torch.float32
    assert examples.classes == ("0", "1", "2", "3")
    world = Arrays(file="f.npz", partition=IID(), clients=2).world()
    assert world.shape == (7,)
    assert check_published(Arrays(file="f.npz"))[-1].startswith("note: nothing is published")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4, 4), np.uint8)}, "has no array 'y'"),
        ({"x": np.zeros((3, 4, 4), np.uint8), "y": [0, 1]}, r"x has shape \(3, 4, 4\), but y has 2 rows"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": [0, 1], "domain": [0]}, r"domain has shape \(1,\), but y has 2"),
        (
            {"x": np.zeros((2, 4, 4), np.uint8), "y": [0, 2], "classes": ["a", "b"]},
            "label 2 of example 1 must be 0 to 1",
        ),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": [0, -1]}, r"label -1 .*array y"),
        ({"x": np.zeros((2, 4, 4), np.int32), "y": [0, 1]}, "x is of type int32, expected uint8 .images. or float"),
        ({"x": np.array([[0.0], [np.nan]]), "y": [0, 1]}, r"x\[1\] holds values that are not finite"),
        ({"x": np.zeros((2, 4, 4, 7), np.uint8), "y": [0, 1]}, r"x: shape \(2, 4, 4, 7\) must be"),
        ({"x": np.zeros((2, 5)), "y": [0, np.nan]}, r"y\[1\] is nan, expected a whole number or a name"),
        ({"x": np.zeros((2, 5)), "y": [0, np.inf]}, r"y\[1\] is inf, expected a whole number or a name"),
        ({"x": np.zeros((2, 5)), "y": 0}, r"y has shape \(\), expected one number or name per row"),
        ({"x": np.zeros((2, 5)), "y": [[0], [1]]}, r"y has shape \(2, 1\), expected one number or name per row"),
        ({"x": np.zeros((2, 5)), "y": [0j, 1j]}, "y is of type complex128, expected whole numbers or names"),
        ({"x": np.zeros((2, 5)), "y": [0, 1], "domain": [0, np.nan]}, r"domain\[1\] is nan"),
        ({"x": np.zeros((2, 5)), "y": [0, 1], "user": [np.nan, 1]}, r"user\[0\] is nan"),
        ({"x": np.zeros((2, 5)), "y": [0, 1], "classes": "oak"}, r"the names for y have shape \(\), expected a list"),
        (
            {"x": np.zeros((2, 5)), "y": ["oak", "elm"], "classes": ["oak", "ash"]},
            r"y\[1\] is 'elm', allowed are the names for y: oak, ash",
        ),
        (
            {"x": np.zeros((2, 5)), "y": ["oak", "ash"], "classes": ["oak", "ash", "oak"]},
            "the names for y must differ from each other, but are oak, ash, oak",
        ),
    ],
)
def test_arrays_that_cannot_be(root: Path, arrays: dict[str, Any], message: str) -> None:
    np.savez(root / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=rf"bad.npz: .*{message}"):
        Arrays(file="bad.npz").load()


def test_own_files_that_are_not_there(root: Path) -> None:
    for dataset, field in ((Arrays(), "file"), (ImageFolder(), "path"), (HuggingFace(), "dataset")):
        with pytest.raises((ValueError, ImportError), match=f"{field}=''|pip install 'acclimate.huggingface.'"):
            dataset.load()
    with pytest.raises(
        FileNotFoundError, match=rf"file='a.npz' is not there \(looked for {re.escape(str(root))}/a.npz and"
    ):
        Arrays(file="a.npz").load()
    with pytest.raises(FileNotFoundError, match="path='pictures' is not there"):
        ImageFolder(path="pictures").load()


def test_image_folder_by_domain_and_class(root: Path) -> None:
    folders(root / "mine", ("indoor", "outdoor"), ("cat", "dog"))
    picture(root / "mine/outdoor/fox/a.JPG")
    examples = ImageFolder(path="mine").load()
    assert examples.domains == ("indoor", "outdoor")
    assert examples.classes == ("cat", "dog", "fox")
    assert examples.y.tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 2]
    with pytest.raises(ValueError, match=r"ImageFolder: part='train' needs levels='part/class'"):
        ImageFolder(path="mine", part="train").load()
    flat = ImageFolder(path=str(root / "mine/indoor"), levels="class").load()
    assert flat.domains == ("indoor",)
    assert len(flat.y) == 4


@pytest.mark.parametrize("test", ["test", "val"])
def test_image_folder_with_parts(root: Path, test: str) -> None:
    folders(root / "mine", ("train", test), ("cat", "dog"))
    dataset = ImageFolder(path="mine", levels="part/class", size=4)
    assert dataset.load().domains == ("mine",)
    assert dataset.official_test().tolist() == [False] * 4 + [True] * 4
    assert len(ImageFolder(path="mine", levels="part/class", part="test").load().y) == 4
    deep = root / "deep"
    folders(deep / "train", ("a", "b"), ("cat", "dog"))
    folders(deep / test, ("b",), ("cat",))
    examples = ImageFolder(path="deep", levels="part/domain/class", part="test").load()
    assert examples.domains == ("a", "b")
    assert examples.domain.tolist() == [1, 1]
    assert examples.classes == ("cat", "dog")


class FakeSplit:
    """As much of a `datasets.Dataset` as is used."""

    def __init__(self, rows: list[dict[str, Any]], fingerprint: str) -> None:
        self.rows, self._fingerprint = rows, fingerprint
        self.column_names = list(rows[0])
        self.features = {k: types.SimpleNamespace(names=["cat", "dog"] if k == "label" else None) for k in rows[0]}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            return [r[key] for r in self.rows]
        if isinstance(key, slice):
            return {k: [r[k] for r in self.rows[key]] for k in self.column_names}
        return self.rows[key]


def test_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(n: int, seed: int) -> list[dict[str, Any]]:
        made = [Image.fromarray(noise(8, 8, 3, seed=seed + i)) for i in range(n)]
        return [{"img": image, "label": i % 2, "writer": f"w{i % 3}"} for i, image in enumerate(made)]

    asked = []

    def load_dataset(name: str, config: str | None) -> dict[str, FakeSplit]:
        asked.append((name, config))
        return {"train": FakeSplit(rows(5, 0), "f1"), "test": FakeSplit(rows(3, 50), "f2")}

    hub = types.SimpleNamespace(load_dataset=load_dataset)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # type: ignore[arg-type]
    dataset = HuggingFace(dataset="who/what", user="writer")
    examples = dataset.load()
    assert examples.classes == ("cat", "dog")
    assert examples.x.shape == (8, 3, 8, 8)
    assert np.array_equal(examples.x[6].numpy(), noise(8, 8, 3, seed=51).transpose(2, 0, 1))
    assert examples.users is not None
    assert examples.users.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]
    assert dataset.official_test().tolist() == [False] * 5 + [True] * 3
    assert HuggingFace(dataset="who/what", part="test", channels=1).load().x.shape == (3, 1, 8, 8)
    assert asked[0] == ("who/what", None)
    with pytest.raises(ValueError, match=r"has no column scene, only img, label, writer; set data.domain="):
        HuggingFace(dataset="who/what", domain="scene").load()


def test_hugging_face_splits_that_number_classes_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"img": Image.fromarray(noise(8, 8, 3, seed=i)), "label": i % 2} for i in range(4)]
    parts = {"train": FakeSplit(rows, "f1"), "test": FakeSplit(rows, "f2")}
    parts["test"].features["label"].names = ["dog", "cat"]
    hub = types.SimpleNamespace(load_dataset=lambda name, config: parts)
    monkeypatch.setitem(sys.modules, "datasets", hub)  # type: ignore[arg-type]
    with pytest.raises(
        ValueError, match=r"column label names \['cat', 'dog'\] in one split and \['dog', 'cat'\] in an"
    ):
        HuggingFace(dataset="who/what").load()
    assert HuggingFace(dataset="who/what", part="test").load().classes == ("dog", "cat")


def test_hugging_face_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match=r"pip install 'acclimate\[huggingface\]'"):
        HuggingFace(dataset="mnist").load()


# --- memory, normalisation, checks -----------------------------------------------------------------------------------


def test_sets_larger_than_memory_are_mapped_read_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist(root)
    expected, load = MNIST().load().x, np.load

    def refuse(file: Any, mmap_mode: str | None = None, **kwargs: Any) -> Any:
        if mmap_mode == "c":
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return load(file, mmap_mode=mmap_mode, **kwargs)

    monkeypatch.setattr(np, "load", refuse)
    assert torch.equal(MNIST().load().x, expected)  # and no warning, which would be an error here


def test_normalisation_follows_the_channels(root: Path) -> None:
    cifar10(root, "bin")
    mnist(root)
    grey = CIFAR10(channels=1, partition=IID(), clients=2).world()
    assert grey.mean == (round(0.4914 * 0.299 + 0.4822 * 0.587 + 0.4465 * 0.114, 4),)
    assert len(grey.std) == 1
    assert grey.shape == (1, 32, 32)
    colour = MNIST(channels=3, partition=IID(), clients=2).world()
    assert colour.mean == (0.1307,) * 3
    assert MNIST(partition=IID(), clients=2).world().std == (0.3081,)


def test_check_compares_with_what_is_published(root: Path) -> None:
    mnist(root)
    findings = check_published(MNIST(size=32))
    assert findings[0].startswith("ok: 4 files, ")
    assert "differs: examples 50, published 70,000" in findings
    assert "ok: shape 1 x 32 x 32" in findings
    assert any(f.startswith("differs: class histogram (test) in 10 classes (0: 2 for 980") for f in findings)
    write(root / "t10k-images-idx3-ubyte.gz", b"broken")
    assert check_published(MNIST())[0].startswith("differs: ")
    assert check_published(Digits())[0].startswith("note: Digits is made by the library")
