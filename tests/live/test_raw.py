"""Raw rows of a table, and texts: a live model reads them as its training data was read, from a file or a request."""

import asyncio
import csv
import json
import random
import struct
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import acclimate as ac
from acclimate import data
from acclimate.cli.main import app
from acclimate.data.raw import RawRows, RawTexts, RawWindows, of_card
from acclimate.data.world import Feature, Scale
from acclimate.running.export import _about
from acclimate.serving import checkpoint, raw_inputs
from acclimate.serving.app import Front
from acclimate.serving.host import Host
from acclimate.serving.protocol import Denied, samples
from acclimate.serving.service import Service

NAMES = ("site", "age", "smokes", "code", "weight", "outcome")


def rows(count: int = 240) -> list[list[str]]:
    """Visits: numbers of which some are missing, words, and words that look like numbers."""
    g = random.Random(0)
    found = []
    for i in range(count):
        age = g.uniform(20, 90)
        cell = "" if g.random() < 0.1 else f"{age:.1f}"
        word = g.choice(("yes", "no", "NA"))
        code = "x" if i % 7 == 0 else g.choice("12")
        found.append([g.choice(("north", "south")), cell, word, code, f"{g.gauss(70, 9):.2f}", str(age > 55)])
    return found


def write(path: Path, names, table) -> Path:
    with path.open("w", newline="") as f:
        csv.writer(f).writerows([names, *table])
    return path


def fit_of(record: data.Dataset, model) -> ac.Fit:
    work = ac.methods.FedAvg(work=ac.Work(epochs=1, batch=16))
    return ac.train(ac.Experiment(data=record, model=model, method=work, rounds=1, backend=ac.backends.Vmap()))


@pytest.fixture(scope="module")
def visits(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("table") / "visits.csv", NAMES, rows())


@pytest.fixture(scope="module")
def fit(visits) -> ac.Fit:
    record = data.Table(file=str(visits), label="outcome", client="site")
    return fit_of(record, ac.models.MLP(hidden=(8,), norm="batch"))


@pytest.mark.parametrize("scale", ["all", "none", "client"])
def test_raw_rows_become_the_inputs_of_training(visits, scale):
    record = data.Table(file=str(visits), label="outcome", client="site", scale=scale)
    world = record.world()
    for client in range(2):
        own = torch.cat([world.train[client], world.val[client], world.test[client]])
        raw = record.raw(world, client)
        assert np.array_equal(raw.file(visits)[own], world.examples.x[own].numpy())
        assert of_card(json.loads(json.dumps(raw.card()))) == raw


def test_a_number_that_was_never_missing_is_filled_with_its_median_too(visits):
    record = data.Table(file=str(visits), label="outcome", client="site", scale="none")
    world = record.world()
    train, names = torch.cat(world.train), [f.column for f in world.examples.features if f.kind == "number"]
    weight = [f.column for f in world.examples.features].index("weight")
    raw = record.raw(world, 0).of({"age": [30.0], "smokes": ["no"], "code": ["1"], "weight": ["NA"]}, "here")
    assert (
        names == ["age", "weight"]
        and raw[0, weight] == world.examples.x[train, weight].sort().values[(len(train) - 1) // 2]
    )


def test_cells_that_say_nothing_or_something_new():
    features = (
        Feature("age", fill=40.0),
        Feature("age", "missing"),
        Feature("code", "word", "1"),
        Feature("code", "word", "x"),
        Feature("weight", fill=70.0),
    )
    raw = RawRows(features)
    table = {
        "note": ["?"] * 4,
        "code": ["x", " 1 ", "new", None],
        "age": ["30", "NA", None, 50],
        "weight": ["", 1, 2.5, float("nan")],
    }
    want = [[30, 0, 0, 1, 70], [40, 1, 1, 0, 1], [40, 1, 0, 0, 2.5], [50, 0, 0, 0, 70]]
    assert raw.of(table, "here").tolist() == want
    scaled = RawRows(features, Scale((10.0, 0, 0, 0, 20), (5.0, 1, 1, 1, 2)))
    assert scaled.of(table, "here")[0].tolist() == [4, 0, 0, 1, 25]
    assert raw.columns == {"age": "number", "code": "word", "weight": "number"}


def test_words_that_a_reader_made_numbers_or_truth_of_are_those_of_training():
    """A column of 1, 2 and 3+ is one of numbers in a few new rows, and one of floats where a cell is missing."""
    words = {"grade": ("1", "3+"), "rate": ("2.0", "2.5"), "smokes": ("true", "unknown"), "owns": ("True", "x")}
    raw = RawRows(tuple(Feature(column, "word", word) for column, known in words.items() for word in known))
    table = {
        "grade": np.array([1.0, np.nan, 3.0, np.inf]),
        "rate": [2, 2.5, None, 10**400],
        "smokes": np.array([True, False, True, False]),
        "owns": [True, False, None, "True"],
    }
    want = [
        [1, 0, 1, 0, 1, 0, 1, 0],
        [0, 0, 0, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 1, 0],
    ]
    assert raw.of(table, "here").tolist() == want


def test_dates_of_an_array_are_those_of_a_file():
    raw = RawRows((Feature("day", "date", "2024-01-01"),))
    days = ["2024-01-03", "2024-02-01"]
    for kind in ("datetime64[ns]", "datetime64[D]", object, str):
        assert raw.of({"day": np.array(days, kind)}, "here").tolist() == [[2], [31]]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"aeg": [1.0], "code": ["x"]}, r"here: has no column 'age' \(is it 'aeg'\?\); the model takes age, code"),
        ({"age": ["1", "old"], "code": ["x", "x"]}, "'age' holds 'old' in row 2, and is a column of numbers"),
        ({"age": ["1", "inf"], "code": ["x", "x"]}, "infinite in row 2"),
        ({"age": [1e39], "code": ["x"]}, "'age' is beyond 32 bits in row 1"),
        ({"age": [10**400], "code": ["x"]}, "'age' has a number beyond 32 bits"),
        ({"age": [1.0, 2.0], "code": ["x"]}, "columns have age 2, code 1 rows"),
        ({"age": [[1.0, 2.0]], "code": ["x"]}, r"'age' has shape \(1, 2\)"),
    ],
)
def test_rows_that_cannot_be(table, message):
    with pytest.raises(ValueError, match=message):
        RawRows((Feature("age"), Feature("code", "word", "x"))).of(table, "here")


def test_a_live_model_takes_rows_and_keeps_how_to_read_them(fit, tmp_path):
    live = fit.deploy(0, ac.adapters.NoAdapt())
    table = {name: [row[i] for row in rows(8)] for i, name in enumerate(NAMES)}
    del table["outcome"]  # nobody knows it yet
    x = live.raw.of(table, "x")
    assert torch.equal(live(table).probabilities, live(x).probabilities)
    live.save(tmp_path / "live")
    again = ac.load_live(tmp_path / "live")
    assert again.raw == live.raw and torch.equal(again.predict(table), live.predict(x))
    assert torch.equal(ac.join(fit, table, ac.adapters.NoAdapt()).predict(table), live.predict(x))
    named = np.array(
        [(30.0, "yes", "1", 70.0)] * 3, [("age", "f4"), ("smokes", "U3"), ("code", "U1"), ("weight", "f4")]
    )
    assert torch.equal(live.predict(named), live.predict({n: named[n] for n in named.dtype.names}))
    with pytest.raises(ValueError, match="live: x is a list, expected a data frame or a dict of columns"):
        live([[1.0, 2.0]])


def test_words_that_are_new_are_named_with_those_that_are_known(tmp_path):
    features = (Feature("age", fill=40.0), Feature("code", "word", "1"), Feature("code", "word", "x"))
    rows = [("30", "x"), ("31", "new"), ("", "1"), ("9", "NA"), ("9", "odd"), ("9", "new")]
    file = write(tmp_path / "rows.csv", ("age", "code"), rows)
    (said,) = RawRows(features).remarks(file)
    assert said == "'code' has new, odd (3 rows), which no training row had and counts as unknown; known are 1, x"
    assert RawRows(features).remarks(write(file, ("age", "code"), rows[:1])) == []
    assert RawRows(features[:1]).remarks(file) == []


@pytest.mark.parametrize("command", ["predict", "join"])
def test_new_rows_with_new_words_are_answered_and_said(fit, tmp_path, command):
    fit.save(tmp_path / "run")
    fit.deploy(0, ac.adapters.NoAdapt()).save(tmp_path / "live")
    file = write(tmp_path / "new.csv", ("age", "smokes", "code", "weight"), [("30", "pipe", "1", "70")] * 3)
    words = {
        "predict": [str(tmp_path / "live"), str(file)],
        "join": [str(tmp_path / "run"), str(file), "adapters=none"],
    }
    done = CliRunner().invoke(app, [command, *words[command], "-o", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (
        "'smokes' has pipe (3 rows), which no training row had and counts as unknown; known are no, yes" in done.output
    )


def test_a_live_model_says_once_what_words_of_a_frame_are_new(fit, caplog):
    live = fit.deploy(0, ac.adapters.NoAdapt())
    table = {"age": [30, 31, 32], "smokes": ["pipe", "yes", "pipe"], "code": ["1", "x", "x"], "weight": [70, 71, 72]}
    live({**table, "smokes": ["yes", "no", None]})
    assert not caplog.records
    live(table)
    assert live.predict(table).shape == (3, 2) and live.predict({**table, "smokes": ["a", "b", "c"]}).shape == (3, 2)
    (said,) = caplog.messages
    assert (
        said == "live: 'smokes' has pipe (2 rows), which no training row had and counts as unknown; known are no, yes"
    )
    live({**table, "code": ["3", "x" * 99, "\n"]})
    assert len(caplog.messages) == 2 and f"'code' has 3, '{'x' * 40}' (2 rows)" in caplog.messages[1]


def test_predict_reads_a_table(fit, visits, tmp_path):
    live = fit.deploy(0, ac.adapters.NoAdapt())
    live.save(tmp_path / "live")
    words = ["predict", str(tmp_path / "live"), str(visits), "-o", str(tmp_path / "a.csv"), "--frozen"]
    assert CliRunner().invoke(app, words).exit_code == 0
    found = [line.split(",")[1] for line in (tmp_path / "a.csv").read_text().splitlines()[1:]]
    assert found == list(live(live.raw.file(visits)).labels) and len(found) == 240
    other = write(tmp_path / "other.csv", ("a", "b"), [("1", "2")])
    failed = CliRunner().invoke(app, ["predict", str(tmp_path / "live"), str(other), "-o", str(tmp_path / "b.csv")])
    assert "has no column 'age'" in str(failed.exception) and not (tmp_path / "b.csv").exists()


# --- texts -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def phrases() -> ac.Fit:
    return fit_of(data.Phrases(each=40), ac.models.TextNet(dim=8, layers=1))


def test_texts_become_the_ids_of_training(phrases, tmp_path):
    live = phrases.deploy(0, ac.adapters.NoAdapt())
    x = phrases.world.examples.x[phrases.world.test[0]][:6]
    texts = data.Phrases().texts(x)
    assert torch.equal(live.predict(texts), live.predict(x))
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    write(tmp_path / "new.csv", ("n", "text"), [[i, t] for i, t in enumerate(texts)])
    for name in ("new.txt", "new.csv"):
        assert np.array_equal(live.raw.file(tmp_path / name), x.numpy())
    assert of_card(json.loads(json.dumps(live.raw.card()))) == live.raw == RawTexts(64)
    with pytest.raises(ValueError, match="live: x is a str, expected a list of texts"):
        live("one text")
    with pytest.raises(ValueError, match="live: text 2 is empty"):
        live(["one", " "])
    with pytest.raises(ValueError, match="live: text 1 is a int"):
        live([3])
    with pytest.raises(ValueError, match="has no column 'text' of texts; its columns are a"):
        live.raw.file(write(tmp_path / "other.csv", ("a",), [["b"]]))


def test_a_tokenizer_goes_with_the_model(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "good": 1, "bread": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "t.json"))
    write(tmp_path / "r.csv", ("text", "label"), [["good bread", "a"], ["bread", "b"]] * 10)
    record = data.Text(file=str(tmp_path / "r.csv"), tokenizer=str(tmp_path / "t.json"), length=3)
    raw = record.raw(record.world(), 0)
    (tmp_path / "t.json").unlink()
    again = of_card(json.loads(json.dumps(raw.card())))
    assert again.of(["good cold bread", "bread"], "here").tolist() == [
        [2, 1, 3],
        [3, 0, 0],
    ]  # id 0 is no padding: plus 1


@pytest.mark.parametrize(
    ("scale", "says"), [("client", "not in the model: give numbers less"), ("all", "inside the model: give inputs as")]
)
def test_an_exported_model_says_whether_the_scale_is_in_it(visits, scale, says):
    record = data.Table(file=str(visits), label="outcome", client="site", scale=scale)
    about = _about(fit_of(record, ac.models.MLP(hidden=(8,))), 0, "last", "float32", None)
    assert about["normalisation"].startswith(says) and bool(about["mean"]) == (scale == "all")


# --- over HTTP -------------------------------------------------------------------------------------------------------


def asked(fit: ac.Fit, folder: Path, *bodies: dict | tuple[bytes, int]) -> list[httpx.Response]:
    """What a server without sockets replies to requests, and the model's metadata last."""

    async def go() -> list[httpx.Response]:
        lives = [fit.deploy(c, ac.adapters.NoAdapt()) for c in range(2)]
        checkpoint.begin(folder, lives, "visits")
        app = Front(Service(Host(lives), folder), "visits").application()
        transport, base = httpx.ASGITransport(app=app), "/v2/models/visits"
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
        ):
            replies = []
            for body in bodies:
                if isinstance(body, tuple):
                    head = {"Inference-Header-Content-Length": str(body[1])}
                    replies.append(await http.post(f"{base}/versions/1/infer", content=body[0], headers=head))
                else:
                    replies.append(await http.post(f"{base}/versions/1/infer", json=body))
            return [*replies, await http.get(base)]

    return asyncio.run(go())


def test_a_reply_says_what_words_are_new_and_the_log_does_not(fit, tmp_path, caplog):
    known = [tensor("age", "FP64", [31.5]), tensor("weight", "INT64", [60]), tensor("code", "BYTES", ["x"])]
    caplog.set_level("DEBUG")
    old, new, _ = asked(
        fit, tmp_path, *({"inputs": [*known, tensor("smokes", "BYTES", [word])]} for word in ("no", "pipe"))
    )
    assert old.status_code == new.status_code == 200 and "unknown" not in old.json()["parameters"]
    said = "'smokes' has pipe (1 row), which no training row had and counts as unknown; known are no, yes"
    assert new.json()["parameters"]["unknown"] == said
    assert "pipe" not in caplog.text
    assert not any(b"pipe" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def tensor(name: str, datatype: str, values: list, **more) -> dict:
    return {"name": name, "datatype": datatype, "shape": [len(values)], "data": values, **more}


def probabilities(reply: httpx.Response) -> np.ndarray:
    assert reply.status_code == 200, reply.text
    found = next(o for o in reply.json()["outputs"] if o["name"] == "probabilities")
    return np.array(found["data"], np.float32).reshape(found["shape"])


def test_a_server_takes_columns_as_tensors(fit, tmp_path):
    table = {"age": [31.5, None], "smokes": ["yes", "often"], "code": ["x", ""], "weight": [60.0, 71.5]}
    kinds = {"age": "FP64", "smokes": "BYTES", "code": "BYTES", "weight": "FP32"}
    listed = {"inputs": [tensor(n, kinds[n], v) for n, v in table.items()]}
    parts = {n: b"".join(struct.pack("<I", len(v)) + v.encode() for v in table[n]) for n in ("smokes", "code")}
    parts |= {"age": np.array([31.5, np.nan]).tobytes(), "weight": np.array([60.0, 71.5], np.float32).tobytes()}
    heads = [
        {"name": n, "datatype": kinds[n], "shape": [2, 1], "parameters": {"binary_data_size": len(parts[n])}}
        for n in kinds
    ]
    head = json.dumps({"inputs": heads}).encode()
    binary = (head + b"".join(parts[n] for n in kinds), len(head))
    first, second, about = asked(fit, tmp_path, listed, binary)
    want = fit.deploy(1, ac.adapters.NoAdapt())(table).probabilities.numpy()
    assert np.abs(probabilities(first) - want).max() < 1e-6 and np.abs(probabilities(second) - want).max() < 1e-6
    assert [(i["name"], i["datatype"]) for i in about.json()["parameters"]["raw_inputs"]] == [
        ("age", "FP64"),
        ("smokes", "BYTES"),
        ("code", "BYTES"),
        ("weight", "FP64"),
    ]


def test_a_model_whose_data_refuses_what_is_missing_refuses_it_too(visits, tmp_path):
    """Live, from its folder, of a file and over HTTP. Folders of before say nothing of it, and fill."""
    whole = [[*row[:1], row[1] or "40", row[2].replace("NA", "no"), *row[3:]] for row in rows()]
    record = data.Table(
        file=str(write(tmp_path / "whole.csv", NAMES, whole)), label="outcome", client="site", missing="refuse"
    )
    fit = fit_of(record, ac.models.MLP(hidden=(8,)))
    live = fit.deploy(0, ac.adapters.NoAdapt())
    live.save(tmp_path / "live")
    good = {"age": [31.5, 40], "smokes": ["yes", "often"], "code": ["x", "1"], "weight": [60.0, 71.5]}
    why = "and the model's data was read with data.missing=refuse; fill what is missing first"
    for again in (live, ac.load_live(tmp_path / "live")):
        assert again.predict(good).shape == (2, 2)
        with pytest.raises(
            ValueError, match=f"live: the column 'age' has no value in 1 row, the first .* row 2, {why}"
        ):
            again({**good, "age": [31.5, None]})
    with pytest.raises(ValueError, match="here: the column 'smokes' has no value in 2 rows, the first of them row 1"):
        live.raw.of({**good, "smokes": ["NA", ""]}, "here")
    with pytest.raises(ValueError, match="visits.csv: the column 'age' has no value in"):
        live.raw.file(visits)
    inputs = [tensor(n, "BYTES" if n in ("smokes", "code") else "FP64", v) for n, v in good.items()]
    gap = [tensor("age", "FP64", [None, 40]), *inputs[1:]]
    first, second, _ = asked(fit, tmp_path / "served", {"inputs": inputs}, {"inputs": gap})
    assert probabilities(first).shape == (2, 2) and second.status_code == 400
    assert second.json()["error"] == (f"inputs: the column 'age' has no value in 1 row, the first of them row 1, {why}")
    card = live.raw.card()
    assert card.pop("missing") == "refuse"
    assert np.isfinite(of_card(card).of({**good, "age": [31.5, None]}, "here")).all()
    arrays = data.of(np.random.default_rng(0).random((60, 2)), [0, 1] * 30, clients=2, missing="refuse")
    assert arrays.raw(arrays.world(), 0).refuses


def test_columns_that_cannot_be_are_refused(fit, tmp_path):
    whole = {
        "age": ("FP64", [31.5]),
        "smokes": ("BYTES", ["yes"]),
        "code": ("BYTES", ["x"]),
        "weight": ("FP32", [60.0]),
    }

    def changed(**other) -> dict:
        return {"inputs": [tensor(n, *v) for n, v in {**whole, **other}.items() if v is not None]}

    bad = {
        "inputs: has no column 'age'": changed(age=None),
        "inputs[0].data: 'old' must be one of numbers": changed(age=("FP64", ["old"])),
        "inputs: the column 'age' holds 'old' in row 1": changed(age=("BYTES", ["old"])),
        "inputs[1].datatype: 'TEXT' must be one of BYTES": changed(smokes=("TEXT", ["yes"])),
        "inputs[0].shape: [0] must be [N] or [N, 1]": changed(age=("FP64", [])),
        "inputs[0].data: 2 values must be 1": {"inputs": [tensor("age", "FP64", [1.0, 2.0]) | {"shape": [1]}]},
        "inputs: columns have age 2": changed(age=("FP64", [1.0, 2.0])),
        "inputs[1].name: 'age' must be a name, and no other": {"inputs": [tensor("age", "FP64", [1.0])] * 2},
        "inputs[0].data: a str must be a list": {"inputs": [tensor("age", "FP64", [1.0]) | {"data": "1"}]},
    }
    binary = tensor("age", "BYTES", ["a"]) | {"parameters": {"binary_data_size": 6}}
    for rest, says in (
        (b"\xff\0\0\0ab", "the length of text 1 goes beyond its bytes"),
        (b"\x02\0\0\0\xff\xff", "text 1 is not UTF-8"),
        (b"ab", "binary_data_size: 6 must be from 0 to 2"),
        (b"\x02\0\0\0abc", "1 bytes behind the last tensor"),
    ):
        head = json.dumps({"inputs": [binary]}).encode()
        bad[says] = (head + rest, len(head))
    for says, reply in zip(bad, asked(fit, tmp_path, *bad.values()), strict=False):
        assert reply.status_code == 400 and says in reply.json()["error"], reply.text


def test_columns_without_end_are_refused_at_once():
    raw = RawRows((Feature("age", "number"),))
    other = [tensor(f"agx{i}", "BOOL", [1]) for i in range(1001)]
    assert raw_inputs.read([tensor("age", "FP64", [3.0]), *other[1:]], b"", raw, 1).tolist() == [[3.0]]
    with pytest.raises(ValueError, match="inputs: 1002 tensors must be at most 1001; the model takes 1"):
        raw_inputs.read([tensor("age", "FP64", [3.0]), *other], b"", raw, 1)
    with pytest.raises(ValueError, match=r"inputs\[0\].name: 'a{40}' must be a name, and no other input's"):
        raw_inputs.read([tensor("a" * 201, "BOOL", [1])], b"", raw, 1)


def test_a_server_takes_texts(phrases, tmp_path):
    texts = ["wake me at 6 am", "wie spät ist es"]
    first, second, about = asked(
        phrases,
        tmp_path,
        {"inputs": [tensor("text", "BYTES", texts)]},
        {"inputs": [tensor("text", "BYTES", ["", "a"])]},
    )
    want = phrases.deploy(1, ac.adapters.NoAdapt())(texts).probabilities.numpy()
    assert np.abs(probabilities(first) - want).max() < 1e-6
    assert second.status_code == 400 and second.json()["error"] == "inputs[0].data: text 1 is empty"
    assert about.json()["parameters"]["raw_inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]


def test_a_request_for_windows_has_so_many_windows_and_not_readings():
    raw = RawWindows(("a", "b"), 6)
    inputs = [tensor("a", "FP64", list(range(17))), tensor("b", "FP32", [0.5] * 17)]
    x = raw_inputs.read(inputs, b"", raw, 3)
    assert x.shape == (2, 2, 6) and x[1, 0].tolist() == [6, 7, 8, 9, 10, 11]
    inputs = [tensor("a", "FP64", [1.0] * 19), tensor("b", "FP32", [0.5] * 19)]
    with pytest.raises(ValueError, match=r"inputs\[0\].shape: \[19\] must be \[N\] or \[N, 1\] with N from 1 to 18"):
        raw_inputs.read(inputs, b"", raw, 3)


def test_token_ids_may_be_unsigned(phrases):
    live = phrases.deploy(0, ac.adapters.NoAdapt())
    ids = live.raw.of(["a phrase", "another"], "here")
    want = live.predict(ids)
    for kind in (torch.int16, torch.int64):  # of which the data set has the first, and torch's layers take the second
        assert torch.equal(phrases.module(0)(torch.from_numpy(ids).to(kind)).detach(), want)
    for kind in (np.uint16, np.uint32, np.uint64, np.int64):
        assert torch.equal(live.predict(ids.astype(kind)), want)
    with pytest.raises(ValueError, match="token ids from 0 to 60000"):
        live.predict(np.where(ids == ids.max(), 60_000, ids).astype(np.uint16))


JUNK = (
    None,
    True,
    -1,
    0,
    2,
    1e400,
    "",
    "NA",
    "x" * 300,
    "\ud800",
    [],
    [[]],
    [1.0],
    ["yes"],
    {},
    {"binary_data_size": 3},
    10**400,
)


def test_whatever_comes_is_samples_or_a_refusal(fit):
    live, g = fit.deploy(0, ac.adapters.NoAdapt()), random.Random(1)
    whole = [tensor("age", "FP64", [31.5]), tensor("smokes", "BYTES", ["yes"]), tensor("code", "BYTES", ["x"])]
    whole.append(tensor("weight", "INT64", [60]))
    done = {"refused": 0, "read": 0}
    for _ in range(1500):
        inputs = json.loads(json.dumps(whole))
        for _ in range(g.randint(0, 2)):
            one = g.choice(inputs)
            one[g.choice(("name", "datatype", "shape", "data", "parameters"))] = g.choice(
                (*JUNK, "age", "FP32", "BYTES")
            )
        try:
            x = samples(
                {"inputs": inputs}, g.randbytes(g.choice((0, 0, 3, 8))), live.worker.task, live.dtype, 4, live.raw
            )
        except Denied as e:
            done["refused"] += e.status == 400 and len(str(e).encode()) > 0  # half characters could not be sent
        else:
            done["read"] += 1
            assert x.shape[1:] == live.worker.task.shape and bool(torch.isfinite(x).all())
    assert sum(done.values()) == 1500 and min(done.values()) > 100


def test_whole_numbers_and_truth_are_taken_as_training_took_them():
    x = np.random.default_rng(0).integers(-9, 9, (60, 3))
    data = ac.data.of(x, x[:, 0] > 0, clients=2)
    fit = ac.train(ac.Experiment(data=data, method=ac.methods.FedAvg(work=ac.Work(epochs=1, batch=8)), rounds=1))
    live = fit.deploy(0, ac.adapters.NoAdapt())
    want = live.predict(x.astype(np.float32))
    for given in (x, x.astype(np.int16), torch.from_numpy(x)):
        assert torch.equal(live.predict(given), want)
    assert torch.equal(live.predict(x > 0), live.predict((x > 0).astype(np.float32)))
    with pytest.raises(ValueError, match="x is of type torch.uint8, and these inputs are no pixels"):
        live.predict((x + 9).astype(np.uint8))
