"""The contract, on torch and numpy alone: what methods, adapters, personalisers, filters and backends are made of.

What is named here is public: a method or adapter needs one or two import lines. `check`, `exchange`, `fit`, `limits`,
`local`, `message`, `optim`, `rng`, `stream` and `tree` are the modules whose functions are called by their module's
name.
"""

from . import check, exchange, fit, limits, local, message, optim, rng, stream, tree
from .adapter import Adapter, Exchanging, Predict, Wrapping
from .backend import Attempt, Backend, CannotCalibrate, Engine, Fault, NonFinite, Reply
from .exchange import CannotExchange
from .filter import Arrived, Filter, Sender
from .fit import Best, State
from .lanes import Lanes
from .limits import ExampleCount, Granted, Limit, Limits, UpTo, Within
from .local import Loss, Work, difference, train
from .message import Gather, Mean, Partial, Rule, Rules, Sum
from .method import Method, Weighted
from .nn.inputs import token_count
from .nn.layers import Normaliser, PureBatchNorm
from .optim import SGD, Adam, AdamW, Constant, Cosine, Optimizer, Schedule, StepDecay
from .personal import Personalizer
from .private import Private, Stacked
from .rng import Key
from .shards import Holdings, HostShards, Shards
from .stream import Protocol
from .task import Augment, Blend, Mode, Model, Out, Task
from .tree import Scalar, Tree
from .worker import Worker

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Adapter",
    "Arrived",
    "Attempt",
    "Augment",
    "Backend",
    "Best",
    "Blend",
    "CannotCalibrate",
    "CannotExchange",
    "Constant",
    "Cosine",
    "Engine",
    "ExampleCount",
    "Exchanging",
    "Fault",
    "Filter",
    "Gather",
    "Granted",
    "Holdings",
    "HostShards",
    "Key",
    "Lanes",
    "Limit",
    "Limits",
    "Loss",
    "Mean",
    "Method",
    "Mode",
    "Model",
    "NonFinite",
    "Normaliser",
    "Optimizer",
    "Out",
    "Partial",
    "Personalizer",
    "Predict",
    "Private",
    "Protocol",
    "PureBatchNorm",
    "Reply",
    "Rule",
    "Rules",
    "Scalar",
    "Schedule",
    "Sender",
    "Shards",
    "Stacked",
    "State",
    "StepDecay",
    "Sum",
    "Task",
    "Tree",
    "UpTo",
    "Weighted",
    "Within",
    "Work",
    "Worker",
    "Wrapping",
    "check",
    "difference",
    "exchange",
    "fit",
    "limits",
    "local",
    "message",
    "optim",
    "rng",
    "stream",
    "token_count",
    "train",
    "tree",
]
