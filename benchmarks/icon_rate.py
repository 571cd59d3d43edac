"""How fast FedICON may tune at test time: ICON on the training clients' own validation examples, corrupted.

    export ACCLIMATE_DATA=...
    python benchmarks/fedicon.py --sets digit5 --shifts covariate --fraction 0.1 --rows extract+share --keep kept --out tenth.json
    python benchmarks/icon_rate.py --keep kept --out rates.json

The paper names no rate. Choosing one on test data would be selection on test labels, so what is tested here are the
validation examples, which no training saw either, at severity 5. More epochs stand for larger test sets.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import fedicon
from rows import trained_on

import acclimate as ac
from acclimate import store
from acclimate.adapters import ICON, NoAdapt
from acclimate.core import SGD, Adapter, Work

TRIED = ((1e-4, 5), (1e-3, 5), (1e-2, 5), (1e-4, 50), (1e-3, 50))
"""Rates and epochs."""


def main() -> None:
    """Test every rate on what was kept, and write the accuracies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, required=True, help="where fedicon.py kept its training")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    (place,) = fedicon.places(["digit5"], ["covariate"])
    e = fedicon.experiment("fedicon", place, 0, 100, 0.1)
    fit = ac.load(args.keep / e.training_hash())
    record = trained_on(e, fit.world, fit.engine.device) | {"trained_rounds": fit.state.round}
    fit = replace(fit, world=replace(fit.world, test=fit.world.val, val=fit.world.test))
    adapters: dict[str, Adapter] = {"none": NoAdapt()}
    for rate, epochs in TRIED:
        icon = ICON(opt=SGD(lr=rate), work=Work(epochs=epochs))
        adapters[f"{rate:g}, {epochs} epochs"] = fedicon.with_views(icon, place.set)
    found = {}
    for name, adapter in adapters.items():
        (row,) = (r for r in ac.evaluate(fit, adapters=[adapter]).rows if r["selection"] == "last")
        found[name] = {"accuracy": row["accuracy"], "per_client": row["per_client"]}
        print(f"{name:18s} {row['accuracy']:.1%}  {'  '.join(f'{a:.1%}' for a in row['per_client'])}", flush=True)
    body = {"schema": "acclimate.icon-rate/1", **record, "validation, corrupted": found}
    store.write(args.out, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    main()
