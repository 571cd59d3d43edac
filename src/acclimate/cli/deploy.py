"""`acclimate deploy`: live folders of a run's clients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..ops.layout import counted
from . import completion
from .trust import Trust


def deploy(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which adapter, e.g. adapters=tent adapters.tent.steps=2", autocompletion=completion.settings
        ),
    ] = None,
    client: Annotated[str, typer.Option(help="Whose model: a number from 0, or all.")] = "all",
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where to write (default: RUN/live).")] = None,
    selection: Annotated[str, typer.Option(help="The round: last, or validation for the best one.")] = "last",
    guard: Annotated[bool, typer.Option(help="Put a guard around the adapter.")] = True,
    window: Annotated[int, typer.Option(help="Recent samples that an adapter sees that needs a batch.")] = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace live models that are there.")] = False,
    trust: Trust = False,
) -> None:
    """Write clients' models as live folders, which answer, adapt, and can be served.

    Each client's is OUT/client-N; `acclimate predict` and `acclimate serve` read them, and `ac.load_live` in Python.
    """
    if client != "all" and not client.isdecimal():
        raise ValueError(f"--client {client} must be a number from 0, or all")
    from .. import store
    from ..experiment import labels
    from ..live.folder import CARD, DEFAULT
    from ..running import run as api
    from .chosen import client_names
    from .join import chosen

    target = out or run / DEFAULT
    fit = api.load(run)
    try:
        adapter, model = chosen(fit.experiment, settings or [])
        if model is not None:
            raise ValueError("deploy: a client has the model that it was trained with; leave model= out")
        clients = range(fit.world.clients) if client == "all" else [int(client)]
        places = {c: target / f"client-{c}" for c in clients}
        if not overwrite and (there := [p for p in places.values() if (p / CARD).exists()]):
            raise store.RunError(f"{there[0]} holds a live model; pass --overwrite, or choose another --out")
        for number, place in places.items():
            live = fit.deploy(number, adapter, guard, selection, window)
            live.save(place, overwrite)
    finally:
        fit.engine.close()
    typer.echo(
        f"{counted(len(places), 'client')} with {labels.name(live.adapter)}, model of round {live.record['round']}"
    )
    for line in client_names(fit.world):
        typer.echo(line)
    typer.echo(f"wrote {target}")
