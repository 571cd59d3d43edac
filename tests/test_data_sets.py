"""What `data list` remembers of a data folder, and when it looks again."""

import json
import os

import pytest

from acclimate.cli import data_sets, index


@pytest.fixture
def looked(monkeypatch, tmp_path):
    """Counts how often the records are asked."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    real, times = data_sets._looked_up, []

    def look(*args):
        times.append(1)
        return real(*args)

    monkeypatch.setattr(data_sets, "_looked_up", look)
    return times


def test_without_a_data_folder_nothing_is_looked_up(looked, tmp_path):
    said = {name: own["files"] for name, own in index.read()["datasets"].items()}
    assert data_sets.states(None) == data_sets.states(tmp_path / "nowhere") == said and looked == []
    assert said["digits"] == "embedded" and said["mnist"].startswith("missing: MNIST/raw/")


def test_a_folder_is_looked_at_again_only_where_it_changed(looked, tmp_path):
    root = tmp_path / "sets"
    (root / "stl10_binary").mkdir(parents=True)
    first = data_sets.states(root)
    assert data_sets.states(root) == first and len(looked) == 1
    for part in ("train", "test"):
        for kind in "Xy":
            (root / "stl10_binary" / f"{part}_{kind}.bin").touch()
    second = data_sets.states(root)
    assert len(looked) == 2 and first["stl10"].startswith("missing") and second["stl10"].startswith("found in")
    (root / "stl10_binary" / "test_y.bin").unlink()
    assert data_sets.states(root)["stl10"].startswith("missing: test_y.bin") and len(looked) == 3


def test_what_cannot_be_kept_or_read_is_looked_up(looked, tmp_path, monkeypatch):
    root = tmp_path / "sets"
    (root / "PACS" / "photo" / "dog").mkdir(parents=True)
    data_sets.states(root)
    (tmp_path / "cache" / data_sets.KEPT).write_text("{half")
    data_sets.states(root)
    assert len(looked) == 2 and json.loads((tmp_path / "cache" / data_sets.KEPT).read_text())["states"]
    monkeypatch.setattr(data_sets, "MOST", 1)
    assert data_sets.signature(root) == ""
    data_sets.states(root)
    assert len(looked) == 3


def test_a_deep_folder_that_changes_changes_the_signature(tmp_path):
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    os.utime(deep, (1, 1))  # a file that comes within the same tick of the clock would not change it
    before = data_sets.signature(tmp_path)
    assert data_sets.signature(tmp_path) == before
    (deep / "x.jpg").touch()
    assert data_sets.signature(tmp_path) != before
