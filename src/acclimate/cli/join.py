"""`acclimate join`: a personalised model for a new client, from a folder or file of its unlabelled samples."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..ops.layout import counted
from . import completion
from .trust import Trust

if TYPE_CHECKING:
    import numpy as np

    from ..core.adapter import Adapter
    from ..data.raw import Raw
    from ..experiment import Experiment
    from ..live import Live
    from ..running.join import Architecture


def join(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    data: Annotated[
        Path,
        typer.Argument(
            help="A folder of images or one image, a CSV or Parquet file of rows or texts, a .txt file of texts, or an "
            ".npz (array x) or .npy file of samples."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            help="Which adapter, e.g. adapters=fedtta adapters.fedtta.steps=5; and, where clients share no weights, "
            "which model: one of the federation's by number, model=0, or any, e.g. model=mlp model.hidden=50",
            autocompletion=completion.settings,
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Where to write (default: RUN/joined/DATA).")] = None,
    selection: Annotated[str, typer.Option(help="The round: last, or validation for the best one.")] = "last",
    client: Annotated[int, typer.Option(help="The newcomer's number, from 0.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a client that joined already.")] = False,
    trust: Trust = False,
) -> None:
    """Adapt a trained model to a new client's unlabelled samples and save it.

    Labels in DATA are not read. The folder can be loaded in Python with `ac.load_live`; its answers.csv has a row per
    sample: its name, the answer, and the probability of each class.
    """
    from .. import store
    from ..live.folder import CARD
    from ..running import join
    from ..running import run as api

    target = out or run / "joined" / data.stem
    if (target / CARD).exists() and not overwrite:
        raise store.RunError(f"{target} holds a joined client; pass --overwrite, or choose another --out")
    fit = api.load(run)
    adapter, model = chosen(fit.experiment, settings or [])
    raw = fit.experiment.data.raw(fit.world, None)
    x = samples(data, fit.worker.task.shape, raw)
    joined = join.join(fit, x, adapter, client, selection, model=model)
    joined.save(target, overwrite)
    store.write(target / "answers.csv", answers(joined, x, names_of(data, len(x), raw)))
    fit.engine.close()
    for line in (*remarks(data, raw), *summary(joined, x)):
        typer.echo(line)
    typer.echo(f"wrote {target}")


def chosen(experiment: Experiment, settings: list[str]) -> tuple[Adapter | None, Architecture | int | None]:
    """The adapter and the model that the settings name; None leaves the choice to `join`."""
    from ..experiment import ConfigError
    from ..experiment.catalogue import ADAPTERS

    parts: dict[str, list[str]] = {"adapters": [], "model": []}
    for setting in settings:
        part, _, value = setting.partition("=")
        part = part.split(".")[0]
        if part not in parts:
            named = value if part == "adapter" else part
            hint = f"did you mean adapters={named}? " if part == "adapter" or part in ADAPTERS else ""
            raise ConfigError(
                f"{setting}: {hint}a trained model can be given another adapters= and, for a newcomer where clients "
                "share no weights, another model=; all else was trained"
            )
        parts[part].append(setting)
    return _adapter(experiment, parts["adapters"]), _model(experiment, parts["model"])


def _adapter(experiment: Experiment, settings: list[str]) -> Adapter | None:
    """The one adapter that the settings name."""
    from ..experiment import ConfigError, labels
    from ..experiment.settings import expand

    if not settings:
        return None
    named = expand(settings, experiment)
    if len(named) != 1 or len(named[0].adapters) != 1:
        raise ConfigError(
            f"{' '.join(settings)}: name one adapter, for example adapters={labels.name(named[0].adapters[0])}"
        )
    return named[0].adapters[0]


def _model(experiment: Experiment, settings: list[str]) -> Architecture | int | None:
    """The one model that the settings name: a number among the federation's, or a record."""
    from ..experiment import ConfigError
    from ..experiment.settings import expand

    if not settings:
        return None
    value = settings[0].removeprefix("model=")
    if len(settings) == 1 and value.lstrip("-").isdecimal():
        return int(value)
    named = expand(settings, experiment)
    if len(named) != 1:
        raise ConfigError(f"{' '.join(settings)}: name one model to join with, for example model=mlp")
    return named[0].model


def samples(path: Path, shape: tuple[int, ...], raw: Raw | None = None) -> np.ndarray:
    """The samples of a folder of images (at any depth), an image, a file of rows or texts, or an array in a file."""
    import numpy as np

    from ..data import formats, images
    from ..data.raw import FILES

    if path.is_dir() or (path.is_file() and path.suffix.lower() in images.SUFFIXES):
        found = _images(path)
        if not found:
            raise ValueError(f"{path}: has no images ({', '.join(images.SUFFIXES[:4])}, ...)")
        if len(shape) != 3 or shape[1] != shape[2] or shape[0] not in (1, 3):
            raise ValueError(
                f"{path}: the model takes inputs of shape {shape}; give them as an .npz file with an array x"
            )
        return np.stack([images.decode(f, shape[1], shape[0], upright=True) for f in found])
    kinds = "it must be a folder of images, an image, a file of rows or texts, or an .npz or .npy file"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; {kinds}")
    if path.suffix.lower() in FILES:
        if raw is None:
            raise ValueError(
                f"{path}: the model takes inputs of shape {shape}, which are no rows of a table and no texts; "
                "give them as an .npz file with an array x"
            )
        return raw.file(path)
    if path.suffix.lower() not in (".npy", ".npz"):
        raise ValueError(f"{path} ends in none of the known forms; {kinds}")
    x = np.asarray(formats.npy(path)) if path.suffix.lower() == ".npy" else formats.npz(path, ("x",))["x"]
    return images.channels_first(x, f"{path}: x") if x.dtype == np.uint8 and x.ndim in (3, 4) else x


def _images(folder: Path) -> list[Path]:
    from ..data import images

    if folder.is_file():
        return [folder]
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in images.SUFFIXES and not f.name.startswith("."))


def names_of(path: Path, count: int, raw: Raw | None = None) -> list[str]:
    """What samples are called: files by their path in the folder, rows and windows of a file by their number, behind
    the name of their series where a file has several."""
    from ..data import images
    from ..data.raw import FILES, RawWindows

    alone = path.suffix.lower() in images.SUFFIXES
    if not path.is_dir() and not alone:
        named = raw.names(path) if isinstance(raw, RawWindows) and path.suffix.lower() in FILES else []
        return named or list(map(str, range(count)))
    folder = path if path.is_dir() else path.parent
    names = (os.fsencode(f.relative_to(folder).as_posix()) for f in _images(path))
    return [name.decode("utf-8", "replace") for name in names]  # a name may be in no encoding at all


def remarks(path: Path, raw: Raw | None) -> list[str]:
    """What to know of the rows of a file before their answers are trusted."""
    from ..data.raw import FILES, RawRows

    return raw.remarks(path) if isinstance(raw, RawRows) and path.is_file() and path.suffix.lower() in FILES else []


def answers(joined: Live, x: np.ndarray, names: list[str]) -> str:
    """A CSV file with a row per sample."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["sample", "answer", *joined.classes])
    for name, p in zip(names, joined.predict(x).softmax(-1), strict=True):
        rows.writerow([name, joined.classes[int(p.argmax())], *(f"{v:.6g}" for v in p.tolist())])
    return text.getvalue()


def summary(joined: Live, x: np.ndarray) -> list[str]:
    """What happened, in a few lines."""
    from ..experiment import labels

    r = joined.record
    lines = [
        f"{counted(r['samples'], 'sample')}, {labels.name(joined.adapter)}, model of round {r['round']}",
        f"mean entropy {r['entropy_before']:.4f} before, {r['entropy_after']:.4f} after",
    ]
    if "chosen_step" in r:
        losses = r["learned_loss"][: r["chosen_step"] + 1]  # without patience nobody looked at the last model's
        end = f"to {losses[-1]:.4f}" if len(losses) > r["chosen_step"] else "before the first"
        lines.append(f"step {r['chosen_step']} of {r['steps_taken']} taken, learned loss {losses[0]:.4f} {end}")
    answers = Counter(joined.predict(x).argmax(-1).tolist())
    lines.append("predicted: " + ", ".join(f"{n} x {joined.classes[c]}" for c, n in answers.most_common(8)))
    return lines
