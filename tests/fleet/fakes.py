"""A Grid without a network: messages are handed to the real ClientApp in this process, and may be tampered with."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from acclimate import store
from acclimate.backends.flower.engine import Flower
from acclimate.backends.flower.protocol import LINK
from acclimate.experiment import Experiment, dumps
from acclimate.experiment.settings import expand
from acclimate.fleet import server_app
from acclimate.fleet.client_app import app
from acclimate.fleet.link import GridLink
from acclimate.fleet.records import FIELDS
from acclimate.running import run as api

Tamper = Callable[[int, Message, Message], Iterable[Message]]
"""From a node, a request and its honest answer to what the node really sends."""


@dataclass
class FakeGrid(Grid):
    """Nodes 100, 101, ... in one process. Contexts last as long as the object; sites are folders."""

    folder: Path
    nodes: int = 2
    tamper: Tamper = lambda node, request, reply: [reply]
    offline: set[int] = field(default_factory=set)
    away: int = 0
    """How often it is looked who is there before all who are offline come back; 0: they do not."""
    contexts: dict[int, Context] = field(default_factory=dict)
    asked: list[tuple[int, str]] = field(default_factory=list)
    config: str = ""

    def __post_init__(self) -> None:
        self._replies: list[Message] = []
        self._count = 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # what a ServerApp process knows

    def restart(self, node: int) -> None:
        """What a node's process held is gone; its files are not."""
        self.contexts.pop(node, None)

    def context(self, node: int) -> Context:
        number = node - 100
        config = {"node": number, "nodes": self.nodes, "site": str(self.folder / f"site{number}")}
        fresh = Context(run_id=1, node_id=node, node_config=config, state=RecordDict(), run_config={})
        return self.contexts.setdefault(node, fresh)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        self.away -= 1
        if self.away == 0:
            self.offline.clear()
        return [n for n in range(100, 100 + self.nodes) if n not in self.offline]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for m in messages:
            self._count += 1
            m.metadata.__dict__["_message_id"] = name = f"m{self._count}"
            names.append(name)
            node = m.metadata.dst_node_id
            self.asked.append((node, m.metadata.message_type))
            if node not in self.offline:
                self._replies += self.tamper(node, m, app(m, self.context(node)))
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        out, wanted = [r for r in self._replies if r.metadata.reply_to_message_id in set(message_ids)], set(message_ids)
        self._replies = [r for r in self._replies if r.metadata.reply_to_message_id not in wanted]
        return out

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))


def experiment(*settings: str, **backend: Any) -> Experiment:
    """Four clients with real digits, a tiny model, two rounds."""
    base = ["model=mlp", "model.hidden=8", "data.clients=4", "data.fraction=0.3", "data.partition.alpha=5"]
    base += ["rounds=2", "adapters=none", "streams=original", "eval_every=2", "checkpoint_every=1", "device=cpu"]
    (made,) = expand([*base, *settings])
    return replace(made, backend=Flower(**{"deadline": 2.0, "patience": 1.0, **backend}))


@contextlib.contextmanager
def linked(grid: FakeGrid, e: Experiment, run: str = "run") -> Iterator[GridLink]:
    """The state in which a ServerApp's `main` works."""
    link = GridLink(grid, dumps(e), run)
    token = LINK.set(link)
    try:
        yield link
    finally:
        LINK.reset(token)


def run(grid: FakeGrid, e: Experiment, folder: Path) -> dict[str, Any]:
    """What the ServerApp does with a run folder, without its process; the results."""
    if not (folder / "config.json").exists():
        store.RunFolder.create(folder, e, api.device_of("cpu"))
    with linked(grid, e, server_app.identity(folder)) as link:
        api.resume(folder, server_app.ProgressWatch(folder, link, server_app.reporter(folder / server_app.PROGRESS)))
    return store.RunFolder(folder).load()["results"]


def state_of(folder: Path) -> dict[str, Any]:
    """The tensors of a run's last checkpoint by name."""
    return store.read_tensors(folder / "state.safetensors")[1]


def with_fields(reply: Message, **fields: Any) -> Message:
    """A copy of an answer with other fields."""
    other = changed(reply, lambda name, record: record)
    body = json.loads(str(other.content[FIELDS]["json"]))
    body["fields"] |= fields
    other.content[FIELDS] = ConfigRecord({"json": json.dumps(body)})
    return other


def changed(reply: Message, change: Callable[[str, Any], Any]) -> Message:
    """A copy of an answer whose messages are others: `change` gets each client's name and arrays."""
    content = RecordDict()
    for name, record in reply.content.items():
        content[name] = change(name, record) if isinstance(record, ArrayRecord) else record
    other = Message(content, dst_node_id=1, message_type=reply.metadata.message_type)
    other.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return other
