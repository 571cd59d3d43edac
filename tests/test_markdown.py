"""Tables in Markdown hold whatever names have, and say what is so of every cell."""

import re

import pytest

from acclimate.cli.tune import selection_text
from acclimate.eval import Selection, Table
from acclimate.eval.estimate_table import Estimates
from acclimate.ops import layout
from acclimate.recipes import command, pages
from acclimate.running.compare import Comparison, difference

NAME = "a|b"


def cells(text):
    """A Markdown table as a reader takes it: cells end at bars that no backslash stands before."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    found = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [[c.replace("\\|", "|") for c in line] for line in found]


def row(stream):
    own = {"method": "fedavg", "personal": "none", "adapter": "none", "stream": stream, "settings": [], "seed": 0}
    return {**own, "selection": "last", "accuracy": 0.5, "std": 0.1, "round": 1, "per_client": [0.5, 0.5]}


@pytest.mark.parametrize(
    ("number", "words", "said"),
    [
        (1, ("client",), "1 client"),
        (0, ("client",), "0 clients"),
        (2, ("client",), "2 clients"),
        (1, ("class", "classes"), "1 class"),
        (1000, ("class", "classes"), "1,000 classes"),
    ],
)
def test_what_is_counted_agrees_with_its_number(number, words, said):
    assert layout.counted(number, *words) == said


def test_a_bar_in_a_name_does_not_end_its_cell():
    head, _, line = cells(Table((row(NAME), row("é\n<b>"))).to_markdown())
    assert head == ["method", "adapter", NAME, "é <b>"] and line == ["fedavg", "none", "50.0 ±10", "50.0 ±10"]
    found = difference(NAME, "last", {0: [0.5, 0.6]}, {0: [0.5, 0.6]})
    assert [len(c) for c in cells(Comparison("x|y", "z", (found,), {}).to_markdown())] == [7, 7, 7]
    lines = layout.table(["", NAME], [["FedAvg", "1"]])
    assert cells("\n".join(lines)) == [["", NAME], ["---", "---"], ["FedAvg", "1"]]


def test_columns_of_numbers_stand_to_the_right():
    assert layout.table(["a", "b", "c"], [["x", "1", "2"]], words=1) == [
        "| a | b | c |", "| --- | ---: | ---: |", "| x | 1 | 2 |"
    ]  # fmt: skip
    assert layout.table(["a", "b"], []) == ["| a | b |", "| --- | --- |"]


def test_choices_with_a_bar_in_a_name_are_whole_in_a_narrow_window(monkeypatch):
    pick = {"strategy": "entropy", "by": "stream", "chosen": {"tent": 3}, "accuracy": 0.5, "gap": 0.1, "per_client": []}
    found = Selection(rows=({"stream": NAME, **pick},))
    assert cells(found.to_markdown())[2] == [NAME, "entropy", "tent", "50.0", "10.0"]
    monkeypatch.setenv("COLUMNS", "30")
    assert selection_text(found).splitlines()[2:4] == ["a|b     entropy   50.0", "    10.0; tent"]
    assert layout.unmarked(layout.markdown(["a|b", "", "c"])) == ["a|b", "", "c"]


def estimate(name, bias, error=0.0):
    own = {"adapter": "none", "stream": "original", "estimator": name, "clients": 2, "draw": 0.02}
    return {**own, "error": error, "curve_error": error, "bias": bias}


def test_the_best_of_biases_is_the_nearest_to_zero_and_no_error_at_all_is_a_number():
    found = Estimates((estimate("doc", -0.3), estimate("atc", 0.01)))
    assert found.best("bias") == "atc" and "| none | original | -30.0 | **1.0** |" in found.to_markdown("bias")
    assert "| none | original | **0.0** | 0.0 | 2.0 | -2.0 |" in found.to_markdown()


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ({}, []),
        ({"a": [0, 1], "b": [0, 1]}, ["Fewer seeds: FedAvg has seeds 0, 1 alone"]),
        ({"b": [2]}, ["Fewer seeds: FedAvg (b) has seed 2 alone"]),
        (
            {"a": [0], "b": [0, 1]},
            ["Fewer seeds: FedAvg (a) has seed 0 alone", "Fewer seeds: FedAvg (b) has seeds 0, 1 alone"],
        ),
    ],
)
def test_fewer_seeds_are_said_of_the_columns_that_have_them(seeds, said):
    own = {c: {"seeds": seeds[c]} if c in seeds else {} for c in "ab"}
    held = [{"row": "FedAvg", "column": c, "published": None, **some} for c, some in own.items()]
    result = {"scale": "paper", "notes": [], "left_out": [], "cells": held}
    assert pages.remarks(result) == said


def test_a_seed_that_is_named_twice_is_one():
    assert command.seeds_of("0,2,0") == [0, 2]
