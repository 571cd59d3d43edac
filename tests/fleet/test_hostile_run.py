"""A stranger with the CA certificate, and with a node's key, submits apps to a real fleet: none of them runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from acclimate.fleet import app_folder, audit, guard, loopback
from acclimate.fleet.admin import VARIABLE as ADMIN

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVIL = '''"""Reads a key, and says so."""
from pathlib import Path

from flwr.{half}app import {kind}

app = {kind}()


def stolen(who):
    Path("{loot}").mkdir(exist_ok=True)
    (Path("{loot}") / who).write_bytes(Path("{key}").read_bytes())


{rest}
'''
SERVER = """
@app.main()
def main(grid, context):
    from flwr.app import Message, RecordDict

    stolen("server")
    nodes = list(grid.get_node_ids())
    list(grid.send_and_receive([Message(RecordDict(), n, "query") for n in nodes], timeout=40))
    stolen("server-is-done")
"""
CLIENT = """
@app.query()
def query(message, context):
    stolen("client")
    raise ValueError("enough")
"""


def evil_app(folder, loot, key):
    app_folder.write_app(folder)
    for half, kind, rest in (("server", "ServerApp", SERVER), ("client", "ClientApp", CLIENT)):
        text = EVIL.format(half=half, kind=kind, loot=loot, key=key, rest=rest)
        (folder / "acclimate_app" / f"{half}.py").write_text(text)
    return folder


def stranger(fleet, home):
    """The environment of somebody with an account of his own, who has the CA certificate."""
    ca = home / "ca.crt"
    home.mkdir(parents=True)
    ca.write_bytes((fleet.secrets / "ca.crt").read_bytes())
    text = (
        f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "127.0.0.1:{fleet.port}"\nroot-certificates = "{ca}"\n'
    )
    (home / "config.toml").write_text(text)
    unwanted = (ADMIN, guard.VARIABLE, guard.LOG)
    return {**{k: v for k, v in os.environ.items() if k not in unwanted}, "FLWR_HOME": str(home)}


def submitted(app, environment, *more):
    flwr = str(Path(sys.executable).parent / "flwr")
    return subprocess.run(
        [flwr, "run", str(app), "x", *more], env=environment, capture_output=True, text=True, timeout=120
    )


def refusals(log, count=1, seconds=90):
    """The refusals in an audit log, once there are so many."""
    end = time.monotonic() + seconds
    while True:
        found = [line for line in audit.lines(log) if line["what"] == "refused"] if log.exists() else []
        if len(found) >= count or time.monotonic() > end:
            return found
        time.sleep(0.3)


def test_with_the_certificate_and_with_a_nodes_key_no_app_of_a_stranger_runs(tmp_path):
    fleet = loopback.up(tmp_path / "fleet", 1)
    try:
        key, log = loopback.node_key(fleet, 0).private, fleet.secrets / audit.AUDIT
        environment = stranger(fleet, tmp_path / "stranger")
        evil = evil_app(tmp_path / "evil", tmp_path / "loot", key)
        assert submitted(evil, environment).returncode == 0, "Flower takes it: its control interface is open"
        (told,) = refusals(log)
        assert told["who"] == f"app {guard.digest_of_folder(evil)}" and told["reason"] == "not on the list of apps"

        # a site has the certificate and a key of a node: neither of them signs a run of acclimate's own app
        (tmp_path / "stranger" / "node.key").write_bytes(key.read_bytes())
        asked = f'run-folder="{tmp_path / "new"}" settings="backend=flower" admin="1.2.{"0" * 64}"'
        assert submitted(fleet.app, environment, "--run-config", asked).returncode == 0
        assert refusals(log, 2)[-1]["reason"] == "its run configuration is not signed by the admin key"
        assert not (tmp_path / "new").exists() and not (tmp_path / "loot").exists()
        assert fleet.running
    finally:
        loopback.down(tmp_path / "fleet")


def test_a_node_refuses_what_its_own_server_sends_unless_it_is_on_the_nodes_list(tmp_path, monkeypatch):
    """The server is the stranger's: it lets the app run, and sends it to a node whose list does not have it."""
    folder, loot = tmp_path / "fleet", tmp_path / "loot"
    evil = evil_app(tmp_path / "evil", loot, folder / "keys" / "node-000.key")
    guard.allow(tmp_path / "everything", evil)
    honest = loopback.Fleet.environment

    def hostile(self, node=False):
        return honest(self, node) | ({} if node else {guard.VARIABLE: str(tmp_path / "everything")})

    monkeypatch.setattr(loopback.Fleet, "environment", hostile)
    fleet = loopback.up(folder, 1)
    try:
        assert submitted(evil, stranger(fleet, tmp_path / "stranger")).returncode == 0
        told = refusals(fleet.secrets / audit.AUDIT)
        assert told and told[0]["who"] == f"app {guard.digest_of_folder(evil)}"
        end = time.monotonic() + 90
        while not (loot / "server-is-done").exists() and time.monotonic() < end:
            time.sleep(0.3)
        assert {p.name for p in loot.iterdir()} == {"server", "server-is-done"}, "the node ran nothing"
    finally:
        loopback.down(folder)
