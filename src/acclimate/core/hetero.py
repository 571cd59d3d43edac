"""Federations whose clients have different models: what a method owes them, and the inputs that all of them know."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack as outside_transforms

from . import rng
from .method import Method
from .task import Task
from .tree import Tree


@dataclass(frozen=True)
class Hetero(Method):
    """A method whose messages and server state do not depend on the model, so that each client may have its own.

    Clients keep their whole model as private state. The server's functions get the task of one client, and may use of
    it what all tasks have in common: classes, input shape and public set.
    """

    def for_model(self, number: int) -> Hetero:
        """The record of the clients that have the federation's architecture `number`."""
        return self

    def welcome(self, task: Task, down: Tree, mine: Tree, key: rng.Key) -> Tree:
        """What a client that joins after training makes of a fresh private state, before it goes live: no labels."""
        return mine


class PublicTask(Task):
    """A task with a public set: unlabelled inputs that every client holds from the start, so that nobody sends them."""

    def __init__(self, *about: Any, public: Tensor | None = None, **more: Any) -> None:
        """As `Task`, and the public set; without one it is empty."""
        super().__init__(*about, **more)
        self.public = torch.zeros(0, *self.shape) if public is None else public.cpu()
        self._placed = {self.public.device: self.public}

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(PublicTask, public=self.public), super().__reduce__()[1]

    def computing(self, dtype: torch.dtype | None) -> PublicTask:
        """The same task whose passes run in this precision."""
        return self.having(self.model, dtype)

    def having(self, model: Any, dtype: torch.dtype | None = None) -> PublicTask:
        """The same task for another architecture."""
        return PublicTask(**{**self._about, "model": model}, dtype=dtype, public=self.public)

    def public_on(self, device: torch.device) -> Tensor:
        """The public set on a device, copied there once."""
        if device not in self._placed:
            with outside_transforms():  # a tensor made inside a transform stays wrapped when it is over
                self._placed[device] = self.public.to(device)
        return self._placed[device]


def public_of(task: Task, device: torch.device) -> Tensor:
    """The public set that a task knows, [N, ...]; of a plain task none."""
    if isinstance(task, PublicTask):
        return task.public_on(device)
    return torch.zeros(0, *task.shape, device=device)
