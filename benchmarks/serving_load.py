"""A load for a server of live models: a server process, and clients that speak HTTP over plain sockets."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch

from acclimate.serving.checkpoint import LOG
from acclimate.serving.segments import segments

NAME = "digits"


def cpu_seconds(process: str) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Server:
    """A server process of live folders, with a log in `folder`."""

    def __init__(self, place: Path, *more: str, folder: Path, threads: int = 0) -> None:
        code = "from acclimate.cli.main import main; main()"
        asked = ["serve", str(place), "--name", NAME, "--port", "0", "--folder", str(folder), *more]
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else os.environ
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, "-c", code, *asked], **pipes, env=env)
        assert self.process.stdout is not None and self.process.stderr is not None
        found = re.search(r"at http://127\.0\.0\.1:(\d+)", self.process.stdout.readline())
        if not found:
            raise RuntimeError(f"the server did not start: {self.process.stderr.read()[-2000:]}")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()  # a full pipe would stop it
        self.port, self.folder = int(found[1]), folder

    def kill(self) -> None:
        """As a power cut would for the process."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> dict[int, str]:
        """Stop in order; the digests of all states."""
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGTERM)
        out = self.process.stdout.read()
        assert self.process.wait(timeout=120) == 0
        return {int(c): d for c, d in re.findall(r"client (\d+)  (\w{64})", out)}

    def digests(self, clients: int) -> list[str]:
        """The digests of all states as the server has them now."""
        base = f"http://127.0.0.1:{self.port}/v2/models/{NAME}/versions"
        return [json.load(urlopen(f"{base}/{c}"))["parameters"]["digest"] for c in range(clients)]

    def cpu_seconds(self) -> float:
        """What the process and its threads have computed so far, whatever else the machine did."""
        return cpu_seconds(str(self.process.pid))

    def kilobytes(self) -> int:
        """The memory that the process holds."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1])  # type: ignore[index]


def http(path: str, raw: bytes, header: str = "") -> bytes:
    """A whole HTTP request."""
    top = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(raw)}\r\n"
    return f"{top}{header}\r\n".encode() + raw


def post(client: int | str, raw: bytes, header: str = "") -> bytes:
    """A request of a client, for inference."""
    return http(f"/v2/models/{NAME}/versions/{client}/infer", raw, header)


def infer(client: int, x: torch.Tensor, id: str = "") -> bytes:
    """A request with its samples as raw bytes."""
    data = x.numpy().tobytes()
    about = {
        "name": "input",
        "shape": list(x.shape),
        "datatype": "UINT8",
        "parameters": {"binary_data_size": len(data)},
    }
    text = json.dumps({"id": id, "inputs": [about]}).encode()
    return post(client, text + data, f"Inference-Header-Content-Length: {len(text)}\r\n")


class Connection:
    """One client's connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def open(self) -> Connection:
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def ask(self, raw: bytes) -> tuple[int, bytes]:
        """Send a request; the status and body of the reply."""
        self.writer.write(raw)
        top = await self.reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", top, re.I)[1])  # type: ignore[index]
        return int(top[9:12]), await self.reader.readexactly(length)


Ask = Callable[[int, torch.Tensor], bytes]
"""The whole HTTP request of a client with samples."""


@dataclass
class Measured:
    """What a server did under load, in one or several turns."""

    times: list[float] = field(default_factory=list)
    """Of requests that were sent after the first moments of a turn."""
    took: float = 0.0
    requests: int = 0
    """All of them."""
    cpu: float = 0.0

    def figures(self) -> dict[str, float]:
        """Requests per second, latencies, and what a request costs the server's processes."""
        times = sorted(self.times)
        p50, p99 = (times[min(int(len(times) * q), len(times) - 1)] * 1e3 for q in (0.5, 0.99))
        found = {"requests_per_second": len(times) / self.took, "p50_ms": p50, "p99_ms": p99, "requests": len(times)}
        return {**found, "cpu_ms_per_request": self.cpu / self.requests * 1e3}


TURNS = 5


def in_turns(sides: Mapping[str, tuple[Any, Ask]], clients: int, x: torch.Tensor, seconds: float) -> dict[str, Any]:
    """Figures of several servers, a part of the time each and again, so that what else the machine does hits all."""
    found = {name: Measured() for name in sides}
    for _ in range(TURNS):
        for name, (server, ask) in sides.items():
            load(server, found[name], clients, x, seconds / TURNS, ask)
    return {name: one.figures() for name, one in found.items()}


def load(server: Any, found: Measured, clients: int, x: torch.Tensor, seconds: float, ask: Ask) -> None:
    """Each client sends its next request when it has its answer."""
    before = server.cpu_seconds()

    async def one(client: int, until: float, warm: float) -> None:
        connection, i = await Connection(server.port).open(), client
        while (at := time.perf_counter()) < until:
            status, body = await connection.ask(ask(client, x[i % len(x)][None]))
            assert status == 200, body
            i += 1
            found.requests += 1
            if at > warm:
                found.times.append(time.perf_counter() - at)
        connection.writer.close()

    async def all_of_them() -> float:
        began = time.perf_counter()
        warm = began + seconds * 0.3
        await asyncio.gather(*(one(c, began + seconds * 1.3, warm) for c in range(clients)))
        return time.perf_counter() - warm

    found.took += asyncio.run(all_of_them())
    found.cpu += server.cpu_seconds() - before


def malformed(place: Path, x: torch.Tensor, count: int) -> dict[str, Any]:
    """Requests that must be refused: the replies by status, and whether a state changed."""
    server, statuses = Server(place, folder=place.parent / "malformed"), {}
    before, began = server.digests(4), time.perf_counter()

    async def one(seed: int, many: int) -> None:
        draw, connection = random.Random(seed), await Connection(server.port).open()
        for _ in range(many):
            try:
                status, _ = await connection.ask(broken(draw, x))
            except (OSError, EOFError, asyncio.IncompleteReadError):  # the server may hang up on what is no HTTP
                status, connection = 0, await Connection(server.port).open()
            statuses[status] = statuses.get(status, 0) + 1

    async def all_of_them() -> None:
        await asyncio.gather(*(one(seed, count // 8) for seed in range(8)))

    asyncio.run(all_of_them())
    found = {"requests": sum(statuses.values()), "statuses": {str(k): v for k, v in sorted(statuses.items())}}
    changed = sum(a != b for a, b in zip(before, server.digests(4), strict=True))
    server.stop()
    return {**found, "changed_states": changed, "seconds": round(time.perf_counter() - began, 1)}


ODD: list[Any] = [None, True, -1, 0, 1.5, [], {}, [[]], 10**400, "é" * 300, "\ud800", [1, [2]], {"a": 1}, 1e39]


def broken(draw: random.Random, x: torch.Tensor) -> bytes:
    """A request in which something is wrong that no server may take."""
    some = x[:2]
    one: dict[str, Any] = {
        "name": "input",
        "shape": list(some.shape),
        "datatype": "UINT8",
        "data": some.flatten().tolist(),
    }
    body: dict[str, Any] = {"id": f"m{draw.random()}", "inputs": [one]}
    kind = draw.randrange(8)
    if kind == 0:
        one[draw.choice(["shape", "datatype", "data"])] = draw.choice(ODD)
    elif kind == 1:
        body["inputs"] = draw.choice(ODD)
    elif kind == 2:
        one["shape"] = [draw.choice([0, 1, 3, -2, 10**9]), *one["shape"][1:]]
    elif kind == 3:
        one["data"][draw.randrange(len(one["data"]))] = draw.choice([256, -1, 0.5, None, "a", [], 10**30])
    elif kind == 4:
        one["parameters"] = {"binary_data_size": draw.choice([0, -1, "128", None, True, 10**9])}
    raw, header, client = json.dumps(body).encode(), "", "0"
    if kind == 5:
        raw = raw[: draw.randrange(1, len(raw) - 1)]
    elif kind == 6:
        client = draw.choice(["4", "-1", "x", "%00", "0x0", "9" * 50])
    elif kind == 7:
        header = f"Inference-Header-Content-Length: {draw.choice(['-1', 'x', '9' * 30, str(len(raw) - 1), '7'])}\r\n"
    return post(client, raw, header)


def memory(place: Path, x: torch.Tensor, count: int, each: int = 250) -> dict[str, Any]:
    """The server's memory after 1,000 samples of one client and after so many; log and checkpoints as by default."""
    server, held = Server(place, folder=place.parent / "memory"), {}
    began = time.perf_counter()

    async def send() -> None:
        connection, sent = await Connection(server.port).open(), 0
        many = x.repeat(1 + each // len(x), 1, 1, 1)[:each]
        while sent < count:
            now = many[: min(each, count - sent)]
            status, body = await connection.ask(infer(0, now, f"r{sent}"))
            assert status == 200, body
            sent += len(now)
            if sent in (1_000, 10_000, 100_000, 200_000, 500_000) or sent == count:
                held[str(sent)] = server.kilobytes()

    asyncio.run(send())
    found = segments(server.folder / LOG)
    written = {"log_bytes": sum(s.size for s in found), "log_segments": len(found)}
    server.stop()
    asked = {"samples": count, "samples_per_request": each, "seconds": round(time.perf_counter() - began, 1)}
    return {**asked, "resident_kb_after": held, **written}
