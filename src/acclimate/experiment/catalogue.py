"""Every name that the command line knows, and the record it stands for. A preset is a line here, not a file."""

from __future__ import annotations

import difflib
import types
import typing
from dataclasses import dataclass
from typing import Any

from .. import adapters, backends, data, filters, methods, models, personal, shifts
from ..core import Adapter, Augment, Backend, Filter, Method, Model, Personalizer, optim
from ..ops.augment import CropJitter, FlipCrop
from .catalogue_data import DATASETS, GROUPS, PARTITIONS, SPLITS, STREAMS


@dataclass(frozen=True)
class Kind:
    """One kind of record: its base class, and the named ones. `plural` is the word of `acclimate list`."""

    name: str
    plural: str
    base: type
    entries: dict[str, Any]


METHODS: dict[str, Method] = {
    "local": methods.Local(),
    "fedavg": methods.FedAvg(),
    "fedper": methods.FedAvg(private=("head",)),
    "fedbn": methods.FedAvg(private=("norm",)),
    "fedavgm": methods.FedAvg(server_opt=optim.SGD(lr=1.0, momentum=0.9)),
    "fedadam": methods.FedAvg(server_opt=optim.Adam(lr=0.01, b2=0.99, eps=1e-3)),
    "fedprox": methods.FedProx(),
    "scaffold": methods.SCAFFOLD(),
    "perfedavg": methods.PerFedAvg(),
    "fedspl": methods.FedSPL(),
    "fedthe": methods.FedTHE(),
    "fedttt": methods.FedTTT(),
    "fedicon": methods.FedICON(),
    "fedicon-us": methods.FedICON(labels=False),
    "fedatp": methods.FedATP(),
    "fedpcl": methods.FedPCL(),
    "fedproto": methods.FedProto(),
    "pfedme": methods.PFedMe(),
    "gma": methods.GMA(),
    "fedtta": methods.FedTTA(),
    "fedtta-prox": methods.FedTTA(mu=0.01),
    "heterofedtta": methods.HeteroFedTTA(),
    "fedmd": methods.HeteroFedTTA(lam=0.0, inner_lr=0.0),
    "fednova": methods.FedNova(),
    "fedcsa": methods.FedCSA(),
    "am": methods.AM(),
    "am-shared": methods.AM(partner="clients"),
    "rsc": methods.RSC(),
    "fedsam": methods.FedSAM(),
    "harmofl": methods.HarmoFL(),
    "elcfs": methods.ELCFS(),
    "ga": methods.GA(),
    "dsbn": methods.DSBN(),
    "afl": methods.AFL(),
    "fedadg": methods.FedADG(),
    "fedsr": methods.FedSR(),
    "pfl-sampled": methods.PFL("sampled"),
    "pfl-ensemble": methods.PFL("ensemble"),
    "odpfl": methods.ODPFL(),
    "apfl": methods.APFL(),
    "fedrep": methods.FedRep(),
    "ditto": methods.Ditto(),
    "fedrod": methods.FedRoD(),
    "fedavg-balanced": methods.FedAvg(balanced=True),
    "feddyn": methods.FedDyn(),
    "moon": methods.MOON(),
    "fedbabu": methods.FedAvg(private=("head",), frozen=("head",)),
    "lg-fedavg": methods.FedAvg(private=("body",)),
    "fedlc": methods.FedLC(),
    "fedntd": methods.FedNTD(),
    "feddecorr": methods.FedDecorr(),
    "fedala": methods.FedALA(),
    "ifca": methods.IFCA(),
    "fedpac": methods.FedPAC(),
    "fedas": methods.FedAS(),
    "fedem": methods.FedEM(),
    "ccvr": methods.CCVR(),
    "fedfomo": methods.FedFomo(),
    "cfl": methods.CFL(),
    "feddpa": methods.FedDPA(),
    "feddpa-f": methods.FedDPA(when="end"),
    "feddpa-the": methods.FedDPATHE(),
}

SUMMARIES = {
    "fedper": "FedAvg that keeps the last layer at the client (Arivazhagan et al., 2019).",
    "fedbabu": "FedAvg on the body under a common frozen head, for `+finetune` (Oh et al., ICLR 2022).",
    "lg-fedavg": "FedAvg that keeps all but the last layer at the client (Liang et al., 2020).",
    "fedbn": "FedAvg that keeps the normalisation layers at the client (Li et al., ICLR 2021).",
    "fedavgm": "FedAvg with momentum on the server (Hsu et al., 2019).",
    "fedadam": "FedAvg with Adam on the server (Reddi et al., ICLR 2021).",
    "fedavg-balanced": "FedAvg with balanced softmax (Ren et al., NeurIPS 2020).",
    "fedicon-us": "FedICON without labels before the classifier (Tan et al., 2023).",
    "feddpa-f": "FedDPA whose local LoRA is trained once, when the last model has arrived (Yang et al., NeurIPS 2024).",
    "lora-vit-local": "LoRA with a second, local pair per layer, for FedDPA.",
    "vit-tiny": "A small vision transformer for small images (Dosovitskiy et al., ICLR 2021).",
    "fedtta-prox": "FedTTA held near the received model's answers (Ye et al., 2023).",
    "fedmd": "Clients of several architectures learn from the mean of their logits on a public set (Li & Wang, 2019).",
    "delta": "Tent with moving statistics and samples weighed by class frequency (Zhao et al., ICLR 2023).",
    "lenet": "FedTTA's network: two padded convolutions and a hidden layer of 512 (as released).",
    "am-shared": "AM with the mean amplitude of all clients (Xu et al., CVPR 2021).",
    "pfl-sampled": "FedPer whose newcomers get one trained client's head (baseline of Ye et al., 2023).",
    "pfl-ensemble": "FedPer whose newcomers get the mean of all trained clients' heads (baseline of Ye et al., 2023).",
    "lp": "Fits the head alone to the client's own labelled data.",
    "lp-ft": "Fits the head, then the whole model, to the client's own labelled data.",
}
"""What presets are that have a name and a paper of their own; of others their class says it."""

PERSONALS: dict[str, Personalizer] = {
    "none": personal.NoPersonal(),
    "finetune": personal.FineTune(),
    "lp": personal.FineTune(parts="head"),
    "lp-ft": personal.FineTune(parts="head-then-all"),
    "fisher": personal.Fisher(),
    "confusion": personal.Confusion(),
    "memory": personal.Memory(),
    "prior": personal.ClassPrior(),
    "means": personal.ClassMeans(),
}

ADAPTERS: dict[str, Adapter] = {
    "none": adapters.NoAdapt(),
    "bn": adapters.BNStats(),
    "bn-running": adapters.RunningStats(),
    "tent": adapters.Tent(),
    "tent-all": adapters.Tent(params="all"),
    "delta": adapters.Tent(renorm=0.95, balance=0.95),
    "roid": adapters.ROID(),
    "unmix": adapters.UnMixTNS(),
    "deyo": adapters.DeYO(),
    "neo": adapters.NEO(),
    "neo-continual": adapters.NEO(keep=0.9),
    "neo-client": adapters.NEO(against="client"),
    "santa": adapters.SANTA(),
    "t3a": adapters.T3A(),
    "mbsl": adapters.MBSL(),
    "memo": adapters.MEMO(),
    "ttt": adapters.TTT(),
    "ttt-episodic": adapters.TTT(online=False),
    "tsa": adapters.TSA(),
    "knn": adapters.KNNPer(),
    "fedtta": adapters.FedTTA(),
    "fedtta-plus": adapters.FedTTA(steps=50, patience=5),
    "odpfl": adapters.ODPFL(),
    "icon": adapters.ICON(),
    "eata": adapters.EATA(),
    "shot": adapters.SHOT(),
    "em": adapters.EM(),
    "bbse": adapters.BBSE(),
    "surgical": adapters.Surgical(),
    "atp": adapters.ATP(),
    "atp-online": adapters.ATP(online=True),
    "the": adapters.THE(),
    "theplus": adapters.THEPlus(),
    "the-lora": adapters.THELoRA(),
    "dpa": adapters.DPA(),
    "lame": adapters.LAME(),
    "rotta": adapters.RoTTA(),
    "sar": adapters.SAR(),
    "cotta": adapters.CoTTA(),
    "note": adapters.NOTE(),
    "guarded-tent": adapters.Guarded(),
    "together": adapters.Together(),
    "together-uniform": adapters.Together(weights="uniform"),
    "bn-together": adapters.BNTogether(),
    "fedctta": adapters.FedCTTA(),
    "fedtsa": adapters.FedTSA(),
    "latte": adapters.Latte(),
}
GUARDED = "guarded-"
"""Before the name of any adapter: that adapter with a guard around it, such as `guarded-t3a`."""

MODELS: dict[str, Model] = {
    "cnn": models.CNN(),
    "cnn-bn": models.CNN(norm="batch"),
    "cnn-gn": models.CNN(norm="group"),
    "cnn-small": models.CNN(widths=(16, 32), norm="batch"),
    "lenet": models.CNN(hidden=512, padding=2),
    "mlp": models.MLP(),
    "mlp-bn": models.MLP(norm="batch"),
    "projection": models.Projection(),
    "cct": models.CCT(),
    "resnet20": models.ResNet20(),
    "resnet20-bn": models.ResNet20(norm="batch"),
    "mixed": models.Mixed(),
    "resnet18": models.ResNet(depth=18),
    "resnet50": models.ResNet(depth=50),
    "alexnet": models.AlexNet(),
    "vgg11": models.VGG11(),
    "pretrained": models.Pretrained(),
    "text": models.TextNet(),
    "text-bn": models.TextNet(norm="batch"),
    "window-cnn": models.WindowCNN(),
    "window-cnn-bn": models.WindowCNN(norm="batch"),
    "vit-tiny": models.ViT(),
    "lora-vit": models.LoRA(),
    "lora-vit-local": models.LoRA(private=4),
    "prompts-vit": models.Prompts(),
}

BACKENDS: dict[str, Backend] = {
    "auto": backends.Auto(),
    "serial": backends.Serial(),
    "vmap": backends.Vmap(),
    "processes": backends.Processes(),
    "ray": backends.Ray(),
    "flower": backends.Flower(),
}

AUGMENTS: dict[str, Augment] = {"flip-crop": FlipCrop(), "crop-jitter": CropJitter()}

OPTIMIZERS: dict[str, optim.Optimizer] = {"sgd": optim.SGD(), "adam": optim.Adam(), "adamw": optim.AdamW()}

SCHEDULES: dict[str, optim.Schedule] = {
    "constant": optim.Constant(),
    "step": optim.StepDecay(),
    "cosine": optim.Cosine(),
}

FILTERS: dict[str, Filter] = {
    "median": filters.Median(),
    "trimmed-mean": filters.TrimmedMean(),
    "krum": filters.Krum(),
    "multi-krum": filters.Krum(select=2),
    "fp16": filters.FP16(),
    "int8": filters.Int8(),
    "top-k": filters.TopK(),
    "clip": filters.Clip(),
    "noise": filters.Noise(),
    "central-dp": filters.CentralDP(),
    "local-dp": filters.LocalDP(),
    "masked": filters.Masked(),
}

KINDS: tuple[Kind, ...] = (
    Kind("method", "methods", Method, METHODS),
    Kind("personal", "personals", Personalizer, PERSONALS),
    Kind("adapter", "adapters", Adapter, ADAPTERS),
    Kind("model", "models", Model, MODELS),
    Kind("data set", "datasets", data.Dataset, DATASETS),
    Kind("partition", "partitions", data.Partition, PARTITIONS),
    Kind("split", "splits", data.Split, SPLITS),
    Kind("augment", "augments", Augment, AUGMENTS),
    Kind("stream", "streams", shifts.Shift, STREAMS),
    Kind("backend", "backends", Backend, BACKENDS),
    Kind("optimizer", "optimizers", optim.Optimizer, OPTIMIZERS),
    Kind("schedule", "schedules", optim.Schedule, SCHEDULES),
    Kind("filter", "filters", Filter, FILTERS),
)


def guarded(name: Any) -> adapters.Guarded | None:
    """The record of a name such as `guarded-t3a`; None where it is no such name."""
    inner = ADAPTERS.get(name.removeprefix(GUARDED)) if isinstance(name, str) and name.startswith(GUARDED) else None
    return None if inner is None or isinstance(inner, adapters.Guarded) else adapters.Guarded(inner)


def group_of(name: Any, base: Any) -> tuple[Any, ...]:
    """The records that one name stands for in a tuple of records; none where it is no name of a group."""
    return GROUPS.get(name, ()) if base is shifts.Shift and isinstance(name, str) else ()


def kind_of(base: type) -> Kind | None:
    """The kind whose records a field of this type holds."""
    for kind in KINDS:
        records = isinstance(base, type) and kind.base not in (Model, Augment)  # these two are protocols
        if base is kind.base or (records and issubclass(base, kind.base)):
            return kind
    return None


def option_of(hint: Any, value: Any) -> Any:
    """Of a field that holds a tuple or a record, the type that a value is of: a record's where it is a name of one."""
    options = typing.get_args(hint)
    tuples = [o for o in options if typing.get_origin(o) is tuple]
    if not tuples or typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    named = [o for o in options if (kind := kind_of(o)) and isinstance(value, str) and value in kind.entries]
    return (named or tuples)[0]


def nearest(word: str, allowed: list[str]) -> str:
    """`did you mean ...?` where something is near, or has the word as a part; then all that is allowed."""
    by_small = {name.lower(): name for name in allowed}
    close = difflib.get_close_matches(word.lower(), by_small, n=1)
    close = close or [name for name in by_small if word.lower() in name.replace("_", "-").split("-")]
    hint = f"did you mean {' or '.join(repr(by_small[name]) for name in close)}? " if close else ""
    return f"{hint}allowed: {', '.join(allowed)}"
