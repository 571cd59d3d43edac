"""A rehearsal of work on a GPU: kernels are noted instead of launched, and compiled side by side, meanwhile and then.

Triton compiles a kernel at its first launch, so that one waits for the other, and the work for all of them. In a
rehearsal those that are marked with `late` are left out where they have not been compiled yet. What they would have
written holds zeros (`blank`), so that no number can be used as an index that is none. Results mean nothing; afterwards
the kernels are there, with the launchers that some versions of Triton have a C compiler make for them. Whoever tries or
measures a kernel launches it in a rehearsal, and believes and remembers nothing. Without a Triton that can do this
nothing is rehearsed, and kernels compile one after the other.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from inspect import signature
from threading import Lock
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from . import beforehand, forked
from .available import AVAILABLE
from .helpers import Helpers, Serve
from .noted import Postponed, form, length

if AVAILABLE:
    import triton
else:
    triton = None

log = logging.getLogger("acclimate")

K = TypeVar("K")
Noted: TypeAlias = dict[Any, tuple[Any, str]]
"""Kernels that were left out: Triton's function, and what it was to be compiled for, by the two."""

_late: dict[int, Any] = {}
_running: list[set[Any]] = []


def late(kernel: K) -> K:
    """Mark a kernel that a rehearsal leaves out: whoever launches it has memory from `blank` for the results."""
    _late[id(kernel)] = kernel
    return kernel


def possible() -> bool:
    """Whether this Triton says what it is about to compile, and compiles several kernels at a time."""
    hooks = getattr(getattr(triton, "knobs", None), "runtime", None)
    return hasattr(triton, "AsyncCompileMode") and hasattr(hooks, "jit_cache_hook")


def prepare() -> None:
    """Have threads do what Triton does before it compiles or launches anything."""
    if possible():
        beforehand.begin(triton)


def running() -> bool:
    """Whether this is a rehearsal."""
    return bool(_running)


def anew(*what: Any) -> bool:
    """Whether this rehearsal meets this for the first time: then whoever tries or measures it launches all of it."""
    met = what in _running[-1]
    _running[-1].add(what)
    return not met


def blank(*size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for a kernel's results."""
    return (torch.zeros if _running else torch.empty)(size, dtype=dtype, device=device)


def blank_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for results that lie in memory as x does, in its type or another."""
    return (torch.zeros_like if _running else torch.empty_like)(x, dtype=dtype)


def rehearse(*works: Callable[[], Any]) -> int | None:
    """Run each of these once without its late kernels, and compile them; how many were not in Triton's cache, or None
    where there were none that this process had not loaded. What goes wrong is left for the work itself to find."""
    if not possible():
        return 0
    with Helpers(_helped, forked.cores()) as early:
        with _noting(early) as noted:
            for work in works:
                with _tolerant():
                    work()
        if not noted:
            return None
        elsewhere = 0
        with _counting(len(noted)) as new, _tolerant():
            elsewhere = _compile(noted, early)
        return len(new) + elsewhere


@contextmanager
def _counting(most: int) -> Iterator[list[None]]:
    """One for each kernel that is compiled and was not in Triton's cache; `most` where this Triton does not say."""
    new: list[None] = []
    with _told(lambda: new.append(None)) as heard:
        yield new if heard else [None] * most


@contextmanager
def _told(new: Callable[[], None]) -> Iterator[bool]:
    """As long as this lasts, `new` is called when a kernel was compiled that was not in Triton's cache; False where
    this Triton does not say."""
    knobs: Any = getattr(getattr(triton, "knobs", None), "compilation", None)
    if not hasattr(knobs, "listener"):
        yield False
        return
    before = knobs.listener

    def listen(**told: Any) -> None:
        if before is not None:
            before(**told)
        if not told.get("cache_hit"):
            new()

    knobs.listener = listen
    try:
        yield True
    finally:
        knobs.listener = before


class Uncompiled(BaseException):
    """A kernel of this work was not in Triton's cache, so that there may be more. It is no Exception: whoever tries a
    kernel must not take it for the kernel's failure."""


class Untried(RuntimeError):
    """A kernel could not be tried beside a recording, and nothing is known of it: the recording ends, and comes again
    after a run."""


@contextmanager
def stopping() -> Iterator[None]:
    """What is done inside ends with `Uncompiled` after the first kernel that was not in Triton's cache."""

    def stop() -> None:
        raise Uncompiled

    with _told(stop) if possible() else nullcontext():
        yield


@contextmanager
def unheard() -> Iterator[None]:
    """As long as this lasts late kernels are left out, and not compiled either: where results mean nothing anyway."""
    with _noting() if possible() else nullcontext():
        yield


@contextmanager
def _tolerant() -> Iterator[None]:
    """Go on whatever fails inside: the work comes to the same place, and says what is wrong."""
    try:
        yield
    except Exception as reason:
        log.debug("a rehearsal ended early: %s", reason)


@contextmanager
def _noting(early: Helpers | None = None) -> Iterator[Noted]:
    """As long as this lasts, late kernels are noted instead of compiled and launched, and `early` helpers begin to
    compile them. The first of those that are launched alike has the launcher made."""
    noted: Noted = {}
    alike: set[str] = set()
    hooks = triton.knobs.runtime
    before = hooks.jit_cache_hook

    def note(**told: Any) -> bool:
        if before is not None and before(**told):
            return True
        kernel = told["fn"].jit_function
        if id(kernel) not in _late:
            return False
        which = (id(kernel), told["key"])
        if which not in noted:
            noted[which] = kernel, purpose = kernel, told["compile"]["specialization_data"]
            if early is not None:
                with _tolerant():
                    early.give(f"{id(kernel)} {int(form(purpose) not in alike)} {purpose}", length(noted[which]))
                    alike.add(form(purpose))
        return True

    hooks.jit_cache_hook = note
    _running.append(set())
    try:
        yield noted
    finally:
        _running.pop()
        hooks.jit_cache_hook = before


def _compile(noted: Noted, early: Helpers | None = None) -> int:
    """Compile these side by side; how many child processes did. Helpers that began early come to their end, other
    children and threads of this process do the rest, and threads load what is in Triton's cache. Those that do not
    compile will say so when they are launched."""
    waiting, launchers, compiled = Postponed(), _Launchers(), 0
    beforehand.wait()
    if early is not None:
        with _tolerant():
            early.decide()
    makers: dict[str, Future[Any]] = {}  # of kernels that are launched alike the shortest has their launcher made
    with ThreadPoolExecutor(forked.cores()) as threads, triton.AsyncCompileMode(waiting, ignore_errors=True):
        try:
            for kernel, purpose in sorted(noted.values(), key=length, reverse=True):
                with _tolerant():
                    future = kernel.preload(purpose).future
                    future.add_done_callback(launchers.add)
                    makers[form(purpose)] = future
            if early is not None:
                compiled = early.finish()
            with _tolerant():
                compiled += _in_children(waiting.tasks, set(makers.values()))
        finally:
            waiting.start(threads)
    return compiled


def _in_children(tasks: list[tuple[Future[Any], Callable[[], Any]]], makers: set[Future[Any]]) -> int:
    """Have child processes compile what is not in Triton's cache yet, some with launchers; how many kernels they did.
    The cache key of a task is where Triton puts it."""
    if not _children_help():
        return 0
    new = {key: (task, future in makers) for future, task in tasks if _missing(key := vars(future)["_key"])}
    if len(new) > 1:
        forked.spread([partial(_in_child, *each) for each in new.values()], forked.cores())
    return sum(not _missing(key) for key in new)


def _children_help() -> bool:
    return forked.possible() and not triton.knobs.compilation.always_compile


def _helped() -> Serve | None:
    """What helpers do from now on, once all is there that a process needs to compile."""
    if not (_children_help() and beforehand.done()):
        return None
    return partial(_early, _Asked(triton.runtime.driver.active))


def _early(driver: _Asked, told: str, begin: Callable[[], None]) -> bool:
    """Compile a kernel into Triton's cache, in a child process that was not told of it before it was made; False where
    it was there."""
    which, launcher, purpose = told.split(" ", 2)
    triton.knobs.runtime.jit_cache_hook = None  # which would note it
    triton.runtime.driver.set_active(driver)
    waiting = Postponed()
    with triton.AsyncCompileMode(waiting, ignore_errors=True):
        _late[int(which)].preload(purpose)
        ((future, task),) = waiting.tasks
        future.set_exception(LookupError("it is compiled into the cache, and not launched here"))
        if not _missing(vars(future)["_key"]):
            return False
        begin()
        _in_child(task, launcher == "1")
    return True


class _Asked:
    """A driver that knows what the device said, and asks it no more."""

    def __init__(self, driver: Any) -> None:
        device, target = driver.get_current_device(), driver.get_current_target()
        self.get_current_device, self.get_current_target = lambda: device, lambda: target
        self.launcher_cls = driver.launcher_cls


def _in_child(task: Callable[[], Any], launcher: bool) -> None:
    """Compile a kernel into Triton's cache, and its launcher where asked for. What it is compiled for was asked of the
    device before."""
    triton.knobs.compilation.listener = None  # whoever listens does so in the process that was forked
    kernel = task()
    if launcher:
        with _hasty():
            triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


@contextmanager
def _hasty() -> Iterator[None]:
    """As long as this lasts, C code of Triton's is compiled without being optimised: a launcher parses its arguments
    and calls the driver, so that it is hardly slower, and takes less than half as long to make."""
    store = getattr(triton.runtime, "build", None)
    real: Any = getattr(store, "_build", None)
    form = None if real is None else signature(real)
    if form is None or "ccflags" not in form.parameters:
        yield
        return

    def build(*given: Any, **named: Any) -> Any:
        told = form.bind(*given, **named)
        told.arguments["ccflags"] = [*(told.arguments.get("ccflags") or ()), "-O0"]  # the last one counts
        return real(*told.args, **told.kwargs)

    vars(store)["_build"] = build
    try:
        yield
    finally:
        vars(store)["_build"] = real


def _missing(key: str) -> bool:
    """Whether a kernel is to be put into Triton's cache, which lies in a folder that can be written."""
    store = triton.runtime.cache
    place = store.get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
    if type(place) is not store.FileCacheManager or not os.access(place.cache_dir, os.W_OK):
        return False
    return not any(name.startswith("__grp__") for name in os.listdir(place.cache_dir))


class _Launchers:
    """What launches compiled kernels. Triton 3.6 has a C compiler make it for every new list of types, at the first
    launch, and keeps it in its cache: here whoever has compiled a kernel does so, and no launch waits for it.
    """

    def __init__(self) -> None:
        self._made: set[str] = set()
        self._lock = Lock()

    def add(self, compiled: Future[Any]) -> None:
        """Have the launcher of this kernel made, unless another has the same."""
        with _tolerant():
            kernel = compiled.result()
            types = str((list(kernel.src.signature.values()), getattr(kernel.metadata, "tensordesc_meta", None)))
            with self._lock:
                known = types in self._made
                self._made.add(types)
            if not known:
                triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
