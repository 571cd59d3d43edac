"""What results look like in a notebook and at a prompt: short, with units, and nothing is dropped without a word."""

import html.parser
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import acclimate as ac
from acclimate.cli.describe import size
from acclimate.eval.estimate_table import Estimates
from acclimate.reporting import style
from acclimate.running.compare import Comparison, difference


def row(adapter="none", stream="original", accuracy=0.812, seed=0, method="fedavg"):
    return {
        "method": method,
        "personal": "none",
        "adapter": adapter,
        "stream": stream,
        "settings": [],
        "seed": seed,
        "clients": 3,
        "accuracy": accuracy,
        "std": 0.041,
        "loss": 0.5,
        "ece": 0.1,
        "selection": "last",
        "round": 2,
        "up_bytes": 100,
        "exchanged_bytes": 0,
        "per_client": [accuracy] * 3,
    }


REFUSED = {"method": "fedavg", "personal": "none", "adapter": "tent", "reason": "Tent needs a <norm>"}


def test_a_table_has_its_unit_and_says_what_was_not_run():
    table = ac.Table((row(), row(stream="corrupted", accuracy=0.5)), (REFUSED,))
    assert str(table).splitlines() == [
        "accuracy at the last round, % ± std over clients",
        "method  adapter  original  corrupted",
        "fedavg  none     81.2 ±4   50.0 ±4",
        "not run: tent: Tent needs a <norm>",
    ]
    assert repr(table) == str(table)
    both = ac.Table((row(), row(seed=1)))
    assert str(both).splitlines()[0] == "accuracy at the last round, % ± std over clients, means over 2 seeds"


def test_an_adapter_that_ran_with_another_method_is_not_run_with_the_one_that_refused():
    table = ac.Table((row("tent", method="fedbn"),), (REFUSED,))
    assert table.not_run() == ["not run: tent with fedavg: Tent needs a <norm>"]


def test_a_notebook_shows_a_table_as_html():
    table = ac.Table((row(), row("t3a", accuracy=0.9)), (REFUSED,))
    shown = table._repr_html_()
    cells = []

    class Read(html.parser.HTMLParser):
        def handle_data(self, data):
            cells.append(data)

    Read().feed(shown)
    assert cells == [
        "accuracy at the last round, % ± std over clients",
        *["method", "adapter", "original"],
        *["fedavg", "none", "81.2 ±4"],
        *["fedavg", "t3a", "90.0 ±4"],
        "not run: tent: Tent needs a <norm>",
    ]
    assert shown.count("<tr>") == 3 and "<norm>" not in shown


@pytest.fixture(scope="module")
def fit():
    small = ac.Experiment(
        data=ac.data.Digits(clients=2, fraction=0.1), model=ac.models.MLP(hidden=(8,), norm="batch"), rounds=1
    )
    return ac.train(small)


def test_what_training_gives_is_one_line_without_examples_and_weights(fit):
    validated = f"{fit.history[-1]['val_accuracy']:.1%}"
    world = f"World(Digits: Examples({len(fit.world.examples.y)} of shape (3, 16, 16), 10 classes), 2 clients, seed 0)"
    assert repr(fit.world) == world
    assert repr(fit) == f"Fit(fedavg, seed 0, 1 of 1 round, validation {validated}; {world})"
    assert "tensor(" not in repr(fit.state) and "round=1" in repr(fit.state)


def test_a_live_model_shows_its_settings_alone(fit):
    live = fit.deploy(0, adapter=ac.adapters.Tent())
    live(fit.world.examples.x[fit.world.test[0]])
    assert "tensor(" not in repr(live) and "client=0" in repr(live) and "Tent(" in repr(live)


def test_a_world_with_a_public_set_is_as_short():
    world = ac.data.Public(data=ac.data.Digits(), clients=2, fraction=0.2).world()
    assert repr(world).startswith("World(") and "tensor(" not in repr(world)


def test_sizes_have_one_spelling():
    """The terminal said KB where the report says kB."""
    assert size(460_000) == style.size(460_000) == "460 kB"


def test_float_images_may_have_their_channels_last_as_bytes_may():
    first = np.random.default_rng(0).random((40, 3, 8, 6), dtype=np.float32)
    last = first.transpose(0, 2, 3, 1)
    y = np.arange(40) % 2
    for given in (first, last):
        x = ac.data.of(given, y, clients=2).world().examples.x
        assert tuple(x.shape) == (40, 3, 8, 6) and (x.numpy() == first).all()
    odd = np.zeros((40, 5, 8, 6), np.float32)  # features of another form stay as they are
    assert ac.data.of(odd, y, clients=2).world().shape == (5, 8, 6)


def test_what_is_not_trained_and_what_is_mistyped_gets_a_sentence():
    experiment = ac.Experiment()
    with pytest.raises(TypeError, match="evaluate: fit is of type Experiment, and must be what ac.train.experiment. r"):
        ac.evaluate(experiment)
    with pytest.raises(TypeError, match=r"is of type str, and must be what ac.train\(experiment\) or ac.load\(path\)"):
        ac.evaluate("runs/first")
    with pytest.raises(TypeError, match="experiment is Experiment, a class; it must be a record such as Experiment"):
        ac.train(ac.Experiment)
    with pytest.raises(TypeError, match="experiment is of type dict; it must be a record"):
        ac.train({"rounds": 3})
    with pytest.raises(AttributeError, match="^module 'acclimate' has no attribute 'trian'; did you mean 'train'"):
        _ = ac.trian
    with pytest.raises(AttributeError, match="^module 'acclimate' has no attribute 'zzzz'$"):
        _ = ac.zzzz


def framed(found):
    """The columns and rows of a data frame, of pandas or of the stand-in below."""
    return list(found.columns), [list(line) for line in (found.values if hasattr(found, "values") else found.data)]


@pytest.fixture(params=["stand-in", "pandas"])
def pandas(request, monkeypatch):
    if request.param == "pandas":
        return pytest.importorskip("pandas", reason="pip install pandas")
    made = SimpleNamespace(DataFrame=lambda data, columns: SimpleNamespace(data=data, columns=columns))
    monkeypatch.setitem(sys.modules, "pandas", made)


def test_results_become_data_frames(pandas):
    table = ac.Table(({**row(), "settings": ["rounds=2", "seed=1"]}, row(adapter="tent", accuracy=0.5)))
    columns, rows = framed(table.to_dataframe())
    assert columns == list(row()) and len(rows) == 2
    assert dict(zip(columns, rows[0], strict=True)) == {**row(), "settings": "rounds=2 seed=1"}
    assert [r[columns.index("accuracy")] for r in rows] == [0.812, 0.5]
    assert framed(ac.Table().to_dataframe()) == (list(row()), [])
    one = difference("original", "last", {0: [0.5, 0.75]}, {0: [0.25, 0.5]})
    columns, rows = framed(Comparison("a", "b", (one,), {}).to_dataframe())
    at = dict(zip(columns, rows[0], strict=True))
    assert (at["stream"], at["first"], at["second"], at["mean"], at["clients"]) == ("original", 0.625, 0.375, 0.25, 2)
    errors = {"adapter": "none", "stream": "original", "estimator": "ac", "clients": 3, "error": 0.1}
    errors |= {"curve_error": 0.2, "bias": 0.05, "draw": 0.01}
    assert framed(Estimates(rows=(errors,)).to_dataframe()) == (list(errors), [list(errors.values())])


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)  # as where it is not installed
    with pytest.raises(
        ImportError, match=r"^to_dataframe\(\) needs a package that is not installed: pip install pandas$"
    ):
        ac.Table((row(),)).to_dataframe()
