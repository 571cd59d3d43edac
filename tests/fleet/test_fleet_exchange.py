"""Clients at the nodes of a fleet that exchange while they adapt: the numbers of Serial, and nodes that go away."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, changed, experiment, run
from flwr.app import Array

from acclimate.backends import Serial
from acclimate.running import run as api
from support import quick_or_slow

STREAM = ["streams=grouped", "streams.grouped.length=40", "streams.grouped.batch=8", "model.norm=batch"]
AROUND = ("together", "together-uniform", "fedctta")
NUMBERS = ("accuracy", "loss", "exchanged_bytes", "clients")


def of(adapter, *more):
    name = adapter.partition(",")[0]
    return experiment("method=fedavg", "method.work.epochs=1", "rounds=1", f"adapters={adapter}", *STREAM, *more), name


@pytest.mark.parametrize("adapter", quick_or_slow([*AROUND, "latte", "bn-together", "fedtsa"], ("together",)))
def test_a_fleet_exchanges_as_serial_does(tmp_path, adapter):
    e, _ = of(adapter, *([f"adapters.{adapter}.adapter.opt=sgd"] if adapter in AROUND else []), "filters=fp16")
    ours = run(FakeGrid(tmp_path), e, tmp_path / "run")
    api.run(replace(e, backend=Serial()), tmp_path / "serial")
    theirs = api.store.RunFolder(tmp_path / "serial").load()["results"]
    assert ours["faults"] == [] and ours["table"][0]["exchanged_bytes"] > 0
    for a, b in zip(ours["table"], theirs["table"], strict=True):
        assert [a[n] for n in NUMBERS] == pytest.approx([b[n] for n in NUMBERS], abs=1e-5)


def test_a_node_that_spoils_a_message_is_left_out_and_the_others_go_on(tmp_path):
    seen = []

    def tamper(node, request, reply):
        told = [name for name in reply.content if name.startswith("up.")]
        seen.append((request.metadata.message_type, sorted(told)))
        if node == 101 and request.metadata.message_type == "evaluate" and told:
            return [changed(reply, lambda name, record: type(record)({}) if name == "up.1" else record)]
        return [reply]

    e, _ = of("together-uniform")
    results = run(FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")
    assert results["table"][0]["clients"] == 3
    assert {(f["client"], f["kind"]) for f in results["faults"]} == {(1, "groups")}
    # five batches of eight: a message after each of the first four, and none with the last
    assert sum(kind == "evaluate" and told == ["up.0", "up.2"] for kind, told in seen) == 4


def test_newcomers_of_a_fleet_have_nobody_to_exchange_by_and_the_clients_behind_them_do(tmp_path):
    e, _ = of("together-uniform", "data.new_clients=2", "streams=new-clients,grouped")
    results = run(FakeGrid(tmp_path), e, tmp_path / "run")
    assert {row["stream"] for row in results["table"]} == {"grouped"}
    assert [r["reason"] for r in results["refused"]] == [
        "stream new-clients: Together exchanges at test time, and newcomers of a fleet have no node of their own; use "
        "backend=serial, vmap, processes or ray"
    ]


def test_messages_whose_sum_overflows_cost_the_adapter_its_row_and_not_the_run(tmp_path):
    """Both clients of node 101 say 3e38, and nothing bounds norms."""

    def large(name, record):
        if not name.startswith("up."):
            return record
        return type(record)({k: Array(np.full_like(a.numpy(), 3e38)) for k, a in record.items()})

    def tamper(node, request, reply):
        return [changed(reply, large) if node == 101 and request.metadata.message_type == "evaluate" else reply]

    e, _ = of("none,together-uniform")
    e = replace(e, backend=replace(e.backend, clip=0.0))
    results = run(FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")
    assert {row["adapter"] for row in results["table"]} == {"none"}
    ((refused),) = results["refused"]
    assert refused["adapter"] == "together-uniform" and "an exchange at test time: round 0" in refused["reason"]
