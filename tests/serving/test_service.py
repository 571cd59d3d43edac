"""What a server does survives: its log gives the same bits, a retry adapts nothing, a torn record never counted."""

import random

import numpy as np
import pytest
import torch
from federation import lives, stream

from acclimate.serving import checkpoint
from acclimate.serving.host import Host
from acclimate.serving.ledger import Conflict
from acclimate.serving.log import Torn, read
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.segments import Log
from acclimate.serving.service import Keeping, Service
from acclimate.store import RunError

FIRST = f"{checkpoint.LOG}/{0:016}"


def opened(folder, name="Tent", guard=False, **keeping) -> Service:
    checkpoint.begin(folder, lives(name, guard), "digits")
    return Service(Host(lives(name, guard)), folder, Keeping(**{"checkpoint_s": 1e9, **keeping}))  # none by the clock


def load(service: Service, seed: int, steps: int) -> None:
    """Requests of random clients and sizes, with administrative acts between."""
    draw = random.Random(seed)
    for i in range(steps):
        asks = []
        for client in sorted(draw.sample(range(4), draw.randint(1, 4))):
            n, at = draw.choice([1, 1, 3, 12]), draw.randint(0, 60)
            asks.append(Ask(client, f"{seed}-{i}", stream(client, 80)[at : at + n]))
        answers = service.answer(asks)
        if i % 5 == 1:
            service.feedback(asks[0].client, answers[0].ids[:1], [draw.randrange(10)])
        if i % 7 == 3:
            service.act("freeze", [1, 2])
        if i % 7 == 5:
            service.act("unfreeze", service.host.clients)
        kept = service.host.kept[draw.randrange(4)]
        if i % 6 == 4 and kept:
            client = next(c for c in service.host.clients if service.host.kept[c] is kept)
            service.act("restore", [client], kept[0][0])
        if i == 9:
            service.act("reset", [0])


SLOW = [pytest.param("Tent", True, marks=pytest.mark.slow), pytest.param("T3A", False, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "guard"), [("Tent", False), *SLOW])
def test_a_restart_has_the_same_bits_with_and_without_a_checkpoint(tmp_path, name, guard):
    service = opened(tmp_path, name, guard)
    load(service, 1, 10)
    before = service.digests()
    service.log.close()  # as a kill would: no checkpoint
    again = opened(tmp_path, name, guard)
    assert again.digests() == before
    again.checkpoint()
    load(again, 2, 8)
    before = again.digests()
    again.log.close()
    third = opened(tmp_path, name, guard)
    assert third.digests() == before
    assert third.close() == before
    done = replay(tmp_path)
    assert done.digests == before and done.exact and not done.torn
    assert (done.steps, done.marks) == (18, 2)


def test_a_retry_gets_its_answer_and_adapts_nothing(tmp_path):
    service = opened(tmp_path)
    asks = [Ask(c, "first", stream(c, 3)) for c in (0, 2)]
    first = service.answer(asks)
    before = service.digests()
    mixed = service.answer([asks[0], Ask(1, "first", stream(1, 1)), asks[1]])
    for a, b in zip([mixed[0], mixed[2]], first, strict=True):
        assert torch.equal(a.probabilities, b.probabilities) and (a.ids, a.step) == (b.ids, b.step)
    assert {c: d for c, d in service.digests().items() if c != 1} == {c: d for c, d in before.items() if c != 1}
    before = service.digests()
    service.checkpoint()
    service.log.close()
    again = opened(tmp_path)
    found = again.answer(asks)
    assert again.digests() == before and again.steps == 0
    for a, b in zip(found, first, strict=True):
        assert torch.equal(a.probabilities, b.probabilities)
        assert (a.labels, a.ids, a.adapted, a.step, a.note) == (b.labels, b.ids, b.adapted, b.step, b.note)
    assert again.feedback(2, found[1].ids[:1], list(np.array([0])))["labels"] == 1
    assert again.feedback(0, found[0].ids, found[0].labels) == {"labels": 3, "accuracy": 1.0, "unadapted": 1.0}
    with pytest.raises(Conflict, match="id='first' was used for other samples"):
        again.answer([Ask(0, "first", stream(0, 4))])


def test_ids_are_remembered_up_to_a_bound(tmp_path):
    service = opened(tmp_path, remember=5)
    for i in range(8):
        service.answer([Ask(0, f"r{i}", stream(0, 20)[i : i + 1])])
    assert [name for _, name in service.ledger.known] == [f"r{i}" for i in range(3, 8)]
    service.close()
    assert [name for _, name in opened(tmp_path, remember=5).ledger.known] == [f"r{i}" for i in range(3, 8)]


def test_a_torn_record_is_cut_off_wherever_it_tore(tmp_path):
    service = opened(tmp_path)
    service.answer([Ask(0, "a", stream(0, 2))])
    before, end = service.digests(), service.log.end
    service.answer([Ask(0, "b", stream(0, 4)[2:])])
    service.log.close()
    whole = (tmp_path / FIRST).read_bytes()
    for keep in (end + 1, end + 50, end + 200, len(whole) - 1):
        (tmp_path / FIRST).write_bytes(whole[:keep])
        with pytest.raises(Torn):
            list(read(tmp_path / FIRST))
        assert replay(tmp_path).torn
        again = opened(tmp_path)
        assert again.digests() == before
        again.answer([Ask(0, "b", stream(0, 4)[2:])])
        again.log.close()
        assert replay(tmp_path).steps == 2 and not replay(tmp_path).torn
    (tmp_path / FIRST).write_bytes(whole[:end] + bytes(300))  # a length without content
    assert opened(tmp_path).digests() == before


def test_damage_within_a_log_is_an_error(tmp_path):
    service = opened(tmp_path)
    for i in range(3):
        service.answer([Ask(0, str(i), stream(0, 8)[2 * i : 2 * i + 2])])
    service.log.close()
    path = tmp_path / FIRST
    whole = path.read_bytes()
    for place in (20, len(whole) // 2):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match="is damaged at byte"):
            opened(tmp_path)
    found = list(read_all(path, whole))
    path.write_bytes(whole[: found[1].position] + whole[found[2].position :])
    with pytest.raises(RunError, match="is damaged at byte"):
        opened(tmp_path)


def read_all(path, whole):
    path.write_bytes(whole)
    return read(path)


def test_one_server_per_folder_and_the_same_models(tmp_path):
    service = opened(tmp_path)
    assert (tmp_path / FIRST).stat().st_mode & 0o777 == 0o600
    with pytest.raises(RunError, match="in use by another server"):
        Log(tmp_path / checkpoint.LOG)
    service.close()
    with pytest.raises(RunError, match="begun with clients 0, 1, 2, 3, not 0, 1"):
        checkpoint.begin(tmp_path, lives()[:2], "digits")
    other = lives()
    other[1].model = other[2].model | {"vars": {**other[2].model["vars"], "params": {}}}
    with pytest.raises(RunError, match="other deployed models of client 1"):
        checkpoint.begin(tmp_path, other, "digits")


def test_acts_that_fail_change_nobody(tmp_path):
    service = opened(tmp_path)
    service.answer([Ask(c, "", stream(c, 16)) for c in (0, 1)])
    before = service.digests()
    with pytest.raises(ValueError, match="restore: step=1 must be one of those kept: none yet"):
        service.act("restore", [0, 2], 1)
    with pytest.raises(ValueError, match="restore: step=None must be the number"):
        service.act("restore", [0])
    with pytest.raises(ValueError, match="act='melt' must be one of freeze"):
        service.act("melt", [0])
    with pytest.raises(ValueError, match="not among the last"):
        service.feedback(0, ["0-99"], [1])
    assert service.digests() == before


@pytest.mark.parametrize("saved", [False, True])
def test_what_is_done_again_has_as_many_threads_as_before(tmp_path, monkeypatch, saved):
    """Sums over more threads have other bits."""
    torch.set_num_threads(2)
    try:
        service = opened(tmp_path)
        if saved:
            service.checkpoint()
        service.answer([Ask(0, "a", stream(0, 9))])
        service.log.close()
    finally:
        torch.set_num_threads(1)
    used, compute = [], Host.compute
    monkeypatch.setattr(
        Host, "compute", lambda self, calls: used.append(torch.get_num_threads()) or compute(self, calls)
    )
    again = opened(tmp_path)
    again.answer([Ask(0, "b", stream(0, 9))])
    assert used == [2, 1]
    again.close()
    used.clear()
    assert replay(tmp_path).exact and used == [2, 1] and torch.get_num_threads() == 1
