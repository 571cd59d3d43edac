"""The base records of federated training methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor

from . import check, rng, tree
from .adapter import Adapter
from .limits import COMMON, Limits
from .message import Mean, Rules, Sum
from .task import Mode, Out, Task
from .tree import Tree


@dataclass(frozen=True)
class Method:
    """A federated training method: fields are hyper-parameters, functions are pure, state is a tree.

    Both halves of a method live in one record. `client` is the only function that must be written; the defaults are
    those of a method that averages model differences.
    """

    several_models: ClassVar[bool] = False
    """Whether clients may have models of different architectures: messages and server state do not depend on them.

    Clients then keep their whole model as private state. The server's functions get the task of one client, and may use
    of it what all tasks have in common: classes, input shape and public set.
    """
    downlink: ClassVar[tuple[str, ...]] = ("vars",)
    """The parts of its state that the server sends."""
    added: ClassVar[Mapping[str, float]] = {}
    """Parts of the server's state that earlier versions of this method did not have, each with the number that fills it
    where a checkpoint lacks it: with that number the method computes what it computed then."""

    @property
    def uplink(self) -> Rules:
        """What a client sends, group by group, and how the server may combine it."""
        return {"delta": Mean("n"), "n": Sum()}

    @property
    def trains_for(self) -> Sequence[str | Adapter]:
        """The adapters that the models are made for, as names of the catalogue or as records: they are tested too where
        an experiment names no adapters, and one that cannot serve the model says what it lacks."""
        return ()

    @property
    def limits(self) -> Limits:
        """The range of every group that is a claim: a weight, a count, a share, a loss. The rest are updates.

        A group that a message does not have is no matter.
        """
        return COMMON

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        """The server's state before the first round of a federation of `clients`."""
        return {"vars": task.init(key)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        """The private state `mine` that every client has before its first round: never sent.

        `key` is the one that `init_server` got, so that a client can start from the server's own initial model.
        """
        return {}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        """One client's private state before its first round, for methods whose clients do not all start alike: fold
        `client` into the key for what must differ between them."""
        return self.init_mine(task, key)

    def download(self, task: Task, server: Tree) -> Tree:
        """What the server sends to every client of the cohort: the parts of its state that `downlink` names."""
        return tree.pick(server, self.downlink)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        """One client's round: its message (as `uplink` says) and its new private state."""
        raise TypeError(f"{type(self).__name__} must define client(task, down, mine, data, key)")

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        """The server's new state from the combined messages."""
        return {**server, "vars": tree.add(server["vars"], total["delta"])}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        """What a client does with its labelled data when the last model has arrived, before it goes live.

        Its private state was made for the model of the round before; methods with a personal phase run it once more.
        `data["round"]` is 0 whenever this runs, so that schedules that count rounds start anew.
        """
        return mine

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        """Exactly what a client holds when it goes live: at least `vars`."""
        return {"vars": down["vars"]}

    def for_model(self, number: int) -> Method:
        """The record of the clients that have the federation's architecture `number`, where there are several."""
        return self

    def welcome(self, task: Task, down: Tree, mine: Tree, key: rng.Key) -> Tree:
        """What a client that joins after training makes of a fresh private state, before it goes live: no labels."""
        return mine

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        """The deployed model's outputs."""
        return task.apply(model["vars"], x, mode, key)


@dataclass(frozen=True)
class Weighted(Method):
    """A method that averages model differences, in which clients count by their examples or all alike."""

    weights: Literal["samples", "uniform"] = field(default="samples", kw_only=True)
    """Whether a client counts by its number of examples or as one."""

    def __post_init__(self) -> None:
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "n": Sum()}

    @property
    def mean(self) -> Mean:
        """The mean over clients, by their numbers of examples (the message's group `n`) or with each as one."""
        return Mean("n" if self.weights == "samples" else None)

    @property
    def counts(self) -> Rules:
        """The group `n` where clients count by it, for messages that leave out what nobody reads."""
        return {"n": Sum()} if self.weights == "samples" else {}
