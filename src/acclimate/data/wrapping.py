"""The base record of data sets that are made from another one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import Tensor

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

    def load(self) -> Examples:
        return self.data.load()

    def official_test(self) -> Tensor | None:
        return self.data.official_test()

    def for_training(self, examples: Examples, rows: Tensor) -> Examples:
        return self.data.for_training(examples, rows)

    def fitted(self, world: World) -> World:
        return self.data.fitted(world)

    def raw(self, world: World, client: int | None) -> Raw | None:
        return self.data.raw(world, client)

    def inputs(self) -> Inputs:
        return self.data.inputs()

    def constants(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return super().constants(channels) if self.mean else self.data.constants(channels)


def refuse_ignored(record: Dataset, inner: Dataset) -> None:
    """Refuse settings of an inner data set that would do nothing, because `record` deals its examples out anew.

    A setting that `record` has as well is no surprise. Nor is the dealing of a single client: it stands for none.
    """
    fixed = {f.name for f in fields(Dataset)} - {"mean", "std"}
    fixed -= {"partition", "clients"} if inner.clients == 1 else set()
    name, other = type(record).__name__, type(inner).__name__
    for field in fields(inner):
        value = getattr(inner, field.name)
        if field.name in fixed and value not in (field.default, getattr(record, field.name)):
            raise ValueError(
                f"{name}: {field.name}={value!r} of its data {other} would do nothing; "
                f"set {field.name} of {name} itself, not of {other}"
            )
