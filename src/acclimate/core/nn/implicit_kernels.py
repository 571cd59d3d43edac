"""Triton kernels for convolutions as matrix products whose patches are gathered inside the product.

Clients are part of the grid: one program computes one tile of one client's result. Nothing is written but the result,
and sums have a fixed order, so results repeat to the bit. Images lie with a pixel's channels side by side.

- `convolve`: rows are output pixels, columns output channels, and the sum goes over (row, column, channel) of the
  kernel. Few channels are taken together with their neighbours in the image, so that no product is mostly padding.
- `correlate`: rows are (row, column, channel) of the kernel, columns output channels, and the sum goes over all output
  pixels. It is cut into parts that are added up afterwards, in order.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import halves
from .cutting import Layer as Layer
from .cutting import Tile as Tile
from .cutting import channels_last, cut, in_units
from .ends import activated, addend, end, ends, larger
from .halves import without
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late
from .spread_kernels import spread as spread

if AVAILABLE:
    import triton.language as tl

BLOCK, AHEAD = (16, 32), 8
"""Weights and output channels of which one program adds up parts, and how many parts it asks for at a time."""
FEW = 16
"""Input channels below which a tap alone would not fill a product."""


@late
@jit
def _convolve(
    x, w, y, bias, which, batch,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STEP: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    LENGTH: tl.constexpr, FLAT: tl.constexpr, POOL: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr,
    GROUPS: tl.constexpr, PLANE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """y[g, m, n] = sum over k of x[g, seen by m at k] * w[g, n, k]; w's rows have LENGTH numbers, zeros at the end.

    With POOL the rows of a tile are pixels of 2 x 2 blocks, of which one thread has all four; with GROUPS its columns
    are four groups of output channels, one for each pixel of a block. PLANE is as in `end`."""
    across: tl.constexpr = (OUT + COLS - 1) // COLS
    HA: tl.constexpr = OH // 2
    HB: tl.constexpr = OW // 2
    pixels = batch * (4 * HA * HB if POOL else OH * OW)
    tiles = tl.cdiv(pixels, ROWS) * across
    client = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    first = (tile // across) * ROWS
    r = tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    if POOL:
        square = first // 4 + ((r % (ROWS // 2)) // 16) * 8 + r % 8
        m = 4 * square
        image, place = square // (HA * HB), square % (HA * HB)
        down, right = (place // HB) * 2 + r // (ROWS // 2), (place % HB) * 2 + (r // 8) % 2
    else:
        m = first + r
        image, place = m // (OH * OW), m % (OH * OW)
        down, right = place // OW, place % OW
    top, left = down * STEP - PAD_H, right * STEP - PAD_W
    base = ((image * H + top) * W + left) * IN
    x += client * batch * (H * W * IN)
    w += client * (OUT * LENGTH)
    real = m < pixels
    column = n < OUT
    k = tl.arange(0, DEPTH)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    blocks: tl.constexpr = (LENGTH + DEPTH - 1) // DEPTH if FLAT else (IN + DEPTH - 1) // DEPTH
    if FLAT:
        for block in range(blocks):
            e = block * DEPTH + k
            dy, dx = e // (IN * KW), (e // IN) % KW
            row, col = top[:, None] + dy[None, :], left[:, None] + dx[None, :]
            inside = real[:, None] & (e < KH * KW * IN)[None, :]
            if PAD_H > 0:
                inside = inside & (row >= 0) & (row < H)
            if PAD_W > 0:
                inside = inside & (col >= 0) & (col < W)
            a = tl.load(x + base[:, None] + (dy * (W * IN) + e % (IN * KW))[None, :], mask=inside, other=0.0)
            known = column[None, :] & (e < LENGTH)[:, None]
            b = tl.load(w + n[None, :] * LENGTH + e[:, None], mask=known, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    else:
        for visit in range(KH * KW * blocks):
            tap = visit // blocks
            i = (visit % blocks) * DEPTH + k
            dy, dx = tap // KW, tap % KW
            seen = real
            if PAD_H > 0:
                seen = seen & (top + dy >= 0) & (top + dy < H)
            if PAD_W > 0:
                seen = seen & (left + dx >= 0) & (left + dx < W)
            inside = seen[:, None]
            known = column[None, :]
            if IN % DEPTH != 0:
                inside = inside & (i < IN)[None, :]
                known = known & (i < IN)[:, None]
            a = tl.load(x + (base + (dy * W + dx) * IN)[:, None] + i[None, :], mask=inside, other=0.0)
            b = tl.load(w + n[None, :] * LENGTH + (tap * IN + i)[:, None], mask=known, other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
    if POOL:
        four = total.reshape(2, ROWS // 32, 2, 8, COLS)
        high, low = tl.arange(0, 2)[:, None, None, None, None], tl.arange(0, 2)[None, None, :, None, None]
        best, choice = tl.reduce((four, tl.broadcast_to(2 * high + low, four.shape)), 0, larger)
        best, choice = tl.reduce((best, choice), 1, larger)
        best, choice = best.reshape(ROWS // 4, COLS), choice.reshape(ROWS // 4, COLS)
        at = first // 4 + tl.arange(0, ROWS // 4)
        to = client * (pixels // 4) * OUT + at * OUT
        end(best, choice, bias, y, which, to, client, n, at < pixels // 4, OUT, BIAS, RELU, PLANE)
    elif GROUPS:
        four = total.reshape(ROWS, 4, COLS // 4)
        group = tl.broadcast_to(tl.arange(0, 4)[None, :, None], four.shape)
        best, choice = tl.reduce((four, group), 1, larger)
        n = (tile % across) * (COLS // 4) + tl.arange(0, COLS // 4)
        to = client * pixels * (OUT // 4) + m * (OUT // 4)
        end(best, choice, bias, y, which, to, client, n, real, OUT // 4, BIAS, RELU, PLANE)
    else:
        total = activated(total, bias, client, n, OUT, BIAS, RELU)
        to = y + client * pixels * OUT + m[:, None] * OUT + n[None, :]
        tl.store(to, total.to(y.dtype.element_ty), mask=real[:, None] & column[None, :])


@late
@jit(do_not_specialize=["clients"])
def _correlate(
    x, dy, which, parts, batch, clients, span,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STEP: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    POOL: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """parts[s, g, e, n] = sum over the output pixels m of part s of x[g, seen by m at e] * dy[g, m, n].

    With POOL, dy is that of 2 x 2 maxima, and goes to the pixel of four that `which` names; with GROUPS, to the group
    of output channels."""
    length: tl.constexpr = KH * KW * IN
    across: tl.constexpr = (OUT + COLS - 1) // COLS
    tiles: tl.constexpr = ((length + ROWS - 1) // ROWS) * across
    pixels = batch * (OH * OW)
    tile = tl.program_id(0) % tiles
    client = ((tl.program_id(0) // tiles) % clients).to(tl.int64)
    part = tl.program_id(0) // (tiles * clients)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    first = (tile // across) * ROWS
    e = first + tl.arange(0, ROWS)
    live, column = e < length, n < OUT
    x += client * batch * (H * W * IN)
    HA: tl.constexpr = OH // 2
    HB: tl.constexpr = OW // 2
    dy += client * batch * ((HA * HB if POOL else OH * OW) * (OUT // 4 if GROUPS else OUT))
    which += client * batch * (OH * OW * (OUT // 4) if GROUPS else HA * HB * OUT)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for begin in range(part * span, tl.minimum(part * span + span, pixels), DEPTH):
        m = begin + tl.arange(0, DEPTH)
        real = m < pixels
        place = m % (OH * OW)
        top, left = (place // OW) * STEP - PAD_H, (place % OW) * STEP - PAD_W
        base = (((m // (OH * OW)) * H + top) * W + left) * IN
        if IN % ROWS == 0:  # the rows of a tile are channels of one tap
            down, right = first // (IN * KW), (first // IN) % KW
            seen = real & (top + down >= 0) & (top + down < H) & (left + right >= 0) & (left + right < W)
            inside = seen[None, :]
            channel = tl.multiple_of(first % IN, ROWS)  # else Triton fetches numbers one by one
            within = (down * W + right) * IN + channel + tl.arange(0, ROWS)
        else:
            down, right = e // (IN * KW), (e // IN) % KW
            within = down * (W * IN) + e % (IN * KW)
            inside = live[:, None] & real[None, :]
            if PAD_H > 0:
                row = top[None, :] + down[:, None]
                inside = inside & (row >= 0) & (row < H)
            if PAD_W > 0:
                col = left[None, :] + right[:, None]
                inside = inside & (col >= 0) & (col < W)
        a = tl.load(x + base[None, :] + within[:, None], mask=inside, other=0.0)
        if POOL:
            low, late = place // OW, place % OW
            known = (real & (low < 2 * HA) & (late < 2 * HB))[:, None] & column[None, :]
            from_ = ((((m // (OH * OW)) * HA + low // 2) * HB + late // 2) * OUT)[:, None] + n[None, :]
            chosen = tl.load(which + from_, mask=known, other=4)
            b = tl.load(dy + from_, mask=known, other=0.0)
            b = tl.where(chosen == ((low % 2) * 2 + late % 2)[:, None], b, 0.0)
        elif GROUPS:
            known = real[:, None] & column[None, :]
            from_ = m[:, None] * (OUT // 4) + (n % (OUT // 4))[None, :]
            chosen = tl.load(which + from_, mask=known, other=4)
            b = tl.load(dy + from_, mask=known, other=0.0)
            b = tl.where(chosen == (n // (OUT // 4))[None, :], b, 0.0)
        else:
            b = tl.load(dy + m[:, None] * OUT + n[None, :], mask=real[:, None] & column[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    to = parts + ((part * clients + client) * length + e[:, None]) * OUT + n[None, :]
    tl.store(to, total, mask=live[:, None] & column[None, :])


@late
@jit(do_not_specialize=["clients", "count", "taps", "inner", "have", "outer"])
def _add_up(
    parts, dw, of_x, of_dy, clients, count, taps, inner, have, outer, HALVES: tl.constexpr, INNER_UNIT: tl.constexpr,
    HAVE_UNIT: tl.constexpr, OUTER_UNIT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """dw[g, o, tap, i] = sum over s, in order, of parts[s, g, (tap, i), o], of the first channels i, of which there are
    `have` units. With HALVES it has powers of two in it, those of x and those of dy."""
    ins, first, outs = inner * INNER_UNIT, have * HAVE_UNIT, outer * OUTER_UNIT
    across, down = tl.cdiv(outs, COLS), tl.cdiv(taps * ins, ROWS)
    client = (tl.program_id(0) // (across * down)).to(tl.int64)
    e = ((tl.program_id(0) // across) % down) * ROWS + tl.arange(0, ROWS)
    o = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    tap, i = e // ins, e % ins
    real = ((e < taps * ins) & (i < first))[:, None] & (o < outs)[None, :]
    size = (taps * ins).to(tl.int64) * outs
    from_ = parts + client * size + (e * outs)[:, None] + o[None, :]
    sum = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for part in range(0, count, AHEAD):  # loads of several parts are under way at a time
        for more in tl.static_range(AHEAD):
            sum += tl.load(from_, mask=real & (e * 0 + part + more < count)[:, None], other=0.0)
            from_ += clients * size
    if HALVES:
        sum = without(sum, tl.load(of_x + client), tl.load(of_dy + client))
    to = dw + client * outs * taps * first + (tap * first + i)[:, None] + (o * (taps * first))[None, :]
    tl.store(to, sum.to(dw.dtype.element_ty), mask=real)


def convolve(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """y [G, B, O, oh, ow] of x [G, B, I, h, w] and w [G, O, I, kh, kw], a pixel's channels side by side, with a bias
    [G, O] and ReLU after it."""
    size = (*x.shape[:2], layer.out_height, layer.out_width, layer.outputs)
    y = blank(*size, dtype=x.dtype, device=x.device)
    _launch(x, w, y, layer, tile, precision, (addend(bias, y), y), (False, bias is not None, relu))
    return y.permute(0, 1, 4, 2, 3)


def pooled(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None, relu: bool,
    planar: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """2 x 2 maxima of `convolve`, bias and ReLU after them, and which of four each was (uint8; 4 where ReLU lets
    nothing through). Maxima lie channel by channel where `planar` says so; w may lack the last channels of x."""
    y, which, plane = ends(x, layer, planar)
    more = (addend(bias, y), which)
    _launch(x, w, y, layer, tile, precision, more, (True, bias is not None, relu), plane)
    return y, which


def _launch(
    x: Tensor, w: Tensor, y: Tensor, layer: Layer, tile: Tile, precision: str, more: tuple[Tensor, Tensor],
    flags: tuple[bool, bool, bool], plane: int = 0,
) -> None:  # fmt: skip
    (clients, batch), flat = x.shape[:2], layer.inputs < FEW
    rows = w.permute(0, 1, 3, 4, 2)
    if rows.shape[4] < layer.inputs:
        rows = torch.nn.functional.pad(rows, (0, layer.inputs - rows.shape[4]))
    rows = rows.flatten(2)
    if flat and rows.shape[2] % 4:  # aligned rows load faster
        rows = torch.nn.functional.pad(rows, (0, -rows.shape[2] % 4))
    pixels = y[0].numel() // layer.outputs * (4 if flags[0] else 1)
    tiles = cut(pixels, tile.rows) * cut(layer.outputs, tile.columns)
    _convolve[(tiles * clients,)](
        channels_last(x), rows.contiguous(), y, *more, batch, *layer, rows.shape[2], flat, *flags, False, plane,
        *tile[:3], precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


PROGRAMS, LEAST, SPAN = 512, 256, 128
"""Programs that fill a device, the output pixels that a part of a sum has at least, and what they are a multiple of."""


class PartialSums(NamedTuple):
    """Sums [s, G, (kh, kw, I), O] over parts of the output pixels, which are still to be added up; the powers of two
    [G] of x and of dy that are in them; and whether there are such."""

    sums: Tensor
    of_x: Tensor
    of_dy: Tensor
    halves: bool


def parted(clients: int, pixels: int, layer: Layer) -> tuple[int, int]:
    """How many output pixels a part of a sum has, and how many parts there are. They are the same for every tile, so
    that which one is used does not change what comes out."""
    typical = cut(layer.taps * layer.inputs, 128) * cut(layer.outputs, 64)
    wanted = max(min(cut(PROGRAMS, typical * clients), pixels // LEAST), 1)
    span = cut(cut(pixels, wanted), SPAN) * SPAN
    return span, cut(pixels, span)


def parts_of(
    x: Tensor, dy: Tensor, layer: Layer, tile: Tile, precision: str, which: Tensor | None, groups: bool
) -> PartialSums:
    """The sums over parts of the output pixels."""
    if precision == halves.NAME:
        (a, of_x), (b, of_dy) = (halves.halved(channels_last(t)) for t in (x, dy))
        a, b = (t.permute(0, 1, 4, 2, 3) for t in (a, b))
        return PartialSums(parts_of(a, b, layer, tile, "tf32", which, groups).sums, of_x, of_dy, True)
    clients, batch = x.shape[:2]
    length, pixels = layer.taps * layer.inputs, batch * layer.out_height * layer.out_width
    tiles = cut(length, tile.rows) * cut(layer.outputs, tile.columns)
    span, count = parted(clients, pixels, layer)
    parts = blank(count, clients, length, layer.outputs, dtype=torch.float32, device=x.device)
    _correlate[(tiles * clients * count,)](
        channels_last(x), channels_last(dy), parts if which is None else channels_last(which), parts, batch, clients,
        span, *layer, which is not None and not groups, groups, *tile[:3], precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return PartialSums(parts, parts, parts, False)


def correlate(
    x: Tensor, dy: Tensor, layer: Layer, tile: Tile, precision: str, which: Tensor | None = None,
    channels: int | None = None,
) -> Tensor:  # fmt: skip
    """dw [G, O, I, kh, kw] of x [G, B, I, h, w] and dy [G, B, O, oh, ow], a tap's channels side by side.

    With `which`, dy [G, B, O, oh / 2, ow / 2] is that of `pooled`; with `channels`, dw is of so many of the first."""
    return added_up(parts_of(x, dy, layer, tile, precision, which, False), x, layer, channels)


def added_up(parts: PartialSums, x: Tensor, layer: Layer, channels: int | None = None) -> Tensor:
    """dw [G, O, I, kh, kw] of its sums over parts."""
    dw, programs = room(x, layer, channels), cut(layer.taps * layer.inputs, BLOCK[0]) * cut(layer.outputs, BLOCK[1])
    sizes, units = in_units(layer.inputs, dw.shape[4], layer.outputs)
    _add_up[(len(x) * programs,)](
        parts.sums, dw, parts.of_x, parts.of_dy, len(x), len(parts.sums), layer.taps, *sizes, parts.halves, *units,
        *BLOCK, AHEAD,
    )  # fmt: skip
    return dw.permute(0, 1, 4, 2, 3)


def room(x: Tensor, layer: Layer, channels: int | None) -> Tensor:
    """Memory [G, O, kh, kw, I] for the gradient of weights that have so many input channels, or those of the layer."""
    size = (len(x), layer.outputs, layer.kernel_height, layer.kernel_width, channels or layer.inputs)
    return blank(*size, dtype=x.dtype, device=x.device)


pooled_correlate = correlate
