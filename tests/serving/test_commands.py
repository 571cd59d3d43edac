"""From a run to answers by commands alone: deploy, predict, tokens, replay, and what they refuse."""

import csv
import json

import numpy as np
import pytest
import torch
from federation import lives, stream

import acclimate as ac
from acclimate.cli import deploy, predict, serve
from acclimate.live import load_live
from acclimate.serving import checkpoint
from acclimate.serving.host import Host
from acclimate.serving.records import Ask
from acclimate.serving.run import open_front
from acclimate.serving.service import Service
from acclimate.store import RunError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    e = ac.Experiment(
        data=ac.data.Digits(clients=3),
        model=ac.models.MLP(hidden=(8,), norm="batch"),
        method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=16)),
        adapters=(ac.adapters.NoAdapt(),),
        streams=(ac.shifts.Original(),),
        rounds=1,
    )
    folder = tmp_path_factory.mktemp("run") / "one"
    ac.run(e, folder)
    return folder


def test_deploy_writes_live_folders(run, tmp_path, capsys):
    deploy.deploy(run, ["adapters=tent"], out=tmp_path / "live", guard=False, window=16)
    assert [p.name for p in checkpoint.found([tmp_path / "live"])] == ["client-0", "client-1", "client-2"]
    live = load_live(tmp_path / "live" / "client-2")
    assert live.adapter == ac.adapters.Tent() and live.client == 2
    assert live.session["window"].shape[0] == 16
    assert "3 clients with tent, model of round 1" in capsys.readouterr().out
    with pytest.raises(RunError, match="holds a live model; pass --overwrite"):
        deploy.deploy(run, ["adapters=tent"], client="1", out=tmp_path / "live")
    deploy.deploy(run, ["adapters=tent"], client="1", out=tmp_path / "live", overwrite=True)
    assert isinstance(load_live(tmp_path / "live" / "client-1").adapter, ac.adapters.Guarded)
    for bad, says in {"x": "--client x must be a number", "7": "client=7 must be from 0 to 2"}.items():
        with pytest.raises(ValueError, match=says):
            deploy.deploy(run, [], client=bad, out=tmp_path / "other")
    with pytest.raises(ValueError, match="leave model= out"):
        deploy.deploy(run, ["model=0"], out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_site_serves_what_a_fleet_left_there(tmp_path):
    """`acclimate fleet deploy` leaves deployed/CLIENT and a card in the folder of a site."""
    lives()[2].save(tmp_path / "site" / "deployed" / "2")
    (tmp_path / "site" / "deployed" / "card.json").write_text("{}")
    for path in (tmp_path / "site", tmp_path / "site" / "deployed", tmp_path / "site" / "deployed" / "2"):
        assert checkpoint.found([path]) == [tmp_path / "site" / "deployed" / "2"]
    front = open_front([tmp_path / "site"])
    answer = front.service.answer([Ask(2, "a", stream(2, 9))])[0]
    assert torch.equal(answer.probabilities, lives()[2](stream(2, 9)).probabilities)
    front.service.close()
    (tmp_path / "empty" / "deployed").mkdir(parents=True)
    lives()[2].save(tmp_path / "run" / "live" / "client-2")  # where `acclimate deploy RUN` writes
    assert checkpoint.found([tmp_path / "run"]) == [tmp_path / "run" / "live" / "client-2"]
    with pytest.raises(RunError, match="holds no live model; make live models with: acclimate deploy RUN -o"):
        checkpoint.found([tmp_path / "empty"])


def test_predict_answers_as_the_live_model_and_saves_it(tmp_path, capsys):
    folder, x = tmp_path / "live", stream(0, 40)
    lives()[0].save(folder)
    np.save(tmp_path / "x.npy", x.numpy())
    before = (folder / "live.json").read_bytes()
    predict.predict(folder, tmp_path / "x.npy", tmp_path / "frozen.csv", frozen=True)
    assert (folder / "live.json").read_bytes() == before
    predict.predict(folder, tmp_path / "x.npy", tmp_path / "a.csv", frozen=False, batch=8)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    alone = lives()[0]
    want = [answer for part in x.split(8) for answer in [alone(part)]]
    assert [r["answer"] for r in rows] == [label for a in want for label in a.labels]
    assert [int(r["adapted"]) for r in rows] == [int(v) for a in want for v in a.adapted]
    assert float(rows[39][alone.classes[2]]) == pytest.approx(float(want[-1].probabilities[-1, 2]), rel=1e-4)
    after = load_live(folder)
    assert after.step == alone.step == 5 and not after.frozen
    with pytest.raises(RunError, match=r"a.csv is there already"):
        predict.predict(folder, tmp_path / "x.npy", tmp_path / "a.csv")


def test_tokens_and_replay_by_command(tmp_path, capsys):
    for live in lives():
        live.save(tmp_path / "live" / f"client-{live.client}")
    serve.tokens(tmp_path / "tokens.json", [tmp_path / "live"])
    shown = capsys.readouterr().out
    assert len([line for line in shown.splitlines() if line.startswith("client ")]) == 4
    assert json.loads((tmp_path / "tokens.json").read_text())["clients"].keys() == {"0", "1", "2", "3"}
    checkpoint.begin(tmp_path / "serving", lives(), "digits")
    service = Service(Host(lives()), tmp_path / "serving")
    service.answer([Ask(c, "a", stream(c, 9)) for c in (0, 3)])
    digests = service.close()
    for start in (None, tmp_path / "live"):
        serve.replay(tmp_path / "serving", start)
        out = capsys.readouterr().out
        assert all(f"client {c}  {d}" in out for c, d in digests.items())
        assert "2 requests in 1 step, " in out and "the same bits" in out
    with pytest.raises(RunError, match="holds no log; give a server's folder"):
        serve.replay(tmp_path / "nothing")
    with pytest.raises(ValueError, match="--queue 0 must be at least 1"):
        serve.serve([tmp_path / "live"], queue=0)
    for value in (float("nan"), float("inf")):  # a request would wait for ever, or no checkpoint be written
        for option in ("window_ms", "checkpoint_seconds", "log_mb"):
            with pytest.raises(ValueError, match="must be at least 0, and finite"):
                serve.serve([tmp_path / "live"], **{option: value})
