"""Shifts of texts, against the same rules written letter by letter in plain Python."""

import pytest
import torch

from acclimate import data, shifts
from acclimate.core import rng
from acclimate.ops.text import decode, encode
from acclimate.shifts.suited import kinds_of
from acclimate.shifts.text_shifts import SEVERITIES, TEXT, shift_each, shift_text

TEXTS = ("wake me at 6 am on Friday", "ein Käse für Zoë, bitte", "x", "play rain in london", "aaaa bbbb cccc dddd eeee")
LENGTH = 32
X = torch.from_numpy(encode(TEXTS, LENGTH))
KEYS = rng.fold(rng.key(3), torch.arange(len(TEXTS)))


def draws(key, kind, name):
    return rng.uniform(rng.fold(rng.fold(key, kind), name), LENGTH).tolist()


def is_letter(byte):
    return bytes([byte]).isalpha() and byte < 128


def by_hand_typos(text, key, chance):
    raw, out = list(text.encode()), []
    slip, sort = draws(key, "typos", "slip"), draws(key, "typos", "sort")
    which = [int(sort[i] * 3) if is_letter(b) and slip[i] < chance else 3 for i, b in enumerate(raw)]
    swapped, i = raw[:], 0
    while i < len(raw) - 1:
        if which[i] == 0 and is_letter(raw[i + 1]):
            swapped[i], swapped[i + 1] = raw[i + 1], raw[i]
            i += 1
        i += 1
    for byte, kind in zip(swapped, which, strict=True):
        out += [byte] * {1: 0, 2: 2}.get(kind, 1)
    return bytes(out[:LENGTH] or raw).decode("utf-8", "replace")


def by_hand_words(text, key, kind, chance):
    words, draw = text.split(" "), draws(key, kind, "word")
    if kind == "casing":
        turned = ["".join(c.swapcase() if c.isascii() else c for c in w) for w in words]
        return " ".join(turned[i] if draw[i] < chance else w for i, w in enumerate(words))
    if kind == "dropped_words":
        last = max(range(len(words)), key=lambda i: draw[i])
        kept = [i for i in range(len(words)) if draw[i] >= chance or i == last]
        return "".join(words[i] + (" " if i < len(words) - 1 else "") for i in kept)
    i = 0
    while i < len(words) - 1:
        if draw[i] < chance:
            words[i], words[i + 1] = words[i + 1], words[i]
            i += 1
        i += 1
    return " ".join(words)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("kind", [k for k in TEXT if k != "truncation"])
def test_a_shift_is_what_its_rule_says(kind, severity):
    chance = SEVERITIES[kind][severity - 1]
    found = decode(shift_text(X, kind, severity, KEYS))
    rule = (
        (lambda t, k: by_hand_typos(t, k, chance))
        if kind == "typos"
        else lambda t, k: by_hand_words(t, k, kind, chance)
    )
    assert found == [rule(t, k) for t, k in zip(TEXTS, KEYS, strict=True)]


def test_a_text_is_cut_behind_a_whole_character():
    for severity, share in enumerate(SEVERITIES["truncation"], 1):
        for text, found in zip(TEXTS, decode(shift_text(X, "truncation", severity, KEYS)), strict=True):
            raw = text.encode()
            least = -(-len(raw) * share // 1)
            assert text.startswith(found) and least <= len(found.encode()) <= least + 1


@pytest.mark.parametrize("kind", TEXT)
def test_texts_stay_texts_and_change_more_with_severity(kind):
    x = X[[0, 1, 3, 4]].repeat(50, 1)
    keys, changed = rng.fold(rng.key(5), torch.arange(len(x))), []
    for severity in range(1, 6):
        out = shift_text(x, kind, severity, keys)
        assert out.dtype == x.dtype and out.shape == x.shape and bool((out != 0).any(1).all())
        assert "\ufffd" not in "".join(decode(out))
        ends = (out != 0).sum(1)
        assert all(bool((row[:n] != 0).all()) for row, n in zip(out, ends, strict=True))  # padding behind the text only
        changed.append(float((out != x).any(1).float().mean()))
    assert changed == sorted(changed) and changed[-1] > 0.9


def test_a_text_is_shifted_alike_in_any_batch():
    kinds, severities = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([5, 4, 3, 2, 1])
    names = tuple(TEXT)
    each = shift_each(X, kinds, severities, KEYS, names)
    alone = [shift_text(X[i : i + 1], names[i], 5 - i, KEYS[i : i + 1]) for i in range(5)]
    assert torch.equal(each, torch.cat(alone))


def test_kinds_and_severities_in_one_batch_are_each_their_own():
    names = tuple(TEXT)
    pairs = [(k, s, i) for k in range(5) for s in (1, 5) for i in range(len(TEXTS))]
    kinds, levels, which = (torch.tensor(part) for part in zip(*pairs, strict=True))
    each = shift_each(X[which], kinds, levels, KEYS[which], names)
    alone = [shift_text(X[i : i + 1], names[k], s, KEYS[i : i + 1]) for k, s, i in pairs]
    assert torch.equal(each, torch.cat(alone))


def test_of_words_that_are_all_dropped_the_one_drawn_last_stays():
    texts = ("a bb ccc dddd ", "one two three", "end ")  # a space at the end begins no word
    x, keys = torch.from_numpy(encode(texts, LENGTH)), rng.fold(rng.key(9), torch.arange(60))
    for key in keys:
        draw = rng.uniform(rng.fold(key, "word"), LENGTH)
        for i, text in enumerate(texts):
            words = text.split()
            (left,) = decode(TEXT["dropped_words"](x[i : i + 1], key[None], 1.1))
            assert left.strip() == words[int(draw[: len(words)].argmax())]


# --- streams -------------------------------------------------------------------------------------------------------

WORLD = data.Phrases(each=16, clients=2, styles=("plain", "terse")).world(0)
KEY = rng.key(7)


def test_streams_take_the_kinds_of_texts_where_none_are_named():
    corrupted = shifts.Corrupted().build(WORLD, KEY)
    assert tuple(corrupted.card["kinds"]) == tuple(TEXT)
    assert [k for k, _ in shifts.Continual(segment=4).build(WORLD, KEY).card["plan"]] == list(TEXT)
    assert {k for k, _ in shifts.Gradual(segment=4).build(WORLD, KEY).card["plan"]} == {"typos"}
    assert [k for k, s in shifts.Recurring(segment=4, cycles=1).build(WORLD, KEY).card["plan"] if s] == list(TEXT)[:3]
    assert set(shifts.Mixture().build(WORLD, KEY).card["parts"]) == {"Original", "Corrupted", "OutOfClient"}
    one = shifts.Corrupted(kinds=("casing",)).build(WORLD, KEY)
    plain = shifts.Original().build(WORLD, KEY)
    rows = plain.shards.own(0)
    assert decode(one.shards.x[one.shards.own(0)]) == [t.swapcase() for t in decode(WORLD.examples.x[rows])]


def test_what_does_not_fit_texts_is_refused():
    with pytest.raises(ValueError, match=r"Corrupted: kinds=\('fog',\).*name some of typos, casing"):
        shifts.Corrupted(kinds=("fog",)).build(WORLD, KEY)
    with pytest.raises(ValueError, match="Blends: mixes inputs that are numbers or pixels, and texts are neither"):
        shifts.Blends().build(WORLD, KEY)
    tokens = data.Examples.of(torch.arange(8).view(4, 2), torch.tensor([0, 1, 0, 1]), "ab")
    with pytest.raises(ValueError, match=r"token ids, and of texts only bytes can be shifted; leave data.tokenizer"):
        kinds_of(tokens)


@pytest.mark.parametrize("length", [3, 4, 6, 9, 16])
def test_a_text_that_fills_all_places_keeps_whole_characters_when_letters_are_doubled(length):
    texts = [f"{'abcdefghijklmnop'[: length - len(last.encode())]}{last}" for last in ("é", "€", "😀"[: length // 5])]
    x = torch.from_numpy(encode(texts, length)).repeat(40, 1)
    assert int((x[:, -1] != 0).sum()) >= 80  # nothing is free behind them
    out = shift_text(x, "typos", 5, rng.fold(rng.key(0), torch.arange(len(x))))
    assert "\ufffd" not in "".join(decode(out)) and not torch.equal(out, x)


def test_of_a_text_that_begins_with_a_space_a_word_stays():
    texts = [f"{' ' * (1 + i % 3)}word{i} other" for i in range(60)]
    x = torch.from_numpy(encode(texts, 24))
    left = decode(shift_text(x, "dropped_words", 5, rng.fold(rng.key(0), torch.arange(60))))
    assert all(one.strip() for one in left)
    assert any(not one.startswith(" ") for one in left) and any(one.split() == ["other"] for one in left)
