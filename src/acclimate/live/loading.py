"""Live models from their folders, those that earlier versions wrote for newcomers among them."""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..core import Task, Tree, Worker
from ..data import Dataset
from ..data.raw import of_card
from ..experiment import loads
from ..shifts import brfl
from ..store.frozen import differing, sketch
from .folder import CARD, DEFAULT, JOINED, JOINED_CARD, JOINED_TENSORS, SCHEMA, read, remembered
from .model import SNAPSHOTS, WINDOW, Live
from .session import begin


def load_live(path: str | Path, **given: Any) -> Live:
    """A live model from its folder, or a client that joined with an earlier version.

    `given` supplies Python objects that JSON cannot hold, such as `model`.
    """
    folder = Path(path)
    if not (folder / CARD).exists() and (folder / JOINED_CARD).exists():
        return _joined(folder, given)
    if not (folder / CARD).exists():
        raise store.RunError(_missing(folder))
    try:
        card, files = _whole(folder)
        model, trees = files["model"], files["state"]
        experiment, worker = _worker(card, given, files.get("constants"))
        if other := differing(card["apart"], sketch(worker.task.apart)) if "apart" in card else []:
            raise store.RunError(
                f"{folder / CARD}: was deployed with other frozen parameters than its model has now: "
                f"{', '.join(other[:3])}; restore the weights that the model is made of, or deploy again"
            )
        if reason := experiment.adapters[0].refusal(worker.task, model):
            raise store.RunError(f"{folder / CARD}: {reason}")
        ring = deque(((int(k), v) for k, v in trees["snapshots"].items()), maxlen=SNAPSHOTS)
        about = (experiment, worker, tuple(card["classes"]), card["client"], model, trees["session"], card["record"])
        rest = (card["frozen"], card["prepared"], getattr(torch, card["dtype"]), ring)
        known = remembered(card["client"], trees["recent"]) if "recent" in trees else OrderedDict()
        raw = of_card(card.get("raw"))
        config = card["config"] if isinstance(experiment.data, Elsewhere) else None
        return Live(*about, *rest, recent=known, labelled=list(card["labelled"]), config=config, raw=raw)
    except (KeyError, TypeError, AttributeError) as e:
        raise store.RunError(f"{folder / CARD} is damaged: {type(e).__name__} {e}; deploy again") from e


def _whole(folder: Path) -> tuple[dict[str, Any], dict[str, Tree]]:
    """A card and the trees that it names: of one save, also where another process saves meanwhile."""
    while True:
        card = store.read_json(folder / CARD)
        if card.get("schema") != SCHEMA:
            says = f"{folder / CARD}: schema={card.get('schema')!r} must be '{SCHEMA}'"
            raise store.RunError(f"{says}; it is of another version of acclimate")
        try:
            named = card["files"]
            return card, {word: read(folder, named[word]) for word in ("model", "state", "constants") if word in named}
        except store.RunError:
            if store.read_json(folder / CARD) == card:
                raise


def _missing(folder: Path) -> str:
    """What to say of a folder without a card, and what the user may have meant."""
    if found := _inside(folder):
        return f"{folder} holds live models, and is none: name one of {_listed(found)} in it"
    if found := _inside(folder / DEFAULT):  # where `acclimate deploy` writes unless told
        return f"{folder} is no live model; those of this run are in {folder / DEFAULT}: name one of {_listed(found)}"
    if found := _inside(folder.parent):
        how = "is no live model" if folder.exists() else "does not exist"
        return f"{folder} {how}; {folder.parent} holds {_listed(found)}"
    return unmade(folder)


def _inside(folder: Path) -> list[str]:
    return sorted((p.parent.name for p in folder.glob(f"*/{CARD}")), key=_numbered) if folder.is_dir() else []


def _numbered(name: str) -> tuple[str, int]:
    """Sorts client-2 before client-10."""
    head, _, number = name.rpartition("-")
    return (head, int(number)) if number.isdecimal() else (name, 0)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def unmade(folder: Path) -> str:
    """What to say where there is no live model yet: the command that makes some, and where they will be."""
    what = f"{folder} holds no live model" if folder.exists() else f"{folder} does not exist"
    if store.holds_run(folder):
        return f"{folder} is a run folder; make live models of it: acclimate deploy {folder}"
    if found := sorted({str(card.parents[1]) for card in folder.glob(f"*/{DEFAULT}/*/{CARD}")}):
        return f"{folder} holds no live model itself; there are some in {_listed(found)}"
    place = folder.parent if folder.name.startswith("client-") else folder
    if place.name == DEFAULT and store.holds_run(place.parent):
        return f"{what}; make live models with: acclimate deploy {place.parent}"
    return f"{what}; make live models with: acclimate deploy RUN -o {place} (which writes {place / 'client-0'}, ...)"


@dataclass(frozen=True)
class Elsewhere(Dataset):
    """What a federation trained on and gave as Python objects: no file holds it, and a live model does not need it."""


def _elsewhere(config: Any) -> dict[str, Any]:
    """Stand-ins for what a live model does not need, where a file cannot hold it."""
    body = config.get("experiment") if isinstance(config, Mapping) else None
    if not isinstance(body, Mapping) or not isinstance(data := body.get("data"), Mapping):
        return {}  # `loads` says what is wrong
    clients = max(v for v in (data.get("clients"), body.get("cohort"), 1) if isinstance(v, int))
    stands = {"data": Elsewhere(clients=clients), "streams": brfl()}
    return {name: stand for name, stand in stands.items() if _holds_object(body.get(name))}


def _holds_object(value: Any) -> bool:
    if isinstance(value, Mapping):
        return value.get("type") == "python" or any(map(_holds_object, value.values()))
    return isinstance(value, list) and any(map(_holds_object, value))


def _worker(card: Mapping[str, Any], given: Mapping[str, Any], frozen: Tree | None = None) -> tuple[Any, Worker]:
    e, about = loads(json.dumps(card["config"]), **{**_elsewhere(card["config"]), **given}), card["task"]
    moments = (tuple(about["mean"]), tuple(about["std"]))
    sizes = (tuple(about["shape"]), len(card["classes"]))
    task = Task(e.model, *sizes, *moments, tokens=about.get("tokens"), frozen=frozen)
    return e, Worker(task, e.method, (), e.seed)


def _joined(folder: Path, given: Mapping[str, Any]) -> Live:
    """A client that joined with an earlier version: frozen, as it was."""
    card = store.read_json(folder / JOINED_CARD)
    if card.get("schema") != JOINED:
        raise store.RunError(f"{folder / JOINED_CARD}: schema={card.get('schema')!r} must be '{JOINED}'")
    try:
        trees = read(folder, {"name": JOINED_TENSORS, "sha256": card["sha256"], "outline": card["outline"]})
        experiment, worker = _worker(card, given)
        start = begin(worker.task, experiment.adapters[0], trees["model"], WINDOW, torch.uint8)
        now = {**start, "adapter": trees["state"]}
        record = {**card["record"], "windowless": True}  # it kept no samples: batches are answered as they are given
        about = (experiment, worker, tuple(card["classes"]), card["client"], trees["model"], now, record)
        return Live(*about, frozen=True, prepared=True)
    except (KeyError, TypeError, AttributeError) as e:
        raise store.RunError(f"{folder / JOINED_CARD} is damaged: {type(e).__name__} {e}; join again") from e
