"""Searches and choices where few have been: settings given twice, odd names, large seeds, batches of one, int32."""

import json
import tomllib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

import acclimate as ac
from acclimate import tuning
from acclimate.cli.main import app
from acclimate.data.held import Held
from acclimate.experiment import catalogue
from acclimate.experiment.settings import expand, merged
from acclimate.ops.selection import WITHOUT_LABELS
from acclimate.running import run as api
from acclimate.store import RunError
from acclimate.tuning import Choice, parse
from acclimate.tuning.plan import SearchPlan
from acclimate.tuning.selecting import _candidates
from acclimate.tuning.space import to_toml
from acclimate.tuning.study import Study

TINY = ["method=fedprox", "model=mlp", "model.hidden=4", "data.clients=3", "data.fraction=0.2", "rounds=1"]
NONE, BN, TENT = (catalogue.ADAPTERS[name] for name in ("none", "bn", "tent"))
WILD = replace(TENT, opt=replace(TENT.opt, lr=1e38))
ORIGINAL, ALONE = ac.shifts.Original(batch=8), ac.shifts.LabelSorted(batch=1)
MODEL = ac.models.MLP(hidden=(4,), norm="batch")
SMALL = ac.Experiment(data=ac.data.Digits(clients=3, fraction=0.3), model=MODEL, rounds=1, adapters=(NONE, BN))


@pytest.fixture(scope="module")
def fit():
    return ac.train(SMALL)


@pytest.mark.parametrize("value", ["sensor 😀", "dé\x7f", 'tab\tquote"', 1e-05, float("inf"), True, [1, 2.5, "a"]])
def test_a_value_in_best_toml_is_read_as_it_was(value):
    assert tomllib.loads(to_toml([("a.b", value)], "head")) == {"a.b": value}


def test_nothing_is_called_none_in_best_toml(tmp_path):
    """TOML has no null."""
    (tmp_path / "best.toml").write_text(to_toml([("cohort", None), ("rounds", 3)], "head"))
    (read,) = expand(merged(tmp_path / "best.toml", []))
    assert read.cohort is None and read.rounds == 3


def test_of_a_setting_that_is_given_twice_the_last_counts():
    """As in a run: a choice that was given before is not searched, and best.toml names a key once."""
    space = parse(["method=fedprox", "method.mu=0.1,0.2", "rounds=1", "rounds=2,3", "method.mu=0.5"])
    assert space.dims == (Choice("rounds", (2, 3)),)
    assert [space.experiment(p).method.mu for p in space.points()] == [0.5, 0.5]
    assert tomllib.loads(to_toml(space.settings({"rounds": 2}), "head"))["rounds"] == 2


def test_large_seeds_can_be_searched_with(tmp_path):
    """numpy's seeds end at 2**32, and ours do not; those of small seeds are what they were."""
    pytest.importorskip("optuna")
    told = SimpleNamespace(samplers=SimpleNamespace(RandomSampler=lambda seed: seed))
    studies = [
        SimpleNamespace(optuna=told, seed=s, plan=SimpleNamespace(sampler="random")) for s in (3, 42_950, 10**12)
    ]
    seeds = [Study._proposer(study, 7) for study in studies]
    assert seeds == [300_016, 100_003 * 42_950 + 7 - 2**32, (100_003 * 10**12 + 7) % 2**32]
    found = tuning.tune([*TINY, "seed=50000", "method.mu=0.01..0.1:log"], tmp_path / "a", trials=1, sampler="random")
    assert found.best is not None and 0.01 <= found.best.values["method.mu"] <= 0.1


@pytest.mark.parametrize(("sampler", "spaces"), [("random", ["0..1", "1..9"]), ("grid", ["0.1,0.2", "1,2"])])
def test_a_search_goes_on_wherever_its_journal_was_cut_off(tmp_path, sampler, spaces):
    """By a full disk or a killed process: in a line, or between a trial and its values, which have their own lines."""
    pytest.importorskip("optuna")
    space = parse(["method=fedprox", f"method.mu={spaces[0]}", f"rounds={spaces[1]}"])
    plan = SearchPlan(space, tmp_path, sampler, 3, 1, (ORIGINAL,), None)
    study, path = Study(plan), tmp_path / "journal.log"
    points = [study.point(0), study.point(1)]
    study.add(0, {"seeds": []}, 0.5)
    whole = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == ord("\n")]
    for cut in sorted({0, *ends[-5:], *(e - 9 for e in ends[-5:])}):
        path.write_bytes(whole[:cut])
        mended = Study(plan)
        proposed = {n: mended.point(n) for n in mended.left()}
        assert proposed[1] == points[1] and proposed.get(0, points[0]) == points[0], cut
        assert Study(plan).left() == list(proposed)  # what was written behind the cut can be read
    assert len(ends) == 9 + 2 * (sampler == "grid") and 0 not in proposed
    path.write_bytes(whole.replace(b"op_code", b"op", 1))
    with pytest.raises(RunError, match=r"journal\.log: line 1 is damaged"):
        Study(plan)


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (["adapters=none,tent", "adapters.tent.params=norm,all", "adapters.tent.opt.lr=0.1,0.2"], 5),
        (["adapters.tent.params=norm,all", "adapters.tent.opt.lr=0.1,0.2"], 6),
        (["adapters=tent-all,tent", "adapters.tent-all.params=norm,all", "adapters.tent-all.steps=2"], 3),
        (["adapters=fedtta", "adapters.fedtta.patience=none,3", "adapters.fedtta.steps=1,5"], 4),
        (["adapters=none,,guarded-tent", "adapters.guarded-tent.adapter.opt.lr=0.1,0.2"], 3),
        (["method=fedthe", "adapters.the.alpha=0.1,0.2"], 5),
    ],
)
def test_settings_of_a_candidate_make_that_candidate(settings, count):
    """Those that make another entry of the catalogue of it, too: `tent` with params=all is `tent-all`."""
    space = parse(settings)
    found = _candidates(space)
    assert len(found) == count
    rest = [pair for pair in space.fixed if not pair[0].startswith("adapters")]
    assert [expand([*rest, *c.settings])[0].adapters for c in found.values()] == [(c.adapter,) for c in found.values()]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            ["data.clients=1", "--on", "out-of-client"],
            "'out-of-client' cannot be made from Digits: no client has an ex",
        ),
        (["method.work.batch=8,512"], "fewer than a batch (method.work.batch=512)"),
        (["method.work.batch=8..512"], "fewer than a batch (method.work.batch=512)"),
        (["data.clients=3,60"], "training examples, fewer than a batch"),
        (["data.split=0.8,0,0.2"], "has no validation examples to score on"),
        (["data.clients=1", "streams=out-of-client", "--select", "entropy"], "stream 'out-of-client' cannot be made"),
        (["data.split=0.8,0,0.2", "--select", "source"], "strategy source: Digits has no validation examples"),
    ],
)
def test_what_cannot_be_scored_is_refused_before_anything_is_trained(tmp_path, monkeypatch, more, message):
    pytest.importorskip("optuna")
    monkeypatch.setattr(api, "train", lambda *_: pytest.fail("was trained"))  # what --select calls
    space = ["adapters=none,bn", "model.norm=batch"] if "--select" in more else ["method.mu=0.1,0.2"]
    done = CliRunner().invoke(app, ["tune", *TINY, *space, *more, "-q", "-o", str(tmp_path / "a")])
    assert done.exit_code == 1 and message in str(done.exception)
    assert not list(tmp_path.rglob("*.safetensors")) and not (tmp_path / "a" / "tune.json").exists()


def test_a_candidate_that_cannot_be_served_in_these_batches_is_left_out_of_that_stream(fit):
    found = ac.select(fit, [NONE, BN], [ORIGINAL, ALONE], WITHOUT_LABELS)
    assert [(c["stream"], c["adapter"]) for c in found.candidates] == [
        ("original", "none"), ("original", "bn"), ("label-sorted", "none"),
    ]  # fmt: skip
    (why,) = found.left_out
    assert why.startswith("bn on label-sorted: batch norm needs two values per channel")
    assert {tuple(r["chosen"]) for r in found.rows if r["stream"] == "label-sorted"} == {("none",)}
    assert found.overall("entropy") == "none"  # bn is missing on a stream


def test_a_stream_without_a_candidate_is_left_out_and_not_the_whole_choice(fit):
    found = ac.select(fit, [BN, WILD], [ALONE, ORIGINAL], ("fixed",))
    assert [(r["stream"], r["chosen"]) for r in found.rows] == [("original", {"bn": 3})]
    gone = ["bn on label-sorted", "tent on label-sorted", "tent on original"]
    assert [w.partition(":")[0] for w in found.left_out] == gone
    with pytest.raises(ArithmeticError, match="no candidate's .* on any stream: bn on label-sorted: batch norm needs"):
        ac.select(fit, [BN], [ALONE], ("fixed",))


def test_estimates_leave_out_what_cannot_be_served_or_is_not_finite(fit):
    found = ac.estimates(fit, [NONE, BN, WILD], [ORIGINAL, ALONE], passes=0)
    pairs = dict.fromkeys((r["adapter"], r["stream"]) for r in found.rows)
    assert list(pairs) == [("none", "original"), ("none", "label-sorted"), ("bn", "original")]
    assert list(dict.fromkeys((c["adapter"], c["stream"]) for c in found.curves)) == list(pairs)
    alone = ac.estimates(fit, [BN], [ORIGINAL], passes=0)
    assert alone.rows == tuple(r for r in found.rows if r["adapter"] == "bn")


def test_a_run_keeps_its_table_where_nothing_can_be_chosen(tmp_path):
    """A table tells of adapters that diverge; to choose between these must not lose the run."""
    lost = replace(SMALL, adapters=(WILD,), streams=(ORIGINAL,), select=("entropy",), analysis=True)
    ac.run(lost, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["selected"]["rows"] == [] and "not finite" in results["selected"]["left_out"][0]
    assert "not finite" in results["refused"][0]["reason"]


def test_json_of_a_run_has_its_choices_and_the_exit_code_of_the_table(tmp_path):
    settings = [
        *TINY,
        "model.norm=batch",
        "streams=original",
        "streams.original.batch=4",
        "select=entropy",
        "-q",
        "--json",
    ]
    done = CliRunner().invoke(app, ["run", *settings, "adapters=none,bn", "-o", str(tmp_path / "a")])
    body = json.loads(done.stdout)
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert done.exit_code == 0 and list(body["selected"].values()) == [results["selected"]]
    wild = ["adapters=tent", "adapters.tent.opt.lr=1e38", "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(app, ["run", *settings, *wild])
    assert done.exit_code == 2 and json.loads(done.stdout.splitlines()[0])["rows"] == []


def test_labels_of_32_bits_give_the_numbers_of_64():
    """One client after the other, torch's own cross-entropy takes 64 bits alone."""
    x, y = torch.rand(240, 6, generator=torch.Generator().manual_seed(0)), torch.arange(240) % 3
    wide = ac.data.of(x, y, clients=3)
    held = wide.data.values
    short = replace(wide, data=Held("short", replace(held, y=held.y.to(torch.int32))))
    tables, errors = [], []
    for data in (wide, short):
        own = ac.train(ac.Experiment(data=data, model=MODEL, rounds=1, backend=ac.backends.Serial()))
        rows = ac.evaluate(own, [NONE, BN], [ORIGINAL]).rows
        tables.append([{k: v for k, v in row.items() if k != "settings"} for row in rows])
        errors.append(ac.estimates(own, [NONE], [ORIGINAL], passes=0).rows)
    assert tables[0] == tables[1] and errors[0] == errors[1]
