"""Which way a convolution of many clients goes: patches gathered inside the product, or written out before it.

Of every shape the ways are measured once, on numbers made for that: a few cuts of the kernel (`implicit_kernels`), the
patches way, and for one client alone torch's own convolution. The fastest whose result agrees is remembered, and used
from then on. Ways round differently, so a run that is to repeat to the bit elsewhere takes its choices along:
`choices()` are plain JSON, and `use_choices` puts them back. What has been chosen, measured or given, is not measured
again.

A kernel that does not compile or does not agree is left out; where none is left, patches are written out, with a
warning. Triton's interpreter (TRITON_INTERPRET=1) runs the first cut of all, on a CPU.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from . import box_kernels, folded_kernels, implicit_kernels, kernels, pixels, point_kernels, rehearsal, switches
from .cuts import FP32, Cut, Kind, cuts, dot_of, dots_of, gone, power
from .fastest import NEAR
from .implicit_kernels import Layer, Tile
from .streams import unrecorded
from .timing import made, milliseconds

log = logging.getLogger("acclimate")

Choice: TypeAlias = dict[str, Any]
"""`{"way": "implicit", "tile": [...], "dot": ...}`, the same with "boxes" or "points", or `{"way": "patches"}`, and the
milliseconds that were measured. `dot` is how Triton multiplies; without it, as `dot_of` says. Of one client alone,
"patches" are torch's own convolution, and "written" are patches."""


class Sizes(Protocol):
    """What `conv.Geometry` has."""

    @property
    def image(self) -> tuple[int, int]: ...
    @property
    def kernel(self) -> tuple[int, int]: ...
    @property
    def step(self) -> int: ...
    @property
    def pad(self) -> tuple[int, int]: ...
    @property
    def out(self) -> tuple[int, int]: ...


Other: TypeAlias = Callable[[Tensor, Tensor, Any], Tensor]
"""The same product in the way that writes patches out."""

WAYS: dict[str, Any] = {
    "implicit": implicit_kernels,
    "boxes": box_kernels,
    "folded": folded_kernels,
    "points": point_kernels,
}
APART = {"fp32": 1e-5, "tf32": 5e-3, "bfloat16": 3e-2, "float16": 5e-3}
"""How far a result may be from that of the patches way, relative to its norm; else something is wrong."""
LEAST, ALONE = 2**26, 2**22
"""Multiplications from which on a convolution is worth measuring, of several clients and of one: torch's own may choose
a kernel for one client that is many times slower than it need be."""
WRITTEN = "written"
"""The way of one client alone whose patches are written out."""
MOST = 2**28
"""Numbers in the patches that are measured with: clients are left out beyond that."""

_chosen: dict[str, Choice] = {}
_known: dict[Any, Cut | str | None] = {}
_told: set[str] = set()
_resting: list[bool] = []


def choices() -> dict[str, Choice]:
    """What has been chosen, by shape, precision and device."""
    return {key: dict(choice) for key, choice in _chosen.items()}


def use_choices(given: dict[str, Choice]) -> None:
    """Use these choices instead of measuring; those that were made already for the same shapes are forgotten."""
    for key, choice in given.items():
        way, tile = (choice.get("way"), choice.get("tile")) if isinstance(choice, dict) else (None, None)
        fits = isinstance(tile, list | tuple) and len(tile) == 5 and all(isinstance(n, int) for n in tile)
        if way not in ("patches", WRITTEN) and not (way in WAYS and fits and choice.get("dot", FP32) in dots_of(key)):
            told = f"'way' must be 'patches', '{WRITTEN}', or one of {tuple(WAYS)} with a 'tile' of five whole numbers"
            raise ValueError(f"choice of '{key}': {choice!r} is none: {told}, and 'dot' one of {dots_of(key)}")
    _chosen.update({key: dict(choice) for key, choice in given.items() if not gone(choice)})
    _known.clear()


def forget() -> None:
    """Forget all choices: every shape is measured again."""
    _chosen.clear()
    _known.clear()


def product(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, *more: Any) -> Any:
    """`convolve(x, w)`, `spread(dy, w)` or `correlate(x, dy)` by its kernel; None where `other` is the way to go.

    `pooled(x, w)` takes a bias (or None) and whether ReLU follows, and says which pixels were the largest, too; that is
    what `pooled_correlate(x, dy)` takes."""
    if _resting or not kernels.takes(a) or a.dtype != b.dtype or not switches.on("implicit"):
        return None
    key, precision = _key(kind, a, b, g), _precision(a)
    if rehearsal.running() and key not in _known:
        return _rehearsed(kind, other, a, b, g, precision, more)
    if key not in _known:
        _known[key] = _choice(kind, other, a, b, g, precision, more)
    cut = _known[key]
    return _run(kind, a, b, layer_of(kind, a, b, g), cut, *more) if isinstance(cut, Cut) else None


def writes(kind: Kind, a: Tensor, b: Tensor, g: Sizes) -> bool:
    """Whether one client alone, for whom `product` gave None, writes its patches out: else torch's own is the way."""
    if _resting or not switches.on("implicit"):
        return bool(_resting) and _resting[-1]
    return _known.get(_key(kind, a, b, g)) == WRITTEN


def _key(kind: Kind, a: Tensor, b: Tensor, g: Sizes) -> Any:
    return kind, a.shape, b.shape, g, a.dtype, _precision(a), a.device


def aligned(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """`widened` images, and their weights with as many channels."""
    return widened(x), filled(w, 4) if is_widened(x) else w


def widened(x: Tensor) -> Tensor:
    """Images [B, 3, h, w] with a fourth channel of zeros, where kernels fetch four at once; others as they are."""
    return pixels.widened(x) if is_widened(x) else x


def is_widened(x: Tensor) -> bool:
    """Whether these images get a fourth channel."""
    return x.shape[1] == 3 and kernels.takes(x) and switches.on("implicit")


def filled(w: Tensor, channels: int) -> Tensor:
    """Images or weights [..., I, h, w] with zeros up to so many channels."""
    return w if w.shape[-3] == channels else F.pad(w, (0, 0, 0, 0, 0, channels - w.shape[-3]))


def layer_of(kind: Kind, a: Tensor, b: Tensor, g: Sizes) -> Layer:
    """The sizes of this convolution."""
    inputs = b.shape[2] if kind == "spread" else a.shape[2]
    outputs = b.shape[1] if kind in ("convolve", "pooled") else a.shape[2] if kind == "spread" else b.shape[2]
    return Layer(inputs, *g.image, outputs, *g.out, *g.kernel, g.step, *g.pad)


def _precision(x: Tensor) -> str:
    """As torch's switch for convolutions says."""
    if x.dtype != torch.float32:
        return str(x.dtype).removeprefix("torch.")
    return "tf32" if torch.backends.cudnn.allow_tf32 else "fp32"


def _run(kind: Kind, a: Tensor, b: Tensor, layer: Layer, cut: Cut, *more: Any) -> Any:
    return getattr(WAYS[cut.way], kind)(a, b, layer, cut.tile, cut.dot, *more)


def _choice(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, precision: str, more: Any) -> Cut | str | None:
    """The chosen cut, or the name of another way; None where there is no choice. Measured where nobody has chosen."""
    layer = layer_of(kind, a, b, g)
    if not _worth(layer, a, b):
        return None
    if not a.is_cuda:
        return cuts(kind, layer, a, precision)[0]
    key = name(kind, layer, len(a), a.shape[1], precision, torch.cuda.get_device_name(a.device))
    if key not in _chosen:
        _chosen[key] = _measured(kind, other, a, b, g, precision, more)
    return _cut_of(_chosen[key], precision)


def _cut_of(chosen: Choice, precision: str) -> Cut | str:
    """The cut of a choice, or the name of its way where that is no kernel."""
    if chosen["way"] not in WAYS:
        return str(chosen["way"])
    return Cut(chosen["way"], Tile(*chosen["tile"]), chosen.get("dot", dot_of(precision)))


def _worth(layer: Layer, a: Tensor, b: Tensor) -> bool:
    """Whether kernels are for a convolution of this size."""
    (clients, batch), inputs, outputs = a.shape[:2], layer.inputs, layer.outputs
    if batch * max(math.prod(layer[:3]), math.prod(layer[3:6])) >= 2**31 or not a.numel() or not b.numel():
        return False
    least = LEAST if clients > 1 else min(LEAST, ALONE)
    return clients * batch * math.prod(layer[4:8]) * inputs * outputs >= least


def _rehearsed(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, precision: str, more: Any) -> Any:
    """What `product` gives in a rehearsal: the launches of what it would run, or of all that it would measure."""
    layer, done = layer_of(kind, a, b, g), None
    if not _worth(layer, a, b):
        return None
    key = name(kind, layer, len(a), a.shape[1], precision, torch.cuda.get_device_name(a.device))
    if key in _chosen:
        cut = _cut_of(_chosen[key], precision)
        return _run(kind, a, b, layer, cut, *more) if isinstance(cut, Cut) else None
    few, tried = _measurable(a, g, layer), cuts(kind, layer, a, precision)
    if rehearsal.anew(_key(kind, a, b, g)):
        for written in (False, True) if _writable(a, g, layer) else (False,):
            with resting(written):
                other(a[:few], b[:few], g)
    else:
        tried = tried[:1]  # another layer of this kind
    for cut in tried:
        with suppress(Exception):  # a measurement tells what is wrong
            done = _run(kind, a, b, layer, cut, *more)
    return done


def name(kind: Kind, layer: Layer, clients: int, batch: int, precision: str, device: str) -> str:
    """What a choice is kept under. Clients and batches of similar number share one."""
    i, h, w, o, _, _, kh, kw, step, ph, pw = layer
    about = f"{power(clients)} x {power(batch)} of {i}x{h}x{w} to {o}, kernel {kh}x{kw}, step {step}, pad {ph}x{pw}"
    return f"{kind} {about}, {precision}, {device}"


@contextmanager
def resting(written: bool = False) -> Iterator[None]:
    """While this lasts convolutions go the other way; `written` also where one client is alone."""
    _resting.append(written)
    try:
        yield
    finally:
        _resting.pop()


def _measured(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, precision: str, more: Any = ()) -> Choice:
    """Time the ways, on a stream of their own: a recording may be under way, and is not to contain them."""
    recording, layer = torch.cuda.is_current_stream_capturing(), layer_of(kind, a, b, g)
    if not recording:
        torch.cuda.synchronize(a.device)
    with unrecorded(a.device), torch.no_grad(), resting():
        p, q = (made(t, _measurable(a, g, layer), seed) for seed, t in enumerate((a, b)))
        want, besides = other(p, q, g), _besides(kind, q, more)
        want = want.relu() if kind == "convolve" and besides else want
        want = want[:, :, : besides[1]] if kind == "pooled_correlate" and len(besides) > 1 else want
        times: dict[Cut, float] = {}
        reasons = []
        for cut in cuts(kind, layer, a, precision):
            run = functools.partial(_run, kind, p, q, layer, cut, *besides)
            try:
                got = run()[0] if kind == "pooled" else run()
                apart = float((got - want).float().norm() / want.float().norm())
                if not apart <= APART[precision]:
                    raise ArithmeticError(f"a result is {apart:.1e} from that of written patches")
                times[cut] = milliseconds(run, min(times.values(), default=math.inf))
            except Exception as reason:
                reasons.append(str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__)
        if recording and not times:
            raise RuntimeError(f"convolutions cannot be measured while recording: {reasons[0]}")
        _tell(reasons, bool(times))
        least, written = min(times.values(), default=math.inf), None
        if _writable(a, g, layer):
            with resting(True):
                written = milliseconds(lambda: other(p, q, g), least)
        return best(times, milliseconds(lambda: other(p, q, g), least), written)


def _measurable(a: Tensor, g: Sizes, layer: Layer) -> int:
    """How many of the clients a product is measured with."""
    return min(len(a), max(MOST // _seen(a, g, layer), 2))


def _writable(a: Tensor, g: Sizes, layer: Layer) -> bool:
    """Whether written patches are measured, too: those of one client alone, as torch's own convolution comes first."""
    return len(a) == 1 and _seen(a, g, layer) <= MOST


def _seen(a: Tensor, g: Sizes, layer: Layer) -> int:
    """Numbers in the patches of one client."""
    return a.shape[1] * math.prod(g.out) * layer.taps * layer.inputs


def _besides(kind: Kind, b: Tensor, more: Any) -> tuple[Any, ...]:
    """What a product of these numbers is measured with: the same kernel, so a bias (of zeros) where it has one, and the
    order and the channels of what it writes."""
    if kind == "pooled_correlate":
        return (which_of(b), *more[1:])
    bias = more[0] if more else None
    known = None if bias is None else torch.zeros(len(b), bias.shape[1], dtype=bias.dtype, device=bias.device)
    return (known, True, *more[2:]) if more or kind == "pooled" else ()


def which_of(dy: Tensor) -> Tensor:
    """Some places of maxima, for a measurement: in the order of dy, of which all of 0 to 4 come."""
    return (dy.abs() * 3).clamp(max=4).to(torch.uint8)


def best(times: dict[Cut, float], patches: float, written: float | None = None) -> Choice:
    """The choice that follows from these milliseconds of the cuts, of the patches way, and of `WRITTEN` patches."""
    fastest = min(times.values(), default=math.inf)
    others = {"patches_ms": patches, **({} if written is None else {"written_ms": written})}
    if not fastest < min(others.values()):
        way = "patches" if written is None or patches <= written else WRITTEN
        return {"way": way, **others, **({"ms": fastest} if times else {})}
    cut = next(cut for cut, t in times.items() if t <= NEAR * fastest)
    return {"way": cut.way, "tile": list(cut.tile), "dot": cut.dot, "ms": times[cut], **others}


def _tell(reasons: list[str], some: bool) -> None:
    """Warn once of what went wrong; that a cut wants more memory than a program has is part of the search."""
    reason = next((r for r in reasons if not (some and "out of resource" in r)), None)
    if reason is not None and reason not in _told:
        _told.add(reason)
        log.warning("a kernel for convolutions is left out%s: %s", "" if some else ", and so are all others", reason)
