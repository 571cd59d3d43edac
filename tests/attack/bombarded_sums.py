"""What the server makes of malformed answers in secure sums that survive drop-outs, at each of their four steps.

The engine of the network conducts every sum. Honest clients answer from a record: what they would say depends on who is
a member, what they were given and who survives, and is worked out once for each case, so that thousands of sums take
little more than the server's time. One client, or two, answer a step with something else: a changed, foreign, replayed,
doubled or missing answer.

Where no message itself was changed, the sum must be that of all four clients, that of those who are no liars, or not
read at all: to the bit. No honest client is ever struck.
"""

from __future__ import annotations

import functools
import json
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import bombarded
import torch
from attacked import FIRST, Federation, MemoryLink, data_of, experiment, honest, parcel
from bombarded import CLIENTS, LIAR, Tally, length, merged, resident
from malformed import answer as changed_message
from malformed import json_value

from acclimate.backends.flower import secure_rounds
from acclimate.backends.flower.checks import checked_fields
from acclimate.backends.flower.protocol import FleetError, NodeAnswer, Request
from acclimate.core import fit, tree
from acclimate.experiment import Experiment
from acclimate.filters import Masked
from acclimate.filters.secure_sum import Client
from acclimate.fleet.site_sums import SiteSums

__all__ = ["merged"]
STEPS = ("keys", "shares", "message", "open")
WORDS = (
    "",
    "0",
    "-1",
    "+1",
    " 1",
    "1_0",
    "0x1",
    "zz",
    "f" * 512,
    "f" * 600,
    "f" * 601,
    "9" * 5000,
    "\u0663",
    "00" * 164,
)
NUMBERS = ("-1", "0", "3", "03", " 3", "4", str(10**9), "9" * 400, "\u00b2", "")


class MemorySums(SiteSums):
    """A site's half of sums whose secrets lie in memory, so that it can be set back."""

    def __init__(self, e: Experiment) -> None:
        super().__init__(Path(), e)
        self.at: Any = None

    def _load(self, name: str, client: int) -> Client:
        return Client.loaded(json.loads(json.dumps(self.at)))

    def _keep(self, name: str, me: Client, round: int = -1) -> None:
        self.at = me.saved()

    def _once(self, client: int, survivors: list[int]) -> None: ...

    def _round(self, client: int) -> int:
        return 0


class RecordedSums(MemoryLink):
    """Nodes that answer from a record, but that liars change what they say at one step."""

    def __init__(self, federation: Federation, e: Experiment) -> None:
        super().__init__(federation.worker, federation.link.train, honest)
        self.sums = {c: MemorySums(e) for c in range(CLIENTS)}
        self.change: Callable[[int, str, NodeAnswer], list[NodeAnswer]] = lambda c, step, said: [said]
        self.members: tuple[int, ...] = ()
        self.record: dict[tuple[Any, ...], Any] = {}
        self.passing: dict[tuple[Any, ...], Any] = {}
        """What honest clients say in this sum alone, because they were given other shares than those on record."""
        self.boxes: dict[int, Any] = {}
        keys = {str(c): s.answer(c, {"name": "x", "step": "keys"}) for c, s in self.sums.items()}
        told = {"name": "x", "step": "shares", "keys": keys, "of": CLIENTS}
        self.shares = {c: s.answer(c, told) for c, s in self.sums.items()}
        self.record |= {("keys", c): keys[str(c)] for c in self.sums} | {
            ("shares", c): s for c, s in self.shares.items()
        }
        self.begun = {c: s.at for c, s in self.sums.items()}

    def exchange(self, requests: Sequence[Request], seconds: float, group: str) -> list[NodeAnswer]:
        out = []
        for r in requests:
            c, told = r.node - FIRST, r.fields.get("sum")
            if told is None:
                out.append(super().honest(r))
                continue
            step = told.get("step", "message")
            out += self.change(c, step, self.said(c, step, r))
        return out

    def said(self, c: int, step: str, request: Request) -> NodeAnswer:
        told = request.fields["sum"]
        if step == "message":
            self.members, self.boxes[c] = tuple(told["members"]), told["boxes"][str(c)]
            up = self._recorded(("message", c, self.members), lambda: self._message(c, request))
            return NodeAnswer(request.node, {f"up.{c}": parcel(up)}, {"round": 0, "failed": {}})
        key: tuple[Any, ...] = (step, c)
        if step == "open":
            key = (step, c, self.members, tuple(told["survivors"]))
        return in_fields(request.node, {str(c): self._recorded(key, lambda: self._opened(c, told))})

    def _recorded(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        held = self._held(key[1]) if key[0] in ("message", "open") else self.record
        if key not in held:
            held[key] = make()
        return held[key]

    def _held(self, c: int) -> dict[tuple[Any, ...], Any]:
        """Where what a client says is kept, by the shares that it was given."""
        usual = {str(o): [self.shares[o][part][str(c)] for part in ("shares", "marks")] for o in self.members if o != c}
        return self.record if self.boxes[c] == usual else self.passing

    def _message(self, c: int, request: Request) -> Any:
        site = self.sums[c]
        site.at = self.begun[c]
        worker = replace(self.worker, mask=site.mask(c, {"round": 0, "sum": request.fields["sum"]}))
        up, _, _ = worker.train(request.trees["down"], worker.start(c), data_of(self.train, c, 0))
        self._held(c)["masked", c, self.members] = site.at
        return up

    def _opened(self, c: int, told: Any) -> Any:
        self.sums[c].at = self._held(c)["masked", c, self.members]
        return self.sums[c].answer(c, {"name": "x", "step": "open", "survivors": told["survivors"]})


def in_fields(node: int, told: Any, **more: Any) -> NodeAnswer:
    """An answer to a step, as the reader of fields gives it."""
    fields = {"sum": told, "failed": {}, **more}
    try:
        return NodeAnswer(node, {}, checked_fields(json.loads(json.dumps(fields))))
    except ValueError:
        return NodeAnswer(node, {}, {}, "fields of another form")


# --- what a liar says -------------------------------------------------------------------------------------------------


def replaced(value: Any, chance: random.Random) -> Any:
    """The value with one of its parts, however deep, in another form."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        draw = chance.random()
        if draw < 0.15:
            return {k: v for k, v in value.items() if k != name}
        if draw < 0.3:
            return {**value, chance.choice(NUMBERS): value[name]}
        if draw < 0.4:
            return dict(zip(value, [*list(value.values())[1:], value[name]], strict=True))
        return {**value, name: replaced(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        at = chance.randrange(len(value))
        return [*value[:at], replaced(value[at], chance), *value[at + 1 :]]
    if isinstance(value, str) and len(value) > 2 and chance.random() < 0.6:
        at = chance.randrange(len(value))
        return chance.choice(
            (value[:at] + chance.choice("0123456789abcdef") + value[at + 1 :], value[:-2], value + "00")
        )
    return chance.choice((chance.choice(WORDS), json_value(chance)))


class SumTarget:
    """Sums of four clients, of which three must stay."""

    name = "secure sums"

    def __init__(self) -> None:
        e = experiment("fedavg", "data.fraction=0.1", filters=(Masked(threshold=0.75),))
        self.federation = f = Federation(e, tries=1)
        self.link = RecordedSums(f, e)
        f.engine.link = f.engine.roster._link = self.link
        f.engine._sums = secure_rounds.of(f.worker, self.link, f.engine.roster, 1.0)
        self.first = f.state.intake
        f.worker, self.before = f.engine.worker, f.state.server
        self.right = {tuple(range(CLIENTS)): self._round()[0], (): self.before}
        self.strange = {step: self._of_another_sum(e, step) for step in ("keys", "shares")}

    def _of_another_sum(self, e: Experiment, step: str) -> Any:
        """The liar's answer in an earlier sum: its form is right, and its secrets are others."""
        site, told = MemorySums(e), {"name": "y", "of": CLIENTS, "step": "shares"}
        keys = site.answer(LIAR, {"name": "y", "step": "keys"})
        others = {str(c): self.link.record["keys", c] for c in range(LIAR)}
        return keys if step == "keys" else site.answer(LIAR, {**told, "keys": {**others, str(LIAR): keys}})

    def _round(self) -> tuple[Any, Any]:
        """A round of the engine: the server's state after it, and the reply."""
        f, cohort = self.federation, torch.arange(CLIENTS)
        f.engine.intake = self.first
        server, reply, _ = fit.one_round(f.worker, f.engine, self.before, cohort, 0)
        return server, reply

    def without(self, liars: Sequence[int]) -> Any:
        """The state of the server after a round in which liars say nothing."""
        left = tuple(c for c in range(CLIENTS) if c not in liars)
        if left not in self.right:
            self.link.change = lambda c, step, said: [] if c in liars else [said]
            self.right[left] = self._round()[0]
        return self.right[left]

    def hit(self, chance: random.Random, tally: Tally) -> None:
        """A sum in which one client, or two, say something else at one step, and now and then nothing after it."""
        step, liars = chance.choice(STEPS), [LIAR] if chance.random() < 0.8 else [LIAR - 1, LIAR]
        after = STEPS[STEPS.index(step) + 1 :] if chance.random() < 0.3 else ()
        words: list[str] = []

        def change(c: int, now: str, said: NodeAnswer) -> list[NodeAnswer]:
            if c not in liars or now in after:
                return [said] if c not in liars else []
            if now != step:
                return [said]
            word, sent = self.changed(c, now, said, chance)
            words.append(word)
            tally.messages += 1
            tally.sent[f"{now}, {word}"] += 1
            return sent

        allowed = [self.before, *(self.without(some) for some in ([], liars, *([c] for c in liars)))]
        self.link.change, self.link.passing = change, {}
        what = f"{self.name}, {step}"
        try:
            server, reply = self._round()
        except FleetError as e:
            tally.ends += 1
            tally.wrong(f"{what}, {words}: {e}"[:300])
            return
        except Exception as e:
            tally.crashes += 1
            tally.wrong(f"{what}, {words}: {type(e).__name__}: {e}"[:300])
            return
        self._look(server, reply, step, liars, allowed, tally, f"{what}, {words}")

    def _look(
        self, server: Any, reply: Any, step: str, liars: list[int], allowed: list[Any], tally: Tally, what: str
    ) -> None:
        for fault in reply.faults:
            tally.faults[fault.kind] += 1
        tally.left_out += len(reply.part.clients) == 0
        tally.counted += len(set(reply.part.clients.tolist()) & set(liars))
        tally.not_finite += not bool(tree.finite(server))
        struck = self.federation.engine.intake["strikes"].nonzero()[:, 0].tolist()
        if set(struck) - set(liars):
            tally.moves += 1
            tally.wrong(f"{what}: honest clients were struck: {struck}")
        if step == "message":  # numbers of the right form cannot be told from honest ones
            bound = self.federation.options.clip * length(self.federation.worker.method.download(None, self.before))
            wrong = length(tree.sub(server["vars"], self.before["vars"])) > bound
        else:
            flat = [tree.flatten(s) for s in (server, *allowed)]
            wrong = not any(all(torch.equal(flat[0][k], other[k]) for k in other) for other in flat[1:])
        if wrong:
            tally.moves += 1
            tally.wrong(f"{what}: the model is another one")

    def changed(self, c: int, step: str, said: NodeAnswer, chance: random.Random) -> tuple[str, list[NodeAnswer]]:
        """What a liar sends in the place of an honest answer, and a word for it."""
        if step == "message":
            word, sent = changed_message(said.parcels[f"up.{c}"].open(), 0, chance, c)
            return word, [sent]
        own = said.fields["sum"][str(c)]
        draw = chance.random()
        if draw < 0.55:
            return "changed", [in_fields(said.node, {str(c): replaced(own, chance)})]
        if draw < 0.65:
            return "no object", [in_fields(said.node, json_value(chance))]
        if draw < 0.75:
            other = {str(o): json_value(chance) for o in range(-1, CLIENTS + 1)}
            return "of others", [in_fields(said.node, {**other, str(c): replaced(own, chance)})]
        if draw < 0.8:
            return "flood", [in_fields(said.node, {str(c): own, **{str(100 + i): own for i in range(200)}})]
        if draw < 0.87:
            return "failed", [in_fields(said.node, {str(c): own}, failed=json_value(chance))]
        if draw < 0.93:
            double = in_fields(said.node, {str(c): replaced(own, chance)})
            return "twice", [double, said] if chance.random() < 0.5 else [said, double]
        return "replayed", [in_fields(said.node, {str(c): self.strange.get(step, self.strange["keys"])})]


# --- in pieces --------------------------------------------------------------------------------------------------------

PIECE = 500
"""Sums of one piece."""


@functools.cache
def target() -> SumTarget:
    """Each process makes it once."""
    warnings.simplefilter("ignore")
    return SumTarget()


def piece(number: int) -> dict[str, Any]:
    """One piece of the attack, and the memory of the process after it."""
    tally = bombarded.bombard([target()], PIECE, number)
    return {"targets": 1, **vars(tally), "memory_mb": round(resident(), 1)}
