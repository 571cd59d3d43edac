"""FEMNIST in the json files of LEAF: handwritten characters by writer, a federation by nature."""

from __future__ import annotations

import string
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..ops import opening
from . import formats
from .cache import Parsed
from .fileset import FileDataset, Sources


@dataclass(frozen=True)
class FEMNIST(FileDataset):
    """Handwritten digits and letters of 3,550 writers, 28 x 28, grey, ink on white (Caldas et al., 2018).

    `Examples.users` says who wrote what. LEAF writes one folder of all examples, and after its own splitting two of
    training and test examples: `part="all"` reads the former where it is there, and both of the latter where not.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)

    class_names: ClassVar[tuple[str, ...]] = (*string.digits, *string.ascii_uppercase, *string.ascii_lowercase)
    places: ClassVar[tuple[str, ...]] = ("femnist", "FEMNIST", "leaf/data/femnist", "femnist/data", "FEMNIST/data", "")
    origin: ClassVar[str] = "https://leaf.cmu.edu (github.com/TalwalkarLab/leaf, data/femnist/preprocess.sh)"
    needs: ClassVar[str] = "femnist/data/all_data/*.json, or femnist/data/train/*.json and femnist/data/test/*.json"
    published: ClassVar[dict[str, Any]] = {"all": 805263, "classes": 62, "users": 3550, "shape": (1, 28, 28)}

    def expected(self) -> dict[str, Any]:
        # LEAF's splits depend on the options that its script was given.
        return self.published if self.part == "all" else {"classes": 62, "shape": (1, 28, 28)}

    def sources(self) -> Sources:
        root = self.folder()
        for place in (f"{p}{d}" for p in self.places for d in ("/data", "")) if root is not None else ():
            base = Path(root or "", place.lstrip("/"))
            whole = sorted((base / "all_data").glob("*.json")) if self.part == "all" else []
            split = [sorted((base / part).glob("*.json")) for part in self.wanted]
            found = [(f, False) for f in whole]
            if not whole and all(split):
                found = [(f, p == "test") for p, paths in zip(self.wanted, split, strict=True) for f in paths]
            if found:
                return Sources(base, [f for f, _ in found], partial(self._read, found))
        raise self.missing()

    def _read(self, found: list[tuple[Path, bool]]) -> Parsed:
        xs, ys, users, tests, numbers = [], [], [], [], dict[str, int]()
        for path, test in found:
            for user, x, y in _users(path, len(self.class_names)):
                xs.append(x)
                ys.append(y)
                users.append(np.full(len(y), numbers.setdefault(user, len(numbers))))
                tests.append(np.full(len(y), test))
        if not xs:
            raise ValueError(f"{found[0][0]}: no user has any example; {formats.AGAIN}")
        y = np.concatenate(ys)
        return Parsed(
            x=np.concatenate(xs),
            y=y,
            classes=self.class_names,
            domain=np.zeros(len(y), np.int64),
            domains=("femnist",),
            test=np.concatenate(tests),
            users=np.concatenate(users),
            user_names=tuple(numbers),
        )


def _users(path: Path, classes: int) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Name, images and labels of every user in one json file."""
    try:
        body = opening.parsed(opening.text(path, limit=8 << 30), str(path))
        names, data = list(body["users"]), body["user_data"]
        sizes = dict(zip(names, body.get("num_samples", ()), strict=False))
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"{path}: not LEAF's json with 'users' and 'user_data' ({e!r}); {formats.AGAIN}") from e
    out = []
    for name in names:
        try:
            x = np.asarray(data[name]["x"], np.float32)
            y = formats.labels(data[name]["y"], classes, path)
        except (KeyError, TypeError) as e:
            raise ValueError(f"{path}: user {name!r} has no 'x' and 'y' ({e!r}); {formats.AGAIN}") from e
        except ValueError as e:
            raise ValueError(f"{path}: user {name!r}: {e}") from e
        if len(y) == 0:
            continue
        if x.shape != (len(y), 784) or sizes.get(name, len(y)) != len(y):
            promised = sizes.get(name, len(y))
            raise ValueError(
                f"{path}: user {name!r} has x of shape {x.shape}, {len(y)} labels and num_samples {promised}, "
                f"expected 784 pixels and a label for every sample; {formats.AGAIN}"
            )
        out.append((str(name), formats.to_uint8(x, path).reshape(-1, 1, 28, 28), y))
    return out
