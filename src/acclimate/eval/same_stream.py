"""What names a stream: exactly, and such that another machine's rounding does not make it another stream.

Corruptions are floating-point arithmetic, whose last bits differ between processors and libraries, so that some pixels
differ by one. Which examples come, in which order and with which labels, depends on no arithmetic and has a hash. The
inputs have a sketch: its distance from another is about the root mean square difference of the two streams' values.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..ops.hashing import content_hash
from ..shifts import Stream

WIDTH = 64
"""How many numbers a sketch has: the distance is off by about one part in sqrt(2 * WIDTH)."""
BLOCK = 32
"""How many examples are summed at a time."""
TOLERANCE = 2.0
"""How far sketches of one stream may be apart, in levels of 255.

Pixels that are all off by one give about 1, and a fifth of them about 0.4. On the small track another severity gives 16
or more, other keys of the noise 30, and another kind of corruption in place of one of the
fifteen 6 or more (tests/test_same_stream.py).
"""


def stream_hash(stream: Stream) -> str:
    """Names exactly what the clients met: pixels, labels and order."""
    s = stream.shards
    used = s.rows.unique()
    return content_hash(s.x[used], s.y[used], s.rows, s.n)[:16]


def names(stream: Stream) -> dict[str, Any]:
    """What a stream's card says of its content: the exact `hash`, that of its `examples`, and the `sketch`.

    The sketch is of bytes alone: other values have no levels by which rounding could be told from another shift.
    """
    found = {"hash": stream_hash(stream), "examples": examples_hash(stream)}
    return found | ({"sketch": sketch(stream)} if stream.shards.x.dtype == torch.uint8 else {})


def examples_hash(stream: Stream) -> str:
    """Names which examples each client met, in which order and with which labels, whatever was done to their inputs."""
    s = stream.shards
    rows = torch.cat([s.own(k) for k in range(len(s.n))]).cpu()
    source = rows if stream.copied is None else stream.copied.cpu()[rows]
    return content_hash(source, s.y.cpu()[rows], s.n)[:16]


def sketch(stream: Stream) -> list[float]:
    """Sums of all inputs with fixed signs, each value in one of `WIDTH` sums. Sums of bytes are exact anywhere."""
    s = stream.shards
    sums, count = np.zeros(WIDTH), 0
    for client in range(len(s.n)):
        for block, rows in enumerate(s.own(client).split(BLOCK)):
            values = s.x[rows].cpu().to(torch.float64).flatten().numpy()
            signed = values * _signs(f"{client} {block}", len(values))
            sums += np.pad(signed, (0, -len(signed) % WIDTH)).reshape(-1, WIDTH).sum(0)
            count += len(values)
    return [round(v, 4) for v in (sums / math.sqrt(max(count, 1))).tolist()]


def _signs(name: str, count: int) -> Any:
    """As many +1 and -1, by a standard hash: no library's random numbers, which may change."""
    drawn = hashlib.shake_256(f"acclimate sketch {name}".encode()).digest(-(-count // 8))
    return 1.0 - 2.0 * np.unpackbits(np.frombuffer(drawn, np.uint8))[:count]


def apart(given: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """Why what is given is not the stream that is wanted; None where it is. Where one has no sketch, bytes decide."""
    if "sketch" not in given or "sketch" not in wanted:
        same = given.get("hash") == wanted.get("hash")
        return None if same else f"its hash is {given.get('hash')}, and must be {wanted.get('hash')}"
    if given.get("examples") != wanted.get("examples"):
        own = given.get("examples")
        return f"its examples, their order or labels are others, named {own}, and must be {wanted.get('examples')}"
    if not all(_is_sketch(card["sketch"]) for card in (given, wanted)):
        return f"its sketch must be {WIDTH} numbers"
    far = math.dist(given["sketch"], wanted["sketch"])
    if far <= TOLERANCE:  # which no NaN is
        return None
    return f"its inputs are {far:.2f} levels of 255 off, and rounding explains at most {TOLERANCE}"


def _is_sketch(value: Any) -> bool:
    return isinstance(value, list) and len(value) == WIDTH and all(isinstance(v, int | float) for v in value)


def first_alike(known: list[Mapping[str, Any]], card: Mapping[str, Any]) -> int:
    """Which of the known cards names the stream that this one names; where none does, this one joins them."""
    for place, other in enumerate(known):
        if apart(card, other) is None:
            return place
    known.append(card)
    return len(known) - 1
