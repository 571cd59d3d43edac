"""Secure sums through the real ClientApp, and over a real network; tests/attack/test_dropouts.py has the cases."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, experiment, run, state_of

from acclimate import store
from acclimate.backends import Serial
from acclimate.core import fit, tree
from acclimate.filters import Masked
from acclimate.fleet import launch, loopback
from acclimate.running import run as api
from acclimate.running.watch import Watch


def masked(**backend):
    e = experiment("method.work.epochs=1", "method.work.batch=8", **{"tries": 1, **backend})
    return replace(e, filters=(Masked(threshold=0.75),), rounds=1, eval_every=1)


def same(e, folder, clients):
    """Whether the server's state is that of a round of these clients in one process."""
    world, worker, engine = api.build(replace(e, backend=Serial()))
    start = fit.start(worker, engine, world.clients).server
    server, _, _ = fit.one_round(worker, engine, start, torch.tensor(clients), 0)
    got = {k.removeprefix("server/"): v for k, v in state_of(folder).items() if k.startswith("server/")}
    expected = tree.flatten(server)
    return set(got) == set(expected) and all(torch.equal(got[k], expected[k]) for k in expected)


def test_a_node_that_is_lost_after_it_sent_shares_does_not_end_the_round(tmp_path):
    e = masked(deadline=0.2, patience=0.2)

    def lose(node, request, reply):
        return [] if node == 103 and request.metadata.message_type == "train" else [reply]

    results = run(FakeGrid(tmp_path, nodes=4, tamper=lose), e, tmp_path / "run")
    assert [(f["round"], f["client"], f["kind"]) for f in results["faults"]] == [(0, 3, "late")]
    assert same(e, tmp_path / "run", [0, 1, 2])
    (card,) = [f for f in results["cost"]["filters"] if "survives" in f]
    assert "0.75 are left" in card["survives"] and "other keys than their peers'" in card["not_against"]


def test_a_run_that_begins_again_opens_no_sum_for_others_than_before(tmp_path):
    """The server is killed before its first checkpoint. Of two sums of round 0 the difference would be a message."""
    grid, e = FakeGrid(tmp_path, nodes=4), masked(deadline=0.2, patience=0.2)

    def killed(node, request, reply):
        if request.metadata.message_type == "evaluate":
            raise SystemError("killed after round 0")
        return [reply]

    grid.tamper = killed
    with pytest.raises(SystemError, match="killed after round 0"):
        run(grid, e, tmp_path / "run")
    name = store.read_json(tmp_path / "run" / "fleet.json")
    assert not (tmp_path / "run" / "state.safetensors").exists()

    def lost(node, request, reply):
        return [] if node == 103 and request.metadata.message_type == "train" else [reply]

    grid.tamper = lost
    faults = run(grid, e, tmp_path / "run")["faults"]
    assert [(f["round"], f["client"], f["kind"]) for f in faults] == [(0, 3, "late"), (0, -1, "round")]
    assert store.read_json(tmp_path / "run" / "fleet.json") == name
    api.run(replace(e, backend=Serial(), filters=()), tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run" / "fleet.json").exists(), "a new run in its place has a name of its own"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_over_tls_the_sum_is_that_of_one_process(tmp_path):
    e, folder = masked(deadline=240.0, patience=60.0), tmp_path / "run"
    fleet = loopback.up(tmp_path / "fleet", 2)
    try:
        store.RunFolder.create(folder, e, api.device_of("cpu"))
        launch.finish(folder, Watch(), fleet)
    finally:
        loopback.down(tmp_path / "fleet")
    assert store.RunFolder(folder).load()["results"]["faults"] == [] and same(e, folder, [0, 1, 2, 3])
