"""The class-wise estimate of accuracy, our own: how likely each answer is right, from what answers like it were worth.

An answer's chance is what the adapted and the un-adapted model think of it. Validation data, distorted and served as
one long stream, says by how much to correct it: by the class that is answered and by whether the un-adapted model
agrees (`group`), for the client and for all clients together. Which of the two corrections counts depends on whose
sample it is. A stream is a mixture of samples like the client's own and of samples like those of all others; un-adapted
answers, by class and by whether they are sure (`cell`), tell how likely a sample is of the first kind (`belonging`).

All functions are pure and run under `vmap`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .estimates import certainty

SURE = 0.6
"""The confidence above which an un-adapted answer is sure: a foreign sample gets a sure answer of a foreign class, a
distorted one of the client's own an unsure one."""


def chance(logits: Tensor, t: Tensor, plain: Tensor, plain_t: Tensor) -> Tensor:
    """How likely each answer is right before any offset: the mean of what the adapted model and the un-adapted one,
    each at its temperature, think of the adapted model's answer."""
    answer = logits.argmax(-1, keepdim=True)
    own, other = (logits / t).softmax(-1), (plain / plain_t).softmax(-1)
    return (own.gather(-1, answer) + other.gather(-1, answer))[..., 0] / 2


def group(logits: Tensor, plain: Tensor) -> Tensor:
    """The group of each row: the class answered, and apart from these the classes that the un-adapted model does not
    answer; [N] in 0 to 2 * classes - 1."""
    answer = logits.argmax(-1)
    return answer + logits.shape[-1] * (answer != plain.argmax(-1))


def cell(plain: Tensor, t: Tensor) -> Tensor:
    """The cell of each row: the class that the un-adapted model answers, and apart from these the classes that it is
    sure of; [N] in 0 to 2 * classes - 1."""
    return plain.argmax(-1) + plain.shape[-1] * (certainty(plain, t) > SURE)


def gaps(chances: Tensor, groups: Tensor, hit: Tensor, real: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Of labelled rows, how many each of `count` groups has, and the sum of hit less chance over them: two [count]."""
    member = F.one_hot(groups, count).to(chances.dtype) * real[:, None]
    return member.sum(0), ((hit - chances)[:, None] * member).sum(0)


def offsets(rows: Tensor, gap: Tensor, own: float = 1.0, pool: float = 20.0) -> tuple[Tensor, Tensor]:
    """What to add to the chances of each group: of every client [K, G], and of all clients together [G].

    A client's mean gap is drawn to that of all as if `own` more of its rows had that, and that of all to zero by `pool`
    rows: groups that are rarely met say little.
    """
    everyone = gap.sum(0) / (rows.sum(0) + pool)
    return (gap + own * everyone) / (rows + own), everyone


def profiles(counts: Tensor, weight: float = 100.0) -> tuple[Tensor, Tensor]:
    """The shares of cells among every client's own samples, and among those of all other clients: two [K, cells].

    The second is drawn to equal shares by one sample per cell, the first to the second by `weight` samples: a client's
    own stream may have some of everything.
    """
    rest = _shares(counts.sum(0) - counts + 1.0)
    return _shares(counts + weight * rest), rest


def belonging(own: Tensor, others: Tensor, seen: Tensor, rounds: int = 100) -> Tensor:
    """How likely a row of each cell is like the client's own, where so many rows of each cell were `seen` [..., cells].

    The share of such rows in the stream is found by expectation maximisation, from an even start.
    """
    share = 0.5 + 0.0 * seen.sum(-1, keepdim=True)
    for _ in range(rounds):
        share = (seen * _posterior(own, others, share)).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)
    return _posterior(own, others, share)


def classwise(chances: Tensor, groups: Tensor, own: Tensor, everyone: Tensor, belongs: Tensor) -> Tensor:
    """Per row, the chance that the answer is right, offset by its group; `own` [G] counts as far as a row `belongs`."""
    offset = belongs * own.gather(-1, groups) + (1.0 - belongs) * everyone.gather(-1, groups)
    return (chances + offset).clamp(0.0, 1.0)


def _posterior(own: Tensor, others: Tensor, share: Tensor) -> Tensor:
    return share * own / (share * own + (1.0 - share) * others)


def _shares(counts: Tensor) -> Tensor:
    return counts / counts.sum(-1, keepdim=True)
