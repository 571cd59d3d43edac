"""A real fleet on this machine: SuperLink, two SuperNodes, TLS and node keys, in processes of their own.

One test is in the quick set. The others are slow: nodes ask for messages every three seconds.
"""

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import experiment, state_of
from typer.testing import CliRunner

import acclimate as ac
from acclimate import store
from acclimate.backends import Serial
from acclimate.backends.flower.protocol import Version, version_conflict
from acclimate.cli.main import app
from acclimate.core import tree
from acclimate.experiment import catalogue
from acclimate.fleet import keys, launch, local_processes, loopback
from acclimate.fleet.places import PLACE, deployed_folder
from acclimate.fleet.vault import Vault
from acclimate.running import run as api
from acclimate.running.watch import Watch

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def fleet(loopback_fleet):
    """The fleet as it is now: tests kill nodes and start them again, and the record says which processes live."""
    return loopback.Fleet.load(loopback_fleet)


@pytest.fixture(scope="module")
def loopback_fleet(tmp_path_factory):
    """The folder of a fleet of two nodes; stopped at the end, and nothing may be left of it."""
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # nodes find the tests' own method
        patch.setenv(local_processes.START, "600")
        loopback.up(folder, 2)
        try:
            yield folder
        finally:
            loopback.down(folder)
    assert not (folder / loopback.RECORD).exists()
    while processes_of(folder):  # what a node started ends by itself when it misses its parent, which it looks for
        time.sleep(0.2)


def processes_of(folder):
    """Command lines of processes that mention a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in line:
            found.append(line)
    return found


def on_fleet(fleet, e, folder):
    if not (folder / "config.json").exists():
        store.RunFolder.create(folder, e, api.device_of("cpu"))
    launch.finish(folder, Watch(), fleet)
    return store.RunFolder(folder).load()["results"]


def small(method, *settings, **backend):
    record = catalogue.METHODS.get(method)
    names = list(vars(record)) if record is not None else ["work"]
    work = [f"method.{f}.{k}" for f in names if f.endswith("work") for k in ("epochs=1", "batch=8")]
    return experiment(f"method={method}", *work, *settings, **{"deadline": 240.0, "patience": 60.0, **backend})


def gap(ours, theirs, prefix):
    a, b = ({k: v for k, v in t.items() if k.startswith(prefix)} for t in (ours, theirs))
    assert set(a) == set(b) and a
    return max(float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel())


def test_fedavg_over_tls_ends_where_serial_ends(fleet, tmp_path):
    e = replace(small("fedavg", patience=600.0, deadline=600.0), rounds=1, eval_every=1)
    results = on_fleet(fleet, e, tmp_path / "run")
    api.run(replace(e, backend=Serial()), tmp_path / "serial")
    assert gap(state_of(tmp_path / "run"), state_of(tmp_path / "serial"), "server/") < 1e-5
    serial = store.RunFolder(tmp_path / "serial").load()["results"]
    assert results["table"][0]["accuracy"] == pytest.approx(serial["table"][0]["accuracy"], abs=1e-6)
    assert results["faults"] == [] and (tmp_path / "run" / "report.html").exists()
    said = CliRunner().invoke(app, ["fleet", "status", str(fleet.folder)])
    assert said.exit_code == 0 and said.output.count(" up") == 3
    if sys.platform == "linux":
        assert "Start `flwr-clientapp` process" not in fleet.log("node-000").read_text(), "messages are forked"
    key = fleet.secrets / "node-000.key"
    assert key.stat().st_mode & 0o077 == 0, "private keys are for their owner alone"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["scaffold", "fedthe", "gathering:Gathering"])
def test_methods_end_where_serial_ends_private_state_included(fleet, tmp_path, method):
    e = small(method)
    on_fleet(fleet, e, tmp_path / "run")
    api.run(replace(e, backend=Serial()), tmp_path / "serial")
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "serial")
    assert gap(ours, theirs, "server/") < 1e-5
    run = store.read_json(tmp_path / "run" / "fleet.json")["run"]
    mine = {k.removeprefix("mine/"): v for k, v in theirs.items() if k.startswith("mine/")}
    for c in range(4 if mine else 0):
        held = Vault(fleet.site(c % 2) / "runs" / run).mine(c, int(ours["mine/version"][c]), lambda c: {})
        flat = tree.flatten(held)
        assert max(float((flat[k].double() - mine[k][c].double()).abs().max()) for k in mine) < 1e-5


class Then(Watch):
    """Does something once, after a round."""

    def __init__(self, after, act):
        self.after, self.act, self.rounds = after, act, []

    def round(self, state):
        self.rounds.append(state.round)
        if state.round == self.after:
            self.act()


def kill(fleet, node):
    """As when a machine loses power: the node and all that it started, at once."""
    for process in fleet.process(loopback.node_name(node)).family():
        process.end(signal.SIGKILL)


@pytest.mark.slow
def test_a_node_killed_in_mid_round_is_missed_and_rejoins(fleet, tmp_path):
    """The round ends with the others at its deadline of 60 s; the node comes back for a later one."""
    e = replace(small("scaffold", deadline=60.0), rounds=6, eval_every=6)
    folder = tmp_path / "run"
    store.RunFolder.create(folder, e, api.device_of("cpu"))
    current = [fleet]

    def lose():
        time.sleep(4)  # a later round's message is at the node by now
        kill(current[0], 1)
        current[0] = loopback.rejoin(current[0], 1)

    launch.finish(folder, Then(1, lose), fleet)
    results = store.RunFolder(folder).load()["results"]
    assert results["cost"]["rounds"] == 6
    faults = results["faults"]
    assert {f["client"] for f in faults} == {1, 3} and {f["kind"] for f in faults} <= {"lost", "late"}
    assert 1 <= min(f["round"] for f in faults) < 5, "the round that was under way four seconds after the first"
    assert state_of(folder)["mine/version"].tolist() == [6, 6, 6, 6], "it is back before the end"


@pytest.mark.slow
def test_a_server_killed_and_resumed_ends_the_same(fleet, tmp_path):
    e = replace(small("scaffold"), rounds=3)
    folder = tmp_path / "run"
    store.RunFolder.create(folder, e, api.device_of("cpu"))

    def kill_server():
        lines = (folder / "progress.jsonl").read_text().splitlines()
        time.sleep(2)  # into the next round
        os.kill(json.loads(lines[0])["pid"], signal.SIGKILL)

    with pytest.raises(store.RunError, match="acclimate resume"):
        launch.finish(folder, Then(1, kill_server), fleet)
    assert not store.RunFolder(folder).finished
    watch = Then(0, lambda: None)
    launch.finish(folder, watch, fleet)
    assert watch.rounds == [2, 3], "the finished round is not lost"
    api.run(replace(e, backend=Serial()), tmp_path / "serial")
    assert gap(state_of(folder), state_of(tmp_path / "serial"), "server/") < 1e-5


@pytest.mark.slow
def test_deploy_leaves_models_at_the_nodes_and_brings_metrics_back(fleet, tmp_path, monkeypatch):
    e = replace(small("fedthe", "adapters=none,tent", "model.norm=batch"), rounds=1)
    on_fleet(fleet, e, tmp_path / "run")
    monkeypatch.setenv(PLACE, str(fleet.folder))
    said = CliRunner().invoke(app, ["fleet", "deploy", str(tmp_path / "run"), "--adapter", "tent"])
    assert said.exit_code == 0, said.output
    assert "4 clients are live" in said.output and "tent" in said.output
    for c in range(4):
        live = ac.load_live(deployed_folder(fleet.site(c % 2), c))
        assert live.adapter == ac.adapters.Guarded(ac.adapters.Tent()) and live.client == c
    assert store.read_json(fleet.site(0) / "deployed" / "card.json")["adapter"] == "tent"


def swap(command, option, value):
    at = command.index(option)
    return [*command[: at + 1], str(value), *command[at + 2 :]]


def without_tls(command):
    kept = list(command)
    for option in ("root-certificates", "auth-supernode-private-key", "ssl-ca-certfile", "ssl-certfile", "ssl-keyfile"):
        at = kept.index(f"--{option}")
        del kept[at : at + 2]
    return [*kept, "--insecure"]


STRANGERS = {
    "wrong CA": lambda command, folder: swap(command, "--root-certificates", keys.make_ca(folder).public),
    "no certificate": lambda command, folder: without_tls(command),
    "unknown key": lambda command, folder: swap(
        command, "--auth-supernode-private-key", keys.make_node_key(folder, "stranger").private
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("who", STRANGERS)
def test_strangers_are_refused(fleet, tmp_path, who):
    """No node number is given to them, within 30 s; the fleet goes on."""
    fleet = loopback.Fleet.load(fleet.folder)  # as it is now: another test may have started a node again
    command = STRANGERS[who](loopback.node_command(fleet, 0), tmp_path)
    command = [*swap(command, "--port", local_processes.free_ports(1)[0]), "--max-wait-time", "5"]
    made = loopback.start(fleet, "stranger", command)
    try:
        end = time.monotonic() + 30
        while made.process("stranger").alive and time.monotonic() < end:
            time.sleep(0.2)
        log = made.log("stranger").read_text()
    finally:
        local_processes.stop([made.process("stranger")])
        made.log("stranger").unlink()
        loopback.Fleet.load(fleet.folder)
        replace(made, processes=tuple(p for p in made.processes if p.name != "stranger")).save()
    assert "Starting Flower SuperNode" in log and "SuperNode ID:" not in log
    assert loopback.Fleet.load(fleet.folder).running


OTHER_VERSION = """\
import os

if "OTHER_VERSION" in os.environ:
    import acclimate.version

    acclimate.version.__version__ = os.environ["OTHER_VERSION"]
"""


@pytest.mark.slow
def test_a_node_of_another_version_says_so_over_the_network(tmp_path, monkeypatch):
    """A fleet of its own, whose node has another acclimate; whoever started the run reads both versions."""
    (tmp_path / "sitecustomize.py").write_text(OTHER_VERSION)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    environment = loopback.Fleet.environment
    monkeypatch.setattr(
        loopback.Fleet,
        "environment",
        lambda fleet, node=False: environment(fleet, node) | ({"OTHER_VERSION": "0.0.9"} if node else {}),
    )
    e = replace(small("fedavg", patience=15.0, tries=1), rounds=1)
    fleet = loopback.up(tmp_path / "fleet", 1)
    try:
        with pytest.raises(store.RunError) as error:
            on_fleet(fleet, e, tmp_path / "run")
    finally:
        loopback.down(tmp_path / "fleet")
    conflict = version_conflict(server=Version(), node=Version("0.0.9"))
    assert conflict is not None and conflict in str(error.value)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_soak_with_random_kills_ends_with_the_right_number_of_rounds(fleet, tmp_path):
    """200 rounds (ACCLIMATE_SOAK_ROUNDS changes it); after about every tenth a node is killed and started again.

    ACCLIMATE_SOAK_OUT names a file for what happened.
    """
    rounds = int(os.environ.get("ACCLIMATE_SOAK_ROUNDS", "200"))
    e = replace(small("scaffold", deadline=30.0, patience=90.0), rounds=rounds, eval_every=rounds)
    folder = tmp_path / "run"
    store.RunFolder.create(folder, e, api.device_of("cpu"))
    chance, current, kills = random.Random(0), [fleet], []

    class Storm(Watch):
        def round(self, state):
            if state.round < rounds - 2 and (chance.random() < 0.1 or state.round == 1):
                node = chance.randrange(2)
                kill(current[0], node)
                current[0] = loopback.rejoin(current[0], node)
                kills.append({"after_round": state.round, "node": node})

    begun = time.monotonic()
    launch.finish(folder, Storm(), fleet)
    told = soak_card(folder, rounds, kills, time.monotonic() - begun)
    if out := os.environ.get("ACCLIMATE_SOAK_OUT"):
        store.write(Path(out), json.dumps(told, indent=2) + "\n")
    assert told["rounds_done"] == rounds and kills
    assert told["without_reason"] == 0


def soak_card(folder, rounds, kills, seconds):
    """What a soak did, from its run folder."""
    found = store.RunFolder(folder).load()
    faults, counts = found["results"]["faults"], found["results"].get("fault_counts", {})
    return {
        "what": "SCAFFOLD, 4 clients at 2 nodes over TLS on one machine; nodes are killed at random and start again",
        "command": "ACCLIMATE_SOAK_OUT=results/fleet/soak.json pytest tests/fleet/test_network.py -m slow -k soak",
        "rounds": rounds,
        "rounds_done": found["results"]["cost"]["rounds"],
        "kills": kills,
        "faults": dict(sum((Counter(kinds) for kinds in counts.values()), Counter())),
        "rounds_with_kept_faults": len({f["round"] for f in faults}),
        "without_reason": sum(not f["reason"] for f in faults),
        "seconds": round(seconds, 1),
        "round_seconds_median": found["results"]["timings"]["round_seconds_median"],
        "cores": os.cpu_count(),
        "load_average": [round(x, 1) for x in os.getloadavg()],
        "env": found["env"],
    }
