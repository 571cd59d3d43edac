"""A site leaves: the server goes on without it, and the site's disk holds nothing of it any more."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, experiment, run
from test_registry import OWNERS, registered
from test_sites import SiteGrid, config, grid_with_data, prepare
from typer.testing import CliRunner

from acclimate import store
from acclimate.cli.main import app
from acclimate.fleet import audit, local_processes, loopback, registry, removal, server_app, site_folders

FLWR = """#!/bin/sh
[ "$1 $2 $4" = "supernode unregister fleet" ] || exit 2
[ -e "$FLWR_HOME/up" ] && echo "$3" >> "$FLWR_HOME/gone"
"""
"""Flower's command line, whose link is up where there is a file of that name."""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The server's folder of three sites, whose keys are nodes 100, 101 and 102, and a `flwr` that notes."""
    (bin := tmp_path / "bin").mkdir()
    (bin / "flwr").write_text(FLWR)
    (bin / "flwr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    registered(tmp_path / "server" / "nodes", OWNERS, (100, 101, 102))
    (tmp_path / "server" / "flower").mkdir()
    return tmp_path / "server"


def test_a_site_that_was_removed_is_never_asked_and_the_others_train(tmp_path, server, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    grid_with_data(tmp_path, classes=(3, 3, 3), sizes=(60, 90, 60))
    (server / "flower" / "up").touch()
    assert removal.remove(server, "b") and (server / "flower" / "gone").read_text() == "101\n"
    shutil.rmtree(tmp_path / "data1")  # what is not there cannot be read
    grid = SiteGrid(tmp_path, nodes=3, offline={101})
    prepare(tmp_path / "run", "data.clients=3")
    server_app.conduct(grid, config(tmp_path / "run", registry=str(server / "nodes")))
    results = store.RunFolder(tmp_path / "run").load()["results"]
    assert results["table"][0]["clients"] == 2 and results["data"]["splits"]["train"]["sizes"][::2] == [36, 36]
    assert {(f["client"], f["reason"]) for f in results["faults"]} == {(1, "it was removed from the fleet")}
    assert {node for node, _ in grid.asked} == {100, 102}
    copies = removal.keeps(tmp_path / "site0", cache=True)
    assert tmp_path / "cache" / "sets" in copies and len(list((tmp_path / "cache" / "sets").iterdir())) == 2


def test_a_removed_site_that_comes_back_with_its_old_key_is_not_used(tmp_path, server):
    grid_with_data(tmp_path, classes=(3, 3, 3), sizes=(60, 90, 60))
    removal.remove(server, "b")
    grid = SiteGrid(tmp_path, nodes=3)
    prepare(tmp_path / "run", "data.clients=3")
    server_app.conduct(grid, config(tmp_path / "run", registry=str(server / "nodes")))
    assert (101, "query") in grid.asked and not any(node == 101 and kind != "query" for node, kind in grid.asked)


def test_a_key_is_unregistered_once_the_link_answers(server):
    assert not removal.remove(server, "b") and (server / "nodes" / "b.json").exists()
    assert registry.load(server / "nodes", True).owned(101, 3) == [], "the site is out at once"
    (server / "flower" / "up").touch()
    assert removal.remove(server, "b") and not (server / "nodes" / "b.json").exists()
    found = registry.load(server / "nodes", True)
    assert found.nodes == {100: 0, 102: 2} and found.removed(3) == [1], "the others keep their numbers"
    assert [m.removed for m in found.members] == [False, True, False]
    assert removal.remove(server, "b"), "nothing is left to do"
    assert {line["site"] for line in audit.lines(server / audit.AUDIT)} == {"b"}


def test_what_cannot_be_removed_is_told_and_nothing_changes(tmp_path, server):
    before = (server / "nodes" / registry.MEMBERS).read_bytes()
    with pytest.raises(ValueError, match="site='x' must be one of a, b, c"):
        removal.remove(server, "x")
    with pytest.raises(store.RunError, match=r"members\.json does not exist"):
        removal.remove(tmp_path, "a")
    assert (server / "nodes" / registry.MEMBERS).read_bytes() == before
    for name in "ab":
        removal.remove(server, name)
    with pytest.raises(ValueError, match="site='c' is the last one"):
        removal.remove(server, "c")


def test_the_command_takes_a_site_of_fleet_init_out_and_register_leaves_it_out(tmp_path, server):
    site_folders.init(tmp_path / "f", "host", ["north", "south"], "method=fedavg")
    said = CliRunner().invoke(app, ["fleet", "remove", "north", str(tmp_path / "f" / "server")])
    assert said.exit_code == 0 and "north takes no part any more" in said.stdout, "its key was not registered yet"
    nodes = tmp_path / "f" / "server" / "nodes"
    assert [p.stem for p in nodes.glob("*.pub")] == ["south"]
    assert [m.removed for m in registry.members_of(nodes)] == [True, False]


# --- at the site ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Two nodes with two clients each, private states and noise of their own, after training and deployment."""
    folder = tmp_path_factory.mktemp("trained")
    e = experiment("method=scaffold", "method.work.epochs=1", "filters=local-dp", "filters.local-dp.noise=0.1")
    grid = FakeGrid(folder)
    run(grid, e, folder / "run")
    shared = {"task": "deploy", "data": "shared", "run-folder": str(folder / "run"), "settings": ""}
    server_app.conduct(grid, {**shared, "selection": "last", "adapter": "none", "registry": ""})
    return folder


@pytest.fixture
def site(trained, tmp_path, monkeypatch):
    """A copy of the state folder of node 0, which hosts clients 0 and 2."""
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(trained / "site0", tmp_path / "site")
    (run_,) = (folder / "runs").iterdir()
    (run_ / "sums").mkdir()  # as runs whose masks survive drop-outs leave it
    for name in ("0.json", "0-opened.json", "2.json", "2-opened.json"):
        (run_ / "sums" / name).write_text("{}")
    return folder


def content(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def of_client(name, client):
    parts = name.split("/")
    model = parts[2:3] == ["models"] and parts[-1] == f"{client}.safetensors"
    secrets = parts[2:3] == ["sums"] and parts[-1] in (f"{client}.json", f"{client}-opened.json")
    return model or secrets or parts[2:4] == ["mine", client] or parts[:2] == ["deployed", client]


def test_one_client_is_forgotten_and_the_other_keeps_every_byte(site):
    before = content(site)
    assert sum(of_client(n, "2") for n in before) >= 3 and any(n.endswith("noise.key") for n in before)
    listed = removal.keeps(site, 2)
    assert content(site) == before, "listing deletes nothing"
    assert removal.forget(site, 2) == listed
    after = content(site)
    assert not any(of_client(n, "2") for n in after)
    card = json.loads(after.pop("deployed/card.json"))
    assert card["clients"] == [0]
    lines = audit.lines(site / audit.AUDIT)
    assert lines[-1]["what"] == "forgot" and lines[-1]["client"] == 2 and len(lines[-1]["deleted"]) == len(listed)
    kept = {n: b for n, b in before.items() if not of_client(n, "2") and n not in ("deployed/card.json", audit.AUDIT)}
    assert {n: b for n, b in after.items() if n != audit.AUDIT} == kept
    assert removal.forget(site, 2) == []


def test_with_its_last_client_a_run_goes_with_the_key_of_its_noise(site):
    removal.forget(site, 0)
    assert list(site.glob("runs/*/noise.key"))
    removal.forget(site, 2)
    assert set(content(site)) <= {audit.AUDIT, "deployed/card.json"}


def test_a_whole_site_is_forgotten_with_the_copies_of_its_data(site, tmp_path):
    for part in ("sets/Arrays-1/x.npy", "streams/2/x.npy", "elsewhere/x"):
        (path := tmp_path / "cache" / part).parent.mkdir(parents=True)
        path.write_bytes(b"x")
    (site / "policy.json").write_text("{}")
    arguments = ["fleet", "forget", str(site)]
    said = CliRunner().invoke(app, arguments)
    assert said.exit_code == 0 and said.stdout.count("would delete") == 2 and "--cache" in said.stdout
    assert (site / "runs").exists()
    said = CliRunner().invoke(app, [*arguments, "--cache", "--yes"])
    assert said.exit_code == 0 and said.stdout.count("deleted ") == 4
    assert set(content(site)) == {audit.AUDIT, "policy.json"}
    assert set(content(tmp_path / "cache")) == {"elsewhere/x"}, "what acclimate did not write stays"


def test_a_server_of_live_models_goes_as_a_whole_because_its_log_has_all_requests(site):
    serving = site / "deployed" / "serving"
    (serving / "log").mkdir(parents=True)
    (serving / "server.json").write_text('{"clients": {"0": "digest"}}')
    assert serving not in removal.keeps(site, 2) and serving in removal.keeps(site, 0)
    (serving / "server.json").unlink()
    assert serving in removal.keeps(site, 2), "a folder that does not say whose it is may be anyone's"


def test_nothing_is_deleted_while_a_node_or_a_server_runs(site):
    fcntl = pytest.importorskip("fcntl")
    before = content(site)
    waits = [sys.executable, "-c", "print('up', flush=True); input()", f'node=0 nodes=2 site="{site}"']
    node = subprocess.Popen(waits, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert node.stdout.readline() == b"up\n", "the system tells of its command only after it has begun"
    try:
        with pytest.raises(store.RunError, match=f"in use by the node with process number {node.pid}"):
            removal.forget(site)
    finally:
        node.communicate(b"\n")
    (lock := site / "deployed" / "serving" / "log" / "lock").parent.mkdir(parents=True)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(store.RunError, match="in use by a server of its live models"):
            removal.forget(site)
    assert {n: b for n, b in content(site).items() if "serving" not in n} == before


def test_another_folder_is_refused(tmp_path):
    (tmp_path / "photos").mkdir()
    with pytest.raises(store.RunError, match="is not the state folder of a site"):
        removal.forget(tmp_path)


# --- with Flower itself -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_real_link_refuses_the_key_of_a_site_that_was_removed(tmp_path, monkeypatch):
    """The scripts of `fleet init`, a SuperLink with TLS, and the node of a site that was removed a moment ago."""
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    (port, own) = local_processes.free_ports(2)
    site_folders.init(tmp_path / "f", "127.0.0.1", ["north", "south"], "method=fedavg", port)
    server = tmp_path / "f" / "server"
    with started([server / "start.sh"], tmp_path / "link.log"):
        wait_for(lambda: local_processes.listening(port), tmp_path / "link.log")
        subprocess.run([server / "register.sh"], check=True, timeout=200, capture_output=True)
        assert removal.remove(server, "north") and not (server / "nodes" / "north.json").exists()
        (tmp_path / "data").mkdir()
        for name, stays in (("north", False), ("south", True)):
            log, folder = tmp_path / f"{name}.log", tmp_path / "f" / "sites" / name
            with started([folder / "start.sh", tmp_path / "data", tmp_path / name, str(own)], log) as node:
                wait_for(lambda node=node, log=log: node.poll() is not None or loopback.JOINED in log.read_text(), log)
                assert (loopback.JOINED in log.read_text()) == stays, log.read_text()[-2000:]
        assert registry.load(server / "nodes", True).removed(2) == [0]


@contextlib.contextmanager
def started(command, log):
    """A process in a group of its own, which is ended with all that it started."""
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def wait_for(ready, log, seconds=180):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.5)
