"""The names of data sets, of ways to deal and to split them, and of test streams: the catalogue's part for data."""

from __future__ import annotations

from .. import data, shifts

DATASETS: dict[str, data.Dataset] = {
    "digits": data.Digits(),
    "phrases": data.Phrases(),
    "mnist": data.MNIST(),
    "fashion-mnist": data.FashionMNIST(),
    "emnist": data.EMNIST(),
    "femnist": data.FEMNIST(partition=data.NaturalUsers()),
    "cifar10": data.CIFAR10(clients=20),
    "cifar10.1": data.CIFAR10_1(),
    "cifar10-c": data.CIFAR10C(),
    "cifar100": data.CIFAR100(clients=20),
    "stl10": data.STL10(),
    "svhn": data.SVHN(),
    "usps": data.USPS(),
    "digit5": data.Digit5(partition=data.ByDomain(), clients=5),
    "office-caltech10": data.OfficeCaltech10(partition=data.ByDomain(), clients=4),
    "pacs": data.PACS(partition=data.ByDomain(), clients=4),
    "office-home": data.OfficeHome(partition=data.ByDomain(), clients=4),
    "domainnet": data.DomainNet(partition=data.ByDomain(), clients=6),
    "tiny-imagenet": data.TinyImageNet(clients=20),
    "imagenet32": data.ImageNet32(clients=20),
    "imagenet-variant": data.ImageNetVariant(),
    "cells": data.Cells(),
    "table": data.Table(),
    "windows": data.Windows(),
    "arrays": data.Arrays(),
    "image-folder": data.ImageFolder(),
    "huggingface": data.HuggingFace(),
    "text": data.Text(),
    "noisy": data.Noisy(),
    "public": data.Public(),
}

PARTITIONS: dict[str, data.Partition] = {
    "iid": data.IID(),
    "dirichlet": data.Dirichlet(),
    "dirichlet-natural": data.Dirichlet(sizes="natural"),
    "dirichlet-brfl": data.Dirichlet(sizes="brfl"),
    "pathological": data.Pathological(),
    "by-superclass": data.BySuperclass(),
    "by-domain": data.ByDomain(),
    "by-domain-and-label": data.ByDomain(alpha=1.0),
    "natural-users": data.NaturalUsers(),
    "by-client": data.ByClient(),
}

SPLITS: dict[str, data.Split] = {
    "per-class": data.PerClass(),
    "train-test": data.TrainTest(),
    "counted": data.Counted(),
    "balanced-test": data.BalancedTest(),
}

STREAMS: dict[str, shifts.Shift] = {
    "original": shifts.Original(),
    "corrupted": shifts.Corrupted(),
    "natural": shifts.Natural(source=data.CIFAR10_1()),
    "out-of-client": shifts.OutOfClient(),
    "mixture": shifts.Mixture(),
    "interleaved": shifts.Interleaved(),
    "unseen-domain": shifts.UnseenDomain(),
    "rotated": shifts.Rotated(),
    "new-clients": shifts.NewClients(),
    "reduced": shifts.Reduced(),
    "gradual": shifts.Gradual(),
    "continual": shifts.Continual(),
    "recurring": shifts.Recurring(),
    "label-drift": shifts.LabelDrift(),
    "label-sorted": shifts.LabelSorted(),
    "correlated": shifts.Correlated(),
    "repeated": shifts.Repeated(),
    "grouped": shifts.Grouped(),
    "blends": shifts.Blends(),
    "gradual-labels": shifts.GradualLabels(),
    "recurring-labels": shifts.RecurringLabels(),
    "few-samples": shifts.FewSamples(),
    "few-classes": shifts.FewClasses(),
    "periodic": shifts.Periodic(),
    "quantile": shifts.Quantile(),
    "in-order": shifts.InOrder(),
}

GROUPS: dict[str, tuple[shifts.Shift, ...]] = {
    "brfl": shifts.brfl(),
    "severity-sweep": shifts.severity_sweep(),
    "drift": (shifts.Gradual(), shifts.Continual(), shifts.Recurring(), shifts.LabelDrift()),
}
"""Several streams under one name: `streams=brfl,new-clients`."""
