"""Memories of test samples: a fixed number of places, of which `held` says which are taken, filled sample by sample.

RoTTA's keeps recent and certain samples of all classes, NOTE's is a reservoir that the classes share. Both know labels
by prediction alone. Decisions are made on a few numbers per sample, one sample after the other; images move once, when
all are made. A memory is a tree: `x` [N, ...], `label`, `held` and what its way of filling needs, [N] each.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Task, Tree, check, rng, tree


def empty(task: Task, model: Tree, capacity: int, *columns: str) -> Tree:
    """A memory of so many places that holds nothing; `columns` are numbers that it keeps with every sample."""
    like = model["vars"]["params"][task.head_weight]
    labels = torch.zeros(capacity, dtype=torch.int64, device=like.device)
    numbers = {name: like.new_zeros(capacity) for name in ("held", *columns)}
    return {"x": like.new_zeros(capacity, *task.shape), "label": labels, **numbers}


def too_small(task: Task, capacity: int, who: str) -> str | None:
    """A refusal where not every class could have a place."""
    if capacity >= task.num_classes:
        return None
    return f"{who}: capacity={capacity} must be at least the number of classes, {task.num_classes}"


def check_places(record: object) -> None:
    """The fields `capacity` and `every` of an adapter that learns from its memory."""
    check.whole(record, "capacity", 1)
    check.whole(record, "every", 1)


def pixels(x: Tensor) -> Tensor:
    """Samples as a memory keeps them: uint8 images as floats in 0..1."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def due(before: Tensor, arrived: int, every: int) -> Tensor:
    """Whether a multiple of `every` samples was reached with the last ones that arrived."""
    times = [torch.div(count, every, rounding_mode="floor") for count in (before, before + arrived)]
    return times[0] != times[1]


def held_per_class(memory: Tree, classes: int) -> Tensor:
    """How many samples of every class a memory holds: float [classes]."""
    return (F.one_hot(memory["label"], classes).to(memory["held"].dtype) * memory["held"][:, None]).sum(0)


def oldest_or_least_sure(age: Tensor, entropy: Tensor, places: int, classes: int, by: tuple[float, float]) -> Tensor:
    """RoTTA's score of samples: the higher, the sooner they go (Yuan et al., CVPR 2023). `by`: weights of both."""
    return by[0] * torch.sigmoid(age / places) + by[1] * entropy / math.log(classes)


def add_timely(
    memory: Tree,
    x: Tensor,
    label: Tensor,
    entropy: Tensor,
    share: Tensor,
    timeliness: float = 1.0,
    uncertainty: float = 1.0,
) -> Tree:
    """RoTTA's memory after a batch: a class may have its share of places, old and uncertain samples go first.

    A sample of a class below its share takes a free place or, where there is none, one of the fullest classes; one of
    another class takes a place of its own. It takes it only from a sample of a higher score. All grow older by one
    with every sample that arrives. Samples lie in the order in which they came.

    Who is held is decided sample by sample; all that does not depend on that, such as every sample's score at every
    time, is worked out for the whole batch before.
    """
    places, classes, count = len(memory["held"]), len(share), len(x)
    labels, uncertain = (torch.cat(both) for both in ((memory["label"], label), (memory["entropy"], entropy)))
    age = torch.cat((memory["age"], -torch.arange(count, device=x.device, dtype=share.dtype)))
    later = torch.arange(count, device=x.device, dtype=share.dtype)[:, None]
    score = oldest_or_least_sure(age + later, uncertain, places, classes, (timeliness, uncertainty))
    hot = F.one_hot(labels, classes).to(share.dtype)
    held = F.pad(memory["held"], (0, count))
    limit, numbers = places * share, torch.arange(places + count, device=x.device)
    for i in range(count):
        at, own = places + i, hot[places + i] > 0
        counts = (hot * held[:, None]).sum(0)
        below = (own & (counts < limit)).any()
        fill = counts / share
        among = torch.where(below, fill == fill.amax(), own)[labels] & (held > 0)
        worst, place = torch.where(among, score[i], -torch.inf).max(0)
        free = below & (counts.sum() < places)
        enters = free | (worst > score[i, at])
        goes = (numbers == place) & enters & ~free
        held = torch.where(goes, 0.0, held + (numbers == at) * enters)
    kept = torch.argsort((held == 0).to(torch.int32), stable=True)[:places]
    rest = {"label": labels, "held": held, "age": (age + count) * held, "entropy": uncertain}
    return {**memory, **{k: v[kept] for k, v in rest.items()}, "x": torch.cat((memory["x"], pixels(x)))[kept]}


def add_balanced(memory: Tree, x: Tensor, label: Tensor, share: Tensor, key: rng.Key) -> Tree:
    """NOTE's memory after a batch (Gong et al., NeurIPS 2022, Algorithm 1): a reservoir that favours rare classes.

    In a full memory, a sample of a class that is not among the largest takes a random place of one that is. Another
    takes a random place of its own class with the chance held / seen. `seen` [classes] counts samples per class;
    classes are as large as they hold samples by their share.
    """
    places, classes = len(memory["held"]), len(share)
    source, rest = _begin(memory)
    seen, keys = memory["seen"], rng.rows(key, len(x))
    for i in range(len(x)):
        own = F.one_hot(label[i], classes)
        seen, counts = seen + own, held_per_class(rest, classes)
        largest = counts / share == (counts / share).amax()
        large, full = (largest & (own > 0)).any(), rest["held"].sum() >= places
        draws = rng.uniform(rng.fold(keys[i], "place"), places)
        among = torch.where(large, rest["label"] == label[i], largest[rest["label"]])
        lucky = rng.uniform(rng.fold(keys[i], "chance")) * (seen * own).sum() < (counts * own).sum()
        place = torch.where(full, torch.where(among, draws, -1.0).argmax(), rest["held"].argmin())
        row = {"label": label[i], "held": 1.0}
        source, rest = _put(source, rest, place, ~full | ~large | lucky, row, places + i)
    return {**_moved(memory, source, rest, x), "seen": seen}


def _begin(memory: Tree, *columns: str) -> tuple[Tensor, Tree]:
    """Where the sample of every place comes from (its own place), and what else is known of it."""
    return torch.arange(len(memory["held"]), device=memory["held"].device), tree.pick(
        memory, {"label", "held", *columns}
    )


def _put(source: Tensor, rest: Tree, place: Tensor, enters: Tensor, row: Tree, at: int) -> tuple[Tensor, Tree]:
    """Sample number `at` in this place, where it enters."""
    here = (torch.arange(len(source), device=source.device) == place) & enters
    return torch.where(here, at, source), {k: torch.where(here, row[k], v) for k, v in rest.items()}


def _moved(memory: Tree, source: Tensor, rest: Tree, x: Tensor) -> Tree:
    """The memory with its samples taken from the old one and the new batch, as the decisions were."""
    return {**memory, **rest, "x": torch.cat((memory["x"], pixels(x)))[source]}
