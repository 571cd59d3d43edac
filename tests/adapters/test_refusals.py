"""Why adapters refuse a model: inputs, layers or entries that are missing; nothing where all is there."""

import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import acclimate
from acclimate.adapters import (
    EATA,
    ICON,
    MBSL,
    MEMO,
    ODPFL,
    SANTA,
    TSA,
    TTT,
    BNStats,
    DeYO,
    FedTTA,
    KNNPer,
    Tent,
    THEPlus,
    Together,
)
from acclimate.core import Task, rng
from acclimate.experiment.catalogue import ADAPTERS
from acclimate.experiment.settings import expand
from acclimate.ops.augment import CropJitter, FlipCrop, Views
from acclimate.ops.strong_views import StrongViews
from acclimate.running.build import worker_of
from acclimate.running.deploy import live_model
from support import task as small_task


def task(shape, norm=(), pixels=True):
    return SimpleNamespace(shape=shape, tokens=None, norm=frozenset(norm), params=tuple(norm), pixels=pixels)


@pytest.mark.parametrize(
    ("adapter", "needed"),
    [
        (MEMO(), ()),
        (MBSL(), ()),
        (ICON(), ()),
        (TSA(), ("head",)),
        (THEPlus(), ("head", "descriptors")),
        (TTT(), ("rotation",)),
        (ODPFL(), ("encoder", "hyper")),
        (FedTTA(), ("net", "inner")),
    ],
    ids=lambda a: type(a).__name__,
)
def test_inputs_that_are_no_images_and_entries_that_are_missing(adapter, needed):
    whole, name = {"vars": {}, **{key: {} for key in needed}}, type(adapter).__name__
    assert adapter.refusal(task((3, 8, 8)), whole) is None
    any_inputs = name in ("ODPFL", "FedTTA")
    for shape in ((5,), (3, 8, 6)) if name == "TTT" else ((5,),):
        reason = adapter.refusal(task(shape), whole)
        assert reason is None if any_inputs else f"{name} needs" in reason and f"shape {shape}" in reason
    for missing in needed:
        reason = adapter.refusal(task((3, 8, 8)), {k: v for k, v in whole.items() if k != missing})
        assert reason.startswith(f"{name} needs {missing} in the deployed model, which has only ")


def test_either_side_of_an_image_may_be_too_short_for_deyos_patches():
    adapter, model = DeYO(patches=4), {"vars": {"params": {}, "buffers": {}}}
    assert adapter.refusal(task((3, 4, 8), ["n.weight"]), model) is None
    for shape in ((3, 3, 8), (3, 8, 3)):
        reason = adapter.refusal(task(shape, ["n.weight"]), model)
        assert reason == f"DeYO cuts sides into patches=4, and these inputs have shape {shape}: set fewer"


def test_batch_statistics_need_batch_norm():
    model = {"vars": {"params": {}, "buffers": {}}}
    assert BNStats().refusal(small_task("cnn-batch"), model) is None
    assert BNStats().refusal(small_task("cnn-group"), model).startswith("BNStats needs ")


@pytest.mark.parametrize("kind", [Tent, EATA])
def test_tuning_norm_layers_needs_some(kind):
    model = {"vars": {"params": {}, "buffers": {}}, "fisher": {}}
    assert "needs normalisation layers" in kind(params="norm").refusal(task((5,)), model)
    assert kind(params="all").refusal(task((5,)), model) is None
    assert kind(params="norm").refusal(task((5,), ["n.weight"]), model) is None


def test_eata_needs_the_weights_of_all_that_it_tunes_unless_nothing_is_held():
    params = {"n.weight": 0, "head.weight": 0}
    normed = task((5,), ["n.weight"])
    bare = {"vars": {"params": params, "buffers": {}}}
    weighed = {**bare, "fisher": {"n.weight": 0}}
    assert EATA().refusal(normed, bare).endswith("personalise with Fisher (personal=fisher), or set alpha=0")
    assert EATA(alpha=0.0).refusal(normed, bare) is None
    assert EATA().refusal(normed, weighed) is None
    assert "EATA tunes head.weight, and Fisher did not weigh it" in EATA(params="all").refusal(normed, weighed)


def test_knn_needs_as_many_noted_neighbours_as_it_asks_where_it_tunes():
    away = SimpleNamespace(shape=(6, 4))
    model = {"vars": {}, "memory": {"asked": {"away": away}}}
    assert KNNPer(k=4).refusal(None, model) is None
    assert KNNPer(k=5, lam=0.5).refusal(None, model) is None
    assert "k=5, and Memory noted 4 neighbours" in KNNPer(k=5).refusal(None, model)
    assert KNNPer(k=4).refusal(None, {"vars": {}}) == (
        "KNNPer needs memory in the deployed model, which has only vars; set personal=memory"
    )


HINTED = sorted(name for name, adapter in ADAPTERS.items() if adapter.requires)


@pytest.mark.parametrize("name", HINTED)
def test_a_refusal_names_settings_with_which_the_model_has_what_is_needed(name):
    adapter = ADAPTERS[name]
    if name in ("eata", "santa"):  # these say `personalise with ...` themselves
        assert adapter.made_by == ""
        return
    small = ["data.clients=2", "data.fraction=0.1", "rounds=1", "method.work.iterations=1", "method.work.batch=4"]
    tiny = ["model.base.width=4", "model.base.depth=1", "model.base.heads=1", "model.base.patch=8"]
    small += tiny if "model=" in adapter.made_by else ["model=mlp", "model.hidden=8"]
    fit = acclimate.train(expand([*adapter.made_by.split(), *small])[0])
    task, model = fit.engine.worker_of(0).task, live_model(fit, 0)
    assert adapter.refusal(task, model) is None
    assert adapter.refusal(task, {"vars": model["vars"]}).endswith(f"; set {adapter.made_by}")


class Fixed(nn.Module):
    """Batch norm that has statistics, and nothing that could be tuned."""

    def __init__(self, affine):
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(5, affine=affine), nn.Linear(5, 3)
        self.norm.requires_grad_(False)

    def forward(self, x):
        features = self.norm(x)
        return features, self.head(features)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", ["tent", "eata", "sar", "delta"])
def test_norm_layers_without_trained_parameters_leave_nothing_to_tune(name, affine):
    fixed = Task(Fixed(affine), (5,), 3)
    model = {"vars": fixed.init(rng.key(0)), "fisher": {}}
    adapter = ADAPTERS[name]
    assert "have no parameters that are trained (affine=False, or requires_grad=False)" in adapter.refusal(fixed, model)
    assert "set params='all'" in adapter.refusal(fixed, model)
    every = {**model, "fisher": model["vars"]["params"]}
    assert replace(adapter, params="all").refusal(fixed, every) is None
    assert ADAPTERS["bn"].refusal(fixed, model) is None


def test_a_mix_of_models_has_no_place_for_a_network_beside_the_model():
    batch = small_task("cnn-batch")
    model = {"vars": batch.init(rng.key(0)), "means": {}}
    reason = Together(adapter=SANTA()).refusal(batch, model)
    assert reason == "Together mixes parameters of the model, and SANTA tunes model, projector besides"
    assert Together(adapter=SANTA(), weights="own").refusal(batch, model) is None
    assert Together().refusal(batch, model) is None


@pytest.mark.parametrize("name", ["memo", "theplus", "tsa", "icon", "cotta", "rotta", "roid", "santa"])
def test_views_that_are_clipped_to_pixels_need_pixels(name):
    adapter, model = ADAPTERS[name], {key: {} for key in ("head", "descriptors", "means")}
    rest = {"shape": (3, 8, 8), "norm": ["n.weight"]}
    assert adapter.refusal(SimpleNamespace(**vars(task(**rest)), num_classes=3), model) is None
    reason = adapter.refusal(SimpleNamespace(**vars(task(**rest, pixels=False)), num_classes=3), model)
    assert "needs pixels to" in reason and "floats from 0 to 1, and these floats lie outside" in reason


@pytest.mark.parametrize(("low", "high", "pixels"), [(0.0, 1.0, True), (-0.5, 1.0, False), (0.0, 2.0, False)])
def test_a_task_knows_whether_its_images_are_pixels(low, high, pixels):
    x = low + (high - low) * torch.linspace(0, 1, 40 * 64).view(40, 1, 8, 8)
    for inputs, found in ((x, pixels), (x.flatten(1), True)):
        data = acclimate.data.of(inputs, torch.arange(40) % 2, clients=2)
        e = acclimate.Experiment(data=data, model=acclimate.models.MLP(hidden=(4,)))
        whole = worker_of(e, e.data.world(0)).task
        every = (whole, whole.computing(torch.bfloat16), pickle.loads(pickle.dumps(whole)))
        assert [t.pixels for t in every] == [found] * 3


@pytest.mark.parametrize("augment", [CropJitter(), Views(), StrongViews()], ids=lambda a: type(a).__name__)
def test_training_images_that_an_augmentation_would_clip_are_refused(augment):
    x = torch.linspace(-2.0, 2.0, 40 * 192).view(40, 3, 8, 8)  # standardised
    e = acclimate.Experiment(model=acclimate.models.MLP(hidden=(4,)))
    for inputs, refused in ((x, True), (x.clamp(0.0, 1.0), False)):
        data = acclimate.data.of(inputs, torch.arange(40) % 2, clients=2, augment=augment)
        if refused:
            with pytest.raises(
                ValueError, match=f"^augment={type(augment).__name__}.* clips images to 0..1, and these"
            ):
                worker_of(replace(e, data=data), data.world(0))
        else:
            worker_of(replace(e, data=data), data.world(0))
    seen = augment.views(x[:4], rng.key(0))
    assert float(seen.min()) >= 0.0 and float(seen.max()) <= 1.0  # which is why


def test_an_augmentation_that_leaves_values_alone_takes_any_floats():
    x = torch.linspace(-2.0, 2.0, 40 * 192).view(40, 3, 8, 8)
    data = acclimate.data.of(x, torch.arange(40) % 2, clients=2, augment=FlipCrop(2))
    assert not worker_of(
        acclimate.Experiment(data=data, model=acclimate.models.MLP(hidden=(4,))), data.world(0)
    ).task.pixels
    seen = set(FlipCrop(2).views(x, rng.key(0)).unique().tolist())
    assert seen <= {*x.flatten().tolist(), 0.0} and min(seen) < -1.0 and max(seen) > 1.0


def test_mbsl_needs_pixels_where_its_augmentation_clips():
    away = task((3, 8, 8), pixels=False)
    assert MBSL().refusal(away, {}) is None  # FlipCrop
    assert "MBSL needs pixels to augment" in MBSL(augment=Views()).refusal(away, {})
    assert MBSL(augment=Views()).refusal(task((3, 8, 8)), {}) is None


@pytest.mark.parametrize("method", [acclimate.methods.AM(), acclimate.methods.ELCFS()], ids=lambda m: type(m).__name__)
def test_methods_that_cut_mixed_spectra_to_pixels_need_pixels(method):
    x = torch.linspace(-2.0, 2.0, 40 * 192).view(40, 3, 8, 8)
    e = acclimate.Experiment(method=method, model=acclimate.models.MLP(hidden=(4,)))
    for inputs, refused in ((x, True), (x.clamp(0.0, 1.0), False)):
        data = acclimate.data.of(inputs, torch.arange(40) % 2, clients=2)
        made = worker_of(replace(e, data=data), data.world(0))
        if refused:
            with pytest.raises(ValueError, match=f"^{type(method).__name__} needs pixels to take spectra of, uint8 or"):
                method.init_server(made.task, 2, made.key("init"))
        else:
            method.init_server(made.task, 2, made.key("init"))
