"""A guard around any adapter: its step is computed, judged, and only then answered with and kept. Our own.

Per batch the un-adapted model answers too. Labelled validation examples that the client keeps are answered by both, by
the adapted one *through the state that gave its answer*, so that a collapsed state shows; images once as they are and
once dressed as the batch (`ops/dressing.py`), so that what a corruption does to either model shows as well. That
calibrates each model's probabilities, and says which of the two is better on this client's own samples. The adapted
answer goes out where it is estimated to be better (`ops/guarding.py`) by `margin` and `errors` standard errors, unless
the stream is not this client's (`foreign`, `likely`, `surer`): its validation examples then know nothing of it. Where
it is estimated to be worse by as much, or the state is not finite or too far from the deployed weights, `policy` says
what becomes of the state. The mean prediction is compared with the *client's own* class frequencies, never with uniform
ones: a client with two classes always looks collapsed to the published tests.

Published rules as settings: `every` starts afresh after so many batches (RDumb; Press et al., NeurIPS 2023), `rule`
where the smoothed entropy of answers falls below a share of ln C (`sar`; Niu et al., ICLR 2023), where the entropy of
the mean prediction falls below its running value, which follows the flips (`asr`; Lim et al., ICLR 2026, its restart of
all tensors alone), or where the estimated accuracy is below a fifth, or two points lower in the last five batches than
in the five before (`aetta`; Lee et al., CVPR 2024, with our estimate in the place of its own).

Without validation examples nothing can be calibrated: the un-adapted model answers, and the state is judged alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Predict, Task, Tree, rng, tree
from ..ops import guarding
from ..ops.restarts import restart, started
from .guarded_settings import GuardSettings


@dataclass(frozen=True)
class Guarded(GuardSettings):
    """Answers as the adapter inside does, or as the un-adapted model where that is estimated to be safer."""

    def calibrate(self, task: Task, predict: Predict, model: Tree, data: Tree) -> Tree:
        x, y, real = guarding.examples(data, self.kept)
        return {"x": x, "y": y, "real": real, "prior": guarding.prior(y, real, task.num_classes)}

    def init(self, task: Task, model: Tree) -> Tree:
        inner = self.adapter.init(task, model)
        zero = model["vars"]["params"][task.head_weight].new_zeros(())
        sums = dict.fromkeys(guarding.SUMS, zero)
        states = {"inner": inner, "fresh": inner, "good": inner}
        return {**states, "sums": sums, "rule": started(task, zero), "frozen": zero}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        inner = guarding.without_nan(self.adapter.prepare(task, predict, model, state["inner"], x, real, key))
        return {**state, "inner": inner, "fresh": inner, "good": inner}

    def meets(self, state: Tree, new: Tensor) -> Tree:
        return {**state, "new": new}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return self._judged(task, predict, model, state, x, key)[:2]

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new, seen = self._judged(task, predict, model, state, x, key)
        return logits, new, tree.map(lambda v: v.to(logits.dtype).expand(len(x)), seen)

    def _judged(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        """The answer, the state for the next batch, and what the guard saw."""
        ref = model.get("reference") or replace(self, kept=1).calibrate(task, predict, model, guarding.nothing(x))
        new_ones, inner = state.get("new"), state["inner"]
        plain = predict(model, x).logits
        adapted, new = self.adapter.step(task, predict, model, inner, x, key)

        def answer(some: Tensor) -> Tensor:
            return self.adapter.step(task, predict, model, inner, some, key)[0]

        kept, y, real = guarding.beside(ref, x)
        known = torch.nan_to_num(predict(model, kept).logits)
        probed = guarding.in_batches(answer, kept, len(x))
        home = guarding.known(known, y, real, most=guarding.MOST_PLAIN)
        live = guarding.known(probed, y, real, least=guarding.LEAST_ADAPTED)
        p = torch.nan_to_num(guarding.probabilities(plain, home))
        q = torch.nan_to_num(guarding.probabilities(adapted, live))
        mix = {"rare": guarding.rare(known, real), "home": guarding.home(known, real), "prior": ref["prior"]}
        sums, seen = guarding.weighed(state["sums"], p, q, {**home, **mix}, self.forget, new_ones)
        lead = guarding.lead(*(v[-len(ref["y"]) :] for v in (known, probed, y, real)))  # images: the dressed ones
        lead = lead * ((self.foreign - seen["foreign"]) / (self.foreign - self.familiar)).clamp(0.0, 1.0)
        gain = seen["gain"] + self.bonus * seen["nearer"].clamp(-1.0, 1.0) + self.validated * lead
        bar = self.margin + self.errors * sums["squares"].sqrt() / sums["samples"]
        moved = guarding.moved(new, state["fresh"]) + torch.zeros_like(gain)
        sound = torch.isfinite(adapted).all() & guarding.numbers(new)
        near, calibrated = sound & (moved <= self.distance) & (state["frozen"] == 0), real.any()
        own = calibrated & (seen["foreign"] <= self.foreign) & (seen["surer"] <= self.surer)
        own = own & (seen["likely"] > guarding.least_likely(seen.pop("level"), self.likely))
        used, harmful = near & own & (gain > bar), ~near | (calibrated & (gain < -bar))
        adapted_estimate = guarding.accuracy(q, live)
        estimate = torch.where(used, adapted_estimate, guarding.accuracy(p, home))
        seen |= {"gain": gain, "used": used, "moved": moved, "harmful": harmful, "estimate": estimate}
        again, rule = restart(self.rule, self.every, state["rule"], p, q, adapted_estimate)
        after = self._after(tree.drop(state, ("new",)), new, used, harmful, sound)
        later = {**after, "inner": tree.where(again, state["fresh"], after["inner"]), "sums": sums, "rule": rule}
        return torch.where(used, torch.nan_to_num(adapted), plain), later, seen

    def _after(self, state: Tree, new: Tree, used: Tensor, harmful: Tensor, sound: Tensor) -> Tree:
        """The state for the next batch, as the policy says. What is not a number never stays."""
        old, fresh = state["inner"], state["fresh"]
        instead = {"warn": new, "skip": old, "restore": state["good"], "reset": fresh, "freeze": old}[self.policy]
        inner = tree.where(harmful, tree.where(sound, instead, fresh), new)
        frozen = torch.where(harmful, 1.0, state["frozen"]) if self.policy == "freeze" else state["frozen"]
        return {**state, "inner": inner, "good": tree.where(used, new, state["good"]), "frozen": frozen}
