"""Settings as people and programs might type them, possible and not: each list is refused with a sentence, or makes an
experiment that config.json gives back as it was.
"""

from __future__ import annotations

import dataclasses
import random
import traceback
from collections import Counter

from alarm import Hang, at_most

from acclimate.experiment import Experiment, catalogue, dumps, loads
from acclimate.experiment.settings import expand

SECONDS = 10
WORDS = (
    "",
    " ",
    "none",
    "None",
    "true",
    "yes",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "0x10",
    "1_000",
    "é",
    "\x00",
    "../x",
    "~",
    "nowhere_at_all:b",
    "os:system",
)
WORDS += (
    "nowhere.at_all:C",
    "json:JSONDecoder",
    "-1",
    "0",
    "1",
    "2",
    "7",
    "0.5",
    "1.5",
    "1e-9",
    "-0.0",
    "1e26",
    str(10**15),
    str(10**26),
    "9" * 5000,
    "[1,2]",
    "{}",
)
WORDS += (
    "1,2",
    "1,2,3,4,5,6,7,8,9,10",
    ",",
    ",,1",
    "fedavg,fedprox",
    "fedavg+finetune",
    "+",
    "fedavg+",
    "x" * 3000,
    "cpu",
    "cuda:99",
    "auto",
)


def _keys(record, prefix: str = "", depth: int = 0) -> dict[str, object]:
    """All keys below a record, as settings spell them, and what they are there."""
    out = {}
    for f in dataclasses.fields(record):
        inner = getattr(record, f.name)
        out[prefix + f.name] = inner
        if dataclasses.is_dataclass(inner) and depth < 3:
            out |= _keys(inner, f"{prefix}{f.name}.", depth + 1)
    return out


def names() -> dict[str, list[str]]:
    """The catalogue's names by the field that takes them."""
    fields = {"method": "method", "adapter": "adapters", "model": "model", "data": "data", "stream": "streams"}
    fields |= {"filter": "filters", "backend": "backend", "personaliser": "personal", "personalizer": "personal"}
    fields |= {"data set": "data", "optimizer": "method.opt", "schedule": "method.opt.schedule"}
    fields |= {name: f"data.{name}" for name in ("partition", "split", "augment")}
    known: dict[str, list[str]] = {}
    for kind in catalogue.KINDS:
        known.setdefault(fields.get(kind.name, kind.name), []).extend(kind.entries)
    return known


def settings(draw: random.Random, known: dict[str, list[str]], keys: dict[str, object]) -> list[str]:
    """A list of settings; of every third one most are as somebody would write them who knows what he does."""
    out, sane = [], 0.95 if draw.random() < 0.33 else 0.0
    for _ in range(draw.randint(1, 6)):
        field = draw.choice(list(known))
        if draw.random() < 0.35:
            name = draw.choice(known[field])
            out.append(f"{field}={name}")
            inner = _keys(next(k.entries[name] for k in catalogue.KINDS if name in k.entries))
            if inner and draw.random() < 0.5:
                place = f"{field}.{name}" if field in ("adapters", "streams", "filters") else field
                key = draw.choice(list(inner))
                out.append(f"{place}.{key}={_value(draw, inner[key], sane)}")
            continue
        key = draw.choice(list(keys))
        out.append(f"{key}={_value(draw, keys[key], sane)}")
    if draw.random() < 0.05:
        out.append(
            draw.choice(("", "=", "x", "=1", "rounds", "a.b.c=1", "rounds..x=1", ".=1", "method.=1", "adapters.=1"))
        )
    return out


def _value(draw: random.Random, usual: object, sane: float) -> str:
    if draw.random() < sane:
        return _near(draw, usual)
    if draw.random() < 0.4:
        return str(
            draw.choice((draw.randint(0, 20), draw.randint(-(10**6), 10**12), draw.random(), -draw.random() * 1e6))
        )
    if draw.random() < 0.1:
        return "".join(chr(draw.randint(1, 0x2FF)) for _ in range(draw.randint(1, 12)))
    return draw.choice(WORDS)


def _near(draw: random.Random, usual: object) -> str:
    """A value of the same kind."""
    if isinstance(usual, bool):
        return draw.choice(("true", "false"))
    if isinstance(usual, int | float):
        return str(draw.choice((usual, usual * 2, usual / 2 if isinstance(usual, float) else usual + 1)))
    if isinstance(usual, tuple) and usual and all(isinstance(u, int | float | str) for u in usual):
        return "+".join(map(str, usual))
    return str(usual) if isinstance(usual, str) else draw.choice(("1", "none", "0.5"))


def answer(given: list[str]) -> tuple[str, str]:
    """What the reader of settings makes of a list."""
    try:
        with at_most(SECONDS):
            for e in expand(given)[:3]:
                if loads(dumps(e)) != e:
                    return "different", str(given)
            return "made", ""
    except ValueError as e:
        return ("refused", "") if str(e).strip() else ("traceback", "an error without a sentence")
    except (FileNotFoundError, ImportError):
        return "refused", ""
    except Hang:
        return "hang", ""
    except Exception:
        return "traceback", traceback.format_exc(limit=-4)


def attack(count: int, seed: int = 0) -> dict:
    """Try so many lists of settings."""
    draw, known, keys = random.Random(seed), names(), _keys(Experiment())
    counts, wrong = Counter(), []
    for number in range(count):
        given = settings(draw, known, keys)
        word, said = answer(given)
        counts[word] += 1
        if word not in ("made", "refused"):
            wrong.append({"number": number, "settings": given, "answer": word, "said": said})
    words = ("refused", "made", "different", "traceback", "hang")
    return {"tried": sum(counts.values()), **{w: counts[w] for w in words}, "wrong": wrong}


# --- in pieces --------------------------------------------------------------------------------------------------------

PIECE = 500
"""Lists of settings of one piece."""


def piece(number: int) -> dict:
    return attack(PIECE, seed=number)


def merged(pieces: list[dict]) -> dict:
    """All pieces in one."""
    words = ("tried", "refused", "made", "different", "traceback", "hang")
    return {**{w: sum(p[w] for p in pieces) for w in words}, "wrong": [w for p in pieces for w in p["wrong"]][:100]}
