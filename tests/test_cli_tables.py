"""A newcomer with a table, as they type it: one command gives a table and a report. Each friction was met once."""

from pathlib import Path

import numpy as np
import pytest

from acclimate import store

pytestmark = pytest.mark.filterwarnings("ignore:.*click.*:DeprecationWarning")  # typer imports a name click renamed
QUICK = ["rounds=1", "method=fedavg", "method.work.epochs=1", "adapters=none,tent"]


@pytest.fixture
def here(here, no_data, tmp_path):
    """The command in this process, in a folder of its own with a table: exit code, output, errors."""

    def call(*args):
        done = here(*args)
        return done.returncode, done.stdout, done.stderr

    (tmp_path / "har.csv").write_text(har())
    return call


def har(rows=240, subjects=3):
    """Readings of three axes, some of them missing, and a word; the activity is the axis that is high."""
    g, lines = np.random.default_rng(0), ["subject,activity,x,y,z,device"]
    for i in range(rows):
        kind = int(g.integers(0, 3))
        cells = [f"{v:.3f}" if g.random() > 0.05 else "" for v in g.normal(0, 1, 3) + 2.5 * np.eye(3)[kind]]
        lines.append(f"a{i % subjects},{('walk', 'sit', 'run')[kind]},{','.join(cells)},{('phone', 'watch')[i % 2]}")
    return "\n".join(lines) + "\n"


def test_a_csv_runs_at_once_and_says_what_was_chosen(here, tmp_path):
    code, out, err = here(
        "run", "data=table", "data.file=har.csv", "data.label=activity", "data.client=subject", *QUICK
    )
    assert code == 0, err
    assert "240 vectors of 8 numbers, scaled by training rows, 3 clients; model=mlp-bn" in err
    assert "streams=original,corrupted,out-of-client,mixture (shifts: noise, offset, missing, scale, dropped)" in err
    assert "data: clients are 0 = a0, 1 = a1, 2 = a2\n" in err
    assert "3 columns have missing values (x, y, z): filled with the median of the training rows" in err
    assert "original" in out and "mixture" in out and "not run" not in out
    assert (tmp_path / "runs" / "001-fedavg" / "report.html").stat().st_size > 10_000


def test_few_rows_without_clients_train_and_report(here):
    """150 rows: two clients whose training rows fill a batch of 32, which FedTTA's of 64 is lowered to."""
    Path("few.csv").write_text(har(rows=150))
    quick = ["rounds=1", "method=fedavg,fedtta", "adapters=none", "streams=original"]
    code, out, err = here(
        "run", "data=table", "data.file=few.csv", "data.label=activity", "data.drop=subject", *quick, "-o", "few"
    )
    assert code == 0, err
    assert "no clients are named: dealt to 2, each with 45 training, 15 validation, 15 test examples" in err
    assert "batches of at most 32, not 64: a client has 45 training examples (method.work.batch)" in err
    assert "fedavg " in out and "fedtta(method.work.batch=32)" in out
    runs = {f.experiment().label: f.experiment().method.work.batch for f in store.find_runs(Path("few"))}
    assert sorted(runs.values()) == [32, 32]


def test_few_rows_of_named_clients_lower_the_batch_too(here):
    Path("few.csv").write_text(har(rows=60))
    settings = ["data=table", "data.file=few.csv", "data.label=activity", "data.client=subject"]
    code, _, err = here("run", *settings, *QUICK, "streams=original", "personal=finetune", "-o", "few")
    assert code == 0, err
    assert "dealt" not in err and "batches of at most 8, not 32: a client has 12 training examples" in err
    (folder,) = store.find_runs(Path("few"))
    assert (folder.experiment().method.work.batch, folder.experiment().personal.work.batch) == (8, 8)
    code, out, err = here("deploy", "few", "adapters=none", "--client", "0", "-o", "live")
    assert code == 0 and "clients are 0 = a0, 1 = a1, 2 = a2\nwrote live" in out, err
    code, _, err = here("run", *settings, *QUICK, "method.work.batch=16", "-o", "chosen")
    assert code == 2 and "client 0 (a0) has 12 training examples, fewer than a batch (method.work.batch=16)" in err


def test_a_client_of_one_row_is_named_with_what_leaves_it_out(here):
    Path("one.csv").write_text(har(rows=400, subjects=6) + "lone,walk,1,2,3,phone\n")
    settings = ["data=table", "data.file=one.csv", "data.label=activity", "data.client=subject", *QUICK]
    code, _, err = here("run", *settings, "streams=original")
    remedy = "leave out clients of few examples (data.partition=natural-users, data.partition.floor=66)"
    said = f"client 6 (lone) has 1 training example, fewer than a batch (method.work.batch=32); {remedy}"
    assert code == 2 and said in err
    code, _, err = here("run", *settings, "streams=original", "data.partition=natural-users", "data.partition.floor=66")
    assert code == 0 and "401 vectors of 8 numbers, scaled by training rows, 6 clients" in err, err


def test_the_first_comparison_runs_with_any_number_of_clients(here):
    """FedTTA's batch of 64 is more than 20 clients have of the embedded digits: nobody chose it."""
    few = ["data.clients=20", "data.new_clients=0", "rounds=1", "method.work.epochs=1", "adapters=none"]
    code, _, err = here("run", *few, "streams=original", "-o", "few")
    assert code == 0, err
    assert "batches of at most 32, not 64: a client has 53 training examples (method.work.batch)" in err
    work = {f.experiment().label: f.experiment().method.work.batch for f in store.find_runs(Path("few"))}
    assert len(work) == 4 and set(work.values()) == {32}
    code, _, err = here("run", *few, "method=fedtta", "-o", "chosen")
    assert code == 2 and "client 0 has 54 training examples, fewer than a batch (method.work.batch=64)" in err


def test_windows_run_at_once(here):
    rows = "\n".join(
        f"{s},{'ab'[t // 160 % 2]},{np.sin(t / (1 + t // 160 % 2)):.3f},{s}" for s in range(2) for t in range(640)
    )
    with open("series.csv", "w") as file:
        file.write("who,state,u,v\n" + rows)
    settings = ["data=windows", "data.file=series.csv", "data.label=state", "data.client=who", "data.window=8"]
    code, _, err = here("run", *settings, *QUICK, "streams=original,corrupted,in-order")
    assert code == 0, err
    assert "windows of 2 x 8 numbers, scaled by training rows, 2 clients; model=window-cnn-bn" in err
    assert "clients are" not in err  # they are called 0 and 1
    assert "earlier windows of a class train, later ones test" in err


def test_vectors_in_an_npz_file_run_at_once(here):
    g = np.random.default_rng(0)
    np.savez("v.npz", x=g.normal(0, 1, (400, 6)).astype(np.float32), y=np.arange(400) % 2)
    settings = ["data=arrays", "data.file=v.npz", "data.clients=4", "data.partition=iid"]
    code, out, err = here("run", *settings, *QUICK)
    assert code == 0, err
    assert "400 vectors of 6 numbers, scale=none, 4 clients; model=mlp-bn" in err and "corrupted" in out


def test_data_without_clients_is_dealt_and_pictures_run_as_before(here):
    settings = ["data=table", "data.file=har.csv", "data.label=activity", "data.drop=subject", "data.clients=2"]
    code, _, err = here("run", *settings, *QUICK, "streams=original", "data.partition.otherwise.alpha=10")
    assert code == 0, err
    assert "2 clients" in err and "streams=" not in err.split("data: ")[1].split("\n")[0]
    code, _, err = here(
        "run", "data.clients=2", "data.fraction=0.2", "streams=original", *QUICK, "model.widths=4", "-q"
    )
    assert code == 0 and "data:" not in err


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["data=har.csv"], "'har.csv' is a file; write data=table data.file=har.csv data.label=COLUMN"),
        (["data=arrays", "data.file=har.csv"], "is a table; use data=table and name its labels with data.label="),
        (["data=table", "data.file=har.csv", "data.label=activty"], "did you mean 'activity'?"),
        (
            ["data=table", "data.file=har.csv", "data.label=activity", "data.partition=iid", "data.clients=10"],
            "client 0 has 14 training examples, fewer than a batch (method.work.batch=32); set method.work.batch=14, "
            "or use fewer than 10 clients (data.clients), of equal size at most 4",
        ),
        (
            ["data=digits", "data.clients=1", "data.fraction=0.01"],
            "set method.work.batch=16, or give more examples, or m",
        ),
        (
            ["data=digits", "data.clients=10", "data.fraction=0.01"],
            "use fewer than 10 clients (data.clients), or more of the data than data.fraction=0.01",
        ),
        (["data=table", "data.file=har.csv"], "which column says the class? Set data.label="),
        (["data=table", "data.file=none.csv", "data.label=a"], "file='none.csv' is not there"),
        (["data=table", "data.label=a"], "file='' must name your CSV or Parquet file"),
        (
            ["data=windows", "data.file=har.csv", "data.label=activity", "data.client=subject"],
            "holds words, and readings",
        ),
    ],
)
def test_what_cannot_be_is_a_sentence_and_leaves_nothing(here, tmp_path, settings, says):
    code, _, err = here("run", *settings, *QUICK)
    assert code == 2 and says in err and "Traceback" not in err
    assert not (tmp_path / "runs").exists()


def test_data_commands_know_tables(here):
    code, out, err = here("data", "check", "table", "file=har.csv", "label=activity", "client=subject")
    assert code == 0, err
    assert "ok: examples 240, clients 3, classes 3, shape 8" in out and "note: 3 columns have missing" in out
    code, out, _ = here("data", "check", "cells")
    assert code == 0 and "ok: examples 569, clients 5, classes 2, shape 30" in out
    code, out, _ = here("data", "list")
    assert code == 0 and "your own: CSV or Parquet file with a column of labels" in out
