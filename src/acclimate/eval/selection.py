"""One of several adapters is chosen for every stream, without its labels: the choices and what they cost.

Labels of a stream are read for accuracies alone, and to choose by `oracle` alone. Candidates are served as the stream
is; `source` serves them the clients' validation examples with the stream's batch size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, vmap

from ..core import Adapter, Engine, Predict, Protocol, Shards, Task, Tree, rng
from ..ops import estimates as ops
from ..ops import selection
from ..ops.augment import Views
from ..ops.selection import Strategy
from .estimates import UNSERVED, Outputs, Session
from .grid import Test
from .observed import Observed
from .rows import round_float
from .selection_table import Pick, Selection

VIEWS = Views(zoom=0.7, flip=False, jitter=0.3, grey=0.0)
"""What answers are compared under: a window of each image in another light; nothing that turns a 6 into another."""


@dataclass(frozen=True)
class Viewed(Observed):
    """Observes its adapter, and keeps what it answers to one view of every sample.

    That answer is the adapter's own step from the state it has; the state that it leaves is thrown away. A sample has
    the same view whichever adapter answers, and however its stream is cut into batches.
    """

    passes: int = 0

    traces: ClassVar[Mapping[str, str]] = {"logits": "its answer", "view": "its answer to an augmented view"}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.adapter.step(task, predict, model, state, x, key)
        keys = rng.fold(rng.rows(key, x.shape[0]), "views")
        views = vmap(lambda image, own: VIEWS.views(image[None], own)[0])(x, keys)
        return logits, new, {"logits": logits, "view": self.adapter.answer(task, predict, model, state, views, key)}


class Chooser:
    """Live models, their clients' validation examples, and candidates in the order in which they were named."""

    def __init__(self, engine: Engine, models: Any, held: Shards, adapters: Mapping[str, Adapter]) -> None:
        self.session, self.held, self.adapters = Session(engine, models, held), held, adapters
        self._source: dict[tuple[str, int], Tensor] = {}

    def measure(self, stream: str, test: Test, strategies: Sequence[Strategy], each: bool) -> Selection:
        """The choices of all strategies on one stream; `each` client chooses its own where asked. None where no
        candidate is left."""
        kept, gone = self._candidates(test, "consistency" in strategies)
        left = tuple(f"{name} on {stream}: {why}" for name, why in gone.items())
        if not kept:
            return Selection(left_out=left)
        counts = next(iter(kept.values())).real.any(-1)
        hits = torch.stack([_by_client(ops.mean, out.hit, out.real) for out in kept.values()], 1)[counts]
        scores = {s: self._scores(s, kept, test, hits, counts) for s in dict.fromkeys((*strategies, "oracle"))}
        names, picked = list(kept), {s: _picked(v, each) for s, v in scores.items()}
        accuracy = {s: hits.gather(1, p[:, None])[:, 0] for s, p in picked.items()}
        top = float(accuracy["oracle"].double().mean())
        rows: list[Pick] = [
            Pick(
                stream=stream,
                strategy=s,
                by="client" if each else "stream",
                chosen=_counted(names, picked[s]) if each else {names[int(picked[s][0])]: len(hits)},
                accuracy=round_float(float(accuracy[s].double().mean())),
                gap=round_float(top - float(accuracy[s].double().mean())),
                per_client=[round_float(v) for v in accuracy[s].tolist()],
            )
            for s in strategies
        ]
        found = [
            {
                "stream": stream,
                "adapter": name,
                "accuracy": round_float(float(hits[:, i].double().mean())),
                "scores": {s: _number(scores[s][:, i].nanmean()) for s in strategies},
            }
            for i, name in enumerate(names)
        ]
        return Selection(tuple(rows), tuple(found), left)

    def _candidates(self, test: Test, views: bool) -> tuple[dict[str, Outputs], dict[str, str]]:
        """The outputs of the candidates that can be served the stream, and why the others cannot."""
        kept: dict[str, Outputs] = {}
        gone: dict[str, str] = {}
        for name, adapter in self.adapters.items():
            try:
                out = self._served(adapter, test, views)
            except UNSERVED as e:
                gone[name] = str(e)
                continue
            if out.finite:
                kept[name] = out
            else:
                gone[name] = "its answers are not finite"
        return kept, gone

    def _served(self, adapter: Adapter, test: Test, views: bool) -> Outputs:
        watched = Viewed(adapter) if views else Observed(adapter, 0)
        return self.session.serve_as(watched, test.shards, test.protocol)

    def _scores(
        self, strategy: Strategy, kept: Mapping[str, Outputs], test: Test, hits: Tensor, counts: Tensor
    ) -> Tensor:
        """What a strategy thinks of every client's candidates, [clients, candidates]."""
        if strategy == "oracle":
            return hits
        if strategy == "fixed":
            return -torch.arange(len(kept), dtype=hits.dtype).expand(len(hits), -1)
        if strategy == "source":
            return torch.stack([self._on_source(name, test.protocol.batch) for name in kept], 1)[counts]
        score = {"entropy": _certainty, "consistency": _consistency, "snd": _density}[strategy]
        return torch.stack([score(out) for out in kept.values()], 1)[counts]

    def _on_source(self, name: str, batch: int) -> Tensor:
        """The accuracy on every client's validation examples; NaN where it has none, or where it was not finite."""
        if (name, batch) not in self._source:
            out = self.session.serve(self.adapters[name], self.held, Protocol(batch))
            right = _by_client(ops.mean, out.hit, out.real)
            self._source[name, batch] = right if out.finite else torch.full_like(right, torch.nan)
        return self._source[name, batch]


def _by_client(score: Callable[..., Tensor], *values: Tensor) -> Tensor:
    """One client after the other: all pairs of samples of all clients at once may not fit into memory."""
    return torch.stack([score(*own) for own in zip(*values, strict=True)])


def _certainty(out: Outputs) -> Tensor:
    return _by_client(selection.certainty, out.logits, out.real)


def _consistency(out: Outputs) -> Tensor:
    return _by_client(ops.agreement, out.logits, out.trace["view"], out.real)


def _density(out: Outputs) -> Tensor:
    return _by_client(selection.density, out.logits, out.real)


def _picked(scores: Tensor, each: bool) -> Tensor:
    """Which candidate every client gets, [clients]."""
    together = scores.nanmean(0)
    return selection.best_of_each(scores, together) if each else selection.best(together).expand(len(scores))


def _counted(names: Sequence[str], picked: Tensor) -> dict[str, int]:
    """How many clients chose each candidate, those that nobody chose left out."""
    counts = Counter(picked.tolist())
    return {name: counts[i] for i, name in enumerate(names) if counts[i]}


def _number(value: Tensor) -> float | None:
    return round_float(float(value)) if bool(value.isfinite()) else None
