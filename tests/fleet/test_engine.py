"""The Flower backend against Serial, and under every fault that a node can make: in one process, without a network."""

import io
import os
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, changed, experiment, linked, run, state_of, with_fields
from flwr.app import Array, ArrayRecord, ConfigRecord
from gathering import Gathering
from stumbling import Stumbling

from acclimate.adapters import FedCTTA, NoAdapt
from acclimate.backends import Serial
from acclimate.backends.flower.engine import Flower
from acclimate.backends.flower.messages import expected_message
from acclimate.backends.flower.protocol import FleetError, Request, nested, with_empty_groups
from acclimate.core import Work, Worker, fit, tree
from acclimate.data import IID
from acclimate.experiment import catalogue
from acclimate.filters import CentralDP, LocalDP, Masked
from acclimate.fleet import link as link_module
from acclimate.fleet import server_app, telling
from acclimate.fleet.records import pack, parcels, unpack
from acclimate.fleet.site import Place, Site, shapes
from acclimate.fleet.vault import LostState, Vault
from acclimate.personal import FineTune, NoPersonal
from acclimate.running import run as api
from support import PEERS, quick_or_slow


def small(method):
    """One epoch of small batches wherever a method trains."""
    return [f"{f}.{k}" for f in vars(method) if f.endswith("work") for k in ("epochs=1", "batch=8")]


def of(name, **backend):
    method = Gathering() if ":" in name else catalogue.METHODS[name]
    extra = [
        f"method={name}",
        *(f"method.{s}" for s in small(method)),
        *(["model.norm=batch"] if name in ("fedbn", "dsbn") else []),
    ]
    return experiment(*extra, **backend)


def gap(a, b):
    assert set(a) == set(b) and a
    return max((float((a[k].double() - b[k].double()).abs().max()) for k in a if a[k].numel()), default=0.0)


def private_states(folder, fit_state, clients=4, nodes=2):
    """Of every client, from the node's files."""
    out = []
    for c in range(clients):
        (at,) = (folder / f"site{c % nodes}" / "runs").iterdir()
        version = int(fit_state["mine/version"][c])
        out.append(Vault(at).mine(c, version, lambda c: {}))
    return tree.stack(out)


FIRST = ("fedavg", "scaffold", "fedthe", "gathering:Gathering")


@pytest.mark.parametrize("name", quick_or_slow((*FIRST, *PEERS), FIRST))
def test_a_fleet_ends_where_serial_ends_private_state_included(tmp_path, name):
    e = of(name)
    results = run(FakeGrid(tmp_path), e, tmp_path / "run")
    api.run(replace(e, backend=Serial()), tmp_path / "serial")
    ours, theirs = state_of(tmp_path / "run"), state_of(tmp_path / "serial")
    server = {k: v for k, v in ours.items() if k.startswith("server/")}
    assert gap(server, {k: v for k, v in theirs.items() if k.startswith("server/")}) < 1e-5
    serial_mine = nested({k.removeprefix("mine/"): v for k, v in theirs.items() if k.startswith("mine/")})
    if serial_mine:
        assert gap(tree.flatten(private_states(tmp_path, ours)), tree.flatten(serial_mine)) < 1e-5
    other = api.store.RunFolder(tmp_path / "serial").load()["results"]
    assert [r["accuracy"] for r in results["table"]] == pytest.approx([r["accuracy"] for r in other["table"]], abs=1e-6)
    assert results["faults"] == [] and results["cost"]["up_bytes_total"] == other["cost"]["up_bytes_total"]


def test_scaffold_has_private_state():
    assert tree.leaves(api.build(replace(of("scaffold"), backend=Serial()))[1].start(0))


# --- faults of nodes ------------------------------------------------------------------------------------------------


def arrays(**tensors):
    return ArrayRecord({k: Array(np.asarray(v)) for k, v in tensors.items()})


def with_arrays(record, **new):
    out = ArrayRecord({k: a for k, a in record.items() if k not in new or new[k] is not None})
    for k, v in new.items():
        if v is not None:
            out[k] = Array(v)
    return out


def first(record):
    return next(k for k, a in record.items() if a.numpy().ndim == 2)


BAD = {
    "nonfinite": lambda r: with_arrays(r, **{first(r): np.full_like(r[first(r)].numpy(), np.nan)}),
    "shape": lambda r: with_arrays(r, **{first(r): r[first(r)].numpy()[:1]}),
    "groups": lambda r: with_arrays(r, extra=np.zeros(3, np.float32)),
    "oversize": lambda r: with_arrays(r, **{first(r): np.zeros(10**6, np.float32)}),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_message_is_refused_with_a_reason_and_the_round_goes_on(tmp_path, kind):
    """Client 1 of node 101 sends rubbish in round 0; the others count, and so does client 1 in round 1."""
    spoiled = []

    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "train" and not spoiled:
            spoiled.append(node)
            return [changed(reply, lambda name, r: BAD[kind](r) if name == "up.1" else r)]
        return [reply]

    results = run(FakeGrid(tmp_path, tamper=tamper), of("scaffold"), tmp_path / "run")
    ((fault),) = results["faults"]
    assert (fault["round"], fault["client"], fault["kind"]) == (0, 1, kind) and fault["reason"]
    state = state_of(tmp_path / "run")
    assert state["mine/version"].tolist() == [2, 2, 2, 2]
    # the refused message leaves no trace: client 1 started its second round from version 0
    assert all(bool(torch.isfinite(v).all()) for v in state.values())


def swapped(record, end, value):
    """A record whose first array of this kind begins with another value."""
    name = next(k for k in record if k.endswith(end))
    new = record[name].numpy().copy()
    new.reshape(-1)[0] = value
    return with_arrays(record, **{name: new})


@pytest.mark.parametrize(
    ("codec", "end", "value", "kind"),
    [
        ("fp16", "n", -15, "error"),
        ("fp16", "n", 2**40, "range"),
        ("int8", "int8.scale", 3e38, "nonfinite"),
        ("top-k", "topk.index", 10**6, "shape"),
    ],
)
def test_what_an_encoded_message_says_is_examined_too(tmp_path, codec, end, value, kind):
    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "train":
            return [changed(reply, lambda name, r: swapped(r, end, value) if name == "up.1" else r)]
        return [reply]

    e = replace(of("fedavg"), filters=(catalogue.FILTERS[codec],))
    results = run(FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")
    assert [(f["round"], f["client"], f["kind"]) for f in results["faults"]] == [(0, 1, kind), (1, 1, kind)]


def test_a_message_is_decoded_once(tmp_path, monkeypatch):
    """It is decoded where it is checked, and the decoded message counts."""
    read, decoded = Worker.read, []

    def counted(worker, ups):
        decoded.append(tree.leaves(ups)[0].shape[0])
        return read(worker, ups)

    monkeypatch.setattr(Worker, "read", counted)
    e = replace(of("fedavg"), filters=(catalogue.FILTERS["int8"],))
    assert run(FakeGrid(tmp_path), e, tmp_path / "run")["faults"] == []
    assert decoded == [1] * 4 * 2, "four clients, two rounds"


def test_a_missing_group_is_refused(tmp_path):
    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "train":
            return [changed(reply, lambda name, r: with_arrays(r, n=None) if name == "up.1" else r)]
        return [reply]

    results = run(FakeGrid(tmp_path, tamper=tamper), of("fedavg"), tmp_path / "run")
    assert [(f["round"], f["client"], f["kind"]) for f in results["faults"]] == [(0, 1, "groups"), (1, 1, "groups")]
    assert state_of(tmp_path / "run")["mine/version"].tolist() == [2, 0, 2, 2]


def at_node_101(kind, change):
    """All answers of node 101 to requests of a kind, changed."""

    def tamper(node, request, reply):
        return [change(reply)] if node == 101 and request.metadata.message_type == kind else [reply]

    return tamper


def with_parcel(reply, name, record):
    other = changed(reply, lambda _, r: r)
    other.content[name] = record
    return other


def raw(header):
    """An array that says a shape and holds nothing."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, **header})
    return ArrayRecord({"x": Array(dtype="float32", shape=(0,), stype="numpy.ndarray", data=buffer.getvalue())})


DEEP = ArrayRecord({"a/" * 1200 + "a": Array(np.zeros(1, np.float32))})
MALFORMED = {
    "failed is a number": (lambda r: with_fields(r, failed=3), {1, 3}, "error"),
    "failed is no pair": (lambda r: with_fields(r, failed={"1": "x"}), {1, 3}, "error"),
    "failed in another way": (lambda r: with_fields(r, failed={"1": ["late", "x"]}), {1, 3}, "error"),
    "round is a word": (lambda r: with_fields(r, round="1"), {1, 3}, "error"),
    "round is below 0": (lambda r: with_fields(r, round=-1), {1, 3}, "error"),
    "superscript": (lambda r: with_parcel(r, "up.\u00b2", arrays(a=[0.0])), {1}, "error"),
    "long number": (lambda r: with_parcel(r, "up." + "1" * 5000, arrays(a=[0.0])), {1}, "error"),
    "no prefix": (lambda r: with_parcel(r, "1", arrays(a=[0.0])), {1}, "error"),
    "deep": (lambda r: with_parcel(r, "up.1", DEEP), {1}, "shape"),
    "huge and empty": (lambda r: with_parcel(r, "up.1", raw({"shape": (0, 10**30)})), {1}, "shape"),
    "many axes": (lambda r: with_parcel(r, "up.1", raw({"shape": (0,) * 100})), {1}, "shape"),
    "negative": (lambda r: with_parcel(r, "up.1", raw({"shape": (0, -3)})), {1}, "shape"),
    "true": (lambda r: with_parcel(r, "up.1", raw({"shape": (True,)})), {1}, "shape"),
    "big endian": (lambda r: with_parcel(r, "up.1", raw({"descr": ">f4", "shape": (0,)})), {1}, "shape"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_answer_is_refused_and_the_round_goes_on(tmp_path, name):
    change, clients, kind = MALFORMED[name]
    e = replace(of("fedavg"), rounds=1)
    results = run(FakeGrid(tmp_path, tamper=at_node_101("train", change)), e, tmp_path / "run")
    assert {f["client"] for f in results["faults"]} == clients and {f["kind"] for f in results["faults"]} == {kind}
    assert all(0 < len(f["reason"]) < 1100 for f in results["faults"])


MALFORMED_TEST = {
    "unknown type": {"model": [["a", [1], "load"]]},
    "type is a list": {"model": [["a", [1], ["float32"]]]},
    "not a shape": {"model": [["a", 3, "float32"]]},
    "endless": {"model": [["a", [10**30], "float32"]]},
    "endless and empty": {"model": [["a", [0, 2**40], "float32"]]},
    "twice": {"model": [["a", [1], "float32"], ["a/b", [1], "float32"]]},
    "failed is no pair": {"failed": {"1": "x"}},
    "lacks is a word": {"lacks": "no"},
}


@pytest.mark.parametrize("name", MALFORMED_TEST)
def test_a_malformed_answer_to_a_test_leaves_its_clients_out(tmp_path, name):
    e = replace(of("fedavg"), rounds=1, eval_every=1)
    tamper = at_node_101("evaluate", lambda r: with_fields(r, **MALFORMED_TEST[name]))
    results = run(FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")
    assert results["table"][0]["clients"] == 2


def scored(reply, client, **new):
    """An answer to a test in which a client has other metrics."""
    held = reply.content[next(n for n in reply.content if n.startswith("metrics."))]
    return with_parcel(reply, f"metrics.{client}", with_arrays(held, **new))


def value(x):
    return np.asarray(x, np.float32)


BAD_METRICS = {
    "not finite": ({"accuracy": value("nan")}, "nonfinite"),
    "above 1": ({"accuracy": value(7)}, "error"),
    "below 0": ({"loss": value(-1)}, "error"),
    "a loss whose sum overflows": ({"loss": value(3e38)}, "error"),
    "samples whose sum overflows": ({"n": value(3e38)}, "error"),
    "three": ({"accuracy": value([0, 0, 0])}, "shape"),
    "double": ({"ece": np.zeros((), np.float64)}, "shape"),
    "missing": ({"ece": None}, "groups"),
    "more": ({"extra": value(1)}, "groups"),
    "large": ({"accuracy": np.zeros(10**5, np.float32)}, "oversize"),
}


@pytest.mark.parametrize("name", BAD_METRICS)
def test_metrics_that_cannot_be_are_refused_with_a_reason(tmp_path, name):
    """Of the validation after round 1, which the second round tells."""
    new, kind = BAD_METRICS[name]

    def change(reply):
        return scored(reply, 1, **new) if "metrics.1" in reply.content else reply

    e = replace(of("fedavg"), eval_every=1)
    results = run(FakeGrid(tmp_path, tamper=at_node_101("evaluate", change)), e, tmp_path / "run")
    assert results["table"][0]["clients"] == 3 and np.isfinite(results["table"][0]["accuracy"])
    told = [f for f in results["faults"] if f["round"] == 1]
    assert [(f["client"], f["kind"]) for f in told] == [(1, kind)] and "not tested: " in told[0]["reason"]


def test_a_node_cannot_tell_the_metrics_of_a_client_that_lives_elsewhere(tmp_path):
    """Node 101 tells that clients 0 and 2 have nothing right."""

    def change(reply):
        if "metrics.1" not in reply.content:
            return reply
        for c in (0, 2):
            reply = scored(reply, c, accuracy=value(0))
        return reply

    class Backwards(FakeGrid):
        def pull_messages(self, message_ids):
            return list(super().pull_messages(message_ids))[::-1]  # node 101 is always first

    results = run(Backwards(tmp_path, tamper=at_node_101("evaluate", change)), of("fedavg"), tmp_path / "run")
    honest = run(FakeGrid(tmp_path / "honest"), of("fedavg"), tmp_path / "honest-run")
    assert [r["per_client"] for r in results["table"]] == [r["per_client"] for r in honest["table"]]


@pytest.mark.parametrize(("how", "kind"), [("silent", "late"), ("gone", "lost"), ("forgetful", "error")])
def test_who_is_missing_in_the_last_test_is_in_the_results(tmp_path, how, kind):
    """Node 101 fails once training is over."""
    grid = FakeGrid(tmp_path)

    def tamper(node, request, reply):
        if node != 101 or request.metadata.message_type == "query":
            return [reply]
        if request.metadata.message_type == "train":
            grid.offline |= {101} if how == "gone" else set()
            return [reply]
        return [with_fields(reply, lacks=True)] if how == "forgetful" else []

    grid.tamper = tamper
    e = replace(of("fedavg", deadline=0.3, patience=0.3), rounds=1, adapters=(NoAdapt(), NoAdapt()))
    results = run(grid, e, tmp_path / "run")
    assert results["table"][0]["clients"] == 2
    assert [(f["round"], f["client"], f["kind"]) for f in results["faults"]] == [(1, 1, kind), (1, 3, kind)]
    assert all(f["reason"].startswith("not tested: ") for f in results["faults"])


@pytest.mark.parametrize("change", [{"model": []}, {"model": 3}])
def test_one_node_that_cannot_tell_the_form_of_a_model_does_not_end_a_run(tmp_path, change):
    """After a personaliser the form is a new one, and client 0 is the first who is asked for it."""

    def tamper(node, request, reply):
        return (
            [with_fields(reply, **change)] if node == 100 and request.metadata.message_type == "evaluate" else [reply]
        )

    e = replace(of("fedavg"), rounds=1, personal=FineTune(work=Work(epochs=1, batch=8)))
    assert run(FakeGrid(tmp_path, tamper=tamper), e, tmp_path / "run")["table"][0]["clients"] >= 2


@pytest.mark.parametrize(
    ("lie", "personal"),
    [
        ([["x", [1], "float32"]], NoPersonal()),
        ([["vars/params/head.weight", [3, 2], "float32"]], FineTune(work=Work(epochs=1, batch=8))),
    ],
    ids=["names", "shapes"],
)
def test_one_node_that_lies_about_the_form_of_a_model_spoils_no_test(tmp_path, lie, personal):
    """It answers first, and what it said was believed: a KeyError after the last round, or no exchange at test time."""

    def tamper(node, request, reply):
        lies = node == 100 and request.metadata.message_type == "evaluate"
        return [with_fields(reply, model=lie)] if lies else [reply]

    e = experiment("method.work.epochs=1", "method.work.batch=8", "model.norm=batch")
    e = replace(e, rounds=1, eval_every=1, personal=personal, adapters=(FedCTTA(noise=4),))
    results = run(FakeGrid(tmp_path, nodes=4, tamper=tamper), e, tmp_path / "run")
    assert {(row["adapter"], row["clients"]) for row in results["table"]} == {("fedctta", 4)}
    assert results["faults"] == []


def test_a_node_whose_greeting_failed_is_greeted_again(tmp_path, monkeypatch):
    """Node 101 cannot tell its clients at first, stays connected, and can in time for the first round."""
    failures = []

    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "query" and len(failures) < 3:
            failures.append(node)
            return [with_fields(reply, clients=None)]
        return [reply]

    monkeypatch.setattr(link_module.GridLink, "wait", lambda link, seconds: None)
    e = replace(of("fedavg", patience=600.0), rounds=1)
    grid = FakeGrid(tmp_path, tamper=tamper)
    assert run(grid, e, tmp_path / "run")["faults"] == []
    assert grid.asked.count((101, "query")) == 4 and grid.asked.count((100, "query")) == 1


def test_a_node_that_says_nonsense_of_itself_is_not_used(tmp_path):
    e = replace(of("fedavg", patience=0.2), rounds=1)
    grid = FakeGrid(tmp_path, tamper=at_node_101("query", lambda r: with_fields(r, clients=3)))
    results = run(grid, e, tmp_path / "run")
    assert {(f["client"], f["kind"]) for f in results["faults"]} == {(1, "lost"), (3, "lost")}


def test_fields_without_end_are_refused():
    for text in ("[" * 100_000, '{"fields": ' + "9" * 5000 + "}", "3", '{"fields": 3}'):
        content = pack({}, {})
        content["fields"] = ConfigRecord({"json": text})
        with pytest.raises(ValueError, match="fields"):
            parcels(content)


def test_the_reason_of_a_node_is_cut_and_one_printable_line(tmp_path, caplog):
    """It may neither forge lines of the log, nor command the terminal that shows them."""
    forged = "\x1b[2J\x1b[31mbad\r\nround 7: client 0 does not count\u202e" + "x" * 10**6
    tamper = at_node_101("train", lambda r: with_fields(changed(r, lambda n, x: x), failed={"1": ["error", forged]}))

    def silent(node, request, reply):
        (other,) = tamper(node, request, reply)
        if node == 101 and "up.1" in other.content:
            del other.content["up.1"]
        return [other]

    results = run(FakeGrid(tmp_path, tamper=silent), replace(of("fedavg"), rounds=1), tmp_path / "run")
    (fault,) = results["faults"]
    assert fault["client"] == 1 and len(fault["reason"]) < 1100
    assert fault["reason"].startswith(" [2J [31mbad  round 7: client 0 does not count xxx")
    told = [r.getMessage() for r in caplog.records if "[2J" in r.getMessage()]
    assert told and all(line.isprintable() for line in told)


def test_a_stale_round_is_refused(tmp_path):
    """Node 101 answers round 1 with what it sent in round 0."""
    old = []

    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "train":
            old.append(reply)
            again = changed(old[0], lambda name, r: r)
            again.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
            return [again]
        return [reply]

    results = run(FakeGrid(tmp_path, tamper=tamper), of("fedavg"), tmp_path / "run")
    assert [(f["round"], f["client"], f["kind"]) for f in results["faults"]] == [(1, 1, "stale"), (1, 3, "stale")]


def test_a_message_for_another_node_is_refused_before_and_after_the_real_one(tmp_path):
    """Node 100 also answers for client 1, which lives at node 101, and node 101 for client 0, which has answered."""

    def tamper(node, request, reply):
        if request.metadata.message_type != "train":
            return [reply]
        forged = changed(reply, lambda name, r: r)
        forged.content["up.1" if node == 100 else "up.0"] = reply.content["up.2" if node == 100 else "up.3"]
        return [forged]

    results = run(FakeGrid(tmp_path, tamper=tamper), of("fedavg"), tmp_path / "run")
    assert {(f["client"], f["kind"]) for f in results["faults"]} == {(0, "error"), (1, "duplicate")}, "of who sent it"
    run(FakeGrid(tmp_path / "honest"), of("fedavg"), tmp_path / "honest-run")
    forged, honest = state_of(tmp_path / "run"), state_of(tmp_path / "honest-run")
    assert forged.pop("intake/strikes").tolist() == [2] * 4 and honest.pop("intake/strikes").tolist() == [0] * 4
    assert gap(forged, honest) == 0


def test_a_node_cannot_take_over_a_client_that_is_connected(tmp_path):
    """Node 102 is registered too, and says that it is node 0 of 2."""

    class Impostor(FakeGrid):
        def context(self, node):
            made = super().context(node)
            made.node_config.update({"node": node % 100 % 2, "nodes": 2})
            return made

    grid = Impostor(tmp_path, nodes=3)
    results = run(grid, of("fedavg"), tmp_path / "run")
    assert results["faults"] == [] and not any(node == 102 and kind != "query" for node, kind in grid.asked)
    assert sum(node == 102 for node, _ in grid.asked) == 1, "it is asked once, not every round"


def test_two_answers_to_one_question_count_once(tmp_path):
    def tamper(node, request, reply):
        return [reply, changed(reply, lambda name, r: r)] if node == 100 else [reply]

    run(FakeGrid(tmp_path, tamper=tamper), of("fedavg"), tmp_path / "run")
    run(FakeGrid(tmp_path / "honest"), of("fedavg"), tmp_path / "honest-run")
    assert gap(state_of(tmp_path / "run"), state_of(tmp_path / "honest-run")) == 0


def test_a_slow_node_is_left_behind_at_the_deadline(tmp_path):
    def tamper(node, request, reply):
        return [] if node == 101 and request.metadata.message_type == "train" else [reply]

    results = run(FakeGrid(tmp_path, tamper=tamper), of("fedavg", deadline=0.5), tmp_path / "run")
    assert {(f["client"], f["kind"]) for f in results["faults"]} == {(1, "late"), (3, "late")}
    assert len(results["faults"]) == 4 and "0 s" in results["faults"][0]["reason"]
    cost = results["cost"]
    assert cost["up_bytes_per_client"] == sum(part["bytes"] for part in cost["message"])
    assert cost["up_bytes_total"] == 2 * 2 * cost["up_bytes_per_client"]  # two clients answered, in two rounds
    assert cost["down_bytes_total"] == 2 * 4 * cost["down_bytes_per_client"]


def test_a_node_that_goes_away_and_comes_back(tmp_path):
    """Node 101 dies in round 0, with the message, and is back for round 1 with its files and without its memory."""
    e = of("scaffold", patience=600.0)
    grid = FakeGrid(tmp_path)

    def tamper(node, request, reply):
        if node == 101 and request.metadata.message_type == "train" and "died" not in seen:
            seen.add("died")
            grid.offline.add(101)
            grid.restart(101)
            grid.away = 2
            return []
        return [reply]

    seen: set[str] = set()
    grid.tamper = tamper
    results = run(grid, e, tmp_path / "run")
    assert {(f["round"], f["client"], f["kind"]) for f in results["faults"]} <= {
        *((0, c, k) for c in (1, 3) for k in ("lost", "late"))
    }
    assert len(results["faults"]) == 2
    assert state_of(tmp_path / "run")["mine/version"].tolist() == [2, 2, 2, 2]


def test_a_server_that_is_held_up_takes_the_answers_that_came_meanwhile(tmp_path, monkeypatch):
    """Its process stands still from the moment in which it has sent the requests until after their deadline."""
    grid, clock = FakeGrid(tmp_path), [0.0]
    monkeypatch.setattr(link_module.time, "monotonic", lambda: clock.append(clock[-1] + 1e6) or clock[-1])
    with linked(grid, of("fedavg")) as link:
        answers = link.exchange([Request(node, "query", {}, {}) for node in (100, 101)], 5.0, "hello")
    assert [a.fields["clients"] for a in answers] == [[0, 2], [1, 3]]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_soak_of_100_rounds_with_random_losses(tmp_path):
    """Every tenth message is lost with its node, which is away for a while and comes back without its memory."""
    e = replace(of("scaffold", deadline=0.2, patience=5.0), rounds=100, eval_every=100, checkpoint_every=20)
    e = replace(e, data=replace(e.data, fraction=0.1, partition=IID()))  # nodes make their worlds for every request
    grid, chance, losses = FakeGrid(tmp_path), random.Random(0), []

    def lose(node, request, reply):
        if chance.random() > 0.1 or grid.offline or request.metadata.message_type != "train":
            return [reply]
        losses.append(node)
        grid.offline.add(node)
        grid.restart(node)
        grid.away = chance.randrange(2, 6)
        return []

    grid.tamper = lose
    results = run(grid, e, tmp_path / "run")
    assert results["cost"]["rounds"] == 100 and len(losses) > 10
    counts = results["fault_counts"]  # `faults` keeps the first twenty of each client
    assert all(set(kinds) == {"lost"} for kinds in counts.values())
    assert sum(kinds["lost"] for kinds in counts.values()) >= 2 * len(losses)
    assert int(state_of(tmp_path / "run")["mine/version"].min()) > 80


def test_below_the_quorum_a_run_stops_with_the_cause_and_can_be_resumed(tmp_path):
    e = replace(of("fedavg", deadline=0.3, patience=0.3, quorum=0.75, tries=2), rounds=3)
    grid = FakeGrid(tmp_path)

    def tamper(node, request, reply):
        silent = node == 101 and request.metadata.message_type == "train" and request.metadata.group_id == "1"
        return [] if silent and not mended else [reply]

    mended: list[bool] = []
    grid.tamper = tamper
    with pytest.raises(FleetError, match="round 1: messages of 2 of 4 clients count after 2 tries, 3 are needed"):
        run(grid, e, tmp_path / "run")
    mended.append(True)
    results = run(grid, e, tmp_path / "run")
    assert results["cost"]["rounds"] == 3


def test_a_node_that_is_not_finite_says_so(tmp_path):
    e = of("fedavg", quorum=0.0)
    e = replace(e, method=replace(e.method, opt=replace(e.method.opt, lr=1e30)))
    with pytest.raises(FleetError, match="not finite"):
        run(FakeGrid(tmp_path), e, tmp_path / "run")


# --- private states -------------------------------------------------------------------------------------------------


def test_private_state_outlives_the_node_and_the_server(tmp_path):
    """The server is killed after round 3, with a checkpoint of round 2, and nodes restart: the same end, to the bit."""
    e = replace(of("scaffold"), rounds=4, checkpoint_every=2)
    whole = run(FakeGrid(tmp_path / "a"), e, tmp_path / "whole")
    grid = FakeGrid(tmp_path / "b")

    def die(node, request, reply):
        if request.metadata.group_id == "3":
            raise SystemExit("killed")
        return [reply]

    grid.tamper = die
    for _ in range(2):  # the second time before a new checkpoint: the old one must not have lost its states
        with pytest.raises(SystemExit):
            run(grid, e, tmp_path / "cut")
    (at,) = (tmp_path / "b" / "site0" / "runs").iterdir()
    assert Vault(at).versions(0) == [2, 3, 4], "the checkpoint's version must still be there"
    grid.restart(100), grid.restart(101)
    grid.tamper = lambda node, request, reply: [reply]
    resumed = run(grid, e, tmp_path / "cut")
    assert gap(state_of(tmp_path / "cut"), state_of(tmp_path / "whole")) == 0
    assert resumed["table"][0]["accuracy"] == whole["table"][0]["accuracy"]


def test_old_versions_go(tmp_path):
    e = replace(of("scaffold"), rounds=5, eval_every=5)
    run(FakeGrid(tmp_path), e, tmp_path / "run")
    (at,) = (tmp_path / "site0" / "runs").iterdir()
    assert len(Vault(at).versions(0)) <= 3 and Vault(at).versions(0)[-1] == 5


def test_a_client_that_fails_does_not_take_others_with_it(tmp_path):
    """Clients 1 and 3 live at one node."""
    e = replace(of("fedavg"), method=Stumbling(work=Work(epochs=1, batch=8)), rounds=1)
    results = run(FakeGrid(tmp_path), e, tmp_path / "run")
    assert [(f["client"], f["kind"], f["reason"]) for f in results["faults"]] == [
        (3, "error", "RuntimeError in stumbling.client; the site's log has its text")
    ]
    assert state_of(tmp_path / "run")["mine/version"].tolist() == [1, 1, 1, 0]


def test_the_text_of_an_error_stays_at_the_site(tmp_path, monkeypatch, caplog):
    """A cell that cannot be read is in an error's text; the server is told where it was raised."""

    def world(site):
        raise ValueError("row 7: weight='57 kg, Jane Doe' is no number")

    monkeypatch.setattr(Site, "world", property(world))
    heard = []

    def hear(node, request, reply):
        heard.append(reply.error.reason if reply.has_error() else None)
        return [reply]

    grid = FakeGrid(tmp_path)
    grid.tamper = hear
    with pytest.raises(FleetError), caplog.at_level("ERROR", "acclimate"):
        run(grid, replace(of("fedavg"), rounds=1), tmp_path / "run")
    told = {reason for reason in heard if reason is not None}
    assert told == {"ValueError in test_engine.world; the site's log has its text"}
    assert any("Jane Doe" in str(record.exc_info) for record in caplog.records)


def test_what_a_site_itself_refuses_is_told_whole(tmp_path):
    site = Site(Place(0, 1, tmp_path), of("fedavg"), "r", Vault(tmp_path / "runs" / "r"))
    with pytest.raises(ValueError, match="kind='shout'") as refused:
        site.answer("shout", {}, {})
    assert telling.told(refused.value) == "ValueError: kind='shout' must be query, train or evaluate"
    assert telling.told(RuntimeError("57 kg")) == "RuntimeError; the site's log has its text"


def test_a_client_whose_model_or_test_fails_does_not_take_others_with_it(tmp_path, monkeypatch):
    """Client 1 cannot be personalised, and client 3 cannot be served."""
    made, served = Worker.personalise, Worker.adapt

    def personalise(worker, down, mine, data, personal):
        if int(data["id"]) == 1:
            raise KeyError("client 1")
        return made(worker, down, mine, data, personal)

    def adapt(worker, model, data, *more):
        if int(data["id"]) == 3:
            raise RuntimeError("client 3 cannot be served")
        return served(worker, model, data, *more)

    monkeypatch.setattr(Worker, "personalise", personalise)
    monkeypatch.setattr(Worker, "adapt", adapt)
    results = run(FakeGrid(tmp_path), replace(of("fedavg"), rounds=1), tmp_path / "run")
    assert results["table"][0]["clients"] == 2
    assert {(f["client"], f["reason"]) for f in results["faults"]} == {
        (1, "not tested: KeyError in test_engine.personalise; the site's log has its text"),
        (3, "not tested: RuntimeError in test_engine.adapt; the site's log has its text"),
    }


def test_a_lost_private_state_is_told_not_made_up(tmp_path):
    e = replace(of("scaffold"), rounds=2)
    grid = FakeGrid(tmp_path)

    def wipe(node, request, reply):
        if node == 101 and request.metadata.group_id == "0":
            (at,) = (tmp_path / "site1" / "runs").iterdir()
            for path in at.rglob("mine/1/*"):
                path.unlink()
            grid.restart(101)
        return [reply]

    grid.tamper = wipe
    results = run(grid, e, tmp_path / "run")
    told = {(f["round"], f["client"], f["kind"]): f["reason"] for f in results["faults"]}
    assert "private state of client 1 after round 0 is not at this node" in told[1, 1, "error"]


def test_nothing_private_reaches_the_server(tmp_path):
    """All that nodes send is messages of the method's groups, metrics, and fields without tensors."""
    sent = []

    def listen(node, request, reply):
        sent.append((request.metadata.message_type, sorted(reply.content.array_records)))
        return [reply]

    run(FakeGrid(tmp_path, tamper=listen), of("fedthe"), tmp_path / "run")
    assert {n.partition(".")[0] for kind, names in sent for n in names} == {"up", "metrics"}
    assert set(state_of(tmp_path / "run")) & {"mine/version"} and not any(
        k.startswith("mine/") and k != "mine/version" for k in state_of(tmp_path / "run")
    )


# --- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", quick_or_slow(m for m, r in catalogue.METHODS.items() if not r.several_models))
def test_the_expected_message_is_the_real_one(name):
    e = replace(of(name), backend=Serial())
    world, worker, engine = api.build(e)
    state = fit.start(worker, engine, world.clients)
    reply = engine.train(worker.method.download(worker.task, state.server), torch.arange(2), 0)
    like = expected_message(worker, world.shards(world.train))
    assert shapes(like) == shapes(reply.up)


@pytest.mark.parametrize("given", [Masked(secret="SITES"), LocalDP(secret="SITES")])
def test_a_secret_of_the_nodes_is_not_needed_at_the_server(tmp_path, monkeypatch, given):
    """It is in the environment while nodes work, and at no other time."""
    if isinstance(given, LocalDP):
        pytest.importorskip("dp_accounting")

    class Sites(FakeGrid):
        def push_messages(self, messages):
            with monkeypatch.context() as only_here:
                only_here.setenv("SITES", "a secret")
                return super().push_messages(messages)

    monkeypatch.delenv("SITES", raising=False)
    e = of("fedavg")
    e = replace(e, filters=(given,), method=replace(e.method, weights="uniform"), rounds=1)
    assert run(Sites(tmp_path), e, tmp_path / "run")["faults"] == []


def test_trees_cross_the_network_unchanged():
    value = {
        "a": {"w.x": torch.randn(2, 3), "none": {}},
        "n": torch.tensor(3),
        "b": torch.tensor([True, False]),
        "empty": torch.zeros(0, 4),
        "half": torch.ones(2, dtype=torch.float16),
    }
    trees, fields = unpack(pack({"t": value}, {"k": [1, "x"]}))
    assert fields == {"k": [1, "x"]} and trees["t"]["a"]["none"] == {}
    assert gap(tree.flatten(trees["t"]), tree.flatten(value)) == 0
    opened = with_empty_groups(parcels(pack({"t": value}, {}))[0]["t"].open(), value)
    assert opened["a"]["none"] == {} and opened["n"].dtype == torch.int64


def test_a_shape_that_lies_takes_no_memory():
    honest = Array(np.zeros(4, np.float32))
    broken = honest.data.replace(b"(4,)", b"(4, ")
    big = honest.data.replace(b"(4,), }           ", b"(400000000000,), }")
    assert len(big) == len(honest.data)
    for data in (broken, honest.data[:-8], big, b"", b"rubbish"):
        content = pack({}, {})
        content["up.0"] = ArrayRecord({"x": Array(dtype="float32", shape=(4,), stype="numpy.ndarray", data=data)})
        with pytest.raises(ValueError, match="tensor 'x'"):
            parcels(content)[0]["up.0"].open()


def test_an_object_array_is_never_unpickled():
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    content = pack({}, {})
    record = Array(dtype="object", shape=(1,), stype="numpy.ndarray", data=buffer.getvalue())
    content["up.0"] = ArrayRecord({"x": record})
    with pytest.raises(ValueError, match="tensor 'x'"):
        parcels(content)[0]["up.0"].open()


def test_a_vault_refuses_what_it_does_not_have(tmp_path):
    vault = Vault(tmp_path)
    assert vault.mine(3, 0, lambda c: {"c": torch.tensor(c)}) == {"c": torch.tensor(3)}
    with pytest.raises(LostState, match="client 3 after round 4"):
        vault.mine(3, 5, lambda c: {})
    vault.keep(3, 5, {"a": torch.ones(2), "none": {}}, [])
    assert Vault(tmp_path).mine(3, 5, lambda c: {})["none"] == {}
    (file,) = (tmp_path / "mine" / "3").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600  # private to the client, so to whoever runs its node
    next(tmp_path.rglob("*.safetensors")).write_bytes(b"rubbish")
    with pytest.raises(LostState, match="cannot be read"):
        Vault(tmp_path).mine(3, 5, lambda c: {})


def test_the_set_of_models_that_was_just_stored_stays_whatever_the_clock_says(tmp_path):
    """The clock was an hour ahead when the other sets were written, and is right now."""
    vault = Vault(tmp_path)
    for age, name in enumerate(("a", "b", "c")):
        vault.keep_model(name, 0, {"w": torch.zeros(1)})
        os.utime(tmp_path / "models" / name, (4e9 + age,) * 2)
    vault.keep_model("d", 0, {"w": torch.ones(1)})
    assert {p.name for p in (tmp_path / "models").iterdir()} == {"b", "c", "d"}
    assert float(vault.model("d", 0)["w"]) == 1.0 and vault.model("a", 0) is None


@pytest.mark.parametrize("name", ["../../../escaped", "/tmp/escaped", "", "a" * 65, "..", "\u00e9"])
def test_the_server_does_not_choose_where_a_node_writes(tmp_path, name):
    vault = Vault(tmp_path / "site" / "runs" / "abc")
    with pytest.raises(ValueError, match="must be up to 64 letters and digits"):
        vault.keep_model(name, 0, {"w": torch.zeros(1)})
    with pytest.raises(ValueError, match="must be up to 64 letters and digits"):
        vault.model(name, 0)
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize(("quorum", "clients", "need"), [(0.28, 25, 7), (0.55, 20, 11), (0.5, 5, 3), (0.0, 4, 1)])
def test_a_quorum_is_not_one_more_by_rounding(quorum, clients, need):
    assert Flower(quorum=quorum).needed(clients) == need


@pytest.mark.parametrize("bad", [{"quorum": 1.5}, {"deadline": 0.0}, {"patience": float("inf")}, {"tries": 0}])
def test_bad_settings_name_the_field(bad):
    with pytest.raises(ValueError, match=f"Flower: {next(iter(bad))}="):
        Flower(**bad)


def test_without_a_fleet_the_backend_says_what_to_do():
    e = experiment()
    with pytest.raises(ValueError, match="acclimate fleet up"):
        api.build(e)


def test_traces_stay_at_the_nodes(tmp_path):
    e = replace(of("fedavg"), analysis=True)
    with linked(FakeGrid(tmp_path), e), pytest.raises(ValueError, match="may not leave the nodes"):
        api.run(e, tmp_path / "run")


@pytest.mark.parametrize("drawn", [[], [1, 2]], ids=["nobody-drawn", "all-suspended"])
def test_under_central_noise_a_round_without_messages_is_like_any_other(tmp_path, drawn):
    """A model that stayed as it was would tell that no client was drawn, or none but those who are suspended."""
    e = replace(of("fedavg"), filters=(CentralDP(clip=1.0, noise=2.0),))
    grid, e = FakeGrid(tmp_path), replace(e, method=replace(e.method, weights="uniform"))
    with linked(grid, e):
        world, worker, engine = api.build(e)
        state = fit.start(worker, engine, world.clients)
        engine.intake = {**engine.intake, "strikes": torch.full((4,), 3)}
        (done,) = fit._one_round([worker], engine, [state.server], [torch.tensor(drawn, dtype=torch.int64)], 0, 2)
    after, reply, _ = done
    pairs = zip(tree.leaves(after["vars"]["params"]), tree.leaves(state.server["vars"]["params"]), strict=True)
    moved = torch.cat([(a - b).flatten() for a, b in pairs])
    assert float(moved.std()) == pytest.approx(1.0, rel=0.2)  # 2 C over an expected cohort of two
    assert grid.asked == [] and reply.part.clients.tolist() == [] and engine.mine["version"].tolist() == [0] * 4
    assert [f.kind for f in reply.faults] == ["suspended"] * len(drawn)


def test_a_client_that_was_suspended_is_not_asked_about_what_is_deployed(tmp_path, monkeypatch):
    e, grid, load = of("fedavg"), FakeGrid(tmp_path, nodes=4), api.load
    run(grid, replace(e, rounds=1, eval_every=1), tmp_path / "run")

    def suspended(*args, **more):
        fit_ = load(*args, **more)
        strikes = {**fit_.state.intake, "strikes": torch.tensor([3, 0, 0, 0])}
        return replace(fit_, state=replace(fit_.state, intake=strikes))

    monkeypatch.setattr(api, "load", suspended)
    grid.asked.clear()
    shared = {"data": "shared", "run-folder": str(tmp_path / "run"), "settings": "", "registry": ""}
    server_app.conduct(grid, {**shared, "task": "deploy", "selection": "last", "adapter": "none"})
    assert {node for node, kind in grid.asked if kind == "evaluate"} == {101, 102, 103}
