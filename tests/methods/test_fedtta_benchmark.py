"""The benchmark of FedTTA's Table 1: it has every published row, adds what is missing, goes on where it was cut."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from acclimate.core import Work
from acclimate.models import MLP, Mixed
from support import gap

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fedtta.py"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # it imports its neighbours as it does where it is run
    spec = importlib.util.spec_from_file_location("fedtta_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclass looks up its own module
    spec.loader.exec_module(module)
    return module


def test_it_has_every_row_and_column_of_the_published_table(bench):
    paper = bench.printed()
    assert set(paper) == {(r, d, s) for r in bench.TABLE for d in bench.COLUMNS for s in ("validation", "test")}
    assert all(0 < accuracy < 100 for accuracy in paper.values())
    assert set(bench.PRESETS) == {*bench.COLUMNS, "digits"}
    for name, preset in bench.PRESETS.items():
        lines = bench.rows(preset)
        assert set(bench.TABLE) <= set(lines) == set(bench.ROWS)
        assert {r.training for r in lines.values()} == set(bench.trainings(preset))
        if name != "digits":
            plain = Work(iterations=20, batch=64)  # without a bound, where --clip gives none
            assert bench.experiment(preset, "fedtta", 0).method.work == plain


def test_table_4_is_in_the_presets(bench):
    cifar = bench.trainings(bench.PRESETS["cifar10"])
    tta, prox = cifar["fedtta"], cifar["fedtta-prox"]
    assert (tta.inner_lr, tta.opt.lr, tta.net_opt.lr, tta.mu) == (0.5, 0.05, 0.005, 0.0)
    assert (prox.inner_lr, prox.opt.lr, prox.net_opt.lr, prox.mu) == (0.3, 0.1, 0.003, 0.001)
    assert (cifar["fedgma"].server_lr, cifar["afl"].lambda_lr, cifar["scaffold"].server_lr) == (1.5, 0.3, 1.5)
    assert bench.rows(bench.PRESETS["mnist"])["fedtta++"].adapter.patience == 1


def test_it_adds_what_is_missing_and_shows_it(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc")
    monkeypatch.setattr(bench.store, "environment", lambda device: {"commit": None})
    out = tmp_path / "out.json"

    def run(*args):
        monkeypatch.setattr("sys.argv", ["x", "--data", "digits", *args])
        bench.main()
        return capsys.readouterr().out

    some = ["--rounds", "4", "--every", "2", "--out", str(out), "--rows"]
    run(*some, "fedavg", "tent")
    assert run(*some, "tent").strip() == "digits, fedavg, seed 0: there already"
    run(*some, "fedavg", "fedtta")
    records = json.loads(out.read_text())["records"]
    assert [[r["row"] for r in record["rows"]] for record in records] == [["fedavg", "tent"], ["fedtta"]]
    first = records[0]["rows"][0]
    assert [c[0] for c in first["curve"]] == [2, 4] and first["last"]["round"] == 4
    assert first["best"]["validation"] == max(c[1] for c in first["curve"])
    assert records[0]["environment"]["commit"] == "abc"
    assert list(tmp_path.iterdir()) == [out]  # no checkpoint is left
    shown = run("--show", str(out)).splitlines()
    assert shown[2].startswith(f"| digits | fedavg | 1 | {100 * first['best']['validation']:.1f} |")
    assert [line.split(" | ")[1] for line in shown[2:]] == ["fedavg", "tent", "fedtta"]


def digits(bench, out, seeds=(0,), row="fedavg", method=None, **size):
    """Seeds of a training on the embedded digits, ready to go; `method` changes fields of what is trained."""
    preset = bench.PRESETS["digits"]
    asked = {row: bench.rows(preset)[row]}
    size = bench.Size(**{"rounds": 5, "every": 2, **size})
    found = [bench.experiment(preset, row, seed, size) for seed in seeds]
    return [
        bench.Run.opened(bench.replace(e, method=bench.replace(e.method, **(method or {}))), asked, out) for e in found
    ]


def test_a_training_that_was_cut_goes_on_to_the_same_result(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(bench, "CHECKPOINT", 0.0)
    (whole,) = digits(bench, tmp_path / "a.json")
    bench.train([whole])
    whole.close()
    rounds = bench.loop.rounds

    def cut(*args):
        for state in rounds(*args):
            if state.round > 3:
                raise KeyboardInterrupt
            yield state

    monkeypatch.setattr(bench.loop, "rounds", cut)
    with pytest.raises(KeyboardInterrupt):
        bench.train(digits(bench, tmp_path / "b.json"))
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(bench.loop, "rounds", rounds)
    (rest,) = digits(bench, tmp_path / "b.json")
    assert rest.state.round == 3
    bench.train([rest])
    rest.close()
    assert rest.curves == whole.curves and not list(tmp_path.iterdir())


def test_seeds_that_train_together_give_what_each_gives_alone(bench, tmp_path):
    # at the preset's inner rate rounding grows within a round: Serial against Vmap from 1e-8 to 1e-3
    gentle = {"inner_lr": 0.02}
    alone, lanes = (digits(bench, tmp_path / "x.json", (0, 1), "fedtta", gentle, rounds=2, clients=6) for _ in "ab")
    for run in alone:
        bench.train([run])
    bench.train(lanes)
    for mine, other in zip(lanes, alone, strict=True):
        assert mine.state.round == 2 and gap(mine.state.server, other.state.server) < 1e-5
        assert mine.curves["fedtta"] == [pytest.approx(c, abs=1e-6) for c in other.curves["fedtta"]]
    assert gap(lanes[0].state.server, lanes[1].state.server) > 1e-3


def test_seeds_run_at_once_on_a_gpu_if_they_are_equally_far(bench, tmp_path, monkeypatch):
    first, second, third = runs = digits(bench, tmp_path / "x.json", (0, 1, 2))
    seeds = [run.experiment for run in runs]
    assert bench.together(seeds) == [[e] for e in seeds]  # a CPU has nothing to fill
    monkeypatch.setattr(bench.api, "device_of", lambda _: torch.device("cuda"))
    assert bench.together(seeds) == [seeds]
    mixed = [bench.experiment(bench.DIGITS, "fedmd", seed) for seed in (0, 1)]
    assert bench.together(mixed) == [[e] for e in mixed]
    second.state = bench.replace(second.state, round=2)
    assert bench.level(runs) == [[first, third], [second]]


def test_clients_of_several_architectures_are_looked_at_less_often(bench):
    mnist, cifar = (bench.PRESETS[name] for name in ("mnist", "cifar10"))
    one, mixed = (bench.experiment(cifar, training, 0) for training in ("fedtta", "hetero-0.8"))
    assert (one.eval_every, mixed.eval_every) == (10, 50)
    assert mixed.model == Mixed() and mixed.data.share == 0.1 and mixed.data.clients == 50
    widths = tuple(MLP((h, h)) for h in (100, 200, 400))
    assert bench.experiment(mnist, "fedmd", 0).model == Mixed(widths) and mnist.world.model == widths[1]


def test_a_small_federation_of_several_architectures_is_trained_and_scored(bench, tmp_path):
    (run,) = digits(bench, tmp_path / "x.json", row="hetero-0.8", rounds=1, clients=3, fraction=0.2)
    run.asked["fedtta-5"] = bench.rows(bench.PRESETS["digits"])["fedtta-5"]
    run.curves["fedtta-5"] = []
    joined = []
    run.engine.join = lambda *args, join=run.engine.join: joined.append(join(*args)) or joined[-1]
    bench.train([run])
    assert {name: len(curve) for name, curve in run.curves.items()} == {"hetero-0.8": 1, "fedtta-5": 1}
    assert len(joined) == 1  # newcomers learn once for all rows
