"""A Triton kernel for convolutions with steps of one, whose patches the copy engine of newer GPUs fetches.

One program computes a box of one client's result: some images, rows and columns, so that what it reads for one tap of
the kernel is a box of the input, too, and one instruction brings it. No thread computes addresses, and what lies
outside of the image is zero by itself; taps that see nothing else are left out. The gradient of the input is a
convolution as well, with taps from the last to the first.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import functools
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .cutting import Layer, Tile, channels_last, cut
from .ends import activated, addend, end, ends, larger
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

NEWER = (9, 0)
"""The first GPUs that have such an engine."""


@late
@jit
def _boxes(
    x, w, y, bias, which, batch,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr, BACK: tl.constexpr,
    POOL: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, PLANE: tl.constexpr,
    IMAGES: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """y[g, b, r, s, n] = sum over taps and channels of x[g, b, seen from r, s] * w[g, n, tap, channel]; with BACK, the
    taps of w are in reverse order. With POOL, the maxima of its 2 x 2 blocks; PLANE is as in `end`."""
    across: tl.constexpr = (OUT + COLS - 1) // COLS
    down: tl.constexpr = (OH + TALL - 1) // TALL
    right: tl.constexpr = (OW + WIDE - 1) // WIDE
    blocks: tl.constexpr = (IN + DEPTH - 1) // DEPTH
    rows: tl.constexpr = IMAGES * TALL * WIDE
    sheets = tl.cdiv(batch, IMAGES)
    place = tl.program_id(0) // across
    first = (tl.program_id(0) % across) * COLS
    left = (place % right) * WIDE
    top = ((place // right) % down) * TALL
    image = ((place // (right * down)) % sheets) * IMAGES
    client = place // (right * down * sheets)
    up, under = tl.maximum(PAD_H - (top + TALL - 1), 0), tl.minimum(H + PAD_H - top, KH)
    near, far = tl.maximum(PAD_W - (left + WIDE - 1), 0), tl.minimum(W + PAD_W - left, KW)
    long = far - near
    total = tl.zeros((rows, COLS), dtype=tl.float32)
    for visit in range((under - up) * long * blocks):
        dy, dx = up + (visit // blocks) // long, near + (visit // blocks) % long
        channel = (visit % blocks) * DEPTH
        tap = KH * KW - 1 - dy * KW - dx if BACK else dy * KW + dx
        a = x.load([client * batch + image, top + dy - PAD_H, left + dx - PAD_W, channel]).reshape(rows, DEPTH)
        b = w.load([client * OUT + first, tap * IN + channel])
        total = tl.dot(a, b.T, total, input_precision=PRECISION)
    n = first + tl.arange(0, COLS)
    client = client.to(tl.int64)
    if POOL:
        four = total.reshape(IMAGES * TALL // 2, 2, WIDE // 2, 2, COLS)
        down_, right_ = tl.arange(0, 2)[None, :, None, None, None], tl.arange(0, 2)[None, None, None, :, None]
        best, choice = tl.reduce((four, tl.broadcast_to(2 * down_ + right_, four.shape)), 3, larger)
        best, choice = tl.reduce((best, choice), 1, larger)
        best, choice = best.reshape(rows // 4, COLS), choice.reshape(rows // 4, COLS)
        m = tl.arange(0, rows // 4)
        i = image + m // (TALL * WIDE // 4)
        r, s = top // 2 + (m // (WIDE // 2)) % (TALL // 2), left // 2 + m % (WIDE // 2)
        real = (i < batch) & (r < OH // 2) & (s < OW // 2)
        to = client * batch * ((OH // 2) * (OW // 2) * OUT) + ((i * (OH // 2) + r) * (OW // 2) + s) * OUT
        end(best, choice, bias, y, which, to, client, n, real, OUT, BIAS, RELU, PLANE)
    else:
        m = tl.arange(0, rows)
        i, r, s = image + m // (TALL * WIDE), top + (m // WIDE) % TALL, left + m % WIDE
        real = (i < batch) & (r < OH) & (s < OW)
        total = activated(total, bias, client, n, OUT, BIAS, RELU)
        to = y + client * batch * (OH * OW * OUT) + (((i * OH + r) * OW + s) * OUT)[:, None] + n[None, :]
        tl.store(to, total.to(y.dtype.element_ty), mask=real[:, None] & (n < OUT)[None, :])


def fits(kind: str, layer: Layer, x: Tensor) -> bool:
    """Whether such a kernel computes this product of x and another tensor."""
    inner = layer.outputs if kind == "spread" else layer.inputs
    small = layer.pad_height < layer.kernel_height and layer.pad_width < layer.kernel_width
    device = not x.is_cuda or torch.cuda.get_device_capability(x.device) >= NEWER
    return AVAILABLE and device and layer.step == 1 and small and inner % 16 == 0


def _visits(side: int, size: int, seen: int, kernel: int, pad: int) -> int:
    """Taps of one axis that boxes of this side visit, in sum, where something lies inside of the image."""
    return sum(
        min(seen + pad - at, kernel) - max(pad - (at + side - 1), 0) for at in range(0, size, side)
    )  # fmt: skip


@functools.lru_cache(maxsize=1024)
def box(rows: int, batch: int, layer: Layer, least: int = 1) -> tuple[int, int, int]:
    """Images, rows and columns of the boxes that cost least, of those that a tile has so many rows for; the sides are
    no shorter than `least`."""
    powers = [1 << p for p in range(rows.bit_length()) if 1 << p >= least]

    def cost(images: int, tall: int, wide: int) -> tuple[int, int]:
        down = _visits(tall, layer.out_height, layer.height, layer.kernel_height, layer.pad_height)
        right = _visits(wide, layer.out_width, layer.width, layer.kernel_width, layer.pad_width)
        return cut(batch, images) * down * right, images

    ways = [(rows // (t * w), t, w) for t, w in product(powers, powers) if t * w <= rows and t <= 32 and w <= 32]
    return min(ways, key=lambda way: cost(*way))


def convolve(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """As `implicit_kernels.convolve`."""
    return _plain(x, w.permute(0, 1, 3, 4, 2).flatten(2), layer, tile, precision, False, bias, relu)


def spread(dy: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str) -> Tensor:
    """As `implicit_kernels.spread`."""
    i, h, wide, o, oh, ow, kh, kw, step, ph, pw = layer
    turned = Layer(o, oh, ow, i, h, wide, kh, kw, step, kh - 1 - ph, kw - 1 - pw)
    return _plain(dy, w.permute(0, 2, 3, 4, 1).flatten(2), turned, tile, precision, True)


def pooled(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None, relu: bool,
    planar: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `implicit_kernels.pooled`."""
    y, which, plane = ends(x, layer, planar)
    flags = (False, True, bias is not None, relu)
    rows = w.permute(0, 1, 3, 4, 2).flatten(2)
    _launch(x, rows, y, layer, tile, precision, (addend(bias, y), which), flags, plane)
    return y, which


def _plain(
    x: Tensor, rows: Tensor, layer: Layer, tile: Tile, precision: str, back: bool, bias: Tensor | None = None,
    relu: bool = False,
) -> Tensor:  # fmt: skip
    size = (*x.shape[:2], layer.out_height, layer.out_width, layer.outputs)
    y = blank(*size, dtype=x.dtype, device=x.device)
    more = (addend(bias, y), y)
    _launch(x, rows, y, layer, tile, precision, more, (back, False, bias is not None, relu))
    return y.permute(0, 1, 4, 2, 3)


def _launch(
    x: Tensor, rows: Tensor, y: Tensor, layer: Layer, tile: Tile, precision: str, more: tuple[Tensor, Tensor],
    flags: tuple[bool, ...], plane: int = 0,
) -> None:  # fmt: skip
    clients, batch = x.shape[:2]
    images, tall, wide = box(tile.rows, batch, layer, 2 if flags[1] else 1)
    seen = _described(channels_last(x).flatten(0, 1), [images, tall, wide, tile.depth])
    weights = _described(rows.contiguous().flatten(0, 1), [tile.columns, tile.depth])
    boxes = cut(batch, images) * cut(layer.out_height, tall) * cut(layer.out_width, wide)
    numbers = (*layer[:8], *layer[9:])
    _boxes[(clients * boxes * cut(layer.outputs, tile.columns),)](
        seen, weights, y, *more, batch, *numbers, *flags, plane, images, tall, wide, tile.columns, tile.depth,
        precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def _described(x: Tensor, block: list[int]) -> Any:
    """A tensor as the copy engine wants it: where it lies, how large it is, and what one instruction brings."""
    x = x if x.data_ptr() % 16 == 0 else x.clone()
    return TensorDescriptor(x, list(x.shape), list(x.stride()), block)
