"""Who may ask what: bearer tokens per client and one for the administrator; a file holds their hashes alone."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import store

SCHEMA = "acclimate.tokens/1"


def hashed(token: str) -> str:
    """What a file holds of a token; tokens are random and long, so that a plain hash does."""
    return hashlib.sha256(token.encode()).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own, which no other machine can reach."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


@dataclass(frozen=True)
class Tokens:
    """The hashes of tokens."""

    admin: str
    clients: dict[int, str]

    def admits(self, header: str | None, client: int | None = None) -> bool:
        """Whether an Authorization header has the administrator's token, or that of the client."""
        return _fits(header, [self.admin, *([self.clients[client]] if client in self.clients else [])])

    def knows(self, header: str | None) -> bool:
        """Whether an Authorization header has any token of these."""
        return _fits(header, [self.admin, *self.clients.values()])


def _fits(header: str | None, allowed: Sequence[str]) -> bool:
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        return False
    mine = hashed(token.strip())
    fits = [hmac.compare_digest(mine, one) for one in allowed]  # all are compared, whichever fits
    return any(fits)


def load(path: Path) -> Tokens:
    """Tokens from their file."""
    card = store.read_json(path)
    if card.get("schema") != SCHEMA:
        raise store.RunError(
            f"{path}: schema={card.get('schema')!r} must be '{SCHEMA}'; write one with: acclimate tokens"
        )
    try:
        return Tokens(_hash(card["admin"]), {int(c): _hash(h) for c, h in card["clients"].items()})
    except (KeyError, AttributeError, ValueError, TypeError) as e:
        raise store.RunError(
            f"{path} is damaged: {type(e).__name__} {e}; write a new one with: acclimate tokens"
        ) from e


def _hash(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 64 or int(value, 16) < 0:
        raise ValueError(f"{value!r} is no SHA-256")
    return value.lower()


def create(path: Path, clients: Sequence[int]) -> dict[str, str]:
    """Draw tokens, write their hashes, and return them: they can be seen this once."""
    if path.exists():
        raise store.RunError(f"{path} is there already; delete it to draw new tokens, or choose another file")
    drawn = {"admin": secrets.token_urlsafe(32)} | {str(c): secrets.token_urlsafe(32) for c in clients}
    hashes = {name: hashed(token) for name, token in drawn.items()}
    card = {"schema": SCHEMA, "admin": hashes.pop("admin"), "clients": hashes}
    store.write(path, store.json_text(card, indent=1) + "\n", mode=0o600)
    return drawn
