"""Arrays and tensors in memory as a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..core import token_count
from . import columns, dates, images
from .dataset import Inputs
from .fitting import Filled
from .held import Held, as_array
from .tables import encoded, labelled
from .world import Examples, Feature


@dataclass(frozen=True)
class InMemory(Filled):
    """Examples in memory; `data.of` makes it."""

    data: Held | None = None
    """The examples; they are not written to files, so whoever loads a run passes the record again."""

    def _pool(self) -> Examples | None:
        return None if self.data is None else self.data.values

    def load(self) -> Examples:
        if self.data is None:
            raise ValueError("InMemory: data=None holds no examples; make the record with data.of(x, y)")
        found: Examples = self.data.values
        for i, feature in enumerate(found.features):
            if feature.kind == "missing":
                self._refuse_missing(feature.column, found.x[:, i].numpy() > 0, "data.of: x")
        return found

    def inputs(self) -> Inputs:
        kinds: dict[int, Inputs] = {2: "vectors", 3: "windows"}
        found = self._pool()
        if found is not None and found.x.dtype == torch.int64:
            return "texts"
        return "images" if found is None or not found.x.is_floating_point() else kinds.get(found.x.dim(), "images")

    def tokens(self) -> int | None:
        """How many token ids there are, from 0 to the highest; None where inputs are something else."""
        found = self._pool()
        return None if found is None else token_count(found.x)


def of(
    x: Any,
    y: Any,
    client: Any = None,
    *,
    classes: Sequence[str] = (),
    domain: Any = None,
    tokens: bool = False,
    **settings: Any,
) -> InMemory:
    """Arrays, tensors or lists as a data set: `ac.data.of(x, y, client=site)`.

    x is vectors [N, features] or windows [N, sensors, time] of numbers (NaN: missing, in vectors), or images, with
    channels first or last; with `tokens` it is token ids [N, length], whole numbers from 0. y holds a number or a name
    per row, `classes` the names of numbers from 0. `client` and `domain` hold any numbers or names. `settings` are
    fields of the record: clients, partition, split, scale, missing, seed and so on. Arrays are copied: what is done to
    them later changes no data set.
    """
    if isinstance(x, Mapping):
        raise ValueError(
            f"data.of: x is a {type(x).__name__}; of columns make a data.Table.of(x, label=...), and of a tokenizer's "
            "output give x['input_ids'] with tokens=True"
        )
    inputs, features = _inputs(as_array(x, "x")) if not tokens else (_ids(as_array(x, "x")), ())
    if y is None:
        raise ValueError("data.of: y is None; it must hold the class of every row, as a number or a name")
    marks = {k: as_array(v, k) for k, v in (("y", y), ("client", client), ("domain", domain)) if v is not None}
    for name, values in marks.items():
        if values.ndim != 1 or len(values) != len(inputs):
            several = _remedy(name, values) if values.ndim == 2 else ""
            raise ValueError(
                f"data.of: {name} has shape {values.shape} and x {len(inputs)} rows; "
                f"{name} needs one value per row{several}"
            )
    if not len(inputs):
        raise ValueError("data.of: x has no rows; give at least one example of two classes")
    labels, names = _labels(marks["y"], tuple(map(str, classes)))
    whose, people = _grouped("client", marks) if client is not None else (None, ())
    users = None if whose is None else torch.from_numpy(whose)
    where, domains = _grouped("domain", marks) if domain is not None else (np.zeros(len(inputs), np.int64), ("all",))
    y_, domain_ = torch.from_numpy(labels), torch.from_numpy(where)
    examples = Examples(torch.from_numpy(inputs), y_, names, domain_, domains, users, None, features, user_names=people)
    return InMemory(data=Held(f"{len(inputs)} examples", examples), **settings)


def _remedy(name: str, values: np.ndarray) -> str:
    """What to do about marks of two axes."""
    if values.shape[1] == 1:
        return f": give {name}.reshape(-1)"
    if values.dtype.kind in "iufb" and bool(((values == 0) | (values == 1)).all() and (values.sum(1) == 1).all()):
        return f": give {name}.argmax(1), as every row has a single 1"
    return "; one class per row is supported, several labels per row are not"


def _inputs(x: np.ndarray) -> tuple[np.ndarray, tuple[Feature, ...]]:
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return np.array(images.channels_first(x, "data.of: x"), order="C"), ()
    if x.dtype.kind not in "iufb":
        raise ValueError(
            f"data.of: x is of type {x.dtype}; it must hold numbers (of words make a data.Table.of, of texts "
            "a CSV file and data.Text)"
        )
    if x.ndim == 2:
        names = [columns.of_values(str(i), x[:, i]) for i in range(x.shape[1])]
        return encoded(names, "data.of: x")
    if x.ndim < 2 or not np.isfinite(x).all():
        wrong = f"has shape {x.shape}" if x.ndim < 2 else "holds values that are not finite"
        raise ValueError(f"data.of: x {wrong}; it must be [N, features], [N, sensors, time] or uint8 images")
    return np.array(images.floats_first(x), np.float32, order="C"), ()


def _ids(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind not in "iu" or x.ndim < 2:
        raise ValueError(
            f"data.of: x is of type {x.dtype} and shape {x.shape}; with tokens=True it must be whole numbers "
            "[N, length]"
        )
    return x.astype(np.int64)


def _labels(y: np.ndarray, classes: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...]]:
    column = columns.of_values("y", y, mark=True)
    numbers, names = labelled(column, "data.of")
    if not classes:
        return numbers, names
    by_name, by_number = {name: i for i, name in enumerate(classes)}, {str(i): i for i in range(len(classes))}
    if len(by_name) < len(classes):
        raise ValueError(f"data.of: classes={classes} must differ from each other")
    fitting = [places for places in (by_name, by_number) if all(n in places for n in names)]
    if not fitting:
        unknown = next((n for n in names if n not in by_name and n not in by_number), names[0])
        raise ValueError(f"data.of: y has {unknown!r}, which classes={classes} does not name")
    found = [[places[n] for n in names] for places in fitting]
    if column.numbers is not None and found[0] != found[-1]:
        raise ValueError(
            f"data.of: y={names[0]} may be the class of that name or of that number in classes={classes}; give y as "
            "text to name classes, or leave classes out"
        )
    return np.array(found[0], np.int64)[numbers], classes


def _grouped(name: str, marks: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[str, ...]]:
    column = columns.of_values(name, marks[name], mark=True)
    if column.missing.any():
        raise ValueError(f"data.of: {name} is missing in row {int(np.flatnonzero(column.missing)[0]) + 1}; fill it")
    return dates.named(column).groups()
