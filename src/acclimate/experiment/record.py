"""An experiment is one record, and config.json a spelling of it; `settings` reads the other two."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ..adapters import T3A, NoAdapt, Tent
from ..backends import Auto
from ..core import Adapter, Backend, Filter, Method, Model, Personalizer, check
from ..data import Dataset, Digits
from ..methods import FedAvg
from ..models import CNN, MLP, TextNet, WindowCNN, Wrap
from ..ops import opening
from ..ops.selection import STRATEGIES, Strategy
from ..personal import NoPersonal
from ..shifts import Shift, brfl
from . import catalogue, kinds, labels, names
from .encoding import ConfigError, by_name, decode, encode, settle

SCHEMA, OLD_SCHEMA = "acclimate.config/2", "acclimate.config/1"
"""In the second, files may lack fields, which then have their defaults, and have no digest."""
EVALUATION_FIELDS = ("personal", "adapters", "streams", "checkpoint_every", "analysis", "select")
"""Fields that do not change what is trained: experiments that differ in them alone share one training."""
IMAGE_MODEL = CNN(widths=(16, 32), norm="batch")
MODELS_BY_INPUTS: dict[str, Model] = {
    "vectors": MLP(norm="batch"),
    "windows": WindowCNN(norm="batch"),  # chosen on validation windows: results/tables/windows.json
    "texts": TextNet(),
}
"""The model in the place of the default one, where the data has other inputs than images."""
USUAL: tuple[Adapter, ...] = (NoAdapt(), Tent(), T3A())
"""The adapters where none are named. It is known by identity: somebody may name these very three."""
ONE: dict[str, type] = {"method": Method, "personal": Personalizer, "backend": Backend}
SEVERAL: dict[str, type] = {"adapters": Adapter, "streams": Shift, "filters": Filter}
"""The fields that hold records of a kind, one or several."""
RUNTIME_FIELDS = ("backend", "device")
"""Fields that say where it is trained: a checkpoint may be gone on with elsewhere."""


@dataclass(frozen=True)
class Experiment:
    """What is trained on what, how long, and how it is tested. Every field is a setting of the command line."""

    data: Dataset = Digits()
    model: Model | Wrap | nn.Module | Callable[[tuple[int, ...], int], nn.Module] = IMAGE_MODEL
    """The default is for images; data of vectors has a perceptron with batch norm in its place, windows convolutions
    along time with batch norm, texts a small network of their own with layer norm."""
    method: Method = FedAvg()
    personal: Personalizer = NoPersonal()
    """What every client does with its labelled data before its model goes live."""
    adapters: tuple[Adapter, ...] = USUAL
    """Each is tested on every stream, if it can serve the model. Where none are named, those are tested too that the
    method trains for (`Method.trains_for`): FedTHE's THE, for example."""
    streams: tuple[Shift, ...] = field(default_factory=brfl)
    filters: tuple[Filter, ...] = ()
    """Privacy and compression, applied to messages in this order."""
    rounds: int = 10
    cohort: int | None = None
    """Clients per round; None: as `participation` says."""
    participation: float = 1.0
    """The share of clients that take part in a round, where `cohort` is not given."""
    seed: int = 0
    eval_every: int = 1
    """Rounds between two looks at the validation data, which select the `validation` model."""
    checkpoint_every: int = 5
    analysis: bool = False
    """Also keep what the adapters did with every sample, and every stream's accuracy at each look at the validation
    data (with the first adapter that can serve): for the report's analysis. Training and results stay the same."""
    select: tuple[Strategy, ...] = ()
    """Also choose one of the adapters for every stream by these strategies, and note what they chose in results.json:
    fixed, source, entropy, consistency, snd or oracle. The table stays the same."""
    backend: Backend = Auto()
    device: str = "auto"
    """`auto`, `cpu`, `cuda` or `cuda:N`."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, Dataset):
            raise check.FieldError(
                f"Experiment: data is a {type(self.data).__name__}, not a data record such as Digits(); a data frame "
                "becomes one as ac.data.Table.of(frame, label=...), arrays as ac.data.of(x, y), and a CSV file as "
                "ac.data.Table(file=..., label=...)",
                "data",
            )
        for name, base in ONE.items():
            kinds.one("Experiment", name, getattr(self, name), base)
        for name, base in SEVERAL.items():
            object.__setattr__(self, name, kinds.several("Experiment", name, getattr(self, name), base))
        if self.model == IMAGE_MODEL and (fitting := _fitting(self.data)):
            object.__setattr__(self, "model", fitting)
        object.__setattr__(self, "adapters", adapters_with(self.adapters, self.method))
        if not isinstance(given := self.select, list | tuple):
            raise check.FieldError(f"Experiment: select={given!r} must be a tuple; write ({given!r},)", "select")
        settle(self, "Experiment")
        for name in ("rounds", "eval_every", "checkpoint_every"):
            check.whole(self, name, 1)
        check.whole(self, "seed", 0)
        if not 0 < self.participation <= 1:
            raise check.FieldError(
                f"Experiment: participation={self.participation!r} must be above 0 and at most 1", "participation"
            )
        if self.cohort is not None and not 1 <= self.cohort <= self.data.clients:
            raise check.FieldError(
                f"Experiment: cohort={self.cohort} must be between 1 and the number of clients, {self.data.clients}",
                "cohort",
                "clients",
            )
        for f in self.filters:
            if self.cohort_size < f.needs:
                raise ValueError(
                    f"Experiment: filters={type(f).__name__} needs at least {f.needs} clients in a round, not "
                    f"{self.cohort_size}; raise cohort or participation, or the number of clients, {self.data.clients}"
                )
        if not self.adapters:
            raise check.FieldError(
                "Experiment: adapters=() must name at least one; use 'none' for no adaptation", "adapters"
            )
        if not self.streams:
            raise check.FieldError("Experiment: streams=() must name at least one", "streams")
        if unknown := [s for s in self.select if s not in STRATEGIES]:
            raise check.FieldError(
                f"Experiment: select={unknown[0]!r} is not possible; allowed: {', '.join(STRATEGIES)}", "select"
            )

    @property
    def cohort_size(self) -> int:
        """Clients per round."""
        return (
            self.cohort if self.cohort is not None else max(math.floor(self.participation * self.data.clients + 0.5), 1)
        )

    @property
    def label(self) -> str:
        """`method` or `method+personal`: the row name in tables."""
        word = labels.name(self.method)
        return word if self.personal == NoPersonal() else f"{word}+{labels.name(self.personal)}"

    def settings(self) -> list[str]:
        """What tells the runs of a sweep apart: all `key=value` that differ from the defaults.

        Those of methods, personalisers, adapters and streams are the defaults of the catalogue entry.
        """
        aside = ("method", "personal", "adapters", "streams", "seed", "analysis", "select")
        own = {f: getattr(self, f) for f in aside}
        out = labels.differences(replace(Experiment(), **own), self)
        for part in ("method", "personal"):
            out += [f"{part}.{change}" for change in labels.entry_of(own[part])[1]]
        return out + _entry_settings("adapters", self.adapters) + _entry_settings("streams", self.streams)

    def identity(self) -> str:
        """Names what a checkpoint is of: equal for experiments that train the same, wherever they run it.

        Python objects count by name: a checkpoint brings what they hold (a module's weights).
        """
        return _hash(by_name(self._trained(RUNTIME_FIELDS)))

    def identities(self) -> tuple[str, str]:
        """All names by which a checkpoint may know this training, today's first."""
        return self.identity(), self.former_hash()

    def training_hash(self) -> str:
        """Names a training that can be shared: equal for experiments that differ only in how they are tested.

        Backend and device count, whose last bits differ, and Python objects count by what they hold.
        """
        return _hash(self._trained())

    def history_hash(self) -> str:
        """Names what training leaves behind, its learning curves included: equal where a training can be shared.

        With `analysis` the curves are measured with personaliser and adapter on the streams, so these count too.
        """
        curves = encode((self.personal, self.adapters, self.streams)) if self.analysis else None
        return self.training_hash() + _hash(curves)

    def former_hash(self, exact: bool = False) -> str:
        """What version 0.1.0.dev0 called this training in checkpoints; with `exact`, in the names of result files."""
        fields = self._trained(former=True)
        return _hash(fields if exact else by_name(fields))

    def _trained(self, without: tuple[str, ...] = (), former: bool = False) -> dict[str, Any]:
        """The encoded fields that change what is trained."""
        left_out = (*EVALUATION_FIELDS, *without)
        return {k: v for k, v in encode(self, former=former).items() if k not in left_out}


def adapters_with(named: tuple[Adapter, ...], method: Method) -> tuple[Adapter, ...]:
    """The adapters that are tested with a method: those that were named, and else the usual ones with its own."""
    if named is not USUAL or not method.trains_for:
        return named
    own = [_adapter(a, method) if isinstance(a, str) else a for a in method.trains_for]
    return tuple(dict.fromkeys([USUAL[0], *own, *USUAL[1:]]))


def _adapter(name: str, method: Method) -> Adapter:
    if name not in catalogue.ADAPTERS:
        near = catalogue.nearest(name, list(catalogue.ADAPTERS))
        raise ValueError(f"{type(method).__name__}: trains_for={name!r} is no adapter; {near}")
    return catalogue.ADAPTERS[name]


def _fitting(data: Dataset) -> Model | None:
    """The model in the place of the default one; for texts as large as their tokens are many."""
    model, count = MODELS_BY_INPUTS.get(data.inputs()), getattr(data, "tokens", None)
    return replace(model, tokens=count()) if count and isinstance(model, TextNet) else model


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _entry_settings(part: str, records: Sequence[Any]) -> list[str]:
    """`adapters.tent.opt.lr=0.3`, for every entry of a list that differs from the catalogue's.

    Entries that share a name are left out: tables name them with their settings already (`labels.distinct`).
    """
    entries = [labels.entry_of(r) for r in records]
    names = [name for name, _ in entries]
    return [f"{part}.{n}.{change}" for n, changes in entries for change in changes if names.count(n) == 1]


def dumps(experiment: Experiment) -> str:
    """config.json of an experiment, with a digest of it."""
    body = encode(experiment)
    return json.dumps({"schema": SCHEMA, "experiment": body, "digest": _digest(body)}, indent=2) + "\n"


def _digest(body: Any) -> str:
    return hashlib.sha256(json.dumps({"schema": SCHEMA, "experiment": body}, sort_keys=True).encode()).hexdigest()


def loads(text: str, where: str = "config.json", /, trust: names.Trust = False, **given: Any) -> Experiment:
    """An experiment from config.json; `given` replaces fields that a file cannot hold.

    `trust` lets it name your own classes, which are then imported: True for all, or their names, `module:Class`.
    """
    try:
        body = opening.parsed(text, where)
    except opening.FileProblem as e:
        raise ConfigError(str(e)) from e
    body = checked(body, where, digest=False)
    value = {k: v for k, v in body["experiment"].items() if k not in given}
    with names.trusting(trust):
        found = decode(value, strict=body["schema"] == SCHEMA, given=tuple(given))
    if not isinstance(found, Experiment):
        raise ConfigError(f"{where}: experiment.type={value.get('type')!r} must be 'experiment:Experiment'")
    checked(body, where)
    return replace(found, **given)


def checked(body: Any, where: str, digest: bool = True) -> dict[str, Any]:
    """What config.json holds, if it is of a version that can be read and is as it was written."""
    if not isinstance(body, dict) or body.get("schema") not in (SCHEMA, OLD_SCHEMA):
        found = body.get("schema") if isinstance(body, dict) else None
        raise ConfigError(f"{where}: schema={found!r} must be '{SCHEMA}'")
    if not isinstance(body.get("experiment"), dict):
        raise ConfigError(f"{where}: experiment={str(body.get('experiment'))[:40]!r} must be an object")
    if digest and body["schema"] == SCHEMA and body.get("digest") != _digest(body["experiment"]):
        raise ConfigError(
            f"{where} is damaged or was changed: its content does not match its digest; restore it, or start a new run"
        )
    return body


names.allow(Experiment)
