"""Accuracy without labels along every stream, beside the true curve; and drift, found on traces of confidence.

Labels of a stream are read for the true curve alone. Estimates are fitted on the clients' validation data: as it is,
and distorted by corruptions that no stream has (distorted.py).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, vmap

from ..core import Adapter, CannotCalibrate, Engine, Protocol, Shards, Tree, rng, tree
from ..core.nn.layers import TooFewValues
from ..ops import classwise
from ..ops import estimates as ops
from ..ops.drift_detectors import ADWIN, Detector, PageHinkley, alarms
from ..shifts.base import Federation
from .distorted import distorted
from .estimate_table import Estimates
from .grid import Test
from .observed import Observed

WINDOW = 4
"""Batches over which curves are smoothed before they are compared."""
PASSES = 4
"""Dropout passes for AETTA."""
MOST_POINTS = 60
"""Batches of a curve that are kept for drawing; longer curves are thinned."""
DETECTORS: dict[str, Callable[[], Detector]] = {"adwin": lambda: ADWIN(delta=0.05), "page-hinkley": PageHinkley}
UNSERVED = (CannotCalibrate, TooFewValues)
"""What an engine raises where it cannot serve an adapter, or not in batches of this size."""
REPEATS = 4
"""How often a detector sees the validation data before a stream begins: a few dozen samples are little to know."""


class Outputs(NamedTuple):
    """An adapter's outputs on the streams of all clients, [clients, size, ...]."""

    trace: Tree
    y: Tensor
    real: Tensor

    @property
    def logits(self) -> Tensor:
        """What was answered."""
        logits: Tensor = self.trace["logits"]
        return logits

    @property
    def hit(self) -> Tensor:
        """Whether each answer was right: the only use of labels."""
        return (self.logits.argmax(-1) == self.y).to(self.logits.dtype)

    @property
    def finite(self) -> bool:
        """Whether all answers are: of others, the largest is no answer."""
        return bool(self.logits.isfinite().all(-1)[self.real].all())


class Fitted(NamedTuple):
    """What validation data says of an adapter: references of all clients, and offsets by group."""

    ref: Tree
    plain_temperature: Tensor
    own: Tensor
    everyone: Tensor
    usual: Tensor
    """The shares of the un-adapted model's answers by cell, of the client's own samples [clients, cells] ..."""
    others: Tensor
    """... and of those of all other clients."""
    confidence: list[list[float]]
    """Every client's confidences on validation data: what a drift detector sees first."""


class Session:
    """Live models that are served again and again; what the un-adapted model answers is computed once per stream."""

    def __init__(self, engine: Engine, models: Any, held: Shards) -> None:
        self.engine, self.models, self.held = engine, models, held
        self._plain: dict[str, Outputs] = {}

    def serve(self, adapter: Adapter, shards: Shards, served: Protocol, passes: int = 0) -> Outputs:
        """An adapter's outputs on every client's stream."""
        return self.serve_as(Observed(adapter, passes), shards, served)

    def serve_as(self, observed: Observed, shards: Shards, served: Protocol) -> Outputs:
        """The outputs of the adapter inside, and whatever else is traced of it."""
        adapter = observed.adapter
        models = self.engine.calibrated(self.models, self.held, adapter) if adapter.calibrates else self.models
        metrics = self.engine.serve(models, shards, observed, served, trace=True)
        trace: Tree = tree.to(metrics["trace"], "cpu")
        rows, n = shards.rows.cpu(), shards.n.cpu()
        return Outputs(trace, shards.y.cpu()[rows].to(torch.int64), torch.arange(rows.shape[1]) < n[:, None])

    def plain(self, name: str, shards: Shards) -> Outputs:
        """The un-adapted model's outputs on a stream of this name."""
        if name not in self._plain:
            self._plain[name] = self.serve(Adapter(), shards, Protocol())
        return self._plain[name]

    def alike(self, clients: int) -> bool:
        """Whether clients hold the same model, so that their agreement says nothing."""
        if clients < 2:
            return True
        a, b = (tree.leaves(self.engine.model_of(self.models, c)["vars"]) for c in (0, 1))
        return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def measure(
    engine: Engine,
    models: Any,
    world: Federation,
    val: tuple[Tensor, ...],
    adapters: Mapping[str, Adapter],
    tests: Mapping[str, Test],
    steady: frozenset[str] = frozenset({"original"}),
    passes: int = PASSES,
    window: int = WINDOW,
) -> Estimates:
    """Every estimate of every adapter on every stream. `steady` names the streams that do not drift.

    Streams of newcomers are left out: they have no validation data. So are streams that an adapter cannot be served, or
    on which its answers are not finite.
    """
    clean = Shards.of(world.examples.x, world.examples.y.to(torch.int64), list(val))
    bent = distorted(world, val, rng.key(0))
    session, classes = Session(engine, models, clean), len(world.examples.classes)
    rows, drift, curves = [], [], []
    for name, adapter in adapters.items():
        fitted: Fitted | None = None
        for stream, test in tests.items():
            seen = None if test.new else _served(session, adapter, test, passes)
            if seen is None or not seen.finite:
                continue
            fitted = fitted or _fit(session, adapter, clean, bent, classes)
            other = None if session.alike(len(val)) else _neighbour(session, adapter, test)
            found, whole = _curves(fitted, seen, session.plain(stream, test.shards), other, test.protocol.batch)
            words = {"adapter": name, "stream": stream}
            luck = {"draw": _number(draw(seen.hit, seen.real, _examples(test)).nanmean())}
            errors = _errors(found, whole, _counts(seen, test.protocol.batch), window)
            rows += [{**words, **row, **luck} for row in errors]
            curves.append({**words, "batch": test.protocol.batch, "curves": _drawn(found, window, seen, test)})
            drift += [{**words, **row} for row in _drift(fitted, seen, stream not in steady)]
    return Estimates(tuple(rows), tuple(drift), tuple(curves), window)


def _served(session: Session, adapter: Adapter, test: Test, passes: int) -> Outputs | None:
    """What an adapter answers on a stream; None where it cannot be served that."""
    try:
        return session.serve(adapter, test.shards, test.protocol, passes)
    except UNSERVED:
        return None


def _fit(session: Session, adapter: Adapter, clean: Shards, bent: Shards, classes: int) -> Fitted:
    """References and offsets of one adapter, from validation data alone."""
    seen = session.serve(adapter, clean, Protocol())
    ref = vmap(lambda x, y, real: ops.reference(x, y, real, classes))(seen.logits, seen.y, seen.real)
    plain = session.plain("validation", clean)
    t = ops.temperature(plain.logits.flatten(0, 1), plain.y.flatten(), plain.real.flatten())
    pooled = ops.temperature(seen.logits.flatten(0, 1), seen.y.flatten(), seen.real.flatten())
    ref = {**ref, "pooled": pooled.expand(len(seen.y))}
    hard, base = session.serve(adapter, bent, Protocol()), session.plain("distorted", bent)
    chances, groups = classwise.chance(hard.logits, pooled, base.logits, t), classwise.group(hard.logits, base.logits)
    rows, gap = vmap(partial(classwise.gaps, count=2 * classes))(chances, groups, hard.hit, hard.real)
    certain = vmap(ops.certainty)(seen.logits, ref["temperature"])
    confidence = [c[r].tolist() for c, r in zip(certain, seen.real, strict=True)]
    usual = classwise.profiles(_cells(base, t).sum(1))
    return Fitted(ref, t, *classwise.offsets(rows, gap), *usual, confidence)


def _cells(plain: Outputs, t: Tensor) -> Tensor:
    """The cell of each row, one-hot [clients, size, cells]; zero in rows that do not count."""
    cells = F.one_hot(classwise.cell(plain.logits, t), 2 * plain.logits.shape[-1])
    return cells.to(plain.logits.dtype) * plain.real[..., None]


def _neighbour(session: Session, adapter: Adapter, test: Test) -> Tensor:
    """What the next client's model answers on each client's stream."""
    s = test.shards
    rolled = Shards(s.x, s.y, s.rows.roll(1, 0), s.n.roll(1, 0))
    return session.serve(adapter, rolled, test.protocol).logits.roll(-1, 0)


def _curves(
    fitted: Fitted, seen: Outputs, plain: Outputs, other: Tensor | None, batch: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The truth and each estimate: per batch [clients, batches], and of the whole stream [clients]."""
    ref, real, logits = fitted.ref, cut(seen.real, batch), cut(seen.logits, batch)
    each = vmap(vmap(ops.mean))
    out = {"truth": each(cut(seen.hit, batch), real)}
    for name, estimate in (("doc", ops.doc), ("atc", ops.atc), ("cbpe", ops.cbpe)):
        out[name] = vmap(vmap(estimate, in_dims=(None, 0, 0)))(ref, logits, real)
    if "differs" in seen.trace:
        differs, dropped = cut(seen.trace["differs"], batch), cut(seen.trace["dropped"], batch)
        by_prior = vmap(vmap(ops.aetta, in_dims=(0, 0, 0, None)))
        out["aetta"] = ops.smoothed(by_prior(differs, dropped, real, ref["prior"]))
        out["aetta-uniform"] = ops.smoothed(vmap(vmap(ops.aetta))(differs, dropped, real))
    if other is not None:
        out["agreement"] = vmap(vmap(ops.agreement))(logits, cut(other, batch), real)
    counts = real.sum(-1)
    whole = {name: _total(values, counts) for name, values in out.items()}
    known = 0.0 * ref["accuracy"][:, None]  # NaN for clients without validation data
    cells = cut(_cells(plain, fitted.plain_temperature), batch)
    so_far = classwise.belonging(fitted.usual[:, None], fitted.others[:, None], cells.sum(2).cumsum(1))
    out["classwise"] = each(cut(_rows(fitted, seen, plain, (cells * so_far[:, :, None]).sum(-1)), batch), real) + known
    at_last = classwise.belonging(fitted.usual, fitted.others, cells.sum((1, 2)))
    final = _rows(fitted, seen, plain, (cells * at_last[:, None, None]).sum(-1)) + known
    whole["classwise"] = vmap(ops.mean)(final, seen.real)
    return out, whole


def _rows(fitted: Fitted, seen: Outputs, plain: Outputs, belongs: Tensor) -> Tensor:
    """The class-wise estimate of every row [clients, size], where rows of batches belong to the client so far."""
    t = fitted.ref["pooled"][0], fitted.plain_temperature
    chances = classwise.chance(seen.logits, t[0], plain.logits, t[1])
    groups, belongs = classwise.group(seen.logits, plain.logits), belongs.flatten(1)[:, : chances.shape[1]]
    return vmap(classwise.classwise, in_dims=(0, 0, 0, None, 0))(chances, groups, fitted.own, fitted.everyone, belongs)


def cut(values: Tensor, batch: int) -> Tensor:
    """[clients, size, ...] as [clients, batches, batch, ...]; what is missing of the last batch is zero."""
    short = -values.shape[1] % batch
    filled = torch.cat((values, values.new_zeros(len(values), short, *values.shape[2:])), 1)
    return filled.view(len(values), -1, batch, *values.shape[2:])


def _counts(seen: Outputs, batch: int) -> Tensor:
    return cut(seen.real, batch).sum(-1)


def _total(values: Tensor, counts: Tensor) -> Tensor:
    """Means over batches that hold `counts` samples, along the last axis; batches without any do not count."""
    return torch.where(counts > 0, values * counts, 0.0).sum(-1) / counts.sum(-1)


def moving(values: Tensor, counts: Tensor, window: int) -> Tensor:
    """Means over so many neighbouring batches [clients, windows]; NaN where a window is not full."""
    width = min(window, values.shape[1])
    c = counts.unfold(1, width, 1)
    full = (c > 0).all(-1) | (torch.arange(c.shape[1]) == 0)  # a shorter stream has one window, its own
    return torch.where(full, _total(values.unfold(1, width, 1), c), torch.nan)


def _errors(
    found: Mapping[str, Tensor], whole: Mapping[str, Tensor], counts: Tensor, window: int
) -> list[dict[str, Any]]:
    """Per estimate, its mean absolute error: of the whole stream per client, and of the smoothed curve."""
    truth, rows = moving(found["truth"], counts, window), []
    for name in whole:
        if name != "truth":
            off = whole[name].clamp(0.0, 1.0) - whole["truth"]
            along = (moving(found[name], counts, window).clamp(0.0, 1.0) - truth).abs()
            row = {"error": off.abs(), "curve_error": along, "bias": off}
            numbers = {k: _number(v.nanmean()) for k, v in row.items()}
            rows.append({"estimator": name, "clients": int(off.isfinite().sum()), **numbers})
    return rows


def draw(hit: Tensor, real: Tensor, examples: Tensor) -> Tensor:
    """The mean absolute error of knowing each client's expected accuracy but not its samples, [clients].

    That of a normal deviate: the accuracy of n samples varies by p (1 - p) / (n - 1), if each is of another of the
    `examples` [clients, size]. Those of one example are right or wrong together, and count as one draw."""
    out = []
    for h, r, e in zip(hit, real, examples, strict=True):
        own, rank = e[r].unique(return_inverse=True)
        sums = torch.zeros(len(own)).index_add(0, rank, h[r] - h[r].mean())
        out.append(sums.square().sum() / r.sum() ** 2 * len(own) / (len(own) - 1))
    return (2.0 / math.pi * torch.stack(out)).sqrt()


def _examples(test: Test) -> Tensor:
    rows = test.shards.rows.cpu()
    return rows if test.copied is None else test.copied.cpu()[rows]


def _drawn(found: Mapping[str, Tensor], window: int, seen: Outputs, test: Test) -> dict[str, list[float | None]]:
    """The smoothed curves, mean over clients, for a picture."""
    counts = _counts(seen, test.protocol.batch)
    out = {}
    for name, values in found.items():
        mean = moving(values, counts, window).clamp(0.0, 1.0).nanmean(0)
        thin = mean[torch.linspace(0, len(mean) - 1, min(len(mean), MOST_POINTS)).round().long()]
        out[name] = [_number(v) for v in thin]
    return out


def _drift(fitted: Fitted, seen: Outputs, drifts: bool) -> list[dict[str, Any]]:
    """Per detector: how many clients had an alarm on the trace of confidence, and after how many samples it came.

    Where the stream does not drift, alarms are false."""
    certain = vmap(ops.certainty)(seen.logits, fitted.ref["temperature"])
    traces = [c[r].tolist() for c, r in zip(certain, seen.real, strict=True)]
    pairs = zip(fitted.confidence, traces, strict=True)
    known = [(b, t) for b, t in pairs if b and t and all(map(math.isfinite, (*b, *t)))]
    rows = []
    for name, make in DETECTORS.items():
        found = [alarms(make(), trace, before * REPEATS) for before, trace in known]
        first = [f[0] for f in found if f]
        rows.append(
            {
                "detector": name,
                "drifts": drifts,
                "clients": len(found),
                "alarmed": len(first),
                "alarms": sum(map(len, found)),
                "samples": sum(len(trace) for _, trace in known),
                "first": statistics.median(first) if first else None,
            }
        )
    return rows


def _number(value: Tensor) -> float | None:
    """Six digits for JSON; None where there is none."""
    return round(float(value), 6) if bool(torch.isfinite(value)) else None
