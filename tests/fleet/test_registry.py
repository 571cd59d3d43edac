"""Keys own clients: what is registered, who may host whom, and what a site may say of its data."""

import json
import math
import subprocess
from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

import fakes
from fakes import with_fields
from test_engine import of
from test_sites import SiteGrid, config, grid_with_data, prepare

from acclimate import store
from acclimate.backends.flower.protocol import FleetError
from acclimate.core import rng
from acclimate.fleet import registry, remote, server_app, site_folders
from acclimate.fleet.registry import KeyOwner, Registry
from acclimate.fleet.remote_cards import CardRules

OWNERS = tuple(KeyOwner(name, "key", (10, 200)) for name in ("a", "b", "c"))


def test_a_node_owns_the_clients_of_its_key_alone():
    shared, sites = (Registry(OWNERS, {7: 0, 8: 1, 9: 2}, kind) for kind in (False, True))
    assert [shared.owned(n, 7) for n in (7, 8, 9, 10)] == [[0, 3, 6], [1, 4], [2, 5], []]
    assert [sites.owned(n, 3) for n in (7, 8, 9, 10)] == [[0], [1], [2], []]
    assert sites.owned(9, 2) == [] and sites.examples(2) == (10, 200)


def registered(folder, owners, nodes):
    registry.write_members(folder, owners)
    for owner, node in zip(owners, nodes, strict=True):
        (folder / f"{owner.name}.json").write_text(f'said before\n{{"success": true, "node-id": "{node}"}}\n')
    return folder


def test_a_registry_is_read_as_it_was_written(tmp_path):
    found = registry.load(registered(tmp_path, OWNERS, (2**63, 8, 9)), sites=True)
    assert found == Registry(OWNERS, {2**63: 0, 8: 1, 9: 2}, True)
    (tmp_path / "b.json").unlink()
    with pytest.raises(store.RunError, match="the key of 'b' is not registered"):
        registry.load(tmp_path, sites=True)
    (tmp_path / "b.json").write_text("no")
    with pytest.raises(store.RunError, match="does not say which node it is"):
        registry.load(tmp_path, sites=True)


def test_a_key_that_was_exchanged_is_noticed(tmp_path):
    site_folders.init(tmp_path / "f", "host", ["north=100-500", "south"], "method=fedavg")
    nodes = tmp_path / "f" / "server" / "nodes"
    for name in ("north", "south"):
        (nodes / f"{name}.json").write_text('{"node-id": 5}' if name == "north" else '{"node-id": 6}')
    assert [m.examples for m in registry.load(nodes, True).members] == [(100, 500), registry.EXAMPLES]
    (nodes / "north.pub").write_bytes((nodes / "south.pub").read_bytes())
    with pytest.raises(store.RunError, match=r"north\.pub is another key"):
        registry.load(nodes, True)


@pytest.mark.parametrize("site", ["north=5-2", "north=x", "north=-5", "north=1-2-3", "north=-"])
def test_a_range_that_cannot_be_is_refused_before_anything_is_written(tmp_path, site):
    with pytest.raises(ValueError, match="north"):
        site_folders.init(tmp_path / "f", "host", [site], "method=fedavg")
    assert not (tmp_path / "f").exists()


def test_registering_twice_keeps_what_is_registered(tmp_path):
    site_folders.init(tmp_path / "f", "host", ["north", "south"], "method=fedavg")
    server, flwr = tmp_path / "f" / "server", tmp_path / "bin" / "flwr"
    flwr.parent.mkdir()
    flwr.write_text('#!/bin/sh\ncase "$3" in *south*) [ -e ok ] || exit 1 ;; esac\necho \'{"node-id": 7}\'\n')
    flwr.chmod(0o755)
    run = {"cwd": tmp_path, "env": {"PATH": f"{flwr.parent}:/usr/bin:/bin"}, "capture_output": True}
    assert subprocess.run([server / "register.sh"], **run).returncode == 1
    assert (server / "nodes" / "north.json").exists() and not (server / "nodes" / "south.json").exists()
    (tmp_path / "ok").touch()
    assert subprocess.run([server / "register.sh"], **run).returncode == 0
    assert json.loads((server / "nodes" / "south.json").read_text()) == {"node-id": 7}


def test_a_node_that_says_it_hosts_the_clients_of_another_key_is_not_used(tmp_path, monkeypatch):
    """Over the real reader of answers: node 100 comes first, and claims clients of node 101."""
    real = fakes.GridLink
    owners = Registry(OWNERS[:2], {100: 0, 101: 1})
    monkeypatch.setattr(fakes, "GridLink", lambda *given: real(*given, owners))

    def tamper(node, request, reply):
        hello = request.metadata.message_type == "query"
        return [with_fields(reply, clients=[0, 1, 2, 3])] if hello and node == 100 else [reply]

    e = replace(of("fedavg", patience=0.2), rounds=1)
    results = fakes.run(fakes.FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")
    told = {(f["client"], f["kind"]) for f in results["faults"]}
    assert told >= {(0, "identity"), (0, "lost"), (2, "lost")} and not any(c in (1, 3) for c, _ in told)
    assert fakes.state_of(tmp_path / "run")["mine/version"].tolist() == [0, 1, 0, 1]


# --- cards of sites -------------------------------------------------------------------------------------------------

GOOD = {"shape": [1, 6, 6], "classes": ["a", "b"], "pixels": True, "train": 36, "val": 12, "test": 12}
BAD = {
    "more than it registered": {"train": 201},
    "10^18": {"train": 10**18},
    "fewer than it registered": {"train": 9},
    "validation": {"val": 10**18},
    "no shape": {"shape": []},
    "a side of 0": {"shape": [1, 0]},
    "a long side": {"shape": [10**9]},
    "many axes": {"shape": [1] * 9},
    "no classes": {"classes": []},
    "a class twice": {"classes": ["a", "a"]},
    "a long name": {"classes": ["a", "b" * 1000]},
    "too much memory": {"shape": [60000, 60000]},
}


@pytest.mark.parametrize("name", BAD)
def test_a_card_that_cannot_be_is_told(name):
    rules = CardRules(3, 8, Registry(OWNERS, {}, True))
    assert rules.wrong(GOOD, 1) is None
    reason = rules.wrong({**GOOD, **BAD[name]}, 1)
    assert (reason and next(iter(BAD[name])) in reason) or (name == "too much memory" and "bytes" in reason)


def test_stand_ins_take_the_memory_that_a_card_is_held_against(monkeypatch):
    """Noise takes many times the byte of a pixel, so it is drawn in blocks."""
    drawn, uniform = [], rng.uniform
    monkeypatch.setattr(remote, "BLOCK", 1000)
    monkeypatch.setattr(rng, "uniform", lambda key, *shape: drawn.append(math.prod(shape)) or uniform(key, *shape))
    sizes = {"train": (40, 30), "val": (5, 5), "test": (10, 10)}
    data = remote.Remote(clients=2, shape=(1, 6, 6), classes=("a", "b"), mean=(0.0,), std=(1.0,), **sizes)
    x = data.world(0).examples.x
    assert max(drawn) <= 1000 and sum(drawn) == 100 * 36 + 100
    assert x.dtype == torch.uint8 and x.shape == (100, 1, 6, 6) and len(x.reshape(100, -1).unique(dim=0)) == 100
    assert float(x.double().mean()) == pytest.approx(127, abs=4)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("change", [{"train": 10**18}, {"shape": []}, {"classes": ["x"]}, {"train": 3}])
def test_a_site_with_a_card_that_cannot_be_is_left_out_and_the_others_train(tmp_path, change):
    grid = grid_with_data(tmp_path, classes=(3, 3, 3), sizes=(60, 90, 60))
    grid = SiteGrid(tmp_path, nodes=3)
    prepare(tmp_path / "run", "data.clients=3")
    folder = registered(tmp_path / "members", OWNERS, (100, 101, 102))

    def tamper(node, request, reply):
        if node != 101 or request.metadata.message_type != "query":
            return [reply]
        body = json.loads(str(reply.content["fields"]["json"]))["fields"]
        return [with_fields(reply, data={**body["data"], **change})]

    grid.tamper = tamper
    server_app.conduct(grid, config(tmp_path / "run", registry=str(folder)))
    results = store.RunFolder(tmp_path / "run").load()["results"]
    assert {f["client"] for f in results["faults"]} == {1}
    assert results["fault_counts"]["1"]["error"] == 1 and results["fault_counts"]["1"]["suspended"] >= 2
    assert results["table"][0]["clients"] == 2


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_half_of_the_sites_there_is_no_run(tmp_path):
    grid = grid_with_data(tmp_path)
    prepare(tmp_path / "run")
    folder = registered(tmp_path / "members", tuple(replace(o, examples=(1000, 2000)) for o in OWNERS[:2]), (100, 101))
    with pytest.raises(
        FleetError, match="the cards of 0 of 2 sites can be used: site 0: train=36 must be between 1000"
    ):
        server_app.conduct(grid, config(tmp_path / "run", registry=str(folder)))
