"""A search space as settings: `method.mu=0.001,0.01,0.1` are choices, `method.opt.lr=0.01..0.1:log` is a range."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..experiment import ConfigError, Experiment
from ..experiment.settings import expand, pair, values_of

Setting = str | tuple[str, Any]
Value = int | float | str
Point = dict[str, Value]
"""A value for every dimension, by its key."""

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
MANY = 500
"""Up to how many combinations are all tried; in larger spaces, all combinations of two values are."""
RANGE = re.compile(rf"({NUMBER})\.\.({NUMBER})(:log)?")
RANGE_LIKE = re.compile(r"\d\.\.|\.\.\d")


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    key: str
    values: tuple[Value, ...]

    @property
    def card(self) -> dict[str, Any]:
        """The entry of tune.json."""
        return {"key": self.key, "choices": list(self.values)}


@dataclass(frozen=True)
class Range:
    """Any number between two, both included; even on a logarithmic scale where `log`."""

    key: str
    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(f"{self.key}={self.low:g}..{self.high:g}: the first number must be below the second")
        if self.log and self.low <= 0:
            raise ConfigError(f"{self.key}={self.low:g}..{self.high:g}:log: a logarithmic range must start above 0")

    def rounded(self, value: Value) -> Value:
        """The value to four digits: a rate of 0.06084 says all that 0.060843366042818384 does, and can be typed."""
        return value if self.whole else min(max(float(f"{float(value):.4g}"), self.low), self.high)

    @property
    def card(self) -> dict[str, Any]:
        """The entry of tune.json."""
        return {"key": self.key, "low": self.low, "high": self.high, "log": self.log, "whole": self.whole}


@dataclass(frozen=True)
class Space:
    """Settings that stay, and dimensions that are searched."""

    fixed: tuple[tuple[str, Any], ...]
    dims: tuple[Choice | Range, ...]

    def settings(self, point: Mapping[str, Value]) -> list[tuple[str, Any]]:
        """All settings of one point."""
        return [*self.fixed, *point.items()]

    def experiment(self, point: Mapping[str, Value]) -> Experiment:
        """The experiment at one point, with the seed that the settings say."""
        return expand(self.settings(point))[0]

    def point(self, drawn: Mapping[str, Value]) -> Point:
        """The point that a sampler's values stand for."""
        return {d.key: d.rounded(drawn[d.key]) if isinstance(d, Range) else drawn[d.key] for d in self.dims}

    @property
    def corner(self) -> Point:
        """The first point, to look at what all experiments have in common."""
        return {d.key: d.values[0] if isinstance(d, Choice) else d.low for d in self.dims}

    @property
    def size(self) -> float:
        """How many points there are; infinite where there is a range."""
        return math.prod(len(d.values) if isinstance(d, Choice) else math.inf for d in self.dims)

    def points(self) -> Iterator[Point]:
        """Every point of a space of choices, the last dimension fastest."""
        if ranges := [d.key for d in self.dims if isinstance(d, Range)]:
            raise ConfigError(f"--sampler grid: {ranges[0]} is a range, which has no end; list its values with commas")
        axes = [[(d.key, v) for v in d.values] for d in self.dims if isinstance(d, Choice)]
        return (dict(pairs) for pairs in itertools.product(*axes))

    def experiments(self) -> list[Experiment]:
        """Every combination of values and ends of ranges, to refuse what does not fit together before a trial runs.

        Of a large space, every combination of two values: a field and the record that lacks it are two.
        """
        axes = [[(d.key, v) for v in (d.values if isinstance(d, Choice) else (d.low, d.high))] for d in self.dims]
        few = math.prod(map(len, axes)) <= MANY
        groups = [axes] if few else list(itertools.combinations(axes, 2))
        points = (dict(pairs) for group in groups for pairs in itertools.product(*group))
        return list(dict.fromkeys(self._tried({**self.corner, **point}) for point in points))

    def _tried(self, point: Point) -> Experiment:
        try:
            return self.experiment(point)
        except ConfigError as e:
            raise ConfigError(f"{', '.join(f'{k}={v}' for k, v in point.items())}: {e}") from e

    def kinds(self) -> list[Experiment]:
        """An experiment for every combination of records and words, with the first of all numbers."""
        words = [d for d in self.dims if isinstance(d, Choice) and any(isinstance(v, str) for v in d.values)]
        axes = [[(d.key, v) for v in d.values] for d in words]
        return [self.experiment({**self.corner, **dict(pairs)}) for pairs in itertools.product(*axes)]

    @property
    def card(self) -> dict[str, Any]:
        """The entry of tune.json."""
        return {"settings": [[k, v] for k, v in self.fixed], "space": [d.card for d in self.dims]}


def parse(settings: Iterable[Setting]) -> Space:
    """The space that settings describe. Every value is tried on the experiment, so that none fails after an hour.

    They are tried when all settings are known, because some fit only together.
    """
    last = dict(pair(s) for s in settings)  # of a setting that is given twice, the last counts
    pairs = sorted(last.items(), key=lambda p: p[0].count("."))
    fixed: list[tuple[str, Any]] = []
    dims: list[Choice | Range] = []
    sample: list[tuple[str, Any]] = []  # a setting of each, so that fields of chosen records can be looked up
    for key, value in pairs:
        options = _options(key, value, sample)
        if isinstance(options, Range) or len(options.values) > 1:
            if key == "seed":
                raise ConfigError("seed cannot be searched: it is no hyper-parameter; use --seeds")
            dims.append(options)
        else:
            fixed.append((key, value))
        sample.append((key, options.low if isinstance(options, Range) else options.values[0]))
    for dim in dims:
        for value in dim.values if isinstance(dim, Choice) else (dim.low, dim.high):
            expand([*sample, (dim.key, value)])
    if expand(sample)[0].analysis:
        raise ConfigError("analysis=true looks at test streams, which a search must not; run best.toml with it")
    return Space(tuple(fixed), tuple(dims))


def _options(key: str, value: Any, sample: Sequence[tuple[str, Any]]) -> Choice | Range:
    """A range, or the values that a setting names: one where commas make a tuple (`adapters=none,tent`)."""
    if isinstance(value, str) and (found := RANGE.fullmatch(value)):
        ends = [values_of(key, [*sample, (key, end)])[0] for end in found.group(1, 2)]
        if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends):
            raise ConfigError(f"{key}={value}: a range needs a number, and {key} is none; list its values with commas")
        whole = all(isinstance(end, int) for end in ends)
        return Range(key, ends[0], ends[1], log=found[3] is not None, whole=whole)
    meant = _meant(key, value, sample)
    if len(meant) == 1:
        return Choice(key, (_number(value),))
    items = value if isinstance(value, list) else str(value).split(",")
    read = _spelled if all(isinstance(v, str) for v in meant) else _number  # names, or numbers and records
    return Choice(key, tuple(dict.fromkeys(read(i) for i in items)))


def _meant(key: str, value: Any, sample: Sequence[tuple[str, Any]]) -> Sequence[Any]:
    """The values of a setting that is no range; an error says how ranges are written where it looks like one."""
    try:
        return values_of(key, [*sample, (key, value)])
    except ConfigError as e:
        if RANGE_LIKE.search(str(value)):
            raise ConfigError(f"{e}; a range has two: {key}=LOW..HIGH, or LOW..HIGH:log, logarithmic") from e
        raise


def _number(value: Any) -> Any:
    """Text as a number where it spells one."""
    if isinstance(value, str):
        for kind in (int, float):
            try:
                number = kind(value)
            except ValueError:
                continue
            return number if math.isfinite(number) else value
    return value


def _spelled(value: Any) -> Any:
    """Text as a number where that number is written so: a column may be called 007, and is not the column 7."""
    number = _number(value)
    return number if str(number) == str(value) else value


def to_toml(settings: Iterable[tuple[str, Any]], head: str) -> str:
    """Settings as a file for `acclimate run -c`; keys of fields are quoted, so that a record can stand beside them."""
    lines = [f"# {line}" for line in head.splitlines()]
    for key, value in settings:
        name = key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key)
        lines.append(f"{name} = {_toml(_spelled(value))}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """A TOML value: JSON's spelling of numbers, truth, text and lists is TOML's too.

    TOML has no null, which settings call none, and no pairs of escapes for a character beyond 16 bits.
    """
    if dataclasses.is_dataclass(value):
        raise ConfigError(f"{value!r} cannot be written to a file; name it in the settings")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    text = json.dumps("none" if value is None else value, ensure_ascii=False)
    return text.replace("\x7f", "\\u007f")
