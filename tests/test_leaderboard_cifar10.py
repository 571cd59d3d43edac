"""The CIFAR-10 tracks of the leaderboard, from a run to the page, with a few made-up pictures in CIFAR-10's place."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate.cli.main import app
from acclimate.leaderboard import Unfit, check, frozen, page, tracks
from acclimate.leaderboard import __main__ as plain
from acclimate.leaderboard.folder import read
from acclimate.store import origin

ROOT = Path(__file__).resolve().parents[1]
submission = importlib.import_module("acclimate.leaderboard.submission")  # the package has a function of that name
FEW = ("method=fedavg", "method.work.epochs=1", "personal=lp", "adapters=none,t3a")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """A folder with CIFAR-10's six files, of 600 pictures whose brightness tells their class."""
    draw, place = np.random.default_rng(0), tmp_path / "data" / "cifar-10-batches-bin"
    place.mkdir(parents=True)
    for name in [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]:
        y = draw.permutation(np.arange(100) % 10)
        x = draw.integers(0, 60, (100, 3072)) + 19 * y[:, None]
        (place / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], 1).astype(np.uint8).tobytes())
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "data"))


@pytest.fixture
def few(pictures, monkeypatch, request):
    """A CIFAR-10 track with four clients, one round and one seed, frozen as it is; the track that it stands for."""
    whole = tracks.track(request.param)
    shorter = tuple("rounds=1" if s.startswith("rounds=") else s for s in whole.settings)
    monkeypatch.setitem(tracks.TRACKS, whole.name, replace(whole, settings=(*shorter, "data.clients=4"), seeds=(0,)))
    cold = tracks.freeze(tracks.track(whole.name))
    for module in (submission, page):
        monkeypatch.setattr(module, "frozen", lambda name: cold if name == whole.name else frozen(name))
    monkeypatch.setattr(origin, "_commit", lambda: "abc1234")
    return whole


def said(*words):
    return plain.answer(plain.parser().parse_args([str(w) for w in words]))


@pytest.mark.slow
@pytest.mark.parametrize("few", ["cifar10-cnn", "cifar10-resnet20"], indirect=True)
def test_a_run_becomes_a_row_and_the_real_track_refuses_it(few, tmp_path, monkeypatch):
    runs, board = tmp_path / "runs", tmp_path / "board"
    wrote = said("run", few.name, *FEW, "--out", runs, "--to", board, "--device", "cpu", "--chosen", "validation")
    assert wrote == f"wrote {board / few.name / 'fedavg+lp.v1.json'}"
    told = CliRunner().invoke(app, ["submit", str(runs), "--track", few.name, "--folder", str(board)])
    assert told.exit_code == 0 and (board / few.name / "fedavg+lp.v2.json").exists()
    found = read(board / few.name)
    body = found["fedavg+lp"][0]
    assert len(body["rows"]) == 2 * 4 and len(body["rows"][0]["per_client"]) == 4
    assert body["seeds"]["0"]["seconds"]["train"] > 0

    made = said("page", "--folder", board, "--out", tmp_path / "board.html").splitlines()
    assert made == [f"wrote {tmp_path / 'board.html'}", f"wrote {board / few.name}.md"]
    table = (board / f"{few.name}.md").read_text()
    assert table.count("| fedavg+lp | ") == 2 and few.about in (tmp_path / "board.html").read_text()

    monkeypatch.undo()
    config = body["config"]
    for field, whole in (("data", config["data"] | {"clients": 20}), ("rounds", 100)):
        with pytest.raises(Unfit, match=f"config: {field} is not the track's; it must be .*(100|20)"):
            check(body)
        config[field] = whole
        body["digest"] = submission.digest(body)
    with pytest.raises(Unfit, match=r"seeds \['0'\] must be \['0', '1', '2'\]"):
        check(body)
    body["seeds"] |= {"1": body["seeds"]["0"], "2": body["seeds"]["0"]}
    body["digest"] = submission.digest(body)
    with pytest.raises(Unfit, match="seed 0: the hash of examples is [0-9a-f]{16}, the track's is a5a49dea680f9e85"):
        check(body)


def test_lone_clients_have_numbers_with_memo_like_the_others():
    """What docs/leaderboard.md says of the two clients that ran alone, when kernels read beyond a bias."""
    rows = json.loads((ROOT / "results/leaderboard/brfl-v1/cifar10-cnn/fedavg.v1.json").read_text())["rows"]
    by = {(r["adapter"], r["stream"], r["seed"]): r["per_client"] for r in rows}
    lone, others = [], []
    for seed, client in ((0, 15), (2, 17)):
        for stream in {r["stream"] for r in rows}:
            pairs = zip(by["memo", stream, seed], by["none", stream, seed], strict=True)
            gains = [100 * (a - b) for a, b in pairs]
            lone.append(gains.pop(client))
            others += gains
    said = f"these two clients are {-min(lone):.1f} points below to {max(lone):.1f} above themselves without it"
    said += f", as the others are ({-min(others):.1f} below to {max(others):.1f} above)"
    assert said in (ROOT / "docs/leaderboard.md").read_text()
