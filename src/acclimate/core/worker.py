"""The client half of every backend: pure functions of trees, picklable, no input or output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import Tensor
from torch.func import vmap

from . import rng, stream, tree
from .adapter import Adapter, Predict
from .filter import Arrived, Filter, Sender, before_each, refusal
from .limits import Limits
from .message import Rules
from .method import Method
from .nn import soundness
from .personal import Personalizer
from .task import Mode, Out, Task
from .tree import Tree

COHORT = "filter.cohort"
"""The entry of `down` that tells clients who takes part in the round, where a filter must know."""


@dataclass(frozen=True)
class Worker:
    """What a client runs: the task, the method and the message filters, with the seed all keys derive from."""

    task: Task
    method: Method
    filters: Sequence[Filter] = ()
    seed: int | Tensor = 0
    """A number, or where clients of several seeds run in lanes of one engine an int64 scalar."""
    secret: bytes | None = field(default=None, repr=False, compare=False)
    """The key of the run at this place (`store.secrets`); None where everything follows from the seed."""
    mask: Callable[[int], Tensor] | None = field(default=None, repr=False, compare=False, kw_only=True)
    """Of one client's next message: see `Sender.mask`."""

    def key(self, purpose: str, *data: int | str | Tensor, like: Tensor | None = None) -> rng.Key:
        """A key for one purpose (`train`, `server`, ...) and place (round, client), on the device of `like`."""
        return rng.key_for(self.seed, None if like is None else like.device, purpose, *data)

    @property
    def uplink(self) -> Rules:
        """How the messages that cross the network are combined: the method's rules, as the filters change them."""
        return before_each(self.filters, self.method.uplink)[-1]

    @property
    def limits(self) -> Limits:
        """The ranges of the claims of a message that has been read: the method's, as the filters change them."""
        out = self.method.limits
        for f in self.filters:
            out = f.limits(out)
        return out

    @property
    def cohort_key(self) -> bytes | None:
        """The key from which cohorts are drawn; None where they follow from the seed.

        Where a filter hides messages, every client is told the cohort: then it is no secret, and none is claimed.
        """
        if any(f.hides for f in self.filters):
            return None
        return next((key for f in self.filters if (key := f.cohort_key(self.secret, int(self.seed))) is not None), None)

    def refusal(self) -> str | None:
        """Why the filters cannot serve this method, in one sentence, or None where they can."""
        return refusal(self.filters, self.method.uplink)

    def outgoing(self, down: Tree, cohort: Tensor) -> Tree:
        """What is sent to the cohort's clients: the method's download, and the cohort where a filter must know it."""
        if not any(f.hides for f in self.filters):
            return down
        return {**down, COHORT: cohort.to(tree.leaves(down)[0].device)}

    def start(self, client: int, like: Tensor | None = None) -> Tree:
        """A client's private state before its first round."""
        return self.method.init_client(self.task, client, self._init if like is None else self.key("init", like=like))

    @property
    def alike(self) -> bool:
        """Whether all clients have the same private state before their first round."""
        return type(self.method).init_client is Method.init_client

    @cached_property
    def _init(self) -> rng.Key:
        return self.key("init")

    def train(self, down: Tree, mine: Tree, data: Tree) -> tuple[Tree, Tree, Tensor]:
        """One local round: the filtered message, the new private state, and whether all is finite, before and after the
        filters."""
        key = self.key("train", data["round"], data["id"], like=data["id"])
        cohort, down = down.get(COHORT), tree.drop(down, (COHORT,))
        up, new = _pair(self.method, self.method.client(self.task, down, mine, data, key))
        met, before = before_each(self.filters, self.method.uplink), up
        for i, f in enumerate(self.filters):
            sender = Sender(met[i], data["id"], data["round"], cohort, self.secret, self.mask)
            up = f.client(up, rng.fold(key, "filter", i), sender)
        # also before the filters: what one makes of NaN may be whole numbers, which are always finite
        seen = {"before": before, "mine": new}
        return up, new, soundness.finite({**seen, "up": up} if self.filters else seen)

    def read(self, ups: Tree) -> Tree:
        """Messages with a leading client axis, as they arrived, in the form in which `uplink` combines them."""
        if any(f.hides for f in self.filters) or not tree.leaves(ups):
            return ups
        for f in reversed(self.filters):
            if type(f).arrive is not Filter.arrive:
                ups = vmap(f.arrive)(ups)
        return ups

    def receive(
        self,
        total: Tree,
        round: int,
        answered: int,
        asked: int,
        like: Tensor,
        expected: int | None = None,
        absent: tuple[int, ...] = (),
    ) -> Tree:
        """The server halves of the filters: from the messages, combined by `uplink`, to what the method expects."""
        met = before_each(self.filters, self.method.uplink)
        for i, f in reversed(list(enumerate(self.filters))):
            arrived = Arrived(met[i], answered, asked, expected, self.secret, absent)
            total = f.server(total, self.key("filter", round, i, like=like), arrived)
        return total

    def predict(self) -> Predict:
        """The method's `predict` with the task given."""

        def call(model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
            return self.method.predict(self.task, model, x, mode, key)

        return call

    def personalise(self, down: Tree, mine: Tree, data: Tree, personal: Personalizer) -> Tree:
        """The model that goes live, after the personaliser has seen the client's labelled training data."""
        key = self.key("personal", data["id"], like=data["id"])
        mine = self.method.finish_personal(self.task, down, mine, data, rng.fold(key, "settle"))
        model = self.method.deploy(self.task, down, mine)
        return personal.run(self.task, self.predict(), model, data, key)

    def calibrate(self, model: Tree, data: Tree, adapter: Adapter) -> Tree:
        """What the adapter learns about the model from the client's labelled validation examples."""
        return adapter.calibrate(self.task, self.predict(), model, data)

    def adapt(
        self, model: Tree, data: Tree, adapter: Adapter, protocol: stream.Protocol, trace_rows: int | None = None
    ) -> Tree:
        """Serve one test stream and score it. Labels are read by the score alone.

        With `trace_rows`, the adapter's traces are under `trace`, padded to that many rows so that clients stack.
        """
        key = self.key("adapt", data["id"], like=data["id"])
        unlabelled = tree.drop(data, ("y",))
        trace = trace_rows is not None
        served = stream.run(self.task, self.predict(), adapter, model, unlabelled, protocol, key, trace)
        scores = stream.score(served.logits, data["y"][data["rows"]], data["n"])
        return scores if trace_rows is None else {**scores, "trace": stream.lengthened(served.trace, trace_rows)}


def _pair(method: Method, returned: Any) -> tuple[Tree, Tree]:
    """What `client` returned. An error where that is no pair: a message alone would be taken apart by its names."""
    if not (isinstance(returned, tuple) and len(returned) == 2):
        kind = type(returned).__name__
        raise TypeError(f"{type(method).__name__}.client must return (message, private state), it returned a {kind}")
    return returned
