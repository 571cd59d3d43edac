"""What a finished run says of its data, streams and learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def data(run: Any) -> dict[str, str]:
    """The hashes of a run's examples and splits."""
    card = run["results"].get("data") or {}
    return _hashes({"examples": card, **card.get("splits", {})})


def stream(run: Any, stream: str) -> dict[str, Mapping[str, Any]]:
    """The card of one of a run's streams, by its name, where it says which examples came."""
    card = (run["results"].get("data") or {}).get("streams", {}).get(stream) or {}
    return {stream: card} if card.get("hash") is not None else {}


def curve(run: Any, adapter: str, stream: str) -> list[float]:
    """A stream's accuracy at every evaluated round, where the run kept it with this adapter."""
    return [
        m["streams"][stream] for m in run["metrics"] if m.get("adapter") == adapter and stream in m.get("streams", {})
    ]


def _hashes(cards: Mapping[str, Any]) -> dict[str, str]:
    """The hashes that cards hold, by name; a fleet's server knows none of its sites' data."""
    return {name: card["hash"] for name, card in cards.items() if card.get("hash") is not None}
