"""`acclimate data` as a person uses it: what it lists, how it checks, what it draws."""

import re
import signal
import subprocess
import sys

import numpy as np
import pytest

from acclimate.experiment import catalogue

# Typer imports what newer versions of Click say will go; the command line is imported inside tests, where it may.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Click:DeprecationWarning"),
    pytest.mark.usefixtures("no_data"),
]


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Calls the console script's function: exit code, output, errors."""
    from acclimate.cli import main as cli
    from acclimate.cli.data import data_app

    monkeypatch.chdir(tmp_path)
    if not any(group.name == "data" for group in cli.app.registered_groups):
        cli.app.add_typer(data_app, name="data")
    before = signal.getsignal(signal.SIGTERM)

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["acclimate", "data", *args])
        try:
            cli.main()
            code = 0
        except SystemExit as e:
            code = e.code
        done = capsys.readouterr()
        return code, done.out, done.err

    yield call
    signal.signal(signal.SIGTERM, before)


def cifar10_1(folder, labels):
    """The two files of CIFAR-10.1 v6, with black pictures."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "cifar10.1_v6_data.npy", np.zeros((len(labels), 32, 32, 3), np.uint8))
    np.save(folder / "cifar10.1_v6_labels.npy", np.asarray(labels))


def test_importing_the_commands_needs_no_torch():
    code = "import sys, acclimate.cli.data\nassert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=250)


def test_list_names_every_set_and_says_what_is_there(run, tmp_path):
    code, out, _ = run("list")
    assert code == 0
    assert "data root: none" in out and "ACCLIMATE_DATA" in out
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert set(catalogue.DATASETS) <= set(lines)
    assert "embedded" in lines["digits"] and "1,797" in lines["digits"]
    assert "60,000 + 10,000" in lines["mnist"] and "1 x 28 x 28" in lines["mnist"]
    assert "missing: MNIST/raw/" in lines["mnist"]
    assert "your own: .npz file" in lines["arrays"]
    cifar10_1(tmp_path / "sets", range(3))
    (tmp_path / "sets" / "usps").mkdir()
    (tmp_path / "sets" / "usps" / "usps.bz2").touch()
    (tmp_path / "sets" / "pacs").mkdir()
    for domain in ("art_painting", "cartoon", "photo", "sketch"):
        (tmp_path / "sets" / "pacs" / domain).mkdir()
    code, out, _ = run("list", "--root", str(tmp_path / "sets"))
    lines = {line.split()[0]: line for line in out.splitlines() if line}
    assert code == 0
    assert f"found in {tmp_path / 'sets'}" in lines["cifar10.1"]
    assert "missing: usps.t.bz2" in lines["usps"]
    assert "unreadable: " in lines["pacs"] and "has no class folders" in lines["pacs"]
    assert "(does not exist)" in run("list", "--root", str(tmp_path / "nowhere"))[1]


def test_check_of_the_embedded_digits(run):
    code, out, err = run("check", "digits")
    assert (code, err) == (0, "")
    for line in ("ok: examples 1,797", "ok: shape 3 x 16 x 16", "ok: class histogram is the published one"):
        assert line in out
    code, out, _ = run("check", "digits", "domains=plain,font", "data.side=20")
    assert code == 0
    assert "ok: examples 3,597" in out and "3 x 20 x 20" in out
    assert "nothing is published" in run("check", "digits", "domains=font")[1]


def test_check_finds_a_sound_set_sound_and_a_tampered_one_not(run, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "sets"))
    labels = np.arange(2000) % 10
    cifar10_1(tmp_path / "sets", labels)
    code, out, _ = run("check", "cifar10.1")
    assert code == 0, out
    assert "ok: examples 2,000" in out and "ok: class histogram (test) is the published one" in out
    labels[0] = 7
    cifar10_1(tmp_path / "sets", labels)
    code, out, _ = run("check", "cifar10.1")
    assert code == 1
    assert "differs: class histogram (test) in 2 classes (airplane: 199 for 200, horse: 201 for 200)" in out
    labels[0] = 10
    cifar10_1(tmp_path / "sets", labels)
    code, out, _ = run("check", "cifar10.1")
    assert code == 1
    assert "differs: " in out and "cifar10.1_v6_labels.npy: label 10 of example 0 must be 0 to 9" in out


def test_check_of_an_absent_set_names_files_folder_and_origin(run, tmp_path):
    code, out, err = run("check", "cifar10", f"root={tmp_path}")
    assert (code, out) == (2, "")
    for words in (str(tmp_path), "cifar-10-batches-bin/", "https://www.cs.toronto.edu", "ACCLIMATE_DATA"):
        assert words in err
    assert run("check", "cifar10.1", "version=v4")[0] == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["check", "cifar1"], "did you mean 'cifar10'"),
        (["check", "mnist", "siz=3"], "did you mean 'size'"),
        (["check", "mnist", "size=0"], "size=0"),
        (["check", "mnist", "size"], "must be key=value"),
        (["check", "arrays"], "file='' must name your .npz file"),
        (["check", "arrays", "file=absent.npz"], "absent.npz"),
        (["check"], "Missing argument"),
        (["preview", "data=digit"], "did you mean 'digits'"),
        (["preview", "data.clients=0"], "clients=0 must be a whole number of at least 1"),
        (["preview", "seed=0,1"], "describe 2 experiments"),
        (["preview", "data=mnist"], "Needed: MNIST/raw/"),
        (["preview", "streams=new-clients"], "set data.new_clients"),
        (
            ["preview", "-o", "x.png"],
            "x.png must end in .html: the preview is a page, which a browser shows",
        ),
        (["preview", "-o", "folder.html"], "folder.html is a folder"),
        (["preview", "-c", "absent.toml"], "absent.toml does not exist"),
        (["preview", "-c", "bad.toml"], "bad.toml is not valid TOML"),
        (["paint"], "No such command"),
    ],
)
def test_bad_input_is_one_sentence_exit_two_and_no_file(run, args, says, tmp_path):
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "bad.toml").write_text("seed = [")
    (tmp_path / "preview.html").write_bytes(b"an older preview")
    code, _, err = run(*args)
    assert code == 2, err
    assert says in " ".join(re.sub(r"[│\x1b]", " ", err).split())
    assert (tmp_path / "preview.html").read_bytes() == b"an older preview"
    left = {p.name for p in tmp_path.iterdir()} - {"cache"}
    assert left == {"folder.html", "bad.toml", "preview.html"}, "nothing half-written"


def test_preview_draws_the_experiment_of_settings_and_file(run, tmp_path):
    (tmp_path / "e.toml").write_text('streams = ["original"]\nseed = 3\n[data]\nclients = 6\nside = 20\n')
    code, out, err = run("preview", "-c", "e.toml", "data.clients=3", "method=fedavg,fedbn", "-o", "sub/a.html")
    assert code == 0, err
    assert "wrote sub/a.html" in out
    same = ["data.clients=3", "data.side=20", "streams=original"]
    assert run("preview", *same, "seed=3")[0] == 0
    drawn = (tmp_path / "preview.html").read_bytes()
    assert drawn.startswith(b"<!DOCTYPE html>")
    assert drawn == (tmp_path / "sub" / "a.html").read_bytes()
    assert run("preview", *same, "seed=4")[0] == 0
    assert drawn != (tmp_path / "preview.html").read_bytes()
