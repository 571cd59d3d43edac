"""Image files and image arrays: listing folders, decoding, resizing, grey and colour."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..ops import opening
from .cache import ImageStream
from .formats import AGAIN, lazy

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp", ".gif", ".tif", ".tiff")

_CHUNK = 512
PICTURE = 256 << 20
"""The largest image file that is read."""
PIXELS = 1 << 26
"""The most pixels that an image may have: 8,192 x 8,192."""
_SIDES = "images of one set must have one size; set data.size= (for example data.size=64) to resize them all"


def subfolders(folder: Path) -> list[Path]:
    """Folders inside a folder by name, without hidden ones and those that archives and storage devices leave behind."""
    found = (p for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "@eaDir", "__MACOSX")))
    return sorted(found, key=lambda p: p.name)


def find(folder: Path, inner: str = "") -> list[Path]:
    """The image files of a class folder (or of the folder `inner` in it) by name; it is an error if there are none."""
    place = folder / inner if inner and (folder / inner).is_dir() else folder
    names = sorted(n for n in os.listdir(place) if not n.startswith(".") and n.lower().endswith(SUFFIXES))
    found = [place / n for n in names]
    if not found:
        deeper = (
            "; it holds folders: name one that lies deeper (data.path), or see data.levels" if subfolders(place) else ""
        )
        said = f"class folder without images ({', '.join(SUFFIXES[:4])}, ...); fill or remove it"
        raise ValueError(f"{folder}: {said}{deeper}")
    return found


def has_any(folder: Path) -> bool:
    """Whether a folder holds image files itself."""
    return any(not n.startswith(".") and n.lower().endswith(SUFFIXES) for n in os.listdir(folder))


def classes(folder: Path, inner: str = "") -> dict[str, list[Path]]:
    """Images by class: one folder each. A folder without class folders is an error."""
    found = {p.name: find(p, inner) for p in subfolders(folder)}
    if not found:
        raise ValueError(f"{folder}: has no class folders; expected {folder.name}/CLASS/IMAGE.jpg")
    return found


def stream(files: Sequence[Path], size: int | None, channels: int | None, upright: bool = False) -> ImageStream:
    """The images of files, decoded while they are written to the cache."""
    if not files:
        raise ValueError("a data set has no image files")
    pillow()  # say what to install before anything else happens
    first = decode(files[0], size, channels, upright)
    return ImageStream((len(files), *first.shape), _decoded(files, size, channels, upright, first.shape))


def _decoded(
    files: Sequence[Path], size: int | None, channels: int | None, upright: bool, shape: tuple[int, ...]
) -> Iterator[np.ndarray]:
    # Pillow decodes without holding the interpreter, so threads use all cores; the order stays that of the files.
    with ThreadPoolExecutor(min(os.cpu_count() or 1, 8)) as pool:
        for start in range(0, len(files), _CHUNK):
            part = files[start : start + _CHUNK]
            images = list(pool.map(lambda f: decode(f, size, channels, upright), part))
            for file, image in zip(part, images, strict=True):
                if image.shape != shape:
                    here, there = (f"{s[2]} x {s[1]}" for s in (image.shape, shape))
                    raise ValueError(f"{files[0]} is {there} pixels and {file} {here}: {_SIDES}")
            yield np.stack(images)


def pillow() -> Any:
    """Pillow's Image module."""
    return lazy("PIL.Image", "pillow", "reading image files")


def decode(file: Path, size: int | None, channels: int | None, upright: bool = False) -> np.ndarray:
    """One image file as uint8 [C, H, W]; colour unless `channels` is 1, squeezed to a square if `size` is given.

    `upright` turns a photo as its camera says it was held. Published sets are read as they lie.
    """
    library = pillow()
    try:
        with opening.opened(file, PICTURE) as raw, library.open(raw) as image:
            if image.width * image.height > PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels are more than {PIXELS:,}")
            return to_array(_turned(image) if upright else image, size, channels)
    except (ImportError, opening.FileProblem):
        raise
    except (
        OSError,
        SyntaxError,
        ValueError,
        EOFError,
        MemoryError,
        ArithmeticError,
        LookupError,
        TypeError,
    ) as e:  # Pillow's
        why = "no known format" if "cannot identify" in str(e) else e
        raise ValueError(f"{file}: not a readable image ({why}); {AGAIN}, or remove it") from e
    except Exception as e:
        if not type(e).__name__.startswith("DecompressionBomb"):  # Pillow's answers to pictures that are too large
            raise
        raise ValueError(f"{file}: not a readable image ({e}); {AGAIN}, or remove it") from e


def _turned(image: Any) -> Any:
    """A photo as its camera says it was held; as it lies where that cannot be read."""
    try:
        return lazy("PIL.ImageOps", "pillow", "reading image files").exif_transpose(image)
    except (SyntaxError, ValueError, LookupError, TypeError, ArithmeticError, struct.error):
        return image


def to_array(image: Any, size: int | None, channels: int | None) -> np.ndarray:
    """A Pillow image as uint8 [C, H, W]."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels are of mode {image.mode}, not 8 bits per channel; convert it first")
    if image.mode == "P":
        image = image.convert("RGBA")  # palettes may have transparency, which a direct conversion warns about
    image = image.convert("L" if channels == 1 else "RGB")
    if size is not None and image.size != (size, size):
        image = image.resize((size, size), pillow().Resampling.BILINEAR)
    array = np.asarray(image)
    return array[None] if array.ndim == 2 else np.ascontiguousarray(array.transpose(2, 0, 1))


def fit(x: np.ndarray, size: int | None, channels: int | None) -> np.ndarray:
    """uint8 images [N, C, H, W] in the size and number of channels that are asked for; None leaves them."""
    steps: list[Callable[[np.ndarray], np.ndarray]] = []
    if channels == 1 and x.shape[1] == 3:
        steps.append(_grey)
    if size is not None and x.shape[2:] != (size, size):
        steps.append(lambda part: _resize(part, size))
    if channels == 3 and x.shape[1] == 1:
        steps.append(lambda part: part.repeat(3, axis=1))
    if not steps:
        return x
    out: np.ndarray | None = None
    for start in range(0, len(x), 4096):  # in parts: the steps need several times the memory of the images
        part = x[start : start + 4096]
        for step in steps:
            part = step(part)
        if out is None:
            out = np.empty((len(x), *part.shape[1:]), np.uint8)
        out[start : start + len(part)] = part
    return x if out is None else out


def _grey(x: np.ndarray) -> np.ndarray:
    # ITU-R 601 luma in the fixed-point arithmetic that Pillow uses, so that files and arrays are treated alike.
    r, g, b = (x[:, i].astype(np.uint32) for i in range(3))
    return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).astype(np.uint8)[:, None]


def _resize(x: np.ndarray, size: int) -> np.ndarray:
    # Antialiased bilinear, as Pillow does it for files.
    images = torch.from_numpy(np.ascontiguousarray(x))
    return F.interpolate(images, (size, size), mode="bilinear", antialias=True, align_corners=False).numpy()


def channels_first(x: np.ndarray, what: str, layout: str = "auto") -> np.ndarray:
    """Images as [N, C, H, W] from [N, H, W], [N, H, W, C] or [N, C, H, W], C being 1 or 3."""
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and (layout == "chw" or (layout == "auto" and x.shape[1] in (1, 3))):
        return x
    if x.ndim == 4 and (layout == "hwc" or (layout == "auto" and x.shape[3] in (1, 3))):
        return x.transpose(0, 3, 1, 2)
    raise ValueError(f"{what}: shape {x.shape} must be [N, H, W], [N, H, W, C] or [N, C, H, W] with 1 or 3 channels")


def floats_first(x: np.ndarray, layout: str = "auto") -> np.ndarray:
    """Floats [N, H, W, C] as [N, C, H, W] where C is 1 or 3 and no other axis can be channels; all else as it is."""
    last = x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3)
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and (layout == "hwc" or (layout == "auto" and last)) else x
