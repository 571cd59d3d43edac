"""Real data sets, where there are any: in ACCLIMATE_DATA, or beside the repository, from where they are unpacked."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from acclimate.data import IID
from acclimate.data.check_sets import check_published
from acclimate.data.cifar import CIFAR10
from acclimate.data.digit5 import Digit5
from acclimate.data.domains import PACS, OfficeCaltech10
from acclimate.data.fileset import FileDataset
from acclimate.data.mnist import MNIST

UNPACK = Path(__file__).resolve().parents[3] / "shared" / "data" / "unpack.py"
FOUR = ("mnist", "mnistm", "svhn", "usps")

Root = Callable[[str, FileDataset], str]


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Test processes share what is unpacked."""
    fcntl = pytest.importorskip("fcntl")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """The folder that holds a real set; the test is skipped where there is none."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "real-data"

    def find(name: str, dataset: FileDataset) -> str:
        if os.environ.get("ACCLIMATE_DATA"):
            with contextlib.suppress(FileNotFoundError):
                dataset.sources()
                return os.environ["ACCLIMATE_DATA"]
        if not UNPACK.is_file():
            pytest.skip(f"no real {name}: neither in ACCLIMATE_DATA nor in {UNPACK.parent}")
        with locked(shared / f"{name}.lock"):
            if not (shared / f"{name}.done").exists():
                subprocess.run([sys.executable, str(UNPACK), str(shared), name], check=True, capture_output=True)
                (shared / f"{name}.done").touch()
        return str(shared)

    return find


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    yield
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # hundreds of megabytes that pytest would keep


def fine(dataset: FileDataset) -> None:
    findings = check_published(dataset)
    assert [f for f in findings if not f.startswith(("ok: ", "note: "))] == []
    assert len(findings) > 2


def test_cifar10(root: Root) -> None:
    dataset = CIFAR10(root=root("cifar10", CIFAR10()))
    examples = dataset.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileDataset, "_fit", lambda *_: pytest.fail("the files were read again"))
        again = dataset.load()
    assert examples.x.shape == (60000, 3, 32, 32)
    assert torch.equal(again.x[::1000], examples.x[::1000])
    fine(dataset)
    # The constants that everyone normalises with are those of the training set: so are the pixels and their order.
    train = examples.x[:50000]
    mean = train.to(torch.float32).mean((0, 2, 3)) / 255
    torch.testing.assert_close(mean, torch.tensor(dataset.mean), atol=1e-4, rtol=0)
    test = CIFAR10(root=dataset.root, part="test").load()
    assert torch.equal(test.x, examples.x[50000:])
    assert torch.equal(test.y, examples.y[50000:])
    assert test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]  # cat, ship, ship, airplane, frog, frog, ...


def test_mnist(root: Root) -> None:
    dataset = MNIST(root=root("mnist", MNIST()))
    fine(dataset)
    examples = dataset.load()
    train = examples.x[:60000].to(torch.float32) / 255
    assert round(float(train.mean()), 4) == 0.1307
    assert round(float(train.std()), 4) == 0.3081
    assert examples.y[:5].tolist() == [5, 0, 4, 1, 9]
    wide = MNIST(root=dataset.root, part="test", size=32, channels=3).load()
    assert wide.x.shape == (10000, 3, 32, 32)
    assert abs(float(wide.x.float().mean()) - float(examples.x[60000:].float().mean())) < 0.5


def test_digit5(root: Root) -> None:
    dataset = Digit5(root=root("digit5", Digit5(domains=FOUR)), domains=FOUR, partition=IID(), clients=4)
    fine(dataset)
    examples = dataset.load()
    assert examples.domains == FOUR
    assert sorted(examples.domain.bincount().tolist())[0] >= 9000
    assert dataset.official_test().sum() > 6000
    world = dataset.world(3)
    assert world.shape == (3, 32, 32)
    assert world.card()["hash"] == dataset.world(4).card()["hash"]
    with pytest.raises(ValueError, match="'fonts'; allowed are"):
        Digit5(domains=("fonts",))


def test_pacs(root: Root) -> None:
    dataset = PACS(root=root("pacs", PACS()))
    examples = dataset.load()
    assert examples.x.shape[:2] == (9991, 3)
    fine(dataset)


def test_office_caltech_10(root: Root) -> None:
    dataset = OfficeCaltech10(root=root("office10", OfficeCaltech10()), size=32)
    fine(dataset)
    examples = dataset.load()
    assert examples.x.shape == (2533, 3, 32, 32)
    assert "projector" in examples.classes
