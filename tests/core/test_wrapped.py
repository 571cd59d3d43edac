"""Modules from elsewhere: what their head is, what their features are, and what is refused."""

import copy
import pickle
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from acclimate import TokenIds, wrap
from acclimate.core import Task, rng, tree
from acclimate.core.vectorised import refusal
from acclimate.models import CNN
from elsewhere import CLASSES, LENGTH, VOCABULARY, Encoder, Residual, sequences

SHAPE = (3, 8, 8)


class Plain(nn.Module):
    """Two linear layers; `form` says what it returns."""

    def __init__(self, form="tensor", classes=CLASSES):
        super().__init__()
        self.form, self.body, self.last = form, nn.Linear(6, 5), nn.Linear(5, classes)

    def forward(self, x):
        hidden = self.body(x).relu()
        logits = self.last(hidden)
        forms = {
            "tensor": logits,
            "object": SimpleNamespace(loss=None, logits=logits),
            "dict": {"loss": None, "logits": logits},
            "tuple": (hidden, logits),
            "first": (logits, hidden),
            "view": logits.reshape(-1, self.last.out_features),
            "phase": logits * (2 if self.training else 1),
            "none": "a word",
            "softmax": logits.softmax(-1),
            "long": logits[:, None].expand(-1, 3, -1),
        }
        return forms[self.form]


@pytest.mark.parametrize("form", ["tensor", "object", "dict", "tuple", "first", "view"])
def test_features_are_what_enters_the_last_linear_layer(form):
    net, x = Plain(form), torch.randn(7, 6)
    t = Task(net, (6,), CLASSES)
    out = t.apply(t.init(rng.key(0)), x)
    torch.testing.assert_close(out.features, net.body(x).relu())
    torch.testing.assert_close(out.logits, net.last(net.body(x).relu()))
    assert t.head == {"last.weight", "last.bias"} and t.body == {"body.weight", "body.bias"} and t.dim == 5
    assert t.head_weight == "last.weight"
    features, logits = t.module(t.init(rng.key(0)))(x)
    torch.testing.assert_close((features, logits), (out.features, out.logits))


def test_names_weights_and_statistics_are_the_modules_own():
    net = Residual()
    t = Task(net, SHAPE, CLASSES, (0.5,), (0.5,))
    v = t.init(rng.key(3))
    assert t.params == tuple(n for n, _ in net.named_parameters())
    assert all(torch.equal(v["params"][n], p) for n, p in net.named_parameters())
    assert t.head == {"fc.weight", "fc.bias"} and "bn1.running_mean" in t.select("norm")
    x, y = torch.rand(6, *SHAPE), torch.randint(0, CLASSES, (6,))
    net.train()
    loss = F.cross_entropy(net((x - 0.5) / 0.5), y)
    loss.backward()
    grads, buffers = grad(lambda p: t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1)), has_aux=True)(v["params"])
    for name, p in net.named_parameters():
        torch.testing.assert_close(grads[name], p.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(buffers["bn1.running_mean"], net.bn1.running_mean)
    net.eval()
    torch.testing.assert_close(t.apply({**v, "buffers": buffers}, x).logits, net((x - 0.5) / 0.5))
    assert t.stages == ("block", "pool")


def test_a_module_knows_whether_it_trains():
    t, x = Task(Plain("phase"), (6,), CLASSES), torch.randn(3, 6)
    v = t.init(rng.key(0))
    torch.testing.assert_close(t.apply(v, x, "train").logits, 2 * t.apply(v, x).logits)


def test_the_embedding_of_tokens_says_how_many_ids_are_known():
    class Placed(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.table = nn.Embedding(64, 6), nn.Embedding(VOCABULARY, 6)
            self.out = nn.Linear(6, CLASSES)

        def forward(self, ids):
            places = self.places(torch.arange(ids.shape[1], device=ids.device).expand_as(ids))
            return self.out((places + self.table(ids)).mean(1))

    assert Task(Placed(), (LENGTH,), CLASSES, tokens=VOCABULARY - 4).vocabulary == VOCABULARY


def test_a_lone_linear_layer_is_its_own_head():
    net, x = nn.Linear(6, CLASSES), torch.randn(3, 6)
    t = Task(net, (6,), CLASSES)
    out = t.apply(t.init(rng.key(0)), x)
    torch.testing.assert_close((out.features, out.logits), (x, net(x)))
    assert t.head == {"0.weight", "0.bias"}


def test_a_head_of_a_whole_sequence_gives_the_features_of_the_place_that_is_picked():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.score = nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES, bias=False)

        def forward(self, ids):
            logits = self.score(self.table(ids).cumsum(1))
            return logits[torch.arange(len(ids)), (ids != 0).sum(1) - 1]

    net, (x, _) = Last(), sequences(8)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)
    out = t.apply(t.init(rng.key(0)), x)
    ends = net.table(x).cumsum(1)[torch.arange(8), (x != 0).sum(1) - 1]
    torch.testing.assert_close((out.features, out.logits), (ends, net(x)))


def test_tokens_train_as_the_module_does_under_vmap_and_twice_differentiated():
    net = Encoder(dropout=0.0)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)
    v, (x, y) = t.init(rng.key(0)), sequences(12)
    net.train()  # in eval mode torch's own fast path gives zeros at padding
    torch.testing.assert_close(t.apply(v, x).logits, net(x))
    F.cross_entropy(net(x), y).backward()

    def loss(p, x, y):
        return t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1))[0]

    grads = grad(loss)(v["params"], x, y)
    for name, p in net.named_parameters():
        torch.testing.assert_close(grads[name], p.grad, rtol=1e-4, atol=1e-6)
    clients = x.view(3, 4, LENGTH), y.view(3, 4)
    both = {n: p.expand(3, *p.shape) for n, p in v["params"].items()}

    def squared(p, x, y):
        return sum(g.square().sum() for g in grad(loss)(p, x, y).values())

    second = vmap(grad(squared))(both, *clients)
    weights = {n: p.clone().requires_grad_() for n, p in v["params"].items()}
    inner = torch.autograd.grad(loss(weights, clients[0][1], clients[1][1]), list(weights.values()), create_graph=True)
    outer = torch.autograd.grad(sum(g.square().sum() for g in inner), list(weights.values()))
    for name, expected in zip(weights, outer, strict=True):
        torch.testing.assert_close(second[name][1], expected, rtol=1e-3, atol=1e-6)
    assert t.vocabulary == VOCABULARY and {n.rpartition(".")[0] for n in t.norm} == {
        "layers.layers.0.norm1",
        "layers.layers.0.norm2",
    }


class Masked(nn.Module):
    """Means over the tokens that a mask keeps; `how` is the form of the mask that it takes."""

    def __init__(self, how):
        super().__init__()
        self.how, self.table, self.out = how, nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES)

    def forward(self, input_ids, attention_mask=None):
        keep = {
            "keep": lambda: attention_mask.float(),
            "ignore": lambda: (~attention_mask).float(),
            "added": lambda: attention_mask[:, 0, 0].exp(),
        }[self.how]()[..., None]
        return self.out((self.table(input_ids) * keep).sum(1) / keep.sum(1))


@pytest.mark.parametrize("how", ["keep", "ignore", "added"])
def test_padding_is_masked_in_the_form_that_a_module_takes(how):
    net, (x, _) = Masked(how), sequences(6)
    t = Task(wrap(net, inputs=TokenIds(pad=0, form=how)), (LENGTH,), CLASSES, tokens=VOCABULARY)
    longer = F.pad(x, (0, 4))
    wide = Task(wrap(net, inputs=TokenIds(pad=0, form=how)), (LENGTH + 4,), CLASSES, tokens=VOCABULARY)
    own = [net.table(row[row != 0]).mean(0) for row in x]
    v = t.init(rng.key(0))
    torch.testing.assert_close(t.apply(v, x).features, torch.stack(own))
    torch.testing.assert_close(wide.apply(v, longer).logits, t.apply(v, x).logits)


class Looking(Masked):
    """As transformers has it: a mask [batch, length] is looked into, another is taken as it is. `slip` is how much a
    model differs that must not be given another."""

    def __init__(self, slip):
        super().__init__("keep")
        self.slip, self.config = slip, SimpleNamespace(pad_token_id=0)

    def forward(self, input_ids, attention_mask=None):
        slip = 0.0
        if attention_mask.dim() == 4:
            attention_mask, slip = (attention_mask[:, 0, 0] == 0).long(), self.slip
        elif attention_mask.all():
            attention_mask = torch.ones_like(attention_mask)
        keep = attention_mask[..., None].float()
        return self.out((self.table(input_ids) * keep).sum(1) / keep.sum(1) + slip)


@pytest.mark.parametrize(("slip", "form"), [(0.0, "added"), (1e-6, "keep")])
def test_a_mask_that_is_looked_into_is_given_in_another_form_where_that_is_the_same(slip, form):
    net, (x, _) = Looking(slip), sequences(6)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)  # its configuration names the padding id
    assert t.inputs == TokenIds(0, form=form)
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, net(x, (x != 0).long()))
    reason = refusal(t)
    assert reason is None if form == "added" else "attention_mask.all()" in reason


def test_parts_of_an_input_are_named_arguments():
    net, (x, _) = Masked("keep"), sequences(6)
    packed = torch.stack((x, (x != 0).long()), 1)
    t = Task(wrap(net, inputs=("input_ids", "attention_mask")), (2, LENGTH), CLASSES, tokens=VOCABULARY)
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), packed).logits, net(x, (x != 0).long()))
    assert t.vocabulary == VOCABULARY
    again = pickle.loads(pickle.dumps(t))
    assert torch.equal(again.apply(t.init(rng.key(0)), packed).logits, t.apply(t.init(rng.key(0)), packed).logits)


def test_a_function_may_be_wrapped_and_starts_from_the_seed():
    t = Task(wrap(lambda shape, classes: Plain(classes=classes), head="last"), (6,), CLASSES)
    a, b = t.init(rng.key(1)), t.init(rng.key(2))
    assert not torch.equal(a["params"]["last.weight"], b["params"]["last.weight"])
    assert torch.equal(a["params"]["last.weight"], t.init(rng.key(1))["params"]["last.weight"])


class TwoParts(Plain):
    """Takes two arguments."""

    def forward(self, x, more):
        return super().forward(x + more)


class ByName(Plain):
    """Takes two arguments by keyword alone."""

    def forward(self, *, a, b):
        return super().forward(a + b)


class ByOneName(Plain):
    """Takes its input by keyword alone."""

    def forward(self, *, x):
        return super().forward(x)


class ByAnyName(Plain):
    """Takes its input by any keyword."""

    def forward(self, **named):
        return super().forward(named["x"])


class ByPlace(Plain):
    """Takes two arguments by position alone."""

    def forward(self, a, b, /):
        return super().forward(a + b)


class MaskedTwice(nn.Module):
    """Needs a mask."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(VOCABULARY, 6), nn.Linear(6, CLASSES)

    def forward(self, ids, mask):
        return self.last((self.table(ids) * mask[..., None]).mean(1))


def test_parts_that_are_taken_by_keyword_alone_can_be_named():
    net, x = ByName(), torch.randn(4, 2, 6)
    t = Task(wrap(net, inputs=("a", "b")), (2, 6), CLASSES)
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, net(a=x[:, 0], b=x[:, 1]))


class Noisy(Plain):
    """Draws noise in eval mode, too."""

    def forward(self, x):
        return super().forward(x + torch.randn_like(x))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, CLASSES), nn.Linear(6, CLASSES)

    def forward(self, x):
        return (self.one(x) + self.two(x)) / 2


class Choice(TwoHeads):
    """Calls two layers of the right width, and returns a copy of what the second gives."""

    def forward(self, x):
        self.one(x)
        return self.two(x).clone()


class TwoAnswers(TwoHeads):
    """Returns the outputs of both of its heads."""

    def forward(self, x):
        return self.one(x), self.two(x)


def test_of_two_outputs_that_may_be_logits_the_user_names_the_head():
    net, x = TwoAnswers(), torch.randn(4, 6)
    with pytest.raises(
        ValueError, match="returns logits at 2 place.s., and 2 linear layers may be its head: 'one', 't"
    ):
        Task(net, (6,), CLASSES)
    for head in ("one", "two"):
        t = Task(wrap(net, head=head), (6,), CLASSES)
        torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, getattr(net, head)(x))


def test_of_two_candidates_the_user_names_one():
    net, x = Choice(), torch.randn(4, 6)
    with pytest.raises(
        ValueError, match=r"2 linear layers may be its head: 'one', 'two'; say which by ac.wrap\(module"
    ):
        Task(net, (6,), CLASSES)
    t = Task(wrap(net, head="two"), (6,), CLASSES)
    assert t.head == {"two.weight", "two.bias"}
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, net.two(x))


@pytest.mark.parametrize(
    ("model", "shape", "tokens", "says"),
    [
        (nn.Flatten(), (6,), None, r"model Flatten calls no linear layer \(nn.Linear\).*add one as the last layer"),
        (TwoHeads(), (6,), None, "2 linear layers may be its head: 'one', 'two'"),
        (wrap(TwoHeads(), head="two"), (6,), None, "logits are not what 'two' makes of one vector of 6 features"),
        (wrap(TwoHeads(), head="three"), (6,), None, "head='three' must be a linear layer .* calls 'one', 'two'"),
        (Plain(classes=7), (6,), None, "its head 'last' has 7 outputs but the data has 4 classes; build it with 4"),
        (Plain("none"), (6,), None, r"must return logits \[batch, 4\].* returns a str without them"),
        (Noisy(), (6,), None, r"model Noisy answers the same .* only while it trains \(self.training\)"),
        (
            nn.Linear(6, CLASSES),
            (3, 6),
            None,
            r"its head '0' gives \(2, 3, 4\) for a batch of 2, an answer at every place, and must give \[batch, 4\]",
        ),
        (Plain("softmax"), (6,), None, "not what 'last' makes .* without a softmax"),
        (Plain("long"), (6,), None, r"must return logits \[batch, 4\].* it returns \(2, 3, 4\)"),
        (
            Plain(),
            (5,),
            None,
            r"model Plain cannot be called on a batch of inputs \(2, 5\).*for inputs of shape \(5,\)",
        ),
        (
            TwoParts(),
            (6,),
            None,
            r"missing 1 required .*: 'more'; its forward takes 'x', 'more': where inputs are these parts, stacked, name"
            r" them by ac.wrap\(module, inputs=\('x', 'more'\)\), or give all but the first a default$",
        ),
        (
            ByName(),
            (6,),
            None,
            r"its forward takes 'a', 'b' by keyword alone: let it take its input by position, or where inputs are these"
            r" parts, stacked, name them by ac.wrap\(module, inputs=\('a', 'b'\)\)$",
        ),
        (ByOneName(), (6,), None, "its forward takes 'x' by keyword alone: let it take its input by position$"),
        (wrap(ByOneName(), inputs=("x",)), (6,), None, "names the only part of an input; leave inputs out, and let"),
        (ByAnyName(), (6,), None, "its forward takes no input by position: let it take its input by position$"),
        (
            wrap(ByName(), inputs=("a", "c")),
            (2, 6),
            None,
            r"forward takes 'a', 'b': name these in inputs=\('a', 'c'\)$",
        ),
        (wrap(ByPlace(), inputs=("a", "b")), (2, 6), None, "takes 'a', 'b' by position alone: leave out the / behind$"),
        (wrap(Masked("keep"), inputs=TokenIds(mask="m")), (LENGTH,), 9, "name these in inputs=TokenIds.*mask='m'"),
        (MaskedTwice(), (LENGTH,), 9, r"stacked, .*, a mask alone by inputs=ac.TokenIds\(mask='mask'\), or give"),
        (Plain(), (6,), 9, "model Plain has no embedding, and x holds whole numbers.*x.float()"),
        (Encoder(), (LENGTH,), VOCABULARY + 3, r"its embedding 'table' has 20 rows, and the data asks for row 22;"),
        (wrap(Plain(), inputs=TokenIds()), (6,), None, r"is for token ids .* the data has numbers of shape \(6,\)"),
        (wrap(Masked("keep"), inputs=("a", "b", "c")), (2, 9), 20, r"names 3 parts, so an input must have shape \[3"),
        (wrap(Plain(), inputs=3), (6,), None, "inputs=3 must be ac.TokenIds"),
    ],
)
def test_what_cannot_be_read_is_refused_in_a_sentence(model, shape, tokens, says):
    with pytest.raises(ValueError, match=says):
        Task(model, shape, CLASSES, tokens=tokens)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_scripted_modules_are_refused_as_such():
    scripted = torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.Linear(8, CLASSES)))
    with pytest.raises(ValueError, match=r"^model Sequential: it is scripted or traced \(torch.jit\), which hides its"):
        Task(scripted, (6,), CLASSES)
    inside = nn.Sequential(nn.Sequential(nn.Identity(), torch.jit.script(nn.Linear(6, 8))), nn.Linear(8, CLASSES))
    with pytest.raises(ValueError, match="^model Sequential: its part '0.1' is scripted or traced"):
        Task(inside, (6,), CLASSES)


def test_layers_that_do_more_than_torchs_own_are_kept_or_refused():
    class Active(nn.BatchNorm2d):
        """As timm has it: an activation in the layer."""

        def __init__(self, width):
            super().__init__(width)
            self.drop, self.act = nn.Identity(), nn.Tanh()

        def forward(self, x):
            return self.act(self.drop(super().forward(x)))

    class Doubled(nn.BatchNorm2d):
        def forward(self, x):
            return 2 * super().forward(x)

    net = Residual()
    net.bn1 = Active(4)
    t, x = Task(net, SHAPE, CLASSES), torch.randn(5, *SHAPE)
    torch.testing.assert_close(t.apply(t.init(rng.key(0)), x).logits, net.eval()(x))
    net.bn1 = Doubled(4)
    with pytest.raises(
        ValueError, match="model Residual answers differently with the pure layers of acclimate.*use torch's own layers"
    ):
        Task(net, SHAPE, CLASSES)


class Peeks(Plain):
    def forward(self, x):
        if x.sum() > 0:
            x = x * 2
        return super().forward(x)


class Leaves(Plain):
    def forward(self, x):
        return super().forward(torch.from_numpy(x.detach().numpy()))


def test_what_cannot_be_vectorised_is_named():
    assert refusal(Task(Plain(), (6,), CLASSES)) is None
    reason = refusal(Task(Peeks(), (6,), CLASSES))
    assert reason.startswith(
        "model Peeks cannot be vectorised over clients, because of `if x.sum() > 0:` (test_wrapped.py"
    )
    fails = r"cannot be differentiated by torch.func.grad: `.*numpy\(\)\)\)` .* in plain tensor operations, or"
    with pytest.raises(ValueError, match=fails):
        refusal(Task(Leaves(), (6,), CLASSES))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Residual, r"model=Residual: must be a module, .*; of a class give an object, Residual\(\.\.\.\)"),
        (nn.Sequential, r"model=Sequential: .*; of a class give an object"),
        (CNN, r"model=CNN: must be a module, a model record, .* that returns a module; of a class give an object, CNN"),
        (lambda: None, r"model=<lambda>: must be .* \(too many positional arguments\)$"),
        (lambda shape, classes: 3, "model=<lambda>: must be .*; it returned a int$"),
        ("cnn", r"model='cnn': must be .* \('cnn' is not a callable object\)"),
    ],
)
def test_what_is_no_model_is_refused_with_what_would_be_one(model, says):
    with pytest.raises(ValueError, match=says):
        Task(model, (3, 8, 8), CLASSES)


class PeeksAtTests(Plain):
    def forward(self, x):
        return super().forward(x) if self.training or (x > 0).any() else super().forward(-x)


def test_answers_are_tried_too_before_a_model_is_vectorised():
    reason = refusal(Task(PeeksAtTests(), (6,), CLASSES))
    assert re.search(r"cannot be vectorised .* because of `.*\(x > 0\).any\(\)", reason)


class Positions(nn.Embedding):
    """As BART has it: called with token ids, of which it takes the length alone."""

    def forward(self, ids):
        return super().forward(torch.arange(ids.shape[1]))


class WithPositions(Encoder):
    def __init__(self):
        super().__init__()
        self.positions = Positions(LENGTH, 8)

    def forward(self, ids):
        return self.out(self.layers(self.table(ids) + self.positions(ids)).mean(1))


def test_an_embedding_of_positions_that_is_given_ids_is_not_taken_for_a_small_vocabulary():
    t = Task(WithPositions(), (LENGTH,), CLASSES, tokens=VOCABULARY)
    assert t.vocabulary == VOCABULARY > LENGTH


class Tied(nn.Module):
    """One matrix as embedding and as linear layer, and one buffer that two layers hold."""

    def __init__(self):
        super().__init__()
        self.table, self.words = nn.Embedding(VOCABULARY, 6), nn.Linear(6, VOCABULARY, bias=False)
        self.words.weight = self.table.weight
        self.last = nn.Linear(VOCABULARY, CLASSES)
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.table.register_buffer("scale", self.scale)

    def forward(self, ids):
        return self.last(self.words(self.table(ids).mean(1) * self.scale + self.table.scale))


def test_tied_weights_are_one_parameter_in_every_layer_that_holds_it():
    torch.manual_seed(0)
    net, (x, y) = Tied(), sequences(6)
    t = Task(net, (LENGTH,), CLASSES, tokens=VOCABULARY)
    assert t.params == ("table.weight", "last.weight", "last.bias")
    v = t.init(rng.key(0))
    assert list(v["buffers"]) == ["scale"]
    with torch.no_grad():  # other values than those that the module came with
        v["params"]["table.weight"] += 1
        v["buffers"]["scale"] *= 3
        net.table.weight += 1
        net.scale *= 3
    torch.testing.assert_close(t.apply(v, x).logits, net(x))
    torch.testing.assert_close(t.module(v)(x)[1], net(x))
    F.cross_entropy(net(x), y).backward()
    ours = grad(lambda p: t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1))[0])(v["params"])
    torch.testing.assert_close(ours, {n: p.grad for n, p in net.named_parameters()})


def partly_frozen():
    """A module of which the head alone is trained."""
    net = Residual()
    net.requires_grad_(False).fc.requires_grad_(True)
    return net


def test_frozen_parameters_are_neither_trained_nor_sent():
    torch.manual_seed(0)
    net, x, y = partly_frozen(), torch.randn(5, *SHAPE), torch.arange(5) % CLASSES
    t = Task(net, SHAPE, CLASSES)
    v = t.init(rng.key(0))
    assert set(t.params) == set(v["params"]) == {"fc.weight", "fc.bias"}
    assert t.norm == {f"{n}.{b}" for n in ("bn1", "block.1") for b in ("running_mean", "running_var")}
    torch.testing.assert_close(t.apply(v, x).logits, net.eval()(x))
    torch.testing.assert_close(t.module(v)(x)[1], net(x))
    F.cross_entropy(net.train()(x), y).backward()
    ours = grad(lambda p: t.loss({**v, "params": p}, {"x": x, "y": y}, rng.key(1))[0])(v["params"])
    torch.testing.assert_close(ours, {n: p.grad for n, p in net.named_parameters() if p.requires_grad})
    half = t.computing(torch.bfloat16)
    torch.testing.assert_close(half.apply(v, x).logits, t.apply(v, x).logits, rtol=0.1, atol=0.05)
    torch.testing.assert_close(half.module(v)(x)[1], t.module(v)(x)[1])
    assert refusal(t) is None


def test_what_a_function_freezes_is_the_same_in_every_task_and_for_every_seed():
    def make(shape, classes):
        return partly_frozen()

    (one, other), x = (Task(make, SHAPE, CLASSES) for _ in range(2)), torch.randn(5, *SHAPE)
    v = one.init(rng.key(7))
    assert torch.equal(one.apply(v, x).features, other.apply(other.init(rng.key(8)), x).features)
    torch.testing.assert_close(one.module(v)(x)[1], one.apply(v, x).logits)


def test_a_frozen_head_is_refused():
    net = partly_frozen()
    net.fc.requires_grad_(False)
    with pytest.raises(ValueError, match=r"Residual: its head 'fc' has requires_grad=False.*fc.requires_grad_\(True\)"):
        Task(net, SHAPE, CLASSES)


class Smoothed(nn.Module):
    """Writes its running mean, and counts its steps, where they lie."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        z = self.body(x)
        if self.training:
            self.steps += 1
            self.mean.mul_(0.9).add_(0.1 * z.detach().mean(0) * self.steps)
        return self.head(z - self.mean)


IN_PLACE = {
    "own": (Smoothed, (4,)),
    "instance norm": (
        lambda: nn.Sequential(nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten(), nn.Linear(8, 2)),
        (2, 4),
    ),
    "spectral norm": (
        lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)), nn.ReLU(), nn.Linear(3, 2)),
        (4,),
    ),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_buffers_that_a_module_writes_into_are_its_own(name):
    """What it is given belongs to the server: else a client would begin where the one before it ended."""
    make, shape = IN_PLACE[name]
    torch.manual_seed(0)
    module, x = make(), torch.randn(6, *shape)
    for p in module.parameters():
        nn.init.normal_(p)  # other weights than those whose norm is known by now
    task, plain = Task(module, shape, 2), copy.deepcopy(module).train()
    given = task.init(rng.key(0))
    before = tree.map(torch.clone, given)
    for _ in range(2):  # the second client begins as the first did
        out = task.apply(given, x, "train", rng.key(1))
        assert all(torch.equal(a, b) for a, b in zip(tree.leaves(given), tree.leaves(before), strict=True))
    plain(x)
    after = {n: b for n, b in plain.named_buffers() if b.is_floating_point()}
    assert list(out.buffers) and all(torch.allclose(b, after[n.removeprefix("net.")]) for n, b in out.buffers.items())
    moved = [n for n, b in out.buffers.items() if not torch.equal(b, before["buffers"][n])]
    assert moved and not any(torch.equal(out.buffers[n], torch.zeros_like(out.buffers[n])) for n in moved)
