"""What the metrics of all clients come to: the numbers of one row, for tables and for the records of recipes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


class Summary(NamedTuple):
    """Means over the clients that have examples in a stream, and who these are. Without any, all numbers are zero."""

    clients: list[int]
    """The clients that count: those with examples."""
    accuracy: float
    std: float
    """Standard deviation of the accuracy over these clients, as of a whole population."""
    loss: float
    ece: float
    per_client: list[float]
    """The accuracy of each of them, in six digits."""
    exchanged: int = 0
    """Bytes that a client sent and got in the middle of its stream, on average; adapters that exchange have some."""

    def rounded(self) -> Summary:
        """The same, with every number in six digits."""
        accuracy, std, loss, ece = (round_float(v) for v in (self.accuracy, self.std, self.loss, self.ece))
        return Summary(self.clients, accuracy, std, loss, ece, self.per_client, self.exchanged)


def summary_of(metrics: Mapping[str, Tensor]) -> Summary:
    """The summary of what `Engine.serve` measured: `n`, `accuracy`, `loss` and `ece` of every client."""
    held = metrics["n"] > 0
    clients = held.nonzero()[:, 0].tolist()
    if not clients:
        return Summary([], 0.0, 0.0, 0.0, 0.0, [])
    accuracy = metrics["accuracy"][held].double()
    loss, ece = (float(metrics[name][held].double().mean()) for name in ("loss", "ece"))
    per_client = [round_float(a) for a in accuracy.tolist()]
    exchanged = round(float(metrics["exchanged"][held].double().mean())) if "exchanged" in metrics else 0
    std = float(accuracy.std(correction=0))
    return Summary(clients, float(accuracy.mean()), std, loss, ece, per_client, exchanged)


def round_float(value: float) -> float:
    """Six digits: what a share of a few hundred samples can carry."""
    return round(value, 6)
