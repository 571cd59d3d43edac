"""What the streams look like: a few samples of each, as the first run with pictures kept them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..board import Board
from ..strips import figure
from ..style import esc, plain, scroll

PICTURE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")
"""What a picture may be: nothing that is fetched, and nothing but an image."""


def section(board: Board) -> str:
    """A strip of samples per stream, from `results["pictures"]`; nothing where no run kept any."""
    for run in board.runs:
        results = run["results"]
        cards = (results.get("data") or {}).get("streams") or {}
        if drawn := _panels(results.get("pictures") or {}, cards, board.streams):
            note = f"Samples of one client, spread over its stream, at seed {esc(results.get('seed'))}."
            return f'<p class="muted">{note} Names below them are labels, which adapters never see.</p>{drawn}'
    return ""


def _panels(pictures: Mapping[str, Any], cards: Mapping[str, Any], streams: list[str]) -> str:
    panels = []
    for name, picture in pictures.items():
        if isinstance(picture, Mapping) and PICTURE.fullmatch(str(picture.get("png"))):
            place = f' data-s="{streams.index(name)}"' if name in streams else ""
            drawn = scroll(f"Samples of {name}", figure(name, picture))
            panels.append(f"<div{place}><h4>{esc(name)}</h4>{drawn}{_note(cards.get(name))}</div>")
    return f'<div class="panels samples">{"".join(panels)}</div>' if panels else ""


def _note(card: Any) -> str:
    """What the data card says of a stream, less its hash."""
    facts = {k: v for k, v in card.items() if k != "hash"} if isinstance(card, Mapping) else {}
    return f'<p class="muted">{esc(plain(facts))}</p>' if facts else ""
