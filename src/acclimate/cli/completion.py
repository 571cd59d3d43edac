"""What the tab key gives: names from the index file, without torch."""

from __future__ import annotations

from collections.abc import Callable

import typer

from . import index


def settings(ctx: typer.Context, incomplete: str) -> list[str]:
    """Settings: names of fields, and after `=` names of records.

    Bash hands `method=fedth` over as three words, and replaces the last of them alone. Click drops a last `=`.
    """
    before = list(ctx.params.get("settings") or [])
    if not incomplete and before and "=" not in joined(before)[-1]:
        before.append("=")
    if before[-1:] != ["="]:
        return index.complete(incomplete, joined(before))
    *rest, begun = joined([*before, incomplete])
    head = len(begun) - len(incomplete)
    return [word[head:] for word in index.complete(begun, rest)]


def joined(words: list[str]) -> list[str]:
    """Settings as they were written, where a shell has cut them at `=`."""
    out: list[str] = []
    cut = False
    for word in words:
        if (word == "=" or cut) and out:
            out[-1] += word
        else:
            out.append(word)
        cut = word == "="
    return out


def one_of(*path: str) -> Callable[[str], list[str]]:
    """Names of a part of the index file, such as ("kinds", "datasets")."""

    def names(incomplete: str) -> list[str]:
        found = index.read()
        for key in path:
            found = found[key]
        return [name for name in found if name.startswith(incomplete)]

    return names
