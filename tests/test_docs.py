"""The documentation is true: its Python runs, its commands parse, its lists are complete, its figures were measured."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import types
from pathlib import Path

import pytest

from acclimate.cli import describe
from acclimate.eval.table import Refused, Row
from acclimate.experiment import catalogue
from test_imports import LAYERS

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning"),  # typer imports a name click renamed
    pytest.mark.usefixtures("nobody_is_trusted_after"),
]
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
HEAVY: set[str] = set()
"""Pages whose blocks take more than 20 s: run by `make test-all`."""


def name_of(page):
    return str(page.relative_to(ROOT))


def blocks(page, *languages):
    """(first line, attributes, text) of every fenced block of these languages."""
    text = page.read_text()
    for m in FENCE.finditer(text):
        if m[1] in languages:
            yield text[: m.start()].count("\n") + 2, m[2], m[3]


def pages_with(*languages):
    found = [p for p in PAGES if any(blocks(p, *languages))]
    return [pytest.param(p, id=name_of(p), marks=pytest.mark.slow if name_of(p) in HEAVY else ()) for p in found]


def but_tutorials(pages):
    """Tutorials run in test_tutorials.py, which reads what they print."""
    return [p for p in pages if not p.id.startswith("docs/tutorials/")]


@pytest.mark.parametrize("page", but_tutorials(pages_with("python")))
def test_python_blocks_run(page, tmp_path, monkeypatch, capsys):
    """A page's blocks, in order, in one module; it may write into a folder that is thrown away."""
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page_" + re.sub(r"\W", "_", name_of(page)))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for line, _, text in blocks(page, "python"):
        exec(compile("\n" * (line - 1) + text, name_of(page), "exec"), module.__dict__)
    assert "nan" not in capsys.readouterr().out


def commands(page):
    """Every command of a page, split into words."""
    lines = [line.removeprefix("$ ") for _, _, text in blocks(page, "console", "bash") for line in text.splitlines()]
    return [[w for w in shlex.split(line, comments=True) if not w.startswith("PYTHONPATH=")] for line in lines]


def write_files(page):
    """The files that a page shows, into the current folder: titled Python, and TOML whose first line names it."""
    for _, attributes, text in blocks(page, "python"):
        if title := re.search(r'title="([^"]+)"', attributes):
            Path(title[1]).write_text(text)
    for _, _, text in blocks(page, "toml"):
        tomllib.loads(text)
        Path(text.splitlines()[0].removeprefix("# ")).write_text(text)


@pytest.mark.parametrize("page", pages_with("console", "bash"))
def test_commands_parse(page, tmp_path, monkeypatch):
    """Settings expand, names exist, options are known; files that a command reads stand on the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    write_files(page)
    importlib.invalidate_caches()
    assert commands(page)
    for words in commands(page):
        check_command(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", ["README.md", "docs/quickstart.md", "docs/guides/tour.md", "docs/guides/own-method.md"]
)
def test_runs_of_the_page_run(page, tmp_path, monkeypatch):
    """Every `acclimate run` of a page, cut down to one short round; and the fleet that one of them needs."""
    monkeypatch.chdir(tmp_path)
    write_files(ROOT / page)
    kept = [w[1:] for w in commands(ROOT / page) if w[:2] in (["acclimate", "run"], ["acclimate", "fleet"])]
    try:
        for i, (verb, *args) in enumerate(kept):
            if verb == "fleet":
                acclimate(tmp_path, verb, *args)
                continue
            long = [a for a in args if not a.startswith(("rounds=", "method.work.epochs="))]
            acclimate(tmp_path, verb, *long, "rounds=1", "method.work.epochs=1", "--overwrite", "-q", "-o", f"out/{i}")
            assert (tmp_path / "out" / str(i) / "report.html").stat().st_size > 10_000
        assert not Path("fleet/fleet.json").exists(), "the page leaves its fleet running"
    finally:
        if Path("fleet/fleet.json").exists():
            acclimate(tmp_path, "fleet", "down")


def acclimate(folder, *args):
    """Run the command line in a process of its own, which finds the modules of this folder."""
    code, env = "from acclimate.cli.main import main; main()", {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=280, env=env)
    assert done.returncode == 0, f"{args}: {done.stderr}"


def check_command(words):
    while re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]  # variables of the environment
    match words:
        case ["acclimate", sub, *args]:
            check_acclimate(sub, args)
        case ["make", target]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        case ["python", "-m", "acclimate.recipes", *args]:
            from acclimate.recipes.__main__ import parser

            assert parser().parse_args(args)
        case ["python", script, *_]:
            assert (ROOT / script).is_file(), words
        case ["pip" | "pipx" | "git" | "docker" | "flwr" | "export" | "source", *_]:
            pass
        case _:
            pytest.fail(f"a command that no one checks: {words}")


def check_acclimate(sub, args):
    import typer

    from acclimate.cli import main as cli

    command, args = typer.main.get_command(cli.app).commands[sub], list(args)
    while hasattr(command, "commands"):  # a group: `acclimate data list`
        command = command.commands[args.pop(0)]
    params = command.make_context(command.name, args).params  # parses, and runs nothing
    match sub:
        case "run":
            config = Path(params["config"]) if params["config"] else None
            assert cli._experiments(list(params["settings"] or []), config, params["seeds"])
        case "list":
            assert describe.listing(params["kind"])
        case "show":
            assert describe.details(params["name"])
        case "reproduce" if "rows" in params:
            from acclimate.recipes import command as reproduce

            rows, columns = (params[key] or [] for key in ("rows", "columns"))
            assert reproduce.planned(
                params["name"], params["scale"], "cpu", rows, columns, params["rounds"], params["fraction"]
            )
        case "tune":
            from acclimate import tuning
            from acclimate.experiment.settings import merged

            grid = tuning.grid(params["grid"]).settings if params["grid"] else ()
            said = {s.partition("=")[0] for s in params["settings"] or ()}
            own = merged(params["config"], list(params["settings"] or []))
            assert tuning.parse([*(p for p in grid if p[0] not in said), *own])


def test_the_check_of_commands_can_fail():
    from acclimate.experiment import ConfigError

    for bad in (["run", "method.muu=1"], ["run", "rounds=many"], ["show", "fedporx"], ["list", "metods"]):
        with pytest.raises(ConfigError):
            check_acclimate(bad[0], bad[1:])
    with pytest.raises(Exception, match="(?i)no such option"):
        check_acclimate("run", ["--seed", "3"])


@pytest.mark.parametrize("page", [pytest.param(p, id=name_of(p)) for p in PAGES])
def test_links_lead_somewhere_and_text_is_for_users(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", FENCE.sub("", text)):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{name_of(page)}: {target}"
    assert not re.search(r"/(tmp|root|home|usr/local)/", text)  # nobody else has this machine's folders
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("kind", [pytest.param(k, id=k.plural) for k in catalogue.KINDS])
def test_the_catalogue_page_is_complete(kind):
    text = (ROOT / "docs" / "methods.md").read_text()
    assert [name for name in kind.entries if f"| `{name}` |" not in text] == []


def test_the_design_page_has_the_import_arrows_of_the_test():
    text = (ROOT / "docs" / "design.md").read_text().split("## Who imports whom")[1]
    arrows = FENCE.search(text)[3]
    assert [set(line.split()) for line in arrows.splitlines()] == LAYERS


def test_the_results_page_names_every_field(tmp_path):
    import acclimate as ac

    experiment = ac.Experiment(
        data=ac.data.Digits(clients=3),
        model=ac.models.MLP(hidden=(8,)),
        method=ac.methods.FedAvg(work=ac.Work(epochs=1)),
        adapters=(ac.adapters.NoAdapt(), ac.adapters.Tent()),
        streams=(ac.shifts.Original(),),
        rounds=1,
    )
    ac.run(experiment, tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    env = json.loads((tmp_path / "run" / "env.json").read_text())
    assert set(results["table"][0]) == set(Row.__annotations__)
    assert set(results["refused"][0]) == set(Refused.__annotations__)
    fields = {*results, *results["table"][0], *results["refused"][0], *results["cost"], *results["data"]}
    fields |= {*results["timings"], *results["cost"]["message"][0], *results["data"]["splits"], *metrics, *env}
    text = (ROOT / "docs" / "results.md").read_text()
    assert sorted(f for f in fields if f"`{f}`" not in text) == []
    written = {p.name for p in (tmp_path / "run").iterdir()}
    assert sorted(n for n in written if n not in text) == []


def figures(name):
    return json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text())


def test_the_speed_that_the_readme_tells_was_measured():
    text, report, now = (ROOT / "README.md").read_text(), figures("gpu-h200-others"), figures("gpu-h200-fedavg")
    fedavg, peer = now["workloads"]["fedavg-20"], report["workloads"]["pfl-cifar10"]
    seconds, faster = ({k: v["median"] for k, v in fedavg["seconds"].items()}, fedavg["times_faster"])
    wanted = [now["device"], f"{seconds['plain']:.1f} s as a plain", "gpu.py --only fedavg-20 pfl-cifar10"]
    wanted += [f"{seconds['ours']:.2f} s here, {faster['ours']:.0f} times"]
    wanted += [f"with TF32 {seconds['ours, TF32']:.2f} s, {faster['ours, TF32']:.0f} times"]
    wanted += [f"in bf16 {seconds['ours, bf16']:.2f} s, {faster['ours, bf16']:.0f} times"]
    wanted += [f"takes {peer['run']['seconds']:.0f} s for its {peer['run']['rounds']:,} rounds"]
    wanted += [f"{peer['pfl_research']['times_faster']:.0f} times less than pfl-research"]
    flat = " ".join(text.split())
    assert [w for w in wanted if w not in flat] == []


def test_the_first_round_that_was_measured_is_on_the_performance_page():
    text, report = (ROOT / "docs" / "performance.md").read_text(), figures("round-h200")
    exact, fast = report["runs"]
    cells = ((exact["seconds"][w], exact["times_faster_than_plain"][w], w) for w in exact["seconds"])
    wanted = [
        f"| {w} | {s:.2f} | {r:.2f} | {fast['seconds'][w]:.2f} | {fast['times_faster_than_plain'][w]:.2f} |"
        for s, r, w in cells
    ]
    wanted += [report["command"], report["device"], report["torch"]]
    wanted += [f"{report['relative_distance_after_10_double_steps']:.1e}"]
    assert [w for w in wanted if w not in text] == []


STEPS = "the steps alone"


def test_what_adapters_and_rounds_cost_on_a_cpu_is_on_the_performance_page():
    text, cost = (ROOT / "docs" / "performance.md").read_text(), figures("cost-cpu")
    wanted = []
    bound = []
    for one, two in zip(figures("testtime-cpu")["rows"], figures("testtime-cpu-cores")["rows"], strict=True):
        cells = [one["adapter"]]
        for row in (one, two):
            ms = row["milliseconds_per_sample"]
            cells += [f"{ms['loop']:.1f}", f"{ms['vectorised']:.1f}", f"{row['times_faster']:.1f}"]
            cells += [f"{ms[STEPS]:.1f}" if STEPS in ms else ""]
            if row["adapter"] == "THEPlus":
                bound.append(f"{ms['loop'] / ms[STEPS]:.1f} times")
        wanted += [f"| {' | '.join(cells)} |"]
    wanted += [f"would be {bound[1]} as fast as the loop, {bound[0]} on one thread"]
    ways = {name: (ms["torch, channels last"], ms["ours"]) for name, ms in figures("conv-cpu-x86")["ms"].items()}
    theirs, ours = ways.pop("a step of the CNN")
    longer = [product / own for own, product in ways.values()]
    wanted += [f"{theirs:.1f} ms with torch's own and {ours:.1f} ms with products"]
    wanted += [f"{min(longer):.1f} to {max(longer):.1f} times as long layer by layer"]
    price, off = cost["milliseconds_for"], cost["largest_relative_error"]
    step, gflop = (price[name] for name in ("a client's step", "a GFLOP"))
    each = f"({step:.1f} + {gflop:.1f} x GFLOP of one step)"
    wanted += [f"clients x steps x {each} + {price['a step']:.2f} x steps", f"at {len(cost['points'])} sizes"]
    wanted += [f"{100 * off['points']:.0f} % off where it was fitted, and {100 * off['checks']:.0f} %"]
    client = figures("client-cpu")
    wanted += [f"{client['median']['plain']:.2f} s of CPU", f"{client['median']['ours']:.2f} s here"]
    wanted += [f"here: {client['times_less_computing']:.2f} times less"]
    client, before = (figures(f"client-cpu-x86{name}") for name in ("", "-before"))
    wanted += [f"takes {client['median']['plain']:.2f} s of CPU as the plain loop and {client['median']['ours']:.2f} s"]
    wanted += [f"s here, {client['times_less_computing']:.2f} times less (one thread with AVX-512"]
    wanted += [f"It was {before['times_less_computing']:.2f} times less"]
    peers = figures("cpu-x86-flower")
    used, less = peers["median_cpu_seconds"], peers["times_less_computing"]
    wanted += [f"computes {less['flower']:.2f} times less than Flower's clients ({used['flower']:.1f} s of CPU, ours"]
    wanted += [f"ours {used['ours']:.1f} s; `cpu-x86-flower.json`"]
    peers = figures("cpu")
    used, less = peers["median_cpu_seconds"], peers["times_less_computing"]
    wanted += [f"used {used['flower']:.1f} s of CPU", f"BlazeFL (with torch 2.8) {used['blazefl']:.1f} s"]
    wanted += [f"auto` {used['ours']:.1f} s", f"{peers['peers']['blazefl']['torch'][:3]})"]
    wanted += [f"{less['flower']:.2f} and {less['blazefl']:.2f} times less"]
    peers = figures("cpu-x86")
    used, less, faster = (peers[k] for k in ("median_cpu_seconds", "times_less_computing", "times_faster"))
    wanted += [
        f"used {used['flower']:.1f} s of CPU, PFLlib {used['pfllib']:.1f} s and `backend=auto` {used['ours']:.1f} s"
    ]
    wanted += [f"{less['flower']:.2f} and {less['pfllib']:.2f} times less, server"]
    wanted += [f"it was {faster['flower']:.2f} and {faster['pfllib']:.2f} times as fast"]
    assert price["a round"] == price["a million parameters of a client"] == 0.0  # as the page says
    assert [w for w in wanted if w not in text] == []


def test_what_is_left_to_gain_on_a_cpu_is_on_the_performance_page():
    """Times with AVX2 beside the rate of a large matrix product, and what the goals would need of it."""
    text, wanted, left = (ROOT / "docs" / "performance.md").read_text(), [], []
    for name in ("testtime-cpu-avx2", "testtime-cpu-avx2-cores"):
        (row,) = [r for r in figures(name)["rows"] if r["adapter"] == "THEPlus"]
        ms = row["milliseconds_per_sample"]
        left.append((ms["loop"], ms["vectorised"], row["times_faster"], ms["at the ceiling"], ms["loop"] / 4))
    one, two = left
    wanted += [f"takes {one[0]:.1f} ms a sample as a loop on one thread and {one[1]:.1f} ms here, {one[2]:.1f} times"]
    wanted += [f"and {two[0]:.1f} and {two[1]:.1f} ms on two cores, {two[2]:.1f} times less"]
    wanted += [f"would take {one[3]:.1f} ms on one thread and {two[3]:.1f} ms on two cores"]
    wanted += [f"A quarter of the loop is {one[4]:.1f} and {two[4]:.1f} ms"]
    wanted += [f"it leaves {two[4] - two[3]:.1f} ms for all else"]
    assert one[4] < one[3]  # less than the operations can take, as the page says
    client, peers, ms = figures("client-cpu-avx2"), figures("cpu-avx2-flower"), figures("conv-cpu-avx2")["ms"]
    median, share, top = client["median"], client["share_of_ceiling"], client["gflop_per_second"]
    wanted += [f"takes {median['plain']:.2f} s of CPU as the plain loop and {median['ours']:.2f} s here"]
    wanted += [f"here, {client['times_less_computing']:.2f} times less (`client-cpu-avx2.json`)"]
    faster, less = (peers[k]["flower"] for k in ("times_faster", "times_less_computing"))
    wanted += [f"is {faster:.2f} times as fast as Flower's, with {less:.2f} times less CPU time"]
    wanted += [f"does {100 * share['plain']:.0f} % of the rate", f"the same thread, ours {100 * share['ours']:.0f} %"]
    first, second = 2 * 75 * 32 * 28**2, 2 * 800 * 64 * 10**2  # forward; the first needs no gradient of its images
    gflop, took = 32 * (2 * first + 3 * second) / 1e9, (ms["cnn, first"], ms["cnn, second"])
    convolutions = gflop / sum(t["torch, channels last"] for t in took) * 1e3 / top
    need = 1.6 / client["at_the_ceiling"]
    wanted += [f"be done at {100 * need:.0f} % of it; torch's convolutions by themselves do {100 * convolutions:.0f} %"]
    assert convolutions < need and [w for w in wanted if w not in text] == []


def test_the_guard_page_tells_why_a_cell_fails_as_it_was_measured():
    text = (ROOT / "docs" / "guides" / "guard.md").read_text()
    found = {}
    for seed in (2, 17):
        cells = json.loads((ROOT / "results" / "live" / f"strangers-seed-{seed}.json").read_text())["cells"]
        found |= {(seed, c["stream"]): c for c in cells}
    cell, home = found[17, "out-of-client"], found[17, "original"]
    lost = [a - b for a, b in zip(cell["guarded_clients"], cell["plain_clients"], strict=True)]
    worst = lost.index(min(lost))
    assert sum(v < 0 for v in lost) == 1 and cell["both_clients"] == cell["guarded_clients"]
    seen = {name: values[worst] for name, values in cell["seen"].items()}
    assert seen["level"] == min(cell["seen"]["level"])
    said = [f"loses {cell['plain'] - cell['guarded']:.1f} points", f"{home['plain_clients'][worst]:.0f} % of its own"]
    said += [f"{cell['plain_clients'][worst]:.0f} % of the strangers'", f"by {seen['level']:.2f} nats"]
    said += [f"fit by\n{seen['likely']:.2f}", f"{seen['surer']:.2f} surer"]
    said += [f"by {seen['adapted_likely']:.2f} of {seen['adapted_level']:.2f} nats"]
    changed = {n: c["guarded"] - c["both"] for (s, n), c in found.items() if s == 2 and c["guarded"] != c["both"]}
    said += [f"costs {changed['mixture']:.1f} points on `mixture`"]
    assert set(changed) == {"mixture"}
    assert [s for s in said if s not in text] == []


def test_the_guard_page_sums_its_cells_up_as_they_were_measured():
    text = (ROOT / "docs" / "guides" / "guard.md").read_text()
    live = ROOT / "results" / "live"
    digits, cifar = (json.loads((live / f"no-harm{n}.json").read_text())["cells"] for n in ("", "-cifar10-seeds-6-8"))
    again = json.loads((live / "strangers-fedtta.json").read_text())["cells"]
    below = [c for c in digits if c["guarded"] - c["plain"] < -1]
    lost = [
        c["case"] for c in cifar for a, b in zip(c["plain_clients"], c["guarded_clients"], strict=True) if a - b > 1
    ]
    said = [f"one cell of {len(digits)} loses more than 3 points", f"{len(lost)} clients of {20 * len(cifar):,} lose"]
    said += [f"{sum(case.endswith('tent-all') for case in lost)} of them with `tent-all`"]
    said += [f"Of the {len(again)} cells the worst loses {max(c['plain'] - c['guarded'] for c in again):.1f} points"]
    (one,) = (c for c in again if (c["seed"], c["stream"]) == (17, "out-of-client"))
    said += [f"now gains {one['guarded'] - one['plain']:.1f}"]
    assert len(below) == 7 and sum(c["guarded"] - c["plain"] < -3 for c in digits) == 1
    assert [s for s in said if s not in text] == []
