"""New readings of a series become the windows that a live model takes."""

import numpy as np
import pytest
import torch

import acclimate as ac
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
