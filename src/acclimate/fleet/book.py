"""What a site has sent under noise or masks: one message per client and round, of one experiment, and no more.

The noise of `LocalDP` follows from the site's key, so that a round that is asked for again after a crash gets the same
bits. A server could make use of that: it asks for one round twice, with two models, and the difference of the answers
has no noise. So the key of a message's noise follows from the whole request. Another request has other noise, and is a
message more, which an epsilon must count. The book counts: it refuses what goes beyond the rounds of the experiment,
and any other experiment in the same run. Masks cannot be drawn anew, because the sum needs those of all clients: under
them a second request for a round is refused, unless it is the first one again.
"""

from __future__ import annotations

import hmac
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from ..core import Tree, tree
from ..store import read_json, write

FILE = "sent.json"


class BookRefusal(PermissionError):
    """A request whose answer the epsilon of the run does not count."""


def request_key(key: bytes, given: Tree, **about: Any) -> bytes:
    """The key of the noise of one answer, from the site's key and all that the answer follows from."""
    mac = hmac.new(key, digestmod=sha256)
    for name, part in sorted(tree.flatten(given).items()):
        head = json.dumps([name, str(part.dtype), list(part.shape)]).encode()
        for block in (head, part.detach().cpu().contiguous().numpy().tobytes()):
            mac.update(len(block).to_bytes(8, "little") + block)
    mac.update(json.dumps(about, sort_keys=True).encode())
    return mac.digest()


class MessageBook:
    """The messages that the clients of a site sent under noise or masks in one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def enter(self, client: int, experiment: str, rounds: int, key: bytes) -> None:
        """Note a message under noise before it is sent; the same one may be sent again."""
        held, name = self._held(experiment), _name(key)
        sent = held["noise"].setdefault(str(client), [])
        if name in sent:
            return
        if len(sent) >= rounds:
            raise BookRefusal(
                f"client {client} has sent {len(sent)} messages under noise, and the epsilon of this run counts no more"
            )
        sent.append(name)
        write(self.path, json.dumps(held), mode=0o600)

    def once(self, client: int, experiment: str, round: int, key: bytes) -> None:
        """Note a message under masks before it is sent; in one round there is one alone."""
        held, name = self._held(experiment), _name(key)
        sent = held["masks"].setdefault(str(client), {})
        if sent.setdefault(str(round), name) != name:
            raise BookRefusal(
                f"client {client} has answered round {round} for another model or cohort; two messages under one mask "
                "give away their difference"
            )
        write(self.path, json.dumps(held), mode=0o600)

    def _held(self, experiment: str) -> dict[str, Any]:
        fresh: dict[str, Any] = {"experiment": experiment, "noise": {}, "masks": {}}
        held = read_json(self.path) if self.path.exists() else fresh
        if held["experiment"] != experiment:
            raise BookRefusal("this run has sent messages for another experiment, and no promise counts both")
        return held


def _name(key: bytes) -> str:
    return sha256(key).hexdigest()[:32]
