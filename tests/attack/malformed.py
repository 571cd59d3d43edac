"""Malformed messages by the hundred thousand: a generator with a fixed seed, and what the server makes of each.

Every message goes the way of a real one: an answer of a node, whose parcels are read, checked, decoded, judged and
combined with those of honest clients, and from which the method's server half makes the next state. Counted are errors
that reach the loop, ends of the run, and moves beyond the bounds, which are worked out here a second time.
"""

from __future__ import annotations

import io
import json
import random
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from attacked import FIRST, Federation, experiment, parcel

from acclimate.backends.flower.messages import RoundMessages
from acclimate.backends.flower.protocol import FleetError, NodeAnswer, Parcel, nested
from acclimate.core import Mean, Tree, Worker, fit, tree
from acclimate.experiment import catalogue

LIAR = 3
"""The client that lies; the other three are honest."""
NUMBERS = (
    0.0,
    -1.0,
    1.0,
    1e-45,
    -1e-3,
    7.5,
    1e3,
    1e10,
    1e19,
    -1e30,
    1e30,
    1e38,
    3e38,
    -3e38,
    float("nan"),
    float("inf"),
)
WHOLE = (0, -1, 1, 255, 10**9, 2**31, 2**53, 2**62, -(2**62), 2**63 - 1, -(2**63))
DTYPES = (torch.float64, torch.float16, torch.int64, torch.int8, torch.bool, torch.uint8)


# --- what a liar sends ----------------------------------------------------------------------------------------------


def value_for(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if x.is_floating_point():
        return torch.tensor(chance.choice(NUMBERS), dtype=torch.float64).to(x.dtype)
    info = torch.iinfo(x.dtype) if x.dtype != torch.bool else None
    number = chance.choice(WHOLE)
    return torch.tensor(number if info is None else min(max(number, info.min), info.max)).to(x.dtype)


def one_entry(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    if not x.numel():
        return x
    out = x.clone()
    out.view(-1)[chance.randrange(x.numel())] = value_for(x, chance)
    return out


def all_entries(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return value_for(x, chance).expand(x.shape).clone()


def scaled(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    factor = chance.choice((-1e30, -1e5, -100.0, -5.0, -1.0, 0.0, 3.0, 50.0, 1e4, 1e20))
    return (x.double() * factor).clamp(-3e38, 3e38).to(x.dtype)


def another_type(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    return x.to(chance.choice([d for d in DTYPES if d != x.dtype]))


def another_shape(x: torch.Tensor, chance: random.Random) -> torch.Tensor:
    makers: list[Callable[[], torch.Tensor]] = [
        lambda: x[None],
        lambda: x.flatten()[:-1],
        lambda: x.new_zeros(0),
        lambda: x.new_zeros(()) if x.dim() else x.new_zeros(3),
        lambda: x.new_zeros(0, *x.shape),
        lambda: x.repeat(*[2] * max(x.dim(), 1)),
        lambda: x.T if x.dim() == 2 and x.shape[0] != x.shape[1] else x[None, None],
    ]
    return chance.choice(makers)()


TENSORS = (one_entry, one_entry, all_entries, all_entries, scaled, another_type, another_shape)


def changed_tensor(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    name = chance.choice(list(flat))
    return {**flat, name: chance.choice(TENSORS)(flat[name], chance)}


def changed_claims(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """Small tensors are claims: weights, counts, losses, numbers, scales."""
    small = [n for n, x in flat.items() if x.numel() <= 10]
    out = dict(flat)
    for name in small or list(flat):
        out[name] = chance.choice((one_entry, all_entries))(flat[name], chance)
    return out


def scaled_group(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    group = chance.choice(list(flat)).partition("/")[0]
    factor = chance.choice((-1e30, -100.0, -5.0, -1.0, 10.0, 1e4, 1e20))
    inside = [n for n in flat if n.partition("/")[0] == group and flat[n].is_floating_point()]
    return {**flat, **{n: (flat[n].double() * factor).clamp(-3e38, 3e38).to(flat[n].dtype) for n in inside}}


def without_one(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    gone = chance.choice(list(flat))
    return {n: x for n, x in flat.items() if n != gone}


def with_more(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    name = chance.choice(("spy", "delta/extra", "n/deep/er", "", "/", "a/" * 40 + "a", "x" * 1200, "delta/params//"))
    return {**flat, name: torch.zeros(chance.choice((0, 1, 5)))}


def renamed(flat: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    old = chance.choice(list(flat))
    return {(f"{n}x" if n == old else n): x for n, x in flat.items()}


CLAIMS_FIRST = (changed_claims, changed_claims, scaled_group)
FLAT = (*[changed_tensor] * 3, *CLAIMS_FIRST, without_one, with_more, renamed)


def array_bytes(x: np.ndarray, chance: random.Random) -> bytes:
    """An array in numpy's format whose header lies, or whose bytes are damaged."""
    buffer = io.BytesIO()
    header = {"descr": x.dtype.str, "fortran_order": False, "shape": x.shape}
    lies = chance.choice(("shape", "descr", "order", "flip", "cut", "rubbish", "more"))
    if lies == "shape":
        header["shape"] = chance.choice(((True,), (-1,), (10**30,), (0,) * 100, (1, True), (2**62, 4), (x.size, 0)))
    if lies == "descr":
        header["descr"] = chance.choice((">f4", "|O", "<c8", "<U9", "|V4", "<f8", "<M8[s]"))
    if lies == "order":
        header["fortran_order"] = True
    np.lib.format.write_array_header_1_0(buffer, header)
    data = bytearray(buffer.getvalue() + x.tobytes())
    if lies == "flip":
        for _ in range(chance.randrange(1, 8)):
            data[chance.randrange(min(len(data), 120))] ^= 1 << chance.randrange(8)
    if lies == "cut":
        data = data[: chance.randrange(len(data))]
    if lies == "rubbish":
        data = bytearray(chance.randbytes(chance.randrange(64)))
    if lies == "more":
        data += bytes(chance.randrange(1, 64))
    return bytes(data)


def as_record(flat: dict[str, Any], chance: random.Random) -> Parcel:
    """The message in Flower's own records, with one array whose bytes are wrong."""
    from flwr.app import Array, ArrayRecord

    from acclimate.fleet.records import _parcel

    record, bad = ArrayRecord(), chance.choice(list(flat))
    for name, x in flat.items():
        data = x.numpy()
        buffer = io.BytesIO()
        np.save(buffer, data)
        raw = array_bytes(data, chance) if name == bad else buffer.getvalue()
        record[name] = Array(dtype=str(data.dtype), shape=data.shape, stype="numpy.ndarray", data=raw)
    return _parcel(record)


def json_value(chance: random.Random, depth: int = 3) -> Any:
    kinds = [None, True, False, 0, -1, 3, 10**30, 0.5, "", "x" * 50, "up.3"]
    if depth and chance.random() < 0.5:
        if chance.random() < 0.5:
            return [json_value(chance, depth - 1) for _ in range(chance.randrange(4))]
        return {str(chance.randrange(6)): json_value(chance, depth - 1) for _ in range(chance.randrange(4))}
    return chance.choice(kinds)


def fields_of(chance: random.Random, round: int) -> Any:
    """Fields of an answer that are wrong in form or in content, as the reader gives them; None where it refuses."""
    from acclimate.backends.flower.checks import checked_fields

    name = chance.choice(("round", "failed", "clients", "left", "lacks", "model", "data", "odd"))
    fields = {"round": round, "failed": {}, name: json_value(chance)}
    try:
        return checked_fields(json.loads(json.dumps(fields)))
    except ValueError:
        return None


NAMES = ("up.0", "up.99", "up.-1", "up.", "up.3.3", "up.\u00b2", "3", "metrics.3", "up." + "9" * 400, "up.03")


def answer(up: Tree, round: int, chance: random.Random) -> tuple[str, NodeAnswer]:
    """What the liar sends, and a word for it."""
    node, good, name = FIRST + LIAR, {"round": round, "failed": {}}, f"up.{LIAR}"
    draw = chance.random()
    if draw < 0.80 or not tree.leaves(up):
        flat = tree.flatten(up) if isinstance(up, dict) else {}
        if not flat:
            return "empty", NodeAnswer(node, {name: Parcel(0, dict)}, good)
        change = chance.choice(FLAT)
        new = change(flat, chance)
        return change.__name__, NodeAnswer(node, {name: Parcel(tree.nbytes(new), lambda: nested(new))}, good)
    if draw < 0.88:
        return "bytes", NodeAnswer(node, {name: as_record(tree.flatten(up), chance)}, good)
    if draw < 0.92:
        odd = fields_of(chance, round)
        if odd is None:
            return "fields", NodeAnswer(node, {}, {}, "fields of another form")
        return "fields", NodeAnswer(node, {name: parcel(up)}, odd)
    if draw < 0.96:
        return "name", NodeAnswer(node, {chance.choice(NAMES): parcel(up), name: parcel(up)}, good)
    if draw < 0.98:
        stale = chance.choice((round - 1, round + 1, 10**9, 0))
        return "stale", NodeAnswer(node, {name: parcel(up)}, {**good, "round": stale if stale != round else 10**6})
    count = chance.choice((5, 50, 500))
    return "flood", NodeAnswer(
        node, {**{f"up.{100 + i}": Parcel(0, dict) for i in range(count)}, name: parcel(up)}, good
    )


# --- what the server makes of it ------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What happened to so many messages."""

    messages: int = 0
    crashes: int = 0
    ends: int = 0
    moves: int = 0
    """Messages that moved the model beyond the bounds."""
    not_finite: int = 0
    counted: int = 0
    """Messages that were in order after all, or became so by scaling."""
    left_out: int = 0
    """Rounds in which nobody's message counted: of hidden messages only the sum can be refused."""
    faults: Counter[str] = field(default_factory=Counter)
    sent: Counter[str] = field(default_factory=Counter)
    first: list[str] = field(default_factory=list)
    """The first things that went wrong, in words."""

    def wrong(self, what: str) -> None:
        if len(self.first) < 20:
            self.first.append(what)

    def add(self, other: Tally) -> None:
        for name in ("messages", "crashes", "ends", "moves", "not_finite", "counted", "left_out"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.faults += other.faults
        self.sent += other.sent
        self.first += other.first[: 20 - len(self.first)]


class Target:
    """A method with a filter, three honest messages, and a server that gets a fourth again and again."""

    def __init__(self, method: str, filters: tuple[Any, ...] = ()) -> None:
        self.name = f"{method} {' '.join(type(f).__name__ for f in filters)}".strip()
        uniform = ["method.weights=uniform"] if any(hasattr(f, "withhold") for f in filters) else []
        self.federation = f = Federation(experiment(method, "data.fraction=0.1", *uniform, filters=filters))
        self.worker: Worker = f.worker
        self.clients = list(range(f.world.clients))
        server = f.state.server
        self.down = self.worker.outgoing(self.worker.method.download(self.worker.task, server), torch.arange(4))
        self.honest = {c: self._message(c) for c in self.clients}
        self.decoded = self._arrived({c: self.honest[c] for c in self.clients if c != LIAR}).decoded

    def _message(self, client: int) -> Tree:
        from attacked import data_of

        link = self.federation.link
        up, _, _ = self.worker.train(self.down, self.worker.start(client), data_of(link.train, client, 0))
        return up

    def _arrived(self, ups: dict[int, Tree]) -> RoundMessages:
        e = self.federation.engine
        arrived = RoundMessages(0, e._expected, self.worker, e._intake, self.down)
        for c, up in ups.items():
            arrived.take(NodeAnswer(FIRST + c, {f"up.{c}": parcel(up)}, {"round": 0, "failed": {}}), [c])
        assert not arrived.faults, (self.name, arrived.faults)
        return arrived

    def hit(self, chance: random.Random, tally: Tally) -> None:
        """One malformed message."""
        what, sent = answer(self.honest[LIAR], 0, chance)
        tally.messages += 1
        tally.sent[what] += 1
        engine = self.federation.engine
        arrived = RoundMessages(0, engine._expected, self.worker, engine._intake, self.down)
        arrived.decoded = dict(self.decoded)
        try:
            arrived.take(sent, [LIAR])
            if LIAR in arrived.decoded:  # the three honest ones alone pass always
                arrived.judge()
            for fault in (*arrived.faults.values(), *arrived.refused):
                tally.faults[fault.kind] += 1
            if LIAR in arrived.decoded:
                tally.counted += 1
                self._settle(arrived, tally, what)
        except FleetError as e:
            tally.ends += 1
            tally.wrong(f"{self.name}, {what}: {e}"[:300])
        except Exception as e:
            tally.crashes += 1
            tally.wrong(f"{self.name}, {what}: {type(e).__name__}: {e}"[:300])

    def _settle(self, arrived: RoundMessages, tally: Tally, what: str) -> None:
        engine, before = self.federation.engine, self.federation.state.server
        engine._intake.state = self.federation.state.intake  # every message meets the same server
        reply = engine._reply(self.clients, arrived)
        for reason in self.beyond(engine._open.messages, arrived.decoded):
            tally.moves += 1
            tally.wrong(f"{self.name}, {what}: {reason}"[:300])
        cohort = torch.tensor(self.clients)

        def attempt(given: Any, look: Any) -> Tree:
            return fit.update(self.worker, before, given, cohort, 0, torch.device("cpu"), look=look)

        server, reply = engine.settle(reply, before, attempt)
        tally.left_out += len(reply.part.clients) == 0
        tally.not_finite += not bool(tree.finite(server))
        if engine._intake.hidden:
            moved = length(tree.sub(server["vars"], before["vars"]))
            if moved > (bound := self.federation.options.clip * length(self.down)):
                tally.moves += 1
                tally.wrong(f"{self.name}, {what}: the model moved by {moved}, and the bound is {bound}")

    def beyond(self, used: dict[int, Tree], came: dict[int, Tree]) -> list[str]:
        """Where what is combined lies beyond the bounds: worked out by numpy, from the messages that came."""
        intake, options = self.federation.engine._intake, self.federation.options
        if intake.hidden:
            return []  # only their sum can be looked at
        out = []
        for group in intake.updates:
            sizes = {c: length(up[group]) for c, up in came.items()}
            order = sorted(sizes.values())
            bound = options.clip * order[(len(order) - 1) // 2]
            used_sizes = [length(up[group]) for up in used.values()]
            out += [f"{group} has {size}, {bound}" for size in used_sizes if size > bound * 1.001 + 1e-12]
        for group in {r.by for r in self.worker.method.uplink.values() if isinstance(r, Mean) and r.by}:
            held = np.stack([up[group].double().numpy()[0] for up in used.values()])
            most = np.maximum(options.max_share, 1 / np.maximum((held > 0).sum(0), 1))
            if np.any(held < 0) or np.any(held > most * held.sum(0) * 1.001 + 1e-9):
                out.append(f"{group} has {held.tolist()}")
        return out


def length(part: Any) -> float:
    return float(np.sqrt(sum(np.square(x.numpy().astype(np.float64)).sum() for x in tree.leaves(part))))


def targets(quick: bool = False) -> list[Target]:
    """Every method, and every filter on methods that it serves."""
    names = [n for n, m in catalogue.METHODS.items() if not m.several_models and n != "local"]
    if quick:
        names = ["fedavg", "scaffold", "afl", "pfl-ensemble"]
    made = [Target(n) for n in names]
    for key, f in catalogue.FILTERS.items():
        if quick and key not in ("median", "int8", "top-k", "masked"):
            continue
        for name in ("fedavg", "scaffold", "afl", "fedpcl")[: 1 if quick else None]:
            method = catalogue.METHODS[name]
            probe = Worker(made[0].worker.task, method, (f,))
            uniform = key in ("central-dp", "local-dp")
            if (not uniform and probe.refusal()) or (uniform and name != "fedavg"):
                continue
            if key in ("krum", "multi-krum"):
                f = type(f)(liars=0, select=f.select)
            made.append(Target(name, (f,)))
    return made


def resident() -> float:
    """Megabytes of memory that this process has now."""
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize() / 2**20


def bombard(made: list[Target], count: int, seed: int = 0) -> tuple[Tally, list[float]]:
    """So many messages, in turn at all targets, and the memory at eleven moments."""
    chance, tally, memory = random.Random(seed), Tally(), []
    for i in range(count):
        if i % max(count // 10, 1) == 0:
            memory.append(round(resident(), 1))
        made[i % len(made)].hit(chance, tally)
    return tally, [*memory, round(resident(), 1)]
