"""The update rules of federated methods, written from their papers' algorithms for `simulator.World`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simulator import CLASSES, World, copied, dot, factor, mapped, mean, minus, plus, stepper

HEAD = ("head.weight", "head.bias")
BODY = ("first.weight", "norm.weight", "norm.bias")
NORM = ("norm.weight", "norm.bias", "norm.running_mean", "norm.running_var")


def part(w: Any, names: Any, inside: bool = True) -> Any:
    """The named variables, or the others."""
    return {kind: {n: v for n, v in w[kind].items() if (n in names) == inside} for kind in w}


def whole(a: Any, b: Any) -> Any:
    return {kind: {**a[kind], **b[kind]} for kind in a}


def head_of(w: Any) -> Any:
    return {n.removeprefix("head."): v for n, v in w["params"].items() if n in HEAD}


def with_head(w: Any, head: Any) -> Any:
    return {**w, "params": {**w["params"], **{f"head.{n}": v for n, v in head.items()}}}


def class_means(z: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean features per class, zero where there is no example; and how many there are."""
    rows, counts = torch.zeros(CLASSES, z.shape[1], dtype=z.dtype), torch.zeros(CLASSES, dtype=z.dtype)
    for c in range(CLASSES):
        if (y == c).any():
            rows[c], counts[c] = z[y == c].mean(0), (y == c).sum()
    return rows, counts


class FedAvg:
    """McMahan et al., Algorithm 1, with what the record's settings make of it."""

    def __init__(self, m: Any) -> None:
        self.m = m

    def start(self, world: World) -> Any:
        return {"vars": world.start}

    def mine(self, world: World, client: int) -> Any:
        return {}

    def weight(self, world: World, client: int) -> float:
        return world.size(client) if getattr(self.m, "weights", "samples") == "samples" else 1.0

    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return world.ce

    def trained(self, world: World, w: Any, loss: Any, client: int, round: int, **more: Any) -> Any:
        batches = world.batches(client, self.m.work)
        return world.local(w, batches, round, loss, clip=self.m.work.clip, **more)

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        loss = self.loss(world, server, mine, client)
        return {"w": self.trained(world, server["vars"], loss, client, round)}, mine

    def averaged(self, world: World, replies: list[Any], present: list[int], name: str = "w") -> Any:
        return mean([r[name] for r in replies], [self.weight(world, c) for c in present])

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {**server, "vars": self.averaged(world, replies, present)}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": server["vars"]}


class Private(FedAvg):
    """FedAvg whose named variables stay, some of them frozen: FedPer, FedBN, LG-FedAvg, FedBABU."""

    def __init__(self, m: Any, names: Any, frozen: Any = ()) -> None:
        super().__init__(m)
        self.names, self.frozen = names, frozen

    def start(self, world: World) -> Any:
        return {"vars": part(world.start, self.names, False)}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": part(world.start, self.names)}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        start = whole(server["vars"], mine["vars"])
        moving = [n for n in start["params"] if n not in self.frozen]
        w = self.trained(world, start, world.ce, client, round, only=moving)
        return {"w": part(w, self.names, False)}, {"vars": part(w, self.names)}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": whole(server["vars"], mine["vars"])}


class Balanced(FedAvg):
    """Balanced softmax under the client's class counts, smoothed by one."""

    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        prior = (world.counts(client) + 1).log()

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            _, z, b = world.run(p, b, x)
            return F.cross_entropy(z + prior, y), b

        return loss


class ServerOpt(FedAvg):
    """FedAvgM and FedAdam: the mean difference is the server's negative gradient; statistics are averaged."""

    def start(self, world: World) -> Any:
        self.params = {n: v.clone() for n, v in world.start["params"].items()}
        self.steps = stepper(self.m.server_opt, list(self.params.values()))
        return {"vars": world.start}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        new = self.averaged(world, replies, present)
        for n, p in self.params.items():
            p.grad = server["vars"]["params"][n] - new["params"][n]
        with torch.no_grad():
            self.steps.step()
        return {"vars": {"params": copied(self.params), "buffers": new["buffers"]}}


class FedProx(FedAvg):
    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            value, b = world.ce(p, b, x, y)
            away = minus(p, server["vars"]["params"])
            return value + self.m.mu / 2 * dot(away, away), b

        return loss


class Scaffold(FedAvg):
    """Algorithm 1, option II; c_i of a client that was away is the one of its last round."""

    def start(self, world: World) -> Any:
        return {"vars": world.start, "control": mapped(torch.zeros_like, world.start["params"])}

    def mine(self, world: World, client: int) -> Any:
        return {"control": mapped(torch.zeros_like, world.start["params"])}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        batches, x = world.batches(client, self.m.work), server["vars"]

        def corrected(loss: Any, p: Any, b: Any, *batch: Tensor) -> Any:
            g, b = world.slope(loss, p, b, *batch)
            return plus(minus(g, mine["control"]), server["control"]), b

        y = world.local(x, batches, round, world.ce, clip=self.m.work.clip, gradient=corrected)
        way = sum(self.m.opt.lr * factor(self.m.opt, round, t) for t in range(len(batches)))
        new = mapped(
            lambda own, common, a, b: own - common + (a - b) / way,
            mine["control"],
            server["control"],
            x["params"],
            y["params"],
        )
        return {"w": y, "control": minus(new, mine["control"])}, {"control": new}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        new, old = mean([r["w"] for r in replies]), server["vars"]
        params = plus(old["params"], minus(new["params"], old["params"]), self.m.server_lr)
        control = plus(server["control"], mean([r["control"] for r in replies]), len(present) / world.data.clients)
        return {"vars": {"params": params, "buffers": new["buffers"]}, "control": control}


class FedDyn(FedAvg):
    def start(self, world: World) -> Any:
        return {"vars": world.start, "h": mapped(torch.zeros_like, world.start["params"])}

    def mine(self, world: World, client: int) -> Any:
        return {"g": mapped(torch.zeros_like, world.start["params"])}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        received = server["vars"]["params"]

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            value, b = world.ce(p, b, x, y)
            away = minus(p, received)
            return value - dot(mine["g"], p) + self.m.alpha / 2 * dot(away, away), b

        w = self.trained(world, server["vars"], loss, client, round)
        return {"w": w}, {"g": plus(mine["g"], minus(w["params"], received), -self.m.alpha)}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        new, alpha = mean([r["w"] for r in replies]), self.m.alpha
        moved = minus(mean([r["w"]["params"] for r in replies]), server["vars"]["params"])
        h = plus(server["h"], moved, -alpha * len(present) / world.data.clients)
        return {"vars": {**new, "params": plus(new["params"], h, -1 / alpha)}, "h": h}


class FedNova(FedAvg):
    """|a|_1 by pushing a gradient of one through the optimiser."""

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        steps = []
        for c in present:
            opt, place = self.m.opt, torch.zeros(1, dtype=torch.float64)
            optimiser = stepper(type(opt)(opt.lr, 0.0, opt.schedule, opt.momentum, opt.nesterov), [place])
            world.purpose = ("train", round, c)
            for t in range(len(world.batches(c, self.m.work))):
                place.grad = torch.ones_like(place)
                optimiser.param_groups[0]["lr"] = opt.lr * factor(opt, round, t)
                optimiser.step()
            steps.append(-float(place) / opt.lr)
        old, weights = server["vars"], [float(world.size(c)) for c in present]
        share = [w / sum(weights) for w in weights]
        effective = sum(s * a for s, a in zip(share, steps, strict=True))
        params = old["params"]
        for s, a, r in zip(share, steps, replies, strict=True):
            params = plus(params, minus(r["w"]["params"], old["params"]), effective * s / a)
        return {"vars": {"params": params, "buffers": mean([r["w"]["buffers"] for r in replies], weights)}}


class Moon(FedAvg):
    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        received, last = server["vars"], mine.get("vars", server["vars"])

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            z, logits, b = world.run(p, b, x)
            near = world.run(received["params"], received["buffers"], x)[0]
            far = world.run(last["params"], last["buffers"], x)[0]
            up, down = (torch.exp(F.cosine_similarity(z, o) / self.m.tau) for o in (near, far))
            return F.cross_entropy(logits, y) + self.m.mu * -(up / (up + down)).log().mean(), b

        w = self.trained(world, received, loss, client, round)
        return {"w": w}, {"vars": w}


class FedRep(Private):
    def __init__(self, m: Any) -> None:
        super().__init__(m, HEAD)

    def fitted(self, world: World, server: Any, mine: Any, client: int, round: int, *path: Any) -> Any:
        w = whole(server["vars"], mine["vars"])
        head = world.fit_head(head_of(w), world.features(w, client), client, self.m.opt, self.m.head_work, round, *path)
        return part(with_head(w, head), HEAD)

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        head = self.fitted(world, server, mine, client, round, "head")
        w = self.trained(world, whole(server["vars"], head), world.ce, client, round, only=BODY)
        return {"w": part(w, HEAD, False)}, {"vars": head}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": whole(server["vars"], self.fitted(world, server, mine, client, 0))}


class Ditto(FedAvg):
    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start, "seen": False}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        w = self.trained(world, server["vars"], world.ce, client, round)

        def tied(loss: Any, p: Any, b: Any, *batch: Tensor) -> Any:
            g, b = world.slope(loss, p, b, *batch)
            return plus(g, minus(p, server["vars"]["params"]), self.m.lam), b

        work = self.m.personal_work
        v = world.local(
            mine["vars"],
            world.batches(client, work, "personal"),
            round,
            world.ce,
            clip=work.clip,
            gradient=tied,
        )
        return {"w": w}, {"vars": v, "seen": True}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": mine["vars"] if mine["seen"] else server["vars"]}


class APFL(FedAvg):
    """Both models step on the same batch, v by the chain rule through the mixture with w before its step."""

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start, "alpha": self.m.alpha, "seen": False}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        w, v, opt, alpha = server["vars"], mine["vars"], self.m.opt, mine["alpha"]
        if self.m.adapt_alpha:
            rows = world.batches(client, type(self.m.work)(iterations=1, batch=self.m.work.batch), "alpha")[0]
            mixed = self.mixed(v, w, alpha)
            g, _ = world.slope(world.ce, mixed["params"], v["buffers"], world.x[rows], world.y[rows])
            alpha -= opt.lr * factor(opt, round, 0) * float(dot(minus(v["params"], w["params"]), g))
            alpha = min(max(alpha, 0.0), 1.0)
        names = list(w["params"])
        both = {**{f"w/{n}": w["params"][n] for n in names}, **{f"v/{n}": v["params"][n] for n in names}}

        def gradient(_: Any, p: Any, b: Any, *batch: Tensor) -> Any:
            pw, pv = ({n: p[f"{k}/{n}"].detach() for n in names} for k in "wv")
            gw, bw = world.slope(world.ce, pw, b["w"], *batch)
            inside = {n: alpha * pv[n] + (1 - alpha) * pw[n] for n in names}
            gv, bv = world.slope(world.ce, inside, b["v"], *batch)
            return {f"w/{n}": gw[n] for n in names} | {f"v/{n}": alpha * gv[n] for n in names}, {"w": bw, "v": bv}

        start = {"params": both, "buffers": {"w": w["buffers"], "v": v["buffers"]}}
        new = self.trained(world, start, None, client, round, gradient=gradient)
        w, v = ({"params": {n: new["params"][f"{k}/{n}"] for n in names}, "buffers": new["buffers"][k]} for k in "wv")
        return {"w": w}, {"vars": v, "alpha": alpha, "seen": True}

    def mixed(self, v: Any, w: Any, alpha: float) -> Any:
        return mapped(lambda a, b: alpha * a + (1 - alpha) * b, v, w)

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": self.mixed(mine["vars"], server["vars"], mine["alpha"] if mine["seen"] else 0.0)}
