"""A site's half of sums that survive drop-outs: the secrets of its clients in the sum of a round.

The steps of a sum are requests of their own, and a node may answer each in another process. So secrets lie in a file of
the run's vault, which its owner alone can read, written before an answer is given: whoever asks twice gets nothing the
second time. The file of a sum is overwritten by the next.

A round may be asked for again, after a crash of the server. Its sum is then opened for the same clients as before, or
not at all: of two sums of which one lacks a client, the difference is that client's message.
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
        self._folder, self._clients = folder, experiment.data.clients
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
            shares, marks = ({str(c): v.hex() for c, v in part.items()} for part in (sent.shares, sent.marks))
            return {"check": sent.check.hex(), "shares": shares, "marks": marks}
        if step == "open":
            survivors = sorted({int(c) for c in fields["survivors"]})
            opened = me.opened(survivors)
            self._once(client, survivors)
            self._keep(name, me, self._round(client))
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
        given = {int(c): [bytes.fromhex(part) for part in parts] for c, parts in told["boxes"][str(client)].items()}
        boxes, marks = ({c: parts[i] for c, parts in given.items()} for i in (0, 1))

        def words(count: int) -> Tensor:
            me = self._load(name, client)
            mask = me.mask(count, [int(c) for c in told["members"]], boxes, marks)
            self._keep(name, me, int(fields["round"]))
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
            if not 0 <= int(number) < self._clients:  # no client of the run; -1 would be given the secrets themselves
                raise ValueError(f"client {number} is none of the {self._clients} of this run")
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

    def _keep(self, name: str, me: Client, round: int = -1) -> None:
        body = {"name": name, "round": round, "client": me.saved()}
        write(self._file(me.number), json.dumps(body) + "\n", mode=0o600)

    def _round(self, client: int) -> int:
        """The round whose message the secrets of a client's last sum mask."""
        return int(read_json(self._file(client))["round"])

    def _once(self, client: int, survivors: list[int]) -> None:
        """Note for whom the sum of this round is opened; refuse it where it was opened for others before."""
        path, round = self._folder / "sums" / f"{client}-opened.json", str(self._round(client))
        held = read_json(path) if path.exists() else {}
        if held.setdefault(round, survivors) != survivors:
            raise ValueError(
                f"client {client} has opened the sum of round {round} for other clients; the difference of the two "
                "sums would be a message"
            )
        write(path, json.dumps(held) + "\n", mode=0o600)
