"""Files and settings that once ended in a traceback, hung or took all memory: each gets a sentence that names it."""

import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

import acclimate as ac
from acclimate import store
from acclimate.data import formats, images
from acclimate.data.pickles import unpickle
from acclimate.experiment import ConfigError, dumps, labels, loads, names
from acclimate.experiment.settings import expand, merged
from acclimate.ops import opening
from acclimate.running import run as api

QUICK = ("data.clients=3", "model=mlp", "model.hidden=8", "rounds=1", "method.work.epochs=1", "adapters=none")
QUICK += ("streams=original", "device=cpu", "backend=serial")


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (f"rounds={10**26}", "rounds: a number of about 27 digits must be a whole number of at most 1,000,000,000"),
        (f"method.work.epochs={10**26}", "method.work.epochs: .* at most 1,000,000,000"),
        ("method.work.epochs=100001", "epochs=100001 must be between 0 and 100000"),
        (f"model.hidden={10**15}", "model.hidden: 1000000000000000 must be a whole number of at most"),
        (f"rounds={'9' * 5000}", "rounds: '999.* is not a whole number"),
        ("seed=" + ",".join(map(str, range(10_001))), "more than 10,000 experiments"),
    ],
)
def test_numbers_have_bounds(setting, says):
    with pytest.raises(ConfigError, match=says):
        expand(["model=mlp", setting])


@pytest.mark.parametrize("settings", [["data=windows", "data.data=9"], ["streams=natural", "streams.natural.source=1"]])
def test_what_only_python_makes_is_not_set_by_text(settings):
    with pytest.raises(
        ConfigError, match=rf"{settings[1].split('=')[0]}: '\d' is text, and what this holds is made in"
    ):
        expand(settings)


def test_a_model_that_does_not_fit_is_refused_before_it_is_made():
    (e,) = expand(["model=mlp", "model.hidden=1000000000"])
    with pytest.raises(
        ValueError, match=r"MLP: hidden=\(1000000000,\) makes a model of [\d,]+ GB, more than this machine"
    ):
        api.build(e)


def test_what_is_no_plain_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "folder.png").mkdir()
    for name, says in {"pipe": "is a named pipe", "loop": "leads back to itself", "folder": "is a folder"}.items():
        with pytest.raises(ValueError, match=f"{name}.png .*{says}"):
            images.decode(tmp_path / f"{name}.png", None, None)
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(opening.FileProblem, match="large has 5 bytes; at most 4 are read"):
        opening.content(tmp_path / "large", limit=4)


def test_a_picture_of_gigapixels_is_refused_by_its_header(tmp_path):
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + b"IHDR" + head + struct.pack(">I", zlib.crc32(b"IHDR" + head))
    (tmp_path / "huge.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 99) + b"IDAT" + b"\0" * 99)
    with pytest.raises(ValueError, match=r"huge.png: not a readable image \(.*(60000 x 60000|3600000000) pixels"):
        images.decode(tmp_path / "huge.png", None, None)


@pytest.mark.parametrize("shape", ["(100000000000,)", "(True,)", "(-4,)", "(4,)"])
def test_an_archive_whose_header_lies_is_refused_before_memory_is_taken(tmp_path, shape):
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 16)
    with pytest.raises(ValueError, match="a.npz: not a readable .npz file"):
        formats.npz(tmp_path / "a.npz", ("x",))


def test_a_label_that_would_make_quadrillions_of_classes_is_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 4), np.float32), y=np.array([0, 10**15, 1]))
    with pytest.raises(ValueError, match=r"y\[1\] is 1000000000000000; there may be at most 1,000,000"):
        ac.data.Arrays(file=str(tmp_path / "a.npz"), clients=1).load()


def test_a_pickle_with_a_memo_beyond_its_end_is_refused(tmp_path):
    (tmp_path / "p").write_bytes(b"\x80\x02}r" + struct.pack("<I", 2**31 - 1) + b".")
    with pytest.raises(ValueError, match="memo 2147483647 at byte 3 is beyond the file"):
        unpickle(tmp_path / "p")


def test_deep_json_is_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"a":' * 70 + "1" + "}" * 70)
    with pytest.raises(store.RunError, match="a.json is damaged: its JSON is nested more than 64 deep"):
        store.read_json(tmp_path / "a.json")


# --- run folders ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("home") / "run"
    ac.run(expand(QUICK)[0], path)
    return path


def test_a_missing_field_of_config_json_is_named_and_other_changes_are_noticed(finished):
    body = json.loads((finished / "config.json").read_text())
    del body["experiment"]["adapters"]
    with pytest.raises(ConfigError, match="experiment.adapters is missing"):
        loads(json.dumps(body))
    body = json.loads((finished / "config.json").read_text())
    body["experiment"]["rounds"] = 7
    with pytest.raises(ConfigError, match="config.json is damaged or was changed: its content does not match"):
        loads(json.dumps(body))
    body["schema"] = "acclimate.config/1"
    assert loads(json.dumps(body)).rounds == 7  # an earlier version had no digest


def test_a_folder_has_one_writer(tmp_path):
    (tmp_path / "run").mkdir()
    held = "import fcntl, os, sys\nf = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
    held += "print(os.getpid(), file=f, flush=True); print('in', flush=True); input()"
    start = [sys.executable, "-S", "-c", held, str(tmp_path / "run" / "lock")]
    other = subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout.readline() == "in\n"
        assert store.busy(tmp_path / "run")
        with pytest.raises(store.RunError, match=rf"another run is at work in .*run \(process {other.pid}\)"):
            ac.run(expand(QUICK)[0], tmp_path / "run", overwrite=True)
    finally:
        other.kill()
        other.communicate()
    assert not store.busy(tmp_path / "run")


def test_the_lock_of_a_dead_process_is_taken_over_with_a_line(tmp_path, caplog):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").write_text("999999\n")
    with store.locked(tmp_path / "run"), store.locked(tmp_path / "run"):  # what it calls may lock again
        assert "process 999999 ended without unlocking it; taking over" in caplog.text
    assert not (tmp_path / "run" / "lock").exists()
    with store.locked(tmp_path / "new" / "run"):
        pass
    assert not (tmp_path / "new").exists()  # nothing was written, so nothing stays


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_overwrite_in_a_read_only_place_is_refused(finished):
    finished.chmod(0o500)
    try:
        with pytest.raises(store.RunError, match="is no folder to write to"):
            ac.run(expand(QUICK)[0], finished, overwrite=True)
    finally:
        finished.chmod(0o700)


def test_a_file_on_the_way_to_a_run_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(store.RunError, match="file/r is no folder to write to"):
        ac.run(expand(QUICK)[0], tmp_path / "file" / "r")


def test_metrics_are_appended_and_a_half_line_is_cut(tmp_path):
    state = type("S", (), {"history": [{"round": 1}, {"round": 2}]})()
    folder = store.RunFolder(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"rou')
    folder.log(state)
    inode = (tmp_path / "metrics.jsonl").stat().st_ino
    state.history.append({"round": 3})
    folder.log(state)
    assert folder.rows() == [{"round": 1}, {"round": 2}, {"round": 3}]
    assert (tmp_path / "metrics.jsonl").stat().st_ino == inode


def test_results_name_no_places(tmp_path):
    home = tmp_path / "home" / "Ann Smith"
    home.mkdir(parents=True)
    x = np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)
    np.savez(home / "site.npz", x=x, y=np.arange(120) % 3)
    settings = ["data=arrays", f"data.file={home / 'site.npz'}", "data.clients=2", *QUICK[1:]]
    ac.run(expand(settings)[0], tmp_path / "run")
    for name in ("results.json", "report.html"):
        text = (tmp_path / "run" / name).read_text()
        assert "Ann Smith" not in text and str(tmp_path) not in text, name
    assert "site.npz" in (tmp_path / "run" / "results.json").read_text()


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("data.root='/home/ann b/data'", "data.root='data'"),
        ("data.root=/home/ann/data/", "data.root=data"),
        ("run -o /home/ann/x and/or https://a.org/b/c 1/2", "run -o x and/or https://a.org/b/c 1/2"),
        ("file=('/home/a/x.npz', '~/y/z.npz')", "file=('x.npz', 'z.npz')"),
        (r"data.root=C:\Users\ann\data", "data.root=data"),
        ("data:image/png;base64,/home/ann/x", "data:image/png;base64,/home/ann/x"),
    ],
)
def test_paths_keep_their_last_part(words, left):
    assert labels.without_place(words) == left


# --- trust ------------------------------------------------------------------------------------------------------------

OWN = """
import dataclasses, pathlib
import acclimate as ac
pathlib.Path(__file__).with_suffix(".ran").touch()
@dataclasses.dataclass(frozen=True)
class Own(ac.methods.FedAvg):
    pass
"""


def test_what_a_file_names_is_imported_only_where_it_is_trusted(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_trusted.py").write_text(OWN)
    text = dumps(expand(["method=fedavg"])[0])
    body = json.loads(text)
    body["schema"], body["experiment"]["method"]["type"] = "acclimate.config/1", "own_trusted:Own"
    text = json.dumps(body)
    with pytest.raises(ConfigError, match="what a file names is not imported. If it is your own, trust it: --trust"):
        loads(text)
    with pytest.raises(ConfigError, match="not imported"):
        loads(text, trust=["other:Own"])
    (tmp_path / "a.toml").write_text('method = "own_trusted:Own"\n')
    with pytest.raises(ConfigError, match="a.toml: method: 'own_trusted:Own' is not acclimate's"):
        merged(tmp_path / "a.toml", [])
    assert not Path(tmp_path / "own_trusted.ran").exists()
    assert type(loads(text, trust=["own_trusted:Own"]).method).__name__ == "Own"
    monkeypatch.delitem(names._records, "own_trusted:Own")
    monkeypatch.setenv(names.ALLOW, "*")  # what --trust sets
    assert type(loads(text).method).__name__ == "Own" and merged(tmp_path / "a.toml", [])
