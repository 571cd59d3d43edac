"""Clients that join after training, with unlabelled samples alone: adapt, predict, save, load, refuse."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

import acclimate as ac
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.cli.join import join as join_command
from acclimate.cli.join import names_of, samples
from acclimate.experiment import catalogue
from acclimate.live import load_joined, load_live
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.pfl import PFL
from acclimate.ops.losses import entropy
from acclimate.running.join import CannotJoin, join
from acclimate.shifts import NewClients
from acclimate.store import RunError
from support import equal, gap

WORK = ac.Work(iterations=3, batch=8)
DATA = ac.data.Digits(clients=4, new_clients=2, partition=ac.data.Pathological())
PLUS = Adapt(steps=6, patience=2)


def trained(method, **changes):
    model = ac.models.MLP(hidden=(16,))
    e = ac.Experiment(DATA, model, method, rounds=2, streams=(NewClients(),), adapters=(ac.adapters.NoAdapt(), PLUS))
    return ac.train(replace(e, **changes))


@pytest.fixture(scope="module")
def fit():
    return trained(FedTTA(work=WORK, opt=ac.optim.SGD(lr=0.3)))


def newcomer(fit, client=0):
    return fit.world.examples.x[fit.world.new[client]]


def test_a_joined_client_answers_as_the_stream_of_new_clients_does(fit):
    served = ac.evaluate(fit, adapters=[PLUS]).rows[0]["per_client"]
    for c, accuracy in enumerate(served):
        joined = join(fit, newcomer(fit, c), PLUS, client=c)
        hits = joined.predict(newcomer(fit, c)).argmax(-1) == fit.world.examples.y[fit.world.new[c]]
        assert float(hits.float().mean()) == pytest.approx(accuracy, abs=1e-6)


def test_the_record_tells_how_it_was_adapted(fit):
    x = newcomer(fit)
    r = join(fit, x, PLUS).record
    assert r["samples"] == len(x) and r["round"] == 2
    assert len(r["entropy"]) == len(r["learned_loss"]) == r["steps_taken"] + 1
    assert r["entropy"][r["chosen_step"]] == min(r["entropy"][1:])
    assert r["entropy_before"] == pytest.approx(r["entropy"][0], abs=1e-5)
    assert r["entropy_after"] == pytest.approx(r["entropy"][r["chosen_step"]], abs=1e-5)
    json.dumps(r)


def test_predicting_changes_nothing_and_needs_no_batch_size(fit):
    x, joined = newcomer(fit), join(fit, newcomer(fit), PLUS)
    first = joined.predict(x)
    assert equal(joined.predict(x), first)
    assert gap(joined.predict(x, batch=7), first) < 1e-5
    assert gap(joined.predict(x.numpy()), first) == 0


@pytest.mark.parametrize("adapter", [PLUS, ac.adapters.Tent(params="all")])
def test_what_it_learned_when_it_joined_comes_back_after_a_reset(fit, adapter, tmp_path):
    x, joined = newcomer(fit), join(fit, newcomer(fit), adapter)
    first, plain = joined.predict(x), join(fit, x, ac.adapters.NoAdapt()).predict(x)
    joined.reset()
    assert equal(joined.predict(x), plain) and not equal(first, plain)
    back = load_live(joined.save(tmp_path / "me"))
    back.restore(1)
    assert equal(back.predict(x), first) and back.prepared is adapter.transductive


def test_the_default_adapter_is_the_experiments_first_that_adapts(fit):
    assert join(fit, newcomer(fit)).adapter == PLUS
    plain = trained(ac.methods.FedAvg(work=WORK))
    assert join(plain, newcomer(plain)).adapter == ac.adapters.NoAdapt()


def test_an_adapter_that_goes_batch_by_batch_sees_every_sample(fit):
    tent = ac.adapters.Tent(params="all")
    joined, x = join(fit, newcomer(fit), tent, batch=16), newcomer(fit)
    state = tent.init(fit.worker.task, joined.model)
    for start in range(0, len(x), 16):
        rows = torch.arange(start, start + 16) % len(x)
        _, state = tent.step(fit.worker.task, fit.worker.predict(), joined.model, state, x[rows], None)
    assert gap(joined.state, state) < 1e-6
    assert joined.record["entropy_after"] < joined.record["entropy_before"]
    assert float(entropy(joined.predict(x)).mean()) == pytest.approx(joined.record["entropy_after"], abs=1e-6)


def test_saved_and_loaded_it_predicts_the_same_and_holds_no_pickle(fit, tmp_path):
    joined, x = join(fit, newcomer(fit), PLUS, client=1), newcomer(fit)
    folder = joined.save(tmp_path / "me")
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".safetensors", ".safetensors"]
    back = load_joined(folder)
    assert equal(back.predict(x), joined.predict(x))
    assert (back.record, back.classes, back.client, back.adapter) == (joined.record, joined.classes, 1, PLUS)
    with pytest.raises(RunError, match="holds a live model"):
        joined.save(folder)
    joined.save(folder, overwrite=True)


def test_a_damaged_folder_is_refused_by_name(fit, tmp_path):
    joined = join(fit, newcomer(fit), PLUS)
    folder = joined.save(tmp_path / "me")
    tensors = next(folder.glob("model-*.safetensors"))
    raw = bytearray(tensors.read_bytes())
    raw[-1] ^= 1
    tensors.write_bytes(bytes(raw))
    with pytest.raises(RunError, match=f"{tensors.name} is damaged"):
        load_joined(folder)
    joined.save(folder, overwrite=True)  # what is damaged is written anew, though a file of its name is there
    assert equal(load_joined(folder).model, joined.model)
    tensors.unlink()
    with pytest.raises(RunError, match="damaged or missing"):
        load_joined(folder)
    with pytest.raises(RunError, match="does not exist"):
        load_joined(tmp_path / "nobody")


@pytest.mark.parametrize("name", ["fedper", "local", "ditto", "fedrep", "apfl"])
def test_methods_whose_models_have_private_parts_cannot_serve_newcomers(name):
    method = catalogue.METHODS[name]
    works = {f: WORK for f in ("work", "head_work", "personal_work") if hasattr(method, f)}
    personal = trained(replace(method, **works), rounds=1)
    with pytest.raises(CannotJoin, match=f"{name} cannot serve newcomers without labels"):
        join(personal, newcomer(personal), ac.adapters.NoAdapt())


@pytest.mark.parametrize("name", ["fedavg", "scaffold", "fedprox", "perfedavg", "gma", "fedthe"])
def test_methods_with_a_shared_model_can(name):
    method = catalogue.METHODS[name]
    works = {f: WORK for f in ("work", "head_work") if hasattr(method, f)}
    shared = trained(replace(method, **works), rounds=1)
    joined = join(shared, newcomer(shared), ac.adapters.NoAdapt())
    assert joined.predict(newcomer(shared)).shape == (len(newcomer(shared)), 10)


@pytest.mark.parametrize("joins", ["sampled", "ensemble"])
def test_shared_heads_serve_newcomers(joins):
    shared = trained(PFL(joins, work=WORK), rounds=1)
    assert join(shared, newcomer(shared), ac.adapters.NoAdapt()).record["samples"] == len(newcomer(shared))


def test_an_adapter_that_needs_a_personal_part_is_refused_by_name():
    personal = trained(ac.methods.FedTHE(work=WORK, head_work=WORK), rounds=1)
    with pytest.raises(CannotJoin, match="THE needs head, descriptors, which with fedthe only clients that trained"):
        join(personal, newcomer(personal), ac.adapters.THE())
    with pytest.raises(CannotJoin, match="FedTTA needs net, inner in the deployed model"):
        join(personal, newcomer(personal), PLUS)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.zeros(3, 3, 9, 8), r"shape \(3, 3, 9, 8\), expected \[N, 3, 16, 16\]"),
        (torch.zeros(0, 3, 16, 16), "no samples"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.int64), "expected uint8"),
        (torch.full((2, 3, 16, 16), torch.nan), "not finite"),
        (np.array(["one", "two"]), "x is of type <U3, expected uint8"),
    ],
)
def test_bad_samples_are_refused_in_a_sentence(fit, x, says):
    with pytest.raises(ValueError, match=says):
        join(fit, x, PLUS)
    with pytest.raises(ValueError, match="selection='best' must be"):
        join(fit, newcomer(fit), PLUS, selection="best")
    with pytest.raises(ValueError, match="client=-5 must be at least 0"):
        join(fit, newcomer(fit), PLUS, client=-5)


# the command


@pytest.fixture(scope="module")
def run_folder(fit, tmp_path_factory):
    return fit.save(tmp_path_factory.mktemp("runs") / "one")


def command(*args):
    app = typer.Typer()
    app.command()(join_command)
    return CliRunner().invoke(app, [str(a) for a in args])


def test_the_command_adapts_tells_and_writes(fit, run_folder, tmp_path):
    np.savez(tmp_path / "mine.npz", x=newcomer(fit).numpy(), y=np.zeros(3))
    done = command(run_folder, tmp_path / "mine.npz", "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    joined = load_joined(tmp_path / "out")
    assert equal(joined.predict(newcomer(fit)), join(fit, newcomer(fit), PLUS).predict(newcomer(fit)))
    head, *rows = [line.split(",") for line in (tmp_path / "out" / "answers.csv").read_text().splitlines()]
    told = [joined.classes[c] for c in joined.predict(newcomer(fit)).argmax(-1).tolist()]
    assert head == ["sample", "answer", *joined.classes]
    assert [row[:2] for row in rows] == [[str(i), answer] for i, answer in enumerate(told)]
    for word in (
        "263 samples, fedtta-plus, model of round 2",
        "mean entropy",
        "learned loss",
        "predicted: ",
        f"wrote {tmp_path / 'out'}",
    ):
        assert word in done.output
    again = command(run_folder, tmp_path / "mine.npz", "-o", tmp_path / "out")
    assert isinstance(again.exception, RunError) and "--overwrite" in str(again.exception)


def test_the_command_takes_another_adapter_and_nothing_else(fit, run_folder, tmp_path):
    np.save(tmp_path / "mine.npy", newcomer(fit).numpy())
    loud = (tmp_path / "mine.npy").rename(tmp_path / "MINE.NPY")
    done = command(run_folder, loud, "adapters=tent-all", "adapters.tent-all.steps=2", "-o", tmp_path / "t")
    assert done.exit_code == 0, done.output
    assert load_joined(tmp_path / "t").adapter == ac.adapters.Tent(params="all", steps=2)
    for settings, says in (
        (["rounds=3"], "another adapters= and, for a newcomer where clients share no weights, another model="),
        (["model=mlp"], "model=MLP(hidden=(200, 200), norm='none', groups=2, dropout=0.0) can be chosen only where"),
        (["adapters=none,tent-all"], "name one adapter"),
        (["adapters=tent"], "Tent needs normalisation layers"),
    ):
        refused = command(run_folder, loud, *settings, "-o", tmp_path / "no")
        assert says in str(refused.exception)
    assert not (tmp_path / "no").exists()


@pytest.fixture(scope="module")
def mixed_folder(tmp_path_factory):
    """A run whose clients have different models, and a newcomer's samples beside it."""
    two = ac.models.Mixed((ac.models.MLP(hidden=(8,)), ac.models.MLP(hidden=(6, 5))))
    data = ac.data.Public(share=0.05, clients=3, new_clients=1, fraction=0.2)
    method = HeteroFedTTA(work=ac.Work(iterations=1, batch=8), inner_lr=0.1)
    mixed = ac.train(ac.Experiment(data, two, method, adapters=(PLUS,), rounds=1))
    folder = mixed.save(tmp_path_factory.mktemp("runs") / "mixed")
    np.save(folder / "mine.npy", newcomer(mixed).numpy())
    return folder


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        (["model=1"], ac.models.MLP(hidden=(6, 5))),
        (["model=mlp", "model.hidden=7", "adapters=none"], ac.models.MLP(hidden=(7,))),
    ],
)
def test_the_command_takes_a_model_where_clients_share_no_weights(mixed_folder, tmp_path, settings, model):
    done = command(mixed_folder, mixed_folder / "mine.npy", *settings, "-o", tmp_path / "me")
    assert done.exit_code == 0, done.output
    assert load_joined(tmp_path / "me").worker.task.model == model


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model=2", "model=2 must be one of the federation's, 0 (MLP(hidden=(8,)"),
        ("model=mpl", "there is no model 'mpl'; did you mean 'mlp'? allowed: cnn"),
        ("model=mixed", "Mixed(...) has 3 architectures, and a newcomer has one: 0 (MLP(hidden=(8,)"),
        ("model=mlp,cnn", "name one model to join with"),
    ],
)
def test_the_command_refuses_another_model_with_what_is_allowed(mixed_folder, tmp_path, setting, says):
    refused = command(mixed_folder, mixed_folder / "mine.npy", setting, "-o", tmp_path / "no")
    assert says in str(refused.exception) and not (tmp_path / "no").exists()


def test_samples_come_from_folders_of_images_and_arrays(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    (tmp_path / "pictures" / "deep").mkdir(parents=True)
    for name, grey in (("b.png", 200), ("deep/a.png", 50)):
        pillow.fromarray(np.full((8, 8), grey, np.uint8)).save(tmp_path / "pictures" / name)
    assert samples(tmp_path / "pictures", (1, 8, 8))[:, 0, 0, 0].tolist() == [200, 50]
    assert samples(tmp_path / "pictures", (3, 4, 4)).shape == (2, 3, 4, 4)
    np.savez(tmp_path / "hwc.npz", x=np.zeros((5, 8, 8, 3), np.uint8))
    assert samples(tmp_path / "hwc.npz", (3, 8, 8)).shape == (5, 3, 8, 8)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        samples(tmp_path / "nowhere", (1, 8, 8))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has no images"):
        samples(tmp_path / "empty", (1, 8, 8))


def test_one_image_is_one_sample_and_another_form_of_file_is_named(tmp_path):
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(np.full((8, 8), 70, np.uint8)).save(tmp_path / "one.PNG")
    assert samples(tmp_path / "one.PNG", (1, 8, 8)).tolist() == [[[[70] * 8] * 8]]
    assert names_of(tmp_path / "one.PNG", 1) == ["one.PNG"]
    with pytest.raises(ValueError, match=r"one.PNG: the model takes inputs of shape \(6,\)"):
        samples(tmp_path / "one.PNG", (6,))
    (tmp_path / "rows.json").write_text("[]")
    with pytest.raises(
        ValueError, match="rows.json ends in none of the known forms; it must be a folder of images, an"
    ):
        samples(tmp_path / "rows.json", (1, 8, 8))


@pytest.mark.parametrize(("private", "part"), [(("head",), "head"), (("body",), "body")])
def test_newcomers_in_the_table_hold_the_initial_private_part_and_the_trained_shared_one(private, part):
    """As the guide says; FedPer's head and LG-FedAvg's body."""
    fit = trained(ac.methods.FedAvg(private=private, work=WORK), rounds=1)
    worker = fit.worker
    down = worker.method.download(worker.task, fit.state.server)
    met = fit.engine.model_of(fit.engine.join(down, 1), 0)["vars"]["params"]
    initial = worker.task.init(worker.key("init"))["params"]
    own = worker.task.select(part)
    assert all(torch.equal(v, initial[n]) == (n in own) for n, v in met.items())
