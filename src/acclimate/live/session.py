"""One client's live session: its state is a tree, and a request is a pure function of it, alone or under `vmap`.

An adapter that does not care how a stream is cut (`batch_free`) steps on the samples of a request as they are. Any
other needs a batch: it sees a window of the most recent samples, of which a request's are the newest. Between two
commits it answers from the window and leaves its state, in which the window's older samples are counted already; it
commits when as many new samples have come as the window holds. So its state goes the same way whatever the sizes of
requests, and full batches are served as in a test stream. Until the window is full, the un-adapted model answers.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, rng, tree


class Outcome(NamedTuple):
    """What a request leaves: rows are its samples."""

    logits: Tensor
    plain: Tensor
    """What the un-adapted model says."""
    adapted: Tensor
    """[n] bool: whether the adapter's answer went out."""
    told: Tree
    """What the guard saw at the last sample, scalars; empty without a guard."""
    committed: Tensor
    """Whether the adapter's state changed."""
    state: Tree


def adapts(adapter: Adapter) -> bool:
    """Whether it changes any answer."""
    return type(adapter).step is not Adapter.step


def begin(task: Task, adapter: Adapter, model: Tree, window: int, dtype: torch.dtype) -> Tree:
    """The state of a session that has met nothing."""
    like = model["vars"]["params"][task.head_weight]
    zero = torch.zeros((), dtype=torch.int64, device=like.device)
    kept = 0 if adapter.batch_free else window
    empty = torch.zeros(kept, *task.shape, dtype=dtype, device=like.device)
    counts = {"filled": zero, "fresh": zero, "seen": zero, "step": zero}
    return {"adapter": adapter.init(task, model), "window": empty, **counts}


def cuts(size: int, fresh: int, count: int) -> list[int]:
    """The sizes of the parts of a request of `count` samples, so that windows of `size` end where batches would.

    `fresh` samples came since the last commit. Without a window nothing is cut.
    """
    if not size:
        return [count]
    first = min(size - fresh % size, count)
    rest = count - first
    return [first, *[size] * (rest // size), *([rest % size] if rest % size else [])]


def due(size: int, fresh: int, count: int) -> bool:
    """Whether a request of `count` samples may commit, where `fresh` came since the last one that did."""
    return fresh + count >= size


def newest(size: int, fresh: int | Tensor, like: Tensor) -> Tensor:
    """Which samples of a window came since the last commit, bool [size]; `like` is on the device."""
    return torch.arange(size, 0, -1, device=like.device) <= fresh


def held(before: Tree, outcome: Outcome) -> Outcome:
    """What a request leaves where steps are not committed: the window goes on, the adapter's state stays, and no sample
    is counted in it."""
    came = outcome.state["seen"] - before["seen"] if len(before["window"]) else 0
    state = {**outcome.state, **tree.pick(before, ("adapter", "step")), "fresh": before["fresh"] + came}
    return outcome._replace(state=state, committed=torch.zeros_like(outcome.committed))


def request(
    task: Task,
    predict: Predict,
    adapter: Adapter,
    model: Tree,
    state: Tree,
    x: Tensor,
    key: rng.Key,
    open: Tensor,
    due: bool = True,
) -> Outcome:
    """Answer the samples x [n, ...] of one request; at most as many as the window holds.

    `open` (bool) says whether the adapter may answer and commit: not while it waits for samples to prepare on. Where a
    commit is not `due` the adapter need not compute the state that would be committed.
    """
    if adapter.batch_free:
        return _free(task, predict, adapter, model, state, x, key, open)
    size, n = state["window"].shape[0], x.shape[0]
    window = torch.cat((state["window"], x.to(state["window"].dtype)))[-size:]
    filled, fresh = (state["filled"] + n).clamp_max(size), state["fresh"] + n
    seen = state["seen"] + n
    plain = predict(model, x.to(window.dtype)).logits
    now, met = rng.advance(key, seen - size), adapter.meets(state["adapter"], newest(size, fresh, window))
    if adapter.calibrates:
        logits, new, told = adapter.trace(task, predict, model, met, window, now)
        told = tree.map(lambda v: v[-1], told)
    elif due:
        (logits, new), told = adapter.step(task, predict, model, met, window, now), {}
    else:
        new, told = state["adapter"], {}
        logits = adapter.answer(task, predict, model, met, window, now)
    ready = open & (filled == size) & torch.isfinite(logits).all()  # else the un-adapted model answers, nothing is kept
    used = ready & (told["used"] > 0) if adapter.calibrates else ready
    commit = ready & (fresh >= size)
    after = {
        "adapter": tree.where(commit, new, state["adapter"]) if due else state["adapter"],
        "window": window,
        "filled": filled,
        "fresh": torch.where(commit, 0, fresh),
        "seen": seen,
        "step": state["step"] + commit.to(torch.int64),
    }
    return Outcome(torch.where(used, logits[-n:], plain), plain, used.expand(n), told, commit, after)


def _free(
    task: Task, predict: Predict, adapter: Adapter, model: Tree, state: Tree, x: Tensor, key: rng.Key, open: Tensor
) -> Outcome:
    plain = predict(model, x).logits
    now = rng.advance(key, state["seen"])
    logits, new = adapter.step(task, predict, model, state["adapter"], x, now)
    sound = open & torch.isfinite(logits).all()
    commit = sound & (not adapter.transductive and adapts(adapter))  # what was prepared is only applied
    after = {
        **state,
        "adapter": tree.where(commit, new, state["adapter"]),
        "seen": state["seen"] + len(x),
        "step": state["step"] + commit.to(torch.int64),
    }
    used = (sound & adapts(adapter)).expand(len(x))
    return Outcome(torch.where(sound, logits, plain), plain, used, {}, commit, after)
