"""Which way a convolution of many clients goes: patches gathered inside the product, or written out before it.

Of every shape the ways are measured once, on numbers made for that: a few cuts of the kernel (`implicit_kernels`), and
the patches way. The fastest whose result agrees is remembered, and used from then on. Ways round differently, so a run
that is to repeat to the bit elsewhere takes its choices along: `choices()` are plain JSON, and `use_choices` puts them
back. What has been chosen, measured or given, is not measured again.

A kernel that does not compile or does not agree is left out; where none is left, patches are written out, with a
warning. Triton's interpreter (TRITON_INTERPRET=1) runs the first cut of all, on a CPU.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from . import box_kernels, folded_kernels, implicit_kernels, kernels, pixels, switches
from .implicit_kernels import FEW, Layer, Tile

log = logging.getLogger("acclimate")

Kind: TypeAlias = Literal["convolve", "spread", "correlate", "pooled", "pooled_correlate"]
Choice: TypeAlias = dict[str, Any]
"""`{"way": "implicit", "tile": [...], "dot": ...}`, the same with "boxes", or `{"way": "patches"}`, and the
milliseconds that were measured. `dot` is how Triton multiplies; without it, as `_dot` says."""


class Cut(NamedTuple):
    """A kernel for a product: of which kind, how it is cut, and how it multiplies."""

    way: str
    tile: Tile
    dot: str


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

FP32 = "tf32x3"
"""How a product in float32 is computed where TF32 is forbidden: as three of TF32, which is as near to the true one as
float32 is. `ieee` does without tensor cores, and takes several times as long."""
DOTS = (FP32, "tf32", "bf16x3", "bf16x6", "ieee")
"""How Triton may multiply. Sums over pixels read numbers across the order that the hardware wants for those of 32 bits;
three products of halves (`bf16x3`) are nearer to the true one than one of TF32 and need no such order, and six
(`bf16x6`) are as near as float32 is."""
WAYS: dict[str, Any] = {"implicit": implicit_kernels, "boxes": box_kernels, "folded": folded_kernels}
APART = {"fp32": 1e-5, "tf32": 5e-3, "bfloat16": 3e-2, "float16": 5e-3}
"""How far a result may be from that of the patches way, relative to its norm; else something is wrong."""
NEAR = 1.03
"""Of cuts that are nearly as fast as the fastest the first is taken, so that noise seldom decides."""
REPEATS, PASSES, SLEEP, CLOCK = 8, 3, 4_000_000, 2e9
"""Runs of a measurement, measurements, the device's clocks while which the host at least puts runs into its queue, and
about how many there are in a second."""
SUMS = ("correlate", "pooled_correlate")
"""Products that are sums over pixels."""
FEW_IMAGES = 64
"""Images of one set of weights up to which a library's convolution leaves most of a device idle."""
LEAST = 2**26
"""Multiplications from which on a convolution is worth measuring."""
MOST = 2**28
"""Numbers in the patches that are measured with: clients are left out beyond that."""

_chosen: dict[str, Choice] = {}
_known: dict[Any, Cut | None] = {}
_told: set[str] = set()
_resting: list[None] = []


def choices() -> dict[str, Choice]:
    """What has been chosen, by shape, precision and device."""
    return {key: dict(choice) for key, choice in _chosen.items()}


def use_choices(given: dict[str, Choice]) -> None:
    """Use these choices instead of measuring; those that were made already for the same shapes are forgotten."""
    for key, choice in given.items():
        way, tile = (choice.get("way"), choice.get("tile")) if isinstance(choice, dict) else (None, None)
        fits = isinstance(tile, list | tuple) and len(tile) == 5 and all(isinstance(n, int) for n in tile)
        if way != "patches" and not (way in WAYS and fits and choice.get("dot", FP32) in DOTS):
            told = f"'way' must be 'patches', or one of {tuple(WAYS)} with a 'tile' of five whole numbers"
            raise ValueError(f"choice of '{key}': {choice!r} is none: {told}, and 'dot' one of {DOTS}")
    _chosen.update({key: dict(choice) for key, choice in given.items()})
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
    if len(a) < 2 and a.shape[1] > FEW_IMAGES and kind not in SUMS:
        return None
    precision = _precision(a)
    key = (kind, a.shape, b.shape, g, a.dtype, precision, a.device)
    if key not in _known:
        _known[key] = _choice(kind, other, a, b, g, precision)
    cut = _known[key]
    return None if cut is None else _run(kind, a, b, layer_of(kind, a, b, g), cut, *more)


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


def _dot(precision: str) -> str:
    return FP32 if precision == "fp32" else "tf32"


def _run(kind: Kind, a: Tensor, b: Tensor, layer: Layer, cut: Cut, *more: Any) -> Any:
    return getattr(WAYS[cut.way], kind)(a, b, layer, cut.tile, cut.dot, *more)


def _choice(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, precision: str) -> Cut | None:
    """The chosen cut, or None for the patches way; measured where nobody has chosen yet."""
    layer, batch = layer_of(kind, a, b, g), a.shape[1]
    if batch * max(math.prod(layer[:3]), math.prod(layer[3:6])) >= 2**31 or not a.numel() or not b.numel():
        return None
    if len(a) * batch * math.prod(layer[4:8]) * layer.inputs * layer.outputs < LEAST:
        return None
    if not a.is_cuda:
        return cuts(kind, layer, a, precision)[0]
    key = name(kind, layer, len(a), batch, precision, torch.cuda.get_device_name(a.device))
    if key not in _chosen:
        _chosen[key] = _measured(kind, other, a, b, g, precision)
    chosen = _chosen[key]
    if chosen["way"] == "patches":
        return None
    return Cut(chosen["way"], Tile(*chosen["tile"]), chosen.get("dot", _dot(precision)))


def name(kind: Kind, layer: Layer, clients: int, batch: int, precision: str, device: str) -> str:
    """What a choice is kept under. Clients and batches of similar number share one."""
    i, h, w, o, _, _, kh, kw, step, ph, pw = layer
    about = f"{_power(clients)} x {_power(batch)} of {i}x{h}x{w} to {o}, kernel {kh}x{kw}, step {step}, pad {ph}x{pw}"
    return f"{kind} {about}, {precision}, {device}"


def _power(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()


def cuts(kind: Kind, layer: Layer, x: Tensor, precision: str) -> list[Cut]:
    """The kernels that are worth a try for a product of x, and another tensor of its type."""
    dot, sums = _dot(precision), kind in SUMS
    if sums and x.dtype == torch.float32 and x.is_cuda:
        dot = "bf16x3" if precision == "tf32" else "bf16x6"
    found = [Cut("implicit", tile, dot) for tile in candidates(kind, layer, x.dtype)]
    if folded_kernels.fits(kind, layer):
        found += [Cut("folded", tile, dot) for tile in folds(kind, layer, x.dtype)]
    if sums or not box_kernels.fits(kind, layer, x):
        return found
    return [*(Cut("boxes", tile, dot) for tile in boxed(kind, layer, x.dtype)), *found]


def boxed(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of boxes."""
    width, inner = (layer.inputs, layer.outputs) if kind == "spread" else (layer.outputs, layer.inputs)
    columns, depth = min(max(_power(width), 16), 64), _depth(inner, dtype != torch.float32)
    return [Tile(rows, columns, depth, 4, 4) for rows in ((128, 64) if kind == "spread" else (128,))]


def folds(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of a convolution that is folded with the pooling after it."""
    columns = 4 * min(layer.outputs, folded_kernels.WIDE)
    if kind == "pooled":
        return [Tile(64, columns, 32, 4, 1) if dtype == torch.float32 else Tile(128, columns, 32, 8, 3)]
    return [Tile(64, min(columns, 64), 64 if dtype != torch.float32 else 32, 4, 3)]


def candidates(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of the kernels in which threads gather patches. Those of one product have one depth: where numbers are
    taken apart, the order of sums depends on it."""
    small = dtype != torch.float32
    width = layer.inputs if kind == "spread" else layer.outputs
    columns = min(max(_power(width), 16), 64)
    flat = layer.inputs < FEW
    if kind in SUMS:
        depth = 64 if small else 32
        tiles = [Tile(128, columns, depth, 4, 3)] if flat else [Tile(64, columns, depth, 4, 4)]
        return tiles if width <= 64 else [Tile(128, 128, depth, 8, 3), *tiles]
    depth = _depth(layer.outputs if kind == "spread" else layer.inputs, small)
    if kind != "spread" and flat:
        depth = 16 if layer.taps * layer.inputs <= 16 else 32
        return [Tile(128, columns, depth, 4, 1)]
    tiles = [Tile(128, columns, depth, 4, 3), *([] if kind == "spread" else [Tile(256, columns, depth, 8, 3)])]
    return tiles if width <= 64 else [Tile(128, 128, depth, 8, 3), *tiles]


def _depth(channels: int, small: bool) -> int:
    """Summands of one step: as many as divide the channels, where some do."""
    sizes = (64, 32, 16) if small else (32, 16)
    return next((d for d in sizes if channels % d == 0), 32 if channels > 16 else 16)


@contextmanager
def resting() -> Iterator[None]:
    """While this lasts convolutions go the other way."""
    _resting.append(None)
    try:
        yield
    finally:
        _resting.pop()


def _measured(kind: Kind, other: Other, a: Tensor, b: Tensor, g: Sizes, precision: str) -> Choice:
    """Time the ways, on a stream of their own: a recording may be under way, and is not to contain them."""
    recording, layer = torch.cuda.is_current_stream_capturing(), layer_of(kind, a, b, g)
    if not recording:
        torch.cuda.synchronize(a.device)
    with torch.cuda.device(a.device), torch.cuda.stream(torch.cuda.Stream(a.device)), torch.no_grad(), resting():
        patches = a.shape[1] * math.prod(g.out) * layer.taps * layer.inputs
        p, q = (_made(t, min(len(a), max(MOST // patches, 2)), seed) for seed, t in enumerate((a, b)))
        want = other(p, q, g)
        times, reasons = {}, []
        for cut in cuts(kind, layer, a, precision):
            run = functools.partial(_run, kind, p, q, layer, cut, *_more(kind, q))
            try:
                got = run()[0] if kind == "pooled" else run()
                apart = float((got - want).float().norm() / want.float().norm())
                if not apart <= APART[precision]:
                    raise ArithmeticError(f"a result is {apart:.1e} from that of written patches")
                times[cut] = _milliseconds(run)
            except Exception as reason:
                reasons.append(str(reason).strip().splitlines()[0] if str(reason).strip() else type(reason).__name__)
        if recording and not times:
            raise RuntimeError(f"convolutions cannot be measured while recording: {reasons[0]}")
        _tell(reasons, bool(times))
        return best(times, _milliseconds(lambda: other(p, q, g)))


def _more(kind: Kind, b: Tensor) -> tuple[Any, ...]:
    """What a product of these numbers is measured with besides."""
    return (None, True) if kind == "pooled" else (which_of(b),) if kind == "pooled_correlate" else ()


def which_of(dy: Tensor) -> Tensor:
    """Some places of maxima, for a measurement: in the order of dy, of which all of 0 to 4 come."""
    return (dy.abs() * 3).clamp(max=4).to(torch.uint8)


def best(times: dict[Cut, float], patches: float) -> Choice:
    """The choice that follows from these milliseconds of the cuts, and of the patches way."""
    fastest = min(times.values(), default=math.inf)
    if not fastest < patches:
        return {"way": "patches", "patches_ms": patches, **({"ms": fastest} if times else {})}
    cut = next(cut for cut, t in times.items() if t <= NEAR * fastest)
    return {"way": cut.way, "tile": list(cut.tile), "dot": cut.dot, "ms": times[cut], "patches_ms": patches}


def _tell(reasons: list[str], some: bool) -> None:
    """Warn once of what went wrong; that a cut wants more memory than a program has is part of the search."""
    reason = next((r for r in reasons if not (some and "out of resource" in r)), None)
    if reason is not None and reason not in _told:
        _told.add(reason)
        log.warning("a kernel for convolutions is left out%s: %s", "" if some else ", and so are all others", reason)


def _made(like: Tensor, clients: int, seed: int) -> Tensor:
    """Random numbers in the shape of this tensor, with fewer clients; a pixel's channels lie side by side."""
    g = torch.Generator(like.device).manual_seed(seed)
    rows, channels, height, width = like.shape[1:]
    made = torch.randn(clients, rows, height, width, channels, generator=g, device=like.device)
    return made.to(like.dtype).permute(0, 1, 4, 2, 3)


def _milliseconds(f: Callable[[], Any]) -> float:
    """The device's time for one run: it sleeps until all of them are in its queue, however busy the host is."""
    f()
    began = time.perf_counter()
    for _ in range(REPEATS):
        f()
    asleep = max(SLEEP, int(2 * CLOCK * (time.perf_counter() - began)))
    took = []
    for _ in range(PASSES):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(asleep)
        begin.record()
        for _ in range(REPEATS):
            f()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) / REPEATS)
    return min(took)
