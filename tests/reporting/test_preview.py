"""Previews of data: the image format, and that what is shown is what clients and streams hold."""

import base64
import re
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_up import EVIL, Page

from acclimate.core import Shards, rng
from acclimate.data import IID, Arrays, ByDomain, Cells, Digits, Examples, Windows, World, of
from acclimate.experiment import Experiment
from acclimate.reporting import bubbles, png
from acclimate.reporting.bubbles import BubbleColumn, bubble_plot, radius
from acclimate.reporting.preview import clients_and_classes, contact_sheet, domains, preview, preview_page
from acclimate.reporting.strips import drawn, to_rgb
from acclimate.shifts import Corrupted, Gradual, NewClients, Original, Quantile, Stream, UnseenDomain


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


def rows(section):
    """The rows of a block's table: the client, its count, and its images as (pixels, class, size on the page)."""
    out = []
    for row in re.findall(r"<tr>(.*?)</tr>", section.partition("<tbody>")[2], re.DOTALL):
        client = re.sub("<[^>]*>", "", re.search(r"<th.*?</th>", row)[0]).strip()
        count = re.search(r'<td class="num">([\d,]+)</td>', row)[1]
        drawn = re.findall(r'src="data:image/png;base64,([^"]*)" width="(\d+)" height="(\d+)" alt="([^"]*)"', row)
        images = [(decode(base64.b64decode(raw)), alt, (int(w), int(h))) for raw, w, h, alt in drawn]
        out.append((client, int(count.replace(",", "")), images, re.findall(r"<span>([^<]*)</span>", row)))
    return out


def circles(plot):
    """The bubbles of a plot: (client, class) -> (count, radius, tone, whether it is paler)."""
    pattern = (
        r'<circle class="bubble c(\d)( new)?" cx="\d+" cy="\d+" r="([\d.]+)"><title>client ([^,]*), ([^:]*): (\d+)<'
    )
    return {
        (who, name): (int(n), float(r), int(tone), bool(new))
        for tone, new, r, who, name, n in re.findall(pattern, plot)
    }


def noise(n, channels=3, height=8, width=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, channels, height, width), generator=g, dtype=torch.uint8)


def world(sizes=(20, 16), x=None, y=None, domain=None, names=("one", "two"), **fields):
    """Clients that hold the examples one after another, for training alone unless a test says otherwise."""
    n = sum(sizes)
    x = noise(n + 40) if x is None else x
    y = torch.arange(len(x)) % 3 if y is None else y
    domain = torch.zeros(len(x), dtype=torch.int64) if domain is None else domain
    examples = Examples(x, y, ("ant", "bee", "cat"), domain, names)
    none = tuple(torch.zeros(0, dtype=torch.int64) for _ in sizes)
    fields = {"val": none, "test": none, **fields}
    return World(examples, torch.arange(n).split(list(sizes)), **fields)


# --- the file format of images -----------------------------------------------------------------------------------


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


def test_grey_is_shown_as_grey_and_features_are_refused():
    grey = noise(2, channels=1)
    shown = to_rgb(grey)
    assert all(np.array_equal(shown[:, :, :, i], grey[:, 0].numpy()) for i in range(3))
    with pytest.raises(ValueError, match=r"nothing to picture: inputs are float32 of shape \(20,\)"):
        to_rgb(torch.zeros(4, 20))


def test_numbers_are_drawn_as_cells_and_lines():
    x = torch.tensor([[0.0, 5.0, 1.0], [2.0, 5.0, 3.0], [1.0, 5.0, 2.0], [1.0, 5.0, 2.0]])
    data = of(x, [0, 1, 0, 1], clients=1, split=(0.5, 0.0, 0.5), partition=IID())
    w = data.world()
    known = x[w.train[0]]
    shown = drawn(w, x)
    assert shown.shape == (4, 1, 2, 2) and shown.dtype == torch.uint8
    mean, std = known.mean(0), known.std(0, correction=0).clamp_min(1e-12)
    level = ((x - mean) / std / 6 + 0.5).clamp(0, 1).mul(255).round()
    assert torch.equal(shown.flatten(1)[:, :3].float(), level) and (shown[:, 0, 1, 1] == 128).all()
    lines = of(torch.zeros(4, 3, 7), [0, 1, 0, 1], clients=1, partition=IID()).world()
    assert drawn(lines, lines.examples.x).shape == (4, 1, 3, 7)
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    assert drawn(lines, pixels) is pixels


def test_a_table_has_a_preview(tmp_path):
    experiment = Experiment(data=Cells(), streams=(Corrupted(), Quantile()))
    text = preview(experiment, tmp_path / "p.html").read_text()
    assert "vectors of 30" in text and "grey is the mean of the training rows" in text
    assert "Stream corrupted" in text and "Stream quantile" in text and "5 kinds" in text
    assert text.count("data:image/png") == 3 * 5 * 12 and "Vectors, with their classes" in text


def test_clients_are_called_as_in_the_data_and_training_examples_are_of_all_classes(tmp_path):
    """Windows of training lie class by class."""
    state = np.repeat(["run", "sit"], 300)
    frame = {"u": np.arange(600.0), "who": ["b<b"] * 300 + ["0"] * 300, "state": np.roll(state, 150)}
    data = Windows.of(frame, label="state", client="who", window=10, stride=10)
    text = preview(Experiment(data=data, streams=(Original(),)), tmp_path / "p.html").read_text()
    training = text.partition(">Training examples</h2>")[2].partition("</table>")[0]
    first, second = training.split("</tr>")[1:3]
    assert " client 0 (0)" not in training and "> client 1 (b&lt;b)</th>" in second and "Windows, with" in training
    assert first.count("run") >= 6 <= first.count("sit")


# --- bubbles -----------------------------------------------------------------------------------------------------


def test_bubbles_are_the_counts_and_areas_are_in_proportion():
    assert radius(4, 4, 50) == pytest.approx(2 * radius(1, 4, 50))
    w = world((16, 4))
    counts = w.histogram(w.train)
    plot = clients_and_classes(w)
    found = circles(plot)
    wanted = {(str(c), name): int(counts[c, k]) for c in range(2) for k, name in enumerate(("ant", "bee", "cat"))}
    assert {key: n for key, (n, *_) in found.items()} == wanted
    largest = max(n for n, *_ in found.values())
    full = max(r for _, r, *_ in found.values())
    assert all((r / full) ** 2 == pytest.approx(n / largest, rel=0.05) for n, r, *_ in found.values())
    assert re.findall(r'rotate\(-90\)" text-anchor="end">([^<]*)<', plot) == ["16", "4"]
    assert f"the largest is {largest}." in plot
    assert all(f">{name}</text>" in plot for name in ("ant", "bee", "cat", "0", "1"))


def test_a_class_that_a_client_lacks_has_no_bubble():
    found = circles(clients_and_classes(world((16, 4), y=torch.zeros(60, dtype=torch.int64))))
    assert set(found) == {("0", "ant"), ("1", "ant")}
    assert (found["0", "ant"][1] / found["1", "ant"][1]) ** 2 == pytest.approx(4, rel=0.05)


def test_clients_have_the_colour_of_their_majority_domain():
    domain = torch.tensor([0] * 5 + [1] * 15 + [2] * 16 + [0] * 40)
    w = world((20, 16), domain=domain, names=("plain", "sketch", "photo", "absent"))
    assert domains(w, w.train) == [1, 2]
    plot = clients_and_classes(w)
    assert {who: tone for (who, _), (_, _, tone, _) in circles(plot).items()} == {"0": 1, "1": 2}
    legend = plot[plot.index('<ul class="legend" aria-label="Domain of most examples">') :]
    assert re.findall(r"</svg>([^<]*)</li>", legend) == ["plain", "sketch", "photo"], "every domain that is there"
    assert re.findall(r'class="mark c(\d)"', legend) == ["0", "1", "2"]
    assert "Domain of most" not in clients_and_classes(world())


def test_newcomers_are_paler_and_many_clients_and_classes_are_counted(monkeypatch):
    w = world((20, 16), new=(torch.arange(36, 50),))
    plot = clients_and_classes(w)
    assert {who: new for (who, _), (*_, new) in circles(plot).items()} == {"0": False, "1": False, "n0": True}
    assert sum(n for (who, _), (n, *_) in circles(plot).items() if who == "n0") == 14
    assert "Paler clients join after training" in plot
    assert "Paler" not in clients_and_classes(replace(w, new=()))
    columns = [BubbleColumn(str(i), [1.0, 2.0, 3.0]) for i in range(70)]
    monkeypatch.setattr(bubbles, "CLASSES", 2)
    cut = bubble_plot(columns, ("ant", "bee", "cat"), "plot", most=120)
    assert cut.count("<circle") == 120 and "cat" not in cut
    assert "The first 60 of 70 clients. The first 2 of 3 classes." in cut


# --- the contact sheet -------------------------------------------------------------------------------------------


def stream_of(w, own, **fields):
    return Stream(Shards.of(w.examples.x, w.examples.y, own), **fields)


def test_the_sheet_shows_the_very_pixels_in_stream_order():
    w = world((20, 5))
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0)) + 30
    sheet = contact_sheet(w, {"shifted": stream_of(w, [order, torch.arange(25, 28)])})
    assert list(sheet) == ["Training examples", "Stream shifted"]
    wanted = {"Training examples": w.train, "Stream shifted": (order, torch.arange(25, 28))}
    for heading, own in wanted.items():
        found = rows(sheet[heading])
        assert [(client, count) for client, count, *_ in found] == [(f"client {c}", len(r)) for c, r in enumerate(own)]
        for (_, _, images, classes), r in zip(found, own, strict=True):
            assert len(images) == min(len(r), 12), "twelve, not more"
            if heading == "Training examples":  # spaced over all
                r = torch.stack([r[i * len(r) // len(images)] for i in range(len(images))])
            assert np.array_equal(np.stack([i for i, *_ in images]), to_rgb(w.examples.x[r[:12]]))
            assert classes == [w.examples.classes[c] for c in w.examples.y[r[:12]]]
            assert {size for *_, size in images} == {(56, 56)}, "enlarged by a whole number"


def test_grey_and_large_images_and_streams_that_change():
    grey = world((15,), x=noise(40, channels=1, height=6, width=9))
    (_, _, images, _) = rows(contact_sheet(grey, {})["Training examples"])[0]
    assert np.array_equal(images[0][0], to_rgb(grey.examples.x[:1])[0]) and images[0][2] == (81, 54)
    flat = torch.full((40, 3, 100, 130), 77, dtype=torch.uint8)
    (_, _, images, _) = rows(contact_sheet(world((15,), x=flat), {})["Training examples"])[0]
    assert [i.shape for i, *_ in images] == [(34, 44, 3)] * 12 and all((i == 77).all() for i, *_ in images)
    w = world((36,), x=noise(76))
    plan = {"segment": 3, "plan": [["fog", 1]] * 12}
    changing = contact_sheet(w, {"s": stream_of(w, [torch.arange(36, 72)], card=plan)}, {"s": "About it."})["Stream s"]
    assert np.array_equal(np.stack([i for i, *_ in rows(changing)[0][2]]), to_rgb(w.examples.x[36:72:3]))
    assert "About it. Here: images spaced over the whole stream. segment 3; 12 segments of fog." in changing


def test_more_than_ten_clients_are_counted_and_empty_ones_are_named():
    assert "more clients" not in contact_sheet(world((3,) * 10), {})["Training examples"]
    many = contact_sheet(world((3,) * 25), {})["Training examples"]
    assert len(rows(many)) == 10 and "... and 15 more clients." in many
    w = world((12,))
    nothing = contact_sheet(w, {"none": stream_of(w, [torch.zeros(0, dtype=torch.int64)])})["Stream none"]
    assert rows(nothing) == [("client 0", 0, [], [])] and ">nothing<" in nothing


def test_names_cannot_break_the_page():
    w = world(names=(EVIL, "two"))
    w = replace(w, examples=replace(w.examples, classes=(EVIL, "bee", "cat")))
    sheet = contact_sheet(w, {EVIL: stream_of(w, [torch.arange(3)], card={EVIL: EVIL})}, {EVIL: EVIL})
    assert "<script" not in "".join([clients_and_classes(w), *sheet.values()])


# --- the whole page ----------------------------------------------------------------------------------------------

SMALL = Experiment(data=Digits(clients=3, fraction=0.2), streams=(Original(), Corrupted()))


def sections(text):
    """The sections of a page by their headings."""
    found = re.findall(r"<section.*?<h2[^>]*>([^<]*)</h2>(.*?)</section>", text, re.DOTALL)
    return dict(found)


def test_preview_writes_the_same_valid_file_every_time(tmp_path):
    first, again = (preview(SMALL, tmp_path / name).read_text() for name in ("a.html", "deep/b.html"))
    assert first == again == preview_page(SMALL)
    Page(first)
    assert not re.search(r"https?:|@import|url\(|<script", first), "it needs nothing from outside"
    assert preview(replace(SMALL, seed=1), tmp_path / "a.html").read_text() != first
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["a.html", "b.html", "deep"], "no temporary files"


def test_preview_says_what_the_data_is_and_shows_the_streams_that_a_run_builds():
    w = SMALL.data.world(SMALL.seed)
    shards = Corrupted().build(w, rng.fold(rng.key(w.seed), "streams")).shards
    text = preview_page(SMALL)
    parts = sections(text)
    assert list(parts) == ["Clients and classes", "Training examples", "Stream original", "Stream corrupted"]
    assert "3 clients, 10 classes, images of 3 x 16 x 16, seed 0." in text
    counts = [f"{sum(map(len, r)):,} {name}" for name, r in (("training", w.train), ("validation", w.val))]
    assert f"Examples: {', '.join(counts)}, " in text
    assert "Data: partition=dirichlet(alpha=0.05), clients=3, fraction=0.2, dealt by revision 2." in text
    assert "Served in batches of 32." in parts["Stream corrupted"]
    for c, (_, count, images, _) in enumerate(rows(parts["Stream corrupted"])):
        assert count == len(shards.own(c))
        assert np.array_equal(np.stack([i for i, *_ in images]), to_rgb(shards.x[shards.own(c)[:12]]))


def test_preview_of_domains_newcomers_held_out_and_changing_streams():
    data = Digits(
        domains=("plain", "inverted", "font"),
        partition=ByDomain(),
        clients=2,
        new_clients=2,
        held_out=("font",),
        fraction=0.3,
    )
    streams = (Original(batch=1), UnseenDomain(), NewClients(), Gradual(reset="shift"), Gradual(reset="collapse"))
    text = preview_page(Experiment(data=data, streams=streams))
    Page(text)
    parts = sections(text)
    assert len(parts) == 2 + len(streams)
    assert "2 clients and 2 new ones" in text and " held out." in text
    assert re.findall(r"</svg>([^<]*)</li>", text) == ["plain", "inverted", "font (held out)"]
    assert {who for who, _ in circles(text)} == {"0", "1", "n0", "n1"}
    assert [client for client, *_ in rows(parts["Stream new-clients"])] == ["new client 0", "new client 1"]
    assert "Served one by one." in parts["Stream original"]
    changing = [part for name, part in parts.items() if name.startswith("Stream gradual")]
    assert len(changing) == 2 and all("spaced over the whole stream" in part for part in changing)
    assert "a fresh adapter at every change" in changing[0] and "reset=collapse" in changing[1]


def test_preview_refuses_features_folders_and_other_formats(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "f.npz", x=np.zeros((40, 1, 5, 5), np.float32), y=np.arange(40) % 2)
    features = Experiment(data=Arrays(file=str(tmp_path / "f.npz"), clients=2), streams=(Original(),))
    target = tmp_path / "out.html"
    target.write_bytes(b"kept")
    with pytest.raises(ValueError, match="not uint8 images"):
        preview(features, target)
    assert target.read_bytes() == b"kept"
    (tmp_path / "folder.html").mkdir()
    refused = {"x.png": "must end in .html: the preview is a page", "x.svg": "must end in .html"}
    refused |= {"folder.html": "is a folder", "out.html/x.html": "not a folder"}
    for bad, says in refused.items():
        with pytest.raises(ValueError, match=says):
            preview(SMALL, tmp_path / bad)
    assert not list(tmp_path.glob(".*"))
