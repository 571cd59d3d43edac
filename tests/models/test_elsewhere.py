"""Models of transformers, timm and torchvision, with random weights; each is skipped where its library is not here."""

import importlib
import re
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.core import Task, rng, tree
from acclimate.core.vectorised import refusal

CLASSES, LENGTH, WORDS = 4, 8, 40


def library(name):
    """A library that is not installed for the tests, or a skip that says why."""
    try:
        return importlib.import_module(name)
    except Exception as e:  # a library that is there may still not fit this torch
        pytest.skip(f"{name} cannot be imported here: {type(e).__name__}: {e}")


SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "num_labels": CLASSES,
}


def bert(attention="sdpa"):
    t = library("transformers")
    config = t.BertConfig(vocab_size=WORDS, max_position_embeddings=LENGTH, attn_implementation=attention, **SMALL)
    return t.BertForSequenceClassification(config)


def llama():
    t = library("transformers")
    return t.LlamaForSequenceClassification(t.LlamaConfig(vocab_size=WORDS, pad_token_id=0, **SMALL))


def vit():
    t = library("transformers")
    return t.ViTForImageClassification(t.ViTConfig(image_size=16, patch_size=8, **SMALL))


def timm(name, **options):
    return library("timm").create_model(name, num_classes=CLASSES, **options)


def torchvision(name, **options):
    return getattr(library("torchvision").models, name)(num_classes=CLASSES, **options)


IMAGES = {
    "transformers-vit": (vit, "classifier", 16),
    "timm-vit": (
        lambda: timm("vit_tiny_patch16_224", img_size=16, patch_size=8, depth=1, embed_dim=8, num_heads=2),
        "head",
        16,
    ),
    "timm-resnet": (lambda: timm("resnet10t", channels=(8, 8, 8, 8)), "fc", 16),
    "timm-mobilenet": (lambda: timm("mobilenetv3_small_050"), "classifier", 32),
    "torchvision-resnet": (lambda: torchvision("resnet18"), "fc", 16),
    "torchvision-vit": (
        lambda: library("torchvision").models.VisionTransformer(16, 8, 1, 2, 8, 8, num_classes=CLASSES),
        "heads.head",
        16,
    ),
}


def ids(count):
    x = torch.randint(1, WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))
    x[: count // 2, 5:] = 0
    return x


def same_gradients(task, x):
    """Gradients of two clients under vmap are those of each alone, and can be differentiated again.

    They are compared in double precision: batch norm over the four values of a small picture's last layers multiplies
    what float32 rounds, so that gradients of 30 differ by 0.008, and in double precision by 1e-11.
    """
    assert refusal(task) is None
    v, y = tree.map(torch.Tensor.double, task.init(rng.key(0))), torch.arange(len(x)) % CLASSES
    x = x.double() if x.is_floating_point() else x
    keys, clients = rng.fold(rng.key(1), torch.arange(2)), (torch.stack((x, x.flip(0))), torch.stack((y, y.flip(0))))

    def loss(p, x, y, key):
        return task.loss({**v, "params": p}, {"x": x, "y": y}, key)[0]

    both = {n: p.expand(2, *p.shape) for n, p in v["params"].items()}
    together = vmap(grad(loss))(both, *clients, keys)
    alone = grad(loss)(v["params"], x, y, keys[0])
    for name, g in alone.items():
        torch.testing.assert_close(together[name][0], g, rtol=1e-6, atol=1e-9)
    head = {task.head_weight: v["params"][task.head_weight]}

    def uphill(h):
        g = grad(lambda h: loss({**v["params"], **h}, x, y, keys[0]))(h)
        return g[task.head_weight].square().sum()

    assert torch.isfinite(grad(uphill)(head)[task.head_weight]).all()


@pytest.mark.parametrize("name", IMAGES)
def test_image_models_answer_and_train_as_they_do_alone(name):
    make, head, side = IMAGES[name]
    torch.manual_seed(0)
    net = make()
    t, x = Task(net, (3, side, side), CLASSES), torch.rand(4, 3, side, side)
    out = t.apply(t.init(rng.key(0)), x)
    with torch.no_grad():
        expected = net.eval()(x)
    torch.testing.assert_close(out.logits, getattr(expected, "logits", expected), rtol=1e-3, atol=1e-4)
    assert t.head == {f"{head}.weight", f"{head}.bias"} and t.norm
    last = net.get_submodule(head)
    torch.testing.assert_close(F.linear(out.features, last.weight, last.bias), out.logits, rtol=1e-3, atol=1e-4)
    same_gradients(t, x)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_bert_masks_its_padding_and_is_vectorised(attention):
    torch.manual_seed(0)
    net = bert(attention)
    t, x = Task(net, (LENGTH,), CLASSES, tokens=WORDS), ids(4)
    with torch.no_grad():
        expected = net.eval()(x, attention_mask=(x != 0).long()).logits
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, expected, rtol=1e-4, atol=1e-5)
    assert t.head == {"classifier.weight", "classifier.bias"} and t.vocabulary == WORDS
    assert "bert.encoder.layer.0.output.LayerNorm.weight" in t.select("norm")
    same_gradients(t, x)
    with pytest.raises(ValueError, match=r"embedding 'bert.embeddings.word_embeddings' has 40 rows.* row 49;"):
        Task(net, (LENGTH,), CLASSES, tokens=50)


def test_a_decoder_answers_as_it_does_alone_and_says_why_it_is_not_vectorised():
    torch.manual_seed(0)
    net = llama()
    t, x = Task(net, (LENGTH,), CLASSES, tokens=WORDS), ids(4)
    with torch.no_grad():
        expected = net.eval()(x, attention_mask=(x != 0).long()).logits
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, expected, rtol=1e-4, atol=1e-5)
    assert t.head == {"score.weight"} and "model.norm.weight" in t.norm
    assert "cannot be vectorised over clients, because of `" in refusal(t)


def test_two_heads_that_are_averaged_are_refused():
    net = timm("deit_tiny_distilled_patch16_224", img_size=16, depth=1, embed_dim=8, num_heads=2)
    with pytest.raises(ValueError, match="2 linear layers may be its head: 'head', 'head_dist'"):
        Task(net, (3, 16, 16), CLASSES)


def test_the_five_lines_of_the_guide_run(capsys):
    library("transformers")
    page = (Path(__file__).parents[2] / "docs" / "guides" / "own-model.md").read_text()
    start = "import torch\nfrom dataclasses import dataclass, replace\nfrom torch import nn\nimport acclimate as ac\n"
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    wanted = [b for b in blocks if "class Words" in b or "BertConfig" in b]
    assert len(wanted) == 2
    module = types.ModuleType("page_of_the_guide")
    sys.modules[module.__name__] = module
    exec("\n".join((start, *wanted)), module.__dict__)
    assert capsys.readouterr().out.count("tent") == 2
