"""Connections on which no request comes: uvicorn keeps them for ever, and a process has only so many files."""

import asyncio
from types import SimpleNamespace

import uvicorn
from federation import lives

from acclimate.serving import checkpoint
from acclimate.serving.app import Front, Limits
from acclimate.serving.host import Host
from acclimate.serving.run import _Server, still_silent
from acclimate.serving.service import Service


class Connection:
    """What uvicorn has of one: the last request on it, if any."""

    def __init__(self, done=None):
        self.cycle = None if done is None else SimpleNamespace(response_complete=done)


def test_a_connection_is_silent_since_its_last_request_was_answered():
    new, busy, idle = Connection(), Connection(done=False), Connection(done=True)
    first = still_silent([new, busy, idle], {}, 10.0)
    assert first == {new: (None, 10.0), idle: (idle.cycle, 10.0)}
    busy.cycle.response_complete = True
    idle.cycle = SimpleNamespace(response_complete=True)  # another request came and was answered in between
    assert still_silent([new, busy, idle], first, 25.0) == {
        new: (None, 10.0),
        busy: (busy.cycle, 25.0),
        idle: (idle.cycle, 25.0),
    }
    assert still_silent([], first, 30.0) == {}


def test_a_server_closes_connections_that_send_half_a_head(tmp_path):
    checkpoint.begin(tmp_path, lives(), "digits")
    front = Front(Service(Host(lives()), tmp_path), "digits", limits=Limits(seconds=0.0))
    server = _Server(uvicorn.Config(front.application(), port=0, log_config=None, ws="none"), front)

    async def go():
        running = asyncio.create_task(server.serve())
        while not server.started:
            assert not running.done(), await running
            await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /v2 HTTP/1.1\r\nHost: local")
        ended = await reader.read()  # for ever, where the server keeps it
        writer.close()
        server.should_exit = True
        await running
        return ended

    assert asyncio.run(go()) == b""
