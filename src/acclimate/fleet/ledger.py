"""What a site has sent under noise of its own: one message per client and round, of one experiment, and no more.

The noise of `LocalDP` follows from the site's key, so that a round that is asked for again after a crash gets the same
bits. A server could make use of that: it asks for one round twice, with two models, and the difference of the answers
has no noise. So the key of a message's noise follows from the whole request. Another request has other noise, and is a
message more, which an epsilon must count. The ledger counts: it refuses what goes beyond the rounds of the experiment,
and any other experiment in the same run.
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


class LedgerRefusal(PermissionError):
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


class Ledger:
    """The messages that the clients of a site sent under noise in one run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def enter(self, client: int, experiment: str, rounds: int, key: bytes) -> None:
        """Note a message before it is sent; the same one may be sent again."""
        held = read_json(self.path) if self.path.exists() else {"experiment": experiment, "sent": {}}
        if held["experiment"] != experiment:
            raise LedgerRefusal(
                "this run has sent messages under noise for another experiment, and no epsilon counts both"
            )
        sent, name = held["sent"].setdefault(str(client), []), sha256(key).hexdigest()[:32]
        if name in sent:
            return
        if len(sent) >= rounds:
            raise LedgerRefusal(
                f"client {client} has sent {len(sent)} messages under noise, and the epsilon of this run counts no more"
            )
        sent.append(name)
        write(self.path, json.dumps(held), mode=0o600)
