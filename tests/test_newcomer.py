"""What somebody meets who types a command for the first time: sentences that say what to type instead."""

import subprocess
import sys

import pytest
from torch import nn

import acclimate as ac
from acclimate import store
from acclimate.cli.join import chosen
from acclimate.core import Task
from acclimate.experiment import ConfigError
from acclimate.experiment.settings import expand
from acclimate.recipes import recipe
from acclimate.serving.checkpoint import found


def planned(path):
    """A folder of two runs, as far as its index goes."""
    store.IndexFolder(path).plan([ac.Experiment(), ac.Experiment(method=ac.methods.FedTHE())])


@pytest.mark.parametrize("typed", ["runs/first", "runs/first/", "./runs/first"])
@pytest.mark.parametrize("words", [["deploy"], ["export"], ["deploy", "adapters=the"]])
def test_a_folder_of_runs_names_them_and_the_command(words, typed, tmp_path, here):
    planned(tmp_path / "runs" / "first")
    done = here(words[0], typed, *words[1:])
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "acclimate: runs/first is no run, but a folder that holds 2 runs: fedavg-s0, fedthe-s0; name a run; "
        "for example:",
        f"  acclimate {' '.join([words[0], 'runs/first/fedavg-s0', *words[1:]])}",
    ]


def test_a_folder_of_folders_of_runs_names_them_too(tmp_path):
    planned(tmp_path / "runs" / "first")
    with pytest.raises(store.SeveralRuns, match=r"holds 2 runs: first/fedavg-s0, first/fedthe-s0; name a run$"):
        ac.load(tmp_path / "runs")
    assert store.runs_below(tmp_path / "runs" / "first" / "fedavg-s0") == []
    many = [ac.Experiment(seed=s) for s in range(23)]
    store.IndexFolder(tmp_path / "many").plan(many)
    with pytest.raises(store.SeveralRuns, match=r"holds 23 runs: .*fedavg-s18, fedavg-s19 and 3 more; name a run$"):
        ac.load(tmp_path / "many")


def test_commands_that_only_look_after_a_fleet_need_no_torch(tmp_path):
    """One process for all of them: what any of them imports is seen at the end."""
    code = """
import sys
from pathlib import Path
from acclimate.cli.main import main
from acclimate.fleet.loopback import Fleet
Fleet(Path("fleet").absolute(), 1, 0).save()
Path("state/runs").mkdir(parents=True)
commands = "status; down; up --clients 0; status nowhere; remove a nowhere; forget state; forget nowhere"
for words in commands.split("; "):
    sys.argv = ["acclimate", "fleet", *words.split()]
    try:
        main()
    except SystemExit as e:
        print(words, e.code, sep=": ")
assert "torch" not in sys.modules and "numpy" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    codes = [line for line in done.stdout.splitlines() if line[-3:-1] == ": "]
    assert codes == [
        "status: 1",
        "down: 0",
        "up --clients 0: 2",
        "status nowhere: 2",
        "remove a nowhere: 2",
        "forget state: 0",
        "forget nowhere: 2",
    ]
    assert "Traceback" not in done.stderr and "loading torch" not in done.stderr


def test_a_lone_linear_layer_is_called_what_it_is():
    class Probe(nn.Linear):
        pass

    with pytest.raises(ValueError, match="^model Linear: its head '0' has 9 outputs but the data has 10 classes"):
        Task(nn.Linear(64, 9), (64,), 10)
    with pytest.raises(ValueError, match="^model Probe cannot be called on a batch of inputs"):
        Task(Probe(63, 10), (64,), 10)
    assert Task(nn.Linear(64, 10), (64,), 10).params == ("0.weight", "0.bias")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("adapter=tent", "adapter=tent: did you mean adapters=tent? a trained model can be given another adapters="),
        ("tent", "tent: did you mean adapters=tent? a trained model"),
        ("rounds=3", "rounds=3: a trained model can be given another adapters="),
        ("adapters=t3a,tent", "adapters=t3a,tent: name one adapter, for example adapters=t3a"),
    ],
)
def test_an_adapter_to_deploy_is_named_by_its_setting(typed, says):
    with pytest.raises(ConfigError) as error:
        chosen(ac.Experiment(), [typed])
    assert str(error.value).startswith(says)


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("seeds=3", "seeds: Experiment has no 'seeds'; it is an option of the command line, written --seeds 3"),
        ("out=runs/x", "out: Experiment has no 'out'; it is an option of the command line, written -o FOLDER"),
        ("data.seeds=3", "data.seeds: Digits has no 'seeds'; did you mean 'seed'? "),
        (
            "streams.severity=3",
            "streams.severity: no entry 'severity' to set a field of; did you mean 'streams.corrupted.s",
        ),
        (
            "adapters.steps=3",
            "adapters.steps: no entry 'steps' to set a field of; did you mean 'adapters.tent.steps'? all",
        ),
        (
            "tent.steps=2",
            "tent.steps: Experiment has no 'tent'; did you mean 'adapters.tent.steps', with adapters=tent? a",
        ),
        (
            "fedprox.mu=1",
            "fedprox.mu: Experiment has no 'fedprox'; did you mean 'method.mu', with method=fedprox? allowed",
        ),
        ("adapters=", "adapters: Experiment: adapters=() must name at least one; use 'none' for no adaptation"),
        ("streams=", "streams: Experiment: streams=() must name at least one"),
    ],
)
def test_an_option_that_is_typed_as_a_setting(typed, says):
    with pytest.raises(ConfigError) as error:
        expand([typed, "rounds=3"])
    assert str(error.value).startswith(says)


def test_the_name_of_a_paper_is_answered_with_its_recipes():
    with pytest.raises(
        ConfigError, match="^'fedthe' is a paper; name one of its recipes, fedthe/table1, table2, table3"
    ):
        recipe("fedthe")


def test_a_live_folder_is_no_run_and_a_folder_of_runs_no_live_folder(tmp_path):
    live = tmp_path / "runs" / "mine" / "live" / "client-0"
    live.mkdir(parents=True)
    (live / "live.json").write_text("{}")
    with pytest.raises(store.RunError, match="client-0 is a live model, and no run folder; name the run that it was d"):
        ac.load(live)
    (tmp_path / "search").mkdir()
    (tmp_path / "search" / "tune.json").write_text("{}")
    with pytest.raises(
        store.RunError, match="search is a search, and no run folder; run what it found: acclimate run -c"
    ):
        ac.load(tmp_path / "search")
    with pytest.raises(store.RunError, match="runs holds no live model itself; there are some in .*runs/mine/live$"):
        found([tmp_path / "runs"])
    assert found([tmp_path / "runs" / "mine"]) == [live]


A, M, P, S = ac.adapters, ac.methods, ac.personal, ac.shifts


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "fedthe"}, r"Experiment: method='fedthe' must be a record such as FedTHE\(\)"),
        ({"method": M.FedProx}, r"Experiment: method=FedProx must be a record such as FedProx\(\)"),
        ({"personal": "finetune"}, r"Experiment: personal='finetune' must be a record such as FineTune\(\)"),
        ({"backend": "serial"}, r"Experiment: backend='serial' must be a record such as Serial\(\)"),
        ({"method": M.FedAvg(opt="adam")}, r"Experiment.method: opt='adam' must be a record such as Adam\(\)"),
        ({"method": M.FedAvg(work=5)}, r"Experiment.method: work=5 must be a record such as Work\(\)"),
        ({"adapters": (A.Guarded(A.Tent),)}, r"Experiment.adapters: adapter=Tent must be a record such as Tent\(\)"),
        ({"adapters": A.Tent()}, r"Experiment: adapters=Tent\(.* must be a tuple of records, \(Tent\(\.\.\.\),\)"),
        ({"adapters": ("tent",)}, r"Experiment: adapters='tent' must be a record such as Tent\(\)"),
        ({"adapters": [A.Tent]}, r"Experiment: adapters=Tent must be a record such as Tent\(\)"),
        ({"streams": "original"}, r"Experiment: streams='original' must be a tuple of records, \(Original\(\),\)"),
        (
            {"filters": ac.filters.Clip()},
            r"Experiment: filters=Clip\(.* must be a tuple of records, \(Clip\(",
        ),
    ],
)
def test_names_and_classes_in_the_place_of_records_are_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        ac.Experiment(**fields)


def test_a_list_of_records_is_a_tuple_of_them():
    made = ac.Experiment(adapters=[A.NoAdapt()], streams=[S.Original()], filters=[])
    assert made == ac.Experiment(adapters=(A.NoAdapt(),), streams=(S.Original(),)) and hash(made)


def test_what_is_tested_and_which_client_is_asked_for_must_be_there():
    fit = ac.train(
        ac.Experiment(
            data=ac.data.Digits(clients=2), model=ac.models.MLP(hidden=(4,)), rounds=1, backend=ac.backends.Serial()
        )
    )
    with pytest.raises(ValueError, match=r"deploy: .*; choose another adapter, such as NoAdapt\(\) \(adapters=none\)$"):
        fit.deploy(0, A.THE())
    for given, says in (
        ({"adapters": A.Tent()}, "evaluate: adapters=Tent.* must be a tuple of records"),
        ({"adapters": ["tent"]}, "evaluate: adapters='tent' must be a record such as Tent"),
        ({"streams": "original"}, "evaluate: streams='original' must be a tuple of records"),
        ({"personal": P.FineTune}, "evaluate: personal=FineTune must be a record such as FineTune"),
    ):
        with pytest.raises(ValueError, match=says):
            ac.evaluate(fit, **given)
    for name, tested in (
        ("evaluate", ac.evaluate),
        ("estimates", ac.estimates),
        ("select", ac.select),
        ("traces", ac.traces),
    ):
        for field in ("adapters", "streams"):  # an empty list tested the experiment's own
            with pytest.raises(ValueError, match=rf"^{name}: {field}=\(\) must hold at least one; leave it out"):
                tested(fit, **{field: []})
    with pytest.raises(ValueError, match=r"^evaluate_together: adapters=\(\) must hold at least one"):
        ac.evaluate_together([fit], adapters=())
    once = ac.evaluate(fit, adapters=(a for a in [A.NoAdapt()]), streams=[S.Original()])
    assert {row["adapter"] for row in once.rows} == {"none"}
    for wrong in (2, -1, "0", 1.0):
        with pytest.raises(ValueError, match=f"client={wrong!r} must be from 0 to 1"):
            fit.model(wrong)


def test_a_linear_layer_on_images_is_answered_with_what_lacks():
    with pytest.raises(ValueError, match=r"\(16x8 and 64x10\); images and windows need nn\.Flatten\(\) before"):
        Task(nn.Linear(64, 10), (1, 8, 8), 10)


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (lambda: ac.models.MLP(hidden=64), r"MLP: hidden=64 must be a tuple; write \(64,\)"),
        (lambda: ac.models.CNN(widths=8), r"CNN: widths=8 must be a tuple; write \(8,\)"),
        (lambda: ac.models.WindowCNN(widths=8), r"WindowCNN: widths=8 must be a tuple; write \(8,\)"),
        (lambda: S.Corrupted(kinds="fog"), r"Corrupted: kinds='fog' must be a tuple; write \('fog',\)"),
        (lambda: S.Blends(kinds="fog"), r"Blends: kinds='fog' must be a tuple; write \('fog',\)"),
        (lambda: S.Mixture(parts=S.Original()), r"Mixture: parts=Original\(.*\) must be a tuple; write \(Original\("),
        (lambda: ac.data.Digits(angles=90), r"Digits: angles=90 must be a tuple; write \(90,\)"),
        (lambda: ac.data.Digits(held_out="sketch"), r"Digits: held_out='sketch' must be a tuple; write \('sketch',\)"),
        (lambda: ac.data.Digits(split=0.8), r"Digits: split=0.8 must be three shares \(train, val, test\)"),
    ],
)
def test_one_value_in_the_place_of_several_says_how_a_tuple_is_written(made, says):
    with pytest.raises(ValueError, match=says):
        made()


def test_a_report_of_nothing_and_an_accuracy_of_no_row_say_what_there_is():
    with pytest.raises(ValueError, match="report: no run is named; write for example ac.report"):
        ac.report(out="report.html")
    made = {"method": "fedavg", "adapter": "none", "stream": "original", "selection": "last", "accuracy": 0.5}
    table = ac.Table((made, {**made, "adapter": "t3a"}))
    assert table.accuracy(adapter="t3a") == 0.5
    with pytest.raises(KeyError) as error:
        table.accuracy(adapter="tent")
    assert error.value.args[0] == (
        "no row with selection='last', adapter='tent'; rows have selection last and adapter none, t3a"
    )
