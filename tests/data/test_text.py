"""Texts from a user's file and the embedded ones: what is read, how it is dealt, and what is refused."""

import hashlib
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from acclimate import data
from acclimate.core import Task
from acclimate.data import grammar
from acclimate.data import text as reading
from acclimate.data.tokenizing import Tokenizing
from acclimate.experiment import Experiment
from acclimate.models import TextNet
from acclimate.ops.text import cut, decode, encode

ROWS = [("1", "good  bread", "5", "north"), ("2", "stale, and cold", "1", "south"), ("3", "Käse", "10", "north")]
CSV = 'id,body,stars,shop\n1,good  bread,5,north\n2,"stale, and cold",1,south\n\n3,Käse,10,north\n'


@pytest.fixture(autouse=True)
def here(own_machine, tmp_path):
    return tmp_path


def reviews(content=CSV, name="reviews.csv", **more):
    with open(name, "wb") as f:
        f.write(content if isinstance(content, bytes) else content.encode())
    return data.Text(**{"file": name, "text": "body", "label": "stars", "length": 16, **more})


# --- ids -----------------------------------------------------------------------------------------------------------


def test_a_text_is_its_bytes_and_one_more():
    x = encode(["ab", "", "é!"], 4)
    assert x.tolist() == [[98, 99, 0, 0], [0, 0, 0, 0], [0xC3 + 1, 0xA9 + 1, 34, 0]] and x.dtype == "int16"
    assert decode(x) == ["ab", "", "é!"]
    assert cut("aé", 2) == b"a" and cut("aé", 3) == "aé".encode()  # no character is cut in two


# --- files ---------------------------------------------------------------------------------------------------------


def test_a_csv_is_read_by_its_columns():
    d = reviews(client="shop")
    e = d.load()
    assert d.texts(e.x) == [body for _, body, _, _ in ROWS] and e.x.shape == (3, 16) and e.text
    assert e.classes == ("1", "5", "10") and [e.classes[c] for c in e.y.tolist()] == ["5", "1", "10"]
    assert e.users.tolist() == [0, 1, 0] and d.fetch().user_names == ("north", "south")


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ";"), ("a.tsv", "\t")])
def test_other_marks_between_columns_are_known(name, mark):
    lines = "\ufeff" + "\n".join(mark.join(row) for row in (("body", "stars"), ("yes, please", "1"), ("no", "2")))
    assert reviews(lines, name).texts(reviews(lines, name).load().x) == ["yes, please", "no"]


def test_lines_have_their_label_in_front():
    e = reviews("__label__up so it goes\ndown\tor so  it\n\nup yes\n", "a.txt").load()
    assert e.classes == ("down", "up") and e.y.tolist() == [1, 0, 1]
    assert decode(e.x) == ["so it goes", "or so  it", "yes"]


def test_clients_are_those_of_the_column():
    content = "body,stars,shop\n" + "".join(f"text {i},{i % 2},shop {i % 3}\n" for i in range(60))
    d = reviews(content, client="shop")
    assert d.clients == 3 and [len(r) for r in d.world(0).train] == [12, 12, 12]
    assert reviews(content, client="shop", new_clients=1).clients == 2
    assert reviews(content).clients == 2 and [len(r) for r in reviews(content).world(0).train] == [18, 18]
    many = content + "".join(f"more {i},{i % 2},shop\n" for i in range(480))
    assert reviews(many).clients == 10 and [len(r) for r in reviews(many).world(0).train] == [32] * 10
    assert data.Text(file="later.csv", client="shop").clients == 0  # known once the file is there


def test_what_is_cut_is_said():
    world = reviews("body,stars\n" + "long " * 9 + ",1\n" + "short,2\n" * 9).world(0)
    assert decode(world.examples.x)[0] == "long long long l"
    assert world.notes[-1] == "1 of 10 texts fill all 16 places: what is longer is cut (data.length)"
    assert reviews("body,stars\n" + "short,2\nlong,1\n" * 9).world(0).notes == ()


def test_a_large_file_is_read_within_bounds(monkeypatch, caplog):
    content = "body,stars\n" + "".join(f"text {i},{i % 2}\n" for i in range(500))
    taken, whole = [], reading.columns.lines

    def counted(path):
        for line in whole(path):
            taken.append(line)
            yield line

    monkeypatch.setattr(reading.columns, "lines", counted)
    monkeypatch.setattr(reading, "CHUNK", 7)
    e = reviews(content, most=40).load()
    assert len(e.y) == 40 and decode(e.x)[39] == "text 39" and len(taken) <= 42
    assert "has more than 40 examples; the rest is left out (data.most)" in caplog.text


def test_rows_of_blank_cells_are_skipped_as_in_tables():
    assert len(reviews("body,stars\na,1\n\n  \n , \nb,2\nc;d,C;C\n,\n").load().y) == 3


# --- what is refused -----------------------------------------------------------------------------------------------

BAD = {
    "missing column": (
        CSV,
        {"text": "boy"},
        r"text='boy' is no column of reviews.csv, which has id, body, .*data.text=",
    ),
    "twice": ("body,body,stars\na,b,1\n", {}, r"reviews.csv: has the column 'body' twice; rename one of them"),
    "several labels": ("body,stars\na,x\nb,y\nc,x;y\n", {}, r"has 'x;y', several labels of one text; one class per te"),
    "bar of labels": ("body,stars\na,x\nb,y\nc,z | y\n", {}, r"label='stars' has 'z \| y', several labels of one te"),
    "fastText": ("__label__a hm\n__label__b __label__a x\n", {"form": "lines"}, "line 2 has several labels; one class"),
    "a folder of tokens": (CSV, {"tokenizer": "."}, "tokenizer='.' is a folder; name the file tokenizer.json in it"),
    "near": (CSV, {"text": "Bodi"}, r"which has id, body, .*; did you mean 'body'\? Set data.text="),
    "text and label": (CSV, {"text": "stars"}, r"Text: text='stars' and label='stars' are the same column; name ano"),
    "label and client": (CSV, {"client": "stars"}, r"label='stars' and client='stars' are the same.*or leave it out"),
    "missing label": (CSV, {"label": "star"}, r"label='star' is no column of reviews.csv.*Set data.label="),
    "missing client": (CSV, {"client": "town"}, r"client='town' is no column of reviews.csv.*set data.client="),
    "one class": ("body,stars\na,1\nb,1\n", {}, r"label='stars' has one class, '1', in all 2 rows.*data.label="),
    "numbers": (
        "body,stars\n" + "".join(f"a{i},{i / 7}\n" for i in range(30)),
        {},
        r"has 30 different values in 30 rows, so it is no class; numbers to predict and several labels",
    ),
    "empty text": ("body,stars\na,1\n  ,2\n", {}, r"line 3 has an empty text; fill it, remove.*data.empty=skip"),
    "empty label": ("body,stars\na,1\nb,\n", {}, r"line 3 has an empty label; fill it, remove the line$"),
    "not UTF-8": (b"body,stars\nok,1\ncaf\xe9,2\n", {}, r"line 3 is not UTF-8 \(byte 0xe9 at 3\); save .* iconv -f"),
    "cells": ("body,stars\na,1\nb,c,2\n", {}, r"line 3 has 3 cells and the header 2; quote texts that have a ','"),
    "nothing": ("body,stars\n", {}, r"has no texts below its first line"),
    "client of lines": ("1 a\n2 b\n", {"form": "lines", "client": "shop"}, r"needs columns.*data.form=csv"),
    "folder": (CSV, {"file": "."}, r"file='.' is a folder; it must name your CSV file"),
    "no file": (CSV, {"file": ""}, r"file='' must name your CSV file .* set data.file="),
    "no tokenizer": (CSV, {"tokenizer": "t.json"}, r"tokenizer='t.json' is not there .* your JSON file of the pack"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_in_a_sentence(name):
    content, settings, sentence = BAD[name]
    with pytest.raises((ValueError, FileNotFoundError), match=sentence):
        reviews(content, **settings).world(0)


def test_a_line_without_end_is_not_read_whole(monkeypatch):
    monkeypatch.setattr(reading.columns, "LONGEST", 100)
    with pytest.raises(ValueError, match="line 2 is longer than 100 bytes; is it a file of text"):
        reviews("body,stars\n" + "a" * 10_000).load()


def test_settings_are_checked():
    with pytest.raises(ValueError, match="length=0 must be a whole number between 1 and 65536"):
        data.Text(length=0)
    with pytest.raises(ValueError, match="channels=3 is for images; leave it out"):
        data.Text(channels=3)
    skipped = reviews("body,stars\na,1\n ,2\nb,2\n", empty="skip").load()
    assert decode(skipped.x) == ["a", "b"]


# --- tokenizers ----------------------------------------------------------------------------------------------------


def test_a_tokenizer_without_a_token_for_unknown_words_is_named(here):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "a": 1}, unk_token="[UNK]"))
    found = Tokenizing.of(made.to_str(), "t.json")
    assert found.encode(["a"], 2).tolist() == [[1, 0]]
    with pytest.raises(ValueError, match=r"data.tokenizer: cannot encode these texts \(.*\); give it a token for unkn"):
        found.encode(["b"], 2)


@pytest.mark.parametrize(("shift", "size"), [(0, 10), (1, 11)])
def test_a_vocabulary_with_gaps_has_room_for_its_largest_id(shift, size):
    vocabulary = SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1, "[UNK]": 9}, get_vocab_size=lambda: 3)
    assert Tokenizing(vocabulary, shift).size == size


def test_without_the_package_a_tokenizer_is_refused(monkeypatch, here):
    (here / "t.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"tokenizer='t.json' needs a package.*pip install 'acclimate\[text\]'"):
        reviews(tokenizer="t.json").load()


@pytest.mark.parametrize("pad", [True, False])
def test_a_tokenizer_gives_the_ids(pad, here):
    tokenizers = pytest.importorskip("tokenizers")
    words = (["[PAD]"] if pad else []) + ["[UNK]", "good", "bread", "cold"]
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.enable_padding(length=9)
    made.enable_truncation(1)  # what a file cuts and fills up is for another length
    made.save("t.json")
    d = reviews(tokenizer="t.json", length=3)
    e = d.load()
    assert e.x.tolist() == [[2, 3, 0], [1, 1, 1], [1, 0, 0]] and not e.text and d.tokens() == 5  # id 0 is padding
    assert d.texts(e.x)[0] == "good bread"
    assert Experiment(data=d).model == TextNet(tokens=5)
    notes = [n for n in d.world().notes if "1 higher than in the tokenizer's file, where id 0 is '[UNK]'" in n]
    assert len(notes) == (not pad) and all(n.endswith("tokens=True)") for n in notes)
    with pytest.raises(ValueError, match="tokens=3 is too few: the data has ids up to 3; set model.tokens=4"):
        Task(TextNet(tokens=3), (3,), 3, tokens=4)
    (here / "t.json").write_text("no")
    with pytest.raises(ValueError, match="is no JSON file of the package tokenizers"):
        reviews(tokenizer="t.json", length=3).load()


def test_a_remark_names_the_padding_of_a_tokenizer_like_roberta(here):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<s>": 0, "<pad>": 1, "a": 2}, unk_token="<s>"))
    found = Tokenizing.of(made.to_str(), "t.json")
    assert found.encode(["a"], 2).tolist() == [[3, 0]]  # as stored runs have it
    assert "where id 0 is '<s>' and no padding" in found.remark()
    assert found.remark().endswith("tokens=True) and model=ac.wrap(module, inputs=ac.TokenIds(pad=1))")


# --- the embedded texts --------------------------------------------------------------------------------------------


def test_the_embedded_texts_are_the_same_everywhere():
    e = data.Phrases().load()
    raw = e.x.numpy().astype("<i2").tobytes() + e.y.numpy().astype("<i8").tobytes()
    assert hashlib.sha256(raw).hexdigest()[:16] == "0c6701d6b37d6b5e"
    assert e.x.shape == (1200, 64) and e.domains == tuple(grammar.STYLES) and len(e.classes) == 8 and e.text


def test_a_style_does_not_depend_on_the_others():
    both, one = data.Phrases(styles=("terse", "plain")).load(), data.Phrases(styles=("plain",)).load()
    assert torch.equal(both.x[both.domain == 1], one.x) and torch.equal(both.y[both.domain == 1], one.y)


def test_classes_are_right_but_for_the_mistakes():
    clean, noisy = data.Phrases(wrong=0.0).load(), data.Phrases().load()
    assert torch.equal(clean.x, noisy.x)
    assert clean.y.bincount().tolist() == [150] * 8
    assert 0.03 < float((clean.y != noisy.y).float().mean()) < 0.07
    alarms = [t for t, c in zip(decode(clean.x), clean.y.tolist(), strict=True) if clean.classes[c] == "alarm"]
    assert all(any(w in t.lower() for w in ("alarm", "wake", "ring", "up")) for t in alarms)


def test_clients_write_in_one_style_each_and_have_a_mix_of_their_own():
    world = data.Phrases().world(0)
    assert [world.examples.domain[r].unique().tolist() for r in world.train] == [[c] for c in range(6)]
    assert len({tuple(h) for h in world.histogram(world.train).tolist()}) == 6
    assert Experiment(data=data.Phrases()).model == TextNet() and data.Phrases().inputs() == "texts"
    with pytest.raises(ValueError, match=r"styles=\['rude'\] must be some of plain, polite"):
        replace(data.Phrases(), styles=("rude",))
