"""The server's link to its nodes over Flower's Grid: it pushes requests, and polls for answers until the time is up."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ..backends.flower.protocol import NodeAnswer, Request, Version, brief, version_conflict
from ..core import Fault, Tree
from ..experiment import encode
from .records import pack, parcels, size, version_of
from .registry import Registry

POLL_SECONDS = 0.2
LOOK_SECONDS = 5.0
"""How often a waiting server looks whether the nodes that it waits for are still connected."""
GONE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Errors that the SuperLink reports instead of a node that went away."""
log = logging.getLogger("flwr")


class GridLink:
    """A `Link` over a Grid. Messages expire with their deadline, so that a late node does not work for nothing."""

    def __init__(self, grid: Grid, config: str, run: str, registry: Registry | None = None) -> None:
        self.grid, self.run, self.registry = grid, run, registry
        self.refused: list[Fault] = []
        self.barred: dict[int, str] = {}
        self.experiment = json.loads(config)
        self.keep: Sequence[Tree] = ()
        self.stream_names: Mapping[str, str] = {}
        self.sent = self.received = self.exchanges = 0
        """Bytes of records that were sent and received, and the number of exchanges, so far."""

    def owned(self, node: int, clients: int) -> list[int] | None:
        return None if self.registry is None else self.registry.owned(node, clients)

    def bar(self, client: int, reason: str) -> None:
        self.barred[client] = brief(reason)
        self.refused.append(Fault(0, client, "error", brief(reason)))
        self.log(f"client {client} takes no part in the run: {brief(reason)}")

    def nodes(self) -> list[int]:
        return list(self.grid.get_node_ids())

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def log(self, text: str) -> None:
        log.warning(text)

    def exchange(self, requests: Sequence[Request], seconds: float, group: str) -> list[NodeAnswer]:
        if not requests:
            return []
        messages = [self._message(request, seconds, group) for request in requests]
        names = list(self.grid.push_messages(messages))
        # no name: the SuperLink did not take the message, because its node is gone
        waiting = {name: request.node for name, request in zip(names, requests, strict=False) if name}
        self.exchanges += 1
        end = time.monotonic() + seconds
        look = time.monotonic() + LOOK_SECONDS
        answers, over = [], False
        while waiting and not over:
            over = time.monotonic() >= end  # a server that was held up itself still takes what has come
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers.append(self._answer(node, reply))
            if waiting and time.monotonic() > look:
                there = set(self.nodes())
                waiting = {m: n for m, n in waiting.items() if n in there}
                look = time.monotonic() + LOOK_SECONDS
            if waiting and not over:
                time.sleep(POLL_SECONDS)
        return answers

    def _message(self, request: Request, seconds: float, group: str) -> Message:
        fields: dict[str, Any] = {**_plain(request.fields), "run": self.run, "experiment": self.experiment}
        content = pack(request.trees, fields)
        self.sent += size(content)
        return Message(content, dst_node_id=request.node, message_type=request.kind, ttl=seconds, group_id=group)

    def _answer(self, node: int, reply: Message) -> NodeAnswer:
        if reply.has_error():
            kind = "lost" if reply.error.code in GONE else "error"
            return NodeAnswer(node, {}, {}, brief(str(reply.error.reason or f"error {reply.error.code}")), kind)
        self.received += size(reply.content)
        if conflict := version_conflict(server=Version(), node=version_of(reply.content)):
            return NodeAnswer(node, {}, {}, conflict)
        try:
            return NodeAnswer(node, *parcels(reply.content))
        except ValueError as e:
            return NodeAnswer(node, {}, {}, brief(str(e)))


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request as JSON: records become their configuration."""
    return {k: v if isinstance(v, dict) else encode(v) for k, v in fields.items()}
