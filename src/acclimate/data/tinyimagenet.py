"""TinyImageNet: 200 classes of ImageNet at 64 x 64 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from . import formats, images
from .fileset import FileDataset, FileLayout, Sources, counts, listed, text_lines


@dataclass(frozen=True)
class TinyImageNet(FileDataset):
    """200 classes of ImageNet, 64 x 64, RGB (Stanford's CS231N). Its labelled validation set is the test set here."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    origin: ClassVar[str] = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    needs: ClassVar[str] = (
        "tiny-imagenet-200/{wnids.txt,train/WNID/images/*.JPEG,val/images/*.JPEG,val/val_annotations.txt}"
    )
    published: ClassVar[dict[str, Any]] = counts((3, 64, 64), train=(500,) * 200, test=(50,) * 200)

    def sources(self) -> Sources:
        lists = ("wnids.txt", *(("val/val_annotations.txt",) if "test" in self.wanted else ()))
        _, base, found = self.locate(FileLayout(("tiny-imagenet-200", "TinyImageNet", "tiny-imagenet", ""), lists))
        classes = tuple(sorted(text_lines(found[0])))
        rows: list[tuple[Path, int, int, bool]] = []
        if "train" in self.wanted:
            if not (base / "train").is_dir():
                raise self.missing(f"{base} lacks train/")
            by_class = images.classes(base / "train", "images")
            if odd := sorted(set(by_class) ^ set(classes)):
                raise ValueError(
                    f"{base / 'train'}: its folders and wnids.txt differ, for example in {odd[0]}; {formats.AGAIN}"
                )
            rows += [(f, i, 0, False) for i, c in enumerate(classes) for f in by_class[c]]
        if "test" in self.wanted:
            rows += self._val(found[1], classes)
        paths = [*found, *(r[0] for r in rows)]
        return Sources(base, paths, lambda: listed(rows, classes, ("tinyimagenet",), self.size, self.channels))

    def _val(self, notes: Path, classes: tuple[str, ...]) -> list[tuple[Path, int, int, bool]]:
        number, out = {c: i for i, c in enumerate(classes)}, []
        for k, line in enumerate(text_lines(notes)):
            name, wnid, *_ = [*line.split("\t"), ""]
            if wnid not in number:
                raise ValueError(
                    f"{notes}: line {k + 1} names the class {wnid!r}, which wnids.txt lacks; {formats.AGAIN}"
                )
            file = notes.parent / "images" / name
            out.append((file, number[wnid], 0, True))
        return out
