"""Accuracy without labels: what outputs on a client's labelled validation data say of outputs on unlabelled data.

All functions are pure and run under `vmap`. `real` (bool [N]) says which rows count. Where none does, in the reference
or in what is estimated, the estimate is NaN. Estimates are not clipped to 0 and 1, so that means of them stay exact.

- `doc`, difference of confidences: Guillory et al., ICCV 2021, Sec. 3.
- `atc`, average thresholded confidence: Garg et al., ICLR 2022, Eq. 1 and 2, with the largest probability as score.
- `cbpe`, the mean calibrated confidence, as NannyML calls it.
- `aetta`: Lee et al., CVPR 2024, with the client's prior in the place of the uniform one unless told otherwise.
- `agreement` of two models: Jiang et al., ICLR 2022.
- `classwise`, our own, has a file to itself: classwise.py.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, vmap

from ..core import Tree, rng

TEMPERATURES = tuple(0.25 * 2.0 ** (i / 4) for i in range(17))
"""The grid from which temperatures are taken: 0.25 to 4."""
TINY = 1e-12


def reference(logits: Tensor, y: Tensor, real: Tensor, classes: int) -> Tree:
    """What a model does on labelled data [N]: its `temperature`, `accuracy`, mean `confidence` after temperature, the
    `threshold` below which as many rows lie as are wrong, and the labels' `prior` [classes]."""
    t = temperature(logits, y, real)
    confidence, hit = certainty(logits, t), (logits.argmax(-1) == y).to(logits.dtype)
    return {
        "temperature": t,
        "accuracy": mean(hit, real),
        "confidence": mean(confidence, real),
        "threshold": _threshold(confidence, hit, real),
        "prior": mean(F.one_hot(y, classes).to(logits.dtype).T, real),
    }


def temperature(logits: Tensor, y: Tensor, real: Tensor) -> Tensor:
    """The temperature of the grid with the least cross-entropy."""
    loss = torch.stack([mean(F.cross_entropy(logits / t, y, reduction="none"), real) for t in TEMPERATURES])
    best = torch.stack([torch.full_like(loss[0], t) for t in TEMPERATURES]).gather(0, loss.argmin(0, keepdim=True))[0]
    return best + 0.0 * loss[0]  # NaN where no row counts


def certainty(logits: Tensor, temperature: Tensor) -> Tensor:
    """The largest probability of each row after temperature."""
    return (logits / temperature).softmax(-1).amax(-1)


def mean(values: Tensor, real: Tensor) -> Tensor:
    """The mean over the rows (the last axis) that count; NaN without any."""
    return torch.where(real, values, 0.0).sum(-1) / real.sum(-1)


def doc(ref: Tree, logits: Tensor, real: Tensor) -> Tensor:
    """Difference of confidences: accuracy on validation data, less what mean confidence has fallen by since."""
    return ref["accuracy"] - (ref["confidence"] - mean(certainty(logits, ref["temperature"]), real))


def atc(ref: Tree, logits: Tensor, real: Tensor) -> Tensor:
    """Average thresholded confidence: the share of rows whose confidence reaches the reference's threshold."""
    reaches = certainty(logits, ref["temperature"]) >= ref["threshold"]
    return mean(reaches.to(logits.dtype), real) + 0.0 * ref["accuracy"]  # NaN where the reference is


def cbpe(ref: Tree, logits: Tensor, real: Tensor) -> Tensor:
    """The mean confidence after temperature: the accuracy, if the model is calibrated here too."""
    return mean(certainty(logits, ref["temperature"]), real)


def agreement(logits: Tensor, other: Tensor, real: Tensor) -> Tensor:
    """The share of rows to which two models (of two clients or two seeds) give the same answer."""
    return mean((logits.argmax(-1) == other.argmax(-1)).to(logits.dtype), real)


def dropout(features: Tensor, rate: float, keys: Tensor) -> Tensor:
    """Features [N, D] of which a share is zero and the rest larger; every row draws from its own of the `keys` [N]."""
    draws = vmap(lambda k: rng.uniform(k, features.shape[-1]))(keys)
    return features * (draws >= rate) / (1.0 - rate)


def disagreement(logits: Tensor, passes: Tensor) -> tuple[Tensor, Tensor]:
    """Of each row, the share of dropout passes [P, N, C] that answer otherwise, and their mean probabilities [N, C]."""
    other = (passes.argmax(-1) != logits.argmax(-1)).to(logits.dtype)
    return other.mean(0), passes.softmax(-1).mean(0)


def aetta(
    differs: Tensor, probabilities: Tensor, real: Tensor, prior: Tensor | None = None, power: float = 3.0
) -> Tensor:
    """AETTA's accuracy of a batch, from what `disagreement` gives.

    The error is the mean disagreement, raised where the mean prediction has collapsed: divided by a power of its
    entropy over that of the client's `prior`. Without a prior it is the published form, which takes ln(classes). The
    error is at most that of guessing by the prior.
    """
    classes = probabilities.shape[-1]
    prior = torch.full_like(probabilities[0], 1.0 / classes) if prior is None else prior
    spread = mean(probabilities.T, real)
    share = (entropy(spread) / entropy(prior).clamp_min(TINY)).clamp(TINY, 1.0)
    error = mean(differs, real) / share**power
    return 1.0 - torch.minimum(error, 1.0 - prior.square().sum())


def smoothed(values: Tensor, keep: float = 0.6) -> Tensor:
    """AETTA's estimates [T] of the batches of a stream, each mixed with what came before."""
    out = [values[..., 0]]
    for t in range(1, values.shape[-1]):
        out.append(keep * out[-1] + (1.0 - keep) * values[..., t])
    return torch.stack(out, -1)


def _threshold(confidence: Tensor, hit: Tensor, real: Tensor) -> Tensor:
    """The confidence below which as many of the rows lie as are wrong; infinite where all are wrong."""
    ranked = torch.where(real, confidence, math.inf).sort().values
    wrong = torch.where(real, 1.0 - hit, 0.0).sum(-1).to(torch.int64)
    return F.pad(ranked, (0, 1), value=math.inf).gather(0, wrong[None])[0]


def entropy(probabilities: Tensor) -> Tensor:
    """Entropy in nats of probabilities [..., C]."""
    return -(probabilities * probabilities.clamp_min(TINY).log()).sum(-1)
