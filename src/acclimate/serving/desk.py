"""Where requests wait: one queue per client, one writer, and steps that take one request of each client."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from ..live import Answer
from ..store import RunError
from .ledger import Conflict
from .protocol import Denied
from .records import Ask
from .service import Service

log = logging.getLogger("acclimate.serving")


@dataclass(frozen=True)
class Rules:
    """How requests wait."""

    window_s: float = 0.002
    """How long a request waits for those of other clients."""
    queue: int = 8
    """Requests of one client that may wait."""
    total: int = 1024
    """Requests of all clients that may wait."""
    group: int = 1 << 20
    """Clients in one step, at most."""


@dataclass
class Waiting:
    """A request that waits, and who waits for its answer."""

    ask: Ask
    since: float
    done: asyncio.Future[Answer]


class Desk:
    """Takes requests, one after the other of each client; the service is only ever touched by its one thread."""

    def __init__(self, service: Service, rules: Rules, watch: Callable[[list[Ask], list[Answer], float], None]) -> None:
        self.service, self.rules, self.watch = service, rules, watch
        self.queues: dict[int, deque[Waiting]] = {}
        """Clients whose requests wait, the one that waits for longest first."""
        self.waiting = 0
        self.pending: dict[tuple[int, str], Waiting] = {}
        """Requests with an id that have no answer yet, by client and id."""
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="writer")
        self.closing = False
        self._wake = asyncio.Event()

    async def ask(self, ask: Ask) -> Answer:
        """The answer to a request; `Denied` with 429 where too many wait already."""
        if (old := await self._again(ask)) is not None:
            return old
        if (before := self.pending.get((ask.client, ask.id))) is not None:
            if not torch.equal(before.ask.x, ask.x):
                raise Conflict(ask.id)
            return await asyncio.shield(before.done)
        if self.closing:
            raise Denied(503, "the server stops")
        mine = self.queues.get(ask.client)
        if self.waiting >= self.rules.total or (mine is not None and len(mine) >= self.rules.queue):
            mine_wait = len(mine or ())
            raise Denied(429, f"{mine_wait} requests of client {ask.client} and {self.waiting} in all wait; try later")
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = Waiting(ask, time.monotonic(), done)
        self.queues.setdefault(ask.client, deque()).append(waiting)
        self.waiting += 1
        if ask.id:
            self.pending[ask.client, ask.id] = waiting
        self._wake.set()
        return await asyncio.shield(done)

    async def _again(self, ask: Ask) -> Answer | None:
        """The answer that this request had, where it came before; the log is read by its one writer, which deletes."""
        if (ask.client, ask.id) not in self.service.ledger.known:
            return None
        found: Answer | None = await self.do(self.service.ledger.again, ask)
        return found

    async def do(self, f: Callable[..., Any], *given: Any) -> Any:
        """Run something on the service, between two steps."""
        return await asyncio.get_running_loop().run_in_executor(self.thread, f, *given)

    async def run(self) -> None:
        """Answer what waits until `closing` and nothing does."""
        while not (self.closing and not self.waiting):
            self._wake.clear()
            if not self.waiting:
                await self._wake.wait()
                continue
            await self._collect()
            batch = self._batch()
            asks, began = [w.ask for w in batch], time.perf_counter()
            results = await self._answered(asks)
            for w, result in zip(batch, results, strict=True):
                self._finish(w, result)
            done = [(ask, r) for ask, r in zip(asks, results, strict=True) if not isinstance(r, Exception)]
            try:
                if done:
                    self.watch([a for a, _ in done], [r for _, r in done], time.perf_counter() - began)
            except Exception:  # counting must not end the one writer, for which all would then wait
                log.exception("unexpected")

    async def _answered(self, asks: list[Ask]) -> list[Answer | Exception]:
        """The answers of a step; where it fails, each request alone, so that one does not take others with it."""
        try:
            return list(await self.do(self.service.answer, asks))
        except Exception as e:
            if len(asks) == 1 or isinstance(e, RunError):  # a full disk is the same for all
                return [e] * len(asks)
        return [(await self._answered([ask]))[0] for ask in asks]

    def stop(self) -> None:
        """Take no more requests; `run` ends when those that wait are answered."""
        self.closing = True
        self._wake.set()

    async def _collect(self) -> None:
        """Wait until the oldest request has waited for its time, or every client has one here."""
        most = min(len(self.service.host.shells), self.rules.group)
        while len(self.queues) < most and not self.closing:
            oldest = next(iter(self.queues.values()))[0].since
            left = oldest + self.rules.window_s - time.monotonic()
            if left <= 0:
                return
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                return

    def _batch(self) -> list[Waiting]:
        """The oldest request of each client, in the order of clients' numbers."""
        chosen = list(self.queues)[: self.rules.group]
        batch = []
        for client in chosen:
            queue = self.queues.pop(client)
            batch.append(queue.popleft())
            if queue:
                self.queues[client] = queue
        self.waiting -= len(batch)
        return sorted(batch, key=lambda w: w.ask.client)

    def _finish(self, w: Waiting, result: Answer | Exception) -> None:
        if w.ask.id:
            self.pending.pop((w.ask.client, w.ask.id), None)
        if w.done.cancelled():
            return
        if isinstance(result, Exception):
            w.done.set_exception(result)
            w.done.exception()  # nobody may wait for it any more
        else:
            w.done.set_result(result)
