"""Strategies on the command line: what runs note, what compare reads, and what tune chooses."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import acclimate as ac
from acclimate import tuning
from acclimate.cli.main import app
from acclimate.experiment import ConfigError, Experiment, dumps, loads
from acclimate.experiment.settings import expand
from acclimate.running.chosen import words
from acclimate.store import RunError

SMALL = ["model=mlp", "model.norm=batch", "model.hidden=8", "data.clients=3", "rounds=1", "method.work.epochs=1"]
SMALL += ["method=fedavg", "streams=original"]


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    path = tmp_path_factory.mktemp("selected") / "run"
    done = CliRunner().invoke(app, ["run", *SMALL, "adapters=none,bn", "select=entropy,oracle", "-q", "-o", str(path)])
    assert done.exit_code == 0, done.output
    return path, done.output


def test_results_note_every_strategy_and_its_gap(tested):
    path, said = tested
    results = json.loads((path / "results.json").read_text())
    rows = results["selected"]["rows"]
    assert [r["strategy"] for r in rows] == ["entropy", "oracle"]
    table = {r["adapter"]: r for r in results["table"] if r["selection"] == "last"}
    best = max(table.values(), key=lambda r: r["accuracy"])
    for row in rows:
        (chosen,) = row["chosen"]
        assert row["per_client"] == table[chosen]["per_client"]
        assert row["gap"] == pytest.approx(best["accuracy"] - table[chosen]["accuracy"], abs=4e-6)
    assert "| original | oracle (test labels) |" in said
    text = (Path(__file__).parents[1] / "docs" / "results.md").read_text()
    fields = {*results["selected"], *rows[0], *results["selected"]["candidates"][0]}
    assert sorted(f for f in fields if f"`{f}`" not in text) == []


def test_a_run_that_was_not_asked_notes_nothing_and_old_configs_mean_none():
    body = json.loads(dumps(Experiment()))
    assert body["experiment"].pop("select", []) in ([], {"tuple": []}, ())
    old = {k: v for k, v in body.items() if k != "digest"} | {"schema": body["schema"].replace("/2", "/1")}
    assert loads(json.dumps(old)).select == ()
    asked = expand(["select=snd,source"])[0]
    assert asked.select == ("snd", "source") and asked.settings() == Experiment().settings()
    assert asked.training_hash() == Experiment().training_hash()
    with pytest.raises(ConfigError, match="select: 'best' is not possible"):
        expand(["select=best"])
    with pytest.raises(ValueError, match="select='best' is not possible; allowed: fixed"):
        Experiment(select=("best",))


def test_what_cannot_be_chosen_by_is_refused_before_training(tmp_path):
    bare = expand([*SMALL, "select=source", "backend=flower"])[0]
    with pytest.raises(ValueError, match="may not leave the nodes"):
        ac.run(bare, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_compare_reads_choices_and_says_the_gap(tested, tmp_path):
    path, out = tested[0], tmp_path / "c.json"
    done = CliRunner().invoke(app, ["compare", str(path), "--select", "entropy", "-o", str(out)])
    assert done.exit_code == 0, done.output
    body = json.loads(out.read_text())
    (row,) = [r for r in json.loads((path / "results.json").read_text())["selected"]["rows"] if r["gap"] >= 0][:1]
    assert body["select"] == "entropy" and body["first"] == "fedavg with what entropy chose"
    assert body["second"] == "fedavg" and body["differences"][0]["first"] == pytest.approx(row["accuracy"], abs=2e-6)
    (chosen,) = row["chosen"]
    said = f"On original, entropy chose {chosen} for fedavg: {100 * row['gap']:.1f} points below the oracle."
    assert body["choices"] == [said] and said in " ".join(done.output.split())
    named = ac.compare(path, rows=["fedavg/oracle", "fedavg/bn"], select="oracle")
    assert "oracle chose by test labels" in named.choices[0] and named.first == "fedavg with what oracle chose"
    by_name = ac.compare(path, rows=["fedavg", "fedavg/bn"], select="entropy")  # not the method without adaptation
    assert by_name.first == "fedavg with what entropy chose" and by_name.choices == (said,)
    assert ac.compare(path, rows=["fedavg", "fedavg/bn"]).first == "fedavg"
    with pytest.raises(ValueError, match="select=snd: no run here chose so; run the experiment with select=snd"):
        ac.compare(path, select="snd")
    with pytest.raises(ValueError, match="select='best' is not possible"):
        ac.compare(path, select="best")
    assert ac.compare(path).choices == ()


RATES = ["adapters=none,tent", "adapters.tent.opt.lr=0.001,0.3"]


def test_tune_chooses_between_settings_of_adapters_and_prints_the_gap(tmp_path):
    found = tuning.choose([*SMALL, *RATES], tmp_path / "s", ["entropy", "oracle"])
    fit = ac.train(expand([*SMALL, *RATES])[0])
    tents = [a for e in expand([*SMALL, *RATES]) for a in e.adapters[1:]]
    again = ac.select(fit, [ac.adapters.NoAdapt(), *tents], strategies=("entropy", "oracle"))
    assert found.selection == again
    top = max(again.candidates, key=lambda c: c["scores"]["entropy"])["adapter"]
    assert found.name == top == "tent(opt.lr=0.3)" and found.strategy == "entropy"  # it minimises entropy fastest
    best = tomllib.loads((tmp_path / "s" / "best.toml").read_text())
    (chosen,) = expand(list(best.items()))
    assert chosen.adapters == (tents[1],) and chosen.rounds == 1
    card = json.loads((tmp_path / "s" / "select.json").read_text())
    assert card["strategy"] == "entropy" and card["chosen"]["adapter"] == top
    assert card["gap"] == pytest.approx(again.gap("entropy")) and len(card["candidates"]) == 3
    with pytest.raises(RunError, match="select.json already"):
        tuning.choose([*SMALL, *RATES], tmp_path / "s", ["entropy"])


def test_tune_says_on_the_command_line_who_chose(tmp_path):
    done = CliRunner().invoke(app, ["tune", *SMALL, *RATES, "--select", "oracle", "-q", "-o", str(tmp_path / "s")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "oracle (by test labels: no result) chose" in said and "0.0 points below the oracle" in said


@pytest.mark.parametrize(
    ("settings", "strategies", "said"),
    [
        (RATES, ["best"], "--select best is not possible; allowed: fixed"),
        (["adapters=tent"], ["entropy"], "tent is the only candidate"),
        (
            [*RATES, "method.opt.lr=0.1,0.2"],
            ["entropy"],
            "method.opt.lr: --select chooses between settings",
        ),
        (["adapters=tent", "adapters.tent.opt.lr=0.1..0.2"], ["snd"], "is a range, which has no end"),
    ],
)
def test_what_tune_cannot_choose_is_refused(tmp_path, settings, strategies, said):
    with pytest.raises(ConfigError, match=said):
        tuning.choose([*SMALL, *settings], tmp_path / "s", strategies)
    assert not (tmp_path / "s").exists()


def test_options_of_the_search_do_not_go_with_select(tmp_path):
    done = CliRunner().invoke(app, ["tune", *SMALL, *RATES, "--select", "snd, best", "-o", str(tmp_path / "s")])
    assert done.exit_code != 0 and "--select best is not possible" in str(done.exception)
    done = CliRunner().invoke(app, ["tune", *SMALL, *RATES, "--select", "snd", "--on", "corrupted"])
    assert done.exit_code != 0 and "leave out --trials" in str(done.exception)


def test_words_say_the_mean_gap_over_seeds():
    rows = [
        {"stream": "a", "strategy": "snd", "chosen": {"bn": 3}, "gap": 0.05},
        {"stream": "a", "strategy": "snd", "chosen": {"tent": 3}, "gap": 0.15},
    ]
    assert words("fedavg", rows) == ["On a, snd chose bn, tent for fedavg: 10.0 points below the oracle."]
