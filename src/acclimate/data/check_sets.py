"""Does a data set on disk hold what its authors published? Findings in words, for `acclimate data check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .dataset import Dataset
from .fileset import FileDataset
from .world import Examples


def check_published(dataset: Dataset) -> list[str]:
    """Findings on files, counts, shape and class histogram. Each starts with `ok:`, `differs:`, `missing:` or `note:`.

    A set that is not there, or cannot be read, is a finding too: nothing is raised for it.
    """
    if not isinstance(dataset, FileDataset):
        return [f"note: {type(dataset).__name__} is made by the library; there are no files to check"]
    try:
        sources = dataset.sources()
        size = sum(f.stat().st_size for f in sources.files)
        out = [f"ok: {len(sources.files)} files, {size / 1e6:.1f} MB, in {sources.base.absolute()}"]
        examples = dataset.load()
    except FileNotFoundError as e:
        return [f"missing: {e}"]
    except (ValueError, ImportError, OSError) as e:
        return [f"differs: {e}"]
    want = dataset.expected()
    if not want:
        return [*out, f"note: nothing is published for these settings; there are {len(examples.y)} examples"]
    return out + _counts(dataset, examples, want) + _histograms(dataset, examples, want)


def _counts(dataset: FileDataset, examples: Examples, want: dict[str, Any]) -> list[str]:
    out = []
    if (count := _expected_count(dataset, want)) is not None:
        out.append(_line("examples", len(examples.y), count))
    if "classes" in want:
        out.append(_line("classes", len(examples.classes), want["classes"]))
    if "users" in want and examples.users is not None:
        out.append(_line("users", int(examples.users.max()) + 1, want["users"]))
    shape = tuple(examples.x.shape[1:])
    if "shape" in want:
        channels, side = want["shape"][0], want["shape"][1]
        resized = (dataset.channels or channels, *((dataset.size or side,) * 2))
        out.append(_line("shape", shape, resized))
    else:
        out.append(f"note: shape is {shape}; none is published")
    return out


def _expected_count(dataset: FileDataset, want: dict[str, Any]) -> int | None:
    if dataset.part != "all":
        return want.get(dataset.part)
    if "all" in want:
        return int(want["all"])
    parts = [want[p] for p in ("train", "test") if p in want]
    return sum(parts) if parts else None


def _histograms(dataset: FileDataset, examples: Examples, want: dict[str, Any]) -> list[str]:
    out = []
    if domains := want.get("domains"):
        found = torch.bincount(examples.domain, minlength=len(examples.domains)).tolist()
        out += [_line(f"domain {d}", n, domains.get(d)) for d, n in zip(examples.domains, found, strict=True)]
    per_class, test = want.get("per_class", {}), dataset.official_test()
    rows = {"all": torch.ones_like(test), "train": ~test, "test": test}
    for part, counts in per_class.items():
        if dataset.part not in ("all", part):
            continue
        found = torch.bincount(examples.y[rows[part]], minlength=len(examples.classes)).tolist()
        out.append(_compare(f"class histogram ({part})", found, counts, examples.classes))
    return out


def _compare(what: str, found: Sequence[int], want: Sequence[int], names: Sequence[str]) -> str:
    if list(found) == list(want):
        return f"ok: {what} is the published one"
    if len(found) != len(want):
        return f"differs: {what} has {len(found)} classes, published are {len(want)}"
    odd = [f"{n}: {f} for {w}" for n, f, w in zip(names, found, want, strict=True) if f != w]
    return f"differs: {what} in {len(odd)} classes ({', '.join(odd[:4])}{', ...' if len(odd) > 4 else ''})"


def _line(what: str, found: Any, want: Any) -> str:
    return f"ok: {what} {_say(found)}" if found == want else f"differs: {what} {_say(found)}, published {_say(want)}"


def _say(value: Any) -> str:
    if isinstance(value, tuple):
        return " x ".join(str(v) for v in value)
    return f"{value:,}" if isinstance(value, int) else str(value)
