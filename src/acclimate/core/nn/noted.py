"""What is noted and done later: tasks that somebody submits; and what is known of a kernel before it is compiled."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any


class Postponed(Executor):
    """Notes what is to be done, and has it done later."""

    def __init__(self) -> None:
        self.tasks: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, task: Callable[..., Any], /, *given: Any, **more: Any) -> Future[Any]:
        """Note a task."""
        self.tasks.append((Future(), partial(task, *given, **more)))
        return self.tasks[-1][0]

    def start(self, threads: Executor) -> None:
        """Have all of them done by these threads."""
        for future, task in self.tasks:
            threads.submit(_settle, future, task)


def _settle(future: Future[Any], task: Callable[[], Any]) -> None:
    """Do what was noted."""
    try:
        found = task()
    except BaseException as reason:
        future.set_exception(reason)
    else:
        future.set_result(found)


def length(which: tuple[Any, str]) -> int:
    """How long a kernel's source is, unrolled for all tensors of a tuple: those that take longest to compile come
    first."""
    tuples = (len(kind) for kind in _types(which[1]) if isinstance(kind, list))
    return len(getattr(which[0], "src", "")) * max(tuples, default=1)


def _types(purpose: str) -> list[Any]:
    """The types of a kernel's arguments; none where this Triton tells them otherwise."""
    try:
        return list(json.loads(purpose)["signature"].values())
    except (ValueError, LookupError):
        return []


def form(purpose: str) -> str:
    """What kernels share that are launched alike."""
    return str([_passed(kind) for kind in _types(purpose)])


def _passed(kind: Any) -> Any:
    """What a launcher knows of an argument's type: all pointers are alike to it, and so are blocks of any size."""
    if isinstance(kind, list):
        return [_passed(each) for each in kind]
    return "*" if kind.startswith("*") else kind.count(",") if kind.startswith("tensordesc") else kind
