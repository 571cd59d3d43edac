"""Update rules for `simulator.World` of methods that learn something beside the model: rates, a maker of models, a
spread of features; and of clusters that split."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core import rng
from simulated_methods import FedAvg
from simulator import World, dot, mapped, mean, minus, plus, stepper


def doubled(tree: Any) -> Any:
    return mapped(torch.Tensor.double, tree)


class FedATP(FedAvg):
    """The slope by statistics by differences, the direction of statistics from a batch's own moments."""

    def start(self, world: World) -> Any:
        zero = mapped(lambda v: torch.zeros((), dtype=torch.float64), world.start)
        return {"vars": world.start, "rates": zero}

    def weight(self, world: World, client: int) -> float:
        return world.size(client)

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        n, own = world.size(client), world.rows(client)
        held = max(n // self.m.parts, 1)
        w, rates = server["vars"], server["rates"]
        if round < self.m.pretrain:
            batches = world.batches(client, self.m.work, "model", count=max(n - held, 1))
            w = world.local(w, batches, round, world.ce, clip=self.m.work.clip)
            return {"w": w, "rates": rates}, mine
        judged = own[n - held :]
        plan = {"rows": torch.arange(held), "n": torch.tensor(held)}
        positions, _ = self.m.rate_work.plan(plan, world.key("rates"))
        for at in positions:
            rates = self.risen(world, w, rates, world.x[judged[at]], world.y[judged[at]])
        return {"w": w, "rates": rates}, mine

    def risen(self, world: World, w: Any, rates: Any, x: Tensor, y: Tensor) -> Any:
        def entropy(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            z = world.run(p, b, x, False)[1]
            return -(z.softmax(-1) * z.log_softmax(-1)).sum(-1).mean(), b

        way = {"params": world.slope(entropy, w["params"], w["buffers"], x, y)[0], "buffers": {}}
        before = x @ w["params"]["first.weight"].T
        batch = {"norm.running_mean": before.mean(0), "norm.running_var": before.var(0, correction=1)}
        way["buffers"] = {name: old - batch[name] for name, old in w["buffers"].items()}
        there = mapped(lambda v, r, d: v - r * d, w, rates, way)
        if "norm.running_var" in there["buffers"]:
            there["buffers"]["norm.running_var"] = there["buffers"]["norm.running_var"].clamp_min(0)

        def loss(p: Any, b: Any) -> Tensor:
            return F.cross_entropy(world.run(p, b, x, False)[1], y)

        slope = {"params": world.slope(lambda p, b, x, y: (loss(p, b), b), there["params"], there["buffers"], x, y)[0]}
        slope["buffers"] = {}
        for name, old in there["buffers"].items():
            found = torch.zeros_like(old)
            for i in range(len(old)):
                step = torch.zeros_like(old)
                step[i] = 1e-6
                ends = [float(loss(there["params"], {**there["buffers"], name: old + s * step})) for s in (1, -1)]
                found[i] = (ends[0] - ends[1]) / 2e-6
            slope["buffers"][name] = found
        uphill = mapped(lambda s, d: (s * d).sum() / d.numel() ** 0.5, slope, way)
        flat = torch.stack([v for kind in uphill.values() for v in kind.values()])
        bound = self.m.rate_work.clip
        share = 1.0 if bound is None else min(1.0, bound / float(flat.norm()))
        return mapped(lambda r, u: r + self.m.rate_lr * share * u, rates, uphill)

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {"vars": self.averaged(world, replies, present), "rates": mean([r["rates"] for r in replies])}


class ODPFL(FedAvg):
    """Both makers in one graph: the gradient of <theta, theta - theta_trained> by autograd."""

    def start(self, world: World) -> Any:
        server = self.m.init_server(world.task, world.data.clients, world.worker.key("init"))
        made = doubled({k: server[k] for k in ("encoder", "hyper", "buffers")})
        self.leaves = {
            "encoder": [v for layer in made["encoder"].values() for v in layer.values()],
            "hyper": [
                *made["hyper"]["trunk"].values(),
                *(v for head in made["hyper"]["heads"].values() for v in head.values()),
            ],
        }
        opts = {"encoder": self.m.encoder_opt, "hyper": self.m.hyper_opt}
        self.steps = {name: stepper(opts[name], leaves) for name, leaves in self.leaves.items()}
        return made

    def model(self, world: World, server: Any, client: int) -> Any:
        z = world.x[world.rows(client)[: self.m.samples]]
        z = (z @ server["encoder"]["0"]["weight"].T + server["encoder"]["0"]["bias"]).relu()
        z = (z @ server["encoder"]["1"]["weight"].T + server["encoder"]["1"]["bias"]).mean(0)
        wide = (server["hyper"]["trunk"]["weight"] @ z + server["hyper"]["trunk"]["bias"]).relu()
        return {n: (h["weight"] * wide).sum(-1) + h["bias"] for n, h in server["hyper"]["heads"].items()}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        params = {n: v.detach() for n, v in self.model(world, server, client).items()}
        w = self.trained(world, {"params": params, "buffers": server["buffers"]}, world.ce, client, round)
        return {"missed": minus(params, w["params"]), "buffers": w["buffers"]}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        for leaves in self.leaves.values():
            for v in leaves:
                v.requires_grad_()
        gap = sum(dot(self.model(world, server, c), r["missed"]) for c, r in zip(present, replies, strict=True))
        for name, leaves in self.leaves.items():
            found = torch.autograd.grad(gap / len(present), leaves, retain_graph=True)
            for v, g in zip(leaves, found, strict=True):
                v.grad = g
            if self.m.work.clip is not None:
                torch.nn.utils.clip_grad_norm_(leaves, self.m.work.clip)
        for name, leaves in self.leaves.items():
            with torch.no_grad():
                self.steps[name].step()
            for v in leaves:
                v.requires_grad_(False)
        return {**server, "buffers": mean([r["buffers"] for r in replies])}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": {"params": self.model(world, server, client), "buffers": server["buffers"]}}


class CFL(FedAvg):
    def start(self, world: World) -> Any:
        n = world.data.clients
        return {"each": [world.start for _ in range(n)], "cluster": torch.zeros(n)}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        old = server["each"][client]
        return {"step": minus(self.trained(world, old, world.ce, client, round), old)}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        cluster, each = server["cluster"].clone(), list(server["each"])
        steps = dict(zip(present, (r["step"] for r in replies), strict=True))
        flat = {c: torch.cat([v.flatten() for v in s["params"].values()]) for c, s in steps.items()}
        for label in sorted({int(cluster[c]) for c in present}) if round >= self.m.start else ():
            members = [c for c in present if cluster[c] == label]
            weights = [self.weight(world, c) for c in members]
            middle = sum(w * flat[c] for w, c in zip(weights, members, strict=True)) / sum(weights)
            if len(members) > 2 and middle.norm() < self.m.still * max(flat[c].norm() for c in members):
                free = int(cluster.max()) + 1
                for c in self.away(members, flat):
                    cluster[c] = free
        for c in range(len(each)):
            near = [k for k in present if cluster[k] == cluster[c]]
            if near:
                each[c] = plus(each[c], mean([steps[k] for k in near], [self.weight(world, k) for k in near]))
        return {"each": each, "cluster": cluster}

    def away(self, members: list[int], flat: Any) -> list[int]:
        """The half without the first member, by complete linkage."""
        groups = [[c] for c in members]

        def far(a: list[int], b: list[int]) -> float:
            return max(-float(F.cosine_similarity(flat[i], flat[j], dim=0)) for i in a for j in b)

        while len(groups) > 2:
            pairs = [(far(a, b), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups) if i < j]
            _, i, j = min(pairs)
            groups[i] += groups.pop(j)
        return next(g for g in groups if members[0] not in g)

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": server["each"][client]}


class FedSR(FedAvg):
    """The representation's noise is the package's own draw; all else is from the equations."""

    def start(self, world: World) -> Any:
        server = self.m.init_server(world.task, world.data.clients, world.worker.key("init"))
        return {"vars": world.start, "extra": doubled(server["extra"])}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        names, extra, clock = list(world.start["params"]), server["extra"], iter(range(10_000))
        more = {f"{g}/{n}": v for g, group in extra.items() for n, v in group.items()}

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            mu, _, b = world.run({n: p[n] for n in names}, b, x)
            sigma = F.softplus(mu @ p["sigma/weight"].T + p["sigma/bias"]) + 1e-6
            eps = rng.normal(world.key("step", next(clock), "representation"), *mu.shape).double()
            z = mu + sigma * eps
            r = torch.distributions.Normal(p["classes/mean"][y], F.softplus(p["classes/spread"][y]) + 1e-6)
            kl = torch.distributions.kl_divergence(torch.distributions.Normal(mu, sigma), r).sum(-1).mean()
            ce = F.cross_entropy(z @ p["head.weight"].T + p["head.bias"], y)
            return ce + self.m.l2 * (z**2).sum(-1).mean() + self.m.cmi * kl, b

        start = {"params": {**server["vars"]["params"], **more}, "buffers": server["vars"]["buffers"]}
        w = self.trained(world, start, loss, client, round)
        new = {g: {n: w["params"][f"{g}/{n}"] for n in group} for g, group in extra.items()}
        return {"w": {"vars": {**w, "params": {n: w["params"][n] for n in names}}, "extra": new}}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return self.averaged(world, replies, present)
