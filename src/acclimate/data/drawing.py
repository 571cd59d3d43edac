"""Drawing for the embedded world: real 8x8 digits, a stroke font, and the styles that turn glyphs into domains.

A glyph is a float image in 0..1 where 1 is ink; a style paints glyphs as uint8 RGB. Each image has a key of its own,
so it is the same image whether it is drawn alone or in a batch. To keep that exact the code uses only + - * / floor,
sqrt and comparisons: these round alike in vectorised loops and in their scalar tails, while sin, exp and matrix
products do not.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from acclimate.core import rng

Style: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Paints glyphs [N, side, side] with one key each [N] as uint8 [N, 3, side, side]."""

_Line: TypeAlias = list[tuple[float, float]]


def digits8() -> tuple[Tensor, Tensor]:
    """The 1,797 handwritten 8x8 digits that ship with scikit-learn: glyphs [N, 8, 8] in 0..1 and int64 labels.

    The file is read directly, because importing scikit-learn takes longer than everything else here.
    """
    spec = find_spec("sklearn")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("The digits are part of scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as file:
        table = torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.float32))
    return table[:, :-1].reshape(-1, 8, 8) / 16.0, table[:, -1].to(torch.int64)


def enlarge(images: Tensor, side: int) -> Tensor:
    """Scale glyphs [N, h, w] in 0..1 smoothly (bicubic, clamped) to [N, side, side]."""
    return _resample(_resample(images, side).mT, side).mT.clamp(0.0, 1.0).contiguous()


def _resample(images: Tensor, side: int) -> Tensor:
    weights = _cubic_weights(images.shape[1], side).to(images)
    out = images.new_zeros(len(images), side, images.shape[2])
    for j in range(images.shape[1]):
        out = out + weights[:, j, None] * images[:, j, None, :]
    return out


def _cubic_weights(size: int, side: int) -> Tensor:
    """[side, size]: how much each source pixel adds to each target pixel (Keys' kernel, a = -0.5)."""
    centre = (torch.arange(side, dtype=torch.float64) + 0.5) * size / side - 0.5
    d = (centre[:, None] - torch.arange(size)).abs()
    near, far = (1.5 * d - 2.5) * d * d + 1.0, ((-0.5 * d + 2.5) * d - 4.0) * d + 2.0
    weights = torch.where(d < 1.0, near, torch.where(d < 2.0, far, 0.0))
    # Taps beyond the border are missing; dividing by the rest keeps flat areas flat.
    return weights / weights.sum(1, keepdim=True)


def _arc(cx: float, cy: float, rx: float, ry: float, start: float, stop: float, pieces: int = 8) -> _Line:
    """Points along an ellipse; degrees run clockwise on the screen from three o'clock."""
    angles = [math.radians(start + (stop - start) * i / pieces) for i in range(pieces + 1)]
    return [(cx + rx * math.cos(a), cy + ry * math.sin(a)) for a in angles]


_SIX: list[_Line] = [_arc(0.50, 0.66, 0.24, 0.24, 180, 540, 12), _arc(0.70, 0.60, 0.44, 0.50, 183, 265, 5)]
_NINE: list[_Line] = [[(1.0 - x, 1.0 - y) for x, y in line] for line in _SIX]

# Every digit's variants: polylines in the unit square, x to the right and y down.
_FONT: list[list[list[_Line]]] = [
    [[_arc(0.5, 0.5, 0.25, 0.40, 0, 360, 14)], [_arc(0.5, 0.5, 0.32, 0.38, 0, 360, 14)]],
    [
        [[(0.5, 0.1), (0.5, 0.9)]],
        [[(0.32, 0.28), (0.54, 0.1), (0.54, 0.9)]],
        [[(0.32, 0.26), (0.52, 0.1), (0.52, 0.9)], [(0.3, 0.9), (0.74, 0.9)]],
    ],
    [
        [_arc(0.5, 0.34, 0.25, 0.24, 190, 385, 8) + [(0.24, 0.9), (0.78, 0.9)]],
        [_arc(0.48, 0.32, 0.26, 0.22, 200, 400, 8) + [(0.22, 0.86), (0.36, 0.8), (0.58, 0.9), (0.8, 0.84)]],
    ],
    [
        [_arc(0.46, 0.29, 0.24, 0.19, 205, 450, 8) + _arc(0.46, 0.69, 0.28, 0.21, -90, 155, 8)],
        [[(0.24, 0.1), (0.74, 0.1), (0.46, 0.42)] + _arc(0.46, 0.66, 0.28, 0.24, -90, 150, 8)],
    ],
    [
        [[(0.68, 0.9), (0.68, 0.08), (0.14, 0.66), (0.88, 0.66)]],
        [[(0.32, 0.1), (0.22, 0.54), (0.8, 0.54)], [(0.68, 0.28), (0.62, 0.9)]],
    ],
    [
        [[(0.74, 0.1), (0.32, 0.1), (0.28, 0.46)] + _arc(0.47, 0.64, 0.28, 0.26, 230, 510, 10)],
        [[(0.76, 0.1), (0.28, 0.1), (0.28, 0.44), (0.46, 0.44)] + _arc(0.46, 0.67, 0.28, 0.23, -90, 150, 8)],
    ],
    [_SIX, [_arc(0.50, 0.67, 0.23, 0.23, 200, 560, 12), [(0.28, 0.60), (0.60, 0.10)]]],
    [
        [[(0.22, 0.1), (0.78, 0.1), (0.42, 0.9)]],
        [[(0.22, 0.12), (0.78, 0.12), (0.44, 0.9)], [(0.36, 0.5), (0.74, 0.5)]],
        [[(0.22, 0.26), (0.22, 0.1), (0.78, 0.1)], _arc(0.92, 0.92, 0.45, 0.84, 253, 182, 5)],
    ],
    [
        [_arc(0.5, 0.29, 0.20, 0.19, 90, 450, 10), _arc(0.5, 0.69, 0.26, 0.21, -90, 270, 12)],
        [_arc(0.5, 0.30, 0.23, 0.20, 90, 450, 10), _arc(0.5, 0.70, 0.23, 0.20, -90, 270, 12)],
    ],
    [_NINE, [_arc(0.48, 0.33, 0.24, 0.23, 0, 360, 12), [(0.72, 0.30), (0.66, 0.9)]]],
]


def _font_table() -> tuple[Tensor, Tensor]:
    """Segments (ax, ay, bx, by) as [10, variants, segments, 4] and the number of variants of each digit [10].

    Short digits repeat their last segment, which leaves the distance to the nearest one unchanged.
    """
    cut = [[[a + b for line in glyph for a, b in zip(line, line[1:], strict=False)] for glyph in d] for d in _FONT]
    longest, most = max(len(g) for d in cut for g in d), max(len(d) for d in cut)
    padded = [[g + g[-1:] * (longest - len(g)) for g in d + d[-1:] * (most - len(d))] for d in cut]
    return torch.tensor(padded, dtype=torch.float32), torch.tensor([len(d) for d in cut])


_SEGMENTS, _VARIANTS = _font_table()


def font(labels: Tensor, keys: Tensor, side: int = 16) -> Tensor:
    """Draw the digits `labels` [N] with a stroke font as glyphs [N, side, side].

    The key picks the digit's variant, bend, slant, rotation (within 12 degrees), scale, shift and stroke width.
    """
    u = _draw(keys, "font", 10)
    segments, variants = _SEGMENTS.to(keys.device), _VARIANTS.to(keys.device)
    lines = segments[labels, (u[:, 0] * variants[labels]).to(torch.int64)]
    half = math.tan(math.radians(12.0) / 2.0)
    cos, sin = _direction((2.0 * u[:, 1, None] - 1.0) * half)
    slant, wide, tall = 0.5 * u[:, 2] - 0.2, 0.64 + 0.34 * u[:, 3], 0.72 + 0.24 * u[:, 4]
    dx, dy, thick = 0.16 * u[:, 5] - 0.08, 0.12 * u[:, 6] - 0.06, 0.08 + 0.07 * u[:, 7]
    bow, lean = u[:, 8, None] - 0.5, 0.6 * u[:, 9, None] - 0.3

    def place(px: Tensor, py: Tensor) -> tuple[Tensor, Tensor]:
        x, y = px - 0.5, py - 0.5
        # A hand is not a ruler: bend the stems and tilt the bars a little before the affine map.
        x, y = (x + bow * (y * y - 0.08)) * wide[:, None], (y + lean * x * (0.5 + y)) * tall[:, None]
        x = x - slant[:, None] * y
        return cos * x - sin * y + (0.5 + dx[:, None]), sin * x + cos * y + (0.5 + dy[:, None])

    (ax, ay), (bx, by) = place(lines[..., 0], lines[..., 1]), place(lines[..., 2], lines[..., 3])
    distance = torch.full((len(keys), side, side), 2.0, device=keys.device)
    for s in range(lines.shape[1]):
        distance = torch.minimum(distance, _distance(side, ax[:, s], ay[:, s], bx[:, s], by[:, s]))
    return _soft_edge(0.5 * thick[:, None, None] - distance, side)


def plain(glyphs: Tensor, keys: Tensor) -> Tensor:
    """White ink on black: the look of the original data, the usual source domain."""
    return _bytes(_grey(glyphs))


def inverted(glyphs: Tensor, keys: Tensor) -> Tensor:
    """Black ink on white: the same information with every pixel flipped."""
    return _bytes(_grey(1.0 - glyphs))


def textured(glyphs: Tensor, keys: Tensor) -> Tensor:
    """Ink and ground are two woven textures (stripes, checks or grain), light tints on dark ones."""
    side = glyphs.shape[-1]
    tint = 0.30 * _draw(keys, "tint", 2, 3, 1, 1) - 0.15
    ink = 0.70 + tint[:, 0] + 0.24 * _texture(rng.fold(keys, "ink"), side)[:, None]
    ground = 0.32 + tint[:, 1] + 0.28 * _texture(rng.fold(keys, "ground"), side)[:, None]
    return _bytes(_blend(ground, ink, _crisp(glyphs)))


def clutter(glyphs: Tensor, keys: Tensor) -> Tensor:
    """Coloured ink over coloured blobs and line segments.

    In every channel the ink lies half the range away from the ground colour that the clutter varies around, so it
    stays distinguishable although it may be lighter in one channel and darker in another.
    """
    side = glyphs.shape[-1]
    base = 0.7 * _draw(keys, "base", 3, 1, 1)  # below 0.5 more often than above: ink tends to be the lighter one
    ink = base + 0.5 - (base >= 0.5).to(base.dtype)
    ground = base.expand(-1, -1, side, side)
    shapes, colours = _draw(keys, "shapes", 9, 5), _draw(keys, "colours", 9, 3, 1, 1)
    for s in range(9):
        ax, ay, bx, by, size = shapes[:, s].unbind(1)
        reach = 0.08 + 0.17 * size if s < 5 else 0.02 + 0.04 * size
        bx, by = (ax, ay) if s < 5 else (bx, by)  # a blob is a thick segment without length
        cover = _soft_edge(reach[:, None, None] - _distance(side, ax, ay, bx, by), side)
        ground = _blend(ground, base + 0.5 * (colours[:, s] - 0.5), cover)
    return _bytes(_blend(ground, ink, _crisp(glyphs)))


def sketch(glyphs: Tensor, keys: Tensor) -> Tensor:
    """The outline of the glyph in pencil on paper: the ink's inside looks like its outside."""
    side = glyphs.shape[-1]
    u = _draw(keys, "sketch", 2, 1, 1)
    body = _crisp(glyphs)
    line = max_pool2d(body[:, None], 3, 1, 1)[:, 0] - body
    grain = 0.08 * (_draw(keys, "grain", side, side) - 0.5)
    paper = torch.tensor([0.95, 0.90, 0.78], device=keys.device)[:, None, None] - 0.10 * u[:, :1] + grain[:, None]
    pencil = torch.tensor([0.20, 0.20, 0.26], device=keys.device)[:, None, None] + 0.20 * u[:, 1:]
    return _bytes(_blend(paper, pencil.expand_as(paper), line))


def faded(glyphs: Tensor, keys: Tensor) -> Tensor:
    """Pale ink under uneven light: low contrast on a brightness gradient of random direction."""
    side = glyphs.shape[-1]
    u = _draw(keys, "faded", 4, 1, 1)
    x, y = _grid(side, keys.device)
    cos, sin = _direction(2.0 * u[:, 0] - 1.0)
    light = 0.20 + 0.20 * u[:, 2] + 0.8 * (u[:, 1] - 0.5) * (cos * (x - 0.5) + sin * (y - 0.5))
    grain = 0.05 * (_draw(keys, "grain", side, side) - 0.5)
    return _bytes(_grey(light + (0.18 + 0.16 * u[:, 3]) * glyphs + grain))


STYLES: dict[str, Style] = {
    "plain": plain,
    "inverted": inverted,
    "textured": textured,
    "clutter": clutter,
    "sketch": sketch,
    "faded": faded,
}
"""Every domain style by name."""


def _draw(keys: Tensor, name: str, *shape: int) -> Tensor:
    """Uniform numbers [N, *shape], one independent stream per key and name."""
    if len(keys) == 0:  # vmap refuses an empty batch
        return torch.zeros(0, *shape, device=keys.device)
    return torch.vmap(lambda k: rng.uniform(k, *shape))(rng.fold(keys, name))


def _direction(half_tangent: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle with this tan(angle / 2), by arithmetic alone; -1..1 covers half a turn."""
    square = half_tangent * half_tangent
    return (1.0 - square) / (1.0 + square), 2.0 * half_tangent / (1.0 + square)


def _grid(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """x [1, side] and y [side, 1] of the pixel centres in the unit square."""
    centres = (torch.arange(side, device=device) + 0.5) / side
    return centres[None, :], centres[:, None]


def _distance(side: int, ax: Tensor, ay: Tensor, bx: Tensor, by: Tensor) -> Tensor:
    """[N, side, side]: distance of every pixel to the segment from a to b, each coordinate [N]."""
    x, y = _grid(side, ax.device)
    ax, ay, bx, by = (c[:, None, None] for c in (ax, ay, bx, by))
    vx, vy = bx - ax, by - ay
    px, py = x - ax, y - ay
    along = ((px * vx + py * vy) / (vx * vx + vy * vy).clamp_min(1e-9)).clamp(0.0, 1.0)
    px, py = px - along * vx, py - along * vy
    return torch.sqrt(px * px + py * py)


def _soft_edge(inside: Tensor, side: int) -> Tensor:
    """Anti-aliasing: coverage of a pixel that lies this far inside an edge."""
    return (inside * side + 0.5).clamp(0.0, 1.0)


def _wave(phase: Tensor) -> Tensor:
    """A triangle wave in -1..1 with period 1."""
    return 4.0 * (phase - torch.floor(phase) - 0.5).abs() - 1.0


def _texture(keys: Tensor, side: int) -> Tensor:
    """[N, side, side] in -1..1: stripes, checks or grain of random orientation and frequency."""
    u = _draw(keys, "texture", 5, 1, 1)
    x, y = _grid(side, keys.device)
    cos, sin = _direction(2.0 * u[:, 0] - 1.0)
    frequency = 2.5 + 2.5 * u[:, 1]
    across = _wave((cos * x + sin * y) * frequency + u[:, 2])
    along = _wave((cos * y - sin * x) * frequency + u[:, 3])
    grain = 2.0 * _draw(keys, "grain", side, side) - 1.0
    woven = torch.where(u[:, 4] < 0.4, across, (3.0 * across * along).clamp(-1.0, 1.0))
    return torch.where(u[:, 4] < 0.7, woven, grain)


def _crisp(glyphs: Tensor) -> Tensor:
    """Steeper edges, so that ink laid over a busy ground is either there or not."""
    return (1.8 * glyphs - 0.3).clamp(0.0, 1.0)


def _blend(ground: Tensor, ink: Tensor, cover: Tensor) -> Tensor:
    """Lay ink over ground [N, 3, side, side] where cover [N, side, side] says so."""
    return ground + cover[:, None] * (ink - ground)


def _grey(tone: Tensor) -> Tensor:
    return tone[:, None].expand(-1, 3, -1, -1)


def _bytes(image: Tensor) -> Tensor:
    return (image.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8).contiguous()
