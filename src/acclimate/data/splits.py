"""How a client's examples become training, validation and test examples, where shares of them do not say it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check, rng


@dataclass(frozen=True)
class Split:
    """Cuts the examples of a client. No example is in two parts; what is in none is not used."""

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        """Which of the examples with these labels are for training, validation and test."""
        raise TypeError(f"{type(self).__name__} must define cut(y, key)")

    def unseen(self, y: Tensor, key: rng.Key) -> Tensor:
        """Which examples of a held-out domain clients meet: as many as one with this domain would be tested on."""
        return self.cut(y, key)[2]


@dataclass(frozen=True)
class PerClass(Split):
    """So many examples of every class that a client has, out of all it has, official training and test files alike.

    FedPCL's digits have ten per class for training and 200 for testing, and FedICON's tables fit the same.
    """

    train: int = 10
    val: int = 200
    """Validation examples of a class. They are others than those for training and for testing."""
    test: int = 200

    def __post_init__(self) -> None:
        check.whole(self, "train", 1)
        check.whole(self, "val", 0)
        check.whole(self, "test", 0)

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        order, sizes = rng.permutation(key, len(y)), (self.train, self.val, self.test)
        parts: list[tuple[Tensor, ...]] = []
        for c in y.unique().tolist():
            rows = order[y[order] == c]
            if len(rows) < sum(sizes):
                raise ValueError(
                    f"PerClass: train={self.train}, val={self.val} and test={self.test} need {sum(sizes)} examples of "
                    f"every class that a client or held-out domain has; one has {len(rows)} of class {c}"
                )
            parts.append(rows[: sum(sizes)].split(sizes))
        train, val, test = (torch.cat(part) if part else order for part in zip(*parts, strict=True))
        return train, val, test


@dataclass(frozen=True)
class TrainTest(Split):
    """A share of the examples for testing, rounded up, and one for validation, rounded down; the rest is for training.

    The sizes that FedICON's tables of Office-10 fit: 192, 225, 32 and 59 test images of 958, 1123, 157 and 295.
    """

    test: float = 0.2
    val: float = 0.0
    """The share for validation. Without any nothing can be selected, and training goes to its last round."""

    def __post_init__(self) -> None:
        check.within(self, "test", 0.0, 1.0)
        check.within(self, "val", 0.0, 1.0)
        if self.test + self.val >= 1:
            raise check.FieldError(
                f"TrainTest: test={self.test} and val={self.val} must leave a share for training", "test", "val"
            )

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        order = rng.permutation(key, len(y))
        test = math.ceil(len(y) * self.test - 1e-9)  # 0.2 * 295 is 59.00000000000001 to a computer
        val = min(math.floor(len(y) * self.val + 1e-9), len(y) - test)
        return order[test + val :], order[test : test + val], order[:test]


@dataclass(frozen=True)
class Counted(Split):
    """So many examples for training, whatever a client has; then so many for validation; the rest is for testing.

    FedPCL's clients train on about a hundred examples each under label shift, be they five or eighty.
    """

    train: int = 100
    val: int = 0
    """Validation examples; where few are left, at most half of them."""
    most: float = 0.9
    """The largest share of a client's examples that is for training, where it has few."""

    def __post_init__(self) -> None:
        check.whole(self, "train", 1)
        check.whole(self, "val", 0)
        check.within(self, "most", 0.0, 1.0)

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        order = rng.permutation(key, len(y))
        train = min(self.train, math.floor(len(y) * self.most + 1e-9))
        val = min(self.val, (len(y) - train) // 2)  # so that something is left to test on
        return order[:train], order[train : train + val], order[train + val :]


@dataclass(frozen=True)
class BalancedTest(Split):
    """Training examples in a class mix of the client's own, and test examples of all classes alike.

    FedPCL's clients under feature and label shift, as its released code deals: of every class a client trains on its
    share of `train` times `clients` examples, drawn from Dirichlet(alpha) over so many clients, and it is tested on
    classes that it hardly knows as often as on others. Every client draws for itself, so that what clients have of a
    class adds up on average alone.
    """

    train: int = 10
    """Training examples of a class, on average over clients and classes; shares are rounded down."""
    test: int = 100
    """Test examples of every class, as far as `most` allows."""
    most: float = 0.75
    """The largest share of the examples of a class that is for testing."""
    alpha: float = 1.0
    clients: int = 5
    """Among how many clients the training examples of a class are dealt."""

    def __post_init__(self) -> None:
        check.whole(self, "train", 1)
        check.whole(self, "test", 1)
        check.within(self, "most", 0.0, 1.0)
        check.positive(self, "alpha")
        check.whole(self, "clients", 2)

    def cut(self, y: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        order, classes = rng.permutation(rng.fold(key, "order"), len(y)), y.unique().tolist()
        shares = rng.dirichlet(rng.fold(key, "mix"), self.alpha, len(classes), self.clients)[:, 0]
        train, test = [order[:0]], [order[:0]]
        for c, share in zip(classes, shares.tolist(), strict=True):
            rows = order[y[order] == c]
            tested = min(self.test, math.floor(len(rows) * self.most + 1e-9))
            test.append(rows[:tested])
            train.append(rows[tested:][: math.floor(share * self.train * self.clients)])
        return torch.cat(train), order[:0], torch.cat(test)
