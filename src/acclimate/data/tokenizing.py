"""Token ids by a JSON file of the package tokenizers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..ops import opening
from . import formats

PADDING = ("[PAD]", "<pad>")
"""How tokenizers call the token that fills up."""


@dataclass(frozen=True)
class Tokenizing:
    """A tokenizer, and what is added to its ids: 1 where its id 0 is no padding."""

    tokenizer: Any
    shift: int

    @classmethod
    def of_file(cls, path: Path, who: str) -> Tokenizing:
        """Of a file; `who` asks for it."""
        formats.lazy("tokenizers", "acclimate[text]", who)  # says what to install before the file is read
        return cls.of(opening.content(path).decode("utf-8", "replace"), str(path))

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, text: str, where: str) -> Tokenizing:
        """Of the text of such a file; kept, because a server asks for it with every request."""
        package = formats.lazy("tokenizers", "acclimate[text]", where)
        try:
            found = package.Tokenizer.from_str(text)
        except Exception as e:  # the package raises its own kind, which it does not name
            raise ValueError(
                f"{where}: is no JSON file of the package tokenizers ({e}); save one with Tokenizer.save(), or leave "
                "data.tokenizer out for bytes"
            ) from e
        found.no_padding()
        found.no_truncation()
        return cls(found, 0 if found.id_to_token(0) in PADDING else 1)

    @property
    def size(self) -> int:
        """How many ids there are, the padding with them, and those that no token has below the largest."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1 + self.shift

    def remark(self) -> str:
        """What to say where ids are not the file's own, which weights from elsewhere were trained with."""
        if not self.shift:
            return ""
        pads = [i for i in map(self.tokenizer.token_to_id, PADDING) if i is not None]
        masked = f" and model=ac.wrap(module, inputs=ac.TokenIds(pad={pads[0]}))" if pads else ""
        return (
            f"every id is 1 higher than in the tokenizer's file, where id 0 is {self.tokenizer.id_to_token(0)!r} and "
            "no padding; weights from elsewhere need the file's own ids: encode the texts yourself, for "
            f"data=ac.data.of(ids, labels, tokens=True){masked}"
        )

    def encode(self, texts: list[str], length: int) -> np.ndarray:
        """Ids [N, length], int32; 0 fills up what is shorter, and what is longer is cut."""
        try:
            encoded = self.tokenizer.encode_batch(texts)
        except Exception as e:  # as in `of`
            raise ValueError(
                f"data.tokenizer: cannot encode these texts ({e}); give it a token for unknown words, such as [UNK], "
                "or leave it out for bytes"
            ) from e
        out = np.zeros((len(texts), length), np.int32)
        for row, found in zip(out, encoded, strict=True):
            ids = found.ids[:length]
            row[: len(ids)] = np.array(ids, np.int32) + self.shift
        return out

    def decode(self, x: Tensor) -> list[str]:
        """The texts of ids [N, length]."""
        rows = [[i - self.shift for i in row if i] for row in x.tolist()]
        return [str(self.tokenizer.decode(row)) for row in rows]
