"""What the streams look like: a few samples of each, as the first run with pictures kept them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .board import Board
from .style import esc, num, plain, scroll, words

PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")
"""What a picture may be: nothing that is fetched, and nothing but an image."""
TALL = 56
"""How many pixels a sample is about high on the page."""


def section(board: Board) -> str:
    """A row of samples per stream, from `results["pictures"]`; nothing where no run kept any."""
    for run in board.runs:
        results = run["results"]
        cards = (results.get("data") or {}).get("streams") or {}
        if drawn := _panels(results.get("pictures") or {}, cards, board.streams):
            said = f"Samples of one client, spread over its stream, at seed {esc(results.get('seed'))}."
            return f'<p class="muted">{said} Names below them are labels, which adapters never see.</p>{drawn}'
    return ""


def _panels(pictures: Mapping[str, Any], cards: Mapping[str, Any], streams: list[str]) -> str:
    panels = []
    for name, picture in pictures.items():
        if isinstance(picture, Mapping) and PICTURE.fullmatch(str(picture.get("png"))):
            place = f' data-s="{streams.index(name)}"' if name in streams else ""
            panels.append(f"<div{place}><h4>{esc(name)}</h4>{_picture(name, picture)}{_note(cards.get(name))}</div>")
    return f'<div class="panels samples">{"".join(panels)}</div>' if panels else ""


def _picture(name: str, picture: Mapping[str, Any]) -> str:
    labels = list(picture.get("classes") or ())
    width, height = (max(num(picture.get(k)), 1.0) for k in ("width", "height"))
    scale = max(round(TALL / height), 1)
    said = f"{len(labels)} samples of client {esc(picture.get('client'))} on {esc(name)}: {words(labels)}"
    size = f'width="{width * scale:g}" height="{height * scale:g}"'
    image = f'<img src="{picture["png"]}" {size} alt="{said}">'
    below = "".join(f"<span>{esc(label)}</span>" for label in labels)
    return scroll(f"Samples of {name}", f'<div class="sample">{image}<div aria-hidden="true">{below}</div></div>')


def _note(card: Any) -> str:
    """What the data card says of a stream, less its hash."""
    told = {k: v for k, v in card.items() if k != "hash"} if isinstance(card, Mapping) else {}
    return f'<p class="muted">{esc(plain(told))}</p>' if told else ""
