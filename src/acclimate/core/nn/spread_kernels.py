"""A Triton kernel for the gradient of a convolution's input, whose patches are gathered inside the product.

Rows are input pixels. With a step of s there are s * s kinds of pixels, each of which is reached by taps of its own; a
program has pixels of one kind, and visits those taps alone. As `implicit_kernels` otherwise.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from torch import Tensor

from .caching import paired
from .cutting import Layer, Tile, channels_last, cut
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl


@late
@jit
def _spread(
    dy, w, dx, batch,
    IN: tl.constexpr, H: tl.constexpr, W: tl.constexpr, OUT: tl.constexpr, OH: tl.constexpr, OW: tl.constexpr,
    KH: tl.constexpr, KW: tl.constexpr, STEP: tl.constexpr, PAD_H: tl.constexpr, PAD_W: tl.constexpr,
    CACHED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dx[g, m, n] = sum over taps that reach m, and k, of dy[g, reached, k] * w[g, tap, n, k]. CACHED is
    as in `paired`."""
    across: tl.constexpr = (IN + COLS - 1) // COLS
    tall: tl.constexpr = (H + STEP - 1) // STEP
    wide: tl.constexpr = (W + STEP - 1) // STEP
    blocks: tl.constexpr = (OUT + DEPTH - 1) // DEPTH
    pixels = batch * (tall * wide)
    each = tl.cdiv(pixels, ROWS) * across
    client = (tl.program_id(0) // (each * STEP * STEP)).to(tl.int64)
    kind = (tl.program_id(0) // each) % (STEP * STEP)
    tile = tl.program_id(0) % each
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    image, place = m // (tall * wide), m % (tall * wide)
    row, col = (place // wide) * STEP + kind // STEP, (place % wide) * STEP + kind % STEP
    real = (m < pixels) & (row < H) & (col < W)
    first_y, first_x = (kind // STEP + PAD_H) % STEP, (kind % STEP + PAD_W) % STEP
    down, right = (KH - first_y + STEP - 1) // STEP, (KW - first_x + STEP - 1) // STEP
    bottom, last = (row + PAD_H - first_y) // STEP, (col + PAD_W - first_x) // STEP
    dy += client * batch * (OH * OW * OUT)
    w += client * (KH * KW * IN * OUT)
    column = n < IN
    k = tl.arange(0, DEPTH)
    BITS: tl.constexpr = dy.dtype.element_ty.primitive_bitwidth
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for visit in range(down * right * blocks):
        turn = visit % (down * right) if CACHED else visit // blocks
        back_y, back_x = turn // right, turn % right
        o = (visit // (down * right) if CACHED else visit % blocks) * DEPTH + k
        tap = (first_y + back_y * STEP) * KW + first_x + back_x * STEP
        y, z = bottom - back_y, last - back_x
        inside = (real & (y >= 0) & (y < OH) & (z >= 0) & (z < OW))[:, None]
        known = column[None, :]
        if CACHED:
            inside = inside & paired(k, batch, BITS)[None, :]
        if OUT % DEPTH != 0:
            inside = inside & (o < OUT)[None, :]
            known = known & (o < OUT)[:, None]
        a = tl.load(dy + (((image * OH + y) * OW + z) * OUT)[:, None] + o[None, :], mask=inside, other=0.0)
        b = tl.load(w + ((tap * IN + n) * OUT)[None, :] + o[:, None], mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    to = dx + client * batch * (H * W * IN) + (((image * H + row) * W + col) * IN)[:, None] + n[None, :]
    tl.store(to, total.to(dx.dtype.element_ty), mask=real[:, None] & column[None, :])


def spread(dy: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, cached: bool = False) -> Tensor:
    """dx [G, B, I, h, w] of dy [G, B, O, oh, ow] and w [G, O, I, kh, kw], a pixel's channels side by side."""
    clients, batch = dy.shape[:2]
    taps = w.permute(0, 3, 4, 2, 1).contiguous()
    size = (clients, batch, layer.height, layer.width, layer.inputs)
    dx = blank(*size, dtype=dy.dtype, device=dy.device)
    pixels = batch * cut(layer.height, layer.step) * cut(layer.width, layer.step)
    tiles = cut(pixels, tile.rows) * cut(layer.inputs, tile.columns) * layer.step**2
    _spread[(tiles * clients,)](
        channels_last(dy), taps, dx, batch, *layer, cached, *tile[:3], precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return dx.permute(0, 1, 4, 2, 3)
