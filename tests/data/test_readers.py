"""Readers take what the formats allow and refuse all else in words; the cache never gives a stale or torn entry."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from acclimate.data import cache, formats, images
from acclimate.data.pickles import unpickle
from acclimate.ops.places import cache_folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))


def idx_bytes(array: np.ndarray, code: int = 0x08) -> bytes:
    return bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


# --- idx -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_idx_gives_back_what_was_written(tmp_path: Path, suffix: str) -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / f"images{suffix}"
    path.write_bytes(gzip.compress(idx_bytes(array)) if suffix else idx_bytes(array))
    assert np.array_equal(formats.idx(path, 3), array)


def test_idx_reads_wide_types_big_endian(tmp_path: Path) -> None:
    array = np.array([1, -2, 300000], np.int32)
    (tmp_path / "a").write_bytes(idx_bytes(array.astype(">i4"), 0x0C))
    assert formats.idx(tmp_path / "a", 1).tolist() == [1, -2, 300000]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic number"),
        (b"\x1f\x8b\x08\x00rest", "magic number 1f8b0800"),
        (idx_bytes(np.zeros((2, 2), np.uint8)), "with 3 axes"),
        (idx_bytes(np.zeros((2, 2, 2), np.uint8))[:-1], "holds 7 bytes of data, its header says 8"),
        (idx_bytes(np.zeros((2, 2, 2), np.uint8)) + b"x", "holds 9 bytes"),
        (idx_bytes(np.zeros((2, 2, 2), np.uint8))[:9], "ends inside its header"),
    ],
)
def test_idx_names_the_file_and_what_is_wrong(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "broken-idx3-ubyte").write_bytes(data)
    with pytest.raises(ValueError, match=rf"broken-idx3-ubyte: .*{message}.*download it again"):
        formats.idx(tmp_path / "broken-idx3-ubyte", 3)


@given(st.data())
def test_idx_never_accepts_a_cut_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = idx_bytes(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
    path = tmp_path_factory.mktemp("cut") / "x"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(ValueError, match="download it again"):
        formats.idx(path, 3)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_cut_archives_are_named(tmp_path: Path, pack: object) -> None:
    name = "a.gz" if pack is gzip.compress else "a.bz2"
    (tmp_path / name).write_bytes(pack(b"x" * 5000)[:-10])  # type: ignore[operator]
    with pytest.raises(ValueError, match=f"{name}: cannot be unpacked"):
        formats.plain(tmp_path / name)
    (tmp_path / name).write_bytes(b"not an archive at all")
    with pytest.raises(ValueError, match=f"{name}: cannot be unpacked"):
        formats.plain(tmp_path / name)


# --- pickles ---------------------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "owned"
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({"data": Evil(target), "labels": []}, protocol))
    with pytest.raises(ValueError, match=r"data_batch_1: refused.*system.*original file"):
        unpickle(tmp_path / "data_batch_1")
    assert not target.exists()


@pytest.mark.parametrize(
    "name", ["builtins.eval", "builtins.getattr", "numpy.load", "numpy.core.multiarray.fromfile", "pickle.loads"]
)
def test_only_listed_names_exist(tmp_path: Path, name: str) -> None:
    module, _, attribute = name.rpartition(".")
    (tmp_path / "p").write_bytes(f"c{module}\n{attribute}\n.".encode())
    with pytest.raises(ValueError, match=f"asks for {name}"):
        unpickle(tmp_path / "p")


@pytest.mark.parametrize("path", ["_codecs\nencode", "numpy\ndtype", "numpy\nndarray"])
def test_allowed_names_cannot_be_changed(tmp_path: Path, path: str) -> None:
    # BUILD with (None, {...}) sets attributes of whatever stands on the stack.
    (tmp_path / "p").write_bytes(f"c{path}\n(N(dV__defaults__\nNstb.".encode())
    with pytest.raises(ValueError, match="refused"):
        unpickle(tmp_path / "p")
    (tmp_path / "p").write_bytes(pickle.dumps({"a": np.arange(3)}, 2))
    assert unpickle(tmp_path / "p")["a"].tolist() == [0, 1, 2]  # nothing was changed for the next reader


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_pickled_arrays_come_back(tmp_path: Path, protocol: int) -> None:
    data = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "mean": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "big": np.array([1, 2, 3], ">i4"),
        "labels": [1, 2, np.int64(3)],
        "name": "batch",
    }
    (tmp_path / "p").write_bytes(pickle.dumps(data, protocol))
    found = unpickle(tmp_path / "p")
    for key in ("data", "mean", "big"):
        assert np.array_equal(found[key], data[key])
        assert found[key].dtype == np.asarray(data[key]).dtype
    assert found["labels"] == [1, 2, 3]
    assert found["name"] in ("batch", b"batch")


def test_python_2_pickles_come_back(tmp_path: Path) -> None:
    """The published CIFAR batches were written by Python 2: 8-bit strings everywhere."""
    raw = bytes(range(6))
    text = b"(dp1\nS'data'\np2\ncnumpy.core.multiarray\n_reconstruct\np3\n(cnumpy\nndarray\np4\n(I0\ntS'b'\ntRp5\n"
    text += (
        b"(I1\n(I2\nI3\ntcnumpy\ndtype\np6\n(S'u1'\nI0\nI1\ntRp7\n(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\nU"
        + bytes([6])
        + raw
    )
    text += b"tbsS'labels'\n(lp9\nI3\naI4\nas."
    (tmp_path / "p").write_bytes(text)
    assert any(op.name == "SHORT_BINSTRING" for op, _, _ in pickletools.genops(text))
    found = unpickle(tmp_path / "p")
    assert found["data"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert found["data"].dtype == np.uint8
    assert found["labels"] == [3, 4]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04garbage",
        pickle.dumps([1, 2]),
        pickle.dumps({"a": np.array(["x"], object)}),
        pickle.dumps({"a": 1})[:-3],
    ],
)
def test_damaged_pickles_are_named(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "test_batch").write_bytes(data)
    with pytest.raises(ValueError, match=r"test_batch: .*use the original file"):
        unpickle(tmp_path / "test_batch")


# --- arrays, text, labels --------------------------------------------------------------------------------------------


def test_fixed_records_must_be_whole(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(10)))
    head, x = formats.fixed_records(tmp_path / "a.bin", 1, (2, 2))
    assert head.tolist() == [[0], [5]]
    assert x[1].tolist() == [[6, 7], [8, 9]]
    for bad in (b"", bytes(9)):
        (tmp_path / "a.bin").write_bytes(bad)
        with pytest.raises(ValueError, match=r"a.bin: \d bytes are not a whole number of records of 5 bytes"):
            formats.fixed_records(tmp_path / "a.bin", 1, (2, 2))


def test_npy_and_npz_refuse_pickles_and_damage(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    np.savez(tmp_path / "o.npz", x=np.array([{}], object), y=np.zeros(1))
    np.savez(tmp_path / "fine.npz", x=np.zeros(2), z=np.zeros(2))
    with pytest.raises(ValueError, match=r"o.npy: not a readable .npy"):
        formats.npy(tmp_path / "o.npy")
    with pytest.raises(ValueError, match=r"o.npz: not a readable .npz"):
        formats.npz(tmp_path / "o.npz", ("x", "y"))
    with pytest.raises(ValueError, match=r"fine.npz: has no array 'y', only x"):
        formats.npz(tmp_path / "fine.npz", ("x", "y"))
    with pytest.raises(ValueError, match=r"fine.npz: does not start like an .npy"):
        formats.npy(tmp_path / "fine.npz")
    cut = (tmp_path / "fine.npz").read_bytes()[:-40]
    (tmp_path / "cut.npz").write_bytes(cut)
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    for reader, name in ((lambda p: formats.npz(p, ("x",)), "cut.npz"), (formats.npy, "cut.npy")):
        with pytest.raises(ValueError, match=f"{name}: not a readable"):
            reader(tmp_path / name)


def test_mat_names_what_is_missing_or_broken(tmp_path: Path) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "a.mat", {"X": np.zeros((2, 2))})
    assert formats.mat(tmp_path / "a.mat", ("X",))["X"].shape == (2, 2)
    with pytest.raises(ValueError, match=r"a.mat: has no array 'y', only X"):
        formats.mat(tmp_path / "a.mat", ("X", "y"))
    (tmp_path / "cut.mat").write_bytes((tmp_path / "a.mat").read_bytes()[:-20])
    (tmp_path / "text.mat").write_bytes(b"hello")
    for name in ("cut.mat", "text.mat"):
        with pytest.raises(ValueError, match=f"{name}: not a readable MATLAB file"):
            formats.mat(tmp_path / name, ("X",))


def test_libsvm_rows_and_errors(tmp_path: Path) -> None:
    (tmp_path / "u.bz2").write_bytes(bz2.compress(b"3 1:-1 4:0.5\n10 2:1\n"))
    y, x = formats.libsvm(tmp_path / "u.bz2", 4)
    assert y.tolist() == [3, 10]
    assert x.tolist() == [[-1, 0, 0, 0.5], [0, 1, 0, 0]]
    for bad in ("1 5:1", "1 0:1", "one 1:1", "1 1:x", "1 1", ""):
        (tmp_path / "u").write_text("1 1:1\n" + bad + "\n")
        with pytest.raises(ValueError, match=r"u: line 2 is not 'label index:value"):
            formats.libsvm(tmp_path / "u", 4)


def test_labels_are_checked_and_shifted(tmp_path: Path) -> None:
    assert formats.labels(np.array([[1], [10]], np.uint8), 10, tmp_path, first=1).tolist() == [0, 9]
    with pytest.raises(ValueError, match=r"label 11 of example 1 must be 1 to 10"):
        formats.labels([1, 11], 10, tmp_path / "y", first=1)
    with pytest.raises(ValueError, match="label -1 of example 0 must be 0 to 9"):
        formats.labels([-1], 10, tmp_path / "y")
    for odd in (["a"], [0.5]):
        with pytest.raises(ValueError, match="must be whole numbers"):
            formats.labels(odd, 10, tmp_path / "y")


def test_to_uint8_rounds_and_refuses_other_ranges(tmp_path: Path) -> None:
    assert formats.to_uint8(np.array([-1.0, 0.0, 1.0]), tmp_path, -1, 1).tolist() == [0, 128, 255]
    for odd in (2.0, -0.1, float("nan")):
        with pytest.raises(ValueError, match="pixels run from"):
            formats.to_uint8(np.array([0.0, odd]), tmp_path)


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, call, install in (
        ("PIL.Image", lambda: images.decode(tmp_path / "a.png", None, None), "pip install pillow"),
        ("scipy.io", lambda: formats.mat(tmp_path / "a.mat", ()), "pip install scipy"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        with pytest.raises(ImportError, match=install):
            call()


# --- images ----------------------------------------------------------------------------------------------------------


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def test_arrays_and_files_are_treated_alike(tmp_path: Path) -> None:
    x = noise(3, 3, 20, 20)
    for i, image in enumerate(x):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{i}.png")
    paths = images.find(tmp_path)
    for size, channels in ((None, None), (None, 1), (12, 3), (28, None)):
        made = np.concatenate(list(images.stream(paths, size, channels).chunks)).astype(int)
        apart = np.abs(made - images.fit(x, size, channels))
        assert apart.max() <= (0 if size is None else 1)  # Pillow and torch round the last bit differently
        assert made.shape == (3, channels or 3, size or 20, size or 20)
    both = np.abs(np.stack([images.decode(p, 12, 1) for p in paths]).astype(int) - images.fit(x, 12, 1))
    assert both.max() <= 1


def test_grey_becomes_colour_and_nothing_is_done_for_nothing() -> None:
    x = noise(2, 1, 8, 8)
    rgb = images.fit(x, None, 3)
    assert rgb.shape == (2, 3, 8, 8)
    assert np.array_equal(rgb[:, 1], x[:, 0])
    assert np.array_equal(images.fit(rgb, None, 1), x)
    assert images.fit(x, 8, 1) is x


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1"])
def test_every_8_bit_mode_is_read(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(noise(9, 7, 3)).convert(mode)
    image.save(
        tmp_path / ("a.tif" if mode == "CMYK" else "a.png"), **({"transparency": b"\0\1"} if mode == "P" else {})
    )
    (path,) = images.find(tmp_path)
    assert images.decode(path, None, None).shape == (3, 9, 7)
    assert images.decode(path, 5, 1).shape == (1, 5, 5)


def test_16_bit_and_damaged_images_are_named(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(ValueError, match=r"deep.png: not a readable image .*8 bits"):
        images.decode(tmp_path / "deep.png", None, None)
    buffer = io.BytesIO()
    Image.fromarray(noise(40, 40, 3)).save(buffer, "JPEG")
    (tmp_path / "cut.jpg").write_bytes(buffer.getvalue()[:-300])
    (tmp_path / "text.jpg").write_text("hello")
    for name in ("cut.jpg", "text.jpg"):
        with pytest.raises(ValueError, match=f"{name}: not a readable image"):
            images.decode(tmp_path / name, None, None)


def test_mixed_sizes_name_two_files_and_the_fix(tmp_path: Path) -> None:
    for name, width in (("a.png", 8), ("b.png", 8), ("c.png", 9)):
        Image.fromarray(noise(8, width, 3)).save(tmp_path / name)
    paths = images.find(tmp_path)
    with pytest.raises(ValueError, match=r"a.png is 8 x 8 pixels and .*c.png 9 x 8: .*data.size="):
        list(images.stream(paths, None, None).chunks)
    assert images.stream(paths, 6, None).shape == (3, 3, 6, 6)


def test_folders_without_images_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no class folders"):
        images.classes(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    with pytest.raises(ValueError, match="cat: class folder without images"):
        images.classes(tmp_path)


def test_channel_axis_is_found() -> None:
    for shape in ((2, 8, 9), (2, 8, 9, 1), (2, 1, 8, 9)):
        assert images.channels_first(np.zeros(shape), "x").shape == (2, 1, 8, 9)
    assert images.channels_first(np.zeros((2, 3, 8, 3)), "x").shape == (2, 3, 8, 3)
    assert images.channels_first(np.zeros((2, 3, 8, 3)), "x", "hwc").shape == (2, 3, 3, 8)
    with pytest.raises(ValueError, match=r"x: shape \(2, 8, 9, 4\) must be"):
        images.channels_first(np.zeros((2, 8, 9, 4)), "x")


# --- the cache -------------------------------------------------------------------------------------------------------


def parsed(n: int = 5, seed: int = 0) -> cache.Parsed:
    y = np.arange(n) % 2
    return cache.Parsed(noise(n, 3, 4, 4, seed=seed), y, ("a", "b"), np.zeros(n, int), ("d",), y == 1)


class Counted:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> cache.Parsed:
        self.calls += 1
        return parsed()


def source(tmp_path: Path, text: str = "data", age: float = 100.0) -> Path:
    path = tmp_path / "set" / "file"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, (time.time() - age,) * 2)
    return path


def entries() -> list[Path]:
    return sorted((cache_folder() / "sets").iterdir())


def test_the_second_time_nothing_is_read(tmp_path: Path) -> None:
    path, read = source(tmp_path), Counted()
    first = cache.fetch("m:Set", {"size": None}, path.parent, [path], read)
    again = cache.fetch("m:Set", {"size": None}, path.parent, [path], read)
    assert read.calls == 1
    for p in (first, again):
        assert isinstance(p.x, np.memmap)
        assert p.x.flags.writeable
        assert np.array_equal(p.x, parsed().x)
        assert np.array_equal(p.y, parsed().y)
        assert np.array_equal(p.test, p.y == 1)
        assert p.classes == ("a", "b")
        assert p.domains == ("d",)
        assert p.users is None
    first.x[:] = 0  # copy on write: what one process does to its array does not reach the file
    assert np.array_equal(cache.fetch("m:Set", {"size": None}, path.parent, [path], read).x, parsed().x)
    assert sorted(f.name for f in entries()[0].iterdir()) == ["domain.npy", "meta.json", "test.npy", "x.npy", "y.npy"]


def test_other_options_classes_and_contents_are_other_entries(tmp_path: Path) -> None:
    path, read = source(tmp_path), Counted()
    for name, options in (("m:Set", {"size": None}), ("m:Set", {"size": 8}), ("m:Other", {"size": None})):
        cache.fetch(name, options, path.parent, [path], read)
    source(tmp_path, "atad")  # same name, size and (nearly) time
    cache.fetch("m:Set", {"size": None}, path.parent, [path], read)
    assert read.calls == len(entries()) == 4


def test_equal_files_elsewhere_share_the_entry(tmp_path: Path) -> None:
    read = Counted()
    for place in ("one", "two"):
        path = tmp_path / place / "file"
        path.parent.mkdir()
        path.write_text("data")
        cache.fetch("m:Set", {}, path.parent, [path], read)
    assert read.calls == 1


def test_a_renamed_file_is_another_set(tmp_path: Path) -> None:
    path = source(tmp_path)
    before = cache.content(path.parent, [path])
    assert cache.content(path.parent, [path.rename(path.with_name("other"))]) != before


def test_contents_are_hashed_once_for_settled_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path)
    stamps = cache_folder() / "stamps"
    monkeypatch.setattr(cache, "_SETTLED_NS", 10**18)
    before = cache.content(path.parent, [path])
    assert not stamps.exists()  # it changed a moment ago (ctime), and may change again unseen
    monkeypatch.setattr(cache, "_SETTLED_NS", -(10**18))
    assert cache.content(path.parent, [path]) == before
    (note,) = stamps.iterdir()
    note.write_text("f" * 64)
    assert cache.content(path.parent, [path]) == "f" * 64
    note.write_text("damaged")
    assert cache.content(path.parent, [path]) == before
    os.utime(path, (1, 1))
    assert cache.content(path.parent, [path]) == before
    assert len(list(stamps.iterdir())) == 2


@pytest.mark.parametrize("name", ["x.npy", "y.npy", "test.npy", "meta.json"])
@pytest.mark.parametrize("harm", ["delete", "cut", "empty", "swap"])
def test_damaged_entries_are_rebuilt(tmp_path: Path, name: str, harm: str) -> None:
    path, read = source(tmp_path), Counted()
    cache.fetch("m:Set", {}, path.parent, [path], read)
    file = entries()[0] / name
    if harm == "delete":
        file.unlink()
    elif harm == "swap":
        data = file.read_bytes()
        file.write_bytes(data.replace(b"shape", b"sharp").replace(b"arrays", b"arroys"))
    else:
        file.write_bytes(file.read_bytes()[:-3] if harm == "cut" else b"")
    again = cache.fetch("m:Set", {}, path.parent, [path], read)
    assert read.calls == 2
    assert np.array_equal(again.x, parsed().x)
    assert np.array_equal(again.y, parsed().y)
    cache.fetch("m:Set", {}, path.parent, [path], read)
    assert read.calls == 2
    assert len(entries()) == 1


def test_a_failing_reader_leaves_nothing(tmp_path: Path) -> None:
    path = source(tmp_path)

    def half() -> cache.Parsed:
        def chunks() -> object:
            yield noise(2, 3, 4, 4)
            raise ValueError("truncated")

        return cache.Parsed(cache.ImageStream((5, 3, 4, 4), chunks()), *list(vars(parsed()).values())[1:])  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="truncated"):
        cache.fetch("m:Set", {}, path.parent, [path], half)
    assert entries() == []


def test_streams_must_keep_their_promise(tmp_path: Path) -> None:
    path, rest = source(tmp_path), list(vars(parsed()).values())[1:]
    for chunk, message in ((noise(4, 3, 4, 4), "gave 4 images, but promised 5"), (noise(5, 1, 4, 4), "but promised")):
        stream = cache.ImageStream((5, 3, 4, 4), [chunk])
        with pytest.raises(ValueError, match=message):
            cache.fetch("m:Set", {}, path.parent, [path], lambda s=stream: cache.Parsed(s, *rest))  # type: ignore[misc]
    with pytest.raises(ValueError, match="5 labels, but 4 rows of x"):
        cache.Parsed(noise(4, 3, 4, 4), *rest)
    with pytest.raises(ValueError, match="no examples"):
        parsed(0)


def test_files_that_change_while_they_are_read_leave_no_entry(tmp_path: Path) -> None:
    """Else the entry of the old content would hold the new one, and whoever restores the old would meet it."""
    path = source(tmp_path)
    before, read = path.read_bytes(), Counted()

    def changing() -> cache.Parsed:
        path.write_bytes(before + b"more")
        return read()

    with pytest.raises(ValueError, match="files of the data set changed while they were read; start again"):
        cache.fetch("m:Set", {}, path.parent, [path], changing)
    path.write_bytes(before)
    cache.fetch("m:Set", {}, path.parent, [path], read)
    assert read.calls == 2


def test_an_unwritable_cache_says_which_variable_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source(tmp_path)
    (tmp_path / "plain").write_text("a file, not a folder")
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "plain"))
    with pytest.raises(OSError, match=r"cannot write the cache folder .*plain .*set ACCLIMATE_CACHE"):
        cache.fetch("m:Set", {}, path.parent, [path], Counted())


def test_left_overs_of_killed_processes_are_swept(tmp_path: Path) -> None:
    path = source(tmp_path)
    old, new = cache_folder() / "sets" / "tmp-old", cache_folder() / "sets" / "tmp-new"
    for folder in (old, new):
        folder.mkdir(parents=True)
    os.utime(old, (1, 1))
    cache.fetch("m:Set", {}, path.parent, [path], Counted())
    assert not old.exists()
    assert new.exists()


BUILD = """
import os, sys, time
from pathlib import Path
from acclimate.data import cache
from test_readers import Counted

class Slow(Counted):
    def __call__(self):
        time.sleep(0.3)  # so that all of them want to build
        return super().__call__()

if sys.argv[2] == "unlocked":
    cache._lock = lambda entry: open(os.devnull)  # as on systems without locks
path, read = Path(sys.argv[1]), Slow()
print("ready", flush=True)
sys.stdin.readline()
made = [cache.fetch("m:Set", {}, path.parent, [path], read) for _ in range(2)]
print(*(int(m.x.sum()) for m in made), read.calls)
"""


@pytest.mark.parametrize("locked", [True, False])
def test_several_processes_may_build_at_once(tmp_path: Path, locked: bool) -> None:
    """Processes of their own: a fork of this one has its locks and its signals, and may never end."""
    path = source(tmp_path)
    command = [sys.executable, "-c", BUILD, str(path), "locked" if locked else "unlocked"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(3):
            process = stack.enter_context(subprocess.Popen(command, env=environment, text=True, **pipes))  # type: ignore[call-overload]
            stack.callback(process.kill)
            processes.append(process)
        for process in processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        told = [process.communicate(timeout=120) for process in processes]
    found = [[int(part) for part in said.split()] for said, _ in told]
    assert {total for *totals, _ in found for total in totals} == {int(parsed().x.sum())}, told
    calls = sum(line[-1] for line in found)
    assert calls == 1 if locked else calls > 1
    assert len(entries()) == 1
