"""Adapters chosen without test labels, of a trained experiment."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Adapter, Personalizer, exchange
from ..core.nn.pixels import are_pixels
from ..data import World
from ..eval import Test
from ..eval.selection import Chooser
from ..eval.selection_table import By, Selection
from ..ops.selection import STRATEGIES, WITHOUT_LABELS, Strategy
from ..shifts import Shift
from .build import Fit
from .evaluate import Built, by_name, given, streams_of


def select(
    fit: Fit,
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    strategies: Sequence[Strategy] = WITHOUT_LABELS,
    by: By = "stream",
    personal: Personalizer | None = None,
) -> Selection:
    """Choose one of the adapters for every stream, by every strategy, at the last round; the defaults are the
    experiment's own.

    `fixed` takes the first, `source` the most accurate on the clients' labelled validation data, `entropy` the most
    certain, `consistency` the one whose answers change least under augmentation, `snd` the one with the highest soft
    neighbourhood density. `oracle` takes the most accurate by the stream's own labels: it is no strategy, and measured
    for the gap alone unless it is named. With by="client" every client chooses for itself. Adapters that cannot serve
    the model, or exchange with other clients, are left out, and so are streams of newcomers.
    """
    adapters, streams = given("select", adapters, streams, personal)
    built = streams_of(fit.world, streams or fit.experiment.streams)
    found, served = _chosen(fit, adapters, built, strategies, by, personal)
    if not served:
        raise ValueError(f"there is nothing to choose from: {'; '.join(found.left_out)}")
    if not found.rows and not all(stream.new for _, stream in built.values()):
        raise ArithmeticError(f"no candidate's answers are finite on any stream: {'; '.join(found.left_out)}")
    return found


def selected(fit: Fit, built: Built, strategies: Sequence[Strategy]) -> Selection:
    """The choices of a run, on streams that are there already; where there are none, it says why."""
    return _chosen(fit, None, built, strategies)[0]


def _chosen(
    fit: Fit,
    adapters: Sequence[Adapter] | None,
    built: Built,
    strategies: Sequence[Strategy],
    by: By = "stream",
    personal: Personalizer | None = None,
) -> tuple[Selection, bool]:
    """The choices, and whether any adapter can serve the model."""
    if by not in ("stream", "client"):
        raise ValueError(f"by={by!r} is not possible; allowed: stream, client")
    check(fit.world, built, strategies)
    worker, engine, world, found = fit.worker, fit.engine, fit.world, Selection()
    down = worker.method.download(worker.task, fit.state.server)
    models = engine.deploy(down, fit.state.mine, personal or fit.experiment.personal)
    model, named = engine.model_of(models, 0), by_name(adapters or fit.experiment.adapters)
    reasons = {name: a.refusal(worker.task, model) or exchange.alone_refusal(a) for name, a in named.items()}
    refused = {name: reason for name, reason in reasons.items() if reason}
    able = {name: a for name, a in named.items() if name not in refused}
    chooser = Chooser(engine, models, world.shards(world.val), able)
    for name, (shift, stream) in built.items():
        if stream.new:
            found += Selection(left_out=(f"{name}: its clients are newcomers",))
            continue
        if able:
            test = Test(stream.shards, shift.protocol)
            found += chooser.measure(name, test, strategies, by == "client")
    return Selection(left_out=tuple(f"{name}: {reason}" for name, reason in refused.items())) + found, bool(able)


def check(world: World, built: Built, strategies: Sequence[str]) -> None:
    """Refuse strategies that are unknown, or that these data cannot serve."""
    if unknown := [s for s in strategies if s not in STRATEGIES]:
        raise ValueError(f"strategies: {unknown[0]!r} is not possible; allowed: {', '.join(STRATEGIES)}")
    if not strategies:
        raise ValueError(f"strategies=() must name at least one of {', '.join(STRATEGIES)}")
    if "source" in strategies and not any(len(rows) for rows in world.val):
        raise ValueError(f"strategy source: {world.name} has no validation examples; leave it out")
    for name, (_, stream) in built.items():
        x = stream.shards.x
        if "consistency" in strategies and (x.dim() != 4 or not are_pixels(x)):
            raise ValueError(f"strategy consistency: stream {name} has no images to augment; leave it out")
