"""The models for windows of readings beside each other, on series that this file draws: no data of people is embedded.

Subjects wear three sensors and do five things. What is done has its own rhythm and its own shape in space; a subject
has its own tempo, strength and way of wearing the device; windows begin anywhere in a movement, and none overlap. Mean
accuracy of clients on validation windows after FedAvg, with three seeds, which also draw the series.

    python benchmarks/windows.py [--rounds 20] [--seeds 3] [--models mlp-bn] [--out results/tables/windows.json]
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import environment, parser_of, write

import acclimate as ac
from acclimate.experiment import catalogue

SUBJECTS, READINGS, WINDOW, ACTIVITIES, RATE = 12, 3_000, 64, 5, 32.0
NAMES = ("mlp-bn", "window-cnn", "window-cnn-bn")


def series(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Windows [N, 3, WINDOW], what is done in each, and by whom."""
    draw = np.random.default_rng(seed)
    beats = draw.uniform(0.6, 3.0, ACTIVITIES)
    shapes = draw.normal(size=(ACTIVITIES, 3, 3))  # sensors by the first three harmonics
    x, y, who = [], [], []
    for subject in range(SUBJECTS):
        tempo, strength = draw.uniform(0.85, 1.15), draw.uniform(0.7, 1.3)
        turned = np.linalg.qr(np.eye(3) + 0.3 * draw.normal(size=(3, 3)))[0]
        for activity in range(ACTIVITIES):
            pace = beats[activity] * tempo * np.exp(0.15 * np.cumsum(draw.normal(size=READINGS)) / math.sqrt(READINGS))
            phase = 2 * np.pi * np.cumsum(pace) / RATE + draw.uniform(0, 2 * np.pi)
            wave = np.stack([np.sin((h + 1) * phase + h) / (h + 1) for h in range(3)])
            readings = strength * turned @ shapes[activity] @ wave + 0.8 * draw.normal(size=(3, READINGS))
            for start in range(0, READINGS - WINDOW + 1, WINDOW):
                x.append(readings[:, start : start + WINDOW])
                y.append(activity)
                who.append(subject)
    return np.stack(x).astype(np.float32), np.array(y), np.array(who)


def measured(name: str, seed: int, rounds: int) -> dict[str, float]:
    """Accuracy in percent on validation windows, the mean over clients, and the size of the model."""
    x, y, who = series(seed)
    opt = ac.optim.SGD(lr=0.05, momentum=0.9)
    experiment = ac.Experiment(
        data=ac.data.of(x, y, client=who),
        model=catalogue.MODELS[name],
        method=ac.methods.FedAvg(opt=opt),
        rounds=rounds,
        eval_every=rounds,
        seed=seed,
    )
    fit = ac.train(experiment)
    size = sum(p.numel() for p in fit.state.server["vars"]["params"].values())
    return {"accuracy": round(100 * float(fit.history[-1]["val_accuracy"]), 2), "parameters": size}


def main() -> None:
    """Measure, write, print."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", default=",".join(NAMES))
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows: dict[str, Any] = {}
    for name in given.models.split(","):
        found = [measured(name, seed, given.rounds) for seed in range(given.seeds)]
        rows[name] = {"accuracy": [f["accuracy"] for f in found], "parameters": found[0]["parameters"]}
        print(f"{name:16s} {rows[name]}", flush=True)
    if given.out:
        about = {"subjects": SUBJECTS, "activities": ACTIVITIES, "window": WINDOW, "rounds": given.rounds}
        record = {"environment": environment(torch.device("cpu")), "study": about, "rows": rows}
        write(given.out, record)


if __name__ == "__main__":
    main()
