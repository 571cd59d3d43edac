"""Many clients' live models on one device: requests of different clients are one vmapped step.

A step is computed, then kept: `compute` changes nothing, so that what it found can be written down before `keep` puts
the new states in place. A client's answers are those of its live model called alone, within float tolerance.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..backends.vmap.capture import Recorder
from ..core import Tree, rng, tree
from ..live import Answer, Live
from ..live.model import SNAPSHOTS, WINDOW
from ..live.session import Outcome, cuts, due, held, request
from .federation import check
from .log import raw


class Call(NamedTuple):
    """One client's samples, in the form that the federation's data has."""

    client: int
    x: Tensor


@dataclass
class Computed:
    """What a step found, before it is kept."""

    calls: Sequence[Call]
    rows: list[int]
    sessions: Tree
    """The new sessions of these clients, stacked."""
    answers: list[Answer]
    chosen: list[list[int]]
    plain: list[list[int]]
    """Per client the classes that were answered, and the un-adapted model's."""
    snapshots: list[tuple[list[int], list[int], Tree]] = field(default_factory=list)
    """Rows of clients that committed, their steps, and their stacked sessions, in the order of commits."""
    prepared: set[int] = field(default_factory=set)


@dataclass
class Piece:
    """What one client's samples of one group became, on the host."""

    logits: Tensor
    plain: list[int]
    adapted: list[bool]
    told: dict[str, float]
    filled: int
    fresh: int
    step: int


class Host:
    """The live models of a federation's clients: the same task, method, adapter and window for all."""

    def __init__(self, lives: Sequence[Live], device: torch.device | str = "cpu", capture: bool = True) -> None:
        lives = sorted(lives, key=lambda live: live.client)
        check(lives)
        self.device = torch.device(device)
        self.axes: Tree = tree.map(_axis, *(live.model for live in lives))
        """Per leaf of a model 0, or None where it is the same for all clients: it is kept, and computed with, once."""
        self.models: Tree = tree.to(tree.map(_stacked, self.axes, *(live.model for live in lives)), self.device)
        self.sessions: Tree = tree.to(tree.stack([live.session for live in lives]), self.device)
        self.ring: Tree = tree.map(lambda s: s.new_zeros(len(lives) * SNAPSHOTS, *s.shape[1:]), self.sessions)
        self.kept: list[deque[tuple[int, int]]] = [deque(maxlen=SNAPSHOTS) for _ in lives]
        """Per client, steps that can be restored and their places in its part of the ring, oldest first."""
        self.seen: list[int] = [int(live.session["seen"]) for live in lives]
        self.fresh: list[int] = [int(live.session["fresh"]) for live in lives]
        self.rows = {live.client: i for i, live in enumerate(lives)}
        self.shells = [
            replace(live, model=self._models(i), session={}, snapshots=deque()) for i, live in enumerate(lives)
        ]
        """All of a live model but its session, which is a row of `sessions`."""
        self.keys = torch.stack([shell.key for shell in self.shells])
        self.size = int(lives[0].session["window"].shape[0])
        self.adapter, self.task = lives[0].adapter, lives[0].worker.task
        self.recorder = Recorder(capture and self.device.type == "cuda", exact=True)
        for live in lives:
            self._keep_ring(self.rows[live.client], live.snapshots)

    @property
    def clients(self) -> list[int]:
        """The clients' numbers."""
        return list(self.rows)

    def row(self, client: int) -> int:
        """A client's place, or an error that says who there is."""
        if client not in self.rows:
            known = ", ".join(map(str, self.clients[:10])) + (", ..." if len(self.rows) > 10 else "")
            raise KeyError(f"client={client} must be one of {known}")
        return self.rows[client]

    def __call__(self, calls: Sequence[Call]) -> list[Answer]:
        """Answer one request of each of several clients and adapt to them."""
        done = self.compute(calls)
        self.keep(done)
        return done.answers

    def warm(self) -> None:
        """Compute once what first requests need, so that they do not wait longer than others; nothing is kept."""
        shape, dtype = self.task.shape, self.shells[0].dtype
        for count in {1, self.size or 1}:  # a window commits
            for some in (self.clients[:1], self.clients[:2]):
                self.compute([Call(client, torch.zeros(count, *shape, dtype=dtype)) for client in some])

    def compute(self, calls: Sequence[Call]) -> Computed:
        """The answers to one request of each of several clients, and what these make of their sessions."""
        rows = [self.row(call.client) for call in calls]
        if len(set(rows)) < len(rows):
            raise ValueError("compute: a step takes at most one request of each client")
        done = Computed(calls, rows, self._take(self.sessions, rows), [], [], [])
        sizes = [cuts(self.size, self.fresh[row], len(call.x)) for row, call in zip(rows, calls, strict=True)]
        self._prepare(done)
        starts, parts = [0] * len(calls), [[] for _ in calls]  # type: ignore[var-annotated]
        fresh = [self.fresh[row] for row in rows]
        for depth in range(max(map(len, sizes))):
            groups: dict[tuple[int, bool], list[int]] = {}
            for j, cut in enumerate(sizes):
                if depth < len(cut):
                    commits = due(self.size, fresh[j], cut[depth]) and not self.shells[rows[j]].frozen
                    groups.setdefault((cut[depth], commits), []).append(j)
            for (n, commits), members in groups.items():
                x = torch.stack([calls[j].x[starts[j] : starts[j] + n] for j in members]).to(self.device)
                for j, part in zip(members, self._group(done, members, x, commits), strict=True):
                    parts[j].append(part)
                    starts[j], fresh[j] = starts[j] + n, part.fresh
        for j, found in enumerate(parts):
            self._answer(done, j, found)
        return done

    def _group(self, done: Computed, members: list[int], x: Tensor, commits: bool) -> list[Piece]:
        """Run the samples [members, n, ...] of some of a step's clients together: such as may commit, or cannot."""
        rows = [done.rows[j] for j in members]
        waits = [self.adapter.transductive and not self._ready(done, row) for row in rows]
        whole = len(members) == len(done.rows)
        sessions = done.sessions if whole else tree.take(done.sessions, torch.tensor(members, device=self.device))
        frozen = [self.shells[row].frozen for row in rows]
        out = self._run(rows, sessions, x, [not w for w in waits], frozen, commits)
        if whole:
            done.sessions = out.state
        else:
            done.sessions = tree.put(done.sessions, torch.tensor(members, device=self.device), out.state)
        logits, plain = out.logits.detach().cpu(), out.plain.argmax(-1).tolist()
        adapted, committed = out.adapted.tolist(), out.committed.tolist()
        counts = [out.state[k].tolist() for k in ("filled", "fresh", "step")]
        told = {k: v.tolist() for k, v in out.told.items()}
        if any(committed):
            self._note(done, [j for j, c in enumerate(committed) if c], rows, counts[2], out.state)
        return [
            Piece(logits[j], plain[j], adapted[j], {k: float(v[j]) for k, v in told.items()}, *count)
            for j, count in enumerate(zip(*counts, strict=True))
        ]

    def _note(self, done: Computed, which: list[int], rows: list[int], steps: list[int], state: Tree) -> None:
        """Keep the sessions of a group's clients that committed, for the ring."""
        rows_of = state if len(which) == len(rows) else tree.take(state, torch.tensor(which, device=self.device))
        done.snapshots.append(([rows[j] for j in which], [steps[j] for j in which], rows_of))

    def _run(
        self, rows: list[int], sessions: Tree, x: Tensor, open: list[bool], hold: list[bool], commits: bool
    ) -> Outcome:
        """`session.request` of several clients at once; on a GPU captured, for a power of two of them."""
        many, task, predict, adapter = len(rows), self.task, self.shells[0].worker.predict(), self.adapter
        spare = (1 << (many - 1).bit_length()) - many if self.recorder.on else 0
        if spare:
            fill = torch.tensor([*range(many), *[0] * spare], device=self.device)
            sessions, x = tree.take(sessions, fill), x[fill]

        def one(model: Tree, state: Tree, x: Tensor, key: rng.Key, open: Tensor, hold: Tensor) -> Outcome:
            out = request(task, predict, adapter, model, state, x, key, open, commits)
            still = held(state, out).state
            kept = {k: tree.where(hold, still[k], out.state[k]) for k in ("adapter", "fresh", "step")}
            return out._replace(state={**out.state, **kept}, committed=out.committed & ~hold)

        def all_of_them(rows: Tensor, sessions: Tree, x: Tensor, flags: Tensor) -> Outcome:
            model = self.models if in_order else self._models(rows)
            vmapped = torch.func.vmap(one, in_dims=(self.axes, 0, 0, 0, 0, 0))
            outcome: Outcome = vmapped(model, sessions, x, self.keys[rows], flags[0], flags[1])
            return outcome

        def only(row: Tensor, session: Tree, x: Tensor, flags: Tensor) -> Outcome:
            """A client alone, without `vmap`, which would take twice as long, and give other last bits."""
            here = self.shells[rows[0]].model
            if self.recorder.on:  # what is recorded must serve other rows too
                here = tree.map(lambda axis, m: m if axis is None else m[0], self.axes, self._models(row))
            rest = (tree.map(lambda v: v[0], part) for part in (session, x, self.keys[row], *flags))
            return Outcome(*(tree.map(lambda v: v[None], part) for part in one(here, *rest)))

        in_order = rows == list(range(len(self.shells))) and not spare
        flags = torch.tensor([open + open[:1] * spare, hold + hold[:1] * spare], device=self.device)
        which = torch.tensor(rows + rows[:1] * spare, device=self.device)
        f = only if many == 1 else all_of_them
        out: Outcome = self.recorder.run((f.__name__, in_order, commits), f, (which, sessions, x, flags))
        return Outcome(*(tree.map(lambda v: v[:many], part) for part in out)) if spare else out

    def _ready(self, done: Computed, row: int) -> bool:
        return self.shells[row].prepared or row in done.prepared

    def _prepare(self, done: Computed) -> None:
        """Show the adapter of every client that waits for a set of samples its request's, where they are enough."""
        for j, (row, call) in enumerate(zip(done.rows, done.calls, strict=True)):
            shell = self.shells[row]
            if not self.adapter.transductive or shell.prepared or shell.frozen or len(call.x) < WINDOW:
                continue
            live = replace(shell, session=tree.take(done.sessions, j), snapshots=deque())
            live.prepare(call.x)
            fresh = tree.map(lambda v: v[None], live.session)
            done.sessions = tree.put(done.sessions, torch.tensor([j], device=self.device), fresh)
            done.snapshots.append(([row], [live.step], fresh))
            done.prepared.add(row)

    def _answer(self, done: Computed, j: int, parts: list[Piece]) -> None:
        row, last = done.rows[j], parts[-1]
        logits = torch.cat([p.logits for p in parts]) if len(parts) > 1 else last.logits
        adapted = tuple(a for p in parts for a in p.adapted)
        shell = self.shells[row]
        if row in done.prepared and not shell.prepared:
            shell = replace(shell, prepared=True)
        window = last.filled, self.size
        done.answers.append(shell.answered(logits, adapted, last.told, self.seen[row], last.step, window))
        done.chosen.append(logits.argmax(-1).tolist())
        done.plain.append([p for part in parts for p in part.plain])

    def keep(self, done: Computed) -> None:
        """Put what a step found in place."""
        self._put(done.rows, done.sessions)
        for rows, steps, state in done.snapshots:
            places = []
            for row, step in zip(rows, steps, strict=True):
                places.append(row * SNAPSHOTS + self._slot(row, step))
            _write(self.ring, torch.tensor(places, device=self.device), state)
        for row in done.prepared:
            self.shells[row].prepared = True
        fresh = done.sessions["fresh"].tolist()
        for j, (row, call) in enumerate(zip(done.rows, done.calls, strict=True)):
            self.seen[row] += len(call.x)
            self.fresh[row] = fresh[j]
            self.shells[row].remember(done.answers[j].ids, done.chosen[j], done.plain[j])

    def _slot(self, row: int, step: int) -> int:
        """Where in a client's part of the ring the session of a step goes: the oldest makes room."""
        kept = self.kept[row]
        slot = kept[0][1] if len(kept) == SNAPSHOTS else len(kept)
        kept.append((step, slot))
        return slot

    def _models(self, rows: Tensor | int) -> Tree:
        """Clients' models: rows of what differs, and what is the same for all."""
        found: Tree = tree.map(lambda axis, m: m if axis is None else m[rows], self.axes, self.models)
        return found

    def _take(self, stack: Tree, rows: list[int]) -> Tree:
        """Clients' rows of a stack; of all in order the stack itself, which a step does not write into."""
        if rows == list(range(len(self.shells))):
            return stack
        taken: Tree = tree.take(stack, torch.tensor(rows, device=self.device))
        return taken

    def _put(self, rows: list[int], new: Tree) -> None:
        if rows == list(range(len(self.shells))):
            self.sessions = new
        else:
            _write(self.sessions, torch.tensor(rows, device=self.device), new)

    def live(self, client: int) -> Live:
        """A copy of one client's live model as it is now."""
        row = self.row(client)
        session = tree.map(torch.clone, tree.take(self.sessions, row))
        kept = [(step, tree.take(self.ring, row * SNAPSHOTS + slot)) for step, slot in self.kept[row]]
        ring = deque(((step, tree.map(torch.clone, state)) for step, state in kept), maxlen=SNAPSHOTS)
        return replace(self.shells[row], session=session, snapshots=ring)

    def put(self, live: Live) -> None:
        """Put a client's live model back in its place, after `live` and what was done to it."""
        row = self.row(live.client)
        _write(self.sessions, torch.tensor([row], device=self.device), tree.map(lambda v: v[None], live.session))
        self.seen[row], self.fresh[row] = int(live.session["seen"]), int(live.session["fresh"])
        self._keep_ring(row, live.snapshots)
        self.shells[row] = replace(live, session={}, snapshots=deque())

    def _keep_ring(self, row: int, snapshots: Iterable[tuple[int, Tree]]) -> None:
        self.kept[row].clear()
        for step, state in snapshots:
            place = torch.tensor([row * SNAPSHOTS + self._slot(row, step)], device=self.device)
            _write(self.ring, place, tree.map(lambda v: v[None].to(self.device), state))

    def digest(self, client: int) -> str:
        """A SHA-256 of all that a client's stream has made: session, snapshots, switches, labels that came."""
        row = self.row(client)
        live = self.live(client)
        about = [client, live.frozen, live.prepared, live.labelled, [step for step, _ in self.kept[row]]]
        total = hashlib.sha256(json.dumps(about).encode())
        for state in (live.session, *(state for _, state in live.snapshots)):
            for name, value in sorted(tree.flatten(state).items()):
                total.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                total.update(raw(value))
        return total.hexdigest()


def _axis(first: Tensor, *others: Tensor) -> int | None:
    """Along which axis clients' tensors are stacked: none where they are all the same."""
    return None if all(other is first or torch.equal(other, first) for other in others) else 0


def _stacked(axis: int | None, *tensors: Tensor) -> Tensor:
    return tensors[0] if axis is None else torch.stack(tensors)


def _write(stack: Tree, rows: Tensor, new: Tree) -> None:
    """Rows of a stack that only the host holds, in place: a copy of all clients' for each step would take longer."""
    tree.map(lambda s, n: s.index_copy_(0, rows, n), stack, new)
