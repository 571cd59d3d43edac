"""The server over HTTP, in this process: the protocol, refusals, tokens, metrics, back-pressure."""

import asyncio
import contextlib
import json
import math
import random
import threading
import time
from collections.abc import Callable

import httpx
import numpy as np
import pytest
import torch
from federation import lives, stream

import acclimate as ac
from acclimate.live import Live
from acclimate.serving import checkpoint
from acclimate.serving.app import Front, Limits
from acclimate.serving.desk import Rules
from acclimate.serving.host import Call, Host
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.run import Address, open_front
from acclimate.serving.service import Service
from acclimate.serving.tokens import Tokens, create, hashed, load
from acclimate.store import RunError

BASE = "/v2/models/digits"


@contextlib.asynccontextmanager
async def served(folder, rules=Rules(), tokens=None, name="Tent", guard=False, limits=Limits()):
    """A server without sockets, and a client of it."""
    checkpoint.begin(folder, lives(name, guard), "digits")
    front = Front(Service(Host(lives(name, guard)), folder), "digits", rules, limits, tokens)
    app = front.application()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield front, client


def body(x: torch.Tensor, id: str = "", **more) -> dict:
    one = {"name": "input", "shape": list(x.shape), "datatype": "UINT8", "data": x.tolist()}
    return {"id": id, "inputs": [one], **more}


def output(reply: httpx.Response, name: str):
    return next(o for o in reply.json()["outputs"] if o["name"] == name)


def test_answers_are_those_of_live_models_and_come_in_groups(tmp_path):
    async def go():
        alone = lives()
        async with served(tmp_path, Rules(window_s=math.inf)) as (front, http):
            for i in range(10):
                parts = {c: stream(c, 20)[2 * i : 2 * i + 2] for c in range(4)}
                asked = [http.post(f"{BASE}/versions/{c}/infer", json=body(x, f"r{i}")) for c, x in parts.items()]
                for (client, x), reply in zip(parts.items(), await asyncio.gather(*asked), strict=True):
                    assert reply.status_code == 200, reply.text
                    want, found = alone[client](x), reply.json()
                    got = np.array(output(reply, "probabilities")["data"]).reshape(2, 10)
                    assert np.abs(got - want.probabilities.numpy()).max() < 1e-4
                    assert output(reply, "labels")["data"] == list(want.labels)
                    assert output(reply, "ids")["data"] == list(want.ids)
                    assert output(reply, "classes")["data"] == want.classes.tolist()
                    assert (found["id"], found["model_version"]) == (f"r{i}", str(client))
                    assert found["parameters"]["step"] == want.step
                    assert found["parameters"]["adapted"] == any(want.adapted)
            assert front.service.steps == 10  # four requests in each
            front.desk.rules = Rules()  # lone requests come now
            late = await http.post(f"{BASE}/versions/1/labels", json={"ids": ["1-0", "1-1"], "labels": [3, "3"]})
            assert late.json()["labels"] == 2
            named = await http.post(f"{BASE}/infer", json=body(stream(2, 1), parameters={"client": 2}))
            assert named.json()["model_version"] == "2"
            flat = body(stream(2, 1), outputs=[{"name": "labels"}])
            flat["inputs"][0]["data"] = stream(2, 1).flatten().tolist()
            assert [o["name"] for o in (await http.post(f"{BASE}/versions/2/infer", json=flat)).json()["outputs"]] == [
                "labels"
            ]
        return front.digests

    digests = asyncio.run(go())
    done = replay(tmp_path)
    assert done.exact and done.digests == digests and done.requests == 42


def test_a_retry_that_overtakes_its_request_waits_for_the_same_answer(tmp_path):
    async def go():
        async with served(tmp_path, Rules(window_s=0.1)) as (front, http):
            sent = body(stream(0, 2), "same")
            replies = await asyncio.gather(*(http.post(f"{BASE}/versions/0/infer", json=sent) for _ in range(5)))
            later = await http.post(f"{BASE}/versions/0/infer", json=sent)
            assert len({r.text for r in [*replies, later]}) == 1 and front.service.requests == 1
            other = await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 3), "same"))
            assert other.status_code == 409 and "other samples" in other.json()["error"]

    asyncio.run(go())


def test_an_id_that_waits_with_other_samples_is_refused_at_once(tmp_path):
    """Whatever becomes of the first one: where it fails, the other would have had its failure for an answer."""

    async def go():
        async with served(tmp_path) as (front, http):
            sent = [body(stream(0, n), "same") for n in (2, 3)]
            front.service.answer, answer = unable, front.service.answer
            first = asyncio.create_task(http.post(f"{BASE}/versions/0/infer", json=sent[0]))
            while not front.desk.pending:
                await asyncio.sleep(0.001)
            assert (await http.post(f"{BASE}/versions/0/infer", json=sent[1])).status_code == 409
            may_fail.set()
            assert (await first).status_code == 503
            front.service.answer = answer
            assert (await http.post(f"{BASE}/versions/0/infer", json=sent[1])).status_code == 200

    may_fail = threading.Event()

    def unable(asks):
        may_fail.wait()
        raise RunError("no space")

    asyncio.run(go())


def test_too_many_requests_get_429_and_nothing_is_lost(tmp_path):
    async def go():
        async with served(tmp_path, Rules(window_s=0.1, queue=2, total=5)) as (front, http):
            asked = [http.post(f"{BASE}/versions/{i % 4}/infer", json=body(stream(0, 1))) for i in range(24)]
            replies = await asyncio.gather(*asked)
            codes = [r.status_code for r in replies]
            assert set(codes) == {200, 429}
            assert next(r for r in replies if r.status_code == 429).headers["retry-after"] == "1"
            assert front.service.requests == codes.count(200) == sum(front.host.seen)
            text = (await http.get("/metrics")).text
            assert f'acclimate_replies_total{{status="429"}} {codes.count(429)}.0' in text
            assert f'acclimate_requests_total{{client="0"}} {float(front.host.seen[0])}' in text
            assert "acclimate_step_seconds_count" in text and 'acclimate_frozen{client="3"} 0.0' in text

    asyncio.run(go())


def test_a_request_that_fails_does_not_take_others_of_its_step_with_it(tmp_path):
    async def go():
        async with served(tmp_path, Rules(window_s=0.2)) as (front, http):
            compute = front.host.compute

            def stumbling(calls):
                if any(call.client == 2 for call in calls):
                    raise RuntimeError("no memory for this one")
                return compute(calls)

            front.host.compute = stumbling
            asked = [http.post(f"{BASE}/versions/{c}/infer", json=body(stream(c, 1), "a")) for c in range(4)]
            replies = await asyncio.gather(*asked)
            assert [r.status_code for r in replies] == [200, 200, 500, 200]
            assert front.host.seen == [1, 1, 0, 1] and front.service.requests == 3
            assert 'acclimate_requests_total{client="2"} 0.0' in (await http.get("/metrics")).text
            front.host.compute = compute
            again = await http.post(f"{BASE}/versions/2/infer", json=body(stream(2, 1), "a"))  # it was not answered
            assert again.status_code == 200 and front.host.seen == [1, 1, 1, 1]
        assert replay(tmp_path).exact

    asyncio.run(go())


def test_a_retry_is_answered_by_the_writer_alone(tmp_path):
    async def go():
        async with served(tmp_path) as (front, http):
            readers, again = [], front.service.ledger.again

            def told(ask):
                readers.append(threading.current_thread().name)
                return again(ask)

            front.service.ledger.again = told
            for _ in range(2):
                assert (await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 1), "a"))).status_code == 200
            assert readers and all(name.startswith("writer") for name in readers) and front.service.requests == 1

    asyncio.run(go())


def test_a_body_that_never_ends_is_given_up_and_a_stranger_sends_none(tmp_path):
    tokens = Tokens(hashed("admin"), {0: hashed("zero")})
    sent = []

    async def slow():
        for part in (b"{", b" ", b" ", b" "):
            sent.append(part)
            yield part
            await asyncio.sleep(0.2)

    async def go():
        async with served(tmp_path, tokens=tokens, limits=Limits(seconds=0.05)) as (_, http):
            late = await http.post(f"{BASE}/infer", content=slow(), headers={"Authorization": "Bearer zero"})
            assert late.status_code == 408 and "body: 1 bytes in 0.05 s" in late.json()["error"]
            sent.clear()
            for wrong in ({}, {"Authorization": "Bearer other"}):
                assert (await http.post(f"{BASE}/infer", content=slow(), headers=wrong)).status_code == 401
            assert not sent

    asyncio.run(go())


def test_acts_of_the_administrator(tmp_path):
    async def go():
        async with served(tmp_path) as (front, http):
            for part in stream(1, 32).split(8):
                await http.post(f"{BASE}/versions/1/infer", json=body(part))
            assert (await http.post(f"{BASE}/freeze")).json()["clients"][3] == {"client": 3, "step": 0, "frozen": True}
            reply = await http.post(f"{BASE}/versions/1/infer", json=body(stream(1, 8)))
            assert reply.json()["parameters"]["step"] == 4
            await http.post(f"{BASE}/versions/1/unfreeze")
            rows = (await http.get(f"{BASE}/clients")).json()["clients"]
            assert [r["frozen"] for r in rows] == [True, False, True, True]
            assert rows[1]["restorable"] == [1, 2, 3, 4] and rows[1]["samples"] == 40
            done = await http.post(f"{BASE}/versions/1/restore", json={"step": 2})
            assert done.json()["clients"] == [{"client": 1, "step": 5, "frozen": False}]
            bad = await http.post(f"{BASE}/versions/1/restore", json={"step": 77})
            assert bad.status_code == 400 and "must be one of those kept" in bad.json()["error"]
            assert (await http.post(f"{BASE}/reset")).json()["clients"][1]["step"] == 6

    asyncio.run(go())


def test_tokens_say_who_may_what(tmp_path):
    path = tmp_path / "tokens.json"
    drawn = create(path, [0, 1])
    assert path.stat().st_mode & 0o777 == 0o600
    assert not any(token in path.read_text() for token in drawn.values())
    with pytest.raises(RunError, match="is there already"):
        create(path, [0])
    tokens = load(path)
    assert tokens == Tokens(hashed(drawn["admin"]), {0: hashed(drawn["0"]), 1: hashed(drawn["1"])})
    admin, zero = ({"Authorization": f"Bearer {drawn[n]}"} for n in ("admin", "0"))

    async def go():
        async with served(tmp_path / "s", tokens=tokens) as (front, http):
            before = front.service.digests()
            ask = body(stream(0, 1))
            for headers, client, status in [({}, 0, 401), (zero, 1, 401), ({"Authorization": "Bearer x"}, 0, 401)]:
                reply = await http.post(f"{BASE}/versions/{client}/infer", json=ask, headers=headers)
                assert reply.status_code == status and reply.headers["www-authenticate"] == "Bearer"
            for word in ("metrics", f"{BASE[1:]}/clients"):
                assert (await http.get(f"/{word}")).status_code == 401
                assert (await http.get(f"/{word}", headers=zero)).status_code == 401
                assert (await http.get(f"/{word}", headers=admin)).status_code == 200
            assert (await http.post(f"{BASE}/versions/0/freeze", headers=zero)).status_code == 401
            named = await http.post(f"{BASE}/infer", json={**ask, "parameters": {"client": 1}}, headers=zero)
            assert named.status_code == 401
            assert front.service.digests() == before
            assert (await http.get("/v2/health/ready")).status_code == 200
            assert (await http.get("/")).status_code == 200
            assert (await http.post(f"{BASE}/versions/0/infer", json=ask, headers=zero)).status_code == 200
            assert (await http.post(f"{BASE}/freeze", headers=admin)).status_code == 200

    asyncio.run(go())


def test_a_server_that_others_can_reach_needs_tokens(tmp_path):
    with pytest.raises(ValueError, match="--host 0.0.0.0 can be reached from other machines; give --tokens"):
        Address(host="0.0.0.0")
    with pytest.raises(ValueError, match="--certificate and --key go together"):
        Address(certificate=tmp_path)
    assert Address(host="::1").loopback and Address(host="localhost").loopback
    with pytest.raises(RunError, match="holds no live model"):
        open_front([tmp_path])

    async def go():
        async with served(tmp_path) as (_, http):
            evil = {"Origin": "http://evil.example"}
            assert (await http.post(f"{BASE}/reset", headers=evil)).status_code == 403
            assert (await http.post(f"{BASE}/reset", headers={"Host": "evil.example"})).status_code == 403

    asyncio.run(go())


def broken(draw: random.Random) -> tuple[str, bytes, dict]:
    """A request that no server should take: path, body, headers."""
    x = stream(0, 2)
    good = body(x, "id")
    one = good["inputs"][0]
    odd = [None, True, -1, 0, 1.5, "x", [], {}, [[]], 10**400, "é" * 300, "\ud800", [1, [2]], {"a": 1}]
    kind = draw.randrange(9)
    if kind == 0:
        one[draw.choice(["shape", "datatype", "data", "name"])] = draw.choice([v for v in odd if v != "x"])
    elif kind == 1:
        good[draw.choice(["id", "inputs"])] = draw.choice([v for v in odd if not isinstance(v, str) or len(v) > 200])
    elif kind == 2:
        one["shape"] = [draw.choice([0, 1, 3, -2, 10**9]), *x.shape[1:]]
    elif kind == 3:
        one["data"] = x.tolist()
        one["data"][0][0][0][0] = draw.choice([256, -1, 0.5, None, "a", 1e400, [], 10**30])
    elif kind == 4:
        one["datatype"], one["data"] = "FP32", [draw.choice([1e39, 1e308, 10**60, "1", None])] * x.numel()
    elif kind == 5:
        one["parameters"] = {"binary_data_size": draw.choice([0, 128, -1, "128", None, True])}
    raw = json.dumps(good).encode()
    headers = {}
    if kind == 6:
        raw = raw[: draw.randrange(len(raw))]
    elif kind == 7:
        raw = draw.choice(
            [b"[" * 100_000, b"NaN", b"\xff\xfe", b"[]", b"1", b'"', bytes(50), raw.replace(b"[0", b"[NaN", 1)]
        )
    elif kind == 8:
        headers["Inference-Header-Content-Length"] = draw.choice(["-1", "x", "9" * 30, "", "²", str(len(raw) - 1), "7"])
        headers = {k: v.encode() for k, v in headers.items()}
    return f"{BASE}/versions/0/infer", raw, headers


def test_malformed_requests_are_refused_and_change_nothing(tmp_path):
    async def go():
        async with served(tmp_path, limits=Limits(body=200_000, samples=4)) as (front, http):
            before, draw = front.service.digests(), random.Random(5)
            for i in range(400):
                path, raw, headers = broken(draw)
                reply = await http.post(path, content=raw, headers=headers)
                assert 400 <= reply.status_code < 500, (i, raw[:200], headers, reply.text)
                assert reply.json()["error"]
            for path, status in [
                (f"{BASE}/versions/9/infer", 404),
                (f"{BASE}/versions/-1/infer", 404),
                (f"{BASE}/versions/a%00b/infer", 404),
                ("/v2/models/other/versions/0/infer", 404),
            ]:
                assert (await http.post(path, json=body(stream(0, 1)))).status_code == status, path
            large = await http.post(f"{BASE}/versions/0/infer", content=b" " * 200_001)
            assert large.status_code == 413
            for word in ({"ids": ["0-0"], "labels": [1]}, {"ids": "0-0"}, {"ids": ["0-0"], "labels": [True]}, [], {}):
                assert (await http.post(f"{BASE}/versions/0/labels", json=word)).status_code == 400
            assert front.service.digests() == before and front.service.requests == 0
            fine = await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 2), "id"))
            assert fine.status_code == 200

    asyncio.run(go())


def features(folder) -> Callable[[], list[Live]]:
    """Makes fresh live models of two clients whose inputs are eight numbers, and not pixels."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(200, 8)).astype(np.float32), draw.integers(0, 2, 200)
    np.savez(folder / "f.npz", x=x, y=y)
    e = ac.Experiment(
        data=ac.data.Arrays(file=str(folder / "f.npz"), clients=2, partition=ac.data.IID()),
        model=ac.models.MLP(hidden=(6,), norm="batch"),
        method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=8)),
        streams=(ac.shifts.Original(),),
        rounds=1,
        backend=ac.backends.Vmap(),
    )
    fit = ac.train(e)
    return lambda: [fit.deploy(c, ac.adapters.Tent(), False, window=8) for c in range(2)]


def test_numbers_that_the_model_has_no_answer_to_are_refused_and_change_nothing(tmp_path):
    """Together with another client's request, which is answered as if it had come alone."""
    fresh = features(tmp_path)
    mine = fresh()
    checkpoint.begin(tmp_path / "server", mine, "f")
    service, alone = Service(Host(mine), tmp_path / "server"), Host(fresh())
    front = Front(service, "f", Rules(), Limits(), None)
    first = next(w for w in mine[0].model["vars"]["params"].values() if w.shape == (6, 8))
    huge, fine = 3.4e38 * first[first.abs().sum(1).argmax()].sign()[None], torch.ones(8, 8)  # its sum is infinite
    before = service.digests()
    answers = service.answer([Ask(0, "a", huge), Ask(1, "b", fine)])
    front.board.step([Ask(0, "a", huge), Ask(1, "b", fine)], answers, 0.1)
    assert not bool(torch.isfinite(answers[0].probabilities).all())
    assert service.digests()[0] == before[0] and (service.steps, service.requests) == (1, 1)
    (same,) = alone([Call(1, fine)])
    assert torch.equal(answers[1].probabilities, same.probabilities) and service.host.digest(1) == alone.digest(1)
    assert front.board.tallies[0].requests == 0 and front.board.tallies[0].entropy is None
    assert front.board.tallies[1].requests == 1 and front.board.tallies[1].entropy > 0
    assert service.answer([Ask(0, "a", fine[:1])])[0].ids == ("0-0",)  # its id and its numbers are free
    after = service.digests()
    service.log.close()
    assert Service(Host(fresh()), tmp_path / "server").digests() == after


def test_a_refusal_names_field_value_and_what_is_allowed(tmp_path):
    async def go():
        async with served(tmp_path) as (_, http):
            bad = body(stream(0, 2))
            bad["inputs"][0]["shape"] = [2, 3]
            text = (await http.post(f"{BASE}/versions/0/infer", json=bad)).json()["error"]
            assert text == "inputs[0].shape: [2, 3] must be [N, 3, 16, 16] with N from 1 to 256"
            text = (await http.post(f"{BASE}/versions/7/infer", json=bad)).json()["error"]
            assert text == "client: '7' must be one of 0, 1, 2, 3"
            about = (await http.get(BASE)).json()
            assert about["versions"] == ["0", "1", "2", "3"]
            assert about["inputs"] == [{"name": "input", "datatype": "UINT8", "shape": [-1, 3, 16, 16]}]
            digest = (await http.get(f"{BASE}/versions/1")).json()["parameters"]["digest"]
            assert digest == Host(lives()).digest(1)
            for path in ("/v2", "/v2/health/live", f"{BASE}/ready", f"{BASE}/versions/1/ready"):
                assert (await http.get(path)).status_code == 200

    asyncio.run(go())


def test_a_lone_request_waits_no_longer_than_its_window(tmp_path):
    async def go():
        async with served(tmp_path, Rules(window_s=0.3)) as (_, http):
            began = time.monotonic()
            await http.post(f"{BASE}/versions/0/infer", json=body(stream(0, 1)))
            assert time.monotonic() - began >= 0.3

    asyncio.run(go())
