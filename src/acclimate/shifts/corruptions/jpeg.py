"""What a JPEG file of a given quality keeps of an image: everything but the (lossless) entropy coding.

Follows the integer arithmetic of the reference decoder and encoder (accurate integer DCT, 4:2:0 chroma, triangular
upsampling), so the result equals that of writing and reading a file. The integers are held in float64, where their
products and sums are exact.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Tables of Annex K of the JPEG standard, row by row.
_LUMA_TABLE = (
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55,
    14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51, 87, 80, 62,
    18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92,
    49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
)  # fmt: skip
_CHROMA_TABLE = (
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99,
    24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
)  # fmt: skip
# Left halves of the rows of the DCT times 2**13.5, as they come out of the reference encoder's rounded constants;
# the right halves mirror them, with the sign turned in odd rows.
_DCT_HALF = (
    (8192, 8192, 8192, 8192),
    (11363, 9633, 6437, 2260),
    (10703, 4433, -4433, -10703),
    (9633, -2259, -11362, -6436),
    (8192, -8192, -8192, 8192),
    (6437, -11362, 2261, 9633),
    (4433, -10704, 10704, -4433),
    (2260, -6436, 9633, -11363),
)


def quantisation_table(quality: int, chroma: bool) -> Tensor:
    """The 8 x 8 divisors of a quality from 1 to 100, scaled as the reference encoder scales them."""
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    table = torch.tensor(_CHROMA_TABLE if chroma else _LUMA_TABLE, dtype=torch.float64).reshape(8, 8)
    return torch.floor((table * percent + 50) / 100).clamp(1, 255)


def _descale(x: Tensor, bits: int) -> Tensor:
    return torch.floor(x * 2.0**-bits + 0.5)


def code_plane(plane: Tensor, table: Tensor) -> Tensor:
    """Colour planes [...,H,W] (whole numbers in float64, sides multiples of 8) through DCT, rounding and back."""
    half = torch.tensor(_DCT_HALF, dtype=torch.float64, device=plane.device)
    sign = torch.tensor([1.0, -1.0], dtype=torch.float64, device=plane.device).repeat(4)[:, None]
    dct = torch.cat((half, sign * half.flip(1)), 1)
    *lead, height, width = plane.shape
    blocks = plane.reshape(-1, height // 8, 8, width // 8, 8).transpose(2, 3) - 128
    rows = _descale(blocks @ dct.T, 11)
    coefficients = _descale(rows.mT @ dct.T, 15).mT  # eight times too large, as the divisors below
    table = table.to(plane.device)
    kept = torch.sign(coefficients) * torch.floor((coefficients.abs() + 4 * table) / (8 * table)) * table
    columns = _descale(kept.mT @ dct, 11).mT
    pixels = (_descale(columns @ dct, 18) + 128).clamp(0, 255)
    return pixels.transpose(2, 3).reshape(*lead, height, width)


def _pad(plane: Tensor, right: int, bottom: int) -> Tensor:
    """Repeats the last column and row of [B,C,H,W]; the coder needs whole blocks."""
    return F.pad(plane, (0, right, 0, bottom), mode="replicate")


def _code_cropped(plane: Tensor, table: Tensor) -> Tensor:
    height, width = plane.shape[-2:]
    return code_plane(_pad(plane, -width % 8, -height % 8), table)[..., :height, :width]


def _to_ycc(x: Tensor) -> Tensor:
    red, green, blue = x.unbind(1)
    luma = 19595 * red + 38470 * green + 7471 * blue + 32768
    cb = -11059 * red - 21709 * green + 32768 * blue + (128 << 16) + 32767
    cr = 32768 * red - 27439 * green - 5329 * blue + (128 << 16) + 32767
    return torch.floor(torch.stack((luma, cb, cr), 1) / 65536)


def _to_rgb(luma: Tensor, chroma: Tensor) -> Tensor:
    cb, cr = (chroma - 128).unbind(1)
    red = luma + torch.floor((91881 * cr + 32768) / 65536)
    green = luma + torch.floor((-22554 * cb - 46802 * cr + 32768) / 65536)
    blue = luma + torch.floor((116130 * cb + 32768) / 65536)
    return torch.stack((red, green, blue), 1).clamp(0, 255)


def _halve(chroma: Tensor) -> Tensor:
    """Means of 2 x 2 pixels; rounded down and up in turn along a row, so that no bias builds up."""
    four = chroma[..., ::2, ::2] + chroma[..., 1::2, ::2] + chroma[..., ::2, 1::2] + chroma[..., 1::2, 1::2]
    bias = 1 + torch.arange(four.shape[-1], device=chroma.device) % 2
    return torch.floor((four + bias) / 4)


def _double(chroma: Tensor) -> Tensor:
    """Twice the size, each value 3/4 the nearer and 1/4 the farther pixel along both axes."""
    above, below = chroma[..., :1, :], chroma[..., -1:, :]
    tall = torch.cat((above, chroma, below), -2)
    upper, lower = 3 * chroma + tall[..., :-2, :], 3 * chroma + tall[..., 2:, :]
    rows = torch.stack((upper, lower), -2).flatten(-3, -2)
    wide = torch.cat((rows[..., :1], rows, rows[..., -1:]), -1)
    left, right = 3 * rows + wide[..., :-2] + 8, 3 * rows + wide[..., 2:] + 7
    return torch.floor(torch.stack((left, right), -1).flatten(-2) / 16)


def jpeg_compression(x: Tensor, keys: Tensor, c: int) -> Tensor:
    """JPEG of quality `c`: colour at half resolution, 8 x 8 blocks, rounded frequencies. Draws nothing.

    Grey images have only the luma plane.
    """
    planes = x.to(torch.float64)
    if x.shape[1] == 1:
        return _code_cropped(planes, quantisation_table(c, chroma=False)).to(torch.uint8)
    height, width = x.shape[-2:]
    ycc = _to_ycc(planes)
    luma = _code_cropped(ycc[:, :1], quantisation_table(c, chroma=False))[:, 0]
    # The last column is repeated before halving, the last row after it, and neither is seen by the upsampling.
    halved = _halve(_pad(ycc[:, 1:], -width % 16, height % 2))
    half_height, half_width = (height + 1) // 2, (width + 1) // 2
    coded = _code_cropped(halved, quantisation_table(c, chroma=True))[..., :half_height, :half_width]
    return _to_rgb(luma, _double(coded)[..., :height, :width]).to(torch.uint8)
