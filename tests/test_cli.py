"""The command line as a person uses it: exit codes, sentences, folders."""

import importlib
import json
import os
import runpy
import subprocess
import sys
import time

import pytest
import torch

from acclimate.cli.threads import use_half_of_the_cores
from acclimate.store.origin import command_line

pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")  # typer imports a name click renamed
COMMAND = "from acclimate.cli.main import main; main()"
QUICK = ["data.clients=4", "model=mlp", "model.hidden=8", "model.norm=batch", "rounds=1", "method.work.epochs=1"]


def cli(*args, cwd=None):
    """The command as a shell starts it; a process takes seconds to import torch."""
    return subprocess.run([sys.executable, "-c", COMMAND, *args], capture_output=True, text=True, timeout=250, cwd=cwd)


def test_help_needs_no_torch_and_names_every_command():
    done = cli("--help")
    assert done.returncode == 0
    for command in ("run", "resume", "report", "list", "show", "doctor"):
        assert command in done.stdout
    listed = [line.split()[1] for line in done.stdout.partition("Commands")[2].splitlines() if line[2:3].isalpha()]
    assert listed[:8] == [
        "run",
        "resume",
        "report",
        "list",
        "show",
        "doctor",
        "compare",
        "tune",
    ]  # what most need first
    assert cli("--version").stdout.startswith("acclimate 0.")


def test_the_package_runs_as_a_module():
    words = [sys.executable, "-m", "acclimate", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0 and done.stdout.startswith("acclimate 0.")


def test_a_run_of_the_module_is_stored_as_the_command_that_makes_it_again(monkeypatch):
    said = []
    monkeypatch.setattr(importlib.import_module("acclimate.cli.main"), "main", lambda: said.append(command_line()))
    monkeypatch.setattr(sys, "argv", ["/somewhere/acclimate/__main__.py", "run", "--out", "/tmp/here/first"])
    runpy.run_module("acclimate", run_name="__main__")
    assert said == ["acclimate run --out first"]


OWN = """
from dataclasses import dataclass
import acclimate as ac

@dataclass(frozen=True)
class Own(ac.methods.FedAvg):
    pass
"""


def test_commands_that_ask_for_trust_take_it(tmp_path, here, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_ALLOW", "")  # --trust sets it: put it back in the end
    (tmp_path / "own_of_cli.py").write_text(OWN)
    (tmp_path / "own.toml").write_text('method = "own_of_cli:Own"\nmodel = "mlp"\nstreams = ["original"]\n')
    asks = here("data", "preview", "-c", "own.toml", "data.clients=3")
    assert asks.returncode == 2 and "trust it: --trust" in asks.stderr
    assert here("data", "preview", "-c", "own.toml", "data.clients=3", "--trust").returncode == 0
    for command in ("submit", "leaderboard"):
        assert "--trust" in here(command, "--help").stdout


def test_tune_says_how_settings_with_a_class_of_ones_own_are_run(tmp_path, here):
    (tmp_path / "own_of_tune.py").write_text(OWN)
    done = here("tune", "method=own_of_tune:Own", "method.opt.lr=0.1,0.2", *QUICK, "-q", "-o", "search")
    assert done.stdout.endswith("test it: acclimate run -c search/best.toml --trust\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run"], "key=value"),
        (["resume"], "A run folder, or a folder of them."),
        (["tune"], "ranges"),
        (["fleet", "up"], "ACCLIMATE_FLEET"),
        (["reproduce", "run"], "A recipe of"),
    ],
)
def test_help_says_what_the_positional_arguments_are(args, says, here):
    assert says in here(*args, "--help").stdout


def test_help_fills_the_window_whatever_the_lines_of_its_source(here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    said = here("compare", "--help").stdout
    whole = "Intervals are bootstrapped over seeds and clients; of fewer than ten numbers"
    assert whole in map(str.strip, said.splitlines()), "lines of the source end after 'seeds and'"


def test_run_writes_a_numbered_folder_prints_a_table_and_a_report(tmp_path, here):
    done = cli("run", "method=fedavg,fedbn", "adapters=none,tent", "streams=original,corrupted", *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("fedavg", "fedbn", "tent", "original", "corrupted", "upload", "runs/001-comparison/report.html"):
        assert word in done.stdout
    root = tmp_path / "runs" / "001-comparison"
    index = json.loads((root / "index.json").read_text())
    assert [r["path"] for r in index["runs"]] == ["fedavg-s0", "fedbn-s0"]
    results = json.loads((root / "fedbn-s0" / "results.json").read_text())
    assert {(r["adapter"], r["stream"]) for r in results["table"]} == {
        (a, s) for a in ("none", "tent") for s in ("original", "corrupted")
    }
    assert results["command"].endswith("rounds=1 method.work.epochs=1")
    report = here("report", str(root), "-o", "all.html")
    assert report.returncode == 0, report.stderr
    assert (tmp_path / "all.html").stat().st_size > 10_000
    again = here("resume", str(root))
    assert again.returncode == 0
    assert "fedbn" in again.stdout
    (root / "fedavg-s0" / "results.json").unlink()
    part = here("report", str(root), "-o", "part.html")
    assert (part.returncode, part.stderr) == (0, "runs that are not finished, and not in it: 1 of 2\n")
    (root / "fedbn-s0" / "results.json").unlink()
    none = here("report", str(root))
    assert none.returncode == 2 and f"no finished run in {root} (2 not finished)" in none.stderr


def test_toml_and_seeds(tmp_path, here):
    (tmp_path / "e.toml").write_text(
        'rounds = 1\nadapters = ["none"]\nstreams = ["original"]\n'
        '[data]\nclients = 4\n[model]\nname = "mlp"\nhidden = [8]\n'
        '[method]\nname = "fedprox"\nmu = 0.5\n[method.work]\nepochs = 1\n'
    )
    done = here("run", "-c", "e.toml", "--seeds", "2", "-o", "out", "method.mu=0.25")
    assert done.returncode == 0, done.stderr
    config = json.loads((tmp_path / "out" / "fedprox-s1" / "config.json").read_text())["experiment"]
    assert (config["method"]["mu"], config["seed"], config["data"]["clients"]) == (0.25, 1, 4)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["run", "roundz=3"], "did you mean 'rounds'"),
        (["run", "rounds=x"], "'x' is not a whole number"),
        (["run", "method=fedavgg"], "did you mean 'fedavg'"),
        (["run", "filters=dp"], "did you mean 'central-dp' or 'local-dp'? allowed: median"),
        (
            ["run", "data=phrases", "model=cnn"],
            "shape (64,); without model= the kind of data chooses one: mlp for rows",
        ),
        (["run", "data.clients=0"], "clients=0 must be a whole number of at least 1"),
        (["run", "--rounds", "3"], "settings are written key=value, for example rounds=..."),
        (["run", "rounds=0"], "rounds=0"),
        (["run", "cohort=11"], "cohort=11 must be between 1 and the number of clients, 10"),
        (["run", "device=cuda:9", "method=local"], "device='cuda:9'"),
        (["run", "device=tpu3", "method=local"], "device='tpu3' must be auto, cpu, cuda or cuda:N"),
        (["run", "data.clients=60", "method=fedavg"], "fewer than a batch (method.work.batch=32)"),
        (["run", "-c", "absent.toml"], "absent.toml does not exist"),
        (["run", "method=fedbn", "model=cnn"], "'norm' selects nothing"),
        (["resume", "nowhere"], "nowhere/config.json does not exist"),
        (["report", "nowhere"], "nowhere holds no run"),
        (["list", "metods"], "did you mean 'methods'"),
        (["show", "fedporx"], "did you mean 'fedprox'"),
        (["run", "--seeds", "0"], "seeds=0 must be at least 1"),
        (["run", "--nonsense"], "No such option"),
        (["dance"], "No such command"),
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["serve", "nowhere"], "nowhere does not exist; make live models with: acclimate deploy RUN -o nowhere"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_two(args, says, tmp_path, here):
    done = here(*args)
    assert done.returncode == 2, done.stderr
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr and done.stderr.lower().count("did you mean") < 2
    assert not list(tmp_path.rglob("results.json"))


def test_a_shell_sees_the_sentence_and_the_exit_code(tmp_path):
    done = cli("run", "roundz=3", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("acclimate: ") and "did you mean 'rounds'" in done.stderr
    lines = [s for s in done.stderr.splitlines() if not s.endswith("s so far")]  # of a slow machine
    assert len(lines) == 2  # one that says that torch is loading, and the sentence


def test_own_code_in_the_current_folder_and_streams_refused_before_training(tmp_path, here):
    (tmp_path / "table.py").write_text(
        "from dataclasses import dataclass\nimport torch\nimport acclimate as ac\n"
        "@dataclass(frozen=True)\nclass Table(ac.data.Dataset):\n"
        "    def load(self):\n"
        "        g = torch.Generator().manual_seed(0)\n"
        "        y = torch.randint(0, 3, (300,), generator=g)\n"
        "        x = torch.randn(300, 5, generator=g) + y[:, None]\n"
        "        return ac.data.Examples.of(x, y, 'abc')\n"
    )
    quick = ["data.clients=3", "model=mlp", "model.hidden=8", "rounds=1", "method=fedavg", "method.work.epochs=1"]
    done = here("run", "-q", "-o", "a", "data=table:Table", "streams=original", "adapters=none,t3a", *quick)
    assert done.returncode == 0, done.stderr
    done = here("run", "-q", "-o", "b", "data=table:Table", "adapters=none", "streams=rotated", *quick)
    assert done.returncode == 2
    assert "stream 'rotated' cannot be made from Table: " in done.stderr and "images" in done.stderr
    assert not (tmp_path / "b" / "state.safetensors").exists()


def test_what_no_adapter_can_serve_is_an_error(tmp_path, here):
    plain = ["data.clients=3", "model=mlp", "model.hidden=8", "rounds=1", "streams=original", "adapters=tent,bn", "-q"]
    for methods in ("fedavg", "fedavg,fedprox"):
        done = here("run", "-o", "out", f"method={methods}", *plain)
        assert done.returncode == 2 and "no adapter can be tested" in done.stderr
        assert "Tent" in done.stderr and "BNStats" in done.stderr
        assert not (tmp_path / "out").exists()
    done = here("run", "-o", "out", "method=fedavg+finetune", *plain)
    assert (done.returncode, done.stderr) == (2, "acclimate: no adapter could be tested: nothing was measured\n")


def test_of_several_runs_some_may_have_no_adapter(here):
    plain = ["data.clients=3", "model=mlp", "model.hidden=8", "rounds=1", "streams=original", "-q"]
    done = here("run", "-o", "out", "method=fedavg,fedthe", "adapters=the", *plain)
    assert done.returncode == 0, done.stderr
    assert "not run: " in done.stdout


def test_runs_and_searches_do_not_share_a_folder(tmp_path, here):
    once = ["method=fedavg", "data.clients=3", "model=mlp", "model.hidden=4", "rounds=1", "-q"]
    search = tmp_path / "search"
    search.mkdir()
    card = {"trials": [], "planned": 1, "sampler": "grid", "seeds": [0], "space": [], "chosen": None, "seconds": 0}
    card |= {"score": {"streams": ["original"], "adapter": "none"}, "settings": {}, "command": ""}
    (search / "tune.json").write_text(json.dumps(card))
    for more in ([], ["--overwrite"], ["seed=0,1"]):
        done = here("run", "-o", "search", *more, *once)
        assert (done.returncode, done.stderr) == (2, "acclimate: search holds a search; choose another --out\n")
    alone = here("report", "search")
    assert alone.returncode == 2 and "a search, with a page of its own, search/report.html" in alone.stderr
    done = here("run", "-o", "run", "streams=original", "adapters=none", *once)
    assert done.returncode == 0, done.stderr
    done = here("tune", "-o", "run", "method.opt.lr=0.1,0.2", *once)
    assert done.returncode == 2 and "run holds a run" in done.stderr
    (tmp_path / "run" / "tune.json").write_text(json.dumps(card))  # as earlier versions let it be
    assert here("report", "run", "search", "-o", "both.html").returncode == 0
    page = (tmp_path / "both.html").read_text()
    assert "Search run" in page and "Search search" in page and "fedavg" in page


def test_list_show_doctor(here):
    names = here("list").stdout
    for word in ("methods:", "scaffold", "adapters:", "t3a", "streams:", "mixture", "partitions:", "dirichlet"):
        assert word in names
    only = here("list", "adapters").stdout
    assert "tent" in only
    assert "fedavg" not in only
    shown = here("show", "fedprox").stdout
    for word in ("Li et al., MLSys 2020", "mu: float = 0.1", ".batch = 32", "acclimate.methods.fedprox.FedProx"):
        assert word in shown
    for name, says in (
        ("tent.steps", "there is no 'tent.steps'; `acclimate show tent` has its fields; `acclimate list` names"),
        ("method", "there is no 'method'; `acclimate list methods` has all of this kind; `acclimate list` names"),
        ("data", "`acclimate list datasets` has all of this kind; "),
        ("stream", "`acclimate list streams` has all of this kind; "),
        ("fedprx", "there is no 'fedprx'; did you mean 'fedprox'"),
    ):
        assert says in here("show", name).stderr
    doctor = here("doctor").stdout
    for word in ("torch", "device", "data root", "flower", "pip install"):
        assert word in doctor


def test_commands_that_train_leave_half_of_the_cores_to_others(monkeypatch, here):
    asked = []
    monkeypatch.setattr(torch, "set_num_threads", asked.append)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    use_half_of_the_cores()
    assert asked == []  # the tests set OMP_NUM_THREADS
    monkeypatch.delenv("OMP_NUM_THREADS")
    once = ["data.clients=3", "model=mlp", "model.hidden=4", "rounds=1", "method.work.epochs=1"]
    assert here("run", "method=fedavg", "streams=original", "adapters=none", "-q", *once).returncode == 0
    assert here("tune", "method=fedavg", "method.opt.lr=0.1,0.2", "--trials", "1", "-q", *once).returncode == 0
    assert here("reproduce", "fedpcl/table14", "--rows", "1 backbones", "-q").returncode == 0
    assert asked[:3] == [4, 4, 4]


def test_ctrl_c_says_how_to_go_on(tmp_path):
    out = tmp_path / "cut"
    many = [s for s in QUICK if not s.startswith("rounds")]
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            COMMAND,
            "run",
            "-q",
            "-o",
            str(out),
            "method=local",
            "rounds=4000",
            "checkpoint_every=1",
            *many,
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (out / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(2)
    _, err = process.communicate(timeout=250)
    assert process.returncode == 130
    assert f"go on with: acclimate resume {out}" in err


def test_a_given_personaliser_goes_with_every_default_method():
    from acclimate.cli.main import _experiments

    assert [e.label for e in _experiments(["personal=lp"], None, 1)] == ["fedavg+lp", "fedthe+lp", "fedtta+lp"]
    assert [e.label for e in _experiments([], None, 1)][:2] == ["fedavg", "fedavg+finetune"]


def stop(*args, **kwargs):
    raise KeyboardInterrupt


@pytest.mark.parametrize("methods", ["fedavg", "fedavg,fedprox"])
def test_ctrl_c_outside_of_the_rounds_says_how_to_go_on_too(here, monkeypatch, methods):
    one = ["streams=original", "adapters=none", "-q", *QUICK]
    with monkeypatch.context() as early:
        early.setattr("acclimate.running.run.run_all", stop)
        done = here("run", "-o", "out", f"method={methods}", *one)
        assert (done.returncode, done.stderr) == (130, "acclimate: stopped before anything was saved\n")
    with monkeypatch.context() as late:
        late.setattr("acclimate.running.run.evaluated", stop)
        for command in (["run", "-o", "out", f"method={methods}", *one], ["resume", "out", "-q"]):
            done = here(*command)
            assert (done.returncode, done.stderr) == (130, "acclimate: stopped; go on with: acclimate resume out\n")
    assert here("resume", "out", "-q").returncode == 0


def test_ctrl_c_in_any_other_command_is_not_silent_and_is_said_once(here, monkeypatch):
    monkeypatch.setattr("acclimate.running.run.report", stop)
    done = here("report", "out")
    assert (done.returncode, done.stderr) == (130, "acclimate: stopped\n")
    monkeypatch.setattr("acclimate.tuning.tune", stop)
    done = here("tune", "method.opt.lr=0.1,0.2", "-q", "--out", "out")
    assert (done.returncode, done.stderr) == (130, "stopped; the same command with --out out goes on where it was\n")
