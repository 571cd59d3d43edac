"""The base record of test-time adapters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from torch import Tensor

from . import check, rng
from .limits import Limits
from .message import Rules
from .task import Mode, Out, Task
from .tree import Tree


class Predict(Protocol):
    """A method's `predict` with the task already given: what personalisers and adapters call."""

    def __call__(self, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        """The model's outputs on a batch."""
        ...


@dataclass(frozen=True)
class Adapter:
    """Adapts a deployed model on an unlabelled stream, batch by batch. It never sees a label.

    The base record does not adapt at all. When state is reset is the stream's business, not the adapter's.
    """

    requires: ClassVar[tuple[str, ...]] = ()
    """Keys of the deployed model, beyond `vars`, without which it cannot work."""

    made_by: ClassVar[str] = ""
    """The settings with which a model has these keys, such as `method=fedthe`: a refusal names them."""

    transductive: ClassVar[bool] = False
    """Whether `prepare` wants to see the whole unlabelled stream before the first batch."""

    skips: ClassVar[bool] = False
    """Whether all long loops of `prepare` say which steps are `needed` (`core.loops`). Then sets of several sizes are
    given the same room, and share a recording."""

    calibrates: ClassVar[bool] = False
    """Whether it needs `reference` in the model: what `calibrate` makes of the client's validation examples."""

    traces: ClassVar[Mapping[str, str]] = {}
    """What `trace` tells of every sample: names, and what they mean in a few words."""

    @property
    def batch_free(self) -> bool:
        """Whether answers are the same however a stream is cut into batches; it is then served in larger ones."""
        return type(self).step is Adapter.step

    def refusal(self, task: Task, model: Tree) -> str | None:
        """Why this adapter cannot serve this model, in one sentence, or None where it can."""
        if missing := [k for k in self.requires if k not in model]:
            name, have = type(self).__name__, ", ".join(sorted(model))
            hint = f"; set {self.made_by}" if self.made_by else ""
            return f"{name} needs {', '.join(missing)} in the deployed model, which has only {have}{hint}"
        return None

    def calibrate(self, task: Task, predict: Predict, model: Tree, data: Tree) -> Tree:
        """What is known of the model by the client's *labelled validation* examples, before it meets its stream.

        `data` is the client's as in training (`x`, `y`, `rows`, `n`); `n` is 0 where it has no labels. What comes out
        is `reference` in the model from then on.
        """
        return {}

    def init(self, task: Task, model: Tree) -> Tree:
        """The adapter's state at the start of a stream, and after every reset."""
        return {}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        """For transductive adapters: sees the whole unlabelled stream, once, before the first `step`.

        x is [size, ...]; `real` (bool [size]) says which rows are this client's own. They come first; where clients of
        several sizes run together the others repeat them, and must not count.
        """
        return state

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        """Logits for one batch, and the state for the next."""
        return predict(model, x).logits, state

    def meets(self, state: Tree, new: Tensor) -> Tree:
        """The state for one batch of which only some samples are `new` (bool [B]): it has met the others before.

        What adds up over samples counts each of them once by this. `step` and `trace` leave nothing of it.
        """
        return state

    def answer(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tensor:
        """The logits that `step` gives, where nobody wants the state for the next batch; it may save that work."""
        return self.step(task, predict, model, state, x, key)[0]

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        """What `step` gives, and beside it what the adapter did: per name of `traces` one row per sample, [B, ...].

        Called in the place of `step` where an analysis is wanted; it must answer as `step` does.
        """
        return *self.step(task, predict, model, state, x, key), {}


@dataclass(frozen=True)
class Traced(Adapter):
    """The base of adapters that define `trace` alone: they step as they do there, and tell nobody."""

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return self.trace(task, predict, model, state, x, key)[:2]


@dataclass(frozen=True)
class Exchanging(Adapter):
    """An adapter whose clients exchange while they adapt. Only what `send` returns ever leaves a client.

    After every `every` batches each client sends a message, the server combines the messages by the rules of `uplink`,
    as it does in training, and what it makes of them comes back before the next batch. A client whose stream has ended
    neither sends nor counts. Alone, as a live model is, the adapter is its `step`.
    """

    every: int = field(default=1, kw_only=True)
    """Batches between two exchanges."""

    def __post_init__(self) -> None:
        check.whole(self, "every", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        """What a client sends, group by group, and how it is combined; empty: it exchanges with nobody."""
        return {}

    @property
    def limits(self) -> Limits:
        """The range of every group that is a claim, as `Method.limits` has it."""
        return {}

    def look_ahead(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tree:
        """The client's state before it sends: for adapters that exchange what they see of the batch that has arrived.

        x is the batch that is answered next, once the server has answered. It is not answered here.
        """
        return state

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        """A client's message, as `uplink` says."""
        return {}

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        """The server's new state from the combined messages; the first `server` is empty.

        Of it `all` is sent to every client whose message counted, and of `own`, where each leaf has a row for each of
        these clients, its own row. Everything else stays at the server.
        """
        return {}

    def receive(self, task: Task, model: Tree, state: Tree, down: Tree) -> Tree:
        """The client's state for the next batch; `down` has the entries of `all` and those of its row of `own`."""
        return state


@dataclass(frozen=True)
class Wrapping(Adapter):
    """The base of records around another adapter: what they do not define themselves is handed on to it."""

    adapter: Adapter = Adapter()

    @property
    def requires(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.adapter.requires

    @property
    def transductive(self) -> bool:  # type: ignore[override]
        return self.adapter.transductive

    @property
    def skips(self) -> bool:  # type: ignore[override]
        return self.adapter.skips

    @property
    def traces(self) -> Mapping[str, str]:  # type: ignore[override]
        return self.adapter.traces

    @property
    def batch_free(self) -> bool:
        return self.adapter.batch_free

    def refusal(self, task: Task, model: Tree) -> str | None:
        return self.adapter.refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return self.adapter.init(task, model)

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        return self.adapter.prepare(task, predict, model, state, x, real, key)

    def meets(self, state: Tree, new: Tensor) -> Tree:
        return self.adapter.meets(state, new)

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return self.adapter.step(task, predict, model, state, x, key)

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        return self.adapter.trace(task, predict, model, state, x, key)
