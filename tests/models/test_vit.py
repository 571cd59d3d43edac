"""The vision transformer: published names of three libraries, what is refused, and attention to any order."""

import logging
import re

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.core import Task, rng, tree
from acclimate.models import ViT, attention
from acclimate.models.attention import attend, fused
from acclimate.models.vit import _ViT

SPEC = ViT(patch=4, width=12, depth=2, heads=3)


def parameters(spec, patches):
    """Names and shapes, without making numbers."""
    with torch.device("meta"):
        net = _ViT(spec, 3, patches, 1000)
    return {k: tuple(v.shape) for k, v in net.state_dict().items()}


def test_names_and_number_of_parameters_are_those_of_the_usual_checkpoints():
    small = parameters(ViT(patch=16, width=384, depth=12, heads=6), 196)
    assert sum(torch.Size(s).numel() for s in small.values()) == 22_050_664  # ViT-S/16 at 224 pixels
    assert len(small) == 152 and small["pos_embed"] == (1, 197, 384)
    assert small["patch_embed.proj.weight"] == (384, 3, 16, 16)
    assert small["blocks.11.attn.qkv.bias"] == (1152,) and small["blocks.0.mlp.fc2.weight"] == (384, 1536)


def test_it_computes_what_torchs_own_layers_do():
    t = Task(SPEC, (3, 8, 8), 5)
    p, x = t.init(rng.key(1))["params"], torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    tokens = F.conv2d(x, p["patch_embed.proj.weight"], p["patch_embed.proj.bias"], stride=4).flatten(2).mT
    h = torch.cat((p["cls_token"].expand(2, 1, 12), tokens), 1) + p["pos_embed"]
    for i in range(2):
        layer = torch.nn.TransformerEncoderLayer(12, 3, 48, 0.0, F.gelu, 1e-6, batch_first=True, norm_first=True).eval()
        names = {
            "self_attn.in_proj_": "attn.qkv.",
            "self_attn.out_proj.": "attn.proj.",
            "linear1.": "mlp.fc1.",
            "linear2.": "mlp.fc2.",
        }
        own = {}
        for name in layer.state_dict():
            ours = name
            for theirs, mine in names.items():
                ours = ours.replace(theirs, mine)
            own[name] = p[f"blocks.{i}.{ours}"]
        layer.load_state_dict(own)
        h = layer(h)
    features = F.layer_norm(h[:, 0], (12,), p["norm.weight"], p["norm.bias"], 1e-6)
    out = t.apply({"params": p, "buffers": {}}, x)
    torch.testing.assert_close(out.features, features, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(out.logits, F.linear(features, p["head.weight"], p["head.bias"]), rtol=1e-4, atol=1e-5)


def test_roles_vmap_and_second_order():
    t = Task(SPEC, (3, 8, 8), 5)
    assert t.head == {"head.weight", "head.bias"} and len(t.norm) == 10 and not t.has_convolution
    vars, x, y = t.init(rng.key(0)), torch.rand(2, 3, 3, 8, 8), torch.arange(6).view(2, 3) % 5

    def stepped(params, x, y):
        """A loss after a step down its own gradient: the gradient of this has second derivatives in it."""

        def loss(p):
            return t.loss({"params": p, "buffers": {}}, {"x": x, "y": y}, rng.key(0))[0]

        return loss(tree.add(params, grad(loss)(params), -0.1))

    both = vmap(grad(stepped), (None, 0, 0))(vars["params"], x, y)
    for i in range(2):
        alone = grad(stepped)(vars["params"], x[i], y[i])
        for name in alone:
            torch.testing.assert_close(both[name][i], alone[name], rtol=1e-3, atol=1e-5)


def test_fused_attention_is_the_written_out_one_to_any_order_and_under_vmap():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, 8, generator=g, dtype=torch.float64)
    w = torch.randn(3, 8, 24, generator=g, dtype=torch.float64) / 3

    def first(way):
        return lambda w, x: way(x @ w, 2).pow(3).sum()

    def second(way):
        return lambda w, x: grad(first(way))(w, x).pow(2).sum()

    for order in (first, second):
        ours, plain = (vmap(grad(order(way)))(w, x) for way in (fused, attend))
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(ours[1], grad(order(fused))(w[1], x[1]), rtol=1e-8, atol=1e-8)


def test_so_it_is_where_the_kernels_give_the_first_token_alone(monkeypatch):
    """What a GPU's kernels give is made by the formula here."""

    def library(qkv, heads):
        out = attention._written_out(qkv, heads)[:, :1]
        return out, out.new_ones(len(out), heads, 1), out.new_empty(0), out.new_empty(0)

    monkeypatch.setattr(attention, "_library", library)
    monkeypatch.setattr(attention.by_heads, "back", lambda qkv, out, g, sums, heads: attention._gradient(g, qkv, heads))
    g = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 5, 8, generator=g, dtype=torch.float64)
    w = torch.randn(3, 8, 24, generator=g, dtype=torch.float64) / 3

    def first(way):
        return lambda w, x: way(x @ w, 2, 1).pow(3).sum()

    def second(way):
        return lambda w, x: grad(first(way))(w, x).pow(2).sum()

    assert fused(x[0] @ w[0], 2, 1).shape == (2, 1, 8)
    for order in (first, second):
        ours, plain = (vmap(grad(order(way)))(w, x) for way in (fused, attend))
        torch.testing.assert_close(ours, plain, rtol=1e-8, atol=1e-8)


def torchvision_names(state):
    rules = (
        (r"^cls_token", "class_token"),
        (r"^patch_embed\.proj", "conv_proj"),
        (r"^pos_embed", "encoder.pos_embedding"),
        (r"^blocks\.(\d+)", r"encoder.layers.encoder_layer_\1"),
        (r"norm(\d)\.", r"ln_\1."),
        (r"attn\.qkv\.", "self_attention.in_proj_"),
        (r"attn\.proj", "self_attention.out_proj"),
        (r"mlp\.fc1", "mlp.0"),
        (r"mlp\.fc2", "mlp.3"),
        (r"^norm\.", "encoder.ln."),
        (r"^head", "heads.head"),
    )
    return {_renamed(k, rules): v for k, v in state.items()}


def transformers_names(state):
    rules = (
        (r"^cls_token", "vit.embeddings.cls_token"),
        (r"^patch_embed\.proj", "vit.embeddings.patch_embeddings.projection"),
        (r"^pos_embed", "vit.embeddings.position_embeddings"),
        (r"^blocks\.(\d+)", r"vit.encoder.layer.\1"),
        (r"norm1", "layernorm_before"),
        (r"norm2", "layernorm_after"),
        (r"attn\.proj", "attention.output.dense"),
        (r"mlp\.fc1", "intermediate.dense"),
        (r"mlp\.fc2", "output.dense"),
        (r"^norm\.", "vit.layernorm."),
        (r"^head", "classifier"),
    )
    out = {"vit.pooler.dense.weight": torch.zeros(12, 12)}
    for k, v in state.items():
        parts = zip(("query", "key", "value"), v.chunk(3), strict=True) if ".qkv." in k else [("", v)]
        for part, tensor in parts:
            out[_renamed(k.replace("attn.qkv", f"attention.attention.{part}"), rules)] = tensor.clone()
    return out


def newer_names(state):
    """As version 5 of transformers names them in memory, without the name of the model around it."""
    rules = (
        (r"^vit\.", ""),
        (r"^encoder\.layer\.", "layers."),
        (r"attention\.attention\.(q|k|v)\w+", r"attention.\1_proj"),
        (r"attention\.output\.dense", "attention.o_proj"),
        (r"intermediate\.dense", "mlp.fc1"),
        (r"output\.dense", "mlp.fc2"),
    )
    return {_renamed(k, rules): v for k, v in transformers_names(state).items()}


def _renamed(name, rules):
    for pattern, theirs in rules:
        name = re.sub(pattern, theirs, name)
    return name


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(3)
    net = _ViT(SPEC, 3, 4, 7)
    return {k: torch.randn_like(v) for k, v in net.state_dict().items()}


@pytest.mark.parametrize("names", [dict, torchvision_names, transformers_names, newer_names])
def test_published_names_load_from_either_kind_of_file(state, tmp_path, names):
    from safetensors.torch import save_file

    from acclimate.models.checkpoints import digest

    save_file(names(state), tmp_path / "a.safetensors")
    torch.save({"model": names(state)}, tmp_path / "b.pth")
    for name in ("a.safetensors", f"b.pth#{digest(tmp_path / 'b.pth')}"):
        spec = ViT(patch=4, width=12, depth=2, heads=3, weights=str(tmp_path / name))
        found = Task(spec, (3, 8, 8), 7).init(rng.key(1))["params"]
        assert all(torch.equal(found[k], v) for k, v in state.items())


def test_other_classes_grey_images_and_an_encoder_alone(state, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="acclimate")
    torch.save(state, tmp_path / "a.pt")
    spec = ViT(patch=4, width=12, depth=2, heads=3, weights=str(tmp_path / "a.pt"))
    grey = Task(spec, (1, 8, 8), 4)
    p, x = grey.init(rng.key(1))["params"], torch.rand(2, 1, 8, 8)
    assert p["head.weight"].shape == (4, 12) and "7 classes and the data 4" in caplog.text
    colour = Task(spec, (3, 8, 8), 7)
    features = colour.apply(colour.init(rng.key(1)), x.expand(-1, 3, -1, -1)).features
    torch.testing.assert_close(grey.apply({"params": p, "buffers": {}}, x).features, features, rtol=1e-4, atol=1e-5)
    torch.save({k: v for k, v in state.items() if "head" not in k}, tmp_path / "b.pt")
    spec = ViT(patch=4, width=12, depth=2, heads=3, weights=str(tmp_path / "b.pt"))
    assert torch.equal(Task(spec, (3, 8, 8), 4).init(rng.key(0))["params"]["norm.bias"], state["norm.bias"])


@pytest.mark.parametrize(
    ("change", "shape", "told"),
    [
        ({"width": 24}, (3, 8, 8), "another network than width=24: set width=12"),
        ({"depth": 3, "patch": 2}, (3, 8, 8), "set patch=4, depth=2"),
        ({}, (3, 12, 12), "size=None: set size=8"),
    ],
)
def test_weights_of_another_size_name_the_field_and_the_remedy(state, tmp_path, change, shape, told):
    torch.save(state, tmp_path / "a.pt")
    given = {"patch": 4, "width": 12, "depth": 2, "heads": 3} | change
    with pytest.raises(ValueError, match=told):
        Task(ViT(**given, weights=str(tmp_path / "a.pt")), shape, 7)


def test_what_cannot_be_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(ValueError, match="width=10 must be a multiple of heads=3"):
        ViT(width=10, heads=3)
    with pytest.raises(ValueError, match="patch=3 must divide the sides of the images, which are 8 x 8"):
        Task(ViT(patch=3), (1, 8, 8), 5)
    with pytest.raises(ValueError, match="needs images"):
        Task(ViT(), (8,), 5)
    torch.save({"conv1.weight": torch.zeros(2)}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="holds no vision transformer .* it has conv1.weight"):
        Task(ViT(weights=str(tmp_path / "a.pt")), (1, 8, 8), 5)


def test_images_are_resized():
    small, large = torch.rand(2, 1, 8, 8), Task(ViT(size=16), (1, 8, 8), 5)
    vars = large.init(rng.key(0))
    assert vars["params"]["pos_embed"].shape == (1, 17, 32)
    by_hand = F.interpolate(small, (16, 16), mode="bilinear")
    plain = Task(ViT(), (1, 16, 16), 5).apply(vars, by_hand).logits
    torch.testing.assert_close(large.apply(vars, small).logits, plain)


def test_the_last_block_answers_for_the_class_token_as_it_would_among_all():
    """Only the first token's output is asked for; what is left out changes nothing."""
    task = Task(ViT(patch=4, width=8, depth=2, heads=2), (3, 8, 8), 3)
    vars, x = task.init(rng.key(0)), torch.rand(5, 3, 8, 8)
    net = task.module(vars)
    with torch.no_grad():
        tokens = torch.cat((net.cls_token.expand(5, 1, 8), net.patch_embed(x)), 1) + net.pos_embed
        first = net.blocks[0](tokens)
        every = sum(net.blocks[1](sum(first)))
        torch.testing.assert_close(sum(net.blocks[1](*first, 1)), every[:, :1])
        torch.testing.assert_close(task.apply(vars, x).features, net.norm(every)[:, 0])
