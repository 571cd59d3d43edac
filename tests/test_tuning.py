"""Searches: what a space is, what is looked at, what is run again, and what comes out."""

import json
import subprocess
import sys
import tomllib
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

import acclimate as ac
from acclimate import tuning
from acclimate.cli.main import app
from acclimate.data import Digits
from acclimate.experiment import ConfigError
from acclimate.experiment.settings import expand, merged
from acclimate.running import run as api
from acclimate.running import train
from acclimate.store import RunError
from acclimate.tuning import Choice, Range, parse, search, trials
from acclimate.tuning.space import to_toml

SMALL = ["method=fedprox", "model=mlp", "data.clients=3", "data.fraction=0.3", "rounds=2", "checkpoint_every=1"]
SMALL += ["method.work.epochs=1"]
RATES = "method.opt.lr=0.01,0.1"


@pytest.fixture
def _optuna():
    pytest.importorskip("optuna")


needs_optuna = pytest.mark.usefixtures("_optuna")


def scores(found):
    return [t.score for t in found.trials]


# --- spaces -----------------------------------------------------------------------------------------------------------


def test_commas_are_choices_dots_are_ranges_and_the_rest_stays():
    space = parse([*SMALL, "method.mu=0.001,0.1", "method.opt.lr=0.01..0.1:log", "rounds=2..5", "adapters=none,tent"])
    dims = {d.key: d for d in space.dims}
    assert dims["method.mu"] == Choice("method.mu", (0.001, 0.1))
    assert dims["method.opt.lr"] == Range("method.opt.lr", 0.01, 0.1, log=True)
    assert dims["rounds"] == Range("rounds", 2, 5, whole=True)
    assert ("adapters", "none,tent") in space.fixed  # commas make a tuple there, not a choice
    assert space.size == float("inf")


def test_settings_that_fit_only_together_are_tried_together():
    space = parse(["cohort=15", "data.clients=20", "method.opt.nesterov=true", "method.opt.momentum=0.5..0.9"])
    assert space.dims == (Range("method.opt.momentum", 0.5, 0.9),)
    assert space.experiment(space.corner).cohort == 15
    with pytest.raises(ConfigError, match="cohort, data.clients: Experiment: cohort=15 must be .* clients, 12"):
        parse(["cohort=15", "data.clients=20,12"])


@pytest.mark.parametrize("column", ["7", "007", "1e3", "1_000", "+5"])
def test_a_file_of_the_best_settings_names_columns_as_they_were_named(tmp_path, column):
    """A column of a table may be called 007; numbers of other fields are numbers, however they were written."""
    fixed = [("data", "table"), ("data.file", "x.csv"), ("data.label", column), ("method", "fedprox"), ("rounds", "5")]
    (tmp_path / "best.toml").write_text(to_toml([*fixed, ("method.mu", "1e-2"), ("method.opt.lr", "0.10")], "best"))
    (read,) = expand(merged(tmp_path / "best.toml", []))
    assert read.data.label == column and (read.rounds, read.method.mu, read.method.opt.lr) == (5, 0.01, 0.1)
    other = [(key, "y" if key == "data.label" else value) for key, value in fixed]
    space = parse([*other, ("data.client", f"a,{column}"), "method.mu=0.1,0.10"])
    assert [space.experiment(p).data.client for p in space.points()] == ["a", column]


def test_a_range_is_of_the_fields_own_type():
    assert parse(["method=fedprox", "method.mu=0..1"]).dims == (Range("method.mu", 0.0, 1.0),)
    assert parse(["adapters=tent", "adapters.tent.steps=1..3"]).dims == (
        Range("adapters.tent.steps", 1, 3, whole=True),
    )


def test_every_point_of_a_grid_is_an_experiment():
    space = parse([*SMALL, "method.mu=0.001,0.1", RATES])
    methods = [space.experiment(p).method for p in space.points()]
    assert [(m.mu, m.opt.lr) for m in methods] == [(0.001, 0.01), (0.001, 0.1), (0.1, 0.01), (0.1, 0.1)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method.muu=0.1,1"], "FedAvg has no 'muu'"),
        (["method=fedprox", "method.mu=0.1,-1"], "mu=-1"),
        (["rounds=5..2"], "the first number must be below the second"),
        (["method.opt.weight_decay=0..1:log"], "must start above 0"),
        (["model=mlp..cnn"], "there is no model 'mlp..cnn'"),
        (["device=1..2"], "a range needs a number"),
        (
            ["method.opt.lr=0.1.."],
            "lr: '0.1..' is not a number; a range has two: method.opt.lr=LOW..HIGH, or LOW..HIGH:log",
        ),
        (["rounds=..5"], "rounds: '..5' is not a whole number; a range has two: rounds=LOW..HIGH"),
        (["method.opt.lr=0.1..1:lin"], "'0.1..1:lin' is not a number; a range has two"),
        (["seed=0,1"], "use --seeds"),
        (["analysis=true", "rounds=1,2"], "test streams"),
        (["rounds"], "must be key=value"),
    ],
)
def test_bad_spaces_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        parse(settings)


def test_a_range_has_no_grid_and_a_point_is_no_space(tmp_path):
    with pytest.raises(ConfigError, match=r"method\.opt\.lr is a range"):
        parse(["method.opt.lr=0.1..1"]).points()
    with pytest.raises(ConfigError, match="nothing to search"):
        tuning.tune(["rounds=1"], tmp_path)


@pytest.mark.parametrize("grid", tuning.GRIDS, ids=lambda g: g.name)
def test_the_papers_grids_fit_our_records(grid):
    space = parse(grid.settings)
    assert space.size == grid.size > 1
    assert grid.place.split(",")[0].lower() == grid.name.split("/")[0]
    assert all(len(set(map(str, v))) == len(v) for _, v in grid.settings if isinstance(v, list))


def test_grids_are_found_by_name():
    assert tuning.grid("fedtta").name == "fedtta/fedtta"
    assert [d.key for d in parse(tuning.grid("fedthe/memo").settings).dims] == [
        "adapters.memo.views",
        "adapters.memo.steps",
    ]
    with pytest.raises(ConfigError, match="prints no grid"):
        tuning.grid("fedspl")
    with pytest.raises(ConfigError, match="did you mean 'fedthe/memo'"):
        tuning.grid("fedthe/meno")


# --- what a trial looks at --------------------------------------------------------------------------------------------


def spoiled(monkeypatch):
    """Worlds whose labels are wrong wherever a search has no business: test examples, newcomers, held-out domains."""
    true = Digits.world

    def world(self, seed):
        true_world = true(self, seed)
        hidden = torch.cat([*true_world.test, *true_world.new, true_world.held])
        y = true_world.examples.y.clone()
        y[hidden] = (y[hidden] + 1) % true_world.num_classes
        return replace(true_world, examples=replace(true_world.examples, y=y))

    monkeypatch.setattr(Digits, "world", world)


@needs_optuna
@pytest.mark.parametrize("on", [("original",), ("corrupted", "out-of-client")])
def test_labels_of_test_data_change_nothing(tmp_path, monkeypatch, on):
    settings = [*SMALL, RATES, "personal=finetune", "personal.work.epochs=1", "adapters=t3a", "streams=original"]
    streams = expand([f"streams={','.join(on)}"])[0].streams
    first = tuning.tune(settings, tmp_path / "a", on=streams)
    with monkeypatch.context() as patch:
        spoiled(patch)
        again = tuning.tune(settings, tmp_path / "b", on=streams)
        tested = ac.resume(tmp_path / "b" / "trials" / "000")
    assert scores(again) == scores(first) and again.best.values == first.best.values
    assert tested.accuracy(stream="original") < 0.5 * ac.resume(tmp_path / "a" / "trials" / "000").accuracy(
        stream="original"
    )  # the spy does spoil what it should


@needs_optuna
def test_the_score_is_the_validation_accuracy_of_the_selected_round(tmp_path):
    found = tuning.tune([*SMALL, RATES], tmp_path, seeds=2)
    for trial in found.trials:
        runs = sorted((tmp_path / trial.path).glob("*/metrics.jsonl"))
        best = [
            max((json.loads(line) for line in p.read_text().splitlines()), key=lambda r: r["val_accuracy"])
            for p in runs
        ]
        assert [s["round"] for s in trial.seeds] == [b["round"] for b in best]
        assert trial.score == pytest.approx(sum(b["val_accuracy"] for b in best) / 2, abs=1e-5)
        assert [s["seed"] for s in trial.seeds] == [0, 1]


def test_seeds_that_train_together_score_the_same(tmp_path, monkeypatch):
    space = parse([*SMALL, RATES])
    both = api.with_seeds([space.experiment(space.corner)], 2)
    apart = trials.run(both, tmp_path / "apart", [ac.shifts.Original()], ac.Watch())
    monkeypatch.setattr(trials, "_on_gpu", lambda experiment: True)
    seen = Stop(99)
    together = trials.run(both, tmp_path / "together", [ac.shifts.Original()], seen)
    assert [(s.accuracy, s.round) for s in together] == [(s.accuracy, s.round) for s in apart]
    assert seen.rounds == [1, 2, 1, 2]  # and nothing again for the score


def test_a_grid_over_numbers_trains_ahead_together_and_scores_the_same(tmp_path, monkeypatch):
    space = parse([*SMALL, "backend=vmap", RATES])
    points = [space.experiment(p) for p in space.points()]
    apart = [trials.run([e], tmp_path / f"apart{i}", [ac.shifts.Original()], ac.Watch()) for i, e in enumerate(points)]

    def joins(experiments, numbers=False):
        return numbers and len(experiments) > 1

    monkeypatch.setattr(trials, "_on_gpu", lambda experiment: True)
    monkeypatch.setattr(trials, "can_join", joins)
    monkeypatch.setattr(train, "can_join", joins)
    seen, folders = Stop(99), [tmp_path / f"{i}" for i in range(2)]
    trials.ahead(dict(zip(folders, ([e] for e in points), strict=True)), seen)
    assert seen.rounds == [1, 2]  # of both at once
    found = [trials.run([e], f, [ac.shifts.Original()], seen) for e, f in zip(points, folders, strict=True)]
    assert seen.rounds == [1, 2]
    assert [s[0].accuracy for s in found] == pytest.approx([s[0].accuracy for s in apart], abs=1e-4)


def test_streams_of_other_data_and_of_newcomers_are_refused(tmp_path):
    experiment = ac.Experiment()
    with pytest.raises(ConfigError, match="natural"):
        trials.check(experiment, [ac.shifts.Mixture(parts=(ac.shifts.Natural(),))])
    with pytest.raises(ConfigError, match="--on new-clients: clients that join later are there for the test alone"):
        trials.check(experiment, [ac.shifts.NewClients()])
    with pytest.raises(ConfigError, match="--on unseen-domain: a domain that is held out"):
        trials.check(experiment, [ac.shifts.UnseenDomain()])
    world = trials.validation_world(Digits(clients=3).world(0))
    with pytest.raises(ValueError, match="new"):
        ac.shifts.NewClients().build(world, 0)


@needs_optuna
def test_an_adapter_that_cannot_serve_is_named(tmp_path):
    seen = Stop(99)
    with pytest.raises(ConfigError, match=r"adapter tent .*normalisation"):
        tuning.tune([*SMALL, RATES, "adapters=tent"], tmp_path / "t", watch=seen)
    with pytest.raises(ConfigError, match=r"adapter tent .*normalisation"):  # of the second model alone
        tuning.tune([*SMALL[2:], "model=cnn-bn,mlp", "adapters=tent"], tmp_path / "t", watch=seen)
    assert seen.rounds == [] and not (tmp_path / "t").exists()


@needs_optuna
@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["adapters=guarded-t3a"], "judges by the validation examples that a search scores on"),
        (
            ["adapters=latte", "filters=local-dp", "method.weights=uniform"],
            "filter LocalDP is accounted for by rounds of training alone",
        ),
    ],
)
def test_an_adapter_that_a_search_cannot_score_is_refused_before_a_trial(tmp_path, more, why):
    with pytest.raises(ConfigError, match=f"which is scored.*{why}"):
        tuning.tune([*SMALL, RATES, *more], tmp_path / "t")
    assert not (tmp_path / "t").exists()


@needs_optuna
@pytest.mark.parametrize("more", [[], ["method.opt.lr=0.01..0.1", f"rounds={','.join(map(str, range(1, 200)))}"]])
def test_values_that_do_not_fit_together_are_refused_before_a_trial(tmp_path, more):
    settings = ["method=fedprox,fedavg", "method.mu=0.1,1", "model=mlp", *more]
    with pytest.raises(ConfigError, match=r"method.mu: FedAvg has no 'mu'"):
        tuning.tune(settings, tmp_path / "t", trials=2)
    assert not (tmp_path / "t").exists()


# --- stopping and going on --------------------------------------------------------------------------------------------


class Stop(ac.Watch):
    """Ctrl-C in the middle of the n-th training."""

    def __init__(self, n):
        self.n, self.rounds = n, []

    def training(self, label, seed, done, rounds):
        self.n -= 1

    def round(self, state):
        self.rounds.append(state.round)
        if self.n == 0 and state.round == 1:
            raise KeyboardInterrupt


@needs_optuna
@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_a_stopped_search_goes_on_and_ends_as_if_it_had_not_been(tmp_path, sampler):
    settings = [*SMALL, RATES, "method.mu=0.001,0.1"]
    whole = tuning.tune(settings, tmp_path / "whole", trials=4, sampler=sampler)
    with pytest.raises(KeyboardInterrupt):
        tuning.tune(settings, tmp_path / "cut", trials=4, sampler=sampler, watch=Stop(2))
    rest = Stop(99)
    cut = tuning.tune(settings, tmp_path / "cut", trials=4, sampler=sampler, watch=rest)
    assert rest.rounds[0] == 2  # from the checkpoint of round 1, and not from the start
    assert [(t.values, t.score) for t in cut.trials] == [(t.values, t.score) for t in whole.trials]
    again = Stop(99)
    tuning.tune(settings, tmp_path / "cut", trials=4, sampler=sampler, watch=again)
    assert again.rounds == []


@needs_optuna
def test_a_search_that_was_killed_goes_on_and_two_at_once_do_not(tmp_path):
    code = f"""
import acclimate as ac
from acclimate import tuning

class Kill(ac.Watch):
    def round(self, state):
        if state.round == 2:
            print("at work", flush=True)
            input()

tuning.tune({[*SMALL, RATES]!r}, {str(tmp_path)!r}, watch=Kill())
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "at work\n"
        with pytest.raises(RunError, match="another search is at work"):
            tuning.tune([*SMALL, RATES], tmp_path)
    finally:
        child.kill()
        child.communicate()
    (tmp_path / "journal.log.lock").write_text("")  # what optuna's own lock would have left behind
    rest = Stop(99)
    assert len(tuning.tune([*SMALL, RATES], tmp_path, watch=rest).trials) == 2
    assert rest.rounds == [2, 1, 2]  # the first from its checkpoint


@needs_optuna
def test_more_trials_go_on_and_another_space_is_refused(tmp_path):
    settings = [*SMALL, "method.opt.lr=0.01..0.2:log"]
    first = tuning.tune(settings, tmp_path, trials=1)
    more = tuning.tune(settings, tmp_path, trials=2)
    assert more.trials[0] == first.trials[0] and len(more.trials) == 2
    with pytest.raises(RunError, match="another search: space was"):
        tuning.tune([*SMALL, RATES], tmp_path, trials=2)
    with pytest.raises(RunError, match="another search: seeds was"):
        tuning.tune(settings, tmp_path, trials=2, seeds=2)


@needs_optuna
def test_another_space_is_refused_after_a_stop_in_the_first_trial(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        tuning.tune([*SMALL, RATES], tmp_path, watch=Stop(1))
    with pytest.raises(RunError, match="another search: space was"):
        tuning.tune([*SMALL, "method.mu=0.1,1"], tmp_path)
    assert "0 of 2 trials" in (tmp_path / "report.html").read_text()
    assert len(tuning.tune([*SMALL, RATES], tmp_path).trials) == 2


@needs_optuna
def test_a_point_is_not_trained_twice_and_a_failed_one_does_not_stop_the_rest(tmp_path, monkeypatch):
    trained = []

    def run(experiments, path, on, watch):
        mu = experiments[0].method.mu
        trained.append(mu)
        if mu == 1:
            raise ArithmeticError("round 0: the server's state is not finite")
        return [trials.Score(e.seed, mu, 1, 0.1) for e in experiments]

    monkeypatch.setattr(search.trials, "run", run)
    found = tuning.tune([*SMALL, "method.mu=0.1,0.5,1"], tmp_path, trials=12, sampler="random")
    assert sorted(trained) == [0.1, 0.5, 1]
    assert {t.values["method.mu"]: t.failed is None for t in found.trials} == {0.1: True, 0.5: True, 1: False}
    assert found.best.values == {"method.mu": 0.5} and sum(t.same_as is not None for t in found.trials) == 9


@needs_optuna
def test_an_adapter_that_diverges_is_a_failed_trial(tmp_path):
    settings = [*SMALL, "adapters=memo", "adapters.memo.views=2", "adapters.memo.opt.lr=0.001,1e30"]
    tame, wild = tuning.tune(settings, tmp_path).trials
    assert tame.score is not None and wild.score is None
    assert wild.failed == "adapter memo produced values that are not finite on original"


@needs_optuna
def test_a_folder_of_a_run_or_none_at_all_is_refused_by_name(tmp_path):
    for name in ("config.json", "index.json", "results.json"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("{}")
        with pytest.raises(RunError, match=rf"--out .* holds a run \({name}\); choose another"):
            tuning.tune([*SMALL, RATES], tmp_path / name)
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"--out .*file/t is no folder to write to \(Not a directory\); choose another"):
        tuning.tune([*SMALL, RATES], tmp_path / "file" / "t")


# --- what comes out ---------------------------------------------------------------------------------------------------


@needs_optuna
def test_best_toml_is_the_experiment_that_won_and_the_trial_can_be_tested(tmp_path):
    found = tuning.tune([*SMALL, RATES, "adapters=t3a,none", "method.mu=0.1"], tmp_path)
    assert tomllib.loads((tmp_path / "best.toml").read_text())["method.opt.lr"] == found.best.values["method.opt.lr"]
    (chosen,) = expand(merged(tmp_path / "best.toml", []))
    path = tmp_path / found.best.path
    assert chosen == ac.load(path).experiment
    assert not (path / "results.json").exists()
    assert ac.resume(path).accuracy(stream="original", adapter="none") > 0


@needs_optuna
@pytest.mark.parametrize("named", [[], ["personal=finetune"]])
def test_best_toml_names_the_method_where_the_settings_do_not(tmp_path, named):
    found = tuning.tune([*SMALL[1:], RATES, *named], tmp_path)
    best = tomllib.loads((tmp_path / "best.toml").read_text())
    assert best["method"] == "fedavg" and best["personal"] == ("finetune" if named else "none")
    assert expand(merged(tmp_path / "best.toml", [])) == [ac.load(tmp_path / found.best.path).experiment]


@needs_optuna
def test_tune_json_says_all_and_the_section_shows_it(tmp_path):
    grid = tuning.grid("fedicon/fedprox")
    found = tuning.tune([*SMALL, "method.mu=0.001,1"], tmp_path, grid=grid)  # settings win over the grid's
    card = json.loads((tmp_path / "tune.json").read_text())
    assert card["schema"] == "acclimate.tune/1" and card["grid"]["place"] == "FedICON, Appendix A.3"
    assert card["space"] == [{"key": "method.mu", "choices": [0.001, 1]}]
    assert card["chosen"]["score"] == max(scores(found)) and {"commit", "device"} <= set(card["environment"])
    text = tuning.section_html(card)
    assert "validation" in text and f"{100 * found.best.score:.1f} %" in text and text.count("<tr") == 3
    page = (tmp_path / "report.html").read_text()
    assert text in page and "http" not in page and "<script" not in page
    assert tuning.sections([tmp_path, tmp_path / "trials"]) == {f"Search {tmp_path.name}": text}


def test_searches_of_one_name_have_a_section_each(tmp_path):
    card = {"trials": [], "sampler": "grid", "seeds": [0], "chosen": None, "grid": None, "space": []}
    card |= {"score": {"streams": ["original"], "adapter": "none"}}
    paths = [tmp_path / name for name in ("a/s", "b/s", "b/t")]
    for planned, path in enumerate(paths):
        path.mkdir(parents=True)
        (path / "tune.json").write_text(json.dumps(card | {"planned": planned}))
    found = tuning.sections([*paths, paths[0]])
    assert list(found) == ["Search a/s", "Search b/s", "Search t"]
    assert all(f"0 of {i} trials" in text for i, text in enumerate(found.values()))


def test_the_section_escapes_and_shows_failures():
    trial = {"number": 0, "values": {"k<": "<b>"}, "score": None, "seeds": [], "failed": "x < y", "same_as": None}
    card = {"trials": [trial], "planned": 1, "sampler": "grid", "seeds": [0], "chosen": None, "grid": None}
    card |= {"score": {"streams": ["original"], "adapter": "none"}, "space": [{"key": "k<", "choices": ["<b>", "c"]}]}
    text = tuning.section_html(card)
    assert "<b>" not in text and "failed: x &lt; y" in text


@needs_optuna
def test_the_command_line_searches_and_says_what_to_do_next(tmp_path):
    args = ["tune", *SMALL, RATES, "--out", str(tmp_path / "t"), "--sampler", "grid", "--on", "original,corrupted"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert "(2 of 2 done)" in done.output and f"acclimate run -c {tmp_path / 't' / 'best.toml'}" in done.output
    card = json.loads((tmp_path / "t" / "tune.json").read_text())
    assert card["score"]["streams"] == ["original", "corrupted"]


@needs_optuna
def test_the_command_line_fails_where_every_trial_did(tmp_path):
    args = ["tune", *SMALL, "method.opt.lr=1e30,1e31", "--out", str(tmp_path / "t"), "--quiet"]
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 1 and f"no trial has a score; see {tmp_path / 't' / 'tune.json'}" in done.output


def test_the_command_line_lists_the_grids():
    done = CliRunner().invoke(app, ["tune", "--grids"])
    assert done.exit_code == 0
    assert all(g.name in done.output and g.place in done.output for g in tuning.GRIDS)


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r"acclimate\[tune\]"):
        tuning.tune([*SMALL, RATES], tmp_path)
