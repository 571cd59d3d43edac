"""Where clients run: backends as records, and the engines they open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .adapter import Adapter
from .lanes import Lanes
from .message import Partial
from .personal import Personalizer
from .private import Private, private
from .shards import Holdings, Shards
from .stream import Protocol
from .task import Task
from .tree import Tree
from .worker import Worker


class NonFinite(ArithmeticError):
    """A client sent or kept a value that is not finite; names the clients, the round, and of several seeds which."""

    def __init__(self, clients: list[int], round: int, seeds: tuple[int, ...] = ()) -> None:
        self.clients, self.round, self.seeds = clients, round, seeds
        who = ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
        where = f" with seed(s) {', '.join(map(str, seeds))}" if seeds else ""
        super().__init__(
            f"round {round}: client(s) {who}{where} produced values that are not finite; "
            "lower the learning rate, set method.work.clip, or look at that client's data"
        )


class Fault(NamedTuple):
    """A client whose message did not count in a round, or that is not in a test, and why. The rest went on."""

    round: int
    client: int
    kind: str
    """A word to count by: `lost`, `late`, `nonfinite`, `shape`, `groups`, `oversize`, `stale`, `duplicate`, `range`,
    `norm`, `flood`, `identity`, `suspended`, `round`, `error`."""
    reason: str


class Reply(NamedTuple):
    """A cohort's round: the partially reduced messages and what one client's message is made of."""

    part: Partial
    """The messages that counted, combined; `part.clients` says whose they are."""
    up: Tree
    """One client's message with no data (meta tensors): names, shapes, types and so bytes."""
    faults: tuple[Fault, ...] = ()
    """Those of the cohort who are not in `part`. Engines of one process never lose anyone."""


Attempt = Callable[[Reply, Callable[[Tree], None] | None], Tree]
"""The server's new state from a reply; a function may be given that looks at the combined messages first."""


class CannotCalibrate(ValueError):
    """An engine that cannot bring validation examples and models together, with the reason."""


class Engine(ABC):
    """Runs clients on some hardware; the only owner of their private state and of their data.

    An engine runs one training. One that has several `lanes` runs as many side by side: `deploy`, `join` and `serve`
    then get and give what `Lanes` makes of the values of all.
    """

    lanes = Lanes()
    _mine: Private
    intake: Tree = {}  # noqa: RUF012 - nobody writes into a tree
    """What the engine remembers of messages, for the loop's state and for checkpoints. Most remember nothing."""

    def __init__(self, worker: Worker, train: Holdings, device: torch.device) -> None:
        self.worker, self.device = worker, device
        if device.type == "cuda":
            torch.backends.cudnn.deterministic = True  # the same seed gives the same bits
        self.shards = train.to(device)

    @property
    def mine(self) -> Private:
        """Every client's private state: for the loop's state and for checkpoints."""
        return self._mine

    @mine.setter
    def mine(self, value: Any) -> None:
        self._mine = private(value)

    @property
    def architectures(self) -> Sequence[Worker]:
        """The client half of each architecture: one, unless clients have several."""
        return (self.worker,)

    @property
    def tasks(self) -> list[Task]:
        """The model of every architecture."""
        return [worker.task for worker in self.architectures]

    def worker_of(self, client: int) -> Worker:
        """The client half of one client; newcomers are numbered after those that train."""
        return self.worker

    def expect(self, cohort: Tensor) -> None:
        """Who takes part in the next round: an engine may send ahead what they need."""

    def train_lanes(self, downs: Sequence[Tree], cohorts: Sequence[Tensor], round: int) -> list[Reply]:
        """One round of every lane. An engine may raise `NonFinite` later: in `settle`, or when `mine` is asked for."""
        return [self.train(downs[0], cohorts[0], round)]

    def silence(self, down: Tree, round: int) -> Reply | None:
        """The reply of a round for which nobody was drawn; None where the form of messages is known from clients alone.

        Who asks for it has no lanes.
        """
        return None

    @abstractmethod
    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """One round of the cohort's clients. Raises `NonFinite` before any private state is changed."""

    @abstractmethod
    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> Any:
        """Every client's live model after personalisation: a handle for `serve`."""

    @abstractmethod
    def model_of(self, models: Any, client: int) -> Tree:
        """One client's live model out of the handle that `deploy` gave."""

    def calibrated(self, models: Any, held: Shards, adapter: Adapter) -> Any:
        """The same handle for `serve`, where every client's model has what `adapter` must know of its labelled
        validation examples `held` (`reference`)."""
        raise CannotCalibrate(
            f"{type(adapter).__name__} needs validation examples beside the models, and this backend has them elsewhere"
        )

    @abstractmethod
    def join(self, down: Tree, newcomers: int) -> Any:
        """Live models of clients that were not there for training: a handle for `serve`. They have no labels."""

    def gather(self, tests: Sequence[Shards]) -> Shards:
        """The streams of all lanes as one, for `serve`, which may be called often."""
        return tests[0]

    @abstractmethod
    def serve(self, models: Any, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        """Adapt every client's model on its test stream and score it: metrics [clients], on the CPU.

        Where asked, `trace` is there besides: what the adapter's `trace` tells per sample, each [clients, size, ...],
        `size` being the longest stream. Rows beyond a client's own number mean nothing. Where clients exchange,
        `exchanged` has the bytes that each sent and got, and there are no traces (`core.exchange`).
        """

    def settle(self, reply: Reply, server: Tree, attempt: Attempt) -> tuple[Tree, Reply]:
        """The server's new state, from `server`, and the reply that it is made of.

        An engine that hears of clients by a network may leave out those whose messages the server cannot use.
        """
        return attempt(reply, None), reply

    def missed(self) -> tuple[Fault, ...]:
        """Clients that were left out since the last round's `Reply`, of tests for example; each is reported once."""
        return ()

    def close(self) -> None:
        """Give back what the engine holds."""


@dataclass(frozen=True)
class Backend(ABC):
    """Where clients run, as a record: `open` makes the engine."""

    def conducted(self) -> str | None:
        """Where another process finishes the runs of this backend: `module:function` of a run folder and a watch.

        None: they are finished in this process.
        """
        return None

    @abstractmethod
    def open(self, worker: Worker, train: Shards, device: torch.device) -> Engine:
        """An engine that holds the clients' data and fresh private state."""
