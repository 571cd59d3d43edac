"""The common image corruptions as pure, keyed, batched tensor code: the published constants, no image library.

`corrupt` applies one kind to a batch. Every image has its own key, and its result depends on its pixels, its key, the
kind and the severity only: not on the batch it is in, nor on anything drawn before. Noise, blur, weather and digital
kinds are written for speed on one core and run unchanged on a GPU.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...core import rng
from . import blur, digital, jpeg, pixel_noise, weather
from . import frost as _frost
from .constants import COMMON, EXTRA, LARGE_SIDE, SUITE_32, SUITE_224, suite
from .frost import Textures, frost_textures, synthesise_frost

__all__ = [
    "COMMON",
    "CORRUPTIONS",
    "EXTRA",
    "LARGE_SIDE",
    "LATEST",
    "REVISIONS",
    "SUITE_32",
    "SUITE_224",
    "Textures",
    "corrupt",
    "corrupt_each",
    "frost_textures",
    "suite",
    "synthesise_frost",
]  # fmt: skip

CORRUPTIONS: dict[str, Callable[..., Tensor]] = {
    "gaussian_noise": pixel_noise.gaussian_noise,
    "shot_noise": pixel_noise.shot_noise,
    "impulse_noise": pixel_noise.impulse_noise,
    "defocus_blur": blur.defocus_blur,
    "glass_blur": blur.glass_blur,
    "motion_blur": blur.motion_blur,
    "zoom_blur": blur.zoom_blur,
    "snow": weather.snow,
    "frost": _frost.frost,
    "fog": weather.fog,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "elastic_transform": digital.elastic_transform,
    "pixelate": digital.pixelate,
    "jpeg_compression": jpeg.jpeg_compression,
    "speckle_noise": pixel_noise.speckle_noise,
    "gaussian_blur": blur.gaussian_blur,
    "spatter": weather.spatter,
    "saturate": digital.saturate,
}
"""Kind to function `(x, keys, constants of one severity) -> bytes`; `corrupt` looks the constants up and checks."""

_ROUNDED = {"motion_blur": partial(blur.motion_blur, rounded=True), "snow": partial(weather.snow, rounded=True)}
REVISIONS: dict[int, dict[str, Callable[..., Tensor]]] = {1: {**CORRUPTIONS, **_ROUNDED}, 2: CORRUPTIONS}
"""The sets of functions that a stream's field `revision` may name. One that runs used never changes.

Revision 1 rounds grey levels after a motion blur (of images, and of snow's flakes). The published suite truncates
them, as revision 2 does.
"""
LATEST = max(REVISIONS)

_MIN_SIDE, _MAX_SIDE = 16, 224
_SEVERITIES = range(1, 6)


def _check_kind(kind: str) -> None:
    if kind not in CORRUPTIONS:
        near = difflib.get_close_matches(str(kind), CORRUPTIONS, n=1, cutoff=0.0)
        known = ", ".join(CORRUPTIONS)
        raise ValueError(f"kind: unknown corruption {kind!r}; did you mean {near[0]!r}? Known: {known}")


def _check_severity(severity: int) -> None:
    if isinstance(severity, bool) or not isinstance(severity, int) or severity not in _SEVERITIES:
        raise ValueError(f"severity: {severity!r} is not allowed; give a whole number from 1 to 5")


def _check_revision(revision: int) -> None:
    if revision not in REVISIONS:
        raise ValueError(f"revision: {revision!r} is not allowed; give one of {', '.join(map(str, REVISIONS))}")


def _check_batch(x: Tensor, keys: Tensor) -> None:
    if x.dtype != torch.uint8:
        raise TypeError(f"x: images must be uint8 in 0..255, got {x.dtype}")
    if x.dim() != 4 or x.shape[1] not in (1, 3) or x.shape[2] != x.shape[3]:
        raise ValueError(f"x: images must be [B,C,S,S] with C = 1 or 3, got {list(x.shape)}")
    if not _MIN_SIDE <= x.shape[3] <= _MAX_SIDE:
        raise ValueError(f"x: side {x.shape[3]} is not allowed; give {_MIN_SIDE} to {_MAX_SIDE} px")
    if keys.dtype != torch.int64 or keys.shape != x.shape[:1]:
        raise ValueError(f"keys: one int64 key per image is needed, [{len(x)}], got {keys.dtype} {list(keys.shape)}")
    if keys.device != x.device:
        raise ValueError(f"keys: are on {keys.device} but the images are on {x.device}")


def corrupt(
    x: Tensor, kind: str, severity: int | Tensor, keys: Tensor, *, frost: Textures | None = None, revision: int = LATEST
) -> Tensor:
    """Corrupts uint8 images [B,C,S,S] (C = 1 or 3, side 16 to 224), image `b` with the draws of `keys[b]`.

    `severity` is 1 to 5, or an integer tensor [B] of them. Images below 64 px use CIFAR-10-C's constants, larger ones
    ImageNet-C's. `frost` are textures for the kind "frost" (see `frost_textures`); synthesised ones if none are given.
    `revision` says which corruptions, where they were changed since. The same key gives the same underlying noise at
    every severity.
    """
    _check_kind(kind)
    _check_revision(revision)
    _check_batch(x, keys)
    if isinstance(severity, Tensor):
        return corrupt_each(x, torch.zeros_like(keys), severity, keys, names=(kind,), frost=frost, revision=revision)
    _check_severity(severity)
    constants = suite(x.shape[3])[kind][severity - 1]
    extra = {"textures": frost} if kind == "frost" else {}
    own = rng.fold(keys, kind)  # so that two kinds with one key do not share their noise
    # Images are independent, so a large batch may be done in parts: that bounds the memory of the wide intermediates.
    part = max(1, (1 << (20 if x.device.type == "cpu" else 26)) // (x.shape[1] * x.shape[2] * x.shape[3]))
    function = REVISIONS[revision][kind]
    parts = [function(x[i : i + part], own[i : i + part], constants, **extra) for i in range(0, len(x), part)]
    return torch.cat(parts) if parts else x.clone()


def corrupt_each(
    x: Tensor,
    kinds: Tensor,
    severities: int | Tensor,
    keys: Tensor,
    *,
    names: Sequence[str] = COMMON,
    frost: Textures | None = None,
    revision: int = LATEST,
) -> Tensor:
    """Corrupts image `b` with `names[kinds[b]]` at `severities` (one for all, or [B]); `kinds` is int64 [B].

    Equal to calling `corrupt` image by image, but each pair of kind and severity that occurs runs as one batch.
    """
    _check_batch(x, keys)
    if isinstance(severities, Tensor) and severities.is_floating_point():
        raise TypeError(f"severities: whole numbers from 1 to 5 are needed, got {severities.dtype}")
    levels = torch.full_like(keys, severities) if isinstance(severities, int) else severities.to(keys)
    for field, value in (("kinds", kinds), ("severities", levels)):
        if value.shape != keys.shape:
            raise ValueError(f"{field}: one per image is needed, [{len(x)}], got {list(value.shape)}")
    out = torch.empty_like(x)
    for kind, severity in torch.unique(torch.stack((kinds.to(keys), levels), 1), dim=0).tolist():
        if not 0 <= kind < len(names):
            raise ValueError(f"kinds: {kind} is not allowed; give 0 to {len(names) - 1}, an index into the names")
        rows = ((kinds.to(keys) == kind) & (levels == severity)).nonzero()[:, 0]
        out[rows] = corrupt(x[rows], names[kind], severity, keys[rows], frost=frost, revision=revision)
    return out
