"""The base record of data sets that are made from another one."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from torch import Tensor

from ..core import rng
from .dataset import Dataset, Inputs
from .digits import Digits
from .raw import Raw
from .world import Examples, World


@dataclass(frozen=True)
class Wrapper(Dataset):
    """The examples of another data set, and its mean and std where this record has none; all else is this record's."""

    data: Dataset = Digits()
    """The data set that the examples come from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_ignored(self, self.data)
        self.inner()  # refuses a dealing or split that its examples do not allow

    def inner(self) -> Dataset:
        """The data set that the examples come from, dealt and cut as this one: what is read may depend on it."""
        own = ("partition", "clients", "new_partition", "new_clients", "split", "fraction")
        return replace(self.data, **{name: getattr(self, name) for name in own})

    def load(self) -> Examples:
        return self.inner().load()

    def official_test(self) -> Tensor | None:
        return self.data.official_test()

    def for_training(self, examples: Examples, rows: Tensor) -> Examples:
        return self.data.for_training(examples, rows)

    def fitted(self, world: World) -> World:
        return self.inner().fitted(world)

    def raw(self, world: World, client: int | None) -> Raw | None:
        return self.data.raw(world, client)

    def inputs(self) -> Inputs:
        return self.data.inputs()

    @property
    def overlapping(self) -> bool:
        return self.inner().overlapping

    def _cut(self, examples: Examples, rows: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        return self.inner()._cut(examples, rows, key)

    def constants(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return super().constants(channels) if self.mean else self.data.constants(channels)


def refuse_ignored(record: Dataset, inner: Dataset) -> None:
    """Refuse settings of an inner data set that would do nothing, because `record` deals its examples out anew.

    A setting that `record` has as well is no surprise. Nor is the dealing of a single client: it stands for none. Nor
    is a number of clients that the data itself says.
    """
    fixed = {f.name for f in fields(Dataset)} - {"mean", "std"}
    fixed -= {"partition", "clients"} if inner.clients == 1 else set()
    name, other = type(record).__name__, type(inner).__name__
    for field in fields(inner):
        value = getattr(inner, field.name)
        if field.name in fixed and value not in (field.default, getattr(record, field.name)):
            if field.name == "clients" and field.default == 0 and replace(inner, clients=0).clients == value:
                continue
            raise ValueError(
                f"{name}: {field.name}={value!r} of its data {other} would do nothing; "
                f"set {field.name} of {name} itself, not of {other}"
            )
