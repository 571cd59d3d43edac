"""Accuracy without labels of a trained experiment."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import Adapter, Personalizer, exchange
from ..eval import Test
from ..eval.estimate_table import Estimates
from ..eval.estimates import PASSES, measure
from ..shifts import LabelDrift, LabelSorted, Original, Shift
from .build import Fit
from .evaluate import Built, by_name, given, streams_of

STEADY = (Original, LabelDrift, LabelSorted)
"""Streams whose images are as in training: on them, an alarm of drift is false."""


def estimates(
    fit: Fit,
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    passes: int = PASSES,
) -> Estimates:
    """How well accuracy is estimated without labels: every adapter on every stream, at the last round.

    The defaults are the experiment's own. Adapters that cannot serve the model, or exchange with other clients, are
    left out, and so are streams of newcomers, who have no validation data. `passes` is the number of dropout passes for
    AETTA; 0 leaves it out.
    """
    adapters, streams = given("estimates", adapters, streams, personal)
    return of_built(fit, adapters, streams_of(fit.world, streams or fit.experiment.streams), personal, passes)


def of_built(
    fit: Fit, adapters: Sequence[Adapter] | None, built: Built, personal: Personalizer | None, passes: int = PASSES
) -> Estimates:
    """The same, for streams that are there already."""
    worker, engine, world = fit.worker, fit.engine, fit.world
    down = worker.method.download(worker.task, fit.state.server)
    models = engine.deploy(down, fit.state.mine, personal or fit.experiment.personal)
    model = engine.model_of(models, 0)
    named = by_name(adapters or fit.experiment.adapters)
    able = {n: a for n, a in named.items() if not (a.refusal(worker.task, model) or exchange.alone_refusal(a))}
    tests = {name: Test(s.shards, shift.protocol, s.new, s.examples) for name, (shift, s) in built.items()}
    steady = frozenset(name for name, (shift, _) in built.items() if isinstance(shift, STEADY))
    return measure(engine, models, world, world.val, able, tests, steady, passes)
