"""A user's own texts in a file: a CSV with columns, or lines with a label in front."""

from __future__ import annotations

import csv
import functools
import logging
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from torch import Tensor

from ..core import check
from ..ops import opening
from ..ops import text as text_ids
from ..ops.layout import near
from . import columns, delimited, order, remarks
from .cache import Parsed
from .dataset import CountedClients, Inputs
from .fileset import Sources
from .group_partitions import ByClient, NaturalUsers
from .own import OwnFiles
from .partition import Partition
from .raw import Raw, RawTexts
from .tokenizing import Tokenizing
from .world import Examples, World

log = logging.getLogger("acclimate")
CHUNK = 4096
_PACKED = (".gz", ".bz2", ".xz")
_FASTTEXT = "__label__"
_ONE = "one class per text is supported, several labels per text are not"
_READ_AS = "; it is read as lines of a label and a text, so set data.form=csv if it has columns"


class LabelledText(NamedTuple):
    """What one example's place in the file says."""

    text: str
    label: str
    client: str


@dataclass(frozen=True)
class Text(CountedClients, OwnFiles):
    """Your texts, each with a class: a CSV file with a header, or lines with the label in front of the text.

    A text becomes `length` whole numbers. Without `tokenizer` these are its bytes in UTF-8, plus 1; 0 fills up what is
    shorter, and what is longer is cut. Clients are those that the column `client` names.
    """

    partition: Partition = ByClient()
    """Clients are those that the file names; where it names none, texts are dealt by Dirichlet(0.1)."""
    clients: int = 0
    """How many clients train; 0: all that the file names. Where it names none 10, or of fewer texts so many that each
    trains on 32, but at least 2."""
    file: str = ""
    """The file, absolute or in the data root."""
    text: str = "text"
    """The column of the texts."""
    label: str = "label"
    """The column of the classes."""
    client: str = ""
    """The column that says whose text it is; empty where nobody is named."""
    form: Literal["auto", "csv", "lines"] = "auto"
    """`csv`: columns with a header; `lines`: a label, a space or tab, the text; `auto` goes by the file's ending."""
    length: int = 128
    """How many bytes, or tokens, of a text are kept."""
    tokenizer: str = ""
    """A JSON file of the package tokenizers, absolute or in the data root; empty: bytes."""
    most: int = 1_000_000
    """How many examples are read at most; what follows in the file is left out."""
    empty: Literal["refuse", "skip"] = "refuse"
    """What to do with a line that has no text."""

    parts: ClassVar[tuple[str, ...]] = ("all",)
    needs: ClassVar[str] = "CSV file of texts and labels, or file of lines with a label in front"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)
        check.whole(self, "length", 1, 65536)
        check.whole(self, "most", 2)
        order.check_roles(self, ("text", "label"), ("text", "client"), ("label", "client"))
        for name in ("size", "channels"):
            if getattr(self, name) is not None:
                raise check.FieldError(f"Text: {name}={getattr(self, name)} is for images; leave it out", name)

    # --- reading -------------------------------------------------------------------------------------------------

    def sources(self) -> Sources:
        path, more = self._place("file"), []
        if not path.is_file():
            raise FileNotFoundError(f"Text: file={self.file!r} is a folder; it must name your {self.needs}")
        if self.tokenizer:
            more = [self._tokenizer_file()]
        return Sources(path.parent, [path, *more], lambda: self._read(path), {"reader": 4})

    def load(self) -> Examples:
        return replace(super().load(), text=not self.tokenizer)

    def fitted(self, world: World) -> World:
        e = world.examples
        said = (*remarks.of_classes(e.y.numpy(), e.classes), *remarks.of_names(e.user_names, "clients"))
        shifted = self._tokenizer().remark() if self.tokenizer else ""
        return noted(replace(world, notes=(*world.notes, *said, *filter(None, (shifted,)))))

    def inputs(self) -> Inputs:
        return "texts"

    def _named(self) -> int | None:
        """How many clients the file names, or can be dealt to; None where it is not there."""
        root = self.folder()
        tried = [*([root / self.file] if root else []), Path(self.file).expanduser()]
        if not self.file or not any(p.is_file() for p in tried):
            return None
        found = self.fetch()
        partition, named = self.partition, 0
        if found.users is not None and isinstance(partition, ByClient | NaturalUsers):
            floor = partition.floor if isinstance(partition, NaturalUsers) else 1
            named = int((np.bincount(found.users) >= floor).sum())
        return named or self.sharers(len(found.y))

    def _read(self, path: Path) -> Parsed:
        ending = (path.with_suffix("") if path.suffix.lower() in _PACKED else path).suffix.lower()
        form = self.form if self.form != "auto" else "csv" if ending in (".csv", ".tsv") else "lines"
        encode, lines = self._encoder(), self._columns(path) if form == "csv" else self._labelled(path)
        chunks, texts, labels, clients = list[np.ndarray](), list[str](), list[str](), list[str]()
        for line in lines:
            if len(labels) == self.most:
                log.warning("%s: has more than %s examples; the rest is left out (data.most)", path, f"{self.most:,}")
                break
            texts.append(line.text)
            labels.append(line.label)
            clients.append(line.client)
            if len(texts) == CHUNK:
                chunks.append(encode(texts))
                texts = []
        chunks += [encode(texts)] if texts else []
        if not labels:
            raise ValueError(f"{path}: has no texts below its first line; expected a header and then examples")
        lined = "" if form == "csv" else "; in lines, the label is the first word"
        y, classes = self._classes(labels, path, lined)
        names, users = np.unique(np.array(clients), return_inverse=True) if self.client else (np.array(()), None)
        n = len(y)
        return Parsed(
            x=np.concatenate(chunks),
            y=y,
            classes=classes,
            domain=np.zeros(n, np.int64),
            domains=(path.stem,),
            test=np.zeros(n, bool),
            users=users,
            user_names=tuple(names.tolist()),
        )

    def _columns(self, path: Path) -> Iterator[LabelledText]:
        """The rows of a CSV file."""
        lines = columns.lines(path)
        above, first = next(((i, line) for i, line in enumerate(lines, 1) if line.strip()), (1, ""))
        if "\r" in first.rstrip("\r\n"):
            raise ValueError(f"{path}: its lines end in a mark of old systems (CR); save it again with usual lines")
        mark = delimited.mark_of(first)
        header = [cell.strip() for cell in next(csv.reader([first], delimiter=mark), [])]
        if twice := next((n for n in (self.text, self.label, self.client) if n and header.count(n) > 1), None):
            raise ValueError(f"{path}: has the column {twice!r} twice; rename one of them")
        at = [self._column(header, name, path) for name in ("text", "label", "client")]
        reader = csv.reader(lines, delimiter=mark, strict=True)  # else a quote that is not closed swallows what follows
        while True:
            begin = above + reader.line_num + 1
            try:
                row = next(reader, None)
            except csv.Error as e:
                raise ValueError(
                    f"{path}: from line {begin} on it is no CSV ({e}); look there for a quote that is not closed, "
                    'write a quote inside quotes twice (""), and cut texts of more than 131,072 characters'
                ) from e
            if row is None:
                return
            number = above + reader.line_num
            row = row if any(map(str.strip, row)) else []  # blank, as below the tables of spreadsheets
            if row and len(row) != len(header):
                raise ValueError(
                    f"{path}: line {number} has {len(row)} cells and the header {len(header)}; quote texts that have "
                    f"a {mark!r} in them"
                )
            text, label, client = ("" if i is None or not row else row[i] for i in at)
            if row and (line := self._line(text, label, client, path, number)):
                yield line

    def _column(self, header: Sequence[str], name: str, path: Path) -> int | None:
        column = getattr(self, name)
        if not column and name == "client":
            return None
        if column not in header:
            close = near(column, header)
            hint = f"did you mean {' or '.join(map(repr, close))}? Set" if close else "set"
            raise ValueError(
                f"Text: {name}={column!r} is no column of {path.name}, which has {', '.join(header) or 'none'}; {hint} "
                f"data.{name}="
            )
        return header.index(column)

    def _labelled(self, path: Path) -> Iterator[LabelledText]:
        """Lines of a label, a space or tab, and the text; fastText's `__label__` in front is left out."""
        if self.client:
            raise ValueError(
                f"Text: client={self.client!r} needs columns, and {path.name} is read as lines with a label in front; "
                "set data.form=csv, or leave data.client out"
            )
        for number, line in enumerate(columns.lines(path), 1):
            if line.strip():
                label, _, text = line.strip().partition("\t" if "\t" in line.strip() else " ")
                if label.startswith(_FASTTEXT) and text.lstrip().startswith(_FASTTEXT):
                    raise ValueError(f"{path}: line {number} has several labels; {_ONE}, so leave one in each line")
                if found := self._line(text, label.removeprefix(_FASTTEXT), "", path, number, _READ_AS):
                    yield found

    def _line(self, text: str, label: str, client: str, path: Path, number: int, hint: str = "") -> LabelledText | None:
        if not text.strip() and self.empty == "skip":
            return None
        values = {"text": text, "label": label} | ({"client": client} if self.client else {})
        for field, value in values.items():
            if not value.strip():
                skip = ", or set data.empty=skip" if field == "text" else ""
                raise ValueError(f"{path}: line {number} has an empty {field}; fill it, remove the line{skip}{hint}")
        return LabelledText(text.strip(), label.strip(), client.strip())

    def _classes(self, labels: Sequence[str], path: Path, hint: str = "") -> tuple[np.ndarray, tuple[str, ...]]:
        found, y = np.unique(np.array(labels), return_inverse=True)
        if len(found) == 1:
            raise ValueError(
                f"{path}: label={self.label!r} has one class, {str(found[0])!r}, in all {len(y):,} rows; a model "
                "learns to tell at least two apart: name another column with data.label="
            )
        if len(found) > max(20, len(y) // 2):
            raise ValueError(
                f"{path}: label={self.label!r} has {len(found):,} different values in {len(y):,} rows, so it is no "
                "class; numbers to predict and several labels per text are not supported: name a column of classes"
                f"{hint}"
            )
        names = found.tolist()
        if odd := next((n for n in names if any(p.strip() in names for p in re.split(r"[;|]", n)[1:])), None):
            raise ValueError(
                f"{path}: label={self.label!r} has {odd!r}, several labels of one text; {_ONE}: make a column per "
                "question and name one (data.label)"
            )
        order = sorted(range(len(names)), key=lambda i: _in_order(names[i]))
        return np.argsort(order)[y], tuple(names[i] for i in order)

    # --- ids and texts -------------------------------------------------------------------------------------------

    def raw(self, world: World, client: int | None) -> Raw | None:
        tokenizer = opening.content(self._tokenizer_file()).decode() if self.tokenizer else ""
        return RawTexts(self.length, self.text, tokenizer)

    def _encoder(self) -> Callable[[list[str]], np.ndarray]:
        """A function from texts to ids [N, length]."""
        if not self.tokenizer:
            return functools.partial(text_ids.encode, length=self.length)
        return functools.partial(self._tokenizer().encode, length=self.length)

    def _tokenizer_file(self) -> Path:
        found = self._place("tokenizer", "JSON file of the package tokenizers")
        if found.is_dir():
            raise ValueError(f"Text: tokenizer={self.tokenizer!r} is a folder; name the file tokenizer.json in it")
        return found

    def _tokenizer(self) -> Tokenizing:
        return Tokenizing.of_file(self._tokenizer_file(), f"Text: tokenizer={self.tokenizer!r}")

    def tokens(self) -> int:
        """How many ids there are, the padding with them: what a model's embedding needs."""
        return self._tokenizer().size if self.tokenizer else text_ids.BYTES

    def texts(self, x: Tensor) -> list[str]:
        """The texts of ids [N, length]."""
        return self._tokenizer().decode(x) if self.tokenizer else text_ids.decode(x)


def _in_order(name: str) -> tuple[int, float, str]:
    """Numbers by size, then names by letter."""
    try:
        size = float(name)
    except ValueError:
        size = math.nan
    return (0, size, name) if math.isfinite(size) else (1, 0.0, name)


def noted(world: World) -> World:
    """The world with a note where texts are as long as can be."""
    full, (length,) = int((world.examples.x[:, -1] != 0).sum()), world.shape
    note = f"{full:,} of {len(world.examples.y):,} texts fill all {length} places: what is longer is cut (data.length)"
    return replace(world, notes=(*world.notes, note)) if full else world
