"""A sum that the server reads without reading one summand, and that survives clients that drop out or send garbage.

The protocol of Bonawitz et al. (CCS 2017, Section 4) in four steps, on whole numbers modulo 2^32:

1. Every client makes two keys and publishes their public halves (`Client.keys`).
2. It splits its mask key and the seed of a mask of its own into shares, one for each other client, and seals each so
   that only that client can open it (`Client.shares`).
3. It sends its numbers under its own mask and one mask per pair of members, those who sent shares (`Client.mask`).
4. Those whose numbers arrived open, of every survivor, their share of the own mask's seed, and of every other member
   their share of the mask key: never both of one client (`Client.opened`). `correction` takes the masks off the sum.

Any `threshold` clients that answer step 4 are enough, so that many may drop out or send garbage as are above it, at any
step. A client publishes a hash of every share that it gives (`Shares.marks`). Whoever is given another share does not
hold it, and whoever opens another one is a liar, whom the server can name (`liars`).

It holds against a server that follows the protocol and sees everything, together with up to `threshold` - 1 clients. A
server that shows different clients different keys or survivors is not held off by this alone: with the sites' own
secret (`Masked.secret`) keys are signed, so that it cannot put its own in the place of a client's.

A client's secrets outlive its process (`Client.saved`), because the four steps are four requests. They serve one sum:
it masks once, and opens for one set of survivors, whatever it is asked.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import chacha, shamir

MODULUS = 1 << 32
_SHARE = 66
"""Bytes of a share."""
CHECK, MARK, SEALED = 32, 64, 2 * _SHARE + 32
"""Bytes of the check of a seed, of the mark of a pair of shares, and of a pair of shares that is sealed."""


class Keys(NamedTuple):
    """A client's public keys: of the seals of shares, and of the masks of pairs."""

    seal: int
    mask: int


class Shares(NamedTuple):
    """What a client sends in the second step."""

    check: bytes
    """A hash of the seed of its own mask, by which the server knows it when it sees it."""
    shares: dict[int, bytes]
    """The sealed shares, by the client that each is for."""
    marks: dict[int, bytes]
    """Hashes of the two shares of every client, itself among them. Shares are random numbers of 521 bits, of which a
    hash tells nothing."""


class Opened(NamedTuple):
    """What a client tells in the last step: shares by the client whose secret they are of."""

    seeds: dict[int, int]
    keys: dict[int, int]


class Client:
    """One client in one sum. Its secrets are made when it is, and serve this sum alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._seal, self._mask, self._seed = (shamir.private_key() for _ in range(3))
        self._public = Keys(shamir.public_key(self._seal), shamir.public_key(self._mask))
        self._threshold = 1
        self._others: dict[int, Keys] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._seals: dict[int, bytes] = {}
        self._members: set[int] = set()
        """Those with whom it shares masks; nobody before it has masked its numbers."""
        self._opened: list[int] = []
        """For which survivors it has opened shares; nobody before it has."""

    def keys(self) -> Keys:
        """The public halves of the keys."""
        return self._public

    def shares(self, all_keys: Mapping[int, Keys], threshold: int) -> Shares:
        """The shares of the own secrets for all clients whose keys are known. It gives them once."""
        check_threshold(threshold, len(all_keys))
        if self._others:
            raise ValueError(f"client {self.number}: it has sent shares before")
        if all_keys.get(self.number) != self.keys():
            raise ValueError(f"client {self.number}: these are not its keys")
        self._others, self._threshold = dict(all_keys), threshold
        seeds = shamir.split(self._seed, all_keys, threshold)
        keys = shamir.split(self._mask, all_keys, threshold)
        self._held[self.number] = seeds[self.number], keys[self.number]
        sealed = {c: _sealed(self._common(c), self.number, c, seeds[c], keys[c]) for c in all_keys if c != self.number}
        return Shares(_check(self._seed), sealed, {c: _mark(seeds[c], keys[c]) for c in all_keys})

    def mask(
        self, words: int, members: Collection[int], sealed: Mapping[int, bytes], marks: Mapping[int, bytes]
    ) -> Tensor:
        """The sum of its own mask and of those with all members; `sealed` are their shares for this client, and
        `marks` the hashes of these. It gives them once.

        A share that was tampered with, or has another hash, is not held. It shares a mask with the sender all the
        same, as the sender does.
        """
        strange = set(members) - self._others.keys()
        if self._members or strange or self.number not in members or len(members) < self._threshold:
            why = f"{len(members)} members, {len(strange)} unknown" if not self._members else "it has masked before"
            raise ValueError(f"client {self.number}: these members cannot share masks: {why}")
        for c in set(members) - {self.number}:
            pair = _unsealed(self._common(c), c, self.number, sealed.get(c, b""))
            if pair is not None and _mark(*pair) == marks.get(c):
                self._held[c] = pair
        self._members = set(members)
        total = _stream(_own(self._seed), words)
        for c in sorted(self._members - {self.number}):
            total = total + _pair(self.number, c, self._mask, self._others[c].mask, words)
        return torch.remainder(total, MODULUS)

    def opened(self, survivors: Collection[int]) -> Opened:
        """Shares of the survivors' own masks, and of the mask keys of those who are missing. Asked again, because an
        answer was lost, it gives the same answer, and never one for other survivors."""
        alive = set(survivors)
        if self._opened not in ([], sorted(alive)) or len(alive) < self._threshold or not alive <= self._members:
            raise ValueError(f"client {self.number}: {len(alive)} survivors cannot be opened, or others were before")
        self._opened = sorted(alive)
        held = self._held.keys() & (self._members | {self.number})
        return Opened({c: self._held[c][0] for c in held & alive}, {c: self._held[c][1] for c in held - alive})

    def saved(self) -> dict[str, Any]:
        """All of it as JSON, for a file that nobody else can read."""
        return {
            "number": self.number,
            "secrets": [hex(self._seal), hex(self._mask), hex(self._seed)],
            "public": [hex(k) for k in self._public],
            "threshold": self._threshold,
            "others": {c: [hex(k.seal), hex(k.mask)] for c, k in self._others.items()},
            "held": {c: [hex(a), hex(b)] for c, (a, b) in self._held.items()},
            "members": sorted(self._members),
            "opened": self._opened,
        }

    @classmethod
    def loaded(cls, body: Mapping[str, Any]) -> Client:
        """The inverse of `saved`."""
        out = cls.__new__(cls)
        out.number, out._threshold, out._opened = body["number"], body["threshold"], list(body["opened"])
        out._seal, out._mask, out._seed = (int(v, 16) for v in body["secrets"])
        out._public = Keys(*(int(v, 16) for v in body["public"]))
        out._others = {int(c): Keys(int(a, 16), int(b, 16)) for c, (a, b) in body["others"].items()}
        out._held = {int(c): (int(a, 16), int(b, 16)) for c, (a, b) in body["held"].items()}
        out._members, out._seals = set(body["members"]), {}
        return out

    def _common(self, other: int) -> bytes:
        if other not in self._seals:
            self._seals[other] = shamir.agreed(self._seal, self._others[other].seal, "seal")
        return self._seals[other]


class Unreadable(ArithmeticError):
    """A secret that does not follow from the shares that were opened; names the client whose fault it is, where it is
    certain, or where most of the others say so."""

    def __init__(self, client: int | None, what: str) -> None:
        self.client = client
        super().__init__(what)


def correction(
    words: int,
    arrived: Collection[int],
    keys: Mapping[int, Keys],
    sent: Mapping[int, Shares],
    opened: Mapping[int, Opened],
    threshold: int,
) -> Tensor:
    """What must be added, modulo 2^32, to the sum of what arrived so that no mask is left in it.

    `keys` and `sent` are of all members.
    """
    if len(opened) < threshold:
        raise ArithmeticError(f"{len(opened)} clients opened their shares; {threshold} are needed to read the sum")
    total = torch.zeros(words, dtype=torch.int64)
    for c in arrived:
        total = total - _stream(_own(_seed_of(c, opened, sent[c], threshold)), words)
    for gone in keys.keys() - set(arrived):
        private = _key_of(gone, opened, sent[gone], keys[gone].mask, threshold)
        for c in arrived:  # what it would have added for its pair with a survivor
            total = total + _pair(gone, c, private, keys[c].mask, words)
    return torch.remainder(total, MODULUS)


def liars(opened: Mapping[int, Opened], sent: Mapping[int, Shares]) -> list[int]:
    """Clients that opened a share of a member that is not the one whose hash the member published."""
    return sorted(
        c
        for c, own in opened.items()
        if any(_hash(v) != _half(sent[m], c, 0) for m, v in own.seeds.items() if m in sent)
        or any(_hash(v) != _half(sent[m], c, 1) for m, v in own.keys.items() if m in sent)
    )


def needed(share: float, clients: int) -> int:
    """How many of so many clients a share is, and more than half of them in any case."""
    return max(math.ceil(share * clients - 1e-9), clients // 2 + 1)


def check_threshold(threshold: int, clients: int) -> None:
    """Refuse one below a majority: two halves of the clients could then open both secrets of a client."""
    if not clients // 2 < threshold <= clients:
        raise ValueError(f"threshold={threshold} must be above half of the {clients} clients, and at most all")


def valid(keys: Keys) -> bool:
    """Whether these can be keys of a client: numbers of the group that are not trivial."""
    return all(1 < key < shamir.group() - 1 for key in keys)


def _seed_of(client: int, opened: Mapping[int, Opened], sent: Shares, threshold: int) -> int:
    given = {c: o.seeds.get(client) for c, o in opened.items()}
    return _found(client, given, 0, sent, threshold, lambda seed: _check(seed) == sent.check)


def _key_of(client: int, opened: Mapping[int, Opened], sent: Shares, public: int, threshold: int) -> int:
    given = {c: o.keys.get(client) for c, o in opened.items()}
    return _found(client, given, 1, sent, threshold, lambda key: shamir.public_key(key) == public)


def _found(
    client: int,
    given: Mapping[int, int | None],
    part: int,
    sent: Shares,
    threshold: int,
    right: Callable[[int], bool],
) -> int:
    """The secret of a client from the shares that others gave: wrong ones, and none, are got round."""
    shares = {c: v for c, v in given.items() if v is not None and _hash(v) == _half(sent, c, part)}
    what = f"the {('mask', 'key')[part]} of client {client} does not follow from the {len(shares)} shares opened"
    if len(shares) >= threshold:
        secret = shamir.joined({c: shares[c] for c in sorted(shares)[:threshold]})
        if secret < 1 << shamir.BITS and right(secret):
            return secret
        raise Unreadable(client, what)  # they are what it published the hashes of
    others = given.keys() - {client}
    without = sum(given[c] is None for c in others)  # either it sealed none for them, or they keep quiet
    raise Unreadable(client if without > 1 and 2 * without > len(others) else None, what)  # one alone may lie


def _pair(me: int, other: int, private: int, public: int, words: int) -> Tensor:
    """The mask of a pair as the first of the two adds it."""
    mask = _stream(shamir.agreed(private, public, "mask"), words)
    return mask if me < other else -mask


def _own(seed: int) -> bytes:
    return hashlib.sha256(b"acclimate\0own mask\0" + seed.to_bytes(_SHARE, "big")).digest()


def _check(seed: int) -> bytes:
    return hashlib.sha256(b"acclimate\0check\0" + seed.to_bytes(_SHARE, "big")).digest()


def _hash(share: int) -> bytes:
    return hashlib.sha256(b"acclimate\0share\0" + f"{share:x}".encode()).digest()


def _mark(seed: int, key: int) -> bytes:
    return _hash(seed) + _hash(key)


def _half(sent: Shares, holder: int, part: int) -> bytes:
    """The published hash of one of the two shares of a holder."""
    return sent.marks.get(holder, b"")[MARK // 2 * part :][: MARK // 2]


def _stream(key: bytes, words: int) -> Tensor:
    return chacha.stream(key, [torch.tensor(0)] * 3, words)


def _sealed(key: bytes, sender: int, receiver: int, *shares: int) -> bytes:
    """Two shares under a key of the pair: ChaCha20, and HMAC-SHA-256 over what it gives."""
    plain = b"".join(s.to_bytes(_SHARE, "big") for s in shares)
    cipher = _crossed(key, sender, receiver, plain)
    return cipher + hmac.digest(key, struct.pack("<QQ", sender, receiver) + cipher, "sha256")


def _unsealed(key: bytes, sender: int, receiver: int, box: bytes) -> tuple[int, int] | None:
    cipher, tag = box[:-32], box[-32:]
    right = hmac.digest(key, struct.pack("<QQ", sender, receiver) + cipher, "sha256")
    if len(cipher) != 2 * _SHARE or not hmac.compare_digest(tag, right):
        return None
    plain = _crossed(key, sender, receiver, cipher)
    return int.from_bytes(plain[:_SHARE], "big"), int.from_bytes(plain[_SHARE:], "big")


def _crossed(key: bytes, sender: int, receiver: int, text: bytes) -> bytes:
    nonce = [torch.tensor(sender), torch.tensor(receiver), torch.tensor(1)]
    words = chacha.stream(hashlib.sha256(b"cipher\0" + key).digest(), nonce, -(-len(text) // 4))
    pad = struct.pack(f"<{len(words)}I", *words.tolist())
    return bytes(a ^ b for a, b in zip(text, pad, strict=False))
