"""Writing PNG files with the standard library alone."""

from __future__ import annotations

import struct
import zlib

import numpy as np

SIGNATURE = b"\x89PNG\r\n\x1a\n"


def encode(pixels: np.ndarray) -> bytes:
    """An image, uint8 [H, W, 3], as the bytes of a PNG file. Equal pixels give equal bytes."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(f"png: pixels of {pixels.dtype}{list(pixels.shape)} must be uint8 [height, width, 3]")
    height, width, _ = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bits a channel, RGB, not interlaced
    body = zlib.compress(_filtered(pixels), 9)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _filtered(pixels: np.ndarray) -> bytes:
    """Every line with the filter that gives the smallest numbers: none, less the left pixel, or less the line above.

    Enlarged images repeat their lines, which the last of these turns into zeros.
    """
    height = len(pixels)
    left, above = pixels.copy(), pixels.copy()
    left[:, 1:] -= pixels[:, :-1]  # bytes wrap around, as the format wants it
    above[1:] -= pixels[:-1]
    kinds = np.stack([p.reshape(height, -1) for p in (pixels, left, above)])
    cost = np.stack([np.abs(k.view(np.int8).astype(np.int16)).sum(axis=1, dtype=np.int64) for k in kinds])
    best = cost.argmin(axis=0)
    lines = kinds[best, np.arange(height)]
    return np.concatenate([best.astype(np.uint8)[:, None], lines], axis=1).tobytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
