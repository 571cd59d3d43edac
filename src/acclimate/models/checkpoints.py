"""Published weights: how a checkpoint is read, and how a network is filled from one."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..ops import opening

log = logging.getLogger("acclimate")

ALLOWED = "a .safetensors file, or a file of torch.save with a state dict, as such or under state_dict or model"
"""What `read` understands. Only tensors are unpickled."""


def read(path: str | Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint, without the prefix `module.` that parallel training leaves."""
    file = _there(path)
    try:
        content = _content(file)
    except OSError:  # says itself which file, and what is wrong with it
        raise
    except Exception as e:  # torch's unpickler fails in many ways on a file that is not its own
        raise ValueError(f"checkpoint '{path}': cannot be read ({type(e).__name__}); allowed is {ALLOWED}") from e
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    named = content.items() if isinstance(content, Mapping) else ()
    tensors = {str(k).removeprefix("module."): v for k, v in named if isinstance(v, Tensor)}
    if not tensors:
        kind = type(content).__name__
        raise ValueError(f"checkpoint '{path}': holds a {kind} without named tensors; allowed is {ALLOWED}")
    return tensors


def digest(path: str | Path) -> str:
    """What names the content of a checkpoint: the first 16 hexadecimal digits of the file's SHA-256."""
    return hashlib.sha256(opening.content(_there(path))).hexdigest()[:16]


def _there(path: str | Path) -> Path:
    file = Path(path).expanduser()
    if not file.is_file():
        raise FileNotFoundError(f"checkpoint '{path}': there is no such file")
    return opening.checked(file)


def _content(file: Path) -> Any:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    return torch.load(file, map_location="cpu", weights_only=True)


def fill(net: nn.Module, found: Mapping[str, Tensor], source: str | Path, head: str) -> None:
    """Give a network the weights of a checkpoint, or say in a sentence why they do not fit.

    `head` names the network's classifier: one for another number of classes is left out, and the log says so. Where
    `head` is empty the network has none: what the checkpoint has beside the network's own layers is left out.
    """
    wanted, found = _learned(net.state_dict()), _learned(found)
    if head:
        found = _classified(found, wanted, source, head)
    else:
        own = {name for name, _ in net.named_children()}
        found = {k: v for k, v in found.items() if k.partition(".")[0] in own}
    troubles = _troubles(found, wanted)
    if troubles:
        raise ValueError(f"checkpoint '{source}' does not fit this network: it " + " and ".join(troubles))
    net.load_state_dict(found, strict=False)  # only the counts of batches are not there


def _learned(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Without the counts of batches: nothing here uses them, and older checkpoints lack them."""
    return {k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}


def _classified(
    found: dict[str, Tensor], wanted: dict[str, Tensor], source: str | Path, head: str
) -> dict[str, Tensor]:
    """The checkpoint with the network's own fresh classifier, where its own is for other classes."""
    name = f"{head}.weight"
    if name not in found or found[name].shape[:1] == wanted[name].shape[:1]:
        return found
    log.info(
        "checkpoint '%s': its classifier has %d classes and the data %d; it is left out and starts afresh",
        source,
        found[name].shape[:1].numel(),
        len(wanted[name]),
    )
    return {
        **{k: v for k, v in found.items() if not k.startswith(f"{head}.")},
        **{k: v for k, v in wanted.items() if k.startswith(f"{head}.")},
    }


def _troubles(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> list[str]:
    """Why tensors are not those of a network: what is missing, what is too much, and the first of another shape."""
    lacking, extra = [k for k in wanted if k not in found], [k for k in found if k not in wanted]
    troubles = [f"lacks {_few(lacking)}"] if lacking else []
    if extra:
        troubles.append(f"has {_few(extra)}, which it should not{_statistics(extra, wanted)}")
    reshaped = [k for k, v in wanted.items() if k in found and found[k].shape != v.shape]
    return troubles + [
        f"has {k} of shape {tuple(found[k].shape)}, expected {tuple(wanted[k].shape)}" for k in reshaped[:1]
    ]


def _statistics(extra: list[str], wanted: dict[str, Tensor]) -> str:
    """A hint for the commonest reason: weights that were trained with batch norm, for a network without."""
    batch, here = (any(k.endswith(".running_mean") for k in names) for names in (extra, wanted))
    return " (it was trained with batch norm, and this network has another: norm='batch' fits)" if batch > here else ""


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
