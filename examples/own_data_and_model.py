"""Your own arrays and your own nn.Module: no registration, no image needed.

python examples/own_data_and_model.py
"""

from dataclasses import dataclass

import torch
from torch import nn

import acclimate as ac


@dataclass(frozen=True)
class Sensors(ac.data.Dataset):
    """Readings of 12 channels from machines in three halls; the class is the machine's state."""

    samples: int = 1200

    def load(self):
        g = torch.Generator().manual_seed(7)  # the data set is the same for every seed of an experiment
        y = torch.randint(0, 4, (self.samples,), generator=g)
        hall = torch.randint(0, 3, (self.samples,), generator=g)
        pattern, offset = torch.randn(4, 12, generator=g), torch.randn(3, 12, generator=g)
        x = pattern[y] + offset[hall] + 0.8 * torch.randn(self.samples, 12, generator=g)
        return ac.data.Examples(x, y, ("idle", "warm", "busy", "worn"), hall, ("north", "south", "yard"))


class Net(nn.Module):
    """Returns (features, logits); the last layer is a linear layer called `head`."""

    def __init__(self, inputs=12, classes=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(32, classes)

    def forward(self, x):
        features = self.body(x)
        return features, self.head(features)


torch.manual_seed(0)  # a module that you hand over brings its own initial weights
experiment = ac.Experiment(
    data=Sensors(partition=ac.data.ByDomain(), clients=3),
    model=Net(),
    method=ac.methods.FedAvg(work=ac.Work(epochs=2)),
    adapters=(ac.adapters.NoAdapt(), ac.adapters.BNStats(), ac.adapters.T3A()),
    streams=(ac.shifts.Original(), ac.shifts.OutOfClient()),
    rounds=5,
)
fit = ac.train(experiment)
card = fit.world.card()
print(
    f"{card['examples']} examples of {len(card['classes'])} classes, training sizes {card['splits']['train']['sizes']}"
)
print(ac.evaluate(fit))
