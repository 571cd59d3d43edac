"""Shifts of texts as pure, keyed, batched tensor code: slips of the keyboard, case, and words that go or move.

A text is its UTF-8 bytes plus 1, and 0 where it is over (`ops.text`). Every text has its own key, and its result
depends on its bytes, its key, the kind and the severity only. The same key draws the same numbers at every severity, so
what a low severity changes, a high one changes too. Letters are those of ASCII, and words end at a space: a character
of several bytes is never cut in two. No text becomes empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..core import rng

SPACE, CASE = ord(" ") + 1, ord("a") - ord("A")


def typos(x: Tensor, keys: Tensor, chance: float) -> Tensor:
    """Letters that are swapped with the next one, left out, or doubled: each with a third of `chance`."""
    letter = _letters(x)
    slip, sort = (_draws(keys, name, x) for name in ("slip", "sort"))
    which = torch.where(letter & (slip < chance), (sort * 3).long(), torch.full_like(x, 3, dtype=torch.int64))
    next_too = letter.roll(-1, 1)
    next_too[:, -1] = False
    swapped = x.gather(1, _swapped((which == 0) & next_too))
    times = torch.ones_like(which) - (which == 1).long() + (which == 2).long()
    times = torch.where(x == 0, torch.zeros_like(times), times)
    return _repeated(swapped, torch.where(times.sum(1, keepdim=True) > 0, times, (x != 0).long()))


def casing(x: Tensor, keys: Tensor, chance: float) -> Tensor:
    """Words whose letters change case: small ones become capitals, capitals become small."""
    turned = _letters(x) & (_of_word(x, _draws(keys, "word", x)) < chance)
    small = x > ord("Z") + 1
    return torch.where(turned, torch.where(small, x - CASE, x + CASE), x)


def truncation(x: Tensor, keys: Tensor, share: float) -> Tensor:
    """The first part of a text; `share` of its bytes, and what its last character needs."""
    length = ((x != 0).sum(1, keepdim=True) * share).ceil()
    return torch.where(_begun(x) < length, x, torch.zeros_like(x))


def dropped_words(x: Tensor, keys: Tensor, chance: float) -> Tensor:
    """Words that are left out, with the space behind them; the one that is drawn last stays, and is no mere space."""
    draws, word = _draws(keys, "word", x), _words(x)
    there = torch.zeros_like(draws).scatter_reduce(1, word, ((x != 0) & (x != SPACE)).to(draws.dtype), "amax")
    last = (draws * there).argmax(1, keepdim=True)
    keep = ((draws.gather(1, word) >= chance) | (word == last)) & (x != 0)
    return _repeated(x, keep.long())


def swapped_words(x: Tensor, keys: Tensor, chance: float) -> Tensor:
    """Words that change places with the next one; spaces stay between them."""
    word, at = _words(x), torch.arange(x.shape[1], device=x.device)
    count = torch.where(x != 0, word, torch.zeros_like(word)).amax(1, keepdim=True) + 1
    place = _swapped((_draws(keys, "word", x) < chance) & (at + 1 < count))  # of every word, by number
    key = torch.where(x == SPACE, 2 * word + 1, 2 * place.gather(1, word))
    order = torch.where(x == 0, torch.full_like(key, 4 * x.shape[1]), key).argsort(dim=1, stable=True)
    return x.gather(1, order)


TEXT: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "typos": typos,
    "casing": casing,
    "truncation": truncation,
    "dropped_words": dropped_words,
    "swapped_words": swapped_words,
}
SEVERITIES: dict[str, tuple[float, ...]] = {
    "typos": (0.03, 0.06, 0.12, 0.2, 0.3),
    "casing": (0.1, 0.25, 0.5, 0.75, 1.0),
    "truncation": (0.9, 0.75, 0.6, 0.5, 0.4),
    "dropped_words": (0.1, 0.2, 0.3, 0.4, 0.5),
    "swapped_words": (0.1, 0.25, 0.5, 0.75, 1.0),
}
"""The constant of each severity, 1 to 5: a chance for each letter or word, or the share that is left."""


def shift_text(x: Tensor, kind: str, severity: int, keys: Tensor) -> Tensor:
    """Texts [B, length] under one kind at one severity, text `b` with the draws of `keys[b]`."""
    return TEXT[kind](x, rng.fold(keys, kind), SEVERITIES[kind][severity - 1])


def shift_each(x: Tensor, kinds: Tensor, severities: int | Tensor, keys: Tensor, names: Sequence[str]) -> Tensor:
    """Text b under `names[kinds[b]]` at `severities` (one for all, or [B]), with the draws of `keys[b]`."""
    levels = torch.full_like(keys, severities) if isinstance(severities, int) else severities.to(keys)
    out = x.clone()
    for kind, level in torch.unique(torch.stack((kinds.to(keys), levels), 1), dim=0).tolist():
        rows = ((kinds == kind) & (levels == level)).nonzero().flatten()
        out[rows] = shift_text(x[rows], names[kind], level, keys[rows])
    return out


def _draws(keys: Tensor, name: str, x: Tensor) -> Tensor:
    """Numbers in 0..1 for every text, [B, length]: one for each byte, or for each word by its number."""
    if not len(keys):
        return torch.zeros(x.shape, device=x.device)
    out: Tensor = torch.vmap(lambda k: rng.uniform(k, x.shape[1]))(rng.fold(keys, name))
    return out


def _letters(x: Tensor) -> Tensor:
    low = (x - 1) | CASE  # capitals and small letters differ in this bit
    return (low >= ord("a")) & (low <= ord("z"))


def _words(x: Tensor) -> Tensor:
    """The number of the word that each byte belongs to; spaces belong to the word before them."""
    other = x.roll(1, 1) == SPACE
    other[:, 0] = False
    return ((x != SPACE) & other).long().cumsum(1)


def _of_word(x: Tensor, draws: Tensor) -> Tensor:
    return draws.gather(1, _words(x))


def _begun(x: Tensor) -> Tensor:
    """Where the character that each byte belongs to begins."""
    starts, at = (x - 1) & 0xC0 != 0x80, torch.arange(x.shape[1], device=x.device)
    return torch.where(starts, at, torch.zeros_like(at)).cummax(1).values


def _whole(x: Tensor) -> Tensor:
    """Texts without a last character of which bytes are lacking."""
    begun, first = _begun(x), x - 1
    size = 1 + (first >= 0xC0).long() + (first >= 0xE0).long() + (first >= 0xF0).long()
    return torch.where(begun + size.gather(1, begun) <= x.shape[1], x, torch.zeros_like(x))


def _swapped(first: Tensor) -> Tensor:
    """Places [B, length] where each marked one, never the last, has changed with the next; of a run, every other."""
    at = torch.arange(first.shape[1], device=first.device).expand_as(first)
    before = torch.where(first, torch.full_like(at, -1), at).cummax(1).values
    made = first & ((at - before) % 2 == 1)
    return at + made.long() - made.roll(1, 1).long()


def _repeated(x: Tensor, times: Tensor) -> Tensor:
    """Bytes, each so many times, one behind the other; what does not fit into the length is cut, by whole
    characters."""
    ends, at = times.cumsum(1), torch.arange(x.shape[1], device=x.device).expand_as(x).contiguous()
    source = torch.searchsorted(ends, at, right=True)
    taken = x.gather(1, source.clamp_max(x.shape[1] - 1))
    return _whole(torch.where(source < x.shape[1], taken, torch.zeros_like(x)))
