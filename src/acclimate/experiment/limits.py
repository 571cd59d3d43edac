"""How large a number in a setting or in a file may be: no experiment needs more, and Python takes any."""

from __future__ import annotations

from typing import Any

WHOLE = 10**9
"""The largest whole number of a field that has no limit of its own."""
LARGER = {"seed": 2**63 - 1}
"""Fields that may hold larger ones: a seed is only hashed."""


def refusal(name: str, value: Any) -> str | None:
    """Why a field of this name cannot hold a number; None where it can."""
    limit = LARGER.get(name, WHOLE)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > limit:
        return f"{shown(value)} must be a whole number of at most {limit:,}"
    return None


def shown(value: Any) -> str:
    """A value as messages show it: thousands of digits cannot be printed, and long text need not be."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"a number of about {value.bit_length() * 30103 // 100000 + 1} digits"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
