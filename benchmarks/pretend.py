"""A GPU that is not there: tensors without numbers stand for its memory, and kernels are noted instead of launched.

torch's tensors on the device `meta` have shapes, types and strides, and no numbers. Inside of `pretended` they pass for
those of a CUDA device, so that the package takes the very ways that it takes there, at full size: work is rehearsed,
run where that comes before a recording, and gone through to be recorded; trials agree, and measurements run what they
would measure. Addresses are as aligned as those of a GPU's memory. What Triton would compile for each launch is noted,
and nothing is launched.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget

from acclimate.backends.vmap import capture, graphs, warming
from acclimate.core import Engine, Shards, tree
from acclimate.core import nn as core_nn
from acclimate.core.loops import Warming, driven
from acclimate.core.nn import fastest, implicit, norms, proven, rehearsal, trials
from acclimate.ops import augmix_kernel

DEVICE = torch.device("meta")
NAMELESS = ("Stream", "stream", "device", "current_stream", "graph_pool_handle")
"""What torch has for a GPU and need do nothing here."""
SHARED, PROCESSORS = 232_448, 132
"""Bytes of shared memory that a program of an H100 or H200 may have, and its processors."""


class Launch(NamedTuple):
    """A kernel, and what it is to be compiled for."""

    kernel: Any
    """Triton's function."""
    purpose: str
    """Types, constants, hints and options, as `kernel.preload` takes them."""
    together: bool
    """Whether a rehearsal leaves it out, so that it is compiled beside others; else its first launch waits for it."""


class Noted(dict[Any, Launch]):
    """Launches by kernel and purpose, in the order in which they come first."""

    choices = 0
    """How many choices between ways to one result were measured."""
    timed = 0
    """How many ways were run for that, again and again each."""


@contextmanager
def pretended(arch: int = 90) -> Iterator[Noted]:
    """As long as this lasts there is a GPU of this architecture, on which launches are noted and nothing else."""
    noted = Noted()
    before = triton.runtime.driver._active
    with ExitStack() as stack:
        for owner, name, value in (*_tensors(), *_device(arch), *_package(noted)):
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(mock.patch.object(triton.knobs.runtime, "jit_cache_hook", _hook(noted)))
        triton.runtime.driver.set_active(_driver(arch))
        for kernel in kernels().values():
            kernel.device_caches.clear()
        try:
            yield noted
        finally:
            noted.choices = len(implicit._chosen) + len(fastest._chosen)
            triton.runtime.driver._active = before
            forget()


def kernels() -> dict[str, Any]:
    """All functions of the package that Triton compiles, by module and name."""
    named = [path.stem for path in sorted(Path(core_nn.__file__).parent.glob("*.py"))]
    modules = [importlib.import_module(f"{core_nn.__name__}.{name}") for name in named] + [augmix_kernel]
    return {
        f"{module.__name__}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, triton.runtime.JITFunction) and value.fn.__module__ == module.__name__
    }


def forget() -> None:
    """Forget what was tried, measured and chosen: a process that has done nothing yet."""
    known: list[Any] = [
        proven._found,
        proven._expected,
        trials._tried,
        norms._tried,
        implicit._chosen,
        implicit._known,
        fastest._chosen,
    ]
    for memory in (*known, warming._known, warming._compiled):
        memory.clear()


def _hook(noted: Noted) -> Callable[..., bool]:
    """What Triton asks before it compiles: a kernel is noted, and left out."""

    def note(**told: Any) -> bool:
        if rehearsal.running() and _deaf:
            return True
        kernel, purpose = told["fn"].jit_function, told["compile"]["specialization_data"]
        together = rehearsal.running() and id(kernel) in rehearsal._late
        noted.setdefault((id(kernel), str(told["key"])), Launch(kernel, purpose, together))
        return True

    return note


_deaf: list[None] = []
_real_unheard = rehearsal.unheard


@contextmanager
def _unheard() -> Iterator[None]:
    """What is left out here is not compiled later, and so not noted either."""
    _deaf.append(None)
    try:
        with _real_unheard():
            yield
    finally:
        _deaf.pop()


@contextmanager
def _counted(most: int) -> Iterator[list[None]]:
    """As if nothing were in Triton's cache."""
    yield [None]


def _driver(arch: int) -> Any:
    """What Triton asks a driver for before it compiles."""
    properties = {"max_shared_mem": SHARED, "multiprocessor_count": PROCESSORS}
    return SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
        utils=SimpleNamespace(get_device_properties=lambda device: properties),
    )


def _tensors() -> list[tuple[Any, str, Any]]:
    """Tensors without numbers as those of a GPU: addresses are unlike, and every number is zero."""
    real_address = torch.UntypedStorage.data_ptr

    def start(memory: torch.UntypedStorage) -> int:
        return memory._cdata << 9 if memory.device.type == "meta" else real_address(memory)

    def address(x: Tensor) -> int:
        return start(x.untyped_storage()) + x.storage_offset() * x.element_size()

    found: list[tuple[Any, str, Any]] = [
        (torch.Tensor, "is_cuda", property(lambda x: x.device.type == "meta")),
        (torch.Tensor, "data_ptr", address),
        (torch.UntypedStorage, "data_ptr", start),
        (torch, "Generator", _Generator),
    ]
    for name, value in (("__float__", 0.0), ("__int__", 0), ("__bool__", True), ("item", 0), ("tolist", [])):
        found.append((torch.Tensor, name, _unless_meta(getattr(torch.Tensor, name), value)))
    return found + [(torch, name, _undrawn(getattr(torch, name))) for name in ("randn", "rand")]


class _Generator(torch.Generator):
    """A generator of the host, whichever device it is asked for."""

    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls)


def _unless_meta(real: Callable[[Tensor], Any], value: Any) -> Callable[[Tensor], Any]:
    return lambda x: value if x.device.type == "meta" else real(x)


def _undrawn(real: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function that draws numbers, which takes a generator of the host where there are no numbers."""

    def drawn(*size: Any, generator: Any = None, device: Any = None, **more: Any) -> Tensor:
        there = device is not None and torch.device(device).type == "meta"
        return real(*size, **({} if there else {"generator": generator}), device=device, **more)

    return drawn


def _device(arch: int) -> list[tuple[Any, str, Any]]:
    """What torch tells of a GPU."""
    told = {
        "get_device_name": lambda *_: f"a GPU that is not there (sm_{arch})",
        "get_device_capability": lambda *_: divmod(arch, 10),
        "get_device_properties": lambda *_: SimpleNamespace(multi_processor_count=PROCESSORS),
        "is_available": lambda: True,
        "is_current_stream_capturing": lambda: bool(_recorded),
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        **{name: mock.MagicMock() for name in NAMELESS},
    }
    return [(torch.cuda, name, value) for name, value in told.items()]


def _package(noted: Noted) -> list[tuple[Any, str, Any]]:
    """The few places of the package that name a CUDA device, or need its numbers or its time."""
    on, there = proven.on, torch.device("cuda", 0)

    def tried(of: Any, device: torch.device) -> bool:
        with suppress(NotImplementedError, RuntimeError):  # there are no numbers to compare
            of(device)
        return True

    def milliseconds(run: Callable[[], Any], beaten: float = 0.0) -> float:
        run()
        noted.timed += 1
        return float(noted.timed)

    return [
        (proven, "on", lambda device: on(there if device.type == "meta" else device)),
        (proven, "expect", lambda device: proven._expected.add(there)),
        (proven, "_works", tried),
        (rehearsal, "unheard", _unheard),
        (rehearsal, "_compile", lambda *_: 0),
        (rehearsal, "_counting", _counted),
        (proven, "_trials", [partial(_there_alone, of) for of in proven._trials]),
        (capture.Captured, "warmed", False),
        (capture.Captured, "_record", _record),
        (graphs, "forget", lambda pool: None),
        (implicit, "milliseconds", milliseconds),
        (fastest, "milliseconds", milliseconds),
    ]


def _there_alone(of: Callable[[torch.device], Any], device: torch.device) -> Any:
    """A trial on the pretended device, whichever it is asked for."""
    return of(DEVICE)


def there(data: Shards) -> Shards:
    """Clients and examples on the pretended device, whose sizes the host knows."""
    held = _There(*(x.to(DEVICE) for x in (data.x, data.y, data.rows, data.n)))
    held.n.on_host = data.n  # type: ignore[attr-defined]
    return held


class _There(Shards):
    @property
    def sizes(self) -> Tensor:  # type: ignore[override]
        return self.n.on_host  # type: ignore[attr-defined,no-any-return]

    def to(self, device: torch.device | str) -> Shards:
        return self


def on_it(engine: Engine) -> Any:
    """An engine whose work is run as it is before a recording."""
    opened: Any = engine
    opened.recorder, opened.buckets.few_shapes = _Warmed(False, False), True
    opened.buckets.chunk = {"train": 128, "test": 128}
    return opened


class _Warmed(capture.Recorder):
    """Does what a recording does: a rehearsal where it is the first, a run where there must be one, and then the pass
    that is recorded."""

    def run(self, what: Any, f: Callable[..., Any], inputs: tuple[Any, ...], room: Any = None) -> Any:
        self._rehearse(capture.Job(what, f, inputs))
        return capture.Captured(f, inputs)._outputs

    def run_all(self, jobs: Any) -> list[Any]:
        self._rehearse(*{job.form(): job for job in jobs}.values())
        return [self.run(*job) for job in jobs]


_recorded: list[None] = []
"""As many as there are recordings under way."""


def _record(self: capture.Captured, f: Callable[..., Any], slot: Any, tidy: bool = False) -> None:
    """The pass that is recorded."""
    _recorded.append(None)
    try:
        with driven(Warming()):
            self._outputs = f(*self._inputs)
    finally:
        _recorded.pop()


def moved(value: Any) -> Any:
    """A tree on the pretended device."""
    return tree.to(value, DEVICE)
