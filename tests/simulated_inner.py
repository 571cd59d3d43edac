"""Update rules for `simulator.World` of methods whose local steps have steps inside."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from acclimate.core import SGD
from simulated_methods import FedAvg
from simulator import World, copied, factor, mapped, mean, plus, stepper


class PFedMe(FedAvg):
    """K steps on theta per batch, then w follows; theta goes on from where it was within a round."""

    def phase(self, world: World, start: Any, client: int, round: int) -> Any:
        m, opt = self.m, self.m.opt
        w, theta, b = copied(start["params"]), copied(start["params"]), copied(start["buffers"])
        steps = stepper(opt, list(theta.values()))
        for t, rows in enumerate(world.batches(client, m.work)):
            for _ in range(m.steps):
                g, b = world.slope(world.ce, theta, b, world.x[rows], world.y[rows])
                for n, p in theta.items():
                    p.grad = g[n] + m.lam * (p.detach() - w[n])
                if m.work.clip is not None:
                    torch.nn.utils.clip_grad_norm_(list(theta.values()), m.work.clip)
                steps.param_groups[0]["lr"] = opt.lr * factor(opt, round, t)
                with torch.no_grad():
                    steps.step()
            w = {n: w[n] - m.eta * m.lam * (w[n] - theta[n].detach()) for n in w}
        return {"params": w, "buffers": b}, copied({"params": theta, "buffers": b})

    def mine(self, world: World, client: int) -> Any:
        return {"vars": world.start}

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        w, theta = self.phase(world, server["vars"], client, round)
        return {"w": w}, {"vars": theta}

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        new = mean([r["w"] for r in replies])
        return {"vars": mapped(lambda a, b: (1 - self.m.beta) * a + self.m.beta * b, server["vars"], new)}

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        return {"vars": self.phase(world, server["vars"], client, 0)[1]}


class PerFedAvg(FedAvg):
    """Three batches a step; the Hessian's product by differentiating the gradient."""

    def weight(self, world: World, client: int) -> float:
        return 1.0

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        m, size = self.m, self.m.work.batch
        second = m.order == "second"

        def gradient(_: Any, p: Any, b: Any, x: Tensor, y: Tensor) -> Any:
            parts = list(zip(x.split(size), y.split(size), strict=True))
            p = {n: v.detach() for n, v in p.items()}
            inner, _ = world.slope(world.ce, p, b, *parts[0])
            outer, new = world.slope(world.ce, plus(p, inner, -m.alpha), b, *parts[1])
            if not second:
                return outer, new
            live = {n: v.clone().requires_grad_() for n, v in p.items()}
            first = torch.autograd.grad(world.ce(live, b, *parts[2])[0], list(live.values()), create_graph=True)
            along = sum((g * outer[n]).sum() for g, n in zip(first, live, strict=True))
            hessian = torch.autograd.grad(along, list(live.values()), allow_unused=True, materialize_grads=True)
            return {n: outer[n] - m.alpha * h for n, h in zip(live, hessian, strict=True)}, new

        batches = world.batches(client, replace(m.work, batch=(3 if second else 2) * size))
        return {"w": world.local(server["vars"], batches, round, None, clip=m.work.clip, gradient=gradient)}, mine

    def live(self, world: World, server: Any, mine: Any, client: int) -> Any:
        plain, work = SGD(lr=self.m.alpha), replace(self.m.work, iterations=self.m.steps)
        batches = world.batches(client, work)
        return {"vars": world.local(server["vars"], batches, 0, world.ce, plain, work.clip)}


class FedTTA(FedAvg):
    """Eq. 5 and 7 by autograd through the inner step; each net has its own optimiser and its own bound."""

    def weight(self, world: World, client: int) -> float:
        return world.size(client) if self.m.weights == "samples" else 1.0

    def start(self, world: World) -> Any:
        server = self.m.init_server(world.task, world.data.clients, world.worker.key("init"))
        return {
            "vars": world.start,
            "net": {k: {n: v.double() for n, v in w.items()} for k, w in server["net"].items()},
        }

    def client(self, world: World, server: Any, mine: Any, client: int, round: int) -> Any:
        m, received = self.m, server["vars"]
        p, b = copied(received["params"]), copied(received["buffers"])
        net = {f"{k}/{n}": v.clone() for k, w in server["net"].items() for n, v in w.items()}
        steps = {"p": stepper(m.opt, list(p.values())), "net": stepper(m.net_opt, list(net.values()))}
        inner_lr = m.inner_lr * factor(type(m.opt)(schedule=m.inner_schedule), round, 0)

        def judged(phi: Any, z: Tensor) -> Tensor:
            for k in range(len(server["net"])):
                z = (z.relu() if k else z) @ phi[f"{k}/weight"].T + phi[f"{k}/bias"]
            return z.norm()

        for t, rows in enumerate(world.batches(client, m.work)):
            psi, phi = ({n: v.detach().clone().requires_grad_() for n, v in o.items()} for o in (p, net))
            x, y = world.x[rows], world.y[rows]
            base = world.run(psi, b, x)[1]
            g = torch.autograd.grad(judged(phi, base), list(psi.values()), create_graph=True)
            if m.order == "first":  # the net still acts through the gradient, at a model that is a constant
                fixed = {n: v.detach().clone().requires_grad_() for n, v in p.items()}
                g = torch.autograd.grad(judged(phi, world.run(fixed, b, x)[1]), list(fixed.values()), create_graph=True)
            moved = {n: v - inner_lr * s for (n, v), s in zip(psi.items(), g, strict=True)}
            _, z, new = world.run(moved, b, x)
            loss = F.cross_entropy(z, y)
            if m.mu:
                frozen = world.run(received["params"], received["buffers"], x)[1].log_softmax(-1).detach()
                own = base.log_softmax(-1)
                loss = loss + m.mu * (own.exp() * (own - frozen)).sum(-1).mean()
            found = torch.autograd.grad(loss, [*psi.values(), *phi.values()], allow_unused=True, materialize_grads=True)
            for v, s in zip([*p.values(), *net.values()], found, strict=True):
                v.grad = s.clone()
            for name, group, opt in (("p", p, m.opt), ("net", net, m.net_opt)):
                if m.work.clip is not None:
                    torch.nn.utils.clip_grad_norm_(list(group.values()), m.work.clip)
                steps[name].param_groups[0]["lr"] = opt.lr * factor(opt, round, t)
                with torch.no_grad():
                    steps[name].step()
            b = copied(new)
        nets = {k: {n: net[f"{k}/{n}"].detach() for n in w} for k, w in server["net"].items()}
        return {"w": {"vars": copied({"params": p, "buffers": b}), "net": copied(nets)}}, mine

    def server(self, world: World, server: Any, replies: list[Any], present: list[int], round: int) -> Any:
        return self.averaged(world, replies, present)
