"""What a server counts: per client for the page and for Prometheus, without any input."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..live import Answer
from ..live.model import HELD
from .host import Host
from .records import Ask

EVENTS = 20
"""Events of a client that the page shows."""


@dataclass
class Tally:
    """What is known of one client since the server began."""

    requests: int = 0
    samples: int = 0
    adapted: int = 0
    held: int = 0
    """Requests whose adapted answer the guard held back."""
    step: int = 0
    estimate: float | None = None
    entropy: float | None = None
    """Mean entropy of the answers, in nats, over about the last 50 requests."""
    holding: bool = False
    events: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=EVENTS))

    def note(self, what: str) -> None:
        """Keep an event."""
        self.events.append((time.time(), what))

    def count(self, answer: Answer, now: float) -> None:
        """Count an answer, and the mean entropy of its samples."""
        self.requests += 1
        self.samples += len(answer.ids)
        self.adapted += sum(answer.adapted)
        self.step, self.estimate = answer.step, answer.estimate
        self.entropy = now if self.entropy is None else 0.98 * self.entropy + 0.02 * now
        holding = answer.note == HELD
        self.held += holding
        if holding != self.holding:
            self.note("the guard holds adapted answers back" if holding else "the guard lets adapted answers out")
        self.holding = holding


class Scoreboard(Collector):
    """All tallies; Prometheus collects them when it asks."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.tallies = {c: Tally(step=int(host.sessions["step"][row])) for c, row in host.rows.items()}
        self.statuses: Counter[str] = Counter()
        self.waiting = 0
        self.registry = CollectorRegistry()
        about = {"registry": self.registry}
        self.seconds = Histogram("acclimate_step_seconds", "Seconds of a step: compute, log, flush", **about)  # type: ignore[arg-type]
        sizes = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
        self.group = Histogram("acclimate_step_clients", "Clients in a step", buckets=sizes, **about)  # type: ignore[arg-type]
        self.registry.register(self)

    def step(self, asks: Sequence[Ask], answers: Sequence[Answer], seconds: float) -> None:
        """Count a step; answers that are not finite were refused, and do not count."""
        self.seconds.observe(seconds)
        self.group.observe(len(asks))
        p = torch.cat([answer.probabilities for answer in answers])
        entropies = iter((-(p * p.clamp_min(1e-12).log()).sum(-1)).tolist())
        for ask, answer in zip(asks, answers, strict=True):
            now = statistics.fmean(islice(entropies, len(answer.ids)))
            if math.isfinite(now):
                self.tallies[ask.client].count(answer, now)

    def collect(self) -> Iterable[Metric]:
        """What is counted, for Prometheus."""
        yield from self._replies()
        counts = {"requests": "Requests answered", "samples": "Samples answered"}
        counts |= {"adapted": "Adapted answers", "held": "Requests whose adapted answer the guard held back"}
        for name, text in counts.items():
            family = CounterMetricFamily(f"acclimate_{name}", text, labels=["client"])
            for client, tally in self.tallies.items():
                family.add_metric([str(client)], getattr(tally, name))
            yield family
        values = {"step": "Steps of adaptation", "estimate": "Estimated accuracy", "entropy": "Mean entropy of answers"}
        for name, text in values.items():
            gauge = GaugeMetricFamily(f"acclimate_{name}", text, labels=["client"])
            for client, tally in self.tallies.items():
                if (value := getattr(tally, name)) is not None:
                    gauge.add_metric([str(client)], value)
            yield gauge
        frozen = GaugeMetricFamily("acclimate_frozen", "Whether a client's adaptation is frozen", labels=["client"])
        for client, row in self.host.rows.items():
            frozen.add_metric([str(client)], float(self.host.shells[row].frozen))
        yield frozen

    def _replies(self) -> Iterable[Metric]:
        replies = CounterMetricFamily("acclimate_replies", "Replies by HTTP status", labels=["status"])
        for status, count in list(self.statuses.items()):
            replies.add_metric([status], count)
        yield replies
        yield GaugeMetricFamily("acclimate_waiting", "Requests that wait", value=self.waiting)

    def metrics(self) -> bytes:
        """The text that Prometheus reads."""
        return generate_latest(self.registry)

    def rows(self) -> list[dict[str, Any]]:
        """What the page shows of each client."""
        out = []
        for client, row in self.host.rows.items():
            tally, shell = self.tallies[client], self.host.shells[row]
            out.append(
                {
                    "client": client,
                    "frozen": shell.frozen,
                    "restorable": [step for step, _ in list(self.host.kept[row])],
                    "measured": shell.measured,
                    **{k: getattr(tally, k) for k in ("requests", "samples", "adapted", "held", "step")},
                    **{k: getattr(tally, k) for k in ("estimate", "entropy")},
                    "events": [{"time": when, "text": text} for when, text in list(tally.events)],
                }
            )
        return out
