"""Whether live models can be served together."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import tree
from ..experiment import dumps
from ..live import Live


def check(lives: Sequence[Live]) -> None:
    """One host has one federation: everything but the weights, and the client's number, is the same."""
    if not lives:
        raise ValueError("serve: there is no live model; name at least one folder")
    first = form(lives[0])
    for live in lives[1:]:
        if other := differ(form(live), first):
            raise ValueError(
                f"serve: client {live.client} has another {other} than client {lives[0].client}; "
                "serve each federation by a server of its own"
            )
    if len({live.client for live in lives}) < len(lives):
        raise ValueError("serve: two live models are of the same client; serve each by a server of its own")
    for live in lives:
        if reason := live.adapter.refusal(live.worker.task, live.model):
            raise ValueError(f"serve: client {live.client}: {reason}; deploy it again with another adapter")


def differ(mine: tuple[object, ...], other: tuple[object, ...]) -> str:
    """In what two forms differ, in a word; empty where they do not."""
    words = ("experiment", "inputs", "model", "session")
    return next((word for word, a, b in zip(words, mine, other, strict=True) if a != b), "")


def form(live: Live) -> tuple[object, ...]:
    """What clients of one host have in common."""
    shapes = [{k: (tuple(v.shape), v.dtype) for k, v in tree.flatten(t).items()} for t in (live.model, live.session)]
    task = live.worker.task
    return dumps(live.experiment), (task.shape, task.mean, task.std, live.classes, live.dtype), *shapes
