"""Tables: the embedded one, and your own columns with a label and a client. No image, no download.

python examples/own_table.py
"""

import numpy as np

import acclimate as ac

# 569 tissue samples, 30 measurements each. A client is a clinic: a range of the nuclei's radius.
cells = ac.Experiment(
    data=ac.data.Cells(),
    method=ac.methods.FedTHE(work=ac.Work(epochs=2)),
    adapters=(ac.adapters.NoAdapt(), ac.adapters.THE()),
    streams=(ac.shifts.Original(), ac.shifts.Corrupted(), ac.shifts.Quantile()),
    rounds=5,
)
print(f"cells: {cells.model}")
print(ac.evaluate(ac.train(cells)))

# Your own: a dict of columns, a data frame (Table.of), or a file (Table(file="visits.csv", ...)).
g = np.random.default_rng(0)
age, site = g.uniform(20, 90, 600), g.integers(0, 4, 600)
ill = age + 15 * g.normal(size=600) + 5 * site > 65
visits = {
    "site": np.array(["north", "south", "east", "west"])[site],
    "age": [a if g.random() > 0.1 else None for a in age],  # one in ten is missing
    "smokes": np.where(g.random(600) < 0.3 + 0.4 * ill, "yes", "no"),
    "outcome": np.where(ill, "ill", "well"),
}
data = ac.data.Table.of(visits, label="outcome", client="site")
world = data.world()
print(
    f"visits: {data.clients} clients, columns {[f.column + (f.word and '=') + f.word for f in world.examples.features]}"
)
print(world.notes[0])
fit = ac.train(ac.Experiment(data=data, method=ac.methods.FedAvg(work=ac.Work(epochs=2)), rounds=3))
print(ac.evaluate(fit))
