"""The stream loop: a deployed model meets its client's unlabelled test stream, batch by batch.

Order, batch size and reset policy are data of the stream, not of the adapter. Batches are always full: the last one
wraps around to the stream's start, and what it repeats is not counted. Batches beyond a client's own number compute
and leave the adapter's state untouched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from . import check, rng, tree
from .adapter import Adapter, Predict
from .loops import Needed, Time, at, repeat
from .nn import cross_entropy
from .task import Task
from .tree import Tree

Reset = Literal["stream", "batch", "shift", "collapse"]
"""When an adapter starts afresh: once per stream (it then adapts continually), with every batch (with batch=1: every
sample), where the stream changes, or when its predictions have collapsed onto few classes."""


@dataclass(frozen=True)
class Protocol:
    """How a stream is served: `batch` examples at a time, and when the adapter starts afresh."""

    batch: int = 32
    reset: Reset = "stream"
    segment: int | None = None
    """Samples between two changes of the stream, for reset="shift"."""
    collapse: float = 0.1
    """For reset="collapse": the least entropy of a batch's mean prediction, as a share of log(classes)."""
    every: int = 1
    """Of so many batches, the adapter learns from the first alone: what the others leave in its state is dropped."""
    until: int | None = None
    """Samples after which the adapter learns no more; None: it always does."""

    def __post_init__(self) -> None:
        check.at_least(self, "batch", 1)
        check.choices(self)
        check.within(self, "collapse", 0.0, 1.0)
        if self.reset == "shift" and self.segment is None:
            raise ValueError("Protocol: reset='shift' needs a stream of segments, and this one has none")
        if self.reset == "shift" and self.segment is not None and self.segment % self.batch:
            raise check.FieldError(
                f"Protocol: reset='shift' needs segment={self.segment} to be a multiple of batch={self.batch}",
                "segment",
                "batch",
            )
        check.whole(self, "every", 1)
        if self.until is not None and (self.until < 1 or self.until % self.batch):
            raise check.FieldError(
                f"Protocol: until={self.until} must be a multiple of batch={self.batch}, which is learned from whole",
                "until",
                "learn",
                "batch",
            )

    def learns(self, step: int | Tensor) -> bool | Tensor:
        """Whether the adapter keeps what it learns from this batch."""
        if self.every == 1 and self.until is None:
            return True
        return (step % self.every == 0) & (self.until is None or step * self.batch < self.until)


class Served(NamedTuple):
    """What a client's stream got, in stream order; rows beyond the client's `n` mean nothing."""

    logits: Tensor
    """[size, classes]"""
    trace: Tree
    """What the adapter's `trace` gave, each [size, ...]; empty unless asked for."""


def run(
    task: Task,
    predict: Predict,
    adapter: Adapter,
    model: Tree,
    data: Tree,
    protocol: Protocol,
    key: rng.Key,
    trace: bool = False,
) -> Served:
    """Serve a client's stream. Without `trace` the adapter's plain `step` runs, and nothing is kept but logits."""
    size, n = data["rows"].shape[-1], data["n"].clamp_min(1)
    batch = _batch(adapter, protocol, size)
    fresh = adapter.init(task, model)
    if adapter.transductive:
        place, shown = torch.arange(size, device=n.device), n if protocol.until is None else n.clamp_max(protocol.until)
        everything, real = data["x"][data["rows"][place % shown]], place < shown
        fresh = adapter.prepare(task, predict, model, fresh, everything, real, rng.fold(key, "prepare"))
    part = Stretch(0, -(-size // batch), batch)
    served, _ = stretch(task, predict, adapter, model, data, protocol, key, fresh, fresh, part, trace)
    return Served(served.logits[:size], tree.map(lambda x: x[:size], served.trace))


class Stretch(NamedTuple):
    """A stretch of a stream: `steps` batches of `batch` samples, of which the first is number `first`."""

    first: int | Tensor
    """A tensor where one recording serves all stretches."""
    steps: int
    batch: int

    def places(self, device: torch.device) -> Tensor:
        """Where its samples are in the stream, [steps, batch]."""
        at = torch.arange(self.steps * self.batch, device=device).view(self.steps, self.batch)
        return at if self.whole else at + self.first * self.batch

    @property
    def whole(self) -> bool:
        """Whether it may be a whole stream."""
        return isinstance(self.first, int) and self.first == 0

    def needed(self, times: int, data: Tree) -> Needed | None:
        """Which of its batches are needed, if a loop takes all of them, and a stream that is padded."""
        if not self.whole or times != self.steps or "ragged" not in data:
            return None
        return Needed(data["rows"].shape[-1], lambda most: -(-most // self.batch))


def stretch(
    task: Task,
    predict: Predict,
    adapter: Adapter,
    model: Tree,
    data: Tree,
    protocol: Protocol,
    key: rng.Key,
    state: Tree,
    fresh: Tree,
    part: Stretch,
    trace: bool = False,
) -> tuple[Served, Tree]:
    """Serve a part of a client's stream: what it got, [steps * batch, ...], and the adapter's state after it.

    `fresh` is the state at the start of the stream, which resets go back to.
    """
    n = data["n"].clamp_min(1)
    places = part.places(n.device)
    x_rows = data["rows"][places % n]

    def one(i: Time, now: Tree, learns: bool | Tensor) -> tuple[Tree, Tree]:
        t = part.first + i
        # sample n has the same key whatever the batch size (rng.rows), so that a batch can stand for single samples
        k, x = rng.advance(rng.fold(key, "samples"), t * part.batch), data["x"][at(x_rows, i)]
        first = at(places, i) < n  # a sample that the last batch repeats is none that an adapter has not met
        logits, new, traced = _answered(task, predict, adapter, model, now, x, first, k, learns, trace)
        new = _carry(protocol, t, logits, new, fresh)
        # of a whole stream no client has batches to spare unless some are padded; of a part any may
        if not isinstance(part.first, int) or "ragged" in data:
            new = tree.where(t * part.batch < n, new, now)
        return new, {"logits": logits, "trace": traced}

    outs, done = [], 0
    for kinds, times in _pattern(protocol, part):

        def several(i: Time, now: Tree, kinds: Kinds = kinds, done: int = done) -> tuple[Tree, Tree]:
            got = []
            for j, learns in enumerate(kinds):
                at_once = done + i * len(kinds) + j
                now, out = one(at_once, now, protocol.learns(part.first + at_once) if learns is None else learns)
                got.append(out)
            return now, tree.map(lambda *xs: torch.cat(xs), *got)

        state, out = repeat(several, state, times, n, part.needed(times, data))
        outs.append(tree.map(lambda x: x.flatten(0, 1), out))
        done += times * len(kinds)
    served = tree.map(lambda *xs: torch.cat(xs), *outs)
    return Served(served["logits"], served["trace"]), state


Kinds: TypeAlias = tuple[bool | None, ...]
"""For each of some batches in a row, whether it is learned from; None: that depends on the stretch's number."""


def _pattern(protocol: Protocol, part: Stretch) -> Iterator[tuple[Kinds, int]]:
    """The batches of a stretch as batches in a row and how often these come, so that a loop knows what is learned from
    before it knows the time."""
    if not isinstance(part.first, int):
        yield (None if protocol.every > 1 or protocol.until is not None else True,), part.steps
        return
    kinds = [bool(protocol.learns(part.first + i)) for i in range(part.steps)]
    period = protocol.every
    while kinds:
        head = tuple(kinds[:period])
        times = 1
        while tuple(kinds[times * period : (times + 1) * period]) == head:
            times += 1
        yield head, times
        kinds = kinds[times * len(head) :]


def _answered(
    task: Task,
    predict: Predict,
    adapter: Adapter,
    model: Tree,
    state: Tree,
    x: Tensor,
    first: Tensor,
    key: rng.Key,
    learns: bool | Tensor,
    trace: bool,
) -> tuple[Tensor, Tree, Tree]:
    """Logits of one batch, the state that it leaves (none where it is not learned from), and the trace if wanted."""
    traced: Tree = {}
    now = adapter.meets(state, first)
    if trace:
        logits, new, traced = adapter.trace(task, predict, model, now, x, key)
    elif learns is False:
        logits, new = adapter.answer(task, predict, model, now, x, key), state
    else:
        logits, new = adapter.step(task, predict, model, now, x, key)
    if learns is not True:
        new = tree.where(learns, new, state) if isinstance(learns, Tensor) else state
    if not isinstance(logits, Tensor):
        kind = type(logits).__name__
        raise TypeError(
            f"{type(adapter).__name__}.step must return (logits, state); its logits are a {kind}, not a tensor"
        )
    return logits, new, traced


LARGE = 256
"""Samples at a time where an adapter does not care: enough to fill a device, few enough for its memory."""


def _batch(adapter: Adapter, protocol: Protocol, size: int) -> int:
    """The stream's own batch size, or a larger one where that changes no answer."""
    if not adapter.batch_free or protocol.reset != "stream" or protocol.every > 1 or protocol.until is not None:
        return protocol.batch
    even = -(-size // -(-size // LARGE))  # as few batches as possible, all of one size: padding is computed too
    return max(protocol.batch, even)


def lengthened(trace: Tree, rows: int) -> Tree:
    """Traces [size, ...] padded with zeros to `rows` rows, so that those of clients of all sizes can be stacked."""
    padded: Tree = tree.map(lambda x: torch.cat((x, x.new_zeros(rows - x.shape[0], *x.shape[1:]))), trace)
    return padded


def _carry(protocol: Protocol, step: int | Tensor, logits: Tensor, new: Tree, fresh: Tree) -> Tree:
    """The state that the next batch meets: what the adapter left, or a fresh one, as the reset policy says."""
    if protocol.reset == "batch":
        return fresh
    if protocol.reset == "shift":
        assert protocol.segment is not None
        over = (step + 1) * protocol.batch % protocol.segment == 0
        ended: Tree = tree.where(over, fresh, new) if isinstance(over, Tensor) else fresh if over else new
        return ended
    if protocol.reset == "collapse":
        mean = logits.softmax(-1).mean(0)
        entropy = -(mean * mean.clamp_min(1e-12).log()).sum() / math.log(logits.shape[-1])
        reset: Tree = tree.where(entropy < protocol.collapse, fresh, new)
        return reset
    return new


def score(logits: Tensor, y: Tensor, n: Tensor) -> Tree:
    """Accuracy, mean cross-entropy, mean confidence and calibration error over the first `n` rows."""
    real = (torch.arange(logits.shape[0], device=logits.device) < n).to(torch.float32)
    logits = torch.where(real[:, None] > 0, logits, 0.0)  # what is not finite beyond n would be NaN in every sum
    count = real.sum().clamp_min(1.0)
    hit = (logits.argmax(-1) == y).to(torch.float32)
    confidence, y = logits.softmax(-1).amax(-1), y.to(torch.int64)  # a data set's labels may be int32
    return {
        "accuracy": (hit * real).sum() / count,
        "loss": (cross_entropy.each(logits, y) * real).sum() / count,
        "confidence": (confidence * real).sum() / count,
        "ece": calibration_error(hit, confidence, real),
        "n": n.to(torch.float32),
    }


def calibration_error(hit: Tensor, confidence: Tensor, weight: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error: the mean gap between confidence and accuracy over equal-width bins."""
    bin_of = (confidence * bins).to(torch.int64).clamp(0, bins - 1)
    member = F.one_hot(bin_of, bins).to(torch.float32) * weight[:, None]
    gap = (member * (hit - confidence)[:, None]).sum(0).abs()
    return gap.sum() / weight.sum().clamp_min(1.0)
