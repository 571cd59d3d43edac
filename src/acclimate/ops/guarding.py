"""Whether adapted answers may go out: what two models' answers to a batch say about each other, without labels.

Only samples to which the two give different answers can change accuracy. Of each such flip, the mean of the two models'
calibrated probabilities says which answer is likelier right; of what seems a stranger's sample, those of the un-adapted
model. The sum over recent batches, older ones counting less, is the estimated gain; its own noise comes from the flips'
squares. All functions are pure and run under `vmap`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Tree, tree
from . import estimates
from .dressing import dressed

MOST_PLAIN, LEAST_ADAPTED = 1.0, 0.7
"""Temperatures are bounded on the safe side: the un-adapted model's probabilities are not made flatter than they are,
and the adapted one's not much sharper, whatever a few validation examples say."""


def known(logits: Tensor, y: Tensor, real: Tensor, most: float = torch.inf, least: float = 0.0) -> Tree:
    """What a model does on labelled examples [N]: `temperature` within bounds, `accuracy` and mean `confidence`.

    Without any example that counts, the temperature is 1 and the rest NaN.
    """
    t = estimates.temperature(logits, y, real)
    t = torch.where(torch.isnan(t), 1.0, t).clamp(least, most)
    confidence, hit = estimates.certainty(logits, t), (logits.argmax(-1) == y).to(logits.dtype)
    return {
        "temperature": t,
        "accuracy": estimates.mean(hit, real),
        "confidence": estimates.mean(confidence, real),
    }


def lead(plain: Tensor, adapted: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The adapted model's lead in accuracy, by the logits of both for labelled examples; 0 without any."""
    ahead = (adapted.argmax(-1) == y).to(plain.dtype) - (plain.argmax(-1) == y).to(plain.dtype)
    return torch.nan_to_num(estimates.mean(ahead, real))


def probabilities(logits: Tensor, ref: Tree) -> Tensor:
    """Calibrated probabilities of a batch."""
    return (logits / ref["temperature"]).softmax(-1)


def accuracy(probs: Tensor, ref: Tree) -> Tensor:
    """The estimated accuracy of a batch, by difference of confidences, between 0 and 1."""
    return (ref["accuracy"] - ref["confidence"] + probs.amax(-1).mean(-1)).clamp(0.0, 1.0)


def prior(y: Tensor, real: Tensor, classes: int) -> Tensor:
    """A client's class frequencies; a class that it never had counts for a hundredth of its examples."""
    counts = (F.one_hot(y, classes).to(torch.float32) * real[:, None]).sum(0) + 0.01 * real.sum() + 1e-6
    return counts / counts.sum()


RARE = 0.06


def examples(data: Tree, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and labels of a client's labelled examples in `count` places, and which places count.

    Images have half as many places, since each is answered twice (`beside`).
    """
    places = count - count // 2 if data["x"].dim() == 4 else count
    at = torch.arange(places, device=data["n"].device)
    rows = data["rows"][at % data["n"].clamp_min(1)]
    return data["x"][rows], data["y"][rows], at < data["n"]


def beside(ref: Tree, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Kept examples as they are answered beside a batch: images as they are, and once more dressed as the batch."""
    kept, y, real = ref["x"], ref["y"], ref["real"]
    if kept.dim() != 4:
        return kept, y, real
    return torch.cat((kept, dressed(kept, x))), torch.cat((y, y)), torch.cat((real, real))


def nothing(x: Tensor) -> Tree:
    """The data of a client that has no labelled examples; `x` stands for their form."""
    rows = torch.arange(len(x), device=x.device)
    return {"x": x, "y": torch.zeros_like(rows), "rows": rows, "n": torch.zeros_like(rows[0])}


def rare(logits: Tensor, real: Tensor) -> Tensor:
    """[classes]: 1 for a class that less than `RARE` of the answers to validation examples name, else 0."""
    counts = (F.one_hot(logits.argmax(-1), logits.shape[-1]) * real[:, None]).sum(0)
    return (counts < RARE * real.sum()).to(logits.dtype)


def home(logits: Tensor, real: Tensor) -> Tree:
    """How well answers fit those to a client's validation examples: likelihood ratios, in nats per answer.

    `ratio` [classes] is the log of how much more often a class is answered there than one in so many classes; every
    class counts for one answer more, so that none is impossible. `level` is the mean ratio of the answers there, each
    by the shares of the others.
    """
    classes = logits.shape[-1]
    counts = (F.one_hot(logits.argmax(-1), classes) * real[:, None]).sum(0).to(logits.dtype)
    total = counts.sum()
    others = (classes * counts.clamp_min(1.0) / (total - 1.0 + classes)).log()
    level = (counts * others).sum() / total.clamp_min(1.0)
    return {"ratio": (classes * (counts + 1.0) / (total + classes)).log(), "level": level}


NEARBY = 0.3
"""Nats by which answers may always fit worse than at home: where all classes are a client's own, none are foreign."""


def least_likely(level: Tensor, share: float) -> Tensor:
    """The mean ratio that answers of this client's own stream have at least."""
    return torch.minimum(share * level, level - NEARBY)


def in_batches(answer: Callable[[Tensor], Tensor], x: Tensor, size: int) -> Tensor:
    """Answers to kept examples in batches as large as the stream's; the last one wraps around. NaN is made 0."""
    at = torch.arange(-(-len(x) // size) * size, device=x.device) % len(x)
    return torch.nan_to_num(torch.cat([answer(x[rows]) for rows in at.split(size)])[: len(x)])


NO_STRANGERS, STRANGERS = 0.1, 0.3
"""Shares of answers with classes that are not this client's: up to the first no sample is presumed a stranger's, from
the second on every one that seems so is."""


def evidence(
    plain: Tensor, adapted: Tensor, ref: Tree, foreign: Tensor, new: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Of the probabilities that two models give to one batch [B, C]: the summed gain of answering as the adapted one
    does, and the sum of its squares. Where `new` [B] is given, samples count that often: 0 or 1.

    Where the un-adapted model names a class that is `rare` among its answers to kept examples, and is as sure of it as
    of those (`confidence`), the sample seems a stranger's, of which the adapted model knows nothing: the un-adapted
    model's probabilities alone tell, the more so the surer it is and the more `foreign` the stream.
    """
    now, old = adapted.argmax(-1, keepdim=True), plain.argmax(-1, keepdim=True)
    sure = torch.nan_to_num(plain.gather(-1, old) / ref["confidence"].clamp_min(1e-6)).clamp_max(1.0)
    presumed = ((foreign - NO_STRANGERS) / (STRANGERS - NO_STRANGERS)).clamp(0.0, 1.0)
    mean = plain + (1.0 - presumed * ref["rare"][old] * sure) * (adapted - plain) / 2
    flip = (now != old)[..., 0].to(plain.dtype)
    gain = (mean.gather(-1, now) - mean.gather(-1, old))[..., 0] * (flip if new is None else flip * new)
    return gain.sum(-1), gain.square().sum(-1)


SUMS = ("gain", "squares", "foreign", "surer", "likely", "level", "samples")


def weighed(
    sums: Tree, plain: Tensor, adapted: Tensor, ref: Tree, forget: float, new: Tensor | None = None
) -> tuple[Tree, Tree]:
    """The sums (`SUMS`) over all batches so far, an earlier one counting `forget` times as much per batch since, and
    what they say of the two models' probabilities [B, C].

    Where `new` (bool [B]) is given, the others are in the sums already: they do not count again, and the batch is a
    part of one, as large as the share of new samples.
    `ref` is what the un-adapted model does on kept examples beside this batch: `confidence`, `rare`, `home`; `prior`.
    """
    once = torch.ones_like(plain[:, 0]) if new is None else new.to(plain.dtype)
    foreign, likely = ((table[plain.argmax(-1)] * once).sum() for table in (ref["rare"], ref["home"]["ratio"]))
    surer = (torch.nan_to_num(plain.amax(-1) - ref["confidence"]) * once).sum()
    samples, left = once.sum(), forget ** once.mean()
    share = (foreign + left * sums["foreign"]) / (samples + left * sums["samples"]).clamp_min(1.0)
    gain, squares = evidence(plain, adapted, ref, share, once)
    each = (gain, squares, foreign, surer, likely, samples * ref["home"]["level"], samples)
    sums = tree.add(dict(zip(SUMS, each, strict=True)), sums, left)
    count = sums["samples"].clamp_min(1.0)
    return sums, {
        **{name: sums[name] / count for name in ("gain", "foreign", "surer", "likely", "level")},
        "nearer": divergence(plain.mean(0), ref["prior"]) - divergence(adapted.mean(0), ref["prior"]),
        "flips": (plain.argmax(-1) != adapted.argmax(-1)).to(plain.dtype).mean(),
    }


def divergence(p: Tensor, q: Tensor) -> Tensor:
    """KL(p || q) in nats."""
    return (p * (p.clamp_min(1e-9).log() - q.clamp_min(1e-9).log())).sum(-1)


def moved(state: Tree, fresh: Tree) -> Tensor:
    """How far the tuned parameters are from those of a fresh state, relative to the length of these; 0 without any."""
    tuned = _tuned(fresh)
    if tuned is None:
        return torch.zeros(())
    return tree.norm(tree.sub(_tuned(state), tuned)) / tree.norm(tuned).clamp_min(1e-12)


def numbers(state: Tree) -> Tensor:
    """Whether no value is NaN; infinity marks empty places in some states."""
    bad = [torch.isnan(v).any() for v in tree.leaves(state)]
    return ~torch.stack(bad).any() if bad else torch.ones((), dtype=torch.bool)


def without_nan(state: Tree) -> Tree:
    """The same state with 0 for every NaN."""
    cleaned: Tree = tree.map(lambda v: torch.where(torch.isnan(v), torch.zeros_like(v), v), state)
    return cleaned


def _tuned(state: Tree) -> Tree | None:
    """The parameters that an adapter has in its state, under the names that adapters use for them."""
    return state.get("params") or state.get("vars", {}).get("params") or state.get("teacher")
