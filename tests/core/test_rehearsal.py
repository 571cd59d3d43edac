"""Rehearsals: which kernels are left out and then compiled, with a stand-in for Triton; with Triton on a GPU."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, current_thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from acclimate.core.nn import beforehand, conv, fastest, forked, implicit, kernels, rehearsal, trials
from acclimate.core.nn.helpers import Helpers

FOLDER = Path(rehearsal.__file__).parent
on_a_gpu = pytest.mark.skipif(
    not (torch.cuda.is_available() and rehearsal.possible()), reason="needs a CUDA device and a Triton that can do it"
)
needs_children = pytest.mark.skipif(not forked.possible(), reason="child processes need Linux and two cores")


class Kernel:
    """A kernel as Triton has them: a hook is told before it is compiled, and may take that over."""

    def __init__(self, triton: Any, name: str) -> None:
        self.triton, self.name, self.done = triton, name, []

    def launch(self, key: str) -> None:
        hook = self.triton.knobs.runtime.jit_cache_hook
        told = {"compile": {"specialization_data": f"{self.name} for {key}"}, "fn": SimpleNamespace(jit_function=self)}
        left_out = hook is not None and hook(key=key, repr="", is_manual_warmup=False, already_compiled=False, **told)
        self.done.append(("left out" if left_out else "launched", key))

    def preload(self, purpose: str) -> None:
        self.done.append(("compiled" if self.triton.modes else "compiled alone", purpose))


@pytest.fixture
def triton(monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_in = SimpleNamespace(knobs=SimpleNamespace(runtime=SimpleNamespace(jit_cache_hook=None)), modes=[])

    class Mode:
        def __init__(self, threads: Any, ignore_errors: bool) -> None:
            self.done = threads.submit(lambda: 1)
            assert ignore_errors and not self.done.done()

        def __enter__(self) -> None:
            stand_in.modes.append(self)

        def __exit__(self, *_: object) -> None:
            assert self.done.result(60) == 1
            stand_in.modes.pop()

    stand_in.AsyncCompileMode = Mode
    monkeypatch.setattr(rehearsal, "triton", stand_in)
    monkeypatch.setattr(rehearsal, "_late", {})
    return stand_in


def test_late_kernels_are_left_out_and_compiled_once_for_every_purpose(triton: Any) -> None:
    late, plain = rehearsal.late(Kernel(triton, "late")), Kernel(triton, "plain")

    def work() -> None:
        for key in ("a", "b", "a"):
            late.launch(key)
        plain.launch("a")
        assert rehearsal.running()

    assert rehearsal.rehearse(work) == 2 and not rehearsal.running()
    assert late.done[:3] == [("left out", "a"), ("left out", "b"), ("left out", "a")]
    assert late.done[3:] == [("compiled", "late for a"), ("compiled", "late for b")]
    assert plain.done == [("launched", "a")]
    assert triton.knobs.runtime.jit_cache_hook is None


def test_what_goes_wrong_in_a_rehearsal_is_left_for_the_work(triton: Any) -> None:
    late = rehearsal.late(Kernel(triton, "late"))

    def work() -> None:
        late.launch("a")
        raise RuntimeError("later")

    assert rehearsal.rehearse(work) == 1 and late.done[-1] == ("compiled", "late for a")
    assert not rehearsal.running() and triton.knobs.runtime.jit_cache_hook is None
    broken = rehearsal.late(Kernel(triton, "broken"))
    broken.preload = lambda purpose: 1 / 0
    assert rehearsal.rehearse(lambda: [kernel.launch("b") for kernel in (broken, late)]) == 2
    assert late.done[-1] == ("compiled", "late for b")
    triton.AsyncCompileMode = lambda *_, **__: 1 / 0
    assert rehearsal.rehearse(lambda: late.launch("c")) == 1 and late.done[-1] == ("left out", "c")


def test_a_hook_that_was_there_is_asked_first_and_comes_back(triton: Any) -> None:
    late, told = rehearsal.late(Kernel(triton, "late")), []

    def theirs(**given: Any) -> bool:
        told.append(given["key"])
        return given["key"] == "mine"

    triton.knobs.runtime.jit_cache_hook = theirs
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("mine", "a")]) == 1
    assert told == ["mine", "a"] and triton.knobs.runtime.jit_cache_hook is theirs
    assert late.done == [("left out", "mine"), ("left out", "a"), ("compiled", "late for a")]


def test_launchers_are_made_side_by_side_one_for_every_list_of_types(triton: Any) -> None:
    """By the thread that has compiled a kernel; one that fails is left for the launch."""
    made: list[Any] = []

    def launcher(src: Any, metadata: Any) -> None:
        made.append((list(src.signature.values()), getattr(metadata, "tensordesc_meta", None)))
        if metadata.broken:
            raise RuntimeError("no C compiler")

    triton.runtime = SimpleNamespace(driver=SimpleNamespace(active=SimpleNamespace(launcher_cls=launcher)))
    kinds = {
        "a": ({"x": "*fp32", "n": "i32"}, SimpleNamespace(broken=True)),
        "b": ({"y": "*fp32", "m": "i32"}, SimpleNamespace(broken=False)),
        "c": ({"y": "*fp32", "m": "i32"}, SimpleNamespace(broken=False, tensordesc_meta=[1])),
        "d": ({"y": "*bf16", "m": "i32"}, SimpleNamespace(broken=False)),
    }

    class Compiled(Kernel):
        def preload(self, purpose: str) -> Any:
            done: Future[Any] = Future()
            signature, metadata = kinds[purpose[-1]]
            if purpose[-1] != "b" or "fails" not in self.name:
                done.set_result(SimpleNamespace(src=SimpleNamespace(signature=signature), metadata=metadata))
            else:
                done.set_exception(RuntimeError("does not compile"))
            return SimpleNamespace(future=done)

    late, failing = (rehearsal.late(Compiled(triton, name)) for name in ("late", "fails"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in "abcd"], lambda: failing.launch("b")) == 5
    assert made == [(["*fp32", "i32"], None), (["*fp32", "i32"], [1]), (["*bf16", "i32"], None)]


class Cached(Kernel):
    """A kernel that is compiled into a folder, as Triton's own are: one that is there is loaded."""

    def preload(self, purpose: str) -> Any:
        key = hashlib.sha256(purpose.encode()).hexdigest()

        def compiled() -> Any:
            place = self.triton.folder / key / "__grp__kernel.json"
            if (listener := self.triton.knobs.compilation.listener) is not None:
                listener(cache_hit=place.exists())
            if self.name == "broken":
                raise RuntimeError("does not compile")
            place.parent.mkdir(exist_ok=True)
            if not place.exists():
                place.write_text(str(os.getpid()))
            return SimpleNamespace(src=SimpleNamespace(signature=json.loads(purpose)["signature"]), metadata=None)

        self.done.append(self.triton.modes[-1].executor.submit(compiled))
        vars(self.done[-1])["_key"] = purpose
        return SimpleNamespace(future=self.done[-1])

    types: Any = None

    def launch(self, key: str) -> None:
        about = json.dumps({"signature": self.types or {"x": "*fp32", "n": key[0]}, "of": self.name, "key": key})
        told = {"compile": {"specialization_data": about}, "fn": SimpleNamespace(jit_function=self)}
        assert self.triton.knobs.runtime.jit_cache_hook(key=key, **told)


@pytest.fixture
def cached(triton: Any, tmp_path: Path) -> Any:
    """A Triton with an empty cache, and what was compiled or made where: names by process."""

    class Mode:
        def __init__(self, executor: Any, ignore_errors: bool) -> None:
            self.executor = executor

        def __enter__(self) -> None:
            triton.modes.append(self)

        def __exit__(self, *_: object) -> None:
            wait([future for future, _ in self.executor.tasks], 60)

    class Place:
        def __init__(self, key: str) -> None:
            self.cache_dir = tmp_path / key
            self.cache_dir.mkdir(exist_ok=True)

    def launcher(src: Any, metadata: Any) -> None:
        with (tmp_path / f"launcher {' '.join(src.signature.values())}").open("a") as file:
            file.write(f"{os.getpid()}\n")

    parent = os.getpid()
    triton.folder, triton.AsyncCompileMode, triton.heard = tmp_path, Mode, []

    def listen(cache_hit: bool) -> None:
        triton.heard.append(cache_hit)
        assert os.getpid() == parent or (tmp_path / "heard by a child").touch()

    triton.knobs.compilation = SimpleNamespace(always_compile=False, listener=listen)
    cache = SimpleNamespace(FileCacheManager=Place, get_cache_manager=Place)
    active = SimpleNamespace(launcher_cls=launcher)  # asks no device: helpers are not there
    triton.runtime = SimpleNamespace(cache=cache, driver=SimpleNamespace(active=active))
    triton.by = lambda what: [
        pid == str(parent) for path in sorted(tmp_path.glob(what)) for pid in path.read_text().split()
    ]
    return triton


KERNELS, LAUNCHERS = "*/__grp__*", "launcher *"


@needs_children
def test_kernels_and_launchers_that_are_not_in_the_cache_are_made_by_children(cached: Any) -> None:
    late = rehearsal.late(Cached(cached, "late"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "a2", "b1")]) == 3
    assert cached.by(KERNELS) == [False] * 3 and cached.by(LAUNCHERS) == [False, True] * 2  # made, and then loaded
    assert cached.heard == [True] * 3 and all(future.done() for future in late.done)  # loaded from the cache
    assert not (cached.folder / "heard by a child").exists()
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "a2")]) == 0


@needs_children
def test_children_make_one_launcher_for_kernels_that_are_launched_alike(cached: Any) -> None:
    """Its C code holds no types of what is pointed at, and no sizes of blocks."""
    kinds = [("*fp32", "tensordesc<fp32[32, 2]>"), ("*bf16", "tensordesc<fp32[64, 1]>"), ("*u8", "tensordesc<fp32[8]>")]
    some = [rehearsal.late(Cached(cached, f"late {number}")) for number in range(4)]
    for kernel, (x, n) in zip(some, [*kinds, ("i64", kinds[0][1])], strict=True):
        kernel.types = {"x": x, "n": n}
    assert rehearsal.rehearse(lambda: [kernel.launch("a") for kernel in some]) == 4
    assert sorted(cached.by(LAUNCHERS)) == [False] * 3 + [True] * 4
    assert cached.by("launcher [*]bf16*") == [False, True]  # the shortest, which comes last


@needs_children
def test_children_have_launchers_made_without_optimising(cached: Any, tmp_path: Path) -> None:
    """In this process C code is compiled as before: by a Triton whose compiler takes flags, and by any other."""
    told: list[Any] = []

    def build(name: str, libraries: list[str], ccflags: list[str]) -> None:
        told.append(ccflags)
        (tmp_path / f"built {name} {' '.join(ccflags)}").write_text(str(os.getpid()))

    def launcher(src: Any, metadata: Any) -> None:
        store._build(src.signature["n"], [], ["-g"])

    store = SimpleNamespace(_build=build)
    cached.runtime.build, cached.runtime.driver.active.launcher_cls = store, launcher
    late = rehearsal.late(Cached(cached, "late"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "b1")]) == 2
    assert cached.by("built * -g -O0") == [False] * 2 and cached.by("built * -g") == [True] * 2
    assert told == [["-g"]] * 2 and store._build is build
    for other in (SimpleNamespace(), SimpleNamespace(_build=lambda name, libraries: libraries)):
        cached.runtime.build = other
        with rehearsal._hasty():
            assert not vars(other) or other._build("a", ["b"]) == ["b"]


@needs_children
def test_children_compile_neither_what_is_there_nor_one_kernel_alone(cached: Any) -> None:
    late = rehearsal.late(Cached(cached, "late"))
    assert rehearsal.rehearse(lambda: late.launch("a1")) == 1 and cached.by(KERNELS) == [True]
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "a2")]) == 1
    assert cached.by(KERNELS) == [True] * 2 and cached.heard[1:].count(False) == 1


@needs_children
def test_what_does_not_compile_in_a_child_is_tried_here_and_does_not_count(cached: Any) -> None:
    late, broken = (rehearsal.late(Cached(cached, name)) for name in ("late", "broken"))
    assert rehearsal.rehearse(lambda: [k.launch(key) for k in (broken, late) for key in ("a1", "b1")]) == 4
    assert cached.by(KERNELS) == [False] * 2 and sorted(cached.heard) == [False] * 2 + [True] * 2
    assert [str(future.exception()) for future in broken.done] == ["does not compile"] * 2


@pytest.fixture
def helped(cached: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same, where helpers may compile while work is rehearsed."""
    parent, drivers = os.getpid(), cached.runtime.driver

    def asked() -> int:
        assert os.getpid() == parent or (cached.folder / "asked by a child").touch()
        return 0

    drivers.active.get_current_device = drivers.active.get_current_target = asked
    drivers.set_active = lambda driver: setattr(drivers, "active", driver)
    monkeypatch.setattr(forked, "_hung", [])
    monkeypatch.setattr(forked, "LONGEST", 3600.0)
    return cached


def until(true: Any) -> None:
    enough = time.monotonic() + 60
    while not true():
        assert time.monotonic() < enough
        time.sleep(0.005)


@needs_children
def test_kernels_are_compiled_while_others_are_still_noted(helped: Any) -> None:
    """With a launcher for each list of types, and without asking a device anything."""
    late = rehearsal.late(Cached(helped, "late"))

    def work() -> None:
        late.launch("a1")
        until(lambda: helped.by(KERNELS))
        assert helped.by(KERNELS) == [False] and not late.done
        for key in ("a1", "a2", "b1", "a2"):
            late.launch(key)

    assert rehearsal.rehearse(work) == 3 and helped.by(KERNELS) == [False] * 3
    assert helped.by(LAUNCHERS) == [False, True] * 2  # made by a child, and then loaded
    assert helped.heard == [True] * 3 and len(late.done) == 3
    assert not {"asked by a child", "heard by a child"} & set(os.listdir(helped.folder))


@needs_children
def test_of_kernels_that_are_there_no_others_are_compiled_and_one_helper_is_made(
    helped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, forks, fork = rehearsal.late(Cached(helped, "late")), [], os.fork
    keys = ["a1", "a2", "b1", "b2"]
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in keys]) == 4
    monkeypatch.setattr(os, "fork", lambda: forks.append(fork()) or forks[-1])
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in keys]) == 0
    assert len(forks) == 1 and helped.by(KERNELS) == [False] * 4 and helped.heard == [True] * 8


@needs_children
def test_what_a_helper_fails_at_is_compiled_after_the_rehearsal(helped: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that dies, too, or that is told of a kernel that it does not know."""
    parent, late = os.getpid(), rehearsal.late(Cached(helped, "late"))
    real = late.preload

    def preload(purpose: str) -> Any:
        if os.getpid() != parent and json.loads(purpose)["key"] == "a1":
            os._exit(3)
        return real(purpose)

    late.preload = preload

    def work() -> None:
        late.launch("a2")
        until(lambda: helped.by(KERNELS))
        unknown = rehearsal.late(Cached(helped, "unknown"))
        for each, key in ((unknown, "b1"), (late, "a1"), (late, "b2")):
            each.launch(key)

    assert rehearsal.rehearse(work) == 4 and len(helped.by(KERNELS)) == 4


@needs_children
@pytest.mark.parametrize("why", ["threads", "always"])
def test_no_helper_begins_before_triton_is_ready_nor_where_it_compiles_anew(
    helped: Any, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    helped.knobs.compilation.always_compile = why == "always"
    monkeypatch.setattr(beforehand, "done", lambda: why != "threads")
    late = rehearsal.late(Cached(helped, "late"))
    monkeypatch.setattr(Helpers, "_prepared", lambda self, real=Helpers._prepared: real(self) and pytest.fail("began"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "a2")]) == 2
    assert helped.by(KERNELS) == [why == "always"] * 2


@pytest.mark.parametrize("why", ["always", "elsewhere", "locked", "one core", "hung"])
def test_without_children_threads_compile(cached: Any, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Where Triton compiles anew, its cache is no folder or cannot be written, or children do not help."""
    monkeypatch.setattr(forked, "spread", lambda *_: pytest.fail("forked"))
    if why == "always":
        cached.knobs.compilation.always_compile = True
    if why == "elsewhere":
        cached.runtime.cache.FileCacheManager = dict
    if why == "locked":
        monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    if why == "one core":
        monkeypatch.setattr(forked, "cores", lambda: 1)
    if why == "hung":
        monkeypatch.setattr(forked, "_hung", [1])
    late = rehearsal.late(Cached(cached, "late"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in ("a1", "a2", "b1")]) == 3
    assert cached.by(KERNELS) == [True] * 3 and cached.by(LAUNCHERS) == [True] * 2


def test_triton_names_itself_once_in_a_thread_before_anything_is_compiled(cached: Any, monkeypatch: Any) -> None:
    """It reads all of its own code for that, which nothing else has to wait for."""
    begun, go, order, here = Event(), Event(), [], current_thread()

    def name() -> None:
        begun.set()
        assert go.wait(60) and current_thread() is not here
        order.append("named")
        raise OSError("what goes wrong is found again when it is needed")

    monkeypatch.setattr(beforehand, "_threads", [])
    monkeypatch.setattr(forked, "possible", lambda: False)
    cached.runtime.cache.triton_key = name
    rehearsal.prepare()
    rehearsal.prepare()
    assert begun.wait(60) and not order
    late = rehearsal.late(Cached(cached, "late"))
    real = late.preload
    late.preload = lambda purpose: order.append("compiled") or real(purpose)

    def work() -> None:
        late.launch("a1")
        go.set()

    rehearsal.rehearse(work)
    assert order == ["named", "compiled"]
    for other in (None, SimpleNamespace(), SimpleNamespace(runtime=SimpleNamespace(cache=SimpleNamespace()))):
        monkeypatch.setattr(rehearsal, "triton", other)
        monkeypatch.setattr(beforehand, "_threads", [])
        rehearsal.prepare()
        assert not beforehand._threads


class Drivers:
    """Triton's drivers: the one in use, and the one that is made where none is."""

    def __init__(self, kind: Any) -> None:
        self.kind, self._active = kind, None

    @property
    def default(self) -> Any:
        return self.kind()

    @property
    def active(self) -> Any:
        self._active = self._active or self.default
        return self._active

    def set_active(self, driver: Any) -> None:
        self._active = driver


@pytest.mark.parametrize("broken", [False, True])
def test_a_driver_is_made_in_a_thread_and_devices_are_known_meanwhile(
    triton: Any, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Its C code takes as long to compile as a rehearsal does, which needs none of it."""
    go, here = Event(), current_thread()

    class Known:
        def __init__(self) -> None:
            self.device = 3

    class Driver(Known):
        is_active = staticmethod(lambda: True)

        def __init__(self) -> None:
            assert go.wait(60)
            if broken:
                raise OSError("no C compiler")
            self.compiled = current_thread()
            super().__init__()

    other = SimpleNamespace(is_active=lambda: False)
    drivers = Drivers(Driver)
    triton.runtime = SimpleNamespace(driver=drivers, cache=SimpleNamespace(triton_key=lambda: "name"))
    triton.backends = SimpleNamespace(backends={k: SimpleNamespace(driver=d) for k, d in (("a", Driver), ("b", other))})
    monkeypatch.setattr(beforehand, "_threads", [])
    rehearsal.prepare()
    first = drivers.active
    assert isinstance(first, Driver) and first.device == 3 and not go.is_set()
    go.set()
    if broken:
        with pytest.raises(OSError, match="no C compiler"):
            _ = first.compiled
        return
    assert first.compiled is not here  # it waited
    assert drivers.active is not first and type(drivers.active) is Driver and drivers.active.device == 3
    made = drivers.active
    monkeypatch.setattr(beforehand, "_threads", [])
    rehearsal.prepare()
    assert drivers.active is made and len(beforehand._threads) == 1  # whoever had one keeps it


def test_longer_kernels_come_first(cached: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "possible", lambda: False)
    names, order = ("short", "longest", "longer"), []
    some = [rehearsal.late(Cached(cached, name)) for name in names]
    for kernel in some:
        kernel.src = kernel.name
        kernel.preload = lambda purpose: order.append(json.loads(purpose)["of"])
    rehearsal.rehearse(lambda: [kernel.launch("a") for kernel in some])
    assert order == ["longest", "longer", "short"]
    order.clear()
    some[0].types = {"x": ["*fp32"] * 2, "n": "i32"}  # twice "short" is longer than any of the others
    rehearsal.rehearse(lambda: [kernel.launch("b") for kernel in some])
    assert order == ["short", "longest", "longer"]


def test_only_kernels_that_were_not_in_the_cache_count(triton: Any) -> None:
    told: list[Any] = []
    triton.knobs.compilation = SimpleNamespace(listener=lambda **given: told.append(given))
    before = triton.knobs.compilation.listener

    class Told(Kernel):
        def preload(self, purpose: str) -> None:
            self.triton.knobs.compilation.listener(src=purpose, cache_hit=purpose.endswith("a"))

    late = rehearsal.late(Told(triton, "late"))
    assert rehearsal.rehearse(lambda: [late.launch(key) for key in "abc"]) == 2
    assert len(told) == 3 and triton.knobs.compilation.listener is before


def test_what_is_unheard_is_neither_launched_nor_compiled(triton: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    late = rehearsal.late(Kernel(triton, "late"))
    with rehearsal.unheard():
        late.launch("a")
        assert rehearsal.running()
    assert late.done == [("left out", "a")] and not rehearsal.running()
    monkeypatch.setattr(rehearsal, "possible", lambda: False)
    with rehearsal.unheard():
        late.launch("a")
    assert late.done[-1] == ("launched", "a")


def test_a_trial_in_a_rehearsal_is_launched_once_and_nothing_is_remembered(triton: Any) -> None:
    """Its numbers are zeros, and would say that the kernel is wrong."""
    ran: list[str] = []
    x = torch.ones(2)

    def trial() -> float:
        ran.append("trial")
        return float("inf")

    def work() -> None:
        assert trials.works(("test",), x, trial) and trials.works(("test",), x, trial)
        ways = {"usual": lambda: ran.append("usual"), "other": lambda: ran.append("other")}
        assert [fastest.chosen("test", x, "usual", lambda: ways) for _ in range(2)] == ["usual"] * 2

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_name", lambda *_: "a device")
        patch.setattr(trials, "_tried", {})
        patch.setattr(fastest, "_chosen", {})
        rehearsal.rehearse(work)
        assert ran == ["trial", "usual", "other"] and not trials._tried and not fastest._chosen
        rehearsal.rehearse(work)
        assert len(ran) == 6 and not trials.works(("test",), x, trial)


def test_in_a_recording_a_trial_that_may_be_there_runs_on_a_stream_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a network that was rehearsed is recorded at once. Others ask for a run before, which measures their ways."""
    x, on = SimpleNamespace(is_cuda=True, dtype=torch.float32, device="a GPU"), ["recorded"]

    @contextmanager
    def unrecorded(device: str) -> Iterator[None]:
        on.append(f"a stream of {device}")
        yield
        on.pop()

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(trials, "unrecorded", unrecorded)
    monkeypatch.setattr(trials, "_tried", {})
    ran: list[str] = []

    def trial() -> float:
        ran.append(on[-1])
        return 0.0

    with pytest.raises(RuntimeError, match="run the function once before"):
        trials.works(("test",), x, trial)  # type: ignore[arg-type]
    for _ in range(2):
        assert trials.works(("test",), x, trial, recorded=True)  # type: ignore[arg-type]
    assert ran == ["a stream of a GPU"] and on == ["recorded"]


def test_a_trial_that_fails_beside_a_recording_ends_it_and_says_nothing_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = SimpleNamespace(is_cuda=True, dtype=torch.float32, device="a GPU")
    recorded = [True]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorded[-1])
    monkeypatch.setattr(trials, "unrecorded", lambda device: nullcontext())
    monkeypatch.setattr(trials, "_tried", {})

    def trial() -> float:
        if recorded[-1]:
            raise RuntimeError("operation not permitted when stream is capturing")
        return 0.0

    with pytest.raises(rehearsal.Untried, match="a kernel for test cannot be tried while a graph is recorded"):
        trials.works(("test",), x, trial, recorded=True)  # type: ignore[arg-type]
    recorded.append(False)
    assert trials.works(("test",), x, trial, recorded=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [None, SimpleNamespace(), SimpleNamespace(AsyncCompileMode=1)])
def test_without_a_triton_that_can_do_it_nothing_is_rehearsed(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    monkeypatch.setattr(rehearsal, "triton", other)
    assert rehearsal.rehearse(lambda: pytest.fail("rehearsed")) == 0


def test_what_kernels_would_have_written_holds_zeros(triton: Any) -> None:
    """Numbers that were never written could be used as indices."""
    found: list[torch.Tensor] = []
    shape = {"dtype": torch.int64, "device": torch.device("cpu")}
    x = torch.ones(3, 4).T

    def work() -> None:
        found.extend((rehearsal.blank(1000, 10, **shape), rehearsal.blank_like(x)))

    rehearsal.rehearse(work)
    assert found[0].shape == (1000, 10) and found[0].dtype == torch.int64 and not found[0].any()
    assert found[1].stride() == x.stride() and not found[1].any()
    assert rehearsal.blank(2, 3, **shape).shape == (2, 3) and rehearsal.blank_like(x).stride() == x.stride()


def _launches(node: ast.AST) -> bool:
    """Whether this is `_some_kernel[grid](...)`, or `kernel[grid](...)` where it is one of several."""
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript) and node.func.value
    return isinstance(called, ast.Name) and (called.id.startswith("_") or called.id == "kernel")


def test_all_kernels_are_late_and_whoever_launches_them_has_memory_from_blank() -> None:
    """No module with `kernel[grid](...)`, nor `ends.py`, which makes room for some, asks torch for it."""
    trees = {path.name: list(ast.walk(ast.parse(path.read_text()))) for path in FOLDER.glob("*.py")}
    defined = [node for nodes in trees.values() for node in nodes if isinstance(node, ast.FunctionDef)]
    marked = {f.name for f in defined if any(isinstance(d, ast.Name) and d.id == "late" for d in f.decorator_list)}
    launched = {n.func.value.id for nodes in trees.values() for n in nodes if _launches(n)}
    assert {"_convolve", "_boxes", "_mix", "_entropy", "_weighted"} <= launched <= marked | {"kernel"}
    launching = {"ends.py"}
    for name, nodes in trees.items():
        launching |= {name} if any(map(_launches, nodes)) else set()
    assert {"kernels.py", "folded_kernels.py", "box_kernels.py", "cross_entropy.py"} <= launching
    for name in launching:
        called = {node.attr for node in trees[name] if isinstance(node, ast.Attribute)}
        assert not called & {"empty", "new_empty", "empty_like"}, f"{name} makes memory that no rehearsal fills"


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A product that would go by kernels on a GPU, and what it launches."""
    launched: list[Any] = []
    monkeypatch.setattr(kernels, "takes", lambda x: True)
    monkeypatch.setattr(implicit, "LEAST", 0)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a device")
    monkeypatch.setattr(implicit, "_chosen", {})
    monkeypatch.setattr(implicit, "_known", {})
    monkeypatch.setattr(rehearsal, "_running", [set()])

    def run(kind: str, a: torch.Tensor, b: torch.Tensor, layer: Any, cut: implicit.Cut, *more: Any) -> torch.Tensor:
        launched.append((kind, cut, more))
        return a

    monkeypatch.setattr(implicit, "_run", run)
    return launched


def test_a_product_in_a_rehearsal_launches_all_that_would_be_measured(by_kernels: Any) -> None:
    g = conv.Geometry((12, 12), (3, 3), 1, (1, 1))
    x, w, bias, written = torch.zeros(4, 2, 16, 12, 12), torch.zeros(4, 24, 16, 3, 3), torch.zeros(4, 24), []
    other = lambda *given: written.append(given) or given[0]  # noqa: E731
    assert implicit.product("pooled", other, x, w, g, bias, True) is x
    cuts = implicit.cuts("pooled", implicit.layer_of("pooled", x, w, g), x, implicit._precision(x))
    assert len(cuts) > 1 and by_kernels == [("pooled", cut, (bias, True)) for cut in cuts]
    assert [(len(a), len(b)) for a, b, _ in written] == [(4, 4)] and not implicit._known and not implicit.choices()
    by_kernels.clear()
    assert implicit.product("pooled", other, x, w, g, bias, True) is x  # another layer of that kind
    assert [cut for _, cut, _ in by_kernels] == cuts[:1] and len(written) == 1


def test_a_product_of_one_client_is_rehearsed_with_its_patches_written_out_too(
    by_kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are measured beside torch's own: their kernels would be compiled one after the other."""
    g = conv.Geometry((12, 12), (3, 3), 1, (1, 1))
    x, w, written = torch.zeros(1, 2, 16, 12, 12), torch.zeros(1, 24, 16, 3, 3), []
    other = lambda *given: written.append(implicit._resting[-1]) or given[0]  # noqa: E731
    implicit.product("convolve", other, x, w, g)
    assert written == [False, True]
    monkeypatch.setattr(implicit, "MOST", 2 * 144 * 144 - 1)  # numbers in the patches
    monkeypatch.setattr(rehearsal, "_running", [set()])
    implicit.product("convolve", other, x, w, g)
    assert written == [False, True, False], "too large to be written, or measured so"


def test_a_product_whose_way_is_known_is_rehearsed_that_way(by_kernels: Any) -> None:
    """As a run that is resumed has it: nothing else is launched, and nothing written out."""
    g = conv.Geometry((12, 12), (3, 3), 1, (1, 1))
    x, w = torch.zeros(4, 2, 16, 12, 12), torch.zeros(4, 24, 16, 3, 3)
    layer, precision = implicit.layer_of("convolve", x, w, g), implicit._precision(x)
    key = implicit.name("convolve", layer, 4, 2, precision, "a device")
    written = lambda *_: pytest.fail("written")  # noqa: E731
    implicit.use_choices({key: {"way": "patches"}})
    assert implicit.product("convolve", written, x, w, g) is None and not by_kernels
    implicit.use_choices({key: {"way": "boxes", "tile": [64, 32, 16, 4, 3], "dot": "ieee"}})
    assert implicit.product("convolve", written, x, w, g, None, True) is x
    assert by_kernels == [("convolve", implicit.Cut("boxes", implicit.Tile(64, 32, 16, 4, 3), "ieee"), (None, True))]


def test_a_small_product_is_none_in_a_rehearsal(by_kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "LEAST", 2**62)
    g = conv.Geometry((12, 12), (3, 3), 1, (1, 1))
    x, w = torch.zeros(4, 2, 16, 12, 12), torch.zeros(4, 24, 16, 3, 3)
    assert implicit.product("convolve", lambda *_: pytest.fail("written"), x, w, g) is None and not by_kernels


def test_products_are_measured_with_the_kernel_that_they_run_with() -> None:
    """A bias is part of a kernel: one of zeros changes nothing else."""
    b, bias = torch.full((3, 2, 2, 4, 4), 0.4), torch.ones(5, 7)
    for kind, more in (("pooled", (bias, False)), ("convolve", (bias, True))):
        zeros, relu = implicit._besides(kind, b, more)
        assert relu and zeros.shape == (3, 7) and not zeros.any()
    assert implicit._besides("pooled", b, (None, True)) == implicit._besides("pooled", b, ()) == (None, True)
    assert implicit._besides("convolve", b, (None, True)) == (None, True)
    assert implicit._besides("convolve", b, ()) == implicit._besides("spread", b, ()) == ()
    assert implicit._besides("pooled", b, (None, False, True)) == (None, True, True)  # in the order it is written in
    which, *channels = implicit._besides("pooled_correlate", b, (b, 3))
    assert torch.equal(which, torch.ones_like(b, dtype=torch.uint8)) and channels == [3]


@on_a_gpu
def test_a_rehearsed_kernel_is_there_and_computes_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants that are tuples travel as lists; the numbers are those of torch's operations all the same."""
    from acclimate.core import rng

    x, folds = torch.arange(1000, device="cuda"), (3, 2**63 + 5, 7)
    kernels._mix.device_caches.clear()
    assert rehearsal.rehearse(lambda: kernels.mix(x, rng._MIX1, rng._MIX2, folds)) == 1
    compiled: list[Any] = []
    monkeypatch.setattr(rehearsal.triton.knobs.runtime, "jit_cache_hook", lambda **told: compiled.append(told) and None)
    found, plain = kernels.mix(x, rng._MIX1, rng._MIX2, folds).cpu(), x.cpu()
    for fold in folds:
        plain = rng._mix(plain ^ rng._signed(fold))
    assert torch.equal(found, plain) and not compiled
