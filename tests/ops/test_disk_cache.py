"""Arrays on disk, and where the environment says that files lie."""

from pathlib import Path

import numpy as np
import pytest
import torch

from acclimate.ops import disk_cache, places


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "c"))
    return tmp_path / "c"


def never():
    raise AssertionError("it was computed again")


def test_an_array_is_computed_once_and_then_read(root):
    x = torch.arange(12.0).reshape(3, 4)
    assert disk_cache.remembered("kind", "key", lambda: x, least=48) is x
    assert [p.relative_to(root).as_posix() for p in sorted(root.rglob("*.npy"))] == ["kind/key/x.npy"]
    again = disk_cache.remembered("kind", "key", never, least=48)
    assert torch.equal(again, x) and again.dtype == x.dtype
    again += 1  # a private copy: the file stays as it is
    assert torch.equal(disk_cache.remembered("kind", "key", never), x)
    assert [p.name for p in (root / "kind").iterdir()] == ["key"]  # nothing half made is left


def test_small_arrays_are_not_stored(root):
    disk_cache.remembered("kind", "key", lambda: torch.zeros(12), least=49)
    assert not root.exists()
    disk_cache.remembered("kind", "small", lambda: torch.zeros((1 << 20) - 1))
    assert not root.exists()
    disk_cache.remembered("kind", "large", lambda: torch.zeros(1 << 20))
    assert (root / "kind" / "large" / "x.npy").exists()


def test_a_file_that_was_cut_short_is_made_again(root):
    x = torch.arange(12.0)
    disk_cache.remembered("kind", "key", lambda: x, least=1)
    path = root / "kind" / "key" / "x.npy"
    path.write_bytes(path.read_bytes()[:-9])
    assert torch.equal(disk_cache.remembered("kind", "key", lambda: x + 1, least=1), x + 1)
    assert torch.equal(disk_cache.remembered("kind", "key", never), x + 1)


def test_pickles_are_neither_read_nor_written(root):
    (root / "kind" / "key").mkdir(parents=True)
    np.save(root / "kind" / "key" / "x.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert disk_cache.remembered("kind", "key", lambda: torch.ones(1)).item() == 1.0


def test_a_folder_that_cannot_be_written_only_costs_time(root):
    root.parent.mkdir(exist_ok=True)
    root.write_text("a file where the folder would be")
    assert disk_cache.remembered("kind", "key", lambda: torch.ones(3), least=1).sum() == 3


def test_what_is_half_made_lies_beside_the_entry_and_is_taken_away(root, monkeypatch):
    seen = []

    def full(path, array, **options):
        seen.append(path.parent)
        raise OSError("no space left on device")

    monkeypatch.setattr(disk_cache.np, "save", full)
    assert disk_cache.remembered("kind", "key", lambda: torch.ones(3), least=1).sum() == 3
    assert [p.parent for p in seen] == [root / "kind"]  # a rename is atomic only within one file system
    assert list((root / "kind").iterdir()) == []

    def gone(path, array, **options):
        path.parent.rmdir()
        raise OSError("the folder was taken away")

    monkeypatch.setattr(disk_cache.np, "save", gone)
    assert disk_cache.remembered("kind", "key", lambda: torch.ones(3), least=1).sum() == 3


def test_folders_as_the_environment_names_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ACCLIMATE_CACHE", raising=False)
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)
    assert places.cache_folder() == tmp_path / ".cache" / "acclimate" and places.data_root() is None
    assert places.data_root("~/sets") == tmp_path / "sets" and places.data_root("here") == Path.cwd() / "here"
    monkeypatch.setenv("ACCLIMATE_DATA", "~/other")
    monkeypatch.setenv("ACCLIMATE_CACHE", "~/kept")
    assert places.data_root() == tmp_path / "other" and places.data_root("~/sets") == tmp_path / "sets"
    assert places.cache_folder() == tmp_path / "kept"
