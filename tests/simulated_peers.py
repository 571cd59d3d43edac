"""More update rules for `simulator.World`: methods with prototypes, several heads, several models, or losses of their
own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core import rng
from simulated_methods import FedAvg, class_means, head_of, with_head
from simulator import CLASSES, FEATURES, World, copied, dot, mean, plus


def logits_of(head: Any, z: Tensor) -> Any:
    return z @ head["weight"].T + head.get("bias", 0.0)


class FedRoD(FedAvg):
    def mine(self, world: World, client: int) -> Any:
        return {"head": {n: torch.zeros_like(v) for n, v in head_of(world.start).items()}}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        prior = (world.counts(client) + 1).log() if self.m.balanced else 0.0
        names = list(server["vars"]["params"])

        def gradient(_: Any, p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            generic = {n: p[n] for n in names}

            def balanced(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
                _, z, b = world.run(p, b, x)
                return F.cross_entropy(z + prior, y), b

            g, new = world.slope(balanced, generic, b, x, y)
            z, common, _ = world.run(generic, b, x)
            z, common = z.detach(), common.detach()

            def own(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
                return F.cross_entropy(common + logits_of(p, z), y), b

            personal, _ = world.slope(own, {n[4:]: v for n, v in p.items() if n.startswith("own/")}, {}, x, y)
            return {**g, **{f"own/{n}": v for n, v in personal.items()}}, new

        params = {**server["vars"]["params"], **{f"own/{n}": v for n, v in mine["head"].items()}}
        start = {"params": params, "buffers": server["vars"]["buffers"]}
        new = self.trained(world, start, None, client, round, gradient=gradient)
        head = {n[4:]: v for n, v in new["params"].items() if n.startswith("own/")}
        return {"w": {**new, "params": {n: new["params"][n] for n in names}}}, {"head": head}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        m, w = self.m, server["vars"]
        table = torch.zeros(len(world.x), FEATURES + CLASSES, dtype=torch.float64)
        z = world.features(w, client)
        table[world.rows(client)] = torch.cat([z, logits_of(head_of(w), z)], 1)

        def own(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            return F.cross_entropy(x[:, FEATURES:] + logits_of(p, x[:, :FEATURES]), y), b

        batches, start = world.batches(client, m.personal_work), {"params": mine["head"], "buffers": {}}
        head = world.local(start, batches, 0, own, clip=m.personal_work.clip, inputs=table)["params"]
        return {"vars": w, "head": head}


class FedLC(FedAvg):
    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        margin = self.m.tau * world.counts(client).clamp_min(1e-8) ** -0.25

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            _, z, b = world.run(p, b, x)
            return F.cross_entropy(z - margin, y), b

        return loss


class FedNTD(FedAvg):
    """Softmax over the classes that are not the true one, row by row."""

    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        received, tau = server["vars"], self.m.tau

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            _, z, b = world.run(p, b, x)
            teacher = world.run(received["params"], received["buffers"], x)[1]
            total = torch.zeros((), dtype=z.dtype)
            for i, label in enumerate(y.tolist()):
                others = [c for c in range(CLASSES) if c != label]
                q, student = (t[i, others].div(tau).log_softmax(0) for t in (teacher, z))
                total = total + (q.exp() * (q - student)).sum()
            return F.cross_entropy(z, y) + self.m.beta * tau**2 * total / len(y), b

        return loss


class FedSAM(FedAvg):
    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        def uphill(loss: Any, p: Any, b: Any, *batch: Tensor) -> Any:
            g, new = world.slope(loss, p, b, *batch)
            there = plus({n: v.detach() for n, v in p.items()}, g, self.m.rho / float(dot(g, g)) ** 0.5)
            return world.slope(loss, there, b, *batch)[0], new

        return {"w": self.trained(world, server["vars"], world.ce, client, round, gradient=uphill)}, mine


class FedDecorr(FedAvg):
    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            f, z, b = world.run(p, b, x)
            unit = (f - f.mean(0)) / (f.var(0, correction=0) + 1e-5).sqrt()
            k = unit.T @ unit / len(f)
            apart = sum(k[i, j] ** 2 for i in range(FEATURES) for j in range(FEATURES) if i != j)
            return F.cross_entropy(z, y) + self.m.beta * apart / FEATURES**2, b

        return loss


class GMA(FedAvg):
    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        old, new = server["vars"], self.averaged(world, replies, present)
        params = {}
        for n, p in old["params"].items():
            agree = sum(torch.sign(r["w"]["params"][n] - p) for r in replies).abs() / len(replies)
            mask = torch.where(agree >= self.m.tau - 1e-9, torch.ones_like(agree), agree)
            params[n] = p + self.m.server_lr * mask * (new["params"][n] - p)
        return {"vars": {**new, "params": params}}


class AFL(FedAvg):
    def start(self, world: World) -> Any:
        n = world.data.clients
        return {"vars": world.start, "mixture": torch.full((n,), 1 / n, dtype=torch.float64)}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        up, mine = super().client(world, server, mine, client, round)
        return {**up, "loss": world.risk(server["vars"], client)}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        lam = server["mixture"]
        shares = lam[present].tolist()
        vars = mean([r["w"] for r in replies], shares) if sum(shares) > 0 else server["vars"]
        v = lam.clone()
        for c, r in zip(present, replies, strict=True):
            v[c] += self.m.lambda_lr * r["loss"] * len(lam) / len(present)
        low, high = float(v.min()) - 1.0, float(v.max())  # the common number by bisection
        for _ in range(200):
            middle = (low + high) / 2
            low, high = (middle, high) if float((v - middle).clamp_min(0).sum()) > 1 else (low, middle)
        return {"vars": vars, "mixture": (v - low).clamp_min(0)}


class FedALA(FedAvg):
    def mine(self, world: World, client: int) -> Any:
        head = head_of(world.start)
        return {"head": head, "mix": {n: torch.ones_like(v) for n, v in head.items()}, "seen": False}

    def mixing(self, world: World, server: Any, mine: Any, client: int, *path: Any) -> Any:
        m, received, n = self.m, head_of(server["vars"]), world.size(client)
        old = mine["head"] if mine["seen"] else received
        share = -(-n * round(1000 * m.share) // 1000)
        order = rng.order(world.key(*path, "share"), n, n)[: max(share, 1)]
        own = world.rows(client)[order]
        plan = {"rows": torch.arange(len(own)), "n": torch.tensor(len(own))}
        positions, _ = m.mix_work.plan(plan, world.key(*path, "plan"))
        a = copied(mine["mix"])
        for at in positions:
            rows = own[at]
            z = world.run(server["vars"]["params"], server["vars"]["buffers"], world.x[rows], False)[0].detach()
            head = {k: old[k] + (received[k] - old[k]) * a[k] for k in a}
            g, _ = world.slope(lambda p, b, z, y: (F.cross_entropy(logits_of(p, z), y), b), head, {}, z, world.y[rows])
            a = {k: (a[k] - m.mix_lr * g[k] * (received[k] - old[k])).clamp(0, 1) for k in a}
        return {k: old[k] + (received[k] - old[k]) * a[k] for k in a}, a

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        head, a = self.mixing(world, server, mine, client, "mix")
        w = self.trained(world, with_head(server["vars"], head), world.ce, client, round)
        return {"w": w}, {"head": head_of(w), "mix": a, "seen": True}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": with_head(server["vars"], self.mixing(world, server, mine, client)[0])}


class IFCA(FedAvg):
    def start(self, world: World) -> Any:
        drawn = [world.start] + [world.initial("model", j) for j in range(1, self.m.clusters)]
        return {"each": drawn}

    def chosen(self, world: World, server: Any, client: int) -> int:
        risks = [float(world.risk(w, client)) for w in server["each"]]
        return risks.index(min(risks))

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        j = self.chosen(world, server, client)
        return {"j": j, "w": self.trained(world, server["each"][j], world.ce, client, round)}, {"choice": j}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        each = list(server["each"])
        for j in range(self.m.clusters):
            own = [(r["w"], self.weight(world, c)) for r, c in zip(replies, present, strict=True) if r["j"] == j]
            if own:
                each[j] = mean([w for w, _ in own], [n for _, n in own])
        return {"each": each}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": server["each"][self.chosen(world, server, client)]}


class FedEM(FedAvg):
    def start(self, world: World) -> Any:
        return {"models": {str(m): world.initial("model", m) if m else world.start for m in range(self.m.learners)}}

    def mine(self, world: World, client: int) -> Any:
        return {"pi": torch.full((self.m.learners,), 1 / self.m.learners, dtype=torch.float64)}

    def expected(self, world: World, server: Any, mine: Any, client: int) -> Any:
        y = world.y[world.rows(client)]
        likely = [p * world.logits(w, client).softmax(-1)[torch.arange(len(y)), y] for p, w in self.pairs(server, mine)]
        q = torch.stack(likely)
        q = q / q.sum(0)
        return q, q.mean(1)

    def pairs(self, server: Any, mine: Any) -> Any:
        return zip(mine["pi"], server["models"].values(), strict=True)

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        q, pi = self.expected(world, server, mine, client)
        up = {}
        for m, w in server["models"].items():
            weights = torch.zeros(len(world.x), 1, dtype=torch.float64)
            weights[world.rows(client), 0] = q[int(m)]

            def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
                _, z, b = world.run(p, b, x[:, :-1])
                return (F.cross_entropy(z, y, reduction="none") * x[:, -1]).mean(), b

            up[m] = self.trained(world, w, loss, client, round, inputs=torch.cat([world.x, weights], 1))
        return {"w": up}, {"pi": pi}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {"models": self.averaged(world, replies, present)}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        pi = self.expected(world, server, mine, client)[1]
        return {"vars": server["models"][str(int(pi.argmax()))], "pi": pi.sort(descending=True).values}


class FedTHE(FedAvg):
    def start(self, world: World) -> Any:
        return {"vars": world.start, "descriptor": torch.zeros(FEATURES, dtype=torch.float64)}

    def mine(self, world: World, client: int) -> Any:
        return {"head": head_of(world.initial("personal head", client))}

    def personal(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        z, m = world.features(server["vars"], client), self.m
        head = world.fit_head(mine["head"], z, client, m.head_opt, m.head_work, round, "personal")
        return {"head": head, "descriptor": z.mean(0)}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        mine = self.personal(world, server, mine, client, round)
        prior = (world.counts(client) + 1).log()

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            _, z, b = world.run(p, b, x)
            return F.cross_entropy(z + prior, y), b

        batches = world.batches(client, self.m.work, "global")
        w = world.local(server["vars"], batches, round, loss, clip=self.m.work.clip)
        return {"w": w, "descriptor": mine["descriptor"]}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        vars = self.averaged(world, replies, present)
        return {"vars": vars, "descriptor": mean([r["descriptor"] for r in replies])}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        own = self.personal(world, server, mine, client, 0)
        both = {"global": server["descriptor"], "local": own["descriptor"]}
        return {"vars": server["vars"], "head": own["head"], "descriptors": both}


class FedProto(FedAvg):
    def start(self, world: World) -> Any:
        return {"prototypes": torch.zeros(CLASSES, FEATURES, dtype=torch.float64), "known": torch.zeros(CLASSES)}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start}

    def pulled(self, world: World, server: Any, weight: float) -> Any:
        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            f, z, b = world.run(p, b, x)
            known = server["known"][y] > 0
            apart = ((f - server["prototypes"][y]) ** 2).mean(1)[known].sum() / len(y)
            return F.cross_entropy(z, y) + weight * apart, b

        return loss

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        w = self.trained(world, mine["vars"], self.pulled(world, server, self.m.weight), client, round)
        means, counts = class_means(world.features(w, client), world.y[world.rows(client)])
        return {"means": means, "counts": counts}, {"vars": w}

    def pooled(self, server: Any, replies: list[Any]) -> Any:
        prototypes, known = server["prototypes"].clone(), server["known"].clone()
        for c in range(CLASSES):
            own = [(r["means"][c], float(r["counts"][c])) for r in replies if r["counts"][c]]
            if own:
                prototypes[c] = mean([z for z, _ in own], [n for _, n in own])
                known[c] = 1
        return {"prototypes": prototypes, "known": known}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return self.pooled(server, replies)

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": mine["vars"], **server}
