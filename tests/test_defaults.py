"""A default changes only on purpose: fields that are left out of a file or a command mean what they meant before.

Where a default was wrong, the changelog says what to set for the old behaviour, and fixtures/defaults.json is written
anew by `python tests/test_defaults.py`. New fields may be added at any time.
"""

import inspect
import json
from pathlib import Path

import pytest

from acclimate import adapters, filters, methods, personal
from acclimate.core import Adapter, Augment, Filter, Method, Personalizer
from acclimate.experiment import encode
from acclimate.ops import augment, augmix

STORE = Path(__file__).parent / "fixtures" / "defaults.json"
KINDS = (Adapter, Augment, Filter, Method, Personalizer)


def records():
    """Name -> class, of all that can be made without a field."""
    out = {}
    for package in (methods, adapters, personal, filters, augment, augmix):
        for name, kind in sorted(vars(package).items()):
            if isinstance(kind, type) and issubclass(kind, KINDS) and kind not in KINDS and not name.startswith("_"):
                needed = [p for p in inspect.signature(kind).parameters.values() if p.default is p.empty]
                if not needed and kind.__module__.startswith(package.__name__):
                    out[f"{package.__name__.split('.')[1]}.{name}"] = kind
    return out


KEPT = json.loads(STORE.read_text()) if STORE.exists() else {}


def missing(kept, now, at):
    """Where the present value is not the kept one; entries that are new do not matter."""
    if isinstance(kept, dict) and isinstance(now, dict):
        return [m for k, v in kept.items() for m in missing(v, now.get(k), f"{at}.{k}")]
    return [] if kept == now else [f"{at}: {kept!r} became {now!r}"]


@pytest.mark.parametrize("name", KEPT)
def test_defaults_are_kept(name):
    now = records()
    assert name in now, f"{name} is gone, or needs a field that it did not need"
    assert missing(KEPT[name], encode(now[name]()), name) == []


def test_every_record_is_kept():
    assert set(records()) <= set(KEPT), "python tests/test_defaults.py"
    assert missing({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3, "d": 4}}, "x") == ["x.b.c: 2 became 3"]


if __name__ == "__main__":
    lines = [f"{json.dumps(k)}: {json.dumps(encode(v()), sort_keys=True)}" for k, v in records().items()]
    STORE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
