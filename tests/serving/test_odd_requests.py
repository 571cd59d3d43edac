"""Requests that an operator or a script gets wrong: each is refused in a sentence, and none does more than it says."""

import asyncio
import json

import pytest
from federation import stream
from test_http import BASE, body, output, served

from acclimate.serving.tokens import Tokens, hashed


def exchanged(folder, *requests, **how):
    """The replies to requests (path, body, headers), one after the other, and the server."""

    async def go():
        async with served(folder, **how) as (front, http):
            replies = []
            for path, content, headers in requests:
                text = content if isinstance(content, str) else json.dumps(content)
                replies.append(await http.post(f"{BASE}/{path}", content=text, headers=headers))
            return replies, front

    return asyncio.run(go())


def test_half_characters_and_endless_texts_are_refused_in_short_replies(tmp_path):
    asked = ("versions/0/infer", body(stream(0, 1), "a"), {})
    long = "x" * 1_000_000
    wrong = [
        ("versions/0/labels", {"ids": ["\ud800"], "labels": [1]}),
        ("versions/0/labels", {"ids": [long], "labels": [1]}),
        ("versions/0/labels", {"ids": ["0-0"], "labels": [long]}),
        ("versions/0/labels", {"ids": ["0-0"], "labels": [10**4000]}),
        ("versions/0/restore", {"step": long}),
        ("restore", {"step": long}),
    ]
    (first, *replies), _ = exchanged(tmp_path, asked, *((path, content, {}) for path, content in wrong))
    assert output(first, "ids")["data"] == ["0-0"]
    assert [r.status_code for r in replies] == [400] * len(wrong)
    assert max(len(r.content) for r in replies) < 200
    assert "must be one of 0, 1, 2" in replies[2].json()["error"]
    assert "? (1 in all) are not among the last" in replies[0].json()["error"]


def test_an_origin_that_is_no_address_is_another_place(tmp_path):
    (reply,), _ = exchanged(tmp_path, ("reset", "", {"Origin": "http://["}))
    assert (reply.status_code, reply.json()["error"]) == (403, "Origin: 'http://[' is another place")


@pytest.mark.parametrize(
    ("path", "content", "takes"),
    [
        ("reset", {"client": 3}, "'client': reset takes no field"),
        ("freeze", {"clients": [3]}, "'clients': freeze takes no field"),
        ("unfreeze", {"steps": {"3": 1}}, "'steps': unfreeze takes no field"),
        ("restore", {"step": 1, "client": 3}, "'client': restore takes step or steps"),
        ("versions/3/restore", {"steps": {"3": 1}}, "'steps': restore takes step"),
    ],
)
def test_who_names_one_client_in_the_body_does_not_change_all(tmp_path, path, content, takes):
    act = path.rpartition("/")[2]
    (reply, right), front = exchanged(tmp_path, (path, content, {}), ("versions/3/reset", "", {}))
    assert reply.status_code == 400
    assert reply.json()["error"] == f"{takes}; one client is named by the path, versions/CLIENT/{act}"
    assert right.json()["clients"] == [{"client": 3, "step": 1, "frozen": False}]
    assert [shell.frozen for shell in front.host.shells] == [False] * 4


def test_a_stranger_does_not_learn_which_clients_there_are(tmp_path):
    tokens = Tokens(hashed("a"), {0: hashed("zero")})

    async def go():
        async with served(tmp_path, tokens=tokens) as (_, http):
            found = {}
            for who, headers in {"stranger": {}, "zero": {"Authorization": "Bearer zero"}}.items():
                asked = [
                    http.get(f"{BASE}/versions/{c}{end}", headers=headers) for c in (0, 9) for end in ("", "/ready")
                ]
                asked += [http.post(f"{BASE}/versions/{c}/labels", headers=headers) for c in (0, 9)]
                found[who] = [(await one).status_code for one in asked]
            return found, (await http.get(f"{BASE}/ready")).status_code

    replies, ready = asyncio.run(go())
    assert replies == {"stranger": [401] * 6, "zero": [200, 200, 404, 404, 400, 404]}
    assert ready == 200  # which a load balancer asks without a token
