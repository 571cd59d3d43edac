"""Sections behind the headline: heat maps, fairness, calibration, pictures, and the record that is saved as files."""

from __future__ import annotations

import json
import math
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest
from made_up import EVIL, STREAMS, Page, fake, pictured, suite, written

from acclimate.reporting import page, style, svg
from acclimate.reporting.board import collect
from acclimate.reporting.report import render
from acclimate.reporting.sections import clients, heat_maps, stream_samples

ROOT = Path(__file__).parents[2]


def part(text: str, name: str) -> str:
    """One section of a page."""
    found = re.search(rf'<section id="{name}".*?</section>', text, re.DOTALL)
    assert found, name
    return found[0]


def lines(section: str, caption: str) -> list[list[str]]:
    """The cells of a table in plain text, by its caption; the head first."""
    table = next(t for t in re.findall(r"<table.*?</table>", section, re.DOTALL) if f">{caption}</caption>" in t)
    rows = re.findall(r"<tr.*?</tr>", table, re.DOTALL)
    return [[re.sub(r"<[^>]*>", "", c) for c in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in rows]


def record(text: str) -> dict[str, Any]:
    """The JSON from which the page's script filters and saves."""
    found = re.search(r'<script type="application/json" id="record">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def luminance(colour: str) -> float:
    """Of a colour such as #12abef, as contrast is computed from."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * c for c in colour[1:])
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """From 1 to 21."""
    low, high = sorted([luminance(a), luminance(b)])
    return (high + 0.05) / (low + 0.05)


def test_heat_maps_hold_every_number_and_frame_the_best() -> None:
    runs = suite((0, 1))
    section = part(render(runs), "method-and-adapter")
    last = section[: section.index('data-view="validation"')]
    assert re.findall(r'<div data-s="(\d)"><h4>([^<]*)', last) == [(str(i), s) for i, s in enumerate(STREAMS)]
    board = collect(runs)
    for i, stream in enumerate(STREAMS):
        panel = last.split(f'<div data-s="{i}">')[1].split("<div data-s=")[0]
        scores = {(r.name, r.adapter): r.score("last", [stream]) for r in board.rows}
        cells = re.findall(r"<title>([^,]*), ([^:]*): ([\d.]+) %</title>.*?<text[^>]*>([\d.]+)</text>", panel)
        assert {(m, a): shown for m, a, _, shown in cells} == {k: f"{v * 100:.1f}" for k, v in scores.items()}
        assert panel.count('class="frame"') == sum(
            round(v, 3) == round(max(scores.values()), 3) for v in scores.values()
        )


def test_a_heat_map_leaves_out_what_was_not_run_and_is_not_drawn_for_one_method() -> None:
    runs = suite((0,))
    runs[0]["results"]["table"] = [t for t in runs[0]["results"]["table"] if t["adapter"] != "tent"]
    section = part(render(runs), "method-and-adapter")
    assert "<title>fedavg, tent:" not in section
    assert "<title>fedavg, t3a:" in section
    assert 'id="method-and-adapter"' not in render([fake()])


def test_shades_grow_with_the_number_and_their_text_can_be_read() -> None:
    shades = [heat_maps._shade(v, 0.2, 0.9) for v in (0.2, 0.25, 0.5, 0.7, 0.9)]
    assert shades == sorted(shades) and shades[0] == 0 and shades[-1] == style.SHADES - 1
    for colours, dark_cells, rising in (
        (page.DAY_HEAT, page.DAY_DARK_CELLS, False),
        (page.NIGHT_HEAT, page.NIGHT_DARK_CELLS, True),
    ):
        assert len(colours) == style.SHADES
        steps = [luminance(c) for c in colours]
        assert steps == sorted(steps, reverse=not rising)  # lightness alone tells them apart
        texts = ["#fff" if i in dark_cells else "#10141b" for i in range(style.SHADES)]
        assert min(contrast(c, t) for c, t in zip(colours, texts, strict=True)) >= 4.5


def test_the_colours_of_the_page_can_be_read() -> None:
    for colours in (page.DAY, page.NIGHT):
        for ground in ("bg", "card", "mark", "hover"):
            assert contrast(colours["ink"], colours[ground]) >= 7
            assert contrast(colours["soft"], colours[ground]) >= 4.5
        assert contrast(colours["focus"], colours["bg"]) >= 3


def test_fairness_is_that_of_every_seed_averaged() -> None:
    runs = suite((0, 1))
    text = render(runs)
    table = lines(part(text, "fairness"), "Fairness on corrupted, Last round")
    key = {"method": "scaffold", "personal": "none", "adapter": "t3a", "stream": "corrupted", "selection": "last"}
    rows = [t for r in runs for t in r["results"]["table"] if all(t[k] == v for k, v in key.items())]
    ranked = [sorted(t["per_client"]) for t in rows]
    wanted = [fmean(fmean(v[:n]) for v in ranked) for n in (1, 2, 4, 10)]
    wanted += [fmean(v[-1] for v in ranked), fmean(map(pstdev, ranked))]
    mine = next(line for line in table if line[:2] == ["scaffold", "t3a"])
    assert [c.removesuffix(" best") for c in mine[2:-1]] == [f"{v * 100:.1f}" for v in wanted]
    assert mine[-1].removesuffix(" best") == f"{fmean(pstdev(v) ** 2 for v in ranked) * 1e4:.1f}"
    least = min(float(line[-2].removesuffix(" best")) for line in table[1:])
    assert [line[-2].endswith(" best") for line in table[1:]] == [
        float(line[-2].removesuffix(" best")) == least for line in table[1:]
    ]


def test_fairness_says_nothing_of_clients_that_are_not_listed() -> None:
    run = fake()
    for t in run["results"]["table"]:
        t["per_client"] = []
    assert 'id="fairness"' not in render([run])


def test_calibration_marks_the_least_error() -> None:
    runs = suite((0,))
    for i, t in enumerate(t for r in runs for t in r["results"]["table"]):
        t["ece"] = 0.05 + 0.01 * (i % 7)
    table = lines(part(render(runs), "calibration"), "Calibration error, Last round")
    for k in range(2, len(STREAMS) + 2):
        errors = [float(re.match(r"[\d.]+", line[k])[0]) for line in table[1:]]  # type: ignore[index]
        assert [line[k].endswith(" best") for line in table[1:]] == [e == min(errors) for e in errors]
    for r in runs:
        for t in r["results"]["table"]:
            del t["ece"]
    assert 'id="calibration"' not in render(runs)


def test_dots_are_thinned_evenly_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [i / 299 for i in range(300)]
    kept = clients._spaced(values, 50)
    assert len(kept) == 50 and kept[0] == 0.0 and kept[-1] == 1.0
    assert max(b - a for a, b in zip(kept, kept[1:], strict=False)) < 8 / 299
    monkeypatch.setattr(clients, "MOST_DOTS", 0)
    section = part(render([fake(clients=200)]), "every-client")
    assert "more than 30" in section
    assert max(path.count("M") for path in re.findall(r'class="dots c\d" d="([^"]*)"', section)) == 30


def test_many_methods_get_a_small_chart_each() -> None:
    names = [f"method{i}" for i in range(9)]
    section = part(render([fake(n, seed=s) for n in names for s in (0, 1)]), "learning-curves")
    assert len(re.findall(r'<svg class="panel"', section)) == 9
    assert section.count("<use ") == 8  # what lies behind is written once
    own = re.findall(r'<path class="line c\d" d="([^"]*)"', section)
    assert [d.count("M") for d in own] == [1] * 9  # the mean over seeds
    assert '<svg class="chart"' in part(render([fake(n) for n in names[: svg.MOST_CURVES]]), "learning-curves")


def test_pictures_are_shown_where_a_run_has_them_and_are_nothing_but_pictures() -> None:
    assert 'id="streams"' not in render([fake()])
    section = part(render([fake(), pictured(fake(seed=1))]), "streams")
    assert re.findall(r"<h4>([^<]*)</h4>", section) == ["training", *STREAMS]
    assert re.findall(r'<div data-s="(\d)"><h4>', section) == ["0", "1", "2", "3"]
    assert 'alt="6 samples of client 0 on original: digit 0, digit 1, digit 2, digit 3, digit 4 and digit 5"' in section
    assert "seed 1" in section
    bad = pictured(fake())
    for i, picture in enumerate(bad["results"]["pictures"].values()):
        picture["png"] = ["https://example.org/x.png", "data:text/html;base64,AAAA", "javascript:1", 'x" onerror="'][
            i % 4
        ]
    assert 'id="streams"' not in render([bad])
    evil = pictured(fake(), (EVIL,))
    evil["results"]["pictures"][EVIL] |= {"classes": [EVIL], "client": EVIL}
    text = render([evil])
    Page(text)
    assert "alert('" not in written(text)


def test_the_record_holds_every_number_of_the_table() -> None:
    runs = suite((0, 1))
    kept = record(render(runs, title=EVIL))
    assert kept["title"] == EVIL
    assert kept["streams"] == list(STREAMS) and kept["adapters"] == ["none", "tent", "t3a"]
    for t in (t for r in runs for t in r["results"]["table"]):
        name = t["method"] if t["personal"] == "none" else f"{t['method']}+{t['personal']}"
        row = next(r for r in kept["rows"] if (r["method"], kept["adapters"][r["adapter"]]) == (name, t["adapter"]))
        seeds = row["cells"][t["selection"]][STREAMS.index(t["stream"])]
        mine = dict(zip(kept["perSeed"], next(s for s in seeds if s[0] == t["seed"]), strict=True))
        assert mine == pytest.approx({k: t[k] for k in kept["perSeed"]}, rel=1e-5)
    run = fake()
    run["results"]["table"][0] |= {"accuracy": math.nan, "loss": None}
    assert record(render([run]))["rows"][0]["cells"]["last"][0][0][1] is None


def test_tables_are_named_for_those_who_cannot_see_them() -> None:
    text = written(render(suite()))
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        assert table.count("<caption") == 1
        assert not re.search(r"<th(?![^>]*scope=)", table.replace("<thead", ""))
    assert not re.search(r'<div class="scroll[^>]*(?<!tabindex="0") aria-label', text)
    assert all('aria-label="' in svg for svg in re.findall(r'<svg[^>]*role="img"[^>]*>', text))
    assert text.index('class="skip"') < text.index("<header")
    assert style.caption("a < b") == '<caption class="vh">a &lt; b</caption>'


def test_the_package_carries_the_style_sheet_and_the_script() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["acclimate"]
    source = ROOT / "src" / "acclimate"
    files = [p.relative_to(source).as_posix() for p in (source / "reporting").iterdir() if p.suffix in (".css", ".js")]
    assert files
    assert [f for f in files if not any(fnmatch(f, pattern) for pattern in listed)] == []


def test_a_mixture_is_said_by_its_parts() -> None:
    kinds = {f"kind{i}": 10 + i for i in range(15)}
    card = {"parts": {"Original": {}, "Corrupted": {"severity": 5, "kinds": kinds}, "OutOfClient": {}}, "hash": "x"}
    wanted = "a mixture of original, corrupted (severity 5; kinds 15, with 10 to 24 samples each), out-of-client"
    assert stream_samples.said(card) == wanted
    assert stream_samples.said({"severity": 5, "kinds": {"fog": 1}, "hash": "x"}) == "severity 5; kinds: fog 1"


def test_curves_show_the_mean_and_the_band_over_seeds() -> None:
    curve = svg.Curve("a", 0, (((1, 0.2), (2, 0.4)), ((1, 0.4), (2, 0.8))))
    assert [tuple(round(v, 6) for v in row) for row in curve.spread()] == [(1, 0.3, 0.2, 0.4), (2, 0.6, 0.4, 0.8)]
    drawn = svg.curves([curve])
    assert drawn.count('class="band') == 1 and drawn.count('class="line c0" d="M') == 2  # the other is the legend's
    assert "60.0 (40.0 to 80.0)" in drawn and drawn.count('class="at"') == 2
    assert 'class="band' not in svg.curves([svg.Curve("a", 0, (((1, 0.2), (2, 0.4)),))])
