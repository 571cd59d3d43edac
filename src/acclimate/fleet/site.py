"""The node's half of a fleet: which clients a node hosts, and how it answers requests.

Nothing here knows Flower: `client_app` reads requests and writes answers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import torch

from ..backends.flower.protocol import stream_name
from ..backends.flower.stretches import DOWN
from ..core import Adapter, Filter, Shards, Task, Tree, Worker, exchange, token_count, tree
from ..core.nn.pixels import are_pixels
from ..data import Dataset, FileDataset, World
from ..experiment import Experiment, decode
from ..filters import LocalDP, Masked
from ..filters.secret import SEED
from ..ops import guarding
from ..running import run as api
from ..running.deploy import assembled, guarded
from ..store import secrets
from .book import MessageBook, request_key
from .remote import VALIDATION, card_of
from .site_sums import SiteSums
from .telling import told
from .vault import Vault, leave_models

TreesAndFields = tuple[dict[str, Tree], dict[str, Any]]
"""An answer: trees by name, and fields of plain JSON."""
log = logging.getLogger("acclimate")
KEY = "noise.key"
"""The file with the key of this site's noise in a run."""


@dataclass(frozen=True)
class Place:
    """Which part of the federation a node is: number `node` of `nodes`, and the folder it keeps things in.

    With `data`, the node is a real site: it is one client, whose data lie in that folder. Without, it is a share of a
    federation whose data all nodes hold, and it plays the clients `node`, `node + nodes`, ...
    """

    node: int
    nodes: int
    folder: Path
    data: Path | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"node={self.node} must be between 0 and nodes-1={self.nodes - 1}")

    def hosts(self, clients: int) -> list[int]:
        """The clients that live here."""
        return [self.node] if self.data is not None else list(range(self.node, clients, self.nodes))

    def row(self, client: int) -> int:
        """Which row of this node's own data is a client's."""
        return 0 if self.data is not None else client


class Site:
    """Answers requests of the server for the clients that live here."""

    def __init__(self, place: Place, experiment: Experiment, run: str, vault: Vault) -> None:
        self.place, self.experiment, self.run, self.vault = place, experiment, run, vault

    @functools.cached_property
    def data(self) -> Dataset:
        """The experiment's data, or that of a site, which is one client's."""
        data = self.experiment.data
        if self.place.data is None:
            return data
        data = replace(data, clients=1)
        return replace(data, root=str(self.place.data)) if isinstance(data, FileDataset) else data

    @functools.cached_property
    def world(self) -> World:
        """The experiment's world, or a site's own part of it; only the rows of this node's clients are ever read."""
        return self.data.world(self.experiment.seed)

    @functools.cached_property
    def worker(self) -> Worker:
        """The client half."""
        e, w = self.experiment, self.world
        about = (w.shape, w.num_classes, w.mean, w.std, e.data.augment)
        task = Task(e.model, *about, tokens=token_count(w.examples.x), pixels=are_pixels(w.examples.x))
        filters = tuple(replace(f, secret="") if _noisy(f) else f for f in e.filters)  # noise is of the site's own key
        own = any(f.wants_secret for f in filters)
        return Worker(task, e.method, filters, e.seed, secrets.kept(self.vault.folder / KEY) if own else None)

    def answer(self, kind: str, trees: Mapping[str, Tree], fields: Mapping[str, Any]) -> TreesAndFields:
        """Answer one request."""
        if kind == "query":
            return {}, self.card() if "sum" not in fields else self._sum(fields["sum"])
        if kind == "train":
            return self.train(trees["down"], fields)
        if kind == "evaluate":
            return self.evaluate(trees.get("down"), fields, trees.get(DOWN, {}))
        raise ValueError(f"kind='{kind}' must be query, train or evaluate")

    def card(self) -> dict[str, Any]:
        """Which clients live here, and what a real site says of its data: the answer to the server's first request."""
        card: dict[str, Any] = {"clients": self.place.hosts(self.experiment.data.clients)}
        return card if self.place.data is None else {**card, "data": card_of(self.world)}

    # --- a round --------------------------------------------------------------------------------------------------

    @functools.cached_property
    def sums(self) -> SiteSums:
        """The secrets of this node's clients in sums that survive drop-outs."""
        return SiteSums(self.vault.folder, self.experiment)

    def _sum(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A step of a secure sum. A client that fails does not take others with it."""
        answers, failed = {}, {}
        for client in fields["clients"]:
            try:
                answers[str(client)] = self.sums.answer(self._own(int(client)), fields)
            except Exception as e:
                failed[str(client)] = _reason(str(client), e)
        return {"sum": answers, "failed": failed}

    def train(self, down: Tree, fields: Mapping[str, Any]) -> TreesAndFields:
        """A local round of the clients that were asked for. A client that fails does not take others with it."""
        round, ups, failed = int(fields["round"]), {}, {}
        train = self.world.shards(self.world.train)
        for name in fields["versions"]:
            try:
                up = self._round(train, down, fields, name)
            except Exception as e:
                failed[name] = _reason(name, e)
            else:
                if up is not None:
                    ups[f"up.{name}"] = up
                else:
                    failed[name] = ("nonfinite", "training gave values that are not finite; nothing was sent or kept")
        return ups, {"round": round, "failed": failed}

    def _round(self, train: Shards, down: Tree, fields: Mapping[str, Any], name: str) -> Tree | None:
        """One client's message; None where it is not finite, and then its private state stays what it was.

        Under noise of its own a client sends noise then: that training failed tells of its data.
        """
        client, round = self._own(int(name)), int(fields["round"])
        mine = self.vault.mine(client, int(fields["versions"][name]), self.worker.start)
        noised = self._noised({"down": down, "mine": mine}, client, round)
        worker = replace(noised, mask=self.sums.mask(client, fields))
        up, new, ok = worker.train(down, mine, self._data(train, client, round))
        if not bool(ok) and noised is self.worker:
            return None
        self.vault.keep(client, round + 1, new if bool(ok) else mine, [int(v) for v in fields["keep"][name]])
        return up

    def _noised(self, given: Tree, client: int, round: int) -> Worker:
        """The client half with a key for the noise of this answer alone, once the book allows the answer."""
        worker, experiment = self.worker, self.experiment.identity()
        noisy = worker.secret is not None and any(_noisy(f) for f in worker.filters)
        masked = any(isinstance(f, Masked) and f.secret for f in worker.filters)
        if not (noisy or masked):
            return worker
        key = request_key(worker.secret or b"", given, client=client, round=round, experiment=experiment)
        book = MessageBook(self.vault.folder)
        if masked:
            book.once(client, experiment, round, key)
        if noisy:
            book.enter(client, experiment, self.experiment.rounds, key)
        return replace(worker, secret=key) if noisy else worker

    def _own(self, client: int) -> int:
        if client not in self.place.hosts(self.experiment.data.clients):
            raise ValueError(f"client {client} does not live at node {self.place.node}")
        return client

    # --- live models ----------------------------------------------------------------------------------------------

    def evaluate(self, down: Tree | None, fields: Mapping[str, Any], exchanged: Tree) -> TreesAndFields:
        """Make live models, and if asked serve a test stream with them, or leave them for the site's own programs."""
        live, failed = {}, {}
        for name, version in fields["versions"].items():
            try:
                model = self._model(fields, int(name), int(version), down)
            except Exception as e:
                failed[name] = _reason(name, e)
                continue
            if model is None:
                return {}, {"lacks": True}
            live[int(name)] = model
        answer: dict[str, Any] = {"failed": failed, "model": shapes(next(iter(live.values()), {}))}
        if "leave" in fields:
            self._leave(live, decode(fields["adapter"], where="adapter"), fields["leave"])
            return {}, {**answer, "left": sorted(live)}
        if "test" not in fields:
            return {}, answer
        adapter, protocol = (decode(fields[name], where=name) for name in ("adapter", "protocol"))
        test = self._stream(str(fields["test"]))
        if "stretch" in fields:
            if fields["send"] and (reason := exchange.refusal(self.worker, adapter, self.experiment.data.clients)):
                raise ValueError(reason)  # whoever asks: an epsilon counts rounds of training alone
            half = exchange.serving(self.worker, adapter, protocol, alone=not fields["send"])
            return self._stretch(half, live, test, fields, exchanged, failed), {**answer, "round": fields["stretch"]}
        scores = {}
        for c, model in live.items():
            try:
                if adapter.calibrates:
                    model = {
                        **model,
                        "reference": self.worker.calibrate(model, self._held(c, fields["personal"] is None), adapter),
                    }
                scores[f"metrics.{c}"] = self.worker.adapt(model, self._data(test, c, 0), adapter, protocol)
            except Exception as e:
                failed[str(c)] = _reason(str(c), e)
        return tree.to(scores, "cpu"), answer

    def _stretch(
        self,
        half: Worker,
        live: Mapping[int, Tree],
        test: Shards,
        fields: Mapping[str, Any],
        down: Tree,
        failed: dict[str, Any],
    ) -> dict[str, Tree]:
        """A stretch of the clients' streams: their messages, or once a stream is over its metrics."""
        out: dict[str, Tree] = {}
        for c, model in live.items():
            try:
                out |= self._served(half, c, model, test, fields, down)
            except Exception as e:
                failed[str(c)] = _reason(str(c), e)
        return tree.to(out, "cpu")

    def _served(
        self, half: Worker, client: int, model: Tree, test: Shards, fields: Mapping[str, Any], down: Tree
    ) -> dict[str, Tree]:
        """One client's stretch. What it keeps for the next one stays in the vault."""
        assert isinstance(half.method, exchange.Serving)
        round, session, data = int(fields["stretch"]), str(fields["session"]), self._data(test, client, 0)
        if round:
            mine = self.vault.session(session, client, round)
        else:
            mine = half.method.begin(half.task, model, len(data["rows"]), self.worker.key("adapt", client))
        up, mine, fine = half.train(down, mine, {**data, "round": data["round"] + round})
        if not bool(fine):
            raise ArithmeticError("adapting gave values that are not finite; nothing was sent or kept")
        if int(data["n"]) <= (round + 1) * half.method.samples:
            return {f"metrics.{client}": exchange.scored(mine["answers"], data["y"][data["rows"]], data["n"])}
        self.vault.keep_session(session, client, round + 1, mine)
        return {f"up.{client}": up} if fields["send"] else {}

    def _leave(self, models: Mapping[int, Tree], adapter: Adapter, card: Mapping[str, Any]) -> None:
        """Leave live models for the site's own programs: guarded, and calibrated on this site's validation examples."""
        examples, left, record = self.world.examples, [], {k: card[k] for k in ("round", "selection")}
        for c, model in models.items():
            about = (self.experiment, self.worker, examples.classes, c, model, guarded(adapter))
            raw = self.data.raw(self.world, c if self.place.data is None else 0)
            left.append(assembled(*about, self._held(c, new=False), record, examples.x.dtype, raw))
        leave_models(self.place.folder, left, {"run": self.run, **card, "clients": sorted(models)})

    def _held(self, client: int, new: bool) -> Tree:
        """A client's labelled validation examples; a newcomer has none."""
        val = self.world.shards(self.world.val)
        return guarding.nothing(val.x[:1]) if new else self._data(val, client, 0)

    def _model(self, fields: Mapping[str, Any], client: int, version: int, down: Tree | None) -> Tree | None:
        """A client's live model: stored, or made now; None where that needs `down`, which was not sent."""
        name = str(fields["models"])
        if (found := self.vault.model(name, client)) is not None:
            return found
        if down is None:
            return None
        if fields["personal"] is None:
            if self.place.data is not None:
                raise ValueError("clients that join later cannot be played by a site, which has its own data only")
            mine = self.worker.start(self.world.clients + client)
            model = self.worker.method.deploy(self.worker.task, down, mine)
        else:
            mine = self.vault.mine(self._own(client), version, self.worker.start)
            data = self._data(self.world.shards(self.world.train), client, 0)
            model = self.worker.personalise(down, mine, data, decode(fields["personal"], where="personal"))
        self.vault.keep_model(name, client, model)
        return model

    def _data(self, shards: Shards, client: int, round: int) -> Tree:
        """One client's examples, as `Method.client` and adapters receive them."""
        row = self.place.row(client)
        rows = shards.own(row) if int(shards.n[row]) else shards.rows[row, :1]  # an empty stream does not count
        who, when = (torch.full((), v, dtype=torch.int64) for v in (client, round))
        return shards.tree(rows, shards.n[row], who, when, ragged=False)

    def _stream(self, name: str) -> Shards:
        """This node's own copy of the test that the server names."""
        val = self.world.shards(self.world.val)
        if name == VALIDATION or stream_name(val) == name:
            return val
        for own, (_, stream) in api.streams_of(self.world, self.experiment.streams).items():
            if name == own or stream_name(stream.shards) == name:
                return stream.shards
        raise ValueError(
            f"test '{name}' is none of the experiment's streams here; do server and node hold the same data?"
        )


def _reason(client: str, error: Exception) -> tuple[str, str]:
    """The kind and the reason that the server gets of a client that failed; the site's own log has the traceback."""
    log.warning("client %s failed", client, exc_info=error)
    return "error", told(error)


def _noisy(f: Filter) -> TypeGuard[LocalDP]:
    """Whether a site adds noise itself that only its key can take off."""
    return isinstance(f, LocalDP) and f.secret != SEED


def shapes(model: Tree) -> list[tuple[str, list[int], str]]:
    """Names, shapes and types of a model, and none of its values."""
    return [(n, list(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in tree.flatten(model).items()]
