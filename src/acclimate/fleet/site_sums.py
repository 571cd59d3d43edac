"""A site's half of sums that survive drop-outs: the secrets of its clients in the sum of a round.

The steps of a sum are requests of their own, and a node may answer each in another process. So secrets lie in a file of
the run's vault, which its owner alone can read, written before an answer is given: whoever asks twice gets nothing the
second time. The file of a sum is overwritten by the next.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..experiment import Experiment
from ..filters import Masked
from ..filters.secret import secret_key
from ..filters.secure_sum import Client, Keys, needed
from ..store import read_json, write

Mask = Callable[[int], Tensor]


class SiteSums:
    """The clients of a site in sums of `Masked(threshold=...)`."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._folder = folder
        last = experiment.filters[-1] if experiment.filters else None
        self.record = last if isinstance(last, Masked) and last.threshold else None

    def answer(self, client: int, fields: Mapping[str, Any]) -> Any:
        """One client's answer to one step: JSON."""
        if self.record is None:
            raise ValueError("no sums of this run survive drop-outs: its last filter is not Masked with threshold")
        name, step = str(fields["name"]), fields["step"]
        if step == "keys":
            return self._keys(name, Client(client))
        me = self._load(name, client)
        if step == "shares":
            accepted = self._accepted(name, fields["keys"])
            sent = me.shares(accepted, needed(self.record.threshold, max(int(fields["of"]), len(accepted))))
            self._keep(name, me)
            return {"check": sent.check.hex(), "shares": {str(c): box.hex() for c, box in sent.shares.items()}}
        if step == "open":
            opened = me.opened([int(c) for c in fields["survivors"]])
            self._keep(name, me)
            return {
                "seeds": {str(c): f"{v:x}" for c, v in opened.seeds.items()},
                "keys": {str(c): f"{v:x}" for c, v in opened.keys.items()},
            }
        raise ValueError(f"step='{step}' must be keys, shares or open")

    def mask(self, client: int, fields: Mapping[str, Any]) -> Mask | None:
        """The masks of a client's message; None in a run whose masks need no agreement.

        A run that needs one never sends a message without it, whatever the request leaves out.
        """
        if self.record is None:
            return None
        if not isinstance(told := fields.get("sum"), Mapping):
            raise ValueError("the request names no sum, and this run's messages leave the site under its masks alone")
        name = str(told["name"])
        boxes = {int(c): bytes.fromhex(box) for c, box in told["boxes"][str(client)].items()}

        def words(count: int) -> Tensor:
            me = self._load(name, client)
            mask = me.mask(count, [int(c) for c in told["members"]], boxes)
            self._keep(name, me)
            return mask

        return words

    def _keys(self, name: str, me: Client) -> list[str]:
        self._keep(name, me)
        return [f"{me.keys().seal:x}", f"{me.keys().mask:x}", self._tag(name, me.number, me.keys())]

    def _accepted(self, name: str, told: Mapping[str, Any]) -> dict[int, Keys]:
        """The keys whose signatures are right, where the sites have a secret to sign with; all keys where not."""
        out = {}
        for number, (seal, mask, tag) in told.items():
            keys = Keys(int(seal, 16), int(mask, 16))
            if hmac.compare_digest(self._tag(name, int(number), keys).encode(), str(tag).encode()):
                out[int(number)] = keys
        return out

    def _tag(self, name: str, client: int, keys: Keys) -> str:
        assert self.record is not None
        if not self.record.secret:
            return ""
        body = json.dumps([name, client, f"{keys.seal:x}", f"{keys.mask:x}"]).encode()
        return hmac.digest(secret_key(self.record.secret, "keys of sums"), body, hashlib.sha256).hex()

    def _file(self, client: int) -> Path:
        return self._folder / "sums" / f"{client}.json"

    def _load(self, name: str, client: int) -> Client:
        path = self._file(client)
        body = read_json(path) if path.exists() else {}
        if body.get("name") != name:
            raise ValueError(f"client {client} is not in this sum: its secrets are not, or no longer, at this site")
        return Client.loaded(body["client"])

    def _keep(self, name: str, me: Client) -> None:
        write(self._file(me.number), json.dumps({"name": name, "client": me.saved()}) + "\n", mode=0o600)
