"""Real sites: each has its own data, which the server never sees; and the folder that sets them up."""

import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from cryptography import x509
from fakes import FakeGrid
from typer.testing import CliRunner

from acclimate import store
from acclimate.adapters import Guarded, Tent
from acclimate.backends.flower.engine import Flower
from acclimate.backends.flower.protocol import FleetError
from acclimate.cli.main import app
from acclimate.experiment.settings import expand
from acclimate.fleet import keys, local_processes, loopback, server_app, site_folders
from acclimate.fleet.site import Place
from acclimate.live import load_live
from acclimate.methods import FedAvg
from acclimate.serving import Ask
from acclimate.serving.run import open_front


class SiteGrid(FakeGrid):
    """Nodes that were told where their own data lie."""

    def context(self, node):
        made = super().context(node)
        made.node_config["data"] = str(self.folder / f"data{node - 100}")
        return made


def grid_with_data(folder, classes=(3, 3), sizes=(60, 90)):
    for k, (count, n) in enumerate(zip(classes, sizes, strict=True)):
        g = np.random.default_rng(k)
        y = np.arange(n) % count
        x = (g.random((n, 1, 6, 6)) * 100).astype(np.uint8)
        x[np.arange(n), 0, y] += 120
        (folder / f"data{k}").mkdir(parents=True)
        np.savez(folder / f"data{k}" / "site.npz", x=x, y=y)
    return SiteGrid(folder)


def config(folder, **more):
    base = {"task": "train", "data": "sites", "run-folder": str(folder), "settings": "", "selection": "last"}
    return {**base, "adapter": "", **more}


def prepare(folder, *settings):
    base = ["data=arrays", "data.file=site.npz", "data.clients=2", "data.partition=iid", "model=mlp", "model.hidden=8"]
    (e,) = expand([*base, "method.work.batch=8", "rounds=2", "adapters=none", "streams=original", *settings])
    e = replace(e, backend=Flower(deadline=5.0, patience=2.0))
    store.RunFolder.create(folder, e, torch.device("cpu"))
    return e


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_sites_train_and_deploy_on_data_that_the_server_never_has(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path / "nothing"))
    grid = grid_with_data(tmp_path)
    prepare(tmp_path / "run")
    server_app.conduct(grid, config(tmp_path / "run"))
    results = store.RunFolder(tmp_path / "run").load()["results"]
    assert results["faults"] == [] and results["table"][0]["clients"] == 2
    assert results["data"]["splits"]["train"] == {"sizes": [36, 54]} and "histograms" not in results["data"]
    assert results["table"][0]["accuracy"] > 0.5, "the sites' own labels are learnt, not the stand-ins'"
    server_app.conduct(grid, config(tmp_path / "run", task="deploy"))
    assert {p.parent.parent.name for p in tmp_path.glob("site*/deployed/card.json")} == {"site0", "site1"}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_deployed_at_a_site_is_a_live_model_that_its_own_labels_calibrate(tmp_path):
    grid = grid_with_data(tmp_path)
    prepare(tmp_path / "run", "adapters=guarded-tent-all")
    server_app.conduct(grid, config(tmp_path / "run"))
    results = store.RunFolder(tmp_path / "run").load()["results"]
    assert [r["adapter"] for r in results["table"]][:1] == ["guarded-tent-all"] and results["refused"] == []
    server_app.conduct(grid, config(tmp_path / "run", task="deploy"))
    for c, count in enumerate((60, 90)):
        site = next(tmp_path.glob(f"site{c}*"))
        live = load_live(site / "deployed" / str(c))
        assert isinstance(live.adapter, Guarded) and live.adapter.adapter == Tent(params="all")
        assert int(live.model["reference"]["real"].sum()) == min(round(count * 0.2), 32)
        x = np.load(tmp_path / f"data{c}" / "site.npz")["x"][:40]
        assert live(x).step == 1
        front = open_front([site])  # what `acclimate serve SITE` does
        assert front.service.answer([Ask(c, "a", torch.from_numpy(x))])[0].step == 1
        assert front.service.close().keys() == {c} and (site / "deployed" / "serving" / "server.json").exists()


def test_sites_that_do_not_fit_are_named(tmp_path):
    grid = grid_with_data(tmp_path, classes=(3, 4))
    prepare(tmp_path / "run")
    with pytest.raises(FleetError, match="site 1 has classes="):
        server_app.conduct(grid, config(tmp_path / "run"))
    last = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()[-1]
    assert '"failed"' in last and "site 1 has classes" in last


def test_a_site_that_is_missing_ends_the_wait(tmp_path):
    grid = grid_with_data(tmp_path)
    grid.offline = {101}
    prepare(tmp_path / "run")
    with pytest.raises(FleetError, match=r"site\(s\) \[1\] within 2 s"):
        server_app.conduct(grid, config(tmp_path / "run"))


def test_init_writes_all_that_sites_need(tmp_path):
    arguments = ["fleet", "init", str(tmp_path / "f"), "--host", "fl.example.org", "--site", "north", "--site", "south"]
    said = CliRunner().invoke(app, [*arguments, "--settings", "method=fedthe rounds=3"])
    assert said.exit_code == 0, said.output
    made = tmp_path / "f"
    assert {p.name for p in (made / "server" / "nodes").iterdir()} == {"north.pub", "south.pub", "members.json"}
    for name in ("north", "south"):
        own = made / "sites" / name
        assert {p.name for p in own.iterdir()} == {
            "ca.crt",
            f"{name}.key",
            f"{name}.pub",
            "node.crt",
            "node.key",
            "start.sh",
            "bin",
            "apps.allow",
        }
        assert (own / f"{name}.key").stat().st_mode & 0o077 == 0
        assert all(os.access(own / name, os.X_OK) for name in ("start.sh", "bin/flower-superexec"))
    for script in made.rglob("*.sh"):
        subprocess.run(["sh", "-n", str(script)], check=True)
    names = x509.load_pem_x509_certificate((made / "server" / "link.crt").read_bytes())
    names = names.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    text = (made / "app" / "pyproject.toml").read_text()
    assert 'settings = "backend=flower data.clients=2 method=fedthe rounds=3"' in text and 'data = "sites"' in text
    assert "port 8000" in (made / "HOWTO.md").read_text()


@pytest.mark.parametrize(("tells", "code"), [("finished", 0), ("failed", 1), (None, 1)])
def test_training_fails_where_the_run_does(tmp_path, tells, code):
    site_folders.init(tmp_path / "f", host="h", sites=["a", "b"], settings="rounds=1")
    flwr, run = tmp_path / "bin" / "flwr", tmp_path / "run"
    line = f"echo '{json.dumps({'event': tells})}' > '{run}/progress.jsonl'" if tells else "true"
    flwr.parent.mkdir()
    flwr.write_text(f"#!/bin/sh\n{line}\n")
    flwr.chmod(0o755)
    run.mkdir()
    (run / "progress.jsonl").write_text('{"event": "finished"}\n')  # of the run before
    env = {**os.environ, "PATH": f"{flwr.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run([tmp_path / "f" / "server" / "train.sh", run], env=env, capture_output=True, text=True)
    assert done.returncode == code and ("not finished" in done.stderr) == bool(code)


def test_the_settings_that_init_does_not_check_are_good(tmp_path):
    site_folders.init(tmp_path / "f", host="h", sites=["a", "b"])
    app = tomllib.loads((tmp_path / "f" / "app" / "pyproject.toml").read_text())
    made = server_app.prepared(tmp_path / "run", app["tool"]["flwr"]["app"]["config"]["settings"])
    assert type(made.experiment().method) is FedAvg and made.experiment().data.clients == 2


def test_init_needs_no_torch_where_no_settings_are_typed(tmp_path):
    code = """
import sys
from acclimate.cli.main import main
sys.argv = ["acclimate", "fleet", "init", "f", "--host", "h", "--site", "a"]
try:
    main()
except SystemExit as e:
    assert e.code == 0 and "torch" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, cwd=tmp_path)
    assert done.returncode == 0 and "torch" not in done.stderr, done.stderr
    assert (tmp_path / "f" / "HOWTO.md").exists()


def test_init_keeps_a_setting_with_a_blank_in_one_piece(tmp_path):
    settings = "data=arrays data.file='my site.npz' rounds=1"
    site_folders.init(tmp_path / "f", host="h", sites=["a", "b"], settings=settings)
    app = tomllib.loads((tmp_path / "f" / "app" / "pyproject.toml").read_text())
    made = server_app.prepared(tmp_path / "run", app["tool"]["flwr"]["app"]["config"]["settings"])
    assert made.experiment().data.file == "my site.npz"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"host": "a b"}, "host='a b'"),
        ({"sites": []}, "at least one name"),
        ({"sites": ["a", "a"]}, "all different"),
        ({"sites": ["../x"]}, "letters, digits"),
        ({"port": 0}, "port=0"),
        ({"settings": "rouns=3"}, "rouns"),
    ],
)
def test_init_refuses_what_cannot_be(tmp_path, change, said):
    good = {"host": "h", "sites": ["a"], "settings": "rounds=1", "port": 8000}
    with pytest.raises(ValueError, match=said):
        site_folders.init(tmp_path / "f", **{**good, **change})
    assert not (tmp_path / "f").exists()


def test_certificates_are_signed_by_their_authority_alone(tmp_path):
    one, other = keys.make_ca(tmp_path / "one"), keys.make_ca(tmp_path / "other")
    made = x509.load_pem_x509_certificate(keys.make_certificate(tmp_path / "c", "link", one).public.read_bytes())
    made.verify_directly_issued_by(x509.load_pem_x509_certificate(one.public.read_bytes()))
    with pytest.raises(Exception):  # noqa: B017, PT011 - cryptography raises InvalidSignature or ValueError
        made.verify_directly_issued_by(x509.load_pem_x509_certificate(other.public.read_bytes()))


def test_a_record_stops_only_the_process_that_it_names(tmp_path):
    """A number that another process got in the meantime is left alone."""
    mine = local_processes.Process("me", os.getpid(), local_processes.started(os.getpid()) - 1)
    assert not mine.alive
    mine.end()  # would end this test
    loopback.Fleet(tmp_path, 1, 1, (mine,), (2,)).save()
    assert loopback.down(tmp_path) == []
    with pytest.raises(store.RunError, match="no fleet was started there; try `acclimate fleet up --clients 2`"):
        loopback.down(tmp_path)
    for node in ("000", "001", "002"):
        (tmp_path / "sites" / node).mkdir(parents=True)
    again = f"the fleet there was stopped; start it again with `acclimate fleet up {tmp_path} --clients 3`"
    with pytest.raises(store.RunError, match=re.escape(again)):
        loopback.down(tmp_path)


def test_a_process_is_stopped_where_the_system_does_not_tell_who_started_whom(monkeypatch):
    monkeypatch.setattr(local_processes, "_table", dict)
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"], os.environ)
    made = local_processes.Process("child", pid, local_processes.started(pid))
    local_processes.stop([made])
    assert not made.alive


def test_places():
    assert Place(1, 3, "x").hosts(7) == [1, 4] and Place(1, 3, "x", "d").hosts(7) == [1]
    with pytest.raises(ValueError, match="node=3"):
        Place(3, 3, "x")


@pytest.mark.parametrize("port", [0, -1, 65536, 99999999])
def test_a_port_that_cannot_be_is_refused_before_anything_is_written(tmp_path, port):
    with pytest.raises(ValueError, match=f"port={port} must be between 1 and 65535"):
        loopback.up(tmp_path / "fleet", 2, port)
    with pytest.raises(ValueError, match=f"port={port} must be between 1 and 65535"):
        site_folders.init(tmp_path / "fleet", "host", ["a"], "method=fedavg", port)
    assert not list(tmp_path.iterdir())
