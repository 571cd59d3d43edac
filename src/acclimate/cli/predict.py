"""`acclimate predict`: a live model's answers to a folder or file of samples."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ops.layout import counted
from .trust import Trust

if TYPE_CHECKING:
    import numpy as np

    from ..live import Answer, Live


def predict(
    live: Annotated[Path, typer.Argument(help="A live folder.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images or one image, a CSV or Parquet file of rows or texts, a .txt file of texts, or an "
            ".npz (array x) or .npy file of samples."
        ),
    ],
    out: Annotated[Path, typer.Option("-o", "--out", help="The CSV file.")] = Path("answers.csv"),
    frozen: Annotated[bool, typer.Option("--frozen", help="Commit no step; leave the live folder as it is.")] = False,
    batch: Annotated[int, typer.Option(help="Samples of a request.")] = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file that is already there.")] = False,
    trust: Trust = False,
) -> None:
    """Answer samples with a live model, adapt to them, and save what it became.

    A row is a sample: its name, the answer, the probability of each class, and whether the answer was adapted.
    """
    if batch < 1:
        raise ValueError(f"--batch {batch} must be at least 1")
    from .. import store
    from ..live import load_live
    from .join import names_of, remarks, samples

    if out.exists() and not overwrite:
        raise store.RunError(f"{out} is there already; pass --overwrite, or choose another --out")
    alone = live.is_dir() and not frozen  # two that adapt one folder would each lose what the other learned
    with store.locked(live, "command") if alone else contextlib.nullcontext():
        model = load_live(live)
        x = samples(data, model.worker.task.shape, model.raw)
        text, last, adapted = _answered(model, x, names_of(data, len(x), model.raw), batch, frozen)
        store.write(out, text)
        if not frozen:
            model.save(live, overwrite=True)
    typer.echo(f"{counted(len(x), 'sample')}, {counted(adapted, 'adapted answer')}, step {model.step}")
    for line in remarks(data, model.raw):
        typer.echo(line)
    if last.note:
        typer.echo(last.note)
    if last.estimate is not None:
        typer.echo(f"estimated accuracy {last.estimate:.1%}")
    typer.echo(f"wrote {out}")


def _answered(model: Live, x: np.ndarray, names: list[str], batch: int, frozen: bool) -> tuple[str, Answer, int]:
    """A CSV file with a row per sample, the last answer, and how many were adapted."""
    was = model.frozen
    model.freeze(frozen or was)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["sample", "answer", "adapted", *model.classes])
    adapted = 0
    for start in range(0, max(len(x), 1), batch):  # without samples the model says so
        answer = model(x[start : start + batch])
        adapted += sum(answer.adapted)
        parts = zip(names[start:], answer.labels, answer.adapted, answer.probabilities.tolist(), strict=False)
        for name, label, changed, probabilities in parts:
            rows.writerow([name, label, int(changed), *(f"{p:.6g}" for p in probabilities)])
    model.freeze(was)
    return text.getvalue(), answer, adapted
