"""What the streams look like: a few samples of each, as the first run with pictures kept them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..board import Board
from ..strips import figure
from ..style import esc, plain, scroll

MANY = 4
"""Up to so many kinds are named."""
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
    """What the data card says of a stream, less what names its content."""
    facts = said(card) if isinstance(card, Mapping) else ""
    return f'<p class="muted">{esc(facts)}</p>' if facts else ""


def said(card: Mapping[str, Any]) -> str:
    """A stream's card in words; a mixture names its parts, and each says what is special about it."""
    facts = {k: v for k, v in card.items() if k not in ("hash", "examples", "sketch", "parts")}
    if isinstance(kinds := facts.get("kinds"), Mapping) and len(kinds) > MANY and all(map(_counts, kinds.values())):
        facts["kinds"] = f"{len(kinds)}, with {min(kinds.values())} to {max(kinds.values())} samples each"
    if not isinstance(parts := card.get("parts"), Mapping):
        return plain(facts)
    inner = {_hyphened(name): said(own) if isinstance(own, Mapping) else plain(own) for name, own in parts.items()}
    mixed = ", ".join(f"{name} ({what})" if what else name for name, what in inner.items())
    return "; ".join(filter(None, [f"a mixture of {mixed}", plain(facts)]))


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _hyphened(name: str) -> str:
    """`OutOfClient` as tables call it: `out-of-client`."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "-", str(name)).lower()
