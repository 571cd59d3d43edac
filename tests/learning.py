"""Tables of what methods learn on the embedded world, as docs/papers has them: the tests of the claims print them."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import acclimate as ac

STREAMS = {"unseen-domain": "domain left out", "corrupted": "own domains, corrupted"}


def accuracies(fit: Any, adapter: Any) -> list[float]:
    """On the domain left out, and on the clients' own corrupted examples."""
    table = ac.evaluate(fit, adapters=[adapter])
    return [table.accuracy(stream=s) for s in STREAMS]


def show(
    trained: Callable[[Any, str, int], Any], rows: Mapping[str, tuple[Any, Mapping[str, Any]]], domains: Sequence[str]
) -> None:
    """Print per row and stream the mean over domains and three seeds, then each seed's; and validation accuracy."""
    for name, (method, adapters) in rows.items():
        fits = {(seed, held): trained(method, held, seed) for seed in range(3) for held in domains}
        print(f"{name}: {100 * fmean(f.history[-1]['val_accuracy'] for f in fits.values()):.1f} on validation data")
        for row, adapter in adapters.items():
            found = {place: accuracies(fit, adapter) for place, fit in fits.items()}
            for i, stream in enumerate(STREAMS.values()):
                seeds = [100 * fmean(a[i] for (s, _), a in found.items() if s == seed) for seed in range(3)]
                print(f"  {row}, {stream}: {fmean(seeds):.1f} ({', '.join(f'{s:.1f}' for s in seeds)})", flush=True)
