"""A full disk, and folders of other versions: an error that says what to do, and nothing has changed."""

import asyncio
import json
import os

import pytest
from federation import lives, stream
from test_http import BASE, body, served
from test_service import FIRST, opened

from acclimate.serving import checkpoint
from acclimate.serving.log import packed
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.run import open_front
from acclimate.serving.segments import Log
from acclimate.store import RunError

FULL = OSError(28, "No space left on device")


def test_a_full_disk_changes_nothing(tmp_path, monkeypatch):
    service = opened(tmp_path)
    service.answer([Ask(0, "a", stream(0, 2))])
    before, size = service.digests(), service.log.end

    def full(file, raw):
        real(file, raw[:10])
        raise OSError(28, "No space left on device")

    real = __import__("os").write
    monkeypatch.setattr("acclimate.serving.segments.os.write", full)
    with pytest.raises(RunError, match="No space left on device; nothing has changed"):
        service.answer([Ask(0, "b", stream(0, 2))])
    with pytest.raises(RunError, match="No space left"):
        service.act("reset", [0])
    with pytest.raises(RunError, match="No space left"):
        service.feedback(0, ["0-0"], [1])
    monkeypatch.undo()
    assert service.digests() == before
    assert (tmp_path / FIRST).stat().st_size == size
    service.answer([Ask(0, "b", stream(0, 2))])
    assert service.feedback(0, ["0-0"], [1])["labels"] == 1


def no_space(*given):
    raise FULL


@pytest.mark.parametrize("operations", [("write",), ("fsync",), ("fsync", "ftruncate")])
def test_requests_are_answered_again_once_there_is_space(tmp_path, monkeypatch, operations):
    """Whichever call finds the disk full; where it cannot even be taken back, the server says that it is not well."""

    async def go():
        async with served(tmp_path) as (front, http):
            await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 2), "a"))
            before = front.service.digests()
            with monkeypatch.context() as patched:
                for name in operations:
                    patched.setattr(os, name, no_space)
                for path, sent in (("infer", body(stream(0, 2), "b")), ("reset", {}), ("labels", LABELS)):
                    reply = await http.post(f"{BASE}/versions/0/{path}", json=sent)
                    assert reply.status_code == 503 and reply.headers["retry-after"] == "1"
                    assert "No space left on device; nothing has changed" in reply.json()["error"]
                well = "fsync" not in operations
                assert (await http.get("/v2/health/ready")).status_code == (200 if well else 503)
                assert front.service.digests() == before
            reply = await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 2), "b"))
            assert reply.status_code == 200 and front.host.seen[0] == 4
            assert (await http.get("/v2/health/ready")).status_code == 200
        return front.digests

    digests = asyncio.run(go())
    done = replay(tmp_path)
    assert done.exact and done.digests == digests and done.steps == 2 and not done.torn


LABELS = {"ids": ["0-0"], "labels": [1]}


def test_a_checkpoint_that_has_no_space_is_made_later(tmp_path, monkeypatch, caplog):
    service = opened(tmp_path, checkpoint_s=0.0)
    real = os.replace
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", no_space)
        service.answer([Ask(0, "a", stream(0, 9))])
    assert "no checkpoint: cannot write" in caplog.text and "No space left" in caplog.text
    assert os.replace is real and not (tmp_path / checkpoint.STATES).exists()
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]  # nothing half-written stays
    service._due = 0.0  # its time comes again
    service.answer([Ask(0, "b", stream(0, 9))])
    assert (tmp_path / checkpoint.STATES).exists()
    before = service.digests()
    service.log.close()
    assert opened(tmp_path).digests() == before


def test_a_server_that_cannot_be_begun_leaves_nothing_that_counts(tmp_path, monkeypatch):
    lives()[0].save(tmp_path / "live" / "0")
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", no_space)
        with pytest.raises(RunError, match="No space left on device"):
            open_front([tmp_path / "live"])
    open_front([tmp_path / "live"]).service.close()


def test_folders_of_another_version_are_named(tmp_path):
    service = opened(tmp_path)
    service.answer([Ask(0, "a", stream(0, 2))])
    service.close()
    states, card = tmp_path / checkpoint.STATES, tmp_path / checkpoint.CARD
    kept = states.read_bytes(), card.read_text()
    states.write_bytes(kept[0].replace(b"acclimate.server/2", b"acclimate.server/9"))
    with pytest.raises(RunError, match="schema='acclimate.server/9' must be 'acclimate.server/2'"):
        opened(tmp_path)
    states.write_bytes(kept[0])
    card.write_text(json.dumps({**json.loads(kept[1]), "schema": "acclimate.server/1"}))
    for act in (opened, replay):
        with pytest.raises(RunError, match="schema='acclimate.server/1' must be .* choose another --folder"):
            act(tmp_path)
    card.write_text(kept[1])
    assert opened(tmp_path).close() == service.digests()


def test_a_log_of_another_version_is_named(tmp_path):
    checkpoint.begin(tmp_path, lives(), "digits")
    log = Log(tmp_path / checkpoint.LOG)
    log.append({"kind": "start", "schema": "acclimate.log/1", "device": "cpu", "threads": 1})
    log.close()
    for act in (opened, replay):
        with pytest.raises(RunError, match="the log has schema='acclimate.log/1', which must be 'acclimate.log/2'"):
            act(tmp_path)
    raw, _ = packed({"kind": "start"}, {}, bytes(32))
    assert (tmp_path / FIRST).stat().st_size > len(raw)
    old = tmp_path / "old"
    old.mkdir()
    (old / "log").write_bytes(b"aclg")  # the first version had one file
    with pytest.raises(RunError, match="must be a folder of segments; another version"):
        replay(old)


def test_a_card_without_clients_and_two_folders_of_one_client_are_refused(tmp_path):
    for place in ("0", "again"):
        lives()[0].save(tmp_path / "live" / place)
    front = open_front([tmp_path / "live" / "0"], tmp_path / "server")
    front.service.close()
    with pytest.raises(RunError, match="two of the live folders are of the same client"):
        open_front([tmp_path / "live"], tmp_path / "server")  # one of them would have been left out without a word
    card = tmp_path / "server" / checkpoint.CARD
    about = json.loads(card.read_text())
    for wrong in (None, ["0"]):
        card.write_text(json.dumps({**about, "clients": wrong}))
        with pytest.raises(RunError, match="is damaged: it names no clients; choose another --folder"):
            open_front([tmp_path / "live" / "0"], tmp_path / "server")
