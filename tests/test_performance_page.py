"""The page of performance says what is stored: its first table, its figures by topic, and every file of a benchmark."""

import importlib
import json
import re
import statistics
import sys
import types
from pathlib import Path

import pytest
import torch

import acclimate as ac
from acclimate.backends import Vmap
from acclimate.backends.vmap.buckets import Buckets
from acclimate.core import fit

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "performance.md").read_text()
FLAT = " ".join(PAGE.split())
STORED = ROOT / "results" / "benchmarks"


def figures(name):
    return json.loads((STORED / f"{name}.json").read_text())


def every():
    """How many times faster than the loop each adapter is, of each the file that comes last."""
    files = [figures(f"testtime-every-h200{n}") for n in ("", "-second", "-third")]
    return {row["adapter"]: row["times_faster"] for file in files for row in file["rows"]}


def missing(*said):
    return [text for text in said if text not in FLAT]


@pytest.fixture(scope="module")
def newest():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("newest")
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_first_table_is_what_the_files_hold(newest):
    """Every line of it, made anew from its JSON; and nothing stands between them that no file holds."""
    wanted = newest.page().splitlines()
    lines = PAGE.splitlines()
    start = lines.index(wanted[0])
    assert lines[start : start + len(wanted) - 2] == wanted[:-2]
    assert lines[start + len(wanted) - 2] == "" and missing(f"measured {wanted[-1]}.") == []


def test_a_row_says_what_its_file_says(newest):
    """By hand, for one row of each form."""
    table = {row.work: newest.cells(row) for row in newest.ROWS}
    round, seeds = figures("gpu-h200-fedavg"), figures("gpu-h200-seeds")
    seconds = {way: t["median"] for way, t in round["workloads"]["fedavg-20"]["seconds"].items()}
    for kind, way, wanted in (("fp32", "ours", 50), ("TF32", "ours, TF32", 90), ("bf16", "ours, bf16", 130)):
        ratio = seconds["plain"] / seconds[way]
        _, goal, reached, said, *source = table[f"FedAvg, 20 clients, CNN, {kind}"]
        assert (goal, reached) == (f"{wanted} times", "no" if ratio < wanted else "yes")
        assert said == f"{ratio:.1f} times ({newest.took(seconds[way])}, the loop {seconds['plain']:.3g} s)"
        assert source == ["`gpu.py --only fedavg-20`", round["commit"], "`gpu-h200-fedavg.json`"]
    took = seeds["workloads"]["three-seeds"]["seconds"]
    one, three = (took[way]["median"] for way in ("one seed", "three seeds"))
    said = [newest.took(three), newest.took(one)]
    assert table["three seeds of it, TF32"][2:4] == ["no" if three > 0.25 else "yes", "{} (one seed {})".format(*said)]
    ratio = figures("scale-cpu-million")["mapped"]["largest_over_smallest"]
    assert table["a million clients, CPU"][1:3] == ["at most 1.2 times", "yes" if ratio <= 1.2 else "no"]
    layer = [r for r in figures("conv-h200-layers")["implicit"]["rows"] if r["precision"] == "tf32"]
    top = figures("conv-h200-layers")["ceilings"]["flop_per_second"]["tf32"]
    flops = 2 * 20 * 32 * 10 * 10 * 64 * 32 * 25  # 20 clients, batch 32, 10 x 10 pixels, 32 to 64 channels, 5 x 5
    shares = [100 * flops / (r["implicit_ms"] / 1000) / top for r in layer]
    mean = statistics.mean(shares)
    assert len(layer) == 3
    assert table["its second layer alone, of that"][1:3] == ["30 %", "yes" if mean >= 30 else "no"]
    assert table["its second layer alone, of that"][3].startswith(f"{mean:.0f} % (forward {shares[0]:.0f}, ")
    taken = figures("mbsl-h200")["seconds"]
    said = f"{sum(taken['first']):.1f} s for 4 sets ({sum(taken['second']):.1f} s when they come again)"
    assert table["MBSL on sets of PACS' sizes"][1:4] == ["25 s", "yes", said]
    ways = every()
    middle = f"median {statistics.median(ways.values()):.1f};"
    said = f"{min(ways.values()):.1f} (`{min(ways, key=ways.get)}`) times the loop or more, {middle}"
    assert said in table["adapters on a GPU, each"][3] and table["adapters on a GPU, each"][2] == "yes"


def test_goals_are_read_by_their_unit(newest):
    assert [newest.took(s) for s in (0.0125489, 0.09994, 0.27930, 8.6313)] == [
        "12.5 ms",
        "99.9 ms",
        "0.279 s",
        "8.63 s",
    ]
    assert [newest.reached("50 times", v) for v in (49.9, 50.0, None)] == ["no", "yes", ""]
    assert [newest.reached("0.25 s", v) for v in (0.25, 0.251)] == ["yes", "no"]
    assert [newest.reached("at most 1.2 times", v) for v in (1.2, 1.21)] == ["yes", "no"]
    assert newest.reached("50 %", 41.0) == "no" and newest.reached("", 3.0) == ""
    failed = {"workloads": {"resnet18": {"status": "failed", "reason": "took longer than 50 s"}}}
    assert newest.against_loop("resnet18")(failed) == (None, "not measured: took longer than 50 s")
    record = {"status": "ok", "times_faster": {"ours": 2.0}, "scaled_from_share": {"plain": 0.25}}
    record["seconds"] = {"plain": {"median": 0.18}, "ours": {"median": 0.09}}
    said = "2.0 times (90 ms, the loop 0.18 s, scaled from 25 % of its steps)"
    assert newest.against_loop("a")({"workloads": {"a": record}}) == (2.0, said)
    assert newest.recording(*({"seconds": {"first": s, "replayed": 0.5}} for s in (2.0, 5.0, 3.0))) == (
        4.5,
        "1.5 s, 4.5 s and 2.5 s (the first round 2 s, 5 s and 3 s, a replayed one 0.5 s)",
    )


def test_what_is_not_reached_is_said(newest):
    """The sentence below the table names as many goals as the table has a no for."""
    cells = [newest.cells(row) for row in newest.ROWS]
    assert [c[0] for c in cells if c[2] == "no"] == [
        "THE+ on two CPU cores",
        "a round on two CPU cores against Flower, x86",
    ]
    assert [c[0] for c in cells if c[3].startswith("not measured")] == []
    said = "**Not reached** are THE+ on two CPU cores"
    assert missing(said, "and 1.6 times Flower on x86 ([why]") == []


def test_what_a_user_should_know_was_measured():
    precision = figures("gpu-h200-fedavg")["workloads"]["fedavg-20"]["precision"]["relative_distance_from_float32"]
    said = [f"TF32 is {100 * precision['tf32']:.1f} % of the distance", f"and bf16 {100 * precision['bf16']:.1f} %"]
    files = {"fedavg-20": "fedavg", "three-seeds": "seeds", "zipf": "zipf", "pfl-cifar10": "others"}
    files |= {"flute-femnist": "others", "resnet20-gn": "resnets", "resnet20-bn": "resnets", "resnet18": "resnet18"}
    work = {name: figures(f"gpu-h200-{file}")["workloads"][name] for name, file in files.items()}
    said += [f"`{name}` {record['peak_memory_gib']:.1f}" for name, record in work.items()]
    blazefl = figures("gpu-h200-blazefl")["workloads"]
    said += [f"`{name}` {record['peak_memory_gib']:.1f}" for name, record in blazefl.items()]
    cnn, resnet = (blazefl[name]["run"] for name in ("blazefl-cnn", "blazefl-resnet18"))
    said += [f"takes {cnn['seconds']:.2f} s with the CNN, and {resnet['seconds']:.1f} s with ResNet-18"]
    said += [f"of {cnn['seconds_of_first_rounds']:.1f} and {resnet['seconds_of_first_rounds']:.1f} s that compile"]
    assert cnn["rounds"] == resnet["rounds"] == 5
    lora = figures("lora-h200")["precisions"]["bf16"]["memory"]
    said += [f"takes {lora['all_clients_gib']:.1f}, {lora['times_one_client_plus_activations']:.2f} times one client"]
    three, pfl, flute = (work[name] for name in ("three-seeds", "pfl-cifar10", "flute-femnist"))
    said += [f"cost {three['cost_in_seeds']:.2f} of one in TF32, and {three['cost_in_seeds_float32']:.2f} in float32"]
    said += [f"waste {100 * work['zipf']['padding']['waste']:.1f} % of their steps"]
    said += [f"the {100 * flute['padding']['waste']:.1f} % in `gpu-h200-others.json` count that room"]
    said += [f"takes {pfl['run']['seconds']:.1f} s, {pfl['pfl_research']['times_faster']:.0f} times less"]
    said += [f"take {pfl['run']['seconds_of_first_rounds']:.1f} s with compiling"]
    said += [f"{flute['run']['rounds']} rounds of `flute-femnist` with evaluation take {flute['run']['seconds']:.1f} s"]
    said += [f"{flute['flute_readme']['times_faster']:.1f} times less than FLUTE's README"]
    tries = ("-cached", "", "-again", "-once-more", "-eighth", "-ninth", "-sixth", "-seventh")
    tries += ("-first", "-second", "-third", "-fourth", "-fifth")
    cached, *cold = (figures(f"recording-h200{n}")["seconds"] for n in tries)
    parts = (cold[:3], cold[3:5], cold[5:7], cold[7:])
    first, last, then, former = (sorted(c["first"] for c in some) for some in parts)
    taken = sorted(c["recording"] for c in cold[:3])
    said += [
        f"takes {cached['first']:.1f} s where",
        f"{first[0]:.1f} to {first[-1]:.1f} s where none did, in three tries",
        f"{taken[0]:.1f} to {taken[-1]:.1f} s of that are no replay",
        f"Two tries of an earlier commit took {last[0]:.1f} and {last[1]:.1f} s",
        f"after it took {then[0]:.1f} and {then[-1]:.1f} s",
        f"they took {former[0]:.1f} to {former[-1]:.1f} s",
    ]
    said += [f"replayed takes {cached['replayed']:.2f} s", f"takes {cached['second_engine']:.2f} s at once"]
    said += [f"a first round of {figures('recording-h200-threads')['seconds']['first']:.1f} s, when threads"]
    said += [f"{figures('recording-h200-before')['seconds']['first']:.1f} s before Triton's driver"]
    before, now = (figures(f"compile-modelled{n}")["ways"][0] for n in ("-before", ""))
    said += [f"took {before['children_cpu']:.1f} s of a processor and now takes {now['children_cpu']:.1f} s"]
    said += [f"done after {now['makespan']:.1f} s instead of {before['makespan']:.1f} s"]
    old, new = figures("mbsl-h200-before"), figures("mbsl-h200")
    each = [1000 * sum(r["seconds"]["second"]) / sum(r["images"]) for r in (old, new)]
    said += [f"{each[0] / each[1]:.1f} times as fast", f"({each[1]:.1f} ms an image instead of {each[0]:.1f},"]
    ways = (old, *(figures(f"mbsl-h200{n}") for n in ("-unrolled", "-each", "-each-again", "-shared")), new)
    more, former, each, again, shared, now = (
        [a - b for a, b in zip(*r["seconds"].values(), strict=True)] for r in ways
    )
    assert round(former[0]) == 26 and abs(more[0] - former[0]) < 1.0
    said += [f"**takes {now[0]:.1f} s more now**", f"recording take {sum(now):.1f} s besides, all of them"]
    assert max(map(abs, now[1:] + shared[1:])) < 0.01
    sizes = sorted(each[1:] + again[1:])
    said += [f"took {sizes[0]:.1f} to {sizes[-1]:.1f} s more than its second time"]
    said += [f"took {min(former[1:]):.1f} to {max(former[1:]):.1f} s"]
    said += [f"took {each[0]:.1f} and {again[0]:.1f} s more", f"{shared[0]:.1f} s more before"]
    said += [f"{new['peak_memory_gib']:.1f} GiB instead of {ways[-2]['peak_memory_gib']:.1f}"]
    said += [f"takes {sum(new['seconds']['second']):.1f} s for the four sets once"]
    before, now = (figures(f"compile-modelled-mbsl{n}")["ways"][0] for n in ("-before", ""))
    said += [f"compiles {now['kernels']} kernels instead of {before['kernels']}"]
    said += [f"{now['children_cpu']:.0f} s of a processor instead of {before['children_cpu']:.0f} s"]
    said += [f"{now['makespan']:.1f} s instead of {before['makespan']:.1f} s on 16 cores, {now['longest']:.1f} of them"]
    unrolled = figures("compile-modelled-mbsl-unrolled")
    assert unrolled["ways"][0]["kernels"] == now["kernels"]
    said += [f"{unrolled['passes']:.1f} s of an ARM core", f"takes {figures('compile-modelled-mbsl')['passes']:.1f} s"]
    assert missing(*said) == []


def test_padding_counts_the_steps_that_a_gpu_takes(newest, monkeypatch):
    """FEMNIST's first 20 cohorts, cut as on a GPU: the file has the room of the same groups."""
    uneven, femnist, federated = (
        importlib.import_module(n) for n in ("workloads.uneven", "workloads.femnist", "federated")
    )
    data = federated.dealt(femnist.sizes(3400), (1, 1, 1), 2)
    task = federated.task_of(ac.models.MLP(hidden=(2,)), (1, 1, 1), 2)
    work = ac.core.Work(epochs=1, batch=20)
    whole = federated.Round.of(task, ac.methods.FedAvg(opt=ac.core.SGD(lr=0.1), work=work), data)
    plan = fit.RoundPlan(300, 3400, 10, eval_every=50)
    cohorts = [fit.sample(whole.worker, plan, r) for r in range(20)]
    buckets = Buckets(0.25, None, torch.device("cuda"), there=lambda numbers: numbers, short=lambda: None)
    engine = types.SimpleNamespace(buckets=buckets, shards=data, close=lambda: None)
    monkeypatch.setattr(Vmap, "open", lambda *_: engine)
    found = uneven.padding(whole, types.SimpleNamespace(device=torch.device("cuda")), cohorts)
    stored = figures("gpu-h200-others")["workloads"]["flute-femnist"]["padding"]
    room = [len(g.ids) * work.steps(g.size) for cohort in cohorts for g in buckets.groups(data, cohort)]
    assert (found["real_steps"], found["groups"]) == (stored["real_steps"], stored["groups"])
    assert sum(room) == stored["computed_steps"] == 3712 and found["computed_steps"] == 2459
    said = f"waste {100 * found['waste']:.1f} %: {found['computed_steps']:,} steps are computed where"
    assert missing(said, f"where {found['real_steps']:,} count") == []


def test_bf16_is_as_far_from_fp32_as_was_measured():
    found = figures("precision-h200")["study"]["bf16_above_fp32"]
    own, corrupted, others, mixed = (found[s]["mean"] for s in ("original", "corrupted", "out-of-client", "mixture"))
    farthest = max(abs(s["farthest"]) for s in found.values())
    said = [f"is {own:.2f} points above fp32 on clients' own data, {-corrupted:.2f} below on corrupted"]
    said += [f"{others:.2f} above on other clients' and {-mixed:.2f} below on mixed", f"than {farthest:.2f} away"]
    assert missing(*said) == []


def test_adapters_and_federations_of_every_size_are_as_measured():
    rows = every()
    assert max(rows.values()) == rows["fedavg/note"] == rows["fedthe/tsa"]
    said = [f"All {len(rows)} adapters and deployments are at least {min(rows.values())} times as fast as the loop"]
    said += [f"`note` and `tsa` {max(rows.values())} times", f"`fedtta-plus` {rows['fedtta/fedtta-plus']} times"]
    exact, (coarse,) = (
        [r for r in figures(f)["rows"] if r["adapter"] == "fedtta/fedtta-plus"]
        for f in ("testtime-h200-fp32", "testtime-every-h200-third")
    )
    assert exact[0]["loss_difference"] == exact[0]["loop_differs_from_itself"] == 0.0
    assert coarse["loss_difference"] > 100 and coarse["loop_differs_from_itself"] > 100
    said += [f"to the last bit in fp32 (loss {exact[0]['loss'][0]:.2f};", f"{coarse['loss'][0]:.0f} in TF32"]
    loop = {
        a["adapter"]: a["times_faster"] for a in figures("gpu-h200")["workloads"]["adapters-per-sample"]["adapters"]
    }
    memo, plus, ttt, the = (loop[name] for name in ("MEMO", "THEPlus", "TTT, episodic", "THE"))
    said += [f"MEMO is {memo:.0f}, THE+ {plus:.0f}, TTT {ttt:.0f} and THE {the:,.0f} times as fast"]
    for name, commit in (("cpu", "64c55fb"), ("h200", "bdae7a6")):
        found = figures(f"scale-{name}")
        each = [c["seconds_per_round"]["median"] for c in found["mapped"]["clients"].values()]
        assert found["environment"]["commit"].startswith(commit)
        ratio, memory = found["mapped"]["largest_over_smallest"], found["mapped"]["memory"]["peak_host_memory_gib"]
        said += [f"commit {commit} | {' | '.join(f'{1000 * s:.1f} ms' for s in each)} | {ratio:.2f} | {memory:.1f} GiB"]
    plain = figures("scale-h200")["plain"]["clients"]["1000"]["seconds_per_round"]["median"]
    said += [f"a round out of 1,000 clients takes {1000 * plain:.1f} ms"]
    for name in ("cpu", "h200"):
        million = figures(f"scale-{name}-million")["mapped"]
        first = million["clients"]["1000"]["seconds_per_round"]["median"]
        for clients, found in million["clients"].items():
            took, kept = found["seconds_per_round"]["median"], found["checkpoint"]
            over = f"{took / first:.2f}" if clients != "1000" else "1"
            written = f"{kept['seconds'][-1]:.2f} s | {kept['bytes_written'][-1] / 1e6:.1f} MB"
            held = f"{million['memory']['peak_host_memory_gib']:.1f} GiB" if clients == "1000000" else "-"
            each = f"{took:.2f} s" if name == "cpu" else f"{1000 * took:.1f} ms"
            said += [
                f"| {int(clients):,} | {each} | {over} | {written} | {kept['seconds_to_restore']:.2f} s | {held} |"
            ]
    assert missing(*said) == []


def test_processes_and_convolutions_on_a_cpu_are_as_measured():
    names = {"cnn, even clients": "CNN, 8 equal clients", "cnn, uneven clients": "CNN, 10 unequal clients"}
    names |= {"default experiment": "the default experiment"}
    said = []
    for run, name in names.items():
        found = figures("processes-cpu")["runs"][run]
        seconds, times = found["seconds"], found["times_faster_than_serial_1_thread"]
        ways = ("serial, 2 threads", "vmap, 2 threads", "processes, 2 workers")
        cells = " | ".join(f"{seconds[w]:.2f} ({times[w]:.2f})" for w in ways)
        said += [f"| {name} | {seconds['serial, 1 thread']:.2f} | {cells} |"]
    step = figures("conv-cpu")["ms"]["a step of the CNN"]
    said += [f"takes {step['ours']:.1f} ms on an ARM", f"and {step['torch, channels last']:.1f} ms as plain PyTorch"]
    assert missing(*said) == []


def test_the_history_of_a_round_is_what_the_files_hold():
    history = PAGE.split("## Earlier runs")[1]
    rows = re.findall(r"^\| `(gpu-h200[\w-]*)\.json` \| [^|]+ \| (.+) \|$", history, re.MULTILINE)
    assert len(rows) == 8
    loops = []
    for name, cells in rows:
        seconds = {w: t["median"] for w, t in figures(name)["workloads"]["fedavg-20"]["seconds"].items()}
        ways = [f"{seconds[w]:.3f}" if w in seconds else "-" for w in ("ours", "ours, TF32", "ours, bf16")]
        assert cells.split(" | ") == [*ways, f"{seconds['plain']:.2f}"], name
        loops.append(seconds["plain"])
    assert missing(f"took from {min(loops):.1f} to {max(loops):.1f} s on machines") == []


def test_every_file_of_a_benchmark_is_named_by_a_page():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(p.read_text() for p in pages)
    drawn = {"first-run.json"}  # the picture of the README, which tests/test_first.py holds against it
    assert sorted(f.name for f in STORED.glob("*.json") if f.name not in text and f.name not in drawn) == []


ATTENTION = ("_mix", "_to_queries", "_to_keys", "_held_mix", "_held_back")


def test_the_guide_to_foundation_models_tells_the_stored_step():
    page = " ".join((ROOT / "docs" / "guides" / "foundation-models.md").read_text().split())
    report = figures("lora-h200")
    found = report["precisions"]["bf16"]
    seconds, work, ceiling = found["seconds"], found["work"]["rates"]["captured"], found["ceilings"]["flop_per_second"]
    loop, ours, plain = (seconds[w]["median"] for w in ("loop", "captured", "captured, without kernels"))
    rate, top = work["flop_per_second"] / 1e12, ceiling["bf16"] / 1e12
    said = [f"commit {report['environment']['commit']}", f"takes {1000 * ours:.1f} ms as a CUDA graph"]
    said += [
        f"{loop / ours:.0f} times as fast as a loop over clients, whose {loop:.1f} s",
        f"{plain / ours:.2f} times as fast as the same",
    ]
    said += [f"{found['memory']['times_one_client_plus_activations']:.2f} times that of one client"]
    said += [f"**{100 * rate / top:.0f} % of the bf16 ceiling", f"({rate:.0f} of {top:.0f} TFLOP/s)"]
    others = [json.loads(f.read_text()).get("ceilings") for f in STORED.glob("gpu-h200*.json")]
    best = max(c["flop_per_second"]["bf16"] for c in others if c) / 1e12
    said += [f"up to {best:.0f} TFLOP/s, of which it is {100 * rate / best:.0f} %"]
    kernels = {k["name"]: 1000 * k["seconds"] for k in found["profile"]["kernels"]}
    attention = sum(ms for name, ms in kernels.items() if name in ATTENTION)
    said += [f"Of {1000 * found['profile']['busy_seconds']:.1f} ms", f"attention takes {attention:.1f}"]
    said += [f"a weight that stays {kernels['_resident']:.1f}", f"GELU that is left {kernels['_hidden']:.1f}"]
    former = figures("lora-h200-before")["precisions"]["bf16"]
    once, high = former["seconds"]["captured"]["median"], former["ceilings"]["flop_per_second"]["bf16"] / 1e12
    share = former["work"]["rates"]["captured"]["share_of_ceiling"]["bf16"]
    said += [f"a step took {1000 * once:.1f} ms, {100 * share:.0f} % of that run's ceiling of {high:.0f}"]
    assert [text for text in said if text not in page] == []


def test_the_page_of_the_fleet_tells_the_stored_overhead():
    page = (ROOT / "docs" / "fleet.md").read_text()
    found = json.loads((ROOT / "results" / "fleet" / "overhead.json").read_text())
    each, wire = found["seconds_per_round"], found["wire_over_message"]
    said = [
        f"Serial | {each['serial']:.2f} |",
        f"{each['flower']:.1f} |",
        f"{found['seconds_over_serial']:.1f} s over Serial",
    ]
    said += [f"messages, up | {wire['up']:.3f} |", f"per node, down | {wire['down']:.3f} |"]
    assert [text for text in said if text not in page] == []


def test_what_a_recorded_round_costs_is_as_measured():
    found = figures("cost-h200")
    price, off = found["milliseconds_for"], found["largest_relative_error"]
    step, each = price["a step"], price["a client's step"]
    said = [f"{step:.2f} ms a step and {each:.3f} ms for each client's step"]
    said += [
        f"is {100 * off['checks']:.0f} % off at the three sizes",
        f"up to {100 * off['points']:.0f} % where it was",
    ]
    took = {(p["clients"], p["steps"], p["width"]): p["ms"] for p in found["points"]}
    said += [
        f"16 clients take {took[16, 8, 16]:.1f} ms for the eight steps that one client takes {took[1, 8, 16]:.1f} ms"
    ]
    said += [f"a first layer of 4 channels takes {took[4, 8, 4]:.1f} ms where one of 16 takes {took[4, 8, 16]:.1f}"]
    assert [text for text in said if text not in " ".join(PAGE.split())] == []
    assert f"`results/benchmarks/cost-h200.json`, commit {found['commit']}" in PAGE and len(found["checks"]) == 3
