"""What a cell reads from the record of a training: accuracies, fairness, costs, curves, traces, prototypes, ensembles.

| measure | what |
|---|---|
| `accuracy` | mean over clients at the last round |
| `validation`, `best` | validation data, and the stream, at the round of best adapted validation (looks needed) |
| `highest` | the stream at its own best look, which test data chose: no result, but FedTTA's released code prints it |
| `round:R`, `validation:R` | the stream, and validation data, after round R or the last look before it (looks needed) |
| `domain:NAME` | mean over the clients that hold this domain |
| `worst10`, `worst20`, `worst40`, `best10`, `std` | over clients, as in `eval.fairness` |
| `trace:NAME` | mean over samples of what the adapter told |
| `sent`, `trained`, `fixed` | parameters that a client sends per round, trains, and holds frozen |
| `seconds` | the median of a round |
| `similarity:DOMAIN` | of a client's prototypes to those of the training it is compared with |
| `ensemble:NAME` | of the mean logits of this name that clients sent in the last round, on the public set |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import torch

from ..eval.fairness import fairness, prototype_similarity
from ..experiment import ConfigError
from ..experiment.catalogue import nearest

COSTS = ("sent", "trained", "fixed", "seconds")
FAIRNESS = ("worst10", "worst20", "worst40", "best10", "std")
WITH_NAME = ("round", "validation", "domain", "trace", "similarity", "ensemble")
"""Measures that are followed by a colon and a name, or a round."""
CURVES = ("validation", "best", "highest", "round")
"""Measures that need looks during training."""
ALONE = ("accuracy", "validation", "best", "highest", *FAIRNESS, *COSTS)
"""Measures that are one word."""
ENTRIES = {"similarity": "prototypes", "ensemble": "ensemble"}
"""What a record has of a training's last state for these measures alone."""


def known(measure: str) -> bool:
    """Whether there is such a measure."""
    word, colon, rest = measure.partition(":")
    if not colon:
        return word in ALONE
    return rest.isdecimal() if word in ("round", "validation") else word in WITH_NAME and bool(rest)


def require(measure: str) -> None:
    """An error that names all measures where there is no such one."""
    if not known(measure):
        named = ("round:R", "validation:R", "domain:NAME", "trace:NAME", "similarity:DOMAIN", "ensemble:NAME")
        raise ConfigError(f"no measure '{measure}'; {nearest(measure, [*ALONE, *named])}")


def curved(measure: str) -> bool:
    """Whether it is read from a learning curve."""
    return measure.partition(":")[0] in CURVES


def entry(measure: str) -> frozenset[str]:
    """The entry of a record that is made for this measure, or none."""
    word = measure.partition(":")[0]
    return frozenset({ENTRIES[word]} if word in ENTRIES else ())


def in_percent(measure: str) -> bool:
    """Whether it is a share, shown in %."""
    return measure not in COSTS and measure.partition(":")[0] not in ("trace", "similarity")


def value(measure: str, record: Mapping[str, Any], test: Mapping[str, Any], other: Mapping[str, Any] | None) -> float:
    """The number that a measure reads; shares in %."""
    require(measure)
    found = _value(measure, record, test, other)
    return 100 * found if in_percent(measure) else found


def _value(measure: str, record: Mapping[str, Any], test: Mapping[str, Any], other: Mapping[str, Any] | None) -> float:
    word, _, name = measure.partition(":")
    if word in COSTS:
        return float(record[word])
    if word in CURVES:
        return _curve(word, name, test["curve"])
    if word in FAIRNESS:
        return float(fairness(test["per_client"])[word])  # type: ignore[literal-required]
    if word == "trace":
        return float(test["traces"][name])
    if word == "domain":
        tested = test.get("clients", range(len(test["per_client"])))  # those that have examples in this stream
        return fmean(_held(test["per_client"], [record["client_domains"][c] for c in tested], name))
    if word == "ensemble":
        return float(record["ensemble"][name])
    if word == "similarity":
        assert other is not None, "similarity compares two trainings"
        return fmean(_held(_similar(record["prototypes"], other["prototypes"]), record["client_domains"], name))
    return float(test["accuracy"])


def _curve(word: str, name: str, curve: Sequence[Sequence[float]]) -> float:
    """Points are `[round, validation, accuracy]`; of equal rounds the first counts as best."""
    if name:
        return [point[2 if word == "round" else 1] for point in curve if point[0] <= int(name)][-1]
    best = max(curve, key=lambda point: point[2 if word == "highest" else 1])
    return best[1] if word == "validation" else best[2]


def _held(values: Sequence[float], domains: Sequence[str], name: str) -> list[float]:
    return [v for v, domain in zip(values, domains, strict=True) if domain == name]


def _similar(own: Mapping[str, Any], fused: Mapping[str, Any]) -> list[float]:
    single, both, counts = (torch.tensor(v) for v in (own["sets"], fused["sets"], own["counts"]))
    return prototype_similarity(list(single), list(both), list(counts))
