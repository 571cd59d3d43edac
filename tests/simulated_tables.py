"""Update rules for `simulator.World` of methods whose server keeps a row for every client."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from simulated_methods import BODY, HEAD, FedAvg, class_means, head_of, part, whole, with_head
from simulated_peers import FedProto
from simulator import CLASSES, FEATURES, World, dot, mean, minus, plus


class FedPAC(FedProto):
    """Head first, then the body under it; the server solves a quadratic programme for every client's head."""

    def start(self, world: World) -> Any:
        heads = [head_of(world.start) for _ in range(world.data.clients)]
        return {"vars": part(world.start, HEAD, False), "each": heads, **super().start(world)}

    def mine(self, world: World, client: int) -> Any:
        return {}

    def fitted(self, world: World, server: Any, client: int, round: int, *path: Any) -> tuple[Any, Tensor]:
        z = world.features(with_head(server["vars"], server["each"][client]), client)
        m = self.m
        return world.fit_head(server["each"][client], z, client, m.head_opt, m.head_work, round, *path), z

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        head, z = self.fitted(world, server, client, round, "head")
        y = world.y[world.rows(client)]
        start, loss = with_head(server["vars"], head), self.pulled(world, server, self.m.lam)
        w = self.trained(world, start, loss, client, round, only=BODY)
        means, counts = class_means(world.features(w, client), y)
        h = torch.stack([z[y == c].sum(0) / len(y) for c in range(CLASSES)])
        spread = ((z**2).sum() / len(y) - (h**2).sum()) / len(y)
        up = {"w": part(w, HEAD, False), "head": head, "h": h, "variance": spread, "means": means, "counts": counts}
        return up, {"head": head}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        each = list(server["each"])
        h, variance = torch.stack([r["h"] for r in replies]), torch.stack([r["variance"] for r in replies])
        for i, c in enumerate(present):
            away = (h[i] - h).flatten(1)
            a = least(away @ away.T + torch.diag(variance))
            each[c] = mean([r["head"] for r in replies], a.tolist())
        return {"vars": self.averaged(world, replies, present), "each": each, **self.pooled(server, replies)}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": with_head(server["vars"], self.fitted(world, server, client, 0)[0])}


def least(q: Tensor) -> Tensor:
    """The point of the simplex of least a^T q a, over all sets of entries that are not zero."""
    best, lowest = None, torch.inf
    for mask in range(1, 2 ** len(q)):
        on = torch.tensor([i for i in range(len(q)) if mask >> i & 1])
        solved = torch.linalg.solve(q[on][:, on] + 1e-14 * torch.eye(len(on)), torch.ones(len(on), dtype=q.dtype))
        a = torch.zeros(len(q), dtype=q.dtype)
        a[on] = solved / solved.sum()
        if (a >= 0).all() and float(a @ q @ a) < lowest:
            best, lowest = a, float(a @ q @ a)
    assert best is not None
    return best


class FedPCL(FedAvg):
    """Eq. 5 to 10, sample by sample."""

    def start(self, world: World) -> Any:
        n = world.data.clients
        sets, counts = torch.zeros(n, CLASSES, FEATURES, dtype=torch.float64), torch.zeros(n, CLASSES).double()
        return {"sets": sets, "counts": counts}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start}

    def common(self, server: Any) -> tuple[dict[int, Tensor], list[dict[int, Tensor]]]:
        """The global prototypes by class, and the sets, filled up, of clients that have sent one."""
        sets, counts = server["sets"], server["counts"]
        pooled = {
            c: (counts[:, c, None] * sets[:, c]).sum(0) / counts[:, c].sum()
            for c in range(CLASSES)
            if counts[:, c].sum() > 0
        }
        senders = [k for k in range(len(sets)) if counts[k].sum() > 0]
        return pooled, [{c: sets[k, c] if counts[k, c] else pooled[c] for c in pooled} for k in senders]

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        pooled, sets = self.common(server)
        w = mine["vars"]

        def term(z: Tensor, label: int, rows: dict[int, Tensor]) -> Any:
            others = [c for c in rows if c != label]
            if label not in rows or not others:
                return 0.0
            away = torch.stack([(z @ rows[c] / self.m.tau).exp() for c in others]).sum()
            return -((z @ rows[label] / self.m.tau).exp() / away).log()

        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            f, _, b = world.run(p, b, x)
            z = f / f.norm(dim=1, keepdim=True)
            total = sum(
                term(z[i], c, pooled) + sum(term(z[i], c, s) for s in sets) / len(sets)
                for i, c in enumerate(y.tolist())
            )
            return total / len(y), b

        if sets:
            w = self.trained(world, w, loss, client, round)
        means, counts = self.prototypes(world, w, client)
        return {"means": means, "counts": counts}, {"vars": w, "prototypes": means, "counts": counts}

    def prototypes(self, world: World, w: Any, client: int) -> tuple[Tensor, Tensor]:
        return class_means(F.normalize(world.features(w, client), dim=1), world.y[world.rows(client)])

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        sets, counts = server["sets"].clone(), server["counts"].clone()
        for c, r in zip(present, replies, strict=True):
            sets[c], counts[c] = r["means"], r["counts"]
        return {"sets": sets, "counts": counts}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        means, counts = self.prototypes(world, mine["vars"], client)
        pooled, _ = self.common(server)
        rows = torch.stack([means[c] if counts[c] else pooled.get(c, torch.zeros(FEATURES)) for c in range(CLASSES)])
        return {"vars": with_head(mine["vars"], {"weight": rows, "bias": torch.zeros(CLASSES)})}


class FedAS(FedAvg):
    def start(self, world: World) -> Any:
        return {"vars": part(world.start, HEAD, False)}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start, "seen": False}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        m, w = self.m, whole(server["vars"], part(mine["vars"], HEAD))
        own, _ = class_means(world.features(mine["vars"], client), world.y[world.rows(client)])

        def align(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            f, _, b = world.run(p, b, x)
            here = y.unique().tolist()
            return sum(((f[y == c].mean(0) - own[c]) ** 2).mean() for c in here) / len(here), b

        if mine["seen"]:
            batches = world.batches(client, m.align_work, "align")
            w = world.local(w, batches, round, align, m.align_opt, m.align_work.clip, only=BODY)
        w = self.trained(world, w, world.ce, client, round)
        once = [
            float(dot(g, g))
            for rows in world.batches(client, type(m.work)(1, None, m.work.batch, m.work.drop_last), "fisher")
            for g in [world.slope(world.ce, w["params"], w["buffers"], world.x[rows], world.y[rows])[0]]
        ]
        return {"w": part(w, HEAD, False), "fisher": sum(once) / len(once)}, {"vars": w, "seen": True}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {"vars": mean([r["w"] for r in replies], [r["fisher"] for r in replies])}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": mine["vars"] if mine["seen"] else whole(server["vars"], part(mine["vars"], HEAD))}


class FedCSA(FedAvg):
    def start(self, world: World) -> Any:
        return {"vars": world.start, "counts": torch.zeros(CLASSES, dtype=torch.float64)}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        totals, shares = server["counts"], []
        shown = [float(t) for t in totals if t > 0]
        for c in present:
            usual = sum(shown) / len(shown) if shown else 1.0
            shares.append(sum(float(n) / (float(t) or usual) for n, t in zip(world.counts(c), totals, strict=True)))
        counts = totals + sum(world.counts(c) for c in present)
        return {"vars": mean([r["w"] for r in replies], shares), "counts": counts}


class GA(FedAvg):
    def start(self, world: World) -> Any:
        n = world.data.clients
        return {"vars": world.start, "weights": torch.full((n,), 1 / n, dtype=torch.float64)}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        up, _ = super().client(world, server, mine, client, round)
        gap = world.risk(server["vars"], client) - mine["loss"] if mine else None
        return {**up, "gap": gap}, {"loss": world.risk(up["w"], client)}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        old, n = server["weights"], len(server["weights"])
        a, gaps = old.clone(), {c: r["gap"] for c, r in zip(present, replies, strict=True) if r["gap"] is not None}
        middle = sum(gaps.values()) / len(gaps) if gaps else 0.0
        most = max((abs(float(g - middle)) for g in gaps.values()), default=0.0)
        for c, g in gaps.items():
            a[c] += self.m.step / n * max(1 - round / self.m.rounds, 0.0) * float(g - middle) / max(most, 1e-12)
        a = a.clamp(0, 1)
        return {"vars": mean([r["w"] for r in replies], old[present].tolist()), "weights": a / a.sum()}


class PFL(FedAvg):
    """FedPer; the server has every head that was sent last."""

    def start(self, world: World) -> Any:
        return {"vars": part(world.start, HEAD, False), "seen": torch.zeros(world.data.clients)}

    def mine(self, world: World, client: int) -> Any:
        return {"head": part(world.start, HEAD)["params"]}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        w = whole(server["vars"], {"params": mine["head"], "buffers": {}})
        w = self.trained(world, w, world.ce, client, round)
        return {"w": part(w, HEAD, False)}, {"head": part(w, HEAD)["params"]}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {
            "vars": self.averaged(world, replies, present),
            "seen": server["seen"].index_fill(0, torch.tensor(present), 1.0),
        }

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": whole(server["vars"], {"params": mine["head"], "buffers": {}})}


class RSC(FedAvg):
    def loss(self, world: World, server: Any, mine: Any, client: int) -> Any:
        def loss(p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            f, z, b = world.run(p, b, x)
            keep = torch.ones_like(f)
            for i, c in enumerate(y.tolist()):
                order = p["head.weight"][c].detach().argsort(descending=True)
                keep[i, order[: round(self.m.features * FEATURES)]] = 0
            muted = (f * keep) @ p["head.weight"].T + p["head.bias"]
            sure = [t.softmax(1)[torch.arange(len(y)), y].detach() for t in (z, muted)]
            hit = (sure[0] - sure[1]).argsort(descending=True)[: round(self.m.samples * len(y))]
            rows = z.clone()
            rows[hit] = muted[hit]
            return F.cross_entropy(rows, y), b

        return loss


class Local(FedAvg):
    def start(self, world: World) -> Any:
        return {}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        return {}, {"vars": self.trained(world, mine["vars"], world.ce, client, round)}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return {}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": mine["vars"]}


class FedFomo(FedAvg):
    """One in `parts` of the examples, the last ones, judge; others train."""

    def start(self, world: World) -> Any:
        n = world.data.clients
        return {"each": [world.start for _ in range(n)], "affinity": torch.eye(n, dtype=torch.float64)}

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start, "seen": False}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        n, own = world.size(client), world.rows(client)
        held = max(n // self.m.parts, 1)
        judged, old = own[n - held :], mine["vars"]

        def risk(w: Any) -> float:
            z = world.run(w["params"], w["buffers"], world.x[judged], False)[1]
            return float(F.cross_entropy(z, world.y[judged]))

        chosen = self.m.looked_at(server["affinity"].float(), torch.tensor(client), world.key("choose")).tolist()
        assert client not in chosen and len(set(chosen)) == min(self.m.models, world.data.clients - 1)
        drops = []
        for j in chosen:
            away = minus(server["each"][j]["params"], old["params"])
            far = float(dot(away, away)) ** 0.5
            drops.append(max(0.0, (risk(old) - risk(server["each"][j])) / max(far, 1e-12)))
        total, w, gain = sum(drops), old, torch.zeros(world.data.clients, dtype=torch.float64)
        for j, drop in zip(chosen, drops, strict=True):
            if total:
                w, gain[j] = plus(w, minus(server["each"][j], old), drop / total), drop / total
        count = max(n - held, 1)
        batches = world.batches(client, self.m.work, count=count)
        w = world.local(w, batches, round, world.ce, clip=self.m.work.clip)
        return {"w": w, "gain": gain}, {"vars": w, "seen": True}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        each, affinity = list(server["each"]), server["affinity"].clone()
        for c, r in zip(present, replies, strict=True):
            each[c] = r["w"]
            affinity[c] += r["gain"]
        return {"each": each, "affinity": affinity}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": mine["vars"] if mine["seen"] else mean(server["each"])}
