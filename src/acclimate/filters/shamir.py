"""Secrets in shares (Shamir, CACM 1979) over a prime field, and keys that two parties agree on (Diffie and Hellman).

The field is that of 2^521 - 1, so secrets of 256 bits fit with ease. The group is that of 2,048 bits in RFC 3526,
Section 3, whose prime is computed here from its formula; private keys have 256 bits, from the system's generator.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from functools import cache

FIELD = 2**521 - 1
BITS = 256
"""Of a secret."""


def split(secret: int, holders: Iterable[int], threshold: int) -> dict[int, int]:
    """A share of the secret for every holder, a number from 0 on: any `threshold` of them give it, fewer tell
    nothing. The share of a holder -1 would be the secret itself."""
    if not 0 <= secret < FIELD:
        raise ValueError("a secret must be a number of the field")
    names = list(holders)
    if not all(0 <= name < FIELD - 1 for name in names):
        raise ValueError("holders must be numbers from 0 on, below that of the field")
    if len(set(names)) < len(names) or not 1 <= threshold <= len(names):
        raise ValueError(f"threshold={threshold} must be between 1 and the number of holders, {len(set(names))}")
    parts = [secret, *(secrets.randbelow(FIELD) for _ in range(threshold - 1))]
    return {name: _value(parts, name + 1) for name in names}


def _value(parts: list[int], x: int) -> int:
    total = 0
    for part in reversed(parts):
        total = (total * x + part) % FIELD
    return total


def joined(shares: Mapping[int, int]) -> int:
    """The secret of these shares; another number where they are too few or one is wrong."""
    total = 0
    for name, value in shares.items():
        top = bottom = 1
        for other in shares:
            if other != name:
                top, bottom = top * (other + 1) % FIELD, bottom * (other - name) % FIELD
        total += value * top * pow(bottom, -1, FIELD)
    return total % FIELD


@cache
def group() -> int:
    """2^2048 - 2^1984 - 1 + 2^64 (floor(2^1918 pi) + 124476), a safe prime."""
    return 2**2048 - 2**1984 - 1 + 2**64 * ((_pi(1918 + 64) >> 64) + 124476)


def _pi(bits: int) -> int:
    """2^bits pi, a few units of the last place off, by Machin's formula."""

    def arctan(x: int) -> int:
        total = term = (1 << bits) // x
        n, sign = 3, -1
        while term:
            term //= x * x
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    return 4 * (4 * arctan(5) - arctan(239))


def private_key() -> int:
    """A new private key."""
    return secrets.randbits(BITS) | 1 << (BITS - 1)


def public_key(private: int) -> int:
    """What others may know of it."""
    return pow(2, private, group())


def agreed(private: int, other: int, purpose: str) -> bytes:
    """The 32-byte key for a purpose that only the holders of two private keys know."""
    if not 1 < other < group() - 1:
        raise ValueError("the other's public key is none of the group")
    both = pow(other, private, group()).to_bytes(256, "big")
    return hashlib.sha256(b"acclimate\0" + purpose.encode() + b"\0" + both).digest()
