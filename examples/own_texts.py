"""Texts: the embedded ones, what shifts make of them, and your own file with a label and a client. No download.

python examples/own_texts.py
"""

import csv
from pathlib import Path
from tempfile import TemporaryDirectory

import acclimate as ac

# Synthetic requests to an assistant, here 576 of them. A client writes in one of six styles.
phrases = ac.Experiment(
    data=ac.data.Phrases(each=96),
    method=ac.methods.FedAvg(),
    adapters=(ac.adapters.NoAdapt(), ac.adapters.T3A()),
    streams=(ac.shifts.Original(), ac.shifts.Corrupted(severity=3)),
    rounds=4,
)
print(f"phrases: {phrases.model}")
fit = ac.train(phrases)
print(ac.evaluate(fit))

# The first text of a client, under every kind of shift.
key = ac.rng.key(0)
for kind in ("typos", "casing", "truncation", "dropped_words", "swapped_words"):
    stream = ac.shifts.Corrupted(kinds=(kind,), severity=4).build(fit.world, key).shards
    print(f"{kind}: {phrases.data.texts(stream.x[stream.own(0)[:1]])[0]!r}")

# Your own: a CSV file with columns of texts, classes and clients.
with TemporaryDirectory() as folder:
    path = Path(folder) / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["body", "stars", "shop"])
        for i in range(160):
            words = ("fine", "very good", "great")[i % 3] if i % 2 else ("cold", "stale", "not good")[i % 3]
            writer.writerow([f"the {('bread', 'tea', 'soup')[i % 7 % 3]} was {words}", 1 + i % 2, f"shop {i // 80}"])
    data = ac.data.Text(file=str(path), text="body", label="stars", client="shop", length=32)
    print(f"reviews: {data.clients} clients, classes {data.load().classes}")
    print(ac.evaluate(ac.train(ac.Experiment(data=data, rounds=2))))
