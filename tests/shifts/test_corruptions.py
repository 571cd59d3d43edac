"""The image corruptions: purity, shapes, strength, and agreement with the published definitions."""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from acclimate.core import rng
from acclimate.shifts import corruptions
from acclimate.shifts.corruptions import (
    COMMON,
    CORRUPTIONS,
    EXTRA,
    REVISIONS,
    SUITE_32,
    SUITE_224,
    blur,
    corrupt,
    corrupt_each,
    jpeg,
    linear,
    pixel_noise,
    weather,
)

KINDS = COMMON + EXTRA
DRAWLESS = {"defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression", "gaussian_blur",
            "saturate"}  # fmt: skip
# What the published constants themselves do not order by distance from the clean image:
# glass blur's rounds and sigmas go up and down; motion blur's severities 3 and 4 differ in a radius that lies beyond
# the reach of their common sigma; frost gets darker again while the texture gains weight; the elastic map trades a
# large affine jitter for local bending; spatter changes from water to mud and saturate from less to more colour.
UNORDERED = {"glass_blur", "motion_blur", "frost", "elastic_transform", "spatter", "saturate"}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pictures(count: int, channels: int, side: int, seed: int = 0) -> Tensor:
    """Natural-looking images: a smooth background, a few filled shapes with sharp edges, and fine texture."""
    draw = np.random.default_rng(seed)
    rows, cols = np.mgrid[:side, :side] / side
    out = np.empty((count, channels, side, side))
    for image in out:
        for plane in image:
            a, b, c, d = draw.uniform(-3, 3, 4)
            plane[:] = 120 + 40 * np.sin(a * rows + b * cols + c) + 25 * np.cos(d * (rows - cols))
        for _ in range(4):
            y, x, h, w = draw.uniform(0.1, 0.7, 4)
            inside = (np.abs(rows - y) < h / 2) & (np.abs(cols - x) < w / 2)
            image[:, inside] = draw.uniform(10, 245, (channels, 1))
        image += 8 * draw.standard_normal((side, side))
    return torch.from_numpy(out.clip(0, 255).astype(np.uint8))


def keys_for(count: int, seed: int = 0) -> Tensor:
    return rng.fold(rng.key(seed), torch.arange(count))


def mean_square(x: Tensor, y: Tensor) -> float:
    return (x.to(torch.float64) - y).square().mean().item()


def test_registry_covers_both_suites() -> None:
    assert len(COMMON) == 15
    assert len(EXTRA) == 4
    assert tuple(CORRUPTIONS) == KINDS
    for suite in (SUITE_32, SUITE_224):
        assert tuple(sorted(suite)) == tuple(sorted(KINDS))
        assert all(len(v) == 5 for v in suite.values())
    assert corruptions.suite(63) is SUITE_32
    assert corruptions.suite(64) is SUITE_224


@pytest.mark.parametrize("side", [32, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_result_depends_on_the_image_and_its_key_only(kind: str, side: int) -> None:
    x, keys = pictures(7, 3, side), keys_for(7)
    together = corrupt(x, kind, 4, keys)
    assert torch.equal(together, corrupt(x, kind, 4, keys))
    order = torch.tensor([6, 3, 0])
    assert torch.equal(together[order], corrupt(x[order], kind, 4, keys[order]))
    assert torch.equal(together[2:3], corrupt(x[2:3], kind, 4, keys[2:3]))


@pytest.mark.parametrize("kind", KINDS)
def test_keys_matter_exactly_where_something_is_drawn(kind: str) -> None:
    x = pictures(1, 3, 32).expand(6, -1, -1, -1).contiguous()
    out = corrupt(x, kind, 5, keys_for(6))
    different = sum(not torch.equal(out[0], other) for other in out[1:])
    assert different == (0 if kind in DRAWLESS else 5)
    assert not torch.equal(out[0], x[0])


def test_large_batches_are_done_in_parts_without_a_trace() -> None:
    x, keys = pictures(8, 3, 32).repeat(50, 1, 1, 1), keys_for(400)
    whole = corrupt(x, "gaussian_noise", 3, keys)
    assert torch.equal(whole[337:345], corrupt(x[337:345], "gaussian_noise", 3, keys[337:345]))
    assert corrupt(x[:0], "fog", 1, keys[:0]).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [16, 28, 32, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_of_the_same_shape(kind: str, side: int, channels: int) -> None:
    x, keys = pictures(3, channels, side), keys_for(3)
    before = x.clone()
    for severity in (1, 5):
        out = corrupt(x, kind, severity, keys)
        assert out.dtype == torch.uint8
        assert out.shape == x.shape
    assert not torch.equal(out, x), "severity 5 must change the images"
    assert torch.equal(x, before), "the input must not be modified"


def strengths(x: Tensor, kind: str) -> list[float]:
    return [mean_square(corrupt(x, kind, s, keys_for(len(x))), x) for s in range(1, 6)]


def test_full_size_images() -> None:
    x, keys = pictures(1, 3, 224), keys_for(1)
    for kind in KINDS:
        assert mean_square(corrupt(x, kind, 5, keys), x) > 1


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in UNORDERED])
def test_distance_grows_with_severity(kind: str) -> None:
    found = strengths(pictures(64, 3, 32), kind)
    assert all(a < b for a, b in itertools.pairwise(found)), found


@pytest.mark.parametrize("kind", [k for k in COMMON if k not in UNORDERED])
def test_distance_grows_with_severity_on_real_images(kind: str) -> None:
    root = os.environ.get("ACCLIMATE_DATA")
    path = Path(root or "") / "cifar-10-batches-bin" / "test_batch.bin"
    if root is None or not path.exists():
        pytest.skip("needs CIFAR-10's binary files under the folder that ACCLIMATE_DATA names")
    records = np.fromfile(path, dtype=np.uint8, count=128 * 3073).reshape(128, 3073)
    found = strengths(torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy()), kind)
    assert all(a < b for a, b in itertools.pairwise(found)), found


def test_motion_blur_grows_but_for_one_pair_of_equal_kernels() -> None:
    found = strengths(pictures(64, 3, 32), "motion_blur")
    assert found[0] < found[1] < found[2] == found[3] < found[4]


def test_frost_hides_more_of_the_image_with_severity() -> None:
    x = pictures(64, 3, 32)
    kept = []
    for severity in range(1, 6):
        out = corrupt(x, "frost", severity, keys_for(64)).flatten(1).to(torch.float64)
        kept.append(torch.corrcoef(torch.stack((x.flatten().to(torch.float64), out.flatten())))[0, 1].item())
    assert all(a > b for a, b in itertools.pairwise(kept)), kept


def test_elastic_bends_more_with_severity() -> None:
    # On a ramp the output is the sampled position; second differences remove the affine part of the map.
    ramp = (torch.arange(32) * 7).to(torch.uint8).expand(64, 1, 32, 32).contiguous()
    bend = []
    for severity in range(2, 6):
        position = corrupt(ramp, "elastic_transform", severity, keys_for(64))[:, :, 8:24, 8:24].to(torch.float64) / 7
        bend.append(position.diff(n=2, dim=3).square().mean().item())
    assert all(a < b for a, b in itertools.pairwise(bend)), bend


def test_poisson_table_has_the_mean_and_variance_of_its_rate() -> None:
    cdf = pixel_noise.poisson_cdf(500, torch.device("cpu"))[:160]  # rates up to 314: nothing lies beyond its end
    rate = torch.arange(160, dtype=torch.float64) * 500 / 255
    count = torch.arange(501, dtype=torch.float64)
    mass = cdf.diff(dim=1, prepend=torch.zeros(160, 1, dtype=torch.float64))
    mean = (mass * count).sum(1)
    variance = (mass * (count - mean[:, None]) ** 2).sum(1)
    assert torch.allclose(mean, rate, atol=1e-8)
    assert torch.allclose(variance, rate, atol=1e-6)


@pytest.mark.parametrize("level", [0, 5, 40, 120])
def test_shot_noise_samples_the_table(level: int) -> None:
    x = torch.full((40, 1, 32, 32), level, dtype=torch.uint8)
    out = corrupt(x, "shot_noise", 5, keys_for(40)).to(torch.float64)
    count = torch.ceil(out * 50 / 255)  # undoes the truncation
    rate, n = level * 50 / 255, out.numel()
    assert abs(count.mean().item() - rate) <= 5 * (rate / n) ** 0.5
    assert abs((count == 0).double().mean().item() - np.exp(-rate)) <= 5 * (np.exp(-rate) / n) ** 0.5
    assert count.var().item() == pytest.approx(rate, rel=0.05)


def test_gaussian_and_speckle_noise_have_their_deviation() -> None:
    x = torch.full((40, 3, 32, 32), 100, dtype=torch.uint8)
    for kind, expected in (("gaussian_noise", 0.08 * 255), ("speckle_noise", 0.12 * 100)):
        out = corrupt(x, kind, 3, keys_for(40)).to(torch.float64) + 0.5
        assert out.mean().item() == pytest.approx(100, abs=0.3)
        assert out.std().item() == pytest.approx(expected, rel=0.02)


def test_impulse_noise_replaces_the_stated_fraction() -> None:
    x = torch.full((60, 3, 32, 32), 77, dtype=torch.uint8)
    for severity, c in zip(range(1, 6), SUITE_32["impulse_noise"], strict=True):
        out = corrupt(x, "impulse_noise", severity, keys_for(60))
        for extreme in (0, 255):
            share = (out == extreme).double().mean().item()
            assert abs(share - c / 2) < 5 * (c / 2 / x.numel()) ** 0.5
        assert set(out.unique().tolist()) == {0, 77, 255}


def test_glass_shuffle_equals_the_published_loop() -> None:
    for side, reach in ((32, 1), (40, 3)):
        keys = keys_for(2)
        draws = (linear.uniform(keys, side * side) * (2 * reach) ** 2).to(torch.int64)
        for draw, found in zip(draws.tolist(), blur.shuffle_sources(keys, side, reach).tolist(), strict=True):
            origin = np.arange(side * side).reshape(side, side)
            for h in range(side - reach, reach, -1):
                for w in range(side - reach, reach, -1):
                    dy, dx = divmod(draw[h * side + w], 2 * reach)
                    origin[h, w] = origin[h + dy - reach, w + dx - reach]
            assert origin.flatten().tolist() == found


def test_motion_blur_is_one_sided_and_keeps_flat_images() -> None:
    x = torch.zeros(8, 1, 33, 33, dtype=torch.uint8)
    x[:, :, :, 16] = 255
    out = corrupt(x, "motion_blur", 5, keys_for(8))
    assert (out[..., 8:24, 17:] == 0).all()
    assert (out[..., 8:24, 12] > 0).all()
    flat = torch.full((2, 3, 32, 32), 201, dtype=torch.uint8)
    for kind in ("motion_blur", "zoom_blur", "gaussian_blur", "defocus_blur", "glass_blur", "pixelate"):
        assert torch.equal(corrupt(flat, kind, 5, keys_for(2)), flat), kind


@pytest.mark.parametrize("revision", [1, 2])
def test_motion_blur_truncates_to_whole_grey_levels_where_its_first_revision_rounded(revision: int) -> None:
    """Along a row the taps are the pixels to the right, with weights exp(-i^2 / 2 sigma^2), i = 0 to 2 radius."""
    row = np.random.default_rng(0).integers(0, 256, 33)
    radius, sigma = SUITE_32["motion_blur"][4]
    weights = np.exp(-0.5 * (np.arange(2 * radius + 1) / sigma) ** 2)
    far = np.minimum(np.arange(33)[:, None] + np.arange(2 * radius + 1), 32)
    blurred = (row[far] * weights / weights.sum()).sum(1)
    want = np.floor(blurred + (0.5 if revision == 1 else 1e-9))  # 21.999999999999996 is 22
    x = torch.from_numpy(row).float().expand(1, 1, 33, 33)
    found = linear.line_blur(x, torch.zeros(1), radius, sigma, rounded=revision == 1)
    assert found[0, 0, 7].tolist() == want.tolist()
    keyed = (corrupt(pictures(8, 3, 32), "motion_blur", 5, keys_for(8), revision=r).int() for r in (1, 2))
    lost = next(keyed) - next(keyed)
    assert set(lost.flatten().tolist()) == {0, 1} and 0.4 < lost.float().mean() < 0.6


def test_a_revision_differs_in_motion_blurs_alone_and_keeps_every_flat_image() -> None:
    assert list(REVISIONS) == [1, 2] and corruptions.LATEST == 2
    assert {k for k in CORRUPTIONS if REVISIONS[1][k] is not REVISIONS[2][k]} == {"motion_blur", "snow"}
    snowed = [corrupt(pictures(8, 3, 32) // 4, "snow", 3, keys_for(8), revision=r).int() for r in (1, 2)]
    assert set((snowed[0] - snowed[1]).flatten().tolist()) == {0, 1, 2}  # two layers of flakes
    levels = torch.arange(256.0).view(256, 1, 1, 1).expand(256, 1, 32, 32)
    for constants in (SUITE_32, SUITE_224):
        for severity in range(5):
            for c in (constants["motion_blur"][severity], constants["snow"][severity][4:6]):
                assert torch.equal(linear.line_blur(levels, torch.full((256,), 30.0), *c), levels)


def test_disk_kernel_is_a_normalised_disk() -> None:
    assert blur.disk_kernel(6, 0.5).sum() == pytest.approx(1)
    assert blur.disk_kernel(10, 0.5).sum() == pytest.approx(1.0108, abs=1e-4)  # as published: see its docstring
    plus = blur.disk_kernel(1, 1e-3)[7:10, 7:10] * 5
    assert np.allclose(plus, [[0, 1, 0], [1, 1, 1], [0, 1, 0]])


def test_fog_fills_the_unit_range() -> None:
    cloud = weather.plasma(keys_for(4), 32, 1.75)
    assert torch.equal(cloud.amin((1, 2)), torch.zeros(4))
    assert torch.equal(cloud.amax((1, 2)), torch.ones(4))
    assert not torch.equal(cloud[0], cloud[1])
    rough = [weather.plasma(keys_for(4), 32, decay).diff(dim=2).square().mean().item() for decay in (3.0, 1.4)]
    assert rough[0] < rough[1]


def test_plasma_is_diamond_square_point_by_point() -> None:
    size, decay = 8, 2.0
    draws = (linear.uniform(keys_for(1), size, size)[0] * 2 - 1).tolist()
    height = np.zeros((size, size))
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2
        diagonal = [(-half, -half), (-half, half), (half, -half), (half, half)]
        straight = [(-half, 0), (half, 0), (0, -half), (0, half)]
        for offset, around in (((half, half), diagonal), ((0, half), straight), ((half, 0), straight)):
            for y in range(offset[0], size, step):
                for x in range(offset[1], size, step):
                    mean = sum(height[(y + dy) % size, (x + dx) % size] for dy, dx in around) / 4
                    height[y, x] = mean + wobble**2 * draws[y][x]
        step, wobble = half, wobble / decay
    expected = (height - height.min()) / (height.max() - height.min())
    assert np.allclose(weather.plasma(keys_for(1), size, decay)[0].numpy(), expected, atol=1e-5)


def test_colour_kinds_follow_hsv() -> None:
    colours = torch.tensor([[200, 100, 50], [0, 0, 0], [90, 90, 90]], dtype=torch.uint8)
    x = colours[:, :, None, None].expand(3, 3, 16, 16).contiguous()
    bright = corrupt(x, "brightness", 4, keys_for(3))[:, :, 0, 0]  # value + 51
    assert bright.tolist() == [[251, 125, 62], [51, 51, 51], [141, 141, 141]]
    vivid = corrupt(x, "saturate", 4, keys_for(3))[:, :, 0, 0]  # saturation * 2 + 0.1, at most 1
    assert vivid.tolist() == [[200, 66, 0], [0, 0, 0], [90, 81, 81]]


def test_contrast_truncates() -> None:
    x = pictures(4, 3, 32)
    pixels = x.numpy() / 255.0
    mean = pixels.mean((2, 3), keepdims=True)
    expected = (((pixels - mean) * 0.3 + mean).clip(0, 1) * 255).astype(np.uint8)
    differs = (corrupt(x, "contrast", 4, keys_for(4)).numpy() != expected).mean()
    assert differs < 0.001  # rounding instead would change half of the values


def test_jpeg_of_the_best_quality_is_nearly_the_identity() -> None:
    grey = pictures(6, 1, 28)
    assert (jpeg.jpeg_compression(grey, keys_for(6), 100).int() - grey.int()).abs().max() <= 2
    assert mean_square(jpeg.jpeg_compression(grey, keys_for(6), 100), grey) < 0.5
    assert mean_square(jpeg.jpeg_compression(grey, keys_for(6), 20), grey) > 20
    assert jpeg.quantisation_table(50, chroma=False)[0, :3].tolist() == [16, 11, 10]
    assert jpeg.quantisation_table(100, chroma=True).max() == 1


@pytest.mark.parametrize("side", [17, 28, 32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_and_pixelate_equal_pillow(side: int, channels: int) -> None:
    image = pytest.importorskip("PIL.Image", reason="compares with Pillow's own codec")
    x = pictures(3, channels, side)

    def picture(t: Tensor) -> object:
        return image.fromarray(t[0].numpy() if channels == 1 else t.permute(1, 2, 0).numpy())

    for severity in range(1, 6):
        coded, coarse = (corrupt(x, kind, severity, keys_for(3)) for kind in ("jpeg_compression", "pixelate"))
        quality = corruptions.suite(side)["jpeg_compression"][severity - 1]
        small = int(side * corruptions.suite(side)["pixelate"][severity - 1])
        for one, ours, blocks in zip(x, coded, coarse, strict=True):
            file = io.BytesIO()
            picture(one).save(file, "JPEG", quality=quality)  # type: ignore[attr-defined]
            assert np.array_equal(np.array(image.open(file)), np.array(picture(ours)))
            shrunk = picture(one).resize((small, small), image.Resampling.BOX)  # type: ignore[attr-defined]
            enlarged = shrunk.resize((side, side), image.Resampling.BOX)
            assert np.array_equal(np.array(enlarged), np.array(picture(blocks)))


def test_corrupt_each_equals_one_by_one() -> None:
    x, keys = pictures(12, 3, 32), keys_for(12)
    kinds = rng.randint(rng.key(3), 0, 15, 12)
    levels = rng.randint(rng.key(4), 1, 6, 12)
    mixed, fixed = corrupt_each(x, kinds, levels, keys), corrupt_each(x, kinds % 4, 5, keys, names=EXTRA)
    for i in range(12):
        one, key = x[i : i + 1], keys[i : i + 1]
        assert torch.equal(mixed[i : i + 1], corrupt(one, COMMON[int(kinds[i])], int(levels[i]), key))
        assert torch.equal(fixed[i : i + 1], corrupt(one, EXTRA[int(kinds[i]) % 4], 5, key))
    assert torch.equal(corrupt(x, "fog", levels, keys)[:1], corrupt(x[:1], "fog", int(levels[0]), keys[:1]))
    with pytest.raises(ValueError, match="kinds: 15 is not allowed; give 0 to 14"):
        corrupt_each(x, torch.full((12,), 15), 5, keys)
    with pytest.raises(ValueError, match=r"kinds: one per image is needed, \[12\], got \[3\]"):
        corrupt_each(x, kinds[:3], 5, keys)


def test_errors_name_the_field_the_value_and_what_is_allowed() -> None:
    x, keys = pictures(2, 3, 32), keys_for(2)
    with pytest.raises(ValueError, match=r"'gausian_noise'; did you mean 'gaussian_noise'.*jpeg_compression"):
        corrupt(x, "gausian_noise", 1, keys)
    for severity in (0, 6, -1, 2.5, True):
        with pytest.raises(ValueError, match=f"severity: {severity!r} is not allowed; give a whole number from 1 to 5"):
            corrupt(x, "fog", severity, keys)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="severity: 9 is not allowed"):
        corrupt(x, "fog", torch.tensor([1, 9]), keys)
    with pytest.raises(TypeError, match=r"severities: whole numbers from 1 to 5 are needed, got torch\.float32"):
        corrupt(x, "fog", torch.tensor([1.0, 2.7]), keys)  # not severity 2 for 2.7
    with pytest.raises(TypeError, match=r"x: images must be uint8.*float32"):
        corrupt(x.float(), "fog", 1, keys)
    for bad in (x[0], x[:, :2], x[..., :20]):
        with pytest.raises(ValueError, match=r"x: images must be \[B,C,S,S\]"):
            corrupt(bad, "fog", 1, keys)
    with pytest.raises(ValueError, match="revision: 7 is not allowed; give one of 1, 2"):
        corrupt(x, "fog", 1, keys_for(len(x)), revision=7)
    with pytest.raises(ValueError, match="x: side 8 is not allowed; give 16 to 224 px"):
        corrupt(x[..., :8, :8], "fog", 1, keys)
    for wrong in (keys[:1], keys.float()):
        with pytest.raises(ValueError, match="keys: one int64 key per image"):
            corrupt(x, "fog", 1, wrong)


def test_frost_draws_from_the_first_five_textures_only() -> None:
    levels = torch.tensor([40, 80, 120, 160, 200, 255], dtype=torch.uint8)
    textures = [levels[i].expand(3, 200 + i, 180).contiguous() for i in range(6)]
    out = corrupt(torch.zeros(200, 3, 32, 32, dtype=torch.uint8), "frost", 5, keys_for(200), frost=textures)
    assert sorted(set(out.flatten().tolist())) == [18, 36, 54, 72, 90]
    x, keys = pictures(1, 3, 32), keys_for(1)
    with pytest.raises(ValueError, match="frost: textures must be larger than 32 px"):
        corrupt(x, "frost", 5, keys, frost=textures[0][None, :, :99, :99])
    with pytest.raises(ValueError, match="frost: every texture must be uint8"):
        corrupt(x, "frost", 5, keys, frost=[textures[0].float()])


def test_frost_crops_are_windows_of_the_texture() -> None:
    texture = torch.arange(200 * 180 * 3).remainder(251).to(torch.uint8).reshape(3, 200, 180)
    x = torch.zeros(5, 3, 64, 64, dtype=torch.uint8)
    out = corrupt(x, "frost", 3, keys_for(5), frost=texture[None])
    windows = (texture.float() * 0.7 + 2**-13).to(torch.uint8).unfold(1, 64, 1).unfold(2, 64, 1)
    for image in out:
        assert (windows == image[:, None, None]).all(dim=(0, 3, 4)).any()


def test_synthesised_frost_is_keyed_and_looks_like_the_published_levels() -> None:
    first = corruptions.synthesise_frost(rng.key(1), 2, 120)
    assert first.shape == (2, 3, 120, 120)
    assert first.dtype == torch.uint8
    assert torch.equal(first, corruptions.synthesise_frost(rng.key(1), 2, 120))
    assert not torch.equal(first, corruptions.synthesise_frost(rng.key(2), 2, 120))
    assert 80 < first.float().mean() < 220
    assert first.float().std((2, 3)).min() > 5


def test_frost_textures_say_where_they_come_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert corruptions.frost_textures(None)[1] == "synthesised"
    textures, source = corruptions.frost_textures(tmp_path)
    assert source.startswith("synthesised: no .png or .jpg in")
    assert len(textures) == 5
    (tmp_path / "frost").mkdir()
    (tmp_path / "frost" / "frost1.png").write_bytes(b"never opened")
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert corruptions.frost_textures(tmp_path)[1].startswith("synthesised: Pillow is not installed")


def test_frost_textures_read_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="reads pictures with Pillow")
    (tmp_path / "frost").mkdir()
    for name, mode, colour in (("frost2.png", "RGB", (1, 2, 3)), ("frost1.png", "RGBA", (9, 8, 7, 0))):
        image.new(mode, (60, 50), colour).save(tmp_path / "frost" / name)
    textures, source = corruptions.frost_textures(tmp_path)
    assert source == "files"
    assert [list(t.shape) for t in textures] == [[3, 50, 60]] * 2
    assert textures[0][:, 0, 0].tolist() == [9, 8, 7]
    assert textures[1][:, 0, 0].tolist() == [1, 2, 3]
