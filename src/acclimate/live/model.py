"""A live model: one client's deployed model, which answers requests, adapts to them, and can be taken back."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from ..adapters import NoAdapt
from ..core import Adapter, Tree, Worker, rng, tree
from ..data.raw import Raw
from ..experiment import Experiment, dumps
from ..store.frozen import sketch
from . import folder, inputs
from .answer import Answer
from .inputs import Samples
from .module import module_of
from .session import Outcome, adapts, begin, cuts, due, held, newest, request

WINDOW, SNAPSHOTS, REMEMBERED = 32, 8, 10_000
"""Samples that an adapter sees at a time; states that can be restored; answers for which a label may come later."""
HELD = "the guard holds the adapted answer back"
UNSOUND = "the adapter's answers are not finite: reset it, or restore an earlier step"
CHUNK = 16
"""Windows that are answered at once."""


def _alike(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same values; NaN, with which a guard marks what it has not met yet, is like NaN."""
    return bool(((a == b) | (torch.isnan(a) & torch.isnan(b))).all())


@dataclass
class Live:
    """Call it with samples: it adapts and answers. All that changes is `session`, a tree that is never written into."""

    experiment: Experiment
    """What was trained, with the one adapter that is used."""
    worker: Worker = field(repr=False)
    classes: tuple[str, ...]
    client: int
    model: Tree = field(repr=False)
    """The deployed model, which stays as it is; `reference` is what a guard knows of it."""
    session: Tree = field(repr=False)
    """What adaptation made of it so far: the adapter's state, the window of recent samples, and counts."""
    record: dict[str, Any] = field(default_factory=dict)
    """How it was made: round, and for a newcomer what its samples did."""
    frozen: bool = False
    prepared: bool = False
    """Whether an adapter that wants to see samples before its first answer has seen them."""
    dtype: torch.dtype = torch.uint8
    """The type of the federation's inputs."""
    snapshots: deque[tuple[int, Tree]] = field(default_factory=lambda: deque(maxlen=SNAPSHOTS), repr=False)
    recent: OrderedDict[str, tuple[int, int]] = field(default_factory=OrderedDict, repr=False)
    """Per sample that was answered lately: the class that was answered, and the un-adapted model's."""
    labelled: list[int] = field(default_factory=lambda: [0, 0, 0])
    """Labels that came later, how many answers were right, and how many of the un-adapted model's."""
    config: dict[str, Any] | None = None
    """The experiment as its folder says it, where that holds data that was given as Python objects; else None."""
    raw: Raw | None = None
    """How raw rows of a table, or texts, become inputs; None where inputs are given as numbers."""
    told: set[str] = field(default_factory=set, repr=False)
    """Columns of which it was said that they have words which no training row had."""

    @property
    def adapter(self) -> Adapter:
        """What adapts the model."""
        return self.experiment.adapters[0]

    @property
    def state(self) -> Tree:
        """The adapter's state."""
        state: Tree = self.session["adapter"]
        return state

    @property
    def step(self) -> int:
        """How many steps of adaptation are committed."""
        return int(self.session["step"])

    @property
    def _waits(self) -> bool:
        """Whether the adapter wants to see samples before its first answer, and has not."""
        return self.adapter.transductive and not self.prepared

    @property
    def key(self) -> rng.Key:
        """What the randomness of this client's stream is drawn from; the sample's place in it is folded in."""
        like = tree.leaves(self.model)[0]
        return rng.fold(self.worker.key("adapt", self.client, like=like), "samples")

    @cached_property
    def _unjudged(self) -> bool:
        """Whether a guard has nothing to judge by; kept, because on a GPU every look waits for all work."""
        real = self.model.get("reference", {}).get("real")
        return self.adapter.calibrates and real is not None and not bool(real.any())

    @property
    def measured(self) -> dict[str, float | int]:
        """What labels that came later say: how many, the accuracy, and that of the un-adapted model."""
        count, right, plain = self.labelled
        return {"labels": count, "accuracy": right / count, "unadapted": plain / count} if count else {"labels": 0}

    def __call__(self, x: Samples) -> Answer:
        """Answer samples and adapt to them. On an error nothing has changed.

        Where the federation's data is a table, x may be a data frame or a dict of columns; of texts, a list.
        """
        x = self._taken(x, "live")
        now, before, ring, outcomes = self.session, self.prepared, self.snapshots.copy(), []
        try:
            self._collect(x)
            for part in self._parts(x):
                outcome = self._request(part)
                outcomes.append(outcome)
                self.session = outcome.state
                if bool(outcome.committed):
                    self.snapshots.append((self.step, outcome.state))
            if not all(bool(torch.isfinite(o.logits).all()) for o in outcomes):
                raise ValueError(f"live: the model's answers are not finite; x is from {x.min():.3g} to {x.max():.3g}")
        except BaseException:
            self.session, self.prepared, self.snapshots = now, before, ring
            raise
        return self._answer(outcomes, int(now["seen"]))

    def _taken(self, x: Samples, who: str) -> Tensor:
        return inputs.taken(self.worker.task, inputs.read(x, self.raw, who, self.told), self.dtype, who)

    def _parts(self, x: Tensor) -> Sequence[Tensor]:
        """A request cut so that windows end where a test stream's batches would."""
        return x.split(cuts(self.session["window"].shape[0], int(self.session["fresh"]), len(x)))

    def _request(self, x: Tensor) -> Outcome:
        task, predict, model = self.worker.task, self.worker.predict(), self.model
        like = tree.leaves(model)[0]
        open = torch.full((), not self._waits, dtype=torch.bool, device=like.device)
        now = not self.frozen and due(self.session["window"].shape[0], int(self.session["fresh"]), len(x))
        outcome = request(task, predict, self.adapter, model, self.session, x.to(like.device), self.key, open, now)
        return held(self.session, outcome) if self.frozen else outcome

    def _collect(self, x: Tensor) -> None:
        """Prepare an adapter that waits for it on a request's samples, however it is cut, where they are enough."""
        if self._waits and not self.frozen and len(x) >= WINDOW:
            self.prepare(x)

    def prepare(self, x: Samples) -> None:
        """Show an adapter a whole set of unlabelled samples before its first answer; what it had learned is dropped."""
        if not self.adapter.transductive:
            name = type(self.adapter).__name__
            raise ValueError(f"prepare: {name} wants no samples before its first answer; call the live model with them")
        x = self._taken(x, "prepare").to(self.key.device)
        task, predict = self.worker.task, self.worker.predict()
        real = torch.ones(len(x), dtype=torch.bool, device=x.device)
        fresh = self.adapter.init(task, self.model)
        base = self.worker.key("adapt", self.client, like=x)
        state = self.adapter.prepare(task, predict, self.model, fresh, x, real, rng.fold(base, "prepare"))
        self._commit({**self.session, "adapter": state})
        self.prepared = True

    def _commit(self, state: Tree) -> None:
        self.session = {**state, "step": self.session["step"] + 1}
        self.snapshots.append((self.step, self.session))

    def _answer(self, outcomes: Sequence[Outcome], seen: int) -> Answer:
        logits = torch.cat([o.logits for o in outcomes]).detach().cpu()
        plain = torch.cat([o.plain for o in outcomes]).argmax(-1).tolist()
        adapted = tuple(torch.cat([o.adapted for o in outcomes]).tolist())
        told = {k: float(v) for k, v in outcomes[-1].told.items()}
        window = int(self.session["filled"]), self.session["window"].shape[0]
        answer = self.answered(logits, adapted, told, seen, self.step, window)
        self.remember(answer.ids, logits.argmax(-1).tolist(), plain)
        return answer

    def answered(
        self,
        logits: Tensor,
        adapted: tuple[bool, ...],
        told: dict[str, float],
        seen: int,
        step: int,
        window: tuple[int, int],
    ) -> Answer:
        """An answer of what a request left; `seen` samples came before it, `window` is how full of how many it is."""
        ids = tuple(f"{self.client}-{seen + i}" for i in range(len(logits)))
        told = told if self._judges(*window) else {}
        guard = {k: v for k, v in told.items() if k not in ("estimate", "used")}
        estimate = told.get("estimate")
        known = estimate is not None and estimate == estimate
        labels = tuple(self.classes[c] for c in logits.argmax(-1).tolist())
        note = "" if any(adapted) else self._why(*window)
        return Answer(logits.softmax(-1), labels, ids, adapted, step, note, guard, estimate if known else None)

    def remember(self, ids: Sequence[str], chosen: Sequence[int], plain: Sequence[int]) -> None:
        """Keep what was answered, and what the un-adapted model would have, for labels that come later."""
        self.recent |= dict(zip(ids, zip(chosen, plain, strict=True), strict=True))
        while len(self.recent) > REMEMBERED:
            self.recent.popitem(last=False)

    def _judges(self, filled: int, size: int) -> bool:
        """Whether a guard has seen this client's samples alone: empty places of a window look like black images."""
        return filled == size and not self._waits

    def _why(self, filled: int, size: int) -> str:
        """Why the un-adapted model answered."""
        if not adapts(self.adapter):
            return "the adapter is none"
        if self._waits:
            return f"{type(self.adapter).__name__} waits for {WINDOW} samples in one request, or for prepare(x)"
        if filled < size:
            return f"the window fills: {filled} of {size} samples"
        if self._unjudged:
            return "the guard has no labelled validation examples of this client to judge by"
        return HELD if self.adapter.calibrates else UNSOUND

    def predict(self, x: Samples, batch: int = 256) -> Tensor:
        """Logits [N, classes] with the state as it is; nothing adapts and nothing is remembered.

        An adapter that needs a batch sees each sample as the newest of the window, so that a sample is answered alike
        alone and among others; a transductive one sees the samples as a set, `batch` at most. Where the window is not
        full, the adapter waits for samples to prepare on, or its answer is not finite, the un-adapted model answers.
        """
        x = self._taken(x, "predict")
        parts = [self._logits(part.to(self.key.device), i * batch) for i, part in enumerate(x.split(batch))]
        return torch.cat(parts).detach().cpu()

    def _logits(self, x: Tensor, start: int) -> Tensor:
        task, predict, now = self.worker.task, self.worker.predict(), rng.advance(self.key, start)
        window, filled = self.session["window"], int(self.session["filled"])

        def answer(some: Tensor, state: Tree) -> Tensor:
            return self.adapter.step(task, predict, self.model, state, some, now)[0]

        if self._waits:
            return predict(self.model, x).logits
        whole = self.adapter.transductive or self.record.get("windowless")  # a set is answered as a set
        if self.adapter.batch_free or (whole and len(x) > 1):
            logits = answer(x, self.state)
        elif filled < len(window):
            return predict(self.model, x).logits
        else:
            met = self.adapter.meets(self.state, newest(len(window), self.session["fresh"] + 1, window))
            logits = vmap(lambda one: answer(torch.cat((window[1:], one[None])), met)[-1], chunk_size=CHUNK)(x)
        sound = torch.isfinite(logits).all(-1, keepdim=True)
        return logits if bool(sound.all()) else torch.where(sound, logits, predict(self.model, x).logits)

    def freeze(self, frozen: bool = True) -> None:
        """Stop committing steps; answers go on with the state as it is. `freeze(False)` goes on."""
        if not isinstance(frozen, bool):
            raise ValueError(f"freeze: frozen={frozen!r} must be True or False")
        if self.frozen and not frozen and (size := self.session["window"].shape[0]):
            self.session = {**self.session, "fresh": self.session["fresh"] % size}  # steps end where they would have
        self.frozen = frozen

    def reset(self) -> None:
        """Start afresh, as the model was deployed. The step that comes back with `restore` is the one before."""
        window = self.session["window"].shape[0]
        fresh = begin(self.worker.task, self.adapter, self.model, window or WINDOW, self.dtype)
        self.prepared = False
        self._commit({**fresh, "seen": self.session["seen"], "step": self.session["step"]})

    def restore(self, step: int) -> None:
        """Go back to the state after an earlier step; it becomes the newest one."""
        kept = dict(self.snapshots)
        if not isinstance(step, int) or isinstance(step, bool) or step not in kept:
            known = ", ".join(map(str, kept)) or "none yet"
            raise ValueError(f"restore: step={step!r:.60} must be one of those kept: {known}")
        self._commit({**kept[step], "seen": self.session["seen"]})
        if self.adapter.transductive:
            self.prepared = not self._untouched()

    def _untouched(self) -> bool:
        """Whether the adapter's state is the one that it begins with: no samples have been shown to it."""
        fresh = tree.flatten(self.adapter.init(self.worker.task, self.model))
        return all(_alike(v, fresh[name]) for name, v in tree.flatten(self.state).items())

    def feedback(self, ids: Sequence[str], y: Sequence[int | str] | Tensor | np.ndarray) -> dict[str, float | int]:
        """Labels that come late, by class name or number: what was measured so far. Unknown samples are an error."""
        if isinstance(ids, str) or len(ids) != len(y):
            count = 1 if isinstance(ids, str) else len(ids)
            raise ValueError(f"feedback: {count} ids and {len(y)} labels; give a list of ids and one label for each")
        if unknown := [i for i in ids if i not in self.recent]:
            raise ValueError(
                f"feedback: {', '.join(f'{i!s:.40}' for i in unknown[:5])} ({len(unknown)} in all) are not among "
                f"the last {REMEMBERED:,} answers, or have had their label"
            )
        if len(set(ids)) < len(ids):
            twice = next(i for n, i in enumerate(ids) if i in ids[:n])
            raise ValueError(f"feedback: {twice} is there twice; a sample has one label")
        given = y.tolist() if isinstance(y, Tensor | np.ndarray) else y
        numbers = [self._number(label) for label in given]
        for name, label in zip(ids, numbers, strict=True):
            answered, plain = self.recent.pop(name)
            self.labelled = [a + b for a, b in zip(self.labelled, (1, answered == label, plain == label), strict=True)]
        return self.measured

    def _number(self, label: int | str) -> int:
        if isinstance(label, str) and label in self.classes:
            return self.classes.index(label)
        whole = isinstance(label, Integral) and not isinstance(label, bool)
        if whole and str(label) in self.classes and self.classes.index(str(label)) != label:
            raise ValueError(
                f"feedback: label {label} is a class's name and not its number; give it as text, '{label}'"
            )
        if whole and 0 <= int(label) < len(self.classes):
            return int(label)
        raise ValueError(f"feedback: label {label!r:.60} must be one of {', '.join(self.classes)}, or its number")

    def module(self) -> nn.Module:
        """The model as a plain `nn.Module` in eval mode, where nothing adapts it: pixels to logits."""
        if not isinstance(self.adapter, NoAdapt):
            raise ValueError(
                f"module: {type(self.adapter).__name__} answers with a state of its own, which no plain module has; "
                "take adapter=NoAdapt() (adapters=none), or keep to `predict`"
            )
        return module_of(self.worker, self.model)

    def save(self, path: str | Path, overwrite: bool = False) -> Path:
        """Write a folder that `load_live` reads: safetensors and JSON, whole or not at all."""
        task = self.worker.task
        card = {
            "client": self.client,
            "classes": list(self.classes),
            "task": {"shape": list(task.shape), "mean": list(task.mean), "std": list(task.std)}
            | ({} if task.tokens is None else {"tokens": task.tokens}),
            "dtype": str(self.dtype).removeprefix("torch."),
            "frozen": self.frozen,
            "prepared": self.prepared,
            "labelled": self.labelled,
            "record": self.record,
            "config": self.config or json.loads(dumps(self.experiment)),
        }
        card |= {} if self.raw is None else {"raw": self.raw.card()}
        changing: Tree = {"session": self.session, "snapshots": {str(step): s for step, s in self.snapshots}}
        changing["recent"] = folder.answered(self.recent)
        trees = {"model": self.model, "state": changing}
        if task.constants:  # a user's own module may draw others when it is made again
            trees["constants"] = task.constants
        if task.apart:  # what a record makes again, and is too large for every client's folder
            card["apart"] = sketch(task.apart)
        return folder.write(Path(path), card, trees, overwrite)
