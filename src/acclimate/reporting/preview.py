"""The preview of an experiment's data as one page: its clients and classes, its training examples, its streams."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import store
from ..core import rng
from ..data import World
from ..experiment import Experiment, labels
from ..ops.layout import counted
from ..shifts import Shift, Stream
from .bubbles import CELL, BubbleColumn, bubble_plot
from .lines import are_ids, lines
from .page import page
from .strips import drawn, figure, spaced, strip, to_rgb
from .style import esc, table
from .svg import legend, swatch

BUBBLES = 6000
"""How many cells the plot of clients and classes has; further clients are only counted."""
CLIENTS = 10
"""How many clients are shown of the training data and of every stream; further ones are only counted."""
IMAGES = 12
"""How many images of a client are shown."""
GREY = "a square or line is a number: grey is the mean of the training rows, white three deviations above it"
KINDS = {2: "vectors", 3: "windows"}
"""What examples of numbers are, by the axes of all of them."""
SIDE = 64
"""How many pixels an image is high or wide at most; larger ones are shrunk."""


def preview(experiment: Experiment, path: Path) -> Path:
    """Write the preview of an experiment's data as an HTML file, whole or not at all. Trains nothing."""
    if path.suffix.lower() != ".html":
        raise ValueError(f"{path} must end in .html: the preview is a page, which a browser shows and prints")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; name a file, for example {path / 'preview.html'}")
    if path.parent.exists() and not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written: {path.parent} is not a folder")
    store.write(path, preview_page(experiment))
    return path


def preview_page(experiment: Experiment) -> str:
    """The same page as text."""
    world = experiment.data.world(experiment.seed)
    if not are_ids(world):
        to_rgb(drawn(world, world.examples.x[:1]))  # refuses what cannot be drawn before the streams are built
    key = rng.fold(rng.key(world.seed), "streams")  # the one that a run builds them with
    built = [s.build(world, key) for s in experiment.streams]
    names = labels.distinct(experiment.streams)
    about = dict(zip(names, map(_about, experiment.streams), strict=True))
    sections = {"Clients and classes": clients_and_classes(world)}
    sections |= contact_sheet(world, dict(zip(names, built, strict=True)), about)
    return page(f"Data: {world.name}", _facts(experiment, world), sections, "the settings of an experiment")


def clients_and_classes(world: World) -> str:
    """The bubble plot as HTML. A client has the colour of the domain that most of its examples come from."""
    rows = (*world.train, *world.new)
    names = [*map(str, range(world.clients)), *(f"n{i}" for i in range(len(world.new)))]
    counts, owners = world.histogram(rows).tolist(), domains(world, rows)
    columns = [
        BubbleColumn(name, own, domain, i >= world.clients)
        for i, (name, own, domain) in enumerate(zip(names, counts, owners, strict=True))
    ]
    label = f"Training examples of {counted(world.clients, 'client')} by class"
    cell = max(min(900 // len(columns), 480 // world.num_classes, 44), CELL)  # large where there is room
    return bubble_plot(columns, world.examples.classes, label, BUBBLES, cell) + _domain_legend(world)


def domains(world: World, rows: Iterable[Tensor]) -> list[int]:
    """The domain that most of each client's examples come from; the first one for a client without examples."""
    count = len(world.examples.domains)
    return [int(torch.bincount(world.examples.domain[r], minlength=count).argmax()) for r in rows]


def contact_sheet(
    world: World, streams: Mapping[str, Stream], about: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The images of the training data and of every stream as HTML, by heading.

    A row is a client: its first twelve examples in stream order, or twelve spaced over all of them for training, and
    where a stream changes as it goes on. `about` has a sentence or two about streams, by name.
    """
    out = {"Training examples": _training(world)}
    return out | {f"Stream {name}": _stream(world, name, s, (about or {}).get(name, "")) for name, s in streams.items()}


def _training(world: World) -> str:
    x, y, owners = world.examples.x, world.examples.y, domains(world, world.train[:CLIENTS])
    rows = [_row(world, "training", c, "client", owners[c], x, y, r, spaced(r, IMAGES)) for c, r in _first(world.train)]
    about = "What clients learn from: their own labelled examples."
    return _block(world, "Training examples", about, rows, world.clients)


def _stream(world: World, name: str, stream: Stream, about: str) -> str:
    shards, word = stream.shards, "new client" if stream.new else "client"
    owners = domains(world, (world.new if stream.new else world.train)[:CLIENTS])
    changes = "plan" in stream.card or "slots" in stream.card
    rows = []
    for c, own in _first([shards.own(c) for c in range(min(shards.clients, CLIENTS))]):
        kept = spaced(own, IMAGES) if changes else own[:IMAGES]
        rows.append(_row(world, name, c, word, owners[c], shards.x, shards.y, own, kept))
    about += f" Here: {_kind(world)} spaced over the whole stream." * changes
    facts = "; ".join(_words(stream.card))
    return _block(world, name, " ".join(filter(None, (about.strip(), f"{facts}." * bool(facts)))), rows, shards.clients)


def _first(rows: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
    return list(enumerate(rows[:CLIENTS]))


def _row(
    world: World, name: str, client: int, word: str, domain: int, x: Tensor, y: Tensor, own: Tensor, kept: Tensor
) -> str:
    """One client: its domain's mark, its number, how many examples it has, and some of them."""
    names = world.client_names if word == "client" else ()
    who = f"{word} {client}" + (f" ({names[client]})" if names and names[client] != str(client) else "")
    title = f"{who}, {world.examples.domains[domain]}"
    head = f'<th scope="row" title="{esc(title)}">{swatch(domain, domain)} {esc(who)}</th>'
    if are_ids(world):
        return f'{head}<td class="num">{len(own):,}</td><td>{"".join(lines(world, x[kept], y[kept])) or "nothing"}</td>'
    x, y = drawn(world, x[kept]), y[kept]
    images = [figure(name, strip(world, x, y, torch.tensor([i]), client, SIDE)) for i in range(len(kept))]
    return f'{head}<td class="num">{len(own):,}</td><td><div class="images">{"".join(images) or "nothing"}</div></td>'


def _block(world: World, name: str, note: str, rows: Sequence[str], clients: int) -> str:
    head = [("Client", ""), ("Examples", "num"), (f"{_kind(world).capitalize()}, with their classes", "")]
    more = f"<p>... and {clients - len(rows)} more clients.</p>" if clients > len(rows) else ""
    return f'<p class="muted">{esc(note)}</p>{table(name, head, rows, "sheet")}{more}'


def _words(card: Mapping[str, Any]) -> list[str]:
    """What a stream's data card says, in few words."""
    out = []
    for key, value in card.items():
        if isinstance(value, Mapping):
            out.append(f"{len(value)} {key}" if len(value) > 3 else f"{key} {', '.join(map(str, value))}")
        elif key == "plan":
            kinds = list(dict.fromkeys(kind for kind, _ in value))
            out.append(f"{len(value)} segments" + (f" of {', '.join(kinds)}" if len(kinds) <= 3 else ""))
        elif isinstance(value, Sequence) and not isinstance(value, str):
            out.append(f"{key} {', '.join(str(v) for v in dict.fromkeys(value))}")
        else:
            out.append(f"{key} {value}")
    return out


def _kind(world: World) -> str:
    """What the examples are."""
    kinds = KINDS if world.examples.x.is_floating_point() else {}
    return "texts" if are_ids(world) else kinds.get(world.examples.x.dim(), "images")


def _domain_legend(world: World) -> str:
    """The domains that are there, with their colours."""
    held = set(world.examples.domain[world.held].unique().tolist())
    there = world.examples.domain[torch.cat([*world.train, *world.new, world.held])].unique().tolist()
    mixed = any(len(world.examples.domain[r].unique()) > 1 for r in (*world.train, *world.new))
    label = "Domain of most examples" if mixed else "Domain"
    items = [(world.examples.domains[d] + " (held out)" * (d in held), d, d) for d in there]
    return f'<p class="muted">{label}:</p>{legend(items, label, lines=False)}'


def _about(shift: Shift) -> str:
    """The first paragraph of the docstring of a stream's record, and how the stream is served."""
    first = " ".join(inspect.cleandoc(type(shift).__doc__ or "").split("\n\n")[0].split())
    afresh = {"stream": "", "batch": ", each with a fresh adapter", "shift": ", a fresh adapter at every change"}
    served = "one by one" if shift.batch == 1 else f"in batches of {shift.batch}"
    return f"{first} Served {served}{afresh.get(shift.reset, f', reset={shift.reset}')}."


def _facts(experiment: Experiment, world: World) -> str:
    """What the page shows: the data set and its settings, and how many examples go where."""
    parts = {"training": world.train, "validation": world.val, "test": world.test, "of new clients": world.new}
    counts = [f"{sum(map(len, rows)):,} {name}" for name, rows in parts.items() if rows]
    counts += [f"{len(world.held):,} held out"] if len(world.held) else []
    shape = " x ".join(map(str, world.shape))
    clients = counted(world.clients, "client") + (f" and {counted(len(world.new), 'new one')}" if world.new else "")
    settings = labels.entry_of(experiment.data)[1]
    settings = [s for s in settings if not s.startswith("root=")]  # previews are shared, folders are not
    if not any(s.startswith("partition") for s in settings):
        settings = [f"partition={labels.label(experiment.data.partition)}", *settings]
    if revision := getattr(experiment.data.partition, "revision", None):
        settings = [*(s for s in settings if s != f"partition.revision={revision}"), f"dealt by revision {revision}"]
    kind = _kind(world)
    lede = f"{clients}, {world.num_classes} classes, {kind} of {shape}, seed {world.seed}."
    notes = "".join(
        f"<br>{esc(note[:1].upper() + note[1:])}." for note in (*world.notes, *[GREY] * (kind in KINDS.values()))
    )
    return (
        f'<p class="lede">{esc(lede)}</p><p class="muted">Examples: {esc(", ".join(counts))}.<br>'
        f"Data: {esc(', '.join(settings))}.{notes}</p>"
    )
