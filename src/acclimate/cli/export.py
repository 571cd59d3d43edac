"""`acclimate export`: a client's model as an ONNX file or in torch's export format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .trust import Trust

SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2"}


def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    client: Annotated[int, typer.Option(help="Whose model, from 0.")] = 0,
    to: Annotated[
        str | None, typer.Option(help="The format: onnx, or torch-export (default: as the file's ending says; onnx).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file (default: RUN/client-N.onnx, .pt2).")
    ] = None,
    selection: Annotated[str, typer.Option(help="The round: last, or validation for the best one.")] = "last",
    batch: Annotated[str, typer.Option(help="The batch size: dynamic, or a number.")] = "dynamic",
    dtype: Annotated[str, typer.Option(help="The inputs: float32 in 0..1, or uint8 pixels.")] = "float32",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    trust: Trust = False,
) -> None:
    """Write a client's personal model, without adapter, as a file for other runtimes, and check it.

    Normalisation is in the file: it takes pixels and gives logits. Class names are in its metadata.
    """
    to = _format(to, out)
    if batch != "dynamic" and not batch.isdecimal():
        raise ValueError(f"--batch {batch} must be dynamic or a number")
    target = out or run / f"client-{client}{SUFFIXES[to]}"
    from .. import store
    from ..running import export as api
    from ..running import run as running

    if target.exists() and not overwrite:
        raise store.RunError(f"{target} is there already; pass --overwrite, or choose another --out")
    fit = running.load(run)
    try:
        size = None if batch == "dynamic" else int(batch)
        done = api.export(fit, client, target, to, selection, size, dtype, overwrite)
    finally:
        fit.engine.close()
    sizes = " and ".join(map(str, done.checked))
    typer.echo(f"{done.about['label']}, client {client}, model of round {done.about['round']}")
    typer.echo(f"checked with batches of {sizes}: logits differ by at most {done.difference:.1e}")
    typer.echo(f"wrote {target}")


def _format(to: str | None, out: Path | None) -> str:
    """The format, by its name or by the file's ending; the two must not contradict each other."""
    if to is not None and to not in SUFFIXES:
        raise ValueError(f"--to {to} must be one of {', '.join(SUFFIXES)}")
    if out is None:
        return to or "onnx"
    ending = out.suffix.lower()
    fits = [name for name, suffix in SUFFIXES.items() if suffix == ending and to in (None, name)]
    if not fits:
        allowed = SUFFIXES[to] if to else " or ".join(SUFFIXES.values())
        raise ValueError(f"--out {out} must end in {allowed}" + (f", as --to {to} writes" if to else ""))
    return fits[0]
