"""MBSL, FedSPL's test half. Liang et al., AAAI 2025, Eq. 5-14 and Algorithm 1: a teacher labels, a student learns.

Sees the client's whole unlabelled set first. In every epoch:
- the teacher's prediction is its mean over E augmented views (Eq. 6); its margin between the best and the second class
  (Eq. 7) is strong where it reaches the client's mean margin (Eq. 8), else weak;
- the student learns, batch by batch: cross-entropy to the pseudo-labels of strong samples (Eq. 9, read as the student's
  prediction: as printed it has the teacher's, which has no gradient), squared distance to the teacher's prediction on
  weak ones (Eq. 10), and a contrastive loss between two views (Eq. 11) on principal components of their features, each
  centred by its own mean;
- after every step the teacher moves to the student by an exponential average (Eq. 5; Algorithm 1 has it once per
  epoch, where rho 0.999 would leave it where it was). The teacher answers.

Weights, Eq. 12-14: (1 - a - b) strong + a weak + b contrast, b = b0 exp(-gamma j). As printed, a starts at 1, which
makes the strong weight negative, against the text (strong samples first, and an upper bound of 0.001 for a). Read
here: what Eq. 13 shrinks from 1 is the distance of a to its bound, a = bound (1 - prod(1 - delta)). The two PCAs of
Eq. 11 are one, over both views, since two bases could not be compared. rho and the rates are the released code's.

`variant="released"`: margins are taken view by view and averaged, their mean is the mini-batch's, and strong is above
it; weak distances are between mean logits; the strong weight starts at 1 and shrinks by (1 - 0.001 exp(-margin)) per
step, the rest going to the weak loss; the contrast is SimCLR's among weak samples, without PCA, with weight 0.5
exp(-1e-4 j); the teacher moves before every step, and the student answers. `views=5` is its number. Left out there:
labels made anew in every step, promoting weak samples, topping up missing classes, a larger rate for the head, a cosine
for the rate, strong views for the student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from ..core import SGD, Adapter, Augment, Optimizer, Predict, Task, Tree, Work, check, rng, tree
from ..ops import requirements
from ..ops.augment import FlipCrop
from ..ops.components import principal
from ..ops.masks import mean_of
from ..ops.params import with_params

TAUGHT = 64
"""Samples that the teacher sees at once: with batch norm, whose statistics they share."""


@dataclass(frozen=True)
class MBSL(Adapter):
    """Teacher and student on strong and weak pseudo-labels, over the whole test set (Liang et al., AAAI 2025)."""

    transductive: ClassVar[bool] = True

    epochs: int = 3
    batch: int = 16
    opt: Optimizer = SGD(lr=2e-4, momentum=0.9, nesterov=True, weight_decay=1e-4)
    views: int = 10
    """E, the augmented views whose mean is the teacher's prediction."""
    augment: Augment = FlipCrop()
    rho: float = 0.999
    """How much of itself the teacher keeps."""
    weak: float = 0.001
    """The bound that the weak loss's weight grows to."""
    contrast: float = 0.4
    decay: float = 1e-3
    """The contrastive loss's first weight, and its rate of decay per step."""
    temperature: float = 0.07
    components: int = 8
    """Principal components that the contrastive loss compares."""
    losses: tuple[str, ...] = ("strong", "weak", "contrast")
    """Which losses take part: the combinations of Table 2."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "views", "components"):
            check.at_least(self, name, 1)
        for name in ("rho", "weak", "contrast"):
            check.within(self, name, 0.0, 1.0)
        check.at_least(self, "decay", 0.0)
        check.positive(self, "temperature")
        check.choices(self)
        if not set(self.losses) <= {"strong", "weak", "contrast"}:
            raise ValueError(f"MBSL: losses={self.losses!r} must be among strong, weak and contrast")

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.images(task, "MBSL", "augment") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return {"teacher": model["vars"]["params"]}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return _answer(predict, model, state["teacher"], x)[0], state

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        own = {"rows": torch.arange(len(x), device=x.device), "n": real.sum()}
        now = {"teacher": state["teacher"], "student": state["teacher"], "opt": self.opt.init(state["teacher"])}
        # prod(1 - delta) of Eq. 13, or the released code's strong weight; and the number of steps so far
        now |= {"grown": torch.ones((), device=x.device), "j": torch.zeros((), device=x.device)}
        for epoch in range(self.epochs):
            this = rng.fold(key, "epoch", epoch)
            said, margin = self._teach(predict, model, now["teacher"], x, own["n"], this)
            plan, active = Work(epochs=1, batch=self.batch).plan(own, rng.fold(this, "order"))
            delta = mean_of(margin, real)
            for t in range(len(plan)):
                who = plan[t]
                seen = {"x": x[who], "said": said[who], "margin": margin[who], "delta": delta, "who": who}
                new = self._learn(predict, model, now, seen, rng.fold(this, "step", t))
                now = tree.where(active[t], new, now)
        return {"teacher": now["student" if self.variant == "released" else "teacher"]}

    def _learn(self, predict: Predict, model: Tree, now: Tree, seen: Tree, key: rng.Key) -> Tree:
        """One step of the student, and after it of the teacher; in the released variant before it."""
        teacher, student = now["teacher"], now["student"]
        strong = seen["margin"] >= seen["delta"]
        if self.variant == "released":
            teacher = average(teacher, student, self.rho)
            strong = seen["margin"] > seen["margin"].mean()
        seen = {**seen, "strong": strong.to(seen["margin"].dtype)}
        weights, grown = self._weights(now["grown"], seen["delta"], seen["margin"].mean(), now["j"])
        grads = grad(self._loss)(student, predict, model, seen, weights, key)
        scale = self.opt.scale(torch.zeros_like(now["j"]), now["j"])
        student, opt = self.opt.update(grads, now["opt"], student, scale)
        if self.variant == "paper":
            teacher = average(teacher, student, self.rho)
        return {"teacher": teacher, "student": student, "opt": opt, "grown": grown, "j": now["j"] + 1}

    def _teach(
        self, predict: Predict, model: Tree, teacher: Tree, x: Tensor, n: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tensor]:
        """The teacher's mean over augmented views of every sample, and its margin: of mean probabilities, or as
        released mean logits and the mean margin of probabilities."""
        steps = -(-len(x) // TAUGHT)
        # full batches, whatever the padding
        rows = torch.arange(steps * TAUGHT, device=x.device).view(steps, TAUGHT) % n
        said, sure = [], []
        for t in range(steps):
            logits, _ = self._on_views(predict, model, teacher, x[rows[t]], rng.fold(key, "teach", t), self.views)
            each = logits.softmax(-1)
            if self.variant == "released":
                said.append(logits.mean(0))
                sure.append(margins(each).mean(0))
            else:
                said.append(each.mean(0))
                sure.append(margins(each.mean(0)))
        return torch.cat(said)[: len(x)], torch.cat(sure)[: len(x)]

    def _on_views(
        self, predict: Predict, model: Tree, params: Tree, x: Tensor, key: rng.Key, count: int
    ) -> tuple[Tensor, Tensor]:
        """Logits and features of `count` random views, [count, B, ...]: each a batch with statistics of its own."""

        def on_one(view: Tensor) -> tuple[Tensor, Tensor]:
            return _answer(predict, model, params, self.augment.views(x, rng.fold(key, view)))

        answers: tuple[Tensor, Tensor] = vmap(on_one)(torch.arange(count, device=x.device))
        return answers

    def _weights(self, grown: Tensor, delta: Tensor, sure: Tensor, j: Tensor) -> tuple[Tree, Tensor]:
        """The three losses' weights at step j (Eq. 12-14), and the product that they carry along."""
        if self.variant == "released":
            weights = {"strong": grown, "weak": 1 - grown, "contrast": 0.5 * torch.exp(-1e-4 * j)}
            return weights, grown * (1 - 0.001 * torch.exp(-sure))
        grown = grown * (1 - delta)
        weak, contrast = self.weak * (1 - grown), self.contrast * torch.exp(-self.decay * j)
        return {"strong": 1 - weak - contrast, "weak": weak, "contrast": contrast}, grown

    def _loss(self, student: Tree, predict: Predict, model: Tree, seen: Tree, weights: Tree, key: rng.Key) -> Tensor:
        logits, _ = _answer(predict, model, student, seen["x"])
        strong, said = seen["strong"], seen["said"]
        kept = logits if self.variant == "released" else logits.softmax(-1)
        each = {
            "strong": lambda: mean_of(F.cross_entropy(logits, said.argmax(-1), reduction="none"), strong),
            "weak": lambda: mean_of((said - kept).square().sum(-1), 1 - strong),
            "contrast": lambda: self._contrast(student, predict, model, seen, key),
        }
        return torch.stack([weights[name] * each[name]() for name in self.losses]).sum()

    def _contrast(self, student: Tree, predict: Predict, model: Tree, seen: Tree, key: rng.Key) -> Tensor:
        _, (first, second) = self._on_views(predict, model, student, seen["x"], rng.fold(key, "contrast"), 2)
        if self.variant == "released":
            return simclr(first, second, ~repeated(seen["who"]) & (seen["strong"] == 0), self.temperature)
        both = torch.cat((first, second)).detach()
        centre, basis = both.mean(0), principal(both, self.components)
        p, q = ((view - centre) @ basis for view in (first, second))
        return contrastive(p, q, seen["who"], self.temperature).mean()


def _answer(predict: Predict, model: Tree, params: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features with these parameters, and batch statistics where the model has batch norm."""
    out = predict(with_params(model, params), x, "adapt")
    return out.logits, out.features


def margins(said: Tensor) -> Tensor:
    """The confidence separation score (Eq. 7): the best class's value less the second's, per row."""
    best = said.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def average(teacher: Tree, student: Tree, rho: float) -> Tree:
    """Eq. 5."""
    moved: Tree = tree.map(lambda t, s: rho * t + (1 - rho) * s, teacher, student)
    return moved


def repeated(who: Tensor) -> Tensor:
    """Which places of a batch hold a sample that an earlier place has: a client may have fewer samples than a batch."""
    return (who[:, None] == who).tril(-1).any(1)


def contrastive(first: Tensor, second: Tensor, who: Tensor, temperature: float) -> Tensor:
    """Eq. 11 per row: every row centred by its own mean, compared by cosine; a repeated sample counts once."""
    p, q = (F.normalize(v - v.mean(-1, keepdim=True), dim=-1) for v in (first, second))
    nothing = torch.finfo(p.dtype).min  # finite, so that a row without others has a gradient
    pairs, again = (p * q).sum(-1) / temperature, repeated(who)
    apart = (p @ p.mT / temperature).masked_fill((who[:, None] == who) | again, nothing)
    total = torch.logaddexp(pairs.masked_fill(again, nothing).logsumexp(0), apart.logsumexp(1))
    return total - pairs


def simclr(first: Tensor, second: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """The released loss: among the counted samples each view tells its partner from all other views, of both kinds.

    Unit vectors less one number, the mean of all their entries; a mean over anchors, zero where none is counted.
    """
    z = F.normalize(torch.cat((first, second)), dim=-1)
    among = torch.cat((counted, counted))
    z = z - mean_of(z.mean(-1), among)
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    scores = (z @ z.mT / temperature).masked_fill(own | ~among, torch.finfo(z.dtype).min).log_softmax(-1)
    partner = torch.arange(len(z), device=z.device).roll(len(first))
    return mean_of(-scores.gather(1, partner[:, None])[:, 0], among)
