"""Tables as programs and people write them: packed, in other encodings, with other marks, and files that are none."""

import bz2
import gzip
import lzma
import warnings
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from acclimate.data import NaturalUsers, Table, Text, Windows, columns, dates
from acclimate.data.raw import RawRows
from acclimate.data.world import Feature

LINES = ["site,age,kind", *(f"{'éa'[i % 2]},{i}.5,{('cat', 'dog')[i // 2 % 2]}" for i in range(12))]
TEXT = "\n".join(LINES) + "\n"


@pytest.fixture(autouse=True)
def here(own_machine):
    pass


def write(text, name="t.csv", encoding="utf-8"):
    Path(name).write_bytes(text if isinstance(text, bytes) else text.encode(encoding))


def table(name="t.csv"):
    return Table(file=name, label="kind", client="site").load()


def read(name="t.csv", column="age"):
    return columns.read(Path(name), [column])[column]


@pytest.mark.parametrize(
    "content",
    [
        TEXT.encode("utf-8-sig"),
        TEXT.encode("utf-16"),
        TEXT.replace("\n", "\r\n").encode(),
        TEXT.replace("\n", "\r").encode(),
        TEXT.replace("\n", "\n\n").encode(),
        b"\n \n" + TEXT.encode(),
        TEXT.encode() + b",,\n , ,\n",
        b"sep=;\n" + TEXT.replace(",", ";").encode(),
        gzip.compress(TEXT.encode(), mtime=0),
        bz2.compress(TEXT.encode()),
        lzma.compress(TEXT.encode("utf-16")),
    ],
)
def test_a_table_is_the_same_however_it_was_saved(content):
    write(content)
    found = table()
    assert (found.user_names, found.classes) == (("a", "é"), ("cat", "dog"))
    assert found.x[:, 0].tolist() == [i + 0.5 for i in range(12)]


def test_names_with_other_marks_in_quotes_do_not_decide_what_is_between_cells():
    write('"size, in cm, now";kind\n1,5;a\n2;b\n')
    assert columns.names_in(Path("t.csv")) == ["size, in cm, now", "kind"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (TEXT.encode("latin-1"), r"is not text in UTF-8 \(byte 0xe9: .*iconv -f cp1252 -t utf-8 t.csv > new.csv"),
        (TEXT.encode("utf-16-le"), r"is not text in UTF-8 \(it holds bytes of 0\); save the table as CSV in UTF-8"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", r"is a spreadsheet \(.xls\); save its table there as CSV in UTF-8"),
        (b"PAR1\x15\x04", "is a Parquet file; let the name of a table end in .parquet"),
        (b'{"site": "a", "age": 1}\n', "is JSON; write it as CSV, with pandas: read_json.path, lines=True.*to_csv"),
        (b'[\n {"site": "a"}]', "is JSON; write it as CSV"),
        (b"\n<!DOCTYPE html>", "is a page of the web; download the file itself"),
        (b"@RELATION iris\n", "is an ARFF file; write it as CSV"),
        (gzip.compress(TEXT.encode(), mtime=0)[:40], "cannot be unpacked"),
        (bz2.compress(TEXT.encode())[:12] + b"\0" * 40, "cannot be unpacked"),
        (b"# made in 2024\n" + TEXT.encode(), "the first line is '# made in 2024': remove what stands above"),
        (b"# made in 2024, here\n# by me\n" + TEXT.encode(), "the first line is '# made in 2024': remove what stands"),
        (b"Visits,,\n" + TEXT.encode(), "its columns are Visits, , ; the first line must name the columns"),
        ("\n".join(LINES[1:]).encode(), "has no column 'kind'"),
        (TEXT.replace(",", " ").encode(), "columns are site age kind alone; cells must be separated by a comma"),
        (b"site,age,kind\n1,a,2,cat\n", r"line 2 has 4 cells, .*begins with its number.*row.names=FALSE"),
        (b"site,age,kind\na,2,cat,\n", "line 2 has 4 cells, .*ends in ',': let the first line end so too"),
        (b"\nsite,age,kind\na,1,cat\n\na\n", "line 5 has 1 cell, but the first line names 3 columns"),
    ],
)
def test_files_that_are_no_such_table_say_what_to_do(content, said):
    write(content)
    with pytest.raises(ValueError, match=said):
        table()


def test_a_line_of_numbers_in_place_of_names_is_doubted():
    write("a,1.5,2.5,cat\nb,2.5,3.5,dog\n")
    with pytest.raises(
        ValueError, match="has no column 'kind'.*the first line must name the columns, so put one above"
    ):
        table()


def test_a_spreadsheet_or_an_archive_is_named_as_such():
    with zipfile.ZipFile("t.csv", "w") as archive:
        archive.writestr("xl/workbook.xml", "")
    with pytest.raises(ValueError, match=r"is a spreadsheet \(.xlsx, .ods\) or another zip archive; save its table"):
        table()


@pytest.mark.parametrize("cell", ['"dog', '"dog" or cat', '"dog\na,7,"cat'])
def test_a_quote_that_is_not_closed_does_not_swallow_rows(cell):
    write("site,age,kind\na,1,cat\na,2," + cell + "\n" + "".join(f"a,{i},cat\n" for i in range(9)))
    with pytest.raises(ValueError, match="is no CSV from line 3 on .*a quote that is not closed"):
        table()


@pytest.mark.parametrize("blank", ["-", "--", "\u2014", ".", "#N/A", "<NA>", "\\N", "NaT", "#DIV/0!", "n.a."])
def test_cells_that_say_nothing_among_numbers_are_missing(blank):
    write(f"age,kind\n1.5,a\n{blank},b\n2.5,a\n")
    np.testing.assert_array_equal(read().numbers, [1.5, np.nan, 2.5])
    given = {"age": np.array([1.5, blank, 2], object), "kind": ["a", "b", "a"]}
    np.testing.assert_array_equal(columns.of_frame(given)["age"].numbers, [1.5, np.nan, 2.0])
    new = RawRows((Feature("age", fill=7.0),)).file(Path("t.csv"))
    assert new[:, 0].tolist() == [1.5, 7.0, 2.5]


def test_strokes_among_words_are_words():
    write("age,kind\n+,a\n-,b\n.,a\n")
    assert read().words == ("+", "-", ".")


@pytest.mark.parametrize(
    ("between", "cells", "numbers"),
    [
        (",", ["12%", "-0.5 %", "7"], [0.12, -0.005, 7]),
        (",", ["\u22121.5", "2"], [-1.5, 2]),
        (",", ['"1,234"', '"-1,234,567.5"', "999"], [1234, -1234567.5, 999]),
        (";", ["1.234,5", "1,234", "-1.234.567,25", "0,5%"], [1234.5, 1.234, -1234567.25, 0.005]),
        ("\t", ["1,5", "0,234", "7"], [1.5, 0.234, 7]),
        ("|", ["1.234,5", "7"], [1234.5, 7]),
    ],
)
def test_numbers_are_read_as_they_are_written_between_such_marks(between, cells, numbers):
    write(f"age{between}kind\n" + "".join(f"{c}{between}a\n" for c in cells))
    np.testing.assert_allclose(read().numbers, numbers)
    new = RawRows((Feature("age"),)).file(Path("t.csv"))
    np.testing.assert_allclose(new[:, 0], np.array(numbers, np.float32))


@pytest.mark.parametrize(("between", "cell"), [(",", '"1,5"'), ("\t", "1,234"), (",", "12%%"), (",", "%"), (",", "$5")])
def test_what_may_be_another_number_is_a_word(between, cell):
    write(f"age{between}kind\n2{between}a\n{cell}{between}b\n")
    assert read().words == tuple(sorted(["2", cell.strip('"')]))


def test_points_for_thousands_beside_decimal_commas_are_refused():
    """1.234 would be read as little more than 1, and 999 as 999."""
    write("age;size;kind\n1.234;1,5;a\n999;2,5;b\n")
    with pytest.raises(ValueError, match="has the numbers 1,5 and 1.234: is the point there for thousands"):
        read()
    write("age;size;kind\n1.23;1,5;a\n999;2,5;b\n")
    assert read().numbers.tolist() == [1.23, 999]


def test_shares_of_labels_stay_their_names():
    write("age,kind\n1,5%\n2,10%\n3,5%\n")
    assert Table(file="t.csv", label="kind").load().classes == ("10%", "5%")


def test_decimals_are_numbers_and_lists_are_refused():
    found = columns.of_values("v", np.array([Decimal("1.5"), None, 2], object))
    np.testing.assert_array_equal(found.numbers, [1.5, np.nan, 2.0])
    nested = np.empty(2, object)
    nested[:] = [np.zeros(2), [1, 2]]
    for values, kind in ((nested, "ndarray"), (nested[1:], "list"), (np.array([{"a": 1}], object), "dict")):
        with pytest.raises(ValueError, match=f"the column 'v' holds a {kind} in row 1; .*data.drop=v"):
            columns.of_values("v", values)


# --- data frames, times, clients of few rows -----------------------------------------------------------------------


class Plain:
    """A data frame as far as a table asks for it."""

    def __init__(self, names, values=None, **more):
        self.columns, self.values = names, values or {}
        vars(self).update(more)

    def __getitem__(self, name):
        return self.values[name]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        ({"v": [], "kind": []}, "the data frame has no rows"),
        (Plain(["v"], collect=0, collect_schema=0), r"is lazy and holds no rows yet; give frame.collect\(\)"),
        (Plain(["v", "kind", "v"]), "the data frame has the column 'v' twice"),
        (Plain([0, "kind"]), r"the column 0 has no name in text; .*frame.columns = \[str\(name\)"),
        ([{"v": 1}], r"a list has no columns; give a data frame, such as pandas.DataFrame\(rows\)"),
    ],
)
def test_frames_that_cannot_be_read_say_what_to_do(frame, said):
    with pytest.raises(ValueError, match=said):
        Table.of(frame, label="kind", clients=2).load()


def test_a_frame_may_name_its_columns_as_arrow_does():
    values = {"v": [1.0, 2.0], "kind": ["a", "b"]}
    found = Table.of(Plain([object()], values, column_names=list(values)), label="kind", clients=1).load()
    assert found.x.tolist() == [[1.0], [2.0]]


def test_an_index_that_pandas_wrote_is_no_input():
    for name in ("Unnamed: 0", "__index_level_0__"):
        frame = {name: [3.0, 5.0, 4.0], "v": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"]}
        found = Table.of(frame, label="kind", clients=1).load()
        assert [f.column for f in found.features] == ["v"] and "the column without a name" in " ".join(found.notes)
        named = Table.of(frame, label="kind", clients=1, columns=(name,)).load()
        assert [f.column for f in named.features] == [name]


@pytest.mark.parametrize(
    "when",
    [
        ["2024-03-31T01:30:00+01:00", "2024-03-31T03:30:00+02:00", "2024-03-31T01:45:00Z"],
        ["2024-03-31 1:30", "2024-03-31 8:30:15", "2024-03-31 10:00"],
        ["08:30", "09:00:10", "23:59"],
    ],
)
def test_times_with_offsets_are_in_order_without_a_warning(when):
    frame = {"when": when, "v": [1.0, 2.0, 3.0], "kind": ["a", "b", "a"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Table.of(frame, label="kind", time="when", clients=1).load()
        with pytest.raises(ValueError, match="'when' goes backwards in row 2"):
            Table.of({**frame, "when": when[::-1]}, label="kind", time="when", clients=1).load()


def test_a_column_of_time_that_is_none_says_what_it_holds():
    frame = {"when": ["31.05.2024", "01.06.2024"], "v": [1.0, 2.0], "kind": ["a", "b"]}
    with pytest.raises(ValueError, match=r"no dates as 2024-05-31 and no times as 08:30 .*it holds '01.06.2024'"):
        Table.of(frame, label="kind", time="when", clients=1).load()


@pytest.mark.parametrize(
    ("cell", "hours"),
    [
        ("1970-01-02 08:30:00+00", 32.5),
        ("1970-01-01 8:30", 8.5),
        ("1970-01-01 08:30:00 UTC", 8.5),
        ("1970-01-01T8", None),
    ],
)
def test_dates_as_databases_and_spreadsheets_write_them(cell, hours):
    assert dates.days(cell) == (None if hours is None else pytest.approx(hours / 24))


def test_natural_users_are_counted_by_their_rows():
    who = [f"p{i}" for i in range(12) for _ in range(25)] + ["few"] * 19
    frame = {"who": who, "v": np.arange(len(who)), "kind": ["a", "b"] * (len(who) // 2) + ["a"]}
    assert Table.of(frame, label="kind", client="who", partition=NaturalUsers()).world().clients == 12
    assert Table.of(frame, label="kind", client="who", partition=NaturalUsers(floor=1)).world().clients == 13
    write("who,text,label\n" + "".join(f"{w},some text,{k}\n" for w, k in zip(who, frame["kind"], strict=True)))
    assert Text(file="t.csv", client="who", partition=NaturalUsers()).world().clients == 12
    assert Text(file="t.csv", client="who").world().clients == 13
    assert Text(file="t.csv", partition=NaturalUsers()).clients == 5  # of texts that name nobody


# --- texts and readings --------------------------------------------------------------------------------------------

TEXTS = "text,label\n" + "".join(f'"words, {i}",{"ab"[i % 2]}\n' for i in range(40))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "\n \n" + TEXTS),
        ("t.csv", TEXTS.replace('",', '"|').replace("text,label", "text|label")),
        ("t.csv.gz", gzip.compress(TEXTS.encode(), mtime=0)),
        ("t.csv.xz", lzma.compress(TEXTS.encode())),
    ],
)
def test_texts_are_the_same_however_they_were_saved(name, content):
    write(content, name)
    data = Text(file=name, length=16)
    assert data.texts(data.load().x[[0, 39]]) == ["words, 0", "words, 39"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", TEXTS.encode("utf-16"), "line 1 is not UTF-8 .*iconv -f utf-16 -t utf-8"),
        ("t.csv", TEXTS.replace("\n", "\r"), r"its lines end in a mark of old systems \(CR\); save it again"),
        ("t.csv", TEXTS + '"open,a\n' + TEXTS, "from line 42 on it is no CSV .*a quote that is not closed"),
        ("t.csv", "label,text\na,1\nb,2\na," + '"three\nb,4\na,5\n', "from line 4 on it is no CSV .*unexpected end"),
        ("t.csv", "\n" + TEXTS + ",a\n", "line 43 has an empty text"),
        ("t.jsonl", '{"text": "a", "label": 1}\n', "is JSON; write it as CSV"),
        (
            "t.txt",
            TEXTS.replace(" ", ""),
            "line 1 has an empty text.*read as lines.*set data.form=csv if it has columns",
        ),
        (
            "t.txt",
            "".join(f"word{i} words\n" for i in range(40)),
            "so it is no class.*in lines, the label is the first word",
        ),
    ],
)
def test_files_that_are_no_such_texts_say_what_to_do(name, content, said):
    write(content, name)
    with pytest.raises(ValueError, match=said):
        Text(file=name).load()


def test_classes_of_texts_that_differ_in_capitals_are_named():
    write(TEXTS.replace(",a\n", ",A\n", 6))
    said = "classes that differ in little more than capitals: 'A' and 'a'; are they the same?"
    assert said in Text(file="t.csv").world().notes


def readings(step=lambda i, who: i, **more):
    rows = [(i, who) for i in range(80) for who in "pq"]
    frame = {
        "t": [float(step(i, who)) for i, who in rows],
        "u": [float(i % 7) for i, _ in rows],
        "who": [who for _, who in rows],
        "kind": [("walk", "sit")[i // 20 % 2] for i, _ in rows],
    }
    return Windows.of(frame, **{"label": "kind", "client": "who", "time": "t", "window": 5, **more})


def about_time(data):
    return [n for n in data.world().notes if "'t'" in n]


def test_time_among_the_sensors_is_named():
    assert about_time(readings()) == []
    said = "'t' only rises, as time does: name it (data.time=t), or leave it out (data.drop)"
    assert about_time(readings(time="")) == [said]


def test_gaps_and_other_steps_of_time_are_named():
    gap = readings(lambda i, who: i + 1000 * (who == "p" and i > 30))
    assert about_time(gap) == ["'t' leaves more than ten steps out 1 time: windows go on as if it did not"]
    other = readings(lambda i, who: i * (2.5 if who == "q" else 1))
    assert about_time(other) == ["steps of 't' are up to 2.5 times as long in some series"]


def test_a_column_of_names_among_readings_may_be_the_client():
    with pytest.raises(
        ValueError, match="leave it out with data.drop=who, or name it if it tells whose.*data.client=who"
    ):
        readings(client="", time="").load()
