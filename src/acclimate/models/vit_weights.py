"""Published weights of vision transformers by the names of timm (which are ours), torchvision and transformers."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from ..core import check
from . import checkpoints, encoders

TORCHVISION = (
    (r"class_token", "cls_token"),
    (r"conv_proj\.", "patch_embed.proj."),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"ln_(\d)\.", r"norm\1."),
    (r"self_attention\.in_proj_", "attn.qkv."),
    (r"self_attention\.out_proj\.", "attn.proj."),
    (r"mlp\.(?:0|linear_1)\.", "mlp.fc1."),
    (r"mlp\.(?:3|linear_2)\.", "mlp.fc2."),
    (r"encoder\.ln\.", "norm."),
    (r"heads\.head\.", "head."),
)
TRANSFORMERS = (
    (r"^vit\.", ""),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^(?:encoder\.layer|layers)\.(\d+)\.", r"blocks.\1."),
    (r"attention\.attention\.(query|key|value)\.", r"attn.\1."),
    (r"attention\.q_proj\.", "attn.query."),
    (r"attention\.k_proj\.", "attn.key."),
    (r"attention\.v_proj\.", "attn.value."),
    (r"attention\.(?:output\.dense|o_proj)\.", "attn.proj."),
    (r"intermediate\.dense\.", "mlp.fc1."),
    (r"(blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"layernorm_before\.", "norm1."),
    (r"layernorm_after\.", "norm2."),
    (r"^layernorm\.", "norm."),
    (r"^classifier\.", "head."),
)


def fill(net: nn.Module, spec: Any) -> None:
    """Give a fresh network the weights that its record names, or say in a sentence which field does not fit them."""
    found = named(checkpoints.read(encoders.checked(spec.weights)))
    own: dict[str, Tensor] = net.state_dict()
    _check(found, own, spec)
    name = "patch_embed.proj.weight"
    if found[name].shape[1] != own[name].shape[1] == 1:  # a grey image as three equal channels: the same product
        found[name] = found[name].sum(1, keepdim=True)
    for part in ("head.weight", "head.bias"):  # an encoder without a classifier
        found.setdefault(part, own[part])
    checkpoints.fill(net, found, spec.weights, "head")


def named(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """A checkpoint's tensors by our names; what is left out is of no use to a classifier (poolers)."""
    for marker, rules in (("encoder.pos_embedding", TORCHVISION), ("embeddings.position_embeddings", TRANSFORMERS)):
        if any(k.endswith(marker) for k in found):
            found = {_renamed(k, rules): v for k, v in found.items()}
    found = {k: v for k, v in found.items() if not k.startswith("pooler.")}
    for k in [k for k in found if ".attn.query." in k]:
        parts = [found.pop(k.replace("query", part)) for part in ("query", "key", "value")]
        found[k.replace("query", "qkv")] = torch.cat(parts)
    return found


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, ours in rules:
        name = re.sub(pattern, ours, name)
    return name


def _check(found: dict[str, Tensor], own: dict[str, Tensor], spec: Any) -> None:
    """Refuse weights of another network, with the fields that would fit them."""
    patches, tokens = found.get("patch_embed.proj.weight"), found.get("pos_embed")
    if patches is None or tokens is None:
        raise check.FieldError(
            f"ViT: weights={spec.weights!r} holds no vision transformer by timm's, torchvision's or transformers' "
            f"names, it has {', '.join(list(found)[:3])}, ...; models/checkpoints.py says what can be read",
            "weights",
        )
    numbers = [int(m[1]) for k in found if (m := re.match(r"blocks\.(\d+)\.", k))]
    theirs: dict[str, Any] = {
        "patch": patches.shape[-1],
        "width": patches.shape[0],
        "depth": max(numbers, default=-1) + 1,
    }
    wrong = {k: v for k, v in theirs.items() if v != getattr(spec, k)}
    if tokens.shape[1] != own["pos_embed"].shape[1] and "patch" not in wrong:
        side = round((tokens.shape[1] - 1) ** 0.5) * spec.patch
        wrong["size"] = side
    if wrong:
        said = ", ".join(f"{k}={getattr(spec, k)}" for k in wrong)
        wanted = ", ".join(f"{k}={v}" for k, v in wrong.items())
        raise check.FieldError(
            f"ViT: weights={spec.weights!r} are those of another network than {said}: set {wanted}", *wrong
        )
