"""Pure functions of trees as CUDA graphs: recorded once, then replayed without Python or launch overhead."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count, islice
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...core import tree
from ...core.loops import Room, driven
from ...core.nn import rehearsal
from . import graphs, warming
from .graphs import Recording, alternating, no_garbage, played

log = logging.getLogger("acclimate")

MOST_RECORDINGS = 128
"""Recorded shapes that are kept; the one that was not used for longest goes first."""
SIDE_BY_SIDE = 4
"""Streams on which groups of clients run at the same time."""
AT_A_TIME = 16
"""Graphs that one stream gets before it is another's turn: where too many wait on one, the host waits too."""


_numbers = count()
"""Of recorders."""


class Form(NamedTuple):
    """What a recording depends on."""

    what: tuple[Any, ...]
    shapes: tuple[Any, ...]
    arithmetic: tuple[bool, ...]

    def at(self, slot: int) -> Any:
        """The key of a recording on this slot."""
        return self.what, self.shapes, slot, self.arithmetic


class Job(NamedTuple):
    """A pure function, its inputs and the room of its clients, as `Recorder.run` takes them."""

    what: tuple[Any, ...]
    f: Callable[..., Any]
    inputs: tuple[Any, ...]
    room: Room | None = None

    @property
    def load(self) -> int:
        """How long it takes, beside others."""
        return 1 if self.room is None else self.room.most

    def form(self) -> Form:
        """What its recording depends on."""
        leaves = tree.leaves(dict(enumerate(self.inputs)))
        return Form(self.what, tuple((x.shape, x.stride(), x.dtype) for x in leaves), arithmetic())


class Recorder:
    """Runs pure functions: replays the recording for their shapes, makes it, or runs them as they are."""

    def __init__(self, on: bool, exact: bool) -> None:
        self.on = on
        """Whether functions are recorded."""
        self.exact = exact
        """Whether TF32 is forbidden."""
        self.recorded: dict[Any, Captured] = {}
        """Recordings by work and shapes, the one that was used last at the end."""
        self.refused: dict[Any, str] = {}
        """Work that could not be recorded, and why: it runs as it is."""
        self._slots: list[Slot] = []
        self._tidy = False
        self._number = next(_numbers)  # an id would be another's when this one is gone

    def run(
        self, what: tuple[Any, ...], f: Callable[..., Any], inputs: tuple[Any, ...], room: Room | None = None
    ) -> Any:
        """What `f` makes of the inputs; `what` names the work, as shapes alone do not. `room` is that of
        clients, where the largest may not fill it."""
        with tf32(False) if self.exact else nullcontext():
            if not self.on or what in self.refused:
                return f(*inputs)
            self._tidy, job = False, Job(what, f, inputs)
            recorded = self._recording(job, job.form(), 0)
            return f(*inputs) if recorded is None else recorded(*inputs, room=room)

    def run_all(self, jobs: Sequence[Job]) -> list[Any]:
        """What `run` gives for each of these jobs. What is recorded runs side by side, on several streams."""
        if not self.on or len(jobs) == 1:
            return [self.run(*job) for job in jobs]
        with tf32(False) if self.exact else nullcontext():
            self._tidy, forms = False, [job.form() for job in jobs]
            self._rehearse(*dict(zip(forms, jobs, strict=True)).values())
            placed = self._dealt(jobs, forms)
            made = [self._recording(*which) for which in zip(jobs, forms, placed, strict=True)]
            done: list[Any] = [None] * len(jobs)
            queues: dict[int, list[tuple[int, Captured, Job]]] = {at: [] for at in sorted(set(placed))}
            for i, recorded in enumerate(made):
                if recorded is not None:
                    queues[placed[i]].append((i, recorded, jobs[i]))
            for number, found in alternating([self._slots[at].line(queue) for at, queue in queues.items() if queue]):
                done[number] = found
            for at in queues:
                if queues[at]:
                    self._slots[at].join()
            ways = zip(jobs, made, done, strict=True)
            return [job.f(*job.inputs) if recorded is None else found for job, recorded, found in ways]

    def _rehearse(self, *jobs: Job) -> None:
        """Compile the kernels of these jobs side by side, where that was not done for such work."""
        warming.rehearse([(job.what, partial(job.f, *job.inputs)) for job in jobs], (self._number, arithmetic()))

    def _dealt(self, jobs: Sequence[Job], forms: Sequence[Form]) -> list[int]:
        """The slot of each job: one where its recording is, unless that has more to do than another with this one."""
        loads, placed = [0] * SIDE_BY_SIDE, []
        for job, form in zip(jobs, forms, strict=True):
            idle = min(range(SIDE_BY_SIDE), key=loads.__getitem__)
            there = [s for s in range(SIDE_BY_SIDE) if form.at(s) in self.recorded]
            at = min([s for s in there if loads[s] <= loads[idle] + job.load] or [idle], key=loads.__getitem__)
            loads[at] += job.load
            placed.append(at)
        return placed

    def forget(self) -> None:
        """Drop all recordings, and the memory that they hold."""
        self.recorded.clear()
        self._slots.clear()

    def _recording(self, job: Job, form: Form, slot: int) -> Captured | None:
        """The recording of this work, made where it is not there; None where it cannot be made."""
        if job.what in self.refused:
            return None
        while len(self._slots) <= slot:
            self._slots.append(Slot())
        what, key = job.what, form.at(slot)
        recorded = self.recorded.pop(key, None)
        if recorded is None:
            self._rehearse(job)
            try:
                recorded = Captured(job.f, job.inputs, self._slots[slot], self._tidy)
                self._tidy = True
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as reason:
                torch.cuda.synchronize()
                self._refuse(what, str(reason).strip().partition("\n")[0] or type(reason).__name__)
                return None
        self.recorded[key] = recorded
        while len(self.recorded) > MOST_RECORDINGS:
            del self.recorded[next(iter(self.recorded))]
        return recorded

    def _refuse(self, what: tuple[Any, ...], reason: str) -> None:
        """Remember that this work runs as it is, and say so once."""
        if reason not in self.refused.values():
            log.warning("%s is not captured as a CUDA graph and runs step by step: %s", what[0], reason)
        self.refused[what] = reason


class Slot:
    """A stream to record on, and the memory of what is recorded there: its recordings run one after the other, and so
    may use the same memory, that of their inputs included."""

    def __init__(self) -> None:
        self._places: dict[Any, Tensor] = {}
        self.renew()

    def renew(self) -> None:
        """Record on another stream and into other memory from now on: a recording that failed may leave both unfit."""
        cuda = torch.cuda.is_available()
        self.stream: Any = torch.cuda.Stream() if cuda else None
        self.aside: Any = torch.cuda.Stream() if cuda else None
        self.pool = torch.cuda.graph_pool_handle() if cuda else None

    def place(self, path: str, given: Tensor) -> Tensor:
        """Where inputs like this one lie while a recording runs."""
        key = (path, tuple(given.shape), given.stride(), given.dtype)
        if key not in self._places:
            self._places[key] = given.clone()
        return self._places[key]

    def line(self, jobs: Sequence[tuple[int, Captured, Job]]) -> Iterator[tuple[int, Any] | None]:
        """Run recorded jobs one after the other on this slot's stream: the results, by number. In between it yields
        None, so that other slots have their turn."""
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())
        for number, recorded, job in jobs:
            graphs, more = recorded.launches(job.inputs, job.room), True
            while more:
                with torch.cuda.stream(self.stream):
                    more = len(list(islice(graphs, AT_A_TIME))) == AT_A_TIME
                yield None
            with torch.cuda.stream(self.stream):
                found = recorded.results()
            yield number, found

    def join(self) -> None:
        """What follows waits until this slot is done."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


class Captured:
    """`f(*trees)` recorded for inputs of fixed shapes. A call copies the inputs into place, replays, copies out.

    `f` returns trees, in tuples as well, and must be pure tensor code: no host synchronisation, no copies from the
    host. Tensors it closes over (the data set) are read where they lie. Its loops (`core.loops`) are recorded by their
    bodies. Recordings of one slot must not run at the same time.
    """

    warmed: ClassVar[bool] = False
    """Whether a recording of this process has succeeded, so that libraries are likely to be initialised."""

    def __init__(
        self, f: Callable[..., Any], inputs: tuple[Any, ...], slot: Slot | None = None, tidy: bool = False
    ) -> None:
        """Record; `tidy` says that garbage has been collected a moment ago, by the recording before this one."""
        slot = slot or Slot()
        self._inputs = tuple(_placed(slot, str(i), x) for i, x in enumerate(inputs))
        self._put(inputs)
        if not Captured.warmed:
            self._warm(f)
            self._record(f, slot, tidy)
            Captured.warmed = True
            return
        try:
            with rehearsal.stopping():  # kernels that nobody compiled are compiled side by side, as before a run
                self._record(f, slot, tidy)
        except (Exception, rehearsal.Uncompiled) as reason:
            # what was not yet initialised, compiled or memoised cannot be while recording, nor is memory that was used
            # to measure given back: run once, then try again
            log.debug("a recording failed and is tried again after a run: %r", reason)
            self._warm(f)
            self._record(f, slot)

    def _put(self, inputs: tuple[Any, ...]) -> None:
        """Copy inputs into place."""
        pairs: list[tuple[Tensor, Tensor]] = []
        for mine, given in zip(self._inputs, inputs, strict=True):
            tree.map(lambda a, b: pairs.append((a, b)), mine, given)
        copy_all(pairs)

    def _warm(self, f: Callable[..., Any]) -> None:
        """Run with few steps, so that libraries initialise, kernels compile and constants are made before recording."""
        work = partial(f, *self._inputs)
        if not warming.begun():
            warming.rehearse([(None, work)])
        warming.run(work)

    def _record(self, f: Callable[..., Any], slot: Slot, tidy: bool = False) -> None:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        recording = Recording(slot.pool, slot.aside)
        with no_garbage(tidy), torch.cuda.stream(slot.stream), driven(recording):
            try:
                recording.begin()
                self._outputs = f(*self._inputs)
                recording.end()
            except BaseException:
                recording.give_up()
                graphs.forget(slot.pool)
                slot.renew()
                raise
        self.program, self._kept = recording.program, recording.kept

    def __call__(self, *inputs: Any, room: Room | None = None) -> Any:
        """Run the recorded function on new inputs of the same shapes; the results are the caller's own."""
        for _ in self.launches(inputs, room):
            pass
        return self.results()

    def launches(self, inputs: tuple[Any, ...], room: Room | None) -> Iterator[None]:
        """Replay on new inputs, one graph with every turn."""
        self._put(inputs)
        for graph in played(self.program, room):
            graph.replay()
            yield

    def results(self) -> Any:
        """Copies of what the last replay left."""
        pairs: list[tuple[Tensor, Tensor]] = []
        copies = over(lambda x: _room_for(x, pairs), self._outputs)
        copy_all(pairs)
        return copies


def _placed(slot: Slot, path: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _placed(slot, f"{path}/{k}", v) for k, v in value.items()}
    return slot.place(path, value)


def _room_for(x: Tensor, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Memory for a copy of x, which is noted; what has no data stands for itself."""
    if x.is_meta:
        return x
    pairs.append((torch.empty_like(x), x))
    return pairs[-1][0]


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second of every pair to the first: all of one type in one kernel, where torch has one."""
    kinds: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for pair in pairs:
        kinds.setdefault(pair[0].dtype, []).append(pair)
    for some in kinds.values():
        torch._foreach_copy_([a for a, _ in some], [b for _, b in some])


def over(f: Callable[..., Any], value: Any) -> Any:
    """Apply `f` leaf by leaf to a tree, or to the trees of a tuple, which keeps its type and names."""
    if isinstance(value, tuple):
        done = [over(f, v) for v in value]
        return type(value)._make(done) if hasattr(value, "_make") else tuple(done)
    return tree.map(f, value)


def arithmetic() -> tuple[bool, ...]:
    """What torch is set to: a recording keeps the kernels that were chosen for it."""
    flags: tuple[Any, Any] = torch.backends.cuda.matmul, torch.backends.cudnn
    strict = torch.backends.cudnn.deterministic, torch.are_deterministic_algorithms_enabled()
    return (*(f.allow_tf32 for f in flags), *strict)


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in matrix products and convolutions; PyTorch's own default differs between the two."""
    flags: tuple[Any, Any] = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [f.allow_tf32 for f in flags]
    for f in flags:
        f.allow_tf32 = allowed
    try:
        yield
    finally:
        for f, old in zip(flags, before, strict=True):
            f.allow_tf32 = old
