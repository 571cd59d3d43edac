"""Class prototypes: mean features per class, how they are pooled and padded, and contrastive losses against them.

A set of prototypes is a tensor [C, d], counts [C] say how many examples each row is the mean of; a count of zero marks
a class that its owner has not seen, whose row then means nothing.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Out, Task, Tree
from .masks import real_rows
from .nets import features_of


def class_means(features: Tensor, y: Tensor, n: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes and counts of the first `n` rows (FedPCL's Eq. 5); rows of unseen classes are zero. Rows from n on may
    hold what is no number."""
    real = real_rows(y.shape[-1], n)
    member = ((y[:, None] == torch.arange(num_classes, device=y.device)) & real[:, None]).to(features.dtype)
    counts = member.sum(0)
    return (member.mT @ torch.where(real[:, None], features, 0.0)) / counts.clamp_min(1.0)[:, None], counts


def mean_of_means(means: Tree) -> Tensor:
    """The mean feature of all examples, from `prototypes` and `counts` as ClassMeans notes them; zero without any."""
    return (means["counts"] @ means["prototypes"]) / means["counts"].sum().clamp_min(1.0)


def own_prototypes(task: Task, vars: Tree, data: Tree, unit: bool = False) -> tuple[Tensor, Tensor]:
    """Prototypes and counts of a client's examples under a model, of its features as they are or as unit vectors."""
    features = features_of(task, vars, data)
    z = F.normalize(features, dim=-1) if unit else features
    return class_means(z, data["y"][data["rows"]], data["n"], task.num_classes)


def pooled(sets: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """One set from several, [m, C, d] and [m, C]: per class the mean weighted by counts, and the summed counts.

    FedPCL's Eq. 6 with weights that sum to one; as printed it divides by the number of owners once more.
    """
    total = counts.sum(0)
    weights = counts / total.clamp_min(1.0)
    return (weights[..., None] * sets).sum(0), total


def padded(sets: Tensor, counts: Tensor, common: Tensor) -> Tensor:
    """Sets in which the rows of unseen classes are the common ones (Eq. 7)."""
    return torch.where((counts > 0)[..., None], sets, common)


def pulled(out: Out, features: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, weight: float) -> Tensor:
    """Cross-entropy plus `weight` times the mean squared difference of features and their class's prototype (FedProto).

    Classes that are not `known` pull nothing.
    """
    apart = (features - prototypes[y]).square().mean(-1) * (known[y] > 0)
    return F.cross_entropy(out.logits, y) + weight * apart.mean()


def nearest(features: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
    """Logits of which the largest is that of the nearest known prototype.

    A class that is not known is below all that are, however long features are; -10,000 where these are not that low.
    """
    square = prototypes.square().sum(-1)
    near = 2 * features @ prototypes.mT - square  # minus the squared distance, but for |features|^2
    lowest = torch.where(known > 0, near, torch.inf).amin(-1, keepdim=True)
    return torch.where(known > 0, near, (lowest - 100.0).clamp_max(-1e4))


def similarities(z: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """Scaled inner products [B, ..., C] of features [B, d] with prototypes [..., C, d]; classes not `known` get a value
    so low that softmax and argmax never meet them."""
    scores = torch.einsum("bd,...cd->b...c", z, prototypes) / tau
    return torch.where(known > 0, scores, torch.full_like(scores, -1e4))


def prototype_loss(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """FedPCL's contrastive term per sample, for each of the sets [..., C, d]: [B, ...] (inside Eq. 8 and Eq. 9).

    Minus the similarity to the own class, plus the log-sum-exp over all *other* known classes: as printed, the
    positive is not in the denominator. Zero where the own class, or every other one, is not known.
    """
    scores = similarities(z, prototypes, known, tau)
    own = y[:, None] == torch.arange(scores.shape[-1], device=y.device)
    own = own.reshape(own.shape[0], *[1] * (scores.dim() - 2), own.shape[-1])
    positive = torch.where(own, scores, torch.zeros_like(scores)).sum(-1)
    negative = torch.where(own, torch.full_like(scores, -1e4), scores).logsumexp(-1)
    sound = (own & (known > 0)).any(-1) & (~own & (known > 0)).any(-1)
    return torch.where(sound, negative - positive, torch.zeros_like(positive))


def contrast(z: Tensor, y: Tensor, down: Tree, tau: float, which: Literal["both", "global", "local"]) -> Tensor:
    """FedPCL's Eq. 10, or one of its terms: against the `global` set (Eq. 8), and the mean over all clients' `sets`."""
    value = torch.zeros((), device=z.device)
    if which != "local":
        value = value + prototype_loss(z, y, down["global"], down["known"], tau).mean()
    if which != "global":
        each = prototype_loss(z, y, down["sets"], down["known"], tau)
        value = value + ((each * down["seen"]).sum(-1) / down["seen"].sum().clamp_min(1.0)).mean()
    return value


def released_contrast(z: Tensor, y: Tensor, down: Tree, tau: float) -> Tensor:
    """The loss of FedPCL's published code: all clients' prototypes as anchors, summed, and the batch as contrast."""
    twice, labels = torch.cat([z, z]), torch.cat([y, y])  # two views, which in the published code are identical
    each = torch.vmap(lambda anchors: supervised_contrast(anchors, twice, labels, tau))(down["sets"][:, labels])
    return (each * down["seen"]).sum()


def supervised_contrast(anchors: Tensor, z: Tensor, y: Tensor, tau: float) -> Tensor:
    """SupCon (Khosla et al., NeurIPS 2020, Eq. 2): row i of `anchors` against all rows of z but the i-th.

    Positives are the rows of the same label. Anchors without one count zero, and are not counted in the mean.
    """
    scores = anchors @ z.mT / tau
    itself = torch.eye(y.shape[-1], dtype=torch.bool, device=y.device)
    same = (y[:, None] == y[None, :]) & ~itself
    log_p = scores.masked_fill(itself, -1e4).log_softmax(-1)
    per = torch.where(same, log_p, torch.zeros_like(log_p)).sum(-1) / same.sum(-1).clamp_min(1)
    return -per.sum() / same.any(-1).sum().clamp_min(1)


def contrastive(z: Tensor, marks: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020, Eq. 2; FedICON, Eq. 2 and 3), mean over all anchors.

    `z` [views, batch, d] are representations, which are normalised here; `marks` [batch] says which examples belong
    together. An anchor's positives are all others with its mark, other views of itself included; everything but itself
    is in the denominator. Where every example has a mark of its own this is the unsupervised loss (FedICON, Eq. 5).
    """
    views, batch = z.shape[:2]
    z = F.normalize(z.flatten(0, 1), dim=-1)
    marks = marks.repeat(views)
    own = torch.eye(views * batch, dtype=torch.bool, device=z.device)
    # finite, so that the anchor's own entry times zero below is zero
    scores = (z @ z.mT / temperature).masked_fill(own, torch.finfo(z.dtype).min)
    positive = ((marks[:, None] == marks) & ~own).to(z.dtype)
    explained = (positive * scores.log_softmax(-1)).sum(-1) / positive.sum(-1).clamp_min(1.0)
    return -explained.mean()
