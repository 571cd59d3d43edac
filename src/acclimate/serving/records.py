"""What a server writes into its log: the form of a step, and the answers in it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..live import Answer
from .host import Call, Computed
from .log import Record, raw


class Ask(NamedTuple):
    """A request: its samples are checked and in the form of the federation's data. An empty id is none."""

    client: int
    id: str
    x: Tensor


class Given(NamedTuple):
    """An answer that went out, by the id of its request."""

    client: int
    id: str
    x: Tensor
    answer: Answer
    chosen: list[int]
    plain: list[int]


def fingerprint(x: Tensor) -> bytes:
    """Short for the samples of a request, to notice another one with the same id."""
    return hashlib.sha256(str(tuple(x.shape)).encode() + raw(x)).digest()[:16]


def step(asks: Sequence[Ask], done: Computed) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A step as head and tensors of a record."""
    head = {
        "kind": "step",
        "clients": [ask.client for ask in asks],
        "requests": [ask.id for ask in asks],
        "sizes": [len(ask.x) for ask in asks],
        "answers": [_about(a) for a in done.answers],
    }
    classes = [[c, p] for j in range(len(asks)) for c, p in zip(done.chosen[j], done.plain[j], strict=True)]
    tensors = {
        "x": torch.cat([ask.x for ask in asks]),
        "probabilities": torch.cat([a.probabilities for a in done.answers]),
        "classes": torch.tensor(classes, dtype=torch.int32),
    }
    return head, tensors


def _about(a: Answer) -> dict[str, Any]:
    adapted = [int(v) for v in a.adapted]
    return {"ids": a.ids, "adapted": adapted, "step": a.step, "note": a.note, "guard": a.guard, "estimate": a.estimate}


def calls(record: Record) -> list[Call]:
    """The requests of a step's record."""
    parts = record.tensors["x"].split(record.head["sizes"])
    return [Call(client, x) for client, x in zip(record.head["clients"], parts, strict=True)]


def answers(record: Record, classes: Sequence[str]) -> Iterator[Given]:
    """The answers of a step's record."""
    head, sizes = record.head, record.head["sizes"]
    parts = (record.tensors[name].split(sizes) for name in ("x", "probabilities", "classes"))
    rows = zip(head["clients"], head["requests"], head["answers"], *parts, strict=True)
    for client, id, about, x, probabilities, pairs in rows:
        chosen, plain = pairs.T.tolist()
        guard = {k: math.nan if v is None else v for k, v in about["guard"].items()}
        labels = tuple(classes[c] for c in chosen)
        adapted = tuple(bool(v) for v in about["adapted"])
        rest = (about["step"], about["note"], guard, about["estimate"])
        answer = Answer(probabilities, labels, tuple(about["ids"]), adapted, *rest)
        yield Given(client, id, x, answer, chosen, plain)
