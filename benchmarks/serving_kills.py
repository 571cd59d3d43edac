"""Restarts of a server under load: real processes that are killed, and services that end at random moments of a step.

Each client sends one sample after the other, each with an id, and sends it again until it has an answer. The answer
names the sample's place in the client's stream: a place that is too low is a commit that was lost, one that is too high
a step that was done twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from serving_load import Connection, Server, infer

from acclimate.live import Answer, Live
from acclimate.serving import checkpoint
from acclimate.serving.desk import Desk, Rules
from acclimate.serving.host import Host
from acclimate.serving.log import packed
from acclimate.serving.records import Ask
from acclimate.serving.replay import replay
from acclimate.serving.service import Keeping, Service

LIMIT = 60.0
"""Seconds after which a request that has no answer hangs."""
MOMENTS = ("before the record", "within the record", "after the record", "after the step", "within a rotation")


class Killed(Exception):
    """The service has ended."""


class Mortal(Service):
    """A service that ends at a moment of its step number `last`: what it leaves is what a kill there would."""

    last, moment, dead = 1 << 62, "", False

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        if self.dead or (self.steps + 1 >= self.last and self.moment == MOMENTS[0]):
            self._die()
        answers = super().answer(asks)
        if self.steps >= self.last:
            self._die()
        return answers

    def _die(self) -> None:
        self.dead = True
        raise Killed

    def begin(self, draw: random.Random) -> None:
        """From now on: draw when to end."""
        self.last, self.moment = draw.randint(2, 20), draw.choice(MOMENTS)
        tear = random.Random(
            draw.getrandbits(32)
        )  # how often it draws depends on who asks together, and so on the clock
        append, rotate = self.log.append, self.log.rotate

        def torn(head: dict[str, Any], tensors: Any = None) -> int:
            if self.steps + 1 < self.last or head["kind"] != "step":
                return append(head, tensors)
            if self.moment == MOMENTS[1]:
                whole, _ = packed(head, tensors or {}, self.log.digest)
                os.write(self.log.file, whole[: tear.randrange(1, len(whole))])
            else:
                append(head, tensors)
            self._die()
            raise AssertionError

        def no_segment() -> None:
            if tear.random() < 0.5:
                rotate()
            self._die()

        if self.moment in MOMENTS[1:3]:
            self.log.append = torn  # type: ignore[method-assign,assignment]
        elif self.moment == MOMENTS[4]:
            self.keeping, self._most = Keeping(segment=1), 1
            self.log.rotate = no_segment  # type: ignore[method-assign]


class Tally:
    """What the clients saw."""

    def __init__(self, clients: int) -> None:
        self.answered = [0] * clients
        self.found: Counter[str] = Counter()

    def take(self, client: int, ids: Sequence[str]) -> None:
        """An answer's places."""
        want, got = self.answered[client], int(ids[0].rpartition("-")[2])
        self.found["lost"] += got < want
        self.found["doubled"] += got > want
        self.answered[client] += 1

    def record(self, folder: Path, kills: int, digests: dict[int, str], began: float) -> dict[str, Any]:
        """What came of it, and whether a replay of the log ends with the same bits."""
        done, requests = replay(folder), sum(self.answered)
        return {
            "kills": kills,
            "requests": requests,
            "lost_commits": self.found["lost"] + max(requests - done.requests, 0),
            "double_steps": self.found["doubled"] + max(done.requests - requests, 0),
            "hangs": self.found["hung"],
            "refused": self.found["refused"],
            "same_bits": done.exact and done.digests == digests,
            "seconds": round(time.perf_counter() - began, 1),
        }


def told(done: int, count: int, began: float) -> None:
    """A line of progress every twentieth."""
    if done and done % max(count // 20, 1) == 0:
        print(f"{done} of {count} restarts, {time.perf_counter() - began:.0f} s", flush=True)


def within(lives: list[Live], x: torch.Tensor, folder: Path, count: int) -> dict[str, Any]:
    """End the service in this process so often, and open its folder again by the same code as a server's start."""
    checkpoint.begin(folder, lives, "digits")
    return asyncio.run(_Within(lives, x, folder).run(count))


class _Within:
    def __init__(self, lives: list[Live], x: torch.Tensor, folder: Path) -> None:
        self.lives, self.x, self.folder = lives, x, folder
        self.tally, self.draw, self.moments = Tally(len(lives)), random.Random(0), Counter[str]()
        self.over = False
        self.open()

    def open(self) -> None:
        """A service and its desk, as the folder says."""
        fresh = [replace(live, recent=OrderedDict(), labelled=[0, 0, 0]) for live in self.lives]
        host = Host(fresh)
        self.service = Mortal(host, self.folder, Keeping(checkpoint_s=0.5, segment=1 << 20, remember=200))
        self.desk = Desk(self.service, Rules(window_s=0.001), lambda *_: None)

    async def run(self, count: int) -> dict[str, Any]:
        """Restart so often under load."""
        began, clients = time.perf_counter(), range(len(self.lives))
        self.running = asyncio.ensure_future(self.desk.run())
        load = [asyncio.ensure_future(self.client(c)) for c in clients]
        recoveries = []
        for i in range(count):
            told(i, count, began)
            self.service.begin(self.draw)
            self.moments[self.service.moment] += 1
            until = time.perf_counter() + LIMIT
            while not self.service.dead and time.perf_counter() < until:
                await asyncio.sleep(0.001)
            self.tally.found["hung"] += not self.service.dead
            recoveries.append(await self.restart())
        self.over = True
        await asyncio.gather(*load)
        self.desk.stop()
        await self.running
        digests = self.service.close()
        found = self.tally.record(self.folder, count, digests, began)
        return {**found, "median_recovery_ms": statistics.median(recoveries) * 1e3, "moments": dict(self.moments)}

    async def restart(self) -> float:
        """Leave the service as it is, as a kill would, and open its folder again; the seconds of that."""
        old = self.desk
        self.service.dead = True
        while old.waiting or old.pending:
            await asyncio.sleep(0.001)
        self.running.cancel()
        old.thread.shutdown()
        self.service.log.close()  # what the kernel does for a process that is gone: the lock
        at = time.perf_counter()
        self.open()
        took = time.perf_counter() - at
        self.running = asyncio.ensure_future(self.desk.run())
        return took

    async def client(self, number: int) -> None:
        """Ask, and ask again what has no answer."""
        i = -1
        while not (self.over and self.tally.answered[number] > i):  # what was begun is asked until it is answered
            i = self.tally.answered[number]
            ask = Ask(number, f"r{i}", self.x[i % len(self.x)][None])
            try:
                answer = await asyncio.wait_for(self.ask(ask), LIMIT)
            except TimeoutError:
                self.tally.found["hung"] += 1
                continue
            except Killed:
                await asyncio.sleep(0.001)
                continue
            self.tally.take(number, answer.ids)

    async def ask(self, ask: Ask) -> Answer:
        """Ask the desk that is there when this runs: `wait_for` begins it later, when the service may be gone."""
        return await self.desk.ask(ask)


def processes(place: Path, x: torch.Tensor, count: int, clients: int = 4) -> dict[str, Any]:
    """Kill a server process (SIGKILL) so often."""
    return asyncio.run(_Processes(place, x, clients).run(count))


class _Processes:
    def __init__(self, place: Path, x: torch.Tensor, clients: int) -> None:
        self.place, self.x, self.folder = place, x, place.parent / "killed"
        self.tally, self.starts, self.over = Tally(clients), [], False
        self.server = self.start()

    def start(self) -> Server:
        """A server process; the seconds until it listens are kept."""
        at = time.perf_counter()
        server = Server(self.place, folder=self.folder)
        self.starts.append(time.perf_counter() - at)
        return server

    async def run(self, count: int) -> dict[str, Any]:
        """Kill so often under load."""
        began, draw = time.perf_counter(), random.Random(0)
        load = [asyncio.ensure_future(self.client(c)) for c in range(len(self.tally.answered))]
        for i in range(count):
            told(i, count, began)
            target, until = sum(self.tally.answered) + draw.randint(1, 60), time.perf_counter() + LIMIT
            while sum(self.tally.answered) < target and time.perf_counter() < until:
                await asyncio.sleep(0.001)
            self.tally.found["hung"] += sum(self.tally.answered) < target
            self.server.kill()
            self.server = await asyncio.to_thread(self.start)
        self.over = True
        await asyncio.gather(*load)
        found = self.tally.record(self.folder, count, self.server.stop(), began)
        return {**found, "median_start_seconds": round(statistics.median(self.starts), 2)}

    async def client(self, number: int) -> None:
        """Ask whichever process there is, and ask again what has no answer."""
        connection: Connection | None = None
        i = -1
        while not (self.over and self.tally.answered[number] > i):
            i = self.tally.answered[number]
            raw = infer(number, self.x[i % len(self.x)][None], f"r{i}")
            try:
                connection = connection or await Connection(self.server.port).open()
                status, body = await asyncio.wait_for(connection.ask(raw), LIMIT)
            except TimeoutError:
                self.tally.found["hung"] += 1
                connection = None
                continue
            except (OSError, EOFError):
                connection = None
                await asyncio.sleep(0.01)
                continue
            if status != 200:
                self.tally.found["refused"] += 1
                continue
            outputs = json.loads(body)["outputs"]
            self.tally.take(number, next(o for o in outputs if o["name"] == "ids")["data"])
