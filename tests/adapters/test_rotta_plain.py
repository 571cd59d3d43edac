"""RoTTA over a stream against a plain one: torch modules, an optimiser of torch, a memory of Python lists.

It is written from the paper's text (Yuan et al., CVPR 2023) and shares with ours the random views alone.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from acclimate.adapters import RoTTA
from acclimate.core import Adam, rng
from acclimate.ops.strong_views import StrongViews
from support import CLASSES, images, task

KEY, EVERY, CAPACITY, RATE, EMA, LR = rng.key(6), 16, 13, 0.1, 0.9, 0.01


class RobustBN(nn.Module):
    """In training its statistics go to the batch's, and then normalise; what is remembered has no gradient."""

    def __init__(self, weight, bias, mean, var):
        super().__init__()
        self.weight, self.bias, self.mean, self.var = nn.Parameter(weight), nn.Parameter(bias), mean, var

    def forward(self, x):
        mean, var = self.mean, self.var
        if self.training:
            mean = (1 - RATE) * mean + RATE * x.mean((0, 2, 3))
            var = (1 - RATE) * var + RATE * x.var((0, 2, 3), unbiased=False)
            self.mean, self.var = mean.detach(), var.detach()
        x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class Net(nn.Module):
    """The small network of these tests, of which the two norm layers learn."""

    def __init__(self, vars):
        super().__init__()
        self.p = p = {k: v.clone() for k, v in vars["params"].items()}
        convs = [k.removesuffix(".weight") for k, v in p.items() if v.dim() == 4]
        norms = [k.removesuffix(".running_mean") for k in vars["buffers"] if k.endswith("running_mean")]
        self.convs, self.hidden = convs, next(k for k in p if k.startswith("body") and p[k].dim() == 2)
        kept = {k: v.clone() for k, v in vars["buffers"].items()}
        self.norms = nn.ModuleList(
            RobustBN(p[f"{n}.weight"], p[f"{n}.bias"], kept[f"{n}.running_mean"], kept[f"{n}.running_var"])
            for n in norms
        )

    def forward(self, x):
        x, p = (x - 0.5) / 0.5, self.p
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = F.relu(F.max_pool2d(norm(F.conv2d(x, p[f"{conv}.weight"], p[f"{conv}.bias"])), 2))
        x = F.relu(F.linear(x.flatten(1), p[self.hidden], p[self.hidden.replace("weight", "bias")]))
        return F.linear(x, p["head.weight"], p["head.bias"])


class Memory:
    """Samples as [when, image, class, entropy] in the order in which they came."""

    def __init__(self):
        self.held = []

    def score(self, now, sample):
        return 1 / (1 + math.exp(-(now - sample[0]) / CAPACITY)) + sample[3] / math.log(CLASSES)

    def add(self, new):
        counts = [sum(s[2] == c for s in self.held) for c in range(CLASSES)]
        if counts[new[2]] >= CAPACITY / CLASSES:
            some = [new[2]]
        elif len(self.held) < CAPACITY:
            self.held.append(new)
            return
        else:
            some = [c for c in range(CLASSES) if counts[c] == max(counts)]
        worst = max((s for s in self.held if s[2] in some), key=lambda s: self.score(new[0], s))
        if self.score(new[0], worst) > self.score(new[0], new):
            self.held = [s for s in self.held if s is not worst] + [new]


def plain(vars, x, batch):
    """The answers on a stream, and the teacher after it."""
    student, teacher, memory = Net(vars), Net(vars), Memory()
    opt = torch.optim.Adam(student.parameters(), lr=LR)
    answers = []
    for at in range(0, len(x), batch):
        images = x[at : at + batch].float() / 255
        teacher.eval()
        with torch.no_grad():
            logits = teacher(images)
        answers.append(logits)
        p = logits.softmax(-1)
        for i in range(len(images)):
            memory.add([at + i, images[i], int(p[i].argmax()), float(-(p[i] * p[i].log()).sum())])
            if (at + i + 1) % EVERY == 0:
                learn(student, teacher, opt, memory.held, at + i + 1, rng.fold(KEY, "views", i + 1 - EVERY))
    return torch.cat(answers), teacher


def learn(student, teacher, opt, held, now, key):
    samples = torch.stack([s[1] for s in held])
    padded = torch.cat((samples, torch.zeros(CAPACITY - len(held), *samples.shape[1:])))
    views = StrongViews().views(padded, key)[: len(held)]
    student.train(), teacher.train()
    with torch.no_grad():
        soft = teacher(samples).softmax(-1)
    loss = 0.0
    for i, log in enumerate(student(views).log_softmax(-1)):
        age = (now - held[i][0]) / CAPACITY
        loss = loss - math.exp(-age) / (1 + math.exp(-age)) * (soft[i] * log).sum() / len(held)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
            t.copy_(EMA * t + (1 - EMA) * s)


def test_a_whole_stream_is_that_of_a_plain_rotta():
    t, batch = task(), 48
    vars = t.init(KEY)
    vars["params"]["head.weight"] = 4 * vars["params"]["head.weight"]
    x = images(576)[0].flip(-1) // 2
    adapter = RoTTA(CAPACITY, EVERY, Adam(lr=LR), RATE, EMA)
    model, out = {"vars": vars}, []
    state = adapter.init(t, model)
    for part in x.split(batch):
        logits, state = adapter.step(t, lambda m, x, *a: t.apply(m["vars"], x, *a), model, state, part, KEY)
        out.append(logits)
    want, teacher = plain(vars, x, batch)
    source = t.apply(vars, x).logits
    assert (want - source).abs()[288:].amax() > 0.5  # it has gone a long way
    torch.testing.assert_close(torch.cat(out), want, rtol=1e-3, atol=1e-3)
    names = [n for n in vars["buffers"] if n.endswith("running_mean")]
    for name, norm in zip(names, teacher.norms, strict=True):
        torch.testing.assert_close(state["teacher"]["buffers"][name], norm.mean, rtol=1e-3, atol=1e-4)
        weight = state["teacher"]["params"][name.replace("running_mean", "weight")]
        torch.testing.assert_close(weight, norm.weight.detach(), rtol=1e-3, atol=1e-4)
