"""A convolution of few channels and 2 x 2 maximum pooling after it, as a convolution whose step is two.

The four pixels of a block see nearly the same patch. So a kernel that is one row and one column larger, with four
groups of output channels, computes all four of them from one patch: fewer numbers are fetched, and products are wider.
What was a maximum of four pixels is a maximum of four groups. Weights of a group are those of the layer, shifted by the
pixel's place, and zeros around them; the gradient of a weight is the sum over its four places.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from torch import Tensor

from .cutting import Layer, Tile, channels_last, cut
from .ends import addend, ends
from .implicit_kernels import FEW, _convolve, parts_of, room
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

BLOCK = 512
"""Numbers that one program writes."""
WIDE = 32
"""Output channels of a group in one tile."""


@late
@jit
def _shifted(
    w, rows, total, of_client, of_out, of_in, of_row, of_col,
    IN: tl.constexpr, HAVE: tl.constexpr, OUT: tl.constexpr, EACH: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """rows[g, tile, group, o, r, s, i] = w[g, tile * EACH + o, i, r - down, s - right], or 0 outside of the kernel
    and from the channel HAVE on."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i, s, r = at % IN, (at // IN) % (KW + 1), (at // (IN * (KW + 1))) % (KH + 1)
    line = at // (IN * (KW + 1) * (KH + 1))
    o, group = (line // (4 * EACH)) % (OUT // EACH) * EACH + line % EACH, (line // EACH) % 4
    r, s = r - group // 2, s - group % 2
    inside = (at < total) & (i < HAVE) & (r >= 0) & (r < KH) & (s >= 0) & (s < KW)
    from_ = w + (line // (4 * OUT)).to(tl.int64) * of_client + o * of_out + i * of_in + r * of_row + s * of_col
    tl.store(rows + at, tl.load(from_, mask=inside, other=0.0), mask=at < total)


@late
@jit
def _gathered(
    parts, dw, total, count,
    IN: tl.constexpr, HAVE: tl.constexpr, OUT: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dw[g, o, r, s, i] = sum over parts and groups, in order, of what was found for the weight's four places."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    o, i = at % OUT, (at // OUT) % HAVE
    s, r = (at // (OUT * HAVE)) % KW, (at // (OUT * HAVE * KW)) % KH
    client = at // (OUT * HAVE * KW * KH)
    each: tl.constexpr = (KH + 1) * (KW + 1) * IN * 4 * OUT
    clients = total // (OUT * HAVE * KW * KH)
    sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in range(count):
        base = parts + (part * clients + client).to(tl.int64) * each
        for group in tl.static_range(4):
            tap = (r + group // 2) * (KW + 1) + s + group % 2
            sum += tl.load(base + (tap * IN + i) * (4 * OUT) + group * OUT + o, mask=real, other=0.0)
    to = ((client * OUT + o) * (KH * KW) + r * KW + s) * HAVE + i
    tl.store(dw + to, sum.to(dw.dtype.element_ty), mask=real)


def fits(kind: str, layer: Layer) -> bool:
    """Whether this product can be computed so: few inputs, steps of one, and channels in whole tiles."""
    whole = layer.outputs % WIDE == 0 or layer.outputs in (8, 16)
    pooled = kind in ("pooled", "pooled_correlate")
    return pooled and layer.inputs < FEW and layer.step == 1 and whole and min(layer.out_height, layer.out_width) >= 2


def folded(layer: Layer) -> Layer:
    """The larger convolution."""
    i, h, w, o, oh, ow, kh, kw, _, ph, pw = layer
    return Layer(i, h, w, 4 * o, oh // 2, ow // 2, kh + 1, kw + 1, 2, ph, pw)


def pooled(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None, relu: bool,
    planar: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `implicit_kernels.pooled`."""
    (clients, batch), large = x.shape[:2], folded(layer)
    y, which, plane = ends(x, layer, planar)
    length = large.taps * layer.inputs
    rows = blank(clients, large.outputs, length, dtype=w.dtype, device=w.device)
    _shifted[(cut(rows.numel(), BLOCK),)](
        w, rows, rows.numel(), *w.stride(), layer.inputs, w.shape[2], layer.outputs, tile.columns // 4,
        layer.kernel_height, layer.kernel_width, BLOCK,
    )  # fmt: skip
    tiles = cut(y[0].numel() // layer.outputs, tile.rows) * cut(large.outputs, tile.columns)
    _convolve[(tiles * clients,)](
        channels_last(x), rows, y, addend(bias, y), which, batch, *large, length, True,
        False, bias is not None, relu, True, plane, *tile[:3], precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y, which


def pooled_correlate(
    x: Tensor, dy: Tensor, layer: Layer, tile: Tile, precision: str, which: Tensor, channels: int | None = None
) -> Tensor:
    """As `implicit_kernels.correlate`, with `which`."""
    parts = parts_of(x, dy, folded(layer), tile, precision, which, True).sums
    dw = room(x, layer, channels)
    numbers = (layer.inputs, dw.shape[4], layer.outputs, layer.kernel_height, layer.kernel_width)
    _gathered[(cut(dw.numel(), BLOCK),)](parts, dw, dw.numel(), len(parts), *numbers, BLOCK)
    return dw.permute(0, 1, 4, 2, 3)
