"""Live models and what users get wrong: every mistake is an error with the remedy, and nothing has changed."""

import csv
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from test_live import answers, deployed, stream, trained

import acclimate as ac
from acclimate import store
from acclimate.cli import join, predict
from acclimate.core import Adapter, Task, tree
from acclimate.live import inputs, loading, model
from acclimate.store import RunError

A = ac.adapters


def test_pixels_as_floats_beyond_one_are_refused_and_not_made_white():
    live = deployed("tent", window=4)
    before = live.session
    prepares = deployed("em", window=4)
    for call, who in ((live, "live"), (live.predict, "predict"), (prepares.prepare, "prepare")):
        with pytest.raises(ValueError, match=rf"{who}: x has floats from 0 to 2\d\d, .* from 0 to 1; divide by 255"):
            call(stream(2).float())
    with pytest.raises(ValueError, match="x has floats from -2 to 1, .* do not normalise"):
        live((stream(2).float() / 255).clamp(1, 1).index_fill(0, torch.tensor([0]), -2.0))
    with pytest.raises(ValueError, match="join: x has floats from 0 to 2"):
        ac.join(trained(), stream(2).float())
    assert live.session is before
    near = (stream(2).float() / 255) * 1.004  # what resampling may overshoot
    assert live(near).labels


def test_numbers_that_are_no_pixels_are_not_divided_by_255():
    task = Task(ac.models.MLP(hidden=(4,)), (5,), 2, (), ())
    with pytest.raises(ValueError, match=r"x is of type torch.uint8, and these inputs are no pixels; give .* floats"):
        inputs.taken(task, torch.ones(2, 5, dtype=torch.uint8), torch.float32, "live")
    assert torch.equal(inputs.taken(task, torch.full((2, 5), 7.0), torch.float32, "live"), torch.full((2, 5), 7.0))
    assert not inputs.taken(task, torch.ones(2, 5, requires_grad=True), torch.float32, "live").requires_grad


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (torch.zeros(2, 3, 16, 16).to_sparse(), "x has layout torch.sparse_coo, expected a dense tensor"),
        (torch.zeros(2, 3, 16, 16, device="meta"), "x is on the meta device, expected a dense tensor with values"),
        (np.ma.array(np.zeros((2, 3, 16, 16), np.uint8), mask=True), "x is a masked array; fill what is masked"),
    ],
)
def test_tensors_without_values_are_refused(x, words):
    with pytest.raises(ValueError, match=words):
        deployed("none")(x)


def test_labels_come_as_lists_arrays_or_tensors_and_once_per_sample():
    live = deployed("none")
    ids = live(stream(6)).ids
    for wrong, y, words in [
        ([ids[0], ids[0]], [1, 1], f"{ids[0]} is there twice; a sample has one label"),
        (ids[0], [1], "1 ids and 1 labels; give a list of ids"),
        ([3, 4], [1, 1], r"3, 4 \(2 in all\) are not among the last"),
        (ids[:1], [1.0], "label 1.0 must be one of"),
    ]:
        with pytest.raises(ValueError, match=words):
            live.feedback(wrong, y)
    assert live.measured == {"labels": 0}
    live.feedback(ids[:2], torch.tensor([1, 2]))
    live.feedback(ids[2:3], np.array([1]))
    live.feedback(ids[3:4], list(np.array([2])))
    with pytest.raises(ValueError, match="label np.True_ must be one of"):
        live.feedback(ids[4:5], [np.True_])
    assert live.feedback(ids[4:], np.array(["1", "2"]))["labels"] == 6


def test_a_label_that_is_one_classes_name_and_anothers_number_must_say_which():
    """A table whose labels are 1, 2 and 3: the class of number 1 is 2, and nobody who says 1 means it."""
    live = replace(deployed("none"), classes=tuple(map(str, range(1, 11))))
    answer = live(stream(4))
    for label in (1, 9, 10, np.int64(3)):
        with pytest.raises(ValueError, match=f"label {label} is a class's name and not its number; give it as text"):
            live.feedback(answer.ids[:1], [label])
    assert live.feedback(answer.ids[:3], answer.labels[:3])["accuracy"] == 1.0
    assert live.feedback(answer.ids[3:], [0])["labels"] == 4  # no class has this name


def test_labels_may_come_after_the_model_was_saved(tmp_path):
    live = deployed("tent", window=4)
    y, ids = trained().world.examples.y[trained().world.test[1]][:6], live(stream(6)).ids
    live.feedback(ids[:1], y[:1])
    back = ac.load_live(live.save(tmp_path / "me"))
    assert back.recent == live.recent and list(back.recent) == list(ids[1:])
    assert back.feedback(ids[1:], y[1:]) == live.feedback(ids[1:], y[1:])
    assert back.measured["labels"] == 6


def test_a_request_that_fails_half_way_leaves_no_snapshot(monkeypatch):
    live, real = deployed("tent", window=4), model.request
    live(stream(4))

    def fails(*given):
        if not torch.equal(given[5], stream(8)[:4]):
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(model, "request", fails)
    with pytest.raises(KeyboardInterrupt):
        live(stream(8))
    assert live.step == 1 and [step for step, _ in live.snapshots] == [1]


def test_a_step_of_before_an_adapter_was_prepared_comes_back_unprepared():
    live = deployed("em")
    live.reset()
    live.prepare(stream(40))
    assert live.prepared and live(stream(3)).adapted == (True,) * 3
    live.restore(1)
    assert not live.prepared and live(stream(3)).note.startswith("EM waits for 32 samples")
    live.restore(2)
    assert live.prepared and live(stream(3)).adapted == (True,) * 3


def test_switches_and_steps_have_types():
    live = deployed("tent", window=4)
    live(stream(4))
    for wrong in ("1", True, 1.0, None):
        with pytest.raises(ValueError, match="must be one of those kept: 1"):
            live.restore(wrong)
    with pytest.raises(ValueError, match="freeze: frozen='no' must be True or False"):
        live.freeze("no")
    fit = trained()
    for wrong in ("0", True, 1.0, None):
        with pytest.raises(ValueError, match=r"client=.* must be from 0 to 2"):
            fit.deploy(wrong)
    for wrong in ("8", 2.5, None, 1):
        with pytest.raises(ValueError, match="window=.* must be a whole number of at least 2"):
            fit.deploy(0, window=wrong)
    for wrong in ("tent", A.Tent):
        with pytest.raises(ValueError, match=r"adapter=.* must be a record such as acclimate.adapters.Tent\(\)"):
            fit.deploy(0, wrong)
    assert type(fit.deploy(np.int64(1), guard=False).client) is int


def test_a_folder_that_is_no_live_model_says_what_it_is(tmp_path):
    for c in (0, 1):
        trained().deploy(c, A.NoAdapt()).save(tmp_path / "live" / f"client-{c}")
    with pytest.raises(RunError, match="holds live models, and is none: name one of client-0, client-1"):
        ac.load_live(tmp_path / "live")
    with pytest.raises(RunError, match="client-7 does not exist; .*live holds client-0, client-1$"):
        ac.load_live(tmp_path / "live" / "client-7")
    with pytest.raises(RunError, match="is no live model; those of this run are in .*live: name one of client-0, c"):
        ac.load_live(tmp_path)


def test_a_live_folder_that_is_not_there_names_the_command_that_writes_it(tmp_path):
    """`deploy RUN -o X` writes X/client-0: for X/client-0, what is typed is X."""
    said = {
        "live": f"{tmp_path / 'live'} does not exist; make live models with: acclimate deploy RUN -o {tmp_path}/live "
        f"(which writes {tmp_path}/live/client-0, ...)",
        "live/client-3": f"{tmp_path}/live/client-3 does not exist; make live models with: acclimate deploy RUN -o "
        f"{tmp_path}/live (which writes {tmp_path}/live/client-0, ...)",
        "run": f"{tmp_path}/run is a run folder; make live models of it: acclimate deploy {tmp_path}/run",
        "run/live/client-0": f"{tmp_path}/run/live/client-0 does not exist; make live models with: acclimate deploy "
        f"{tmp_path}/run",
    }
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    for path, words in said.items():
        with pytest.raises(RunError) as error:
            ac.load_live(tmp_path / path)
        assert str(error.value) == words
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="empty holds no live model; make live models with: acclimate deploy RUN -o"):
        ac.load_live(tmp_path / "empty")
    assert not (tmp_path / "live").exists()


def test_a_folder_has_one_writer_at_a_time(tmp_path):
    """A second one would delete the files that the first one's card is about to name."""
    live = deployed("none")
    live.save(tmp_path)
    other = ThreadPoolExecutor(1)
    with store.locked(tmp_path, "command"), pytest.raises(RunError, match="another command is at work in"):
        other.submit(live.save, tmp_path, True).result()
    live.save(tmp_path, overwrite=True)
    assert ac.load_live(tmp_path).step == 0


def test_a_folder_that_is_saved_while_it_is_read_is_that_of_one_save(tmp_path, monkeypatch):
    """The card names a file that the other process deletes; the next card names the next."""
    live, read = deployed("tent", window=8), loading.read
    live(stream(8))
    live.save(tmp_path / "live")

    def late(folder, file):
        if live.step == 1 and file["name"].startswith("state"):
            live(stream(16)[8:])
            live.save(tmp_path / "live", overwrite=True)
        return read(folder, file)

    monkeypatch.setattr(loading, "read", late)
    assert ac.load_live(tmp_path / "live").step == live.step == 2
    next((tmp_path / "live").glob("state-*")).unlink()
    with pytest.raises(RunError, match="is damaged or missing"):
        ac.load_live(tmp_path / "live")


def test_a_guard_without_validation_examples_says_so():
    live = ac.join(trained(), stream(20), A.Guarded(A.Tent()))
    assert live(stream(3)).note == "the guard has no labelled validation examples of this client to judge by"
    assert deployed("tent", guard=True)(stream(32)).note == "the guard holds the adapted answer back"


@dataclass(frozen=True)
class Diverging(Adapter):
    """Answers well once, and with what is no number after that."""

    def init(self, task, model):
        return {"factor": torch.ones(())}

    def step(self, task, predict, model, state, x, key):
        return predict(model, x).logits * state["factor"], tree.map(lambda v: v * torch.nan, state)


def test_answers_that_are_no_numbers_never_go_out():
    live = trained().deploy(1, Diverging(), guard=False, window=4)
    assert live(stream(4)).adapted == (True,) * 4 and live.step == 1
    plain = answers(deployed("none"), stream(8), 8)
    answer = live(stream(8))
    torch.testing.assert_close(answer.probabilities, plain)
    assert answer.note == "the adapter's answers are not finite: reset it, or restore an earlier step"
    assert live.step == 1
    live.reset()
    assert live(stream(4)).adapted == (True,) * 4


def test_a_model_whose_own_answer_is_no_number_changes_nothing():
    live = deployed("none")
    head = live.worker.task.head_weight
    params = {**live.model["vars"]["params"], head: live.model["vars"]["params"][head] * torch.nan}
    live.model = {**live.model, "vars": {**live.model["vars"], "params": params}}
    before = live.session
    with pytest.raises(ValueError, match="live: the model's answers are not finite; x is from 0 to 2"):
        live(stream(2))
    assert live.session is before


@pytest.mark.parametrize("shape", [(6,), (3, 20)])
def test_a_live_model_of_arrays_in_memory_loads_without_them(shape, tmp_path, capsys):
    x = torch.randn(120, *shape, generator=torch.Generator().manual_seed(0))
    y = np.array(["süß ☃", 'b,"c'])[(x.flatten(1)[:, 0] > 0).long()]
    work = ac.methods.FedAvg(work=ac.Work(epochs=1, batch=16))
    mlp = ac.models.MLP(hidden=(4,), norm="batch")
    fit = ac.train(ac.Experiment(data=ac.data.of(x.numpy(), y, clients=2), model=mlp, rounds=1, method=work))
    live = fit.deploy(0, A.Tent(), guard=False, window=8)
    folder = live.save(tmp_path / "live")
    card = (folder / "live.json").read_bytes()
    back = ac.load_live(folder)
    assert torch.equal(back(x[:9]).probabilities, live(x[:9]).probabilities)
    back.reset()
    ac.load_live(folder).save(folder, overwrite=True)  # what the federation trained on stays written as it was
    assert (folder / "live.json").read_bytes() == card
    np.save(tmp_path / "x.npy", x[:3].numpy())
    predict.predict(folder, tmp_path / "x.npy", tmp_path / "a.csv", frozen=True)
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {r["answer"] for r in rows} <= set(live.classes) and len(rows) == 3
    assert "the window fills: 3 of 8 samples" in capsys.readouterr().out
    np.save(tmp_path / "none.npy", x[:0].numpy())
    with pytest.raises(ValueError, match="live: x has no samples"):
        predict.predict(folder, tmp_path / "none.npy", tmp_path / "b.csv", frozen=False)
    with pytest.raises(ValueError, match="not finite, or too large for 32 bits"):
        live(np.full((1, *shape), 1e300))


def test_a_photo_may_have_a_name_in_no_encoding(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="pip install Pillow").fromarray(np.zeros((4, 4, 3), np.uint8))
    for name in (b"a\xff.png", "ü ☃.png".encode()):
        image.save(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    assert sorted(join.names_of(tmp_path, 2)) == ["a\ufffd.png", "ü ☃.png"]
