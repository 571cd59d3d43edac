"""Modules as users bring them, which return logits, and token sequences that they can learn."""

import torch
from torch import nn

CLASSES, LENGTH, VOCABULARY = 4, 8, 20


def sequences(count, seed=0):
    """Token ids [count, LENGTH] with padding 0 at their ends; the class is which of four words is in them."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=g)
    x = torch.randint(8, VOCABULARY, (count, LENGTH), generator=g)
    x[:, 1] = x[:, 3] = y + 2
    ends = torch.randint(4, LENGTH + 1, (count, 1), generator=g)
    return torch.where(torch.arange(LENGTH) < ends, x, 0), y


class Encoder(nn.Module):
    """A transformer over tokens, of torch's own layers."""

    def __init__(self, dropout=0.1):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, ids):
        return self.out(self.layers(self.table(ids), src_key_padding_mask=ids == 0).mean(1))


class Residual(nn.Module):
    """A network in the form of torchvision's: a stem, a block with a shortcut, pooling, and `fc`."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, classes)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        return self.fc(self.pool((x + self.block(x)).relu()).flatten(1))
