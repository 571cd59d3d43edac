"""The page around the sections: head, contents, style sheet and script, all in one file that fetches nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files

from .style import DARK, LIGHT, SHADES, TONES, esc

DAY = {
    "bg": "#f8f9fb",
    "card": "#fff",
    "ink": "#171a21",
    "soft": "#555c6b",
    "line": "#dfe3ea",
    "link": "#0b5cad",
    "mark": "#e3f1e7",
    "hover": "#f2f5f9",
    "focus": "#0b5cad",
    "warn": "#b45309",
    "behind": "#cdd3dd",
}
NIGHT = {
    "bg": "#101318",
    "card": "#181c23",
    "ink": "#e9ecf1",
    "soft": "#a5adba",
    "line": "#2c323d",
    "link": "#8ac4ff",
    "mark": "#1d3a2b",
    "hover": "#20252e",
    "focus": "#8ac4ff",
    "warn": "#f0a94a",
    "behind": "#3a424f",
}
"""Colours of the page by their use, in the light and in the dark."""
DAY_HEAT = ("#f1f5fb", "#dbe7f6", "#bcd4ee", "#93bbe2", "#6299d1", "#2f6fb3", "#0d4484")
NIGHT_HEAT = ("#1b2430", "#1f3450", "#244a76", "#2d669f", "#4688c5", "#79b0e3", "#b9dcf8")
"""Shades of one hue that grow evenly in lightness, so that nobody needs to see colours to tell them apart."""
DAY_DARK_CELLS, NIGHT_DARK_CELLS = range(5, SHADES), range(4)
"""Shades on which white reads better than black."""


def page(title: str, head: str, sections: Mapping[str, str], source: str, record: str = "") -> str:
    """The whole file: `head`, `record` and the sections are HTML, `title` and the sections' headings plain text.

    `source` says what the page is made from. `record` is what the script filters and saves; a page without one has no
    script.
    """
    places = dict(zip(sections, _places(sections), strict=True))
    links = "".join(f'<li><a href="#{place}">{esc(name)}</a></li>' for name, place in places.items())
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(places) > 1 else ""
    body = "".join(
        f'<section id="{places[name]}" aria-labelledby="{places[name]}_title">'
        f'<h2 id="{places[name]}_title">{esc(name)}</h2>{part}</section>'
        for name, part in sections.items()
    )
    theme = '<button type="button" id="theme" aria-pressed="false" hidden>Dark</button>' if record else ""
    script = f"{record}<script>{_asset('page.js')}</script>" if record else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{esc(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f'<style>{style_sheet()}</style></head><body><a class="skip" href="#main">Skip to the content</a>'
        f'<header><div class="top"><h1>{esc(title)}</h1>{theme}</div>{head}'
        f'{contents}</header><main id="main" tabindex="-1">{body}</main>'
        f"<footer>Made by acclimate from {esc(source)}.</footer>{script}</body></html>\n"
    )


def _places(headings: Iterable[str]) -> list[str]:
    """The ids of sections: their headings in plain letters, so that links stay valid; equal ones are numbered.

    They have no underscore: what belongs to a section has one, and so an id of its own.
    """
    out: list[str] = []
    for heading in headings:
        stem = "-".join(re.findall("[a-z0-9]+", heading.lower())) or "section"
        numbered = (f"{stem}-{n}" for n in itertools.count(2))
        out.append(next(place for place in itertools.chain([stem], numbered) if place not in out))
    return out


@cache
def style_sheet() -> str:
    """The style sheet: light or dark, as the reader's system or the page's button says, and for phones too."""
    day = _variables(DAY, LIGHT, DAY_HEAT, DAY_DARK_CELLS)
    night = _variables(NIGHT, DARK, NIGHT_HEAT, NIGHT_DARK_CELLS)
    return (
        f":root{{color-scheme:light;{day}}}\n"
        f"@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{night}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{night}}}\n"
        + "".join(f".c{i}{{--c:var(--c{i})}}" for i in range(TONES))
        + "".join(f".h{i}{{--h:var(--h{i});--t:var(--t{i})}}" for i in range(SHADES))
        + _asset("page.css")
    )


def _variables(colours: Mapping[str, str], tones: tuple[str, ...], heat: tuple[str, ...], dark_cells: range) -> str:
    named = {**colours, **{f"c{i}": c for i, c in enumerate(tones)}, **{f"h{i}": c for i, c in enumerate(heat)}}
    named |= {f"t{i}": "#fff" if i in dark_cells else "#10141b" for i in range(SHADES)}
    return "".join(f"--{name}:{colour};" for name, colour in named.items())


@cache
def _asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
