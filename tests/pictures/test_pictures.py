"""Pictures of data: the file format, drawing, and that what is shown is what clients and streams hold."""

import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.core import Shards, rng
from acclimate.data import Arrays, ByDomain, Digits, Examples, World
from acclimate.experiment import Experiment
from acclimate.reporting.pictures import Canvas, bubble_plot, contact_sheet, font, picture, png, preview
from acclimate.reporting.pictures.bubbles import radius
from acclimate.reporting.pictures.canvas import INK, to_rgb
from acclimate.reporting.pictures.domains import colour, lighter, majority
from acclimate.shifts import Corrupted, Gradual, NewClients, Original, Stream, UnseenDomain


def decode(raw):
    """A PNG of 8-bit RGB, read by the letter of the format: chunks, checksums and filters."""
    assert raw[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, []
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        kind, data = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + size]
        assert int.from_bytes(raw[at + 8 + size : at + 12 + size], "big") == zlib.crc32(kind + data)
        chunks.append((kind, data))
        at += 12 + size
    assert [k for k, _ in chunks][::2] == [b"IHDR", b"IEND"]
    width, height, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert rest == [8, 2, 0, 0, 0]
    lines = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, 1 + 3 * width)
    out, above = np.zeros((height, width, 3), np.uint8), np.zeros((width, 3), np.uint8)
    for y, line in enumerate(lines):
        kind, body = int(line[0]), line[1:].reshape(width, 3)
        if kind == 0:
            out[y] = body
        elif kind == 1:
            out[y] = np.cumsum(body, axis=0, dtype=np.uint64) % 256
        else:
            assert kind == 2
            out[y] = (body.astype(int) + above) % 256
        above = out[y]
    return out


def find(sheet, image, scale):
    """The (top, left) places where an image, enlarged, stands in a picture, from top to bottom."""
    large = image.repeat(scale, axis=0).repeat(scale, axis=1)
    first, out = large[0].tobytes(), []
    for y in range(len(sheet) - len(large) + 1):
        line, at = sheet[y].tobytes(), -1
        while (at := line.find(first, at + 1)) >= 0:
            x = at // 3
            if at % 3 == 0 and np.array_equal(sheet[y : y + len(large), x : x + large.shape[1]], large):
                out.append((y, x))
    return out


def noise(n, channels=3, height=8, width=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, height, width), generator=g, dtype=torch.uint8)


def world(sizes=(20, 16), x=None, y=None, domain=None, names=("one", "two"), **fields):
    """Clients that hold the examples one after another, for training alone unless told otherwise."""
    n = sum(sizes)
    x = noise(n + 40) if x is None else x
    y = torch.arange(len(x)) % 3 if y is None else y
    domain = torch.zeros(len(x), dtype=torch.int64) if domain is None else domain
    examples = Examples(x, y, ("ant", "bee", "cat"), domain, names)
    none = tuple(torch.zeros(0, dtype=torch.int64) for _ in sizes)
    fields = {"val": none, "test": none, **fields}
    return World(examples, torch.arange(n).split(list(sizes)), **fields)


# --- the file format ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (3, 64), (64, 3)])
def test_png_comes_back_pixel_by_pixel(shape):
    pixels = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert np.array_equal(decode(png.encode(pixels)), pixels)
    assert np.array_equal(decode(png.encode(pixels[:, ::-1])), pixels[:, ::-1])


def test_png_uses_every_filter_it_knows_and_other_programs_read_it():
    import io

    pixels = np.zeros((30, 40, 3), np.uint8)
    pixels[:10] = np.random.default_rng(0).integers(0, 256, (40, 3))  # equal lines
    pixels[10:20] = np.arange(40, dtype=np.uint8)[None, :, None] * 6 + np.arange(10, dtype=np.uint8)[:, None, None] * 90
    pixels[20:] = np.random.default_rng(1).integers(0, 256, (10, 40, 3)) % 2
    raw = png.encode(pixels)
    assert np.array_equal(decode(raw), pixels)
    lines = zlib.decompress(raw[raw.index(b"IDAT") + 4 : -16])
    assert set(lines[:: 1 + 3 * 40]) == {0, 1, 2}
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(raw))
    assert np.array_equal(np.asarray(image), pixels)


@pytest.mark.parametrize("pixels", [np.zeros((2, 2), np.uint8), np.zeros((2, 2, 3)), np.zeros((0, 2, 3), np.uint8)])
def test_png_refuses_what_is_not_rgb_bytes(pixels):
    with pytest.raises(ValueError, match=r"must be uint8 \[height, width, 3\]"):
        png.encode(pixels)


# --- drawing -----------------------------------------------------------------------------------------------------


def test_every_ascii_character_has_a_glyph_of_its_own():
    every = [chr(c) for c in range(33, 127)]
    seen = {(g := font.render(c)).shape + (g.tobytes(),) for c in every}
    assert len(seen) == len(every)
    assert all(font.render(c).any() and font.render(c).shape[0] == font.ROWS for c in every)
    assert len({font.width(d) for d in "0123456789"}) == 1


def test_text_is_placed_scaled_cut_and_spelled():
    c = Canvas(30, 60)
    used = c.text(3, 5, "Hi", INK, 2)
    inked = (c.pixels != 255).any(2)
    rows, columns = np.flatnonzero(inked.any(1)), np.flatnonzero(inked.any(0))
    assert (rows[0], rows[-1]) == (3, 3 + 2 * font.CAPITALS - 1)
    assert (columns[0], columns[-1]) == (5, 5 + used - 1)
    assert used == font.width("Hi", 2) == 2 * (5 + 1 + 1)
    ends = Canvas(30, 60)
    ends.text(3, 5 + used, "Hi", INK, 2, "right")
    assert np.array_equal(ends.pixels, c.pixels)
    c.text(25, 55, "over the edge", INK)
    c.text(25, 2, "over the edge", INK, 1, "right")
    assert font.spell("Über 5 ☃") == "Uber 5 ?"
    assert font.shorten("automobile", 30) == "auto.."
    assert font.width(font.shorten("automobile", 30)) <= 30
    assert font.wrap("one two three", font.width("one two"), 1) == ["one two", "three"]


def test_circles_have_the_area_they_should_wherever_they_stand():
    for y, x, r in ((30.5, 30.5, 10.0), (30.0, 30.25, 20.0), (31.3, 29.7, 3.0)):
        c = Canvas(64, 64)
        c.circle(y, x, r, (0, 0, 0))
        assert ((255.0 - c.pixels[:, :, 0]) / 255).sum() == pytest.approx(np.pi * r * r, rel=0.02)
    corner = Canvas(8, 8)
    corner.circle(0, 0, 4, (0, 0, 0))
    corner.circle(-50, -50, 4, (0, 0, 0))
    assert corner.pixels[0, 0, 0] == 0
    assert corner.pixels[7, 7, 0] == 255


def test_lines_rectangles_and_images():
    c = Canvas(12, 12)
    c.line(2.5, 1.5, 2.5, 9.5, (0, 0, 0))
    assert (c.pixels[2, 2:9] == 0).all()
    assert (c.pixels[4:] == 255).all()
    c.rectangle(6, 3, 2, 4, (9, 8, 7))
    assert (c.pixels[6:8, 3:7] == (9, 8, 7)).all()
    assert (c.pixels == (9, 8, 7)).all(2).sum() == 8
    image = to_rgb(noise(1))[0]
    large = Canvas(20, 20)
    large.paste(image, 1, 2, 2)
    assert np.array_equal(large.pixels[1:17:2, 2:18:2], image)
    assert np.array_equal(large.pixels[2:18:2, 3:19:2], image)
    large.paste(image, 15, 15, 2)
    assert np.array_equal(large.pixels[15:, 15:], image.repeat(2, 0).repeat(2, 1)[:5, :5])


def test_grey_is_shown_as_grey_and_features_are_refused():
    grey = noise(2, channels=1)
    shown = to_rgb(grey)
    assert all(np.array_equal(shown[:, :, :, i], grey[:, 0].numpy()) for i in range(3))
    with pytest.raises(ValueError, match=r"nothing to picture: inputs are float32 of shape \(20,\)"):
        to_rgb(torch.zeros(4, 20))


# --- bubbles -----------------------------------------------------------------------------------------------------


def inked(pixels, wanted):
    """How many pixels a colour covers, partly covered ones by their share, where it is the only one on white."""
    return (pixels == wanted).all(2).sum()


def test_areas_are_in_proportion_to_counts():
    assert radius(4, 4, 50) == pytest.approx(2 * radius(1, 4, 50))
    # Client 0 has 16 of class 0, client 1 (another domain) 4 of it: colours tell their circles apart.
    w = world((16, 4), y=torch.zeros(60, dtype=torch.int64), domain=(torch.arange(60) >= 16).long())
    plot = bubble_plot(w)
    heavy = [np.abs(plot.astype(int) - np.array(colour(d))).sum(2) == 0 for d in (0, 1)]
    large, small = (int(mask[:, : plot.shape[1] // 2].sum()) for mask in heavy)  # the legend is in the right half
    assert large / small == pytest.approx(4, rel=0.12)


def test_clients_have_the_colour_of_their_majority_domain():
    domain = torch.tensor([0] * 5 + [1] * 15 + [2] * 16 + [0] * 40)
    w = world((20, 16), domain=domain, names=("plain", "sketch", "photo"))
    assert majority(w, w.train) == [1, 2]
    plot = bubble_plot(w)
    assert all(inked(plot, colour(d)) > 100 for d in range(3)), "the legend names every domain that is there"
    assert inked(plot, colour(1)) > 3 * inked(plot, colour(0))
    assert inked(plot, colour(3)) == 0
    assert len({colour(d) for d in range(16)}) == 16


def test_newcomers_are_lighter_and_many_clients_and_classes_are_counted():
    w = world((20, 16), new=(torch.arange(36, 50),))
    assert inked(bubble_plot(w), lighter(colour(0))) > 300
    assert inked(bubble_plot(replace(w, new=())), lighter(colour(0))) == 0
    assert bubble_plot(world((1,) * 70)).shape == bubble_plot(world((1,) * 60)).shape
    assert bubble_plot(w, 3000).shape[1] == 3000


# --- the contact sheet -------------------------------------------------------------------------------------------


def stream_of(w, rows, **fields):
    return Stream(Shards.of(w.examples.x, w.examples.y, rows), **fields)


def test_the_sheet_shows_the_very_pixels_in_stream_order():
    w = world((20, 5))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)) + 30
    sheet = contact_sheet(w, {"shifted": stream_of(w, [order, torch.arange(25, 28)])})
    scale = round(52 / 8)

    def places(rows):
        found = [find(sheet, image, scale) for image in to_rgb(w.examples.x[rows])]
        assert all(len(f) == 1 for f in found)
        return [f[0] for f in found]

    trained, shifted = places(w.train[0][:12]), places(order[:12])
    for row in (trained, shifted, places(w.train[1])):
        assert len({y for y, _ in row}) == 1, "a row stands in line"
        steps = {b - a for (_, a), (_, b) in zip(row, row[1:], strict=False)}
        assert len(steps) == 1 and steps.pop() > 8 * scale, "in the order of the stream, side by side"
    assert trained[0][0] == shifted[0][0] and trained[0][1] < shifted[0][1], "blocks stand side by side"
    assert places(w.train[1])[0][0] > trained[0][0]
    assert not find(sheet, to_rgb(w.examples.x[order[12:13]])[0], scale), "twelve, not more"


def test_grey_and_large_images_and_streams_that_change():
    grey = world((15,), x=noise(40, channels=1, height=6, width=9))
    sheet = contact_sheet(grey, {})
    assert find(sheet, to_rgb(grey.examples.x[:1])[0], 6)
    flat = torch.full((40, 3, 100, 130), 77, dtype=torch.uint8)
    shrunk = contact_sheet(world((15,), x=flat), {})
    assert inked(shrunk, (77, 77, 77)) == 12 * 34 * 44
    assert shrunk.shape[1] < 900
    w = world((36,), x=noise(76))
    plan = {"segment": 3, "plan": [["fog", 1]] * 12}
    spread = contact_sheet(w, {"s": stream_of(w, [torch.arange(36, 72)], card=plan)})
    assert all(find(spread, to_rgb(w.examples.x[r : r + 1])[0], 6) for r in range(36, 72, 3))


def test_more_than_ten_clients_are_counted_and_empty_ones_are_named():
    ten, more = world((3,) * 10), world((3,) * 25)
    short, long = contact_sheet(ten, {}), contact_sheet(more, {})
    assert 0 < len(long) - len(short) < 60
    w = world((12,))
    nothing = contact_sheet(w, {"none": stream_of(w, [torch.zeros(0, dtype=torch.int64)])})
    assert nothing.shape[1] > contact_sheet(w, {}).shape[1]


# --- the whole picture -------------------------------------------------------------------------------------------

SMALL = Experiment(data=Digits(clients=3, fraction=0.2), streams=(Original(), Corrupted()))


def test_preview_writes_the_same_valid_file_every_time(tmp_path):
    first, again = (preview(SMALL, tmp_path / name).read_bytes() for name in ("a.png", "deep/b.png"))
    assert first == again
    assert np.array_equal(decode(first), picture(SMALL))
    assert preview(replace(SMALL, seed=1), tmp_path / "a.png").read_bytes() != first
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.png", "b.png", "deep"], "no temporary files"


def test_preview_shows_the_streams_that_a_run_builds():
    w = SMALL.data.world(SMALL.seed)
    stream = Corrupted().build(w, rng.fold(rng.key(w.seed), "streams")).shards
    shown = picture(SMALL)
    for image in to_rgb(stream.x[stream.own(1)[:3]]):
        assert find(shown, image, 3)


def test_preview_of_domains_newcomers_held_out_and_changing_streams(tmp_path):
    data = Digits(
        domains=("plain", "inverted", "font"),
        partition=ByDomain(),
        clients=2,
        new_clients=2,
        held_out=("font",),
        fraction=0.3,
    )
    streams = (Original(batch=1), UnseenDomain(), NewClients(), Gradual(reset="shift"), Gradual(reset="collapse"))
    shown = picture(Experiment(data=data, streams=streams))
    assert all(inked(shown, colour(d)) > 100 for d in range(3))
    assert inked(shown, lighter(colour(0))) + inked(shown, lighter(colour(1))) > 100


def test_preview_refuses_features_folders_and_other_formats(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "f.npz", x=np.zeros((40, 5), np.float32), y=np.arange(40) % 2)
    features = Experiment(data=Arrays(file=str(tmp_path / "f.npz"), clients=2), streams=(Original(),))
    target = tmp_path / "out.png"
    target.write_bytes(b"kept")
    with pytest.raises(ValueError, match="not uint8 images"):
        preview(features, target)
    assert target.read_bytes() == b"kept"
    (tmp_path / "folder.png").mkdir()
    for bad, says in (("x.jpg", "must end in .png"), ("folder.png", "is a folder"), ("out.png/x.png", "not a folder")):
        with pytest.raises(ValueError, match=says):
            preview(SMALL, tmp_path / bad)
    assert not list(tmp_path.glob(".*"))
