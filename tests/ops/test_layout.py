"""Tables of text by hand: where cells go that do not fit, and where a table is cut."""

import io
import sys

from acclimate.ops.layout import cut, lined, near, room, some, table, wrapped

HEAD, BODY = ("name", "one", "two"), [("a", "1", "22"), ("bcd", "333", "4")]


def test_names_that_are_left_out_are_counted():
    assert some("abc", 3) == "a, b, c" and some("abcde", 3) == "a, b, c and 2 more"


def test_a_name_that_is_half_alike_may_be_meant():
    assert near("note", ["neo", "sar"]) == ["neo"] and near("SAR", ["santa", "neo"]) == ["santa"]
    assert near("fedavg", ["fedprox", "tent"]) == []


def test_the_columns_that_are_named_are_the_room(monkeypatch):
    for named, columns in (("1", 1), ("72", 72)):
        monkeypatch.setenv("COLUMNS", named)
        assert room() == columns
    for nothing in ("", "0", "wide"):
        monkeypatch.setenv("COLUMNS", nothing)
        monkeypatch.setattr(sys, "stdout", io.StringIO())
        assert room() == 0, "a file has no end to the right"


def test_numbers_of_a_markdown_table_stand_on_the_right():
    assert table(HEAD, BODY, words=1) == [
        "| name | one | two |",
        "| --- | ---: | ---: |",
        "| a | 1 | 22 |",
        "| bcd | 333 | 4 |",
    ]
    assert table(HEAD, BODY)[1] == "| --- | --- | --- |"


def test_every_line_of_a_paragraph_is_indented_the_first_one_too():
    assert wrapped("some words that go on", 20, "  ") == ["  some words that go", "  on"]
    assert wrapped("some words that go on", 0, "  ") == ["  some words that go on"]


def test_cells_that_do_not_fit_go_on_below_their_row():
    rows = [HEAD, *BODY]
    assert lined(rows) == ["name  one  two", "a     1    22", "bcd   333  4"]
    assert lined(rows, 14) == lined(rows) and lined(rows[:1]) == ["name  one  two"]
    assert lined(rows, 13) == ["name  one", "    two", "a     1", "    22", "bcd   333", "    4"]
    assert lined(rows, 8) == ["name", "    one; two", "a", "    1; 22", "bcd", "    333; 4"]


def test_a_table_is_cut_where_its_columns_are_too_wide_together():
    """`name` takes 4 columns, and each of the others two for a gap and 3: 14 in all."""
    whole = [[list(row) for row in (HEAD, *BODY)]]
    assert cut(HEAD, BODY) == cut(HEAD, BODY, 14) == whole
    one, two = cut(HEAD, BODY, 13)
    assert one == [["name", "one"], ["a", "1"], ["bcd", "333"]]
    assert two == [["name", "two"], ["a", "22"], ["bcd", "4"]]
    assert len(cut(HEAD, BODY, 3)) == 2, "a column stays whole, however narrow the window is"
