"""A server goes on from what it was begun with, whatever live folders have become, and what ends it ends in order."""

import asyncio
import errno
import gzip
import json
import logging
import shutil
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from federation import lives, same, stream
from test_http import BASE, body, served

from acclimate.cli import predict
from acclimate.live import load_live
from acclimate.serving import checkpoint
from acclimate.serving.host import Host
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.run import Address, open_front, run
from acclimate.serving.service import Keeping, Service
from acclimate.store import RunError

LOGGERS = ("acclimate.serving", "uvicorn.error")


def saved(folder, **more):
    for live in lives(clients=2, **more):
        live.save(folder / f"client-{live.client}", overwrite=True)
    return folder


def test_predicting_with_a_served_folder_does_not_change_what_the_log_goes_on_from(tmp_path):
    live = saved(tmp_path / "live")
    service = open_front([live]).service
    service.answer([Ask(0, "a", stream(0, 20))])
    before = service.digests()
    service.log.close()  # as a kill would: no checkpoint
    np.save(tmp_path / "x.npy", stream(0, 40).numpy())
    predict.predict(live / "client-0", tmp_path / "x.npy", tmp_path / "a.csv", frozen=False)
    assert load_live(live / "client-0").step > 0
    again = open_front([live]).service
    assert again.digests() == before
    again.close()
    assert replay(live / "serving").exact


def test_a_server_does_not_go_on_with_another_adapter_or_window(tmp_path):
    live = saved(tmp_path / "live")
    open_front([live]).service.close()
    for more, words in (({"name": "T3A"}, "another adapter, or another setting"), ({"window": 4}, "another session")):
        with pytest.raises(RunError, match=rf"was begun with {words} of client 0; choose another --folder"):
            open_front([saved(live, **more)])
    saved(live)
    open_front([live]).service.close()


def test_a_checkpoint_of_before_the_first_segment_is_not_gone_on_from(tmp_path):
    """As a backup, or a disk that lost the last rename, would leave it."""
    checkpoint.begin(tmp_path, lives(), "digits")
    service = Service(Host(lives()), tmp_path, Keeping(segments=1, remember=1))
    service.answer([Ask(0, "a", stream(0, 9))])
    service.checkpoint()
    shutil.copy(tmp_path / checkpoint.STATES, tmp_path / "old")
    for i in range(3):
        service.answer([Ask(0, f"b{i}", stream(0, 9))])
        service.rotate()
    before = service.digests()
    service.log.close()
    shutil.move(tmp_path / "old", tmp_path / checkpoint.STATES)
    again = Service(Host(lives()), tmp_path, Keeping(segments=1, remember=1))
    assert again.digests() == before
    again.close()


def test_a_server_stops_in_order_where_the_last_checkpoint_has_no_space(tmp_path, monkeypatch, caplog):
    checkpoint.begin(tmp_path, lives(), "digits")
    service = Service(Host(lives()), tmp_path, Keeping(checkpoint_s=1e9))  # the last is the first
    service.answer([Ask(1, "a", stream(1, 9))])
    before = service.digests()

    def full(*given):
        raise RunError(f"cannot write it: {errno.errorcode[errno.ENOSPC]}")

    monkeypatch.setattr(checkpoint, "save", full)
    assert service.close() == before
    assert "no last checkpoint: cannot write it" in caplog.text
    monkeypatch.undo()
    again = Service(Host(lives()), tmp_path)
    assert again.digests() == before
    again.close()


@pytest.fixture
def loggers():
    """What `run` does to the loggers of a process is taken back."""
    kept = [(log := logging.getLogger(n), log.handlers, log.propagate, log.level) for n in LOGGERS]
    yield
    for log, handlers, propagate, level in kept:
        log.handlers, log.propagate = handlers, propagate
        log.setLevel(level)


def test_a_port_that_is_taken_is_an_error_with_the_remedy(tmp_path, loggers):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        front = open_front([saved(tmp_path / "live")])
        with pytest.raises(RunError, match=rf"cannot listen at 127.0.0.1:{port}; choose another --host or --port"):
            run(front, Address(port=port))
    open_front([tmp_path / "live"]).service.close()  # the log was let go


def test_files_that_are_no_certificate_and_key_are_named(tmp_path):
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("-----BEGIN NOTHING-----")
    with pytest.raises(ValueError, match=r"--certificate .*cert.pem and --key .*key.pem must be a certificate and its"):
        Address(certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")


def test_every_refusal_is_json_that_says_what_is_allowed(tmp_path):
    async def go():
        async with served(tmp_path) as (front, http):
            at = f"{BASE}/versions/0/infer"
            reply = await http.get(at)
            assert reply.status_code == 405 and reply.headers["allow"] == "POST"
            assert reply.json()["error"] == f"GET '{at}': the method must be one of POST"
            packed = gzip.compress(json.dumps(body(stream(0, 1))).encode())
            reply = await http.post(at, content=packed, headers={"Content-Encoding": "gzip"})
            assert reply.status_code == 415 and "'gzip' must be identity" in reply.json()["error"]
            wide = body(stream(0, 1))
            wide["inputs"][0] |= {"datatype": "FP32"}
            reply = await http.post(at, json=wide)
            assert reply.status_code == 400 and "inputs[0].data: x has floats from 0 to" in reply.json()["error"]
            reply = await http.post(f"{BASE}/infer", json=body(stream(0, 1)))
            assert reply.status_code == 400 and "ask .../versions/CLIENT/infer, or" in reply.json()["error"]
            reply = await http.post(f"{BASE}/freeze", json={"step": 3})
            assert (
                reply.status_code == 400 and reply.json()["error"] == "step: '3' belongs to restore; freeze takes none"
            )
            long = {"Inference-Header-Content-Length": "0" * 5000}
            reply = await http.post(at, json=body(stream(0, 1)), headers=long)
            assert reply.status_code == 400 and "must be a number up to" in reply.json()["error"]
            reply = await http.post(at, json=body(stream(0, 1)) | {"outputs": [{"name": "ids"}, {"name": "ids"}]})
            assert reply.status_code == 400 and reply.json()["error"].startswith("outputs: 'ids' is there twice")
            assert front.service.requests == 0 and not front.host.shells[0].frozen
            for host in ("127.0.0.2:8080", "LOCALHOST", "[::1]", "[::1]:80"):
                assert (await http.get("/v2", headers={"Host": host})).status_code == 200, host
            for host in ("128.0.0.1", "localhost.evil.example", "", "127.0.0.1.evil.example:80"):
                assert (await http.get("/v2", headers={"Host": host})).status_code == 403, host

    asyncio.run(go())


def test_answers_that_are_no_numbers_are_refused_by_name(tmp_path):
    async def go():
        async with served(tmp_path) as (front, http):
            real = front.desk.ask

            async def ask(ask):
                answer = await real(ask)
                return replace(answer, probabilities=answer.probabilities * torch.nan)

            front.desk.ask = ask
            reply = await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 1)))
            assert reply.status_code == 422 and "the model's answers are not finite" in reply.json()["error"]

    asyncio.run(go())


def test_a_count_that_fails_does_not_end_the_writer(tmp_path, monkeypatch):
    async def go():
        async with served(tmp_path) as (front, http):
            monkeypatch.setattr(front.board, "step", lambda *given: 1 / 0)
            for i in range(2):
                reply = await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 1), f"{i}"))
                assert reply.status_code == 200

    asyncio.run(go())


def test_several_clients_go_back_at_once_or_none_does(tmp_path):
    async def go():
        async with served(tmp_path) as (front, http):
            for client, count in ((0, 24), (2, 16)):  # three steps, and two
                assert (await http.post(f"{BASE}/versions/{client}/infer", json=body(stream(client, count)))).is_success
            kept = {c: dict(front.host.live(c).snapshots) for c in (0, 2)}
            before = front.service.digests()
            for wrong, words in [
                ({"steps": {"0": 2, "2": 9}}, "client 2: restore: step=9 must be one of those kept: 1, 2"),
                ({"steps": {"0": 2, "7": 1}}, "client: '7' must be one of 0, 1, 2, 3"),
                ({"steps": {"0": "2"}}, "steps: {'0': '2'} must be an object of clients and steps"),
                ({"steps": {}}, "steps: {} must be an object"),
                ({"steps": {"0": 2, "00": 1}}, "steps: {'0': 2, '00': 1} has a client twice"),
                ({"steps": {"9" * 5000: 2}}, "client: '9999999999"),
                ({"steps": {"0": 2}, "step": 2}, "and step be left out"),
            ]:
                reply = await http.post(f"{BASE}/restore", json=wrong)
                assert 400 <= reply.status_code < 500 and words in reply.json()["error"], reply.text
            assert front.service.digests() == before
            reply = await http.post(f"{BASE}/restore", json={"steps": {"0": 1, "2": 1}})
            assert [row["step"] for row in reply.json()["clients"]] == [4, 3]
            for c in (0, 2):
                same(front.host.live(c).session["adapter"], kept[c][1]["adapter"], 0.0)
            after = front.service.digests()
            assert after[1] == before[1] and after[3] == before[3]
        return after

    after = asyncio.run(go())
    done = replay(tmp_path)
    assert done.exact and done.digests == after
