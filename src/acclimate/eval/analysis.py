"""What the adapters did: per-sample traces as they are kept, and the histograms and maps that a report draws of them.

Traces come from `Adapter.trace` and know no labels. Numbers (a weight, an entropy) are kept for every sample and become
histograms; vectors (a feature) are kept for an evenly spaced part of the samples and become maps in the plane.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..core import Tree
from . import tsne

MOST_VECTORS = 1000
"""How many samples of a stream keep their vectors."""
MOST_MAPPED, MOST_ON_A_MAP = 300, 1500
"""How many samples a map shows: of one stream, and of all."""
BINS = 20
RESERVED = ("client", "at")

Traces = dict[str, dict[str, Tree]]
"""By adapter and stream: `client` [N], whose sample it was; numbers [N]; vectors [M, D] with `at` [M], which of the N
samples they belong to. Samples are in client order, and of one client in stream order."""


def flat(trace: Tree, n: Tensor, adapter: str) -> Tree:
    """A stream's traces [clients, size, ...] without padding, as `Traces` holds them; empty where nothing is told."""
    if not trace:
        return {}
    if clash := [name for name in RESERVED if name in trace]:
        raise ValueError(f"{adapter}: a trace may not be called '{clash[0]}'; {' and '.join(RESERVED)} are reserved")
    size = next(iter(trace.values())).shape[1]
    real = torch.arange(size) < n[:, None]
    client = torch.arange(len(n))[:, None].expand_as(real)[real]
    at = evenly(len(client), MOST_VECTORS)
    out: Tree = {"client": client}
    for name, values in trace.items():
        mine = values[real]
        out |= {name: mine} if mine.dim() == 1 else {"at": at, name: mine[at].flatten(1)}
    return out


def evenly(count: int, most: int) -> Tensor:
    """At most `most` of `count` positions, evenly spaced."""
    kept = min(count, most)
    return torch.arange(kept) * count // max(kept, 1)


def summary(
    traces: Traces, meanings: Mapping[str, Mapping[str, str]], device: torch.device | str = "cpu"
) -> dict[str, Any]:
    """What a report draws, as plain JSON: `histograms` of numbers and `maps` of vectors, by adapter and trace.

    `meanings` is `Adapter.traces` by adapter name. Maps are made on `device`.
    """
    histograms, maps = [], []
    for adapter, streams in traces.items():
        for name in dict.fromkeys(k for kept in streams.values() for k in kept if k not in RESERVED):
            values = {stream: kept[name] for stream, kept in streams.items() if name in kept}
            words = {"adapter": adapter, "trace": name, "meaning": meanings.get(adapter, {}).get(name, name)}
            if all(v.dim() == 1 for v in values.values()):
                histograms.append({**words, **histogram(values)})
            else:
                maps.append({**words, "streams": places(values, device)})
    return {"histograms": histograms, "maps": maps}


def histogram(values: Mapping[str, Tensor], bins: int = BINS) -> dict[str, Any]:
    """Every stream's values counted in the same bins. What lies within 0 and 1 is counted from 0 to 1."""
    finite = {s: (v := t.double())[v.isfinite()] for s, t in values.items()}
    every = torch.cat([*finite.values(), torch.zeros(0, dtype=torch.float64)])
    low, high = (float(every.min()), float(every.max())) if len(every) else (0.0, 1.0)
    low = min(low, 0.0)
    high = 1.0 if low == 0.0 and high <= 1.0 else math.nextafter(high, math.inf)
    streams = {}
    for stream, v in finite.items():
        place = ((v - low) / (high - low) * bins).long().clamp(0, bins - 1)
        counts = torch.bincount(place, minlength=bins).tolist()
        streams[stream] = {"samples": len(v), "mean": float(v.mean()) if len(v) else None, "counts": counts}
    return {"low": low, "high": high, "streams": streams}


def places(vectors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, list[list[float]]]:
    """One t-SNE over the streams together: every stream's points in the plane, within -1 and 1."""
    most = min(MOST_MAPPED, max(MOST_ON_A_MAP // max(len(vectors), 1), 1))
    chosen = {s: (v := t.float()[t.isfinite().all(1)])[evenly(len(v), most)] for s, t in vectors.items()}
    place = tsne.embed(torch.cat(list(chosen.values())).to(device)).cpu()
    place = place / place.abs().amax().clamp_min(1e-12) if len(place) else place
    parts = place.split([len(v) for v in chosen.values()])
    return {s: [[round(x, 4) for x in row] for row in part.tolist()] for s, part in zip(chosen, parts, strict=True)}
