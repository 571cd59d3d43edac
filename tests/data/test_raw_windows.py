"""New readings of a series become the windows that a live model takes."""

import csv

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import acclimate as ac
from acclimate.cli.join import names_of
from acclimate.cli.main import app
from acclimate.data import Windows, raw
from acclimate.serving import raw_inputs


def series(rows=240):
    """Two people; a class for 20 readings at a time."""
    at = np.arange(rows)
    return {
        "who": np.repeat(["a", "b"], rows // 2),
        "u": np.sin(at / (1 + at // 20 % 2)),
        "v": at * 1.0,
        "state": np.where(at // 20 % 2, "on", "off"),
    }


def written(table, name):
    rows = zip(*table.values(), strict=True)
    with open(name, "w") as file:
        file.write("\n".join(",".join(map(str, row)) for row in (table, *rows)) + "\n")
    return raw.Path(name)


def test_readings_become_windows_that_do_not_overlap():
    found = raw.RawWindows(("u", "v"), 3)
    table = {"v": [0, 1, None, 3, 4, 5, 6], "u": [None, 11, 12, 13, 14, 15, 16], "more": list("abcdefg")}
    x = found.of(table, "here")
    assert x.tolist() == [[[11, 11, 12], [0, 1, 1]], [[13, 14, 15], [3, 4, 5]]] and x.dtype == np.float32
    scaled = raw.of_card({"windows": {"sensors": ["u", "v"], "window": 3}, "scale": [[11, 1], [2, 4]]})
    assert scaled.of(table, "here")[1].tolist() == [[1, 1.5, 2], [0.5, 0.75, 1]]
    assert raw.of_card(scaled.card()) == scaled and raw.of_card(found.card()) == found
    with pytest.raises(ValueError, match="here: has 2 readings, fewer than the model's window of 3"):
        found.of({"u": [1, 2], "v": [1, 2]}, "here")
    with pytest.raises(ValueError, match="here: has no column 'v'; the model takes u, v, and given are u"):
        found.of({"u": [1, 2, 3]}, "here")
    with pytest.raises(ValueError, match="here: the column 'u' holds 'x' in row 2, and is a column of numbers"):
        found.of({"u": [1, "x", 3], "v": [1, 2, 3]}, "here")


@pytest.mark.parametrize("scale", ["all", "client"])
def test_a_live_model_takes_a_file_of_readings(scale, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = series()
    data = Windows.of(table, label="state", client="who", window=10, stride=10, scale=scale)
    world = data.world()
    for client in (0, 1):
        found = data.raw(world, client)
        own = {k: v[table["who"] == "ab"[client]] for k, v in table.items() if k != "state"}
        rows = np.flatnonzero(world.examples.users.numpy() == client)
        assert np.allclose(found.of(own, "here"), world.examples.x[rows].numpy(), atol=1e-5)
        assert np.array_equal(found.file(written(own, "own.csv")), found.of(own, "here"))
    fit = ac.train(ac.Experiment(data=data, method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=4)), rounds=1))
    live = fit.deploy(1, ac.adapters.NoAdapt())
    x = fit.world.examples.x[rows]
    live.save("live")
    assert torch.equal(ac.load_live("live").predict(own), live.predict(x)) and len(live.predict(own)) == 12
    assert ac.load_live("live").raw == live.raw == found
    assert raw_inputs.described(live.raw)[0] == {"name": "u", "datatype": "FP64", "shape": [-1]}
    sent = [{"name": n, "datatype": "FP64", "shape": [120], "data": own[n].tolist()} for n in ("v", "u")]
    assert raw_inputs.given(sent, live.raw)
    assert np.array_equal(raw_inputs.read(sent, b"", live.raw, 999), found.of(own, "here"))


def test_windows_never_cross_series(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = raw.RawWindows(("u",), 2, client="who", time="t")
    table = {"who": list("babaab"), "t": [0, 5, 1, 6, 7, 2], "u": [1, 10, 2, None, 30, 3]}
    assert found.of(table, "here").tolist() == [[[1, 2]], [[10, 10]]]  # b comes first; what is left over is no window
    path = written({**table, "u": [1, 10, 2, "", 30, 3]}, "two.csv")
    assert found.file(path).tolist() == [[[1, 2]], [[10, 10]]]
    assert names_of(path, 2, found) == ["b/0", "a/0"] and names_of(path, 2) == ["0", "1"]
    alone = {"who": ["b"] * 4, "t": [1, 1, 2, 3], "u": [1, 2, 3, 4]}
    assert found.of(alone, "here").tolist() == [[[1, 2]], [[3, 4]]]
    assert names_of(written(alone, "one.csv"), 2, found) == ["0", "1"]
    assert found.of({"u": [1, 2, 3, 4]}, "here").tolist() == [[[1, 2]], [[3, 4]]]
    with pytest.raises(
        ValueError, match="here: has 1 readings of who 'a', which are fewer than the model's window of 2"
    ):
        found.of({"who": ["b", "b", "a"], "u": [1, 2, 3]}, "here")
    with pytest.raises(ValueError, match="here: 'who' is missing in row 2; fill it"):
        found.of({"who": ["b", None, "a"], "u": [1, 2, 3]}, "here")


def test_rows_of_a_series_are_in_the_order_of_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = raw.RawWindows(("u",), 2, client="who", time="t")
    with pytest.raises(
        ValueError, match="'t' goes backwards in row 4 of client 'a'; sort the rows by time, or give one"
    ):
        found.of({"who": list("baba"), "t": [0, 5, 1, 4], "u": [1, 2, 3, 4]}, "here")
    with pytest.raises(
        ValueError, match="row 3; sort the rows by time, or add the column 'who', which tells series apart"
    ):
        found.of({"t": [0, 5, 1, 6], "u": [1, 2, 3, 4]}, "here")
    with pytest.raises(ValueError, match="row 2; sort the rows by time, or give one table per series"):
        raw.RawWindows(("u",), 2, time="t").of({"t": [5, 0], "u": [1, 2]}, "here")
    table = {"t": ["2024-05-31 09:00", "2024-05-31 10:00"], "u": [1, 2]}
    assert found.file(written(table, "dates.csv")).tolist() == [[[1, 2]]]
    assert found.file(written({"t": [9.5, 10.5], "u": [1, 2]}, "numbers.csv")).tolist() == [[[1, 2]]]  # no words
    with pytest.raises(ValueError, match="'t' goes backwards in row 2"):
        found.file(written({"t": table["t"][::-1], "u": [1, 2]}, "back.csv"))


def test_series_are_told_apart_by_an_index():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"who": list("abab"), "u": [1, 10, 2, 20]}).set_index("who")
    assert raw.RawWindows(("u",), 2, client="who").of(frame, "here").tolist() == [[[1, 2]], [[10, 20]]]


def test_a_card_keeps_the_columns_of_series_and_time():
    plain = raw.RawWindows(("u",), 2)
    assert plain.card() == {"windows": {"sensors": ["u"], "window": 2}}  # as earlier versions wrote it
    found = raw.RawWindows(("u",), 2, client="who", time="t")
    assert found.card()["windows"] == {"sensors": ["u"], "window": 2, "client": "who", "time": "t"}
    assert raw.of_card(found.card()) == found


def test_predict_answers_series_by_series(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = series(160)
    data = Windows.of(table, label="state", client="who", window=8, stride=8)
    method = ac.methods.FedAvg(work=ac.Work(epochs=1, batch=2))
    live = ac.train(ac.Experiment(data=data, method=method, rounds=1)).deploy(0, ac.adapters.NoAdapt())
    live.save("live")
    mixed = np.argsort(np.arange(160) % 80, kind="stable")
    written({k: v[mixed] for k, v in table.items()}, "mixed.csv")
    done = CliRunner().invoke(app, ["predict", "live", "mixed.csv"])
    assert done.exit_code == 0, done.output
    with open("answers.csv") as file:
        rows = list(csv.DictReader(file))
    assert [r["sample"] for r in rows] == [f"{who}/{i}" for who in "ab" for i in range(10)]
    alone = live.predict({k: v[table["who"] == "b"] for k, v in table.items()}).softmax(-1)
    assert np.allclose([float(r["on"]) for r in rows[10:]], alone[:, live.classes.index("on")], atol=1e-5)
    sent = [{"name": n, "datatype": "FP64", "shape": [160], "data": table[n][mixed].tolist()} for n in ("v", "u")]
    sent.append({"name": "who", "datatype": "BYTES", "shape": [160], "data": table["who"][mixed].tolist()})
    assert np.array_equal(raw_inputs.read(sent, b"", live.raw, 99), live.raw.file(raw.Path("mixed.csv")))
