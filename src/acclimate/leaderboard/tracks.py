"""The tracks of `brfl-v1`: what everybody trains on and is tested on, by settings, hashes and sketches.

What is frozen lies in `frozen/NAME.json` and never changes; another choice would be `brfl-v2`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..eval.same_stream import apart, names
from ..experiment import Experiment, encode
from ..experiment.settings import expand
from ..running.build import build
from ..running.evaluate import streams_of
from ..shifts.base import FROST, SYNTHESISED

BOARD = "brfl-v1"
SCHEMA = "acclimate.track/2"
"""Version 1 had no sketches of streams: their exact hash had to be the track's."""
FIXED = ("data", "model", "streams", "rounds", "cohort", "participation")
"""What a track decides. Method, personaliser, adapters and filters are the submission's."""


@dataclass(frozen=True)
class Track:
    """One track: the settings that are the same for all, and the seeds that every submission has."""

    name: str
    about: str
    settings: tuple[str, ...]
    seeds: tuple[int, ...] = (0, 1, 2)

    def experiment(self, *settings: str) -> Experiment:
        """The experiment of a submission, at the first seed; `settings` are those that a track leaves free."""
        if taken := [s for s in settings if s.partition("=")[0].partition(".")[0] in (*FIXED, "seed")]:
            raise ValueError(f"{taken[0]}: track {self.name} fixes {', '.join(FIXED)} and seed; leave it out")
        found = expand([*self.settings, *settings])
        if len(found) != 1:
            raise ValueError(f"{len(found)} experiments: a submission is of one; leave out the commas that sweep")
        return replace(found[0], seed=self.seeds[0])


TRACKS = {
    t.name: t
    for t in (
        Track(
            "small",
            "Embedded digits, ten clients of skewed classes, a perceptron with batch norm: minutes on a laptop.",
            ("data=digits", "model=mlp-bn", "model.hidden=64", "rounds=10"),
        ),
        Track(
            "cifar10-cnn",
            "CIFAR-10, twenty clients (Dirichlet 0.1), a small convolutional network.",
            ("data=cifar10", "data.partition=dirichlet-brfl", "data.partition.alpha=0.1", "model=cnn", "rounds=100"),
        ),
        Track(
            "cifar10-resnet20",
            "CIFAR-10, twenty clients (Dirichlet 0.1), ResNet-20 with group norm.",
            (
                "data=cifar10",
                "data.partition=dirichlet-brfl",
                "data.partition.alpha=0.1",
                "model=resnet20",
                "rounds=100",
            ),
        ),
    )
}


def track(name: str) -> Track:
    """A track by its name."""
    if name not in TRACKS:
        raise ValueError(f"track={name!r} is not possible; allowed: {', '.join(TRACKS)}")
    return TRACKS[name]


def fixed(experiment: Experiment) -> dict[str, Any]:
    """What a track decides of an experiment, as JSON; where the data lies does not count."""
    found = encode(experiment)
    part = {k: found.get(k) for k in FIXED}
    part["data"] = {k: v for k, v in part["data"].items() if k != "root"}
    return part


@contextmanager
def as_frozen() -> Iterator[None]:
    """Within, frost is synthesised, as it was when tracks were frozen; in processes that start there, too."""
    before = os.environ.get(FROST)
    os.environ[FROST] = SYNTHESISED
    try:
        yield
    finally:
        os.environ.pop(FROST) if before is None else os.environ.update({FROST: before})


@as_frozen()
def freeze(of: Track) -> dict[str, Any]:
    """What names data, splits and streams at every seed, and how many examples each client has in each stream.

    The exact `hash` of a stream with a sketch is for information: another machine's may differ.
    """
    seeds = {}
    for seed in of.seeds:
        experiment = replace(of.experiment(), seed=seed)
        world, _, engine = build(experiment)
        engine.close()
        card = world.card()
        data = {"examples": card["hash"], **{k: v["hash"] for k, v in card["splits"].items()}}
        streams = {
            name: {**names(stream), "sizes": [n for n in stream.shards.n.tolist() if n > 0]}
            for name, (_, stream) in streams_of(world, experiment.streams).items()
        }
        seeds[str(seed)] = {"data": data, "streams": streams}
    return {"schema": SCHEMA, "board": BOARD, "track": of.name, "settings": list(of.settings), "seeds": seeds}


@cache
def frozen(name: str) -> dict[str, Any]:
    """What was frozen of a track."""
    at = files(__package__) / "frozen" / f"{track(name).name}.json"
    if not at.is_file():
        raise ValueError(f"track {name} is not frozen yet: python -m acclimate.leaderboard freeze {name}")
    body: dict[str, Any] = json.loads(at.read_text(encoding="utf-8"))
    return body


def mismatch(given: Mapping[str, Any], known: Mapping[str, Any]) -> str | None:
    """Why data and streams of one seed are not those that were frozen; None where they are."""
    for name, wanted in known["data"].items():
        if given["data"].get(name) != wanted:
            return f"the hash of {name} is {given['data'].get(name)}, the track's is {wanted}"
    for name in {**known["streams"], **given["streams"]}:
        if name not in known["streams"] or name not in given["streams"]:
            return f"stream {name} is {'missing' if name in known['streams'] else 'not of the track'}"
        if why := apart(given["streams"][name], known["streams"][name]):
            return f"stream {name} is not the track's: {why}"
    return None
