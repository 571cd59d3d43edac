"""The server's link to its nodes over Flower's Grid: push, poll until all have answered or the time is up."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from ..backends.flower.nodes import Answer, Ask
from ..backends.flower.protocol import brief
from ..core import Tree
from ..experiment import encode
from .records import pack, parcels, size

POLL_SECONDS = 0.2
LOOK_SECONDS = 5.0
"""How often a waiting server looks whether those it waits for are still connected."""
GONE = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
"""Errors that the SuperLink reports in the place of a node that went away."""
log = logging.getLogger("flwr")


class GridLink:
    """A `Link` over a Grid. Messages expire with their deadline, so that a late node does not work for nothing."""

    def __init__(self, grid: Grid, config: str, run: str) -> None:
        self.grid, self.run = grid, run
        self.experiment = json.loads(config)
        self.keep: Sequence[Tree] = ()
        self.names: Mapping[str, str] = {}
        self.sent = self.received = self.exchanges = 0
        """Bytes of records and number of exchanges so far."""

    def nodes(self) -> list[int]:
        return list(self.grid.get_node_ids())

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def say(self, text: str) -> None:
        log.warning(text)

    def exchange(self, asks: Sequence[Ask], seconds: float, group: str) -> list[Answer]:
        if not asks:
            return []
        messages = [self._message(ask, seconds, group) for ask in asks]
        names = list(self.grid.push_messages(messages))
        # no name: the SuperLink did not take the message, because its node is gone
        waiting = {name: ask.node for name, ask in zip(names, asks, strict=False) if name}
        self.exchanges += 1
        end = time.monotonic() + seconds
        look = time.monotonic() + LOOK_SECONDS
        answers = []
        while waiting and time.monotonic() < end:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id, None)
                if node is not None:
                    answers.append(self._answer(node, reply))
            if waiting and time.monotonic() > look:
                there = set(self.nodes())
                waiting = {m: n for m, n in waiting.items() if n in there}
                look = time.monotonic() + LOOK_SECONDS
            if waiting:
                time.sleep(POLL_SECONDS)
        return answers

    def _message(self, ask: Ask, seconds: float, group: str) -> Message:
        words: dict[str, Any] = {**_plain(ask.words), "run": self.run, "experiment": self.experiment}
        content = pack(ask.trees, words)
        self.sent += size(content)
        return Message(content, dst_node_id=ask.node, message_type=ask.kind, ttl=seconds, group_id=group)

    def _answer(self, node: int, reply: Message) -> Answer:
        if reply.has_error():
            kind = "lost" if reply.error.code in GONE else "error"
            return Answer(node, {}, {}, brief(str(reply.error.reason or f"error {reply.error.code}")), kind)
        self.received += size(reply.content)
        try:
            return Answer(node, *parcels(reply.content))
        except ValueError as e:
            return Answer(node, {}, {}, brief(str(e)))


def _plain(words: Mapping[str, Any]) -> dict[str, Any]:
    """What a request says, as JSON: records become their configuration."""
    return {k: v if isinstance(v, dict) else encode(v) for k, v in words.items()}
