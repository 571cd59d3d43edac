"""Users' data whose parts must not meet: series, people, earlier and later rows, and names that look alike."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate import shifts
from acclimate.core import rng
from acclimate.data import (
    IID,
    Arrays,
    ByClient,
    Dirichlet,
    NaturalUsers,
    Noisy,
    Phrases,
    Public,
    Table,
    Windows,
    columns,
    of,
)

NAN = float("nan")


pytestmark = pytest.mark.usefixtures("own_machine")


def write(text, name="t.csv"):
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)
    return name


# --- series --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [range(8), (0, 4, 1, 5, 2, 6, 3, 7)])
def test_a_gap_is_filled_by_the_clients_own_readings_however_rows_are_mixed(rows):
    """`a` reads 1, -, 2, -; `b` reads -, -, 7, -: a gap at the beginning holds the first reading."""
    frame = {"who": list("aaaabbbb"), "kind": [0, 0, 1, 1] * 2, "v": [1.0, NAN, 2.0, NAN, NAN, NAN, 7.0, NAN]}
    mixed = {name: [values[i] for i in rows] for name, values in frame.items()}
    e = Windows.of(mixed, label="kind", client="who", window=2, stride=2, split=(0.5, 0.0, 0.5)).load()
    assert e.x[:, 0].tolist() == [[1.0, 1.0], [2.0, 2.0], [7.0, 7.0], [7.0, 7.0]]
    assert e.users.tolist() == [0, 0, 1, 1]


def test_a_sensor_that_a_client_never_read_is_no_other_clients():
    frame = {"who": list("aabb"), "kind": [0, 0, 1, 1], "v": [1.0, 2.0, NAN, NAN]}
    with pytest.raises(ValueError, match=r"column 'v' has no reading of client 'b'; leave it out with data.drop=v"):
        Windows.of(frame, label="kind", client="who", window=2)


def readings(clients=2, each=40):
    rows = [f"c{i // each},{i // 10 % 2},{i}" for i in range(clients * each)]
    return write("who,kind,v\n" + "\n".join(rows) + "\n")


def test_windows_in_the_cache_are_those_of_this_partition():
    """Without a stride of their own, windows overlap where clients are named, and must not where they are dealt."""
    named = Windows(file=readings(), label="kind", client="who", window=4)
    dealt = replace(named, partition=IID(), clients=2)
    assert (named.step, dealt.step) == (2, 4)
    assert len(named.load().y) == 32
    assert len(dealt.load().y) == 16  # two of four readings in each run of ten


def used(world, parts):
    return {float(v) for rows in parts for v in world.examples.x[rows].flatten()}


@pytest.mark.parametrize("wrapper", [Public, Noisy])
def test_wrapped_windows_of_training_and_tests_have_no_reading_in_common(wrapper):
    still = {"s": 0.0, "p": 0.0} if wrapper is Noisy else {}
    windows = Windows(file=readings(), label="kind", client="who", window=4, scale="none")
    world = wrapper(data=windows, partition=IID(), clients=2, split=(0.4, 0.2, 0.4), **still).world()
    train, test = used(world, world.train), used(world, world.test)
    assert len(train) >= 16 and len(test) >= 16 and not train & test


def test_noisy_windows_of_named_clients_keep_their_distance():
    windows = Windows(file=readings(each=80), label="kind", client="who", window=4, scale="none")
    data = Noisy(data=windows, partition=ByClient(), clients=2, s=0.0, p=0.0)
    plain = replace(windows, clients=2).world()
    world = data.world()
    assert [r.tolist() for r in world.train] == [r.tolist() for r in plain.train]
    assert not used(world, world.train) & used(world, world.test)


def test_a_public_share_of_windows_that_overlap_is_refused():
    windows = Windows(file=readings(), label="kind", client="who", window=4)
    with pytest.raises(ValueError, match=r"Public: share=0.1 is drawn at random, and examples of Windows overlap"):
        Public(data=windows, partition=ByClient(), clients=2)


def test_newcomers_who_are_dealt_get_windows_that_do_not_overlap():
    windows = Windows(file=readings(4), label="kind", client="who", window=4, clients=3, new_clients=1)
    assert windows.step == 2
    assert replace(windows, new_partition=ByClient()).step == 2
    assert replace(windows, new_partition=Dirichlet(1.0)).step == 4
    with pytest.raises(ValueError, match=r"stride=2 makes windows of 4 that overlap, which dealing would spread"):
        replace(windows, stride=2, new_partition=Dirichlet(1.0))


# --- people and time -----------------------------------------------------------------------------------------------


def people(**settings):
    frame = {"kind": [0, 1] * 100, "v": np.arange(200.0), "who": np.repeat(np.arange(10), 20)}
    return Table.of(frame, label="kind", client="who", **settings)


@pytest.mark.parametrize("partition", [ByClient(), NaturalUsers(floor=5)])
@pytest.mark.parametrize("joins", [ByClient(), IID()])
def test_newcomers_of_a_partition_of_their_own_are_other_people(partition, joins):
    world = people(partition=partition, clients=7, new_clients=3, new_partition=joins).world(5)
    users = world.examples.users
    known = set(users[torch.cat([*world.train, *world.val, *world.test])].tolist())
    late = set(users[torch.cat(world.new)].tolist())
    assert (len(known), len(late)) == (7, 3) and not known & late


def test_newcomers_are_no_people_with_too_few_examples():
    """Of ten people six have enough examples: four train, and two join."""
    who = np.repeat(np.arange(10), [20, 2] * 4 + [20, 20])
    data = of(np.arange(len(who))[:, None], np.arange(len(who)) % 2, client=who, partition=NaturalUsers(floor=5))
    for seed in range(8):
        world = replace(data, clients=4, new_clients=2, new_partition=NaturalUsers(floor=5)).world(seed)
        assert sorted(len(r) for r in world.new) == [20, 20] and world.clients == 4


def test_newcomers_from_an_official_test_set_of_the_same_people_are_other_people():
    who = np.repeat(np.arange(6), 10)
    arrays = {"x": np.arange(60.0)[:, None], "y": np.arange(60) % 2, "user": who}
    settings = {"file": "t.npz", "partition": ByClient(), "clients": 4, "new_clients": 2, "new_partition": ByClient()}

    np.savez("t.npz", **arrays, test=np.arange(60) % 5 == 0)  # of everybody a few rows
    users = Arrays(**settings).world().examples.users
    world = Arrays(**settings).world()
    assert not set(users[torch.cat(world.train)].tolist()) & set(users[torch.cat(world.new)].tolist())

    np.savez("t.npz", **arrays, test=who > 3)  # of two people all
    world = Arrays(**settings).world()
    assert sorted(users[torch.cat(world.new)].unique().tolist()) == [4, 5]


@pytest.mark.parametrize("wrapper", [Public, Noisy])
def test_wrapped_rows_are_cut_in_the_order_of_time(wrapper):
    frame = {"kind": [0, 1] * 50, "when": np.arange(100.0), "v": np.arange(100.0), "who": [0, 1] * 50}
    table = Table.of(frame, label="kind", client="who", time="when")
    world = wrapper(data=table, partition=ByClient(), clients=2).world()
    for train, val, test in zip(world.train, world.val, world.test, strict=True):
        assert int(train.max()) < int(val.min()) and int(val.max()) < int(test.min())


def test_the_number_of_clients_that_data_itself_says_is_no_setting_to_refuse():
    table = of(np.random.default_rng(0).random((400, 3)), [0, 1] * 200)
    assert table.clients == 7
    assert Public(data=table).world().clients == 10
    with pytest.raises(ValueError, match=r"Public: clients=3 of its data InMemory would do nothing"):
        Public(data=replace(table, clients=3))


@pytest.mark.parametrize("shape", [(8, 3, 4, 4), (8, 4, 4), (8, 4)])
@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_what_is_done_to_an_array_later_changes_no_data_set(shape, kind):
    x, y = np.ones(shape, kind), np.arange(8) % 2
    data = of(x, y)
    x[:], y[:] = 0, 0
    assert bool((data.load().x == 1).all()) and data.load().y.tolist() == [0, 1] * 4


# --- names ---------------------------------------------------------------------------------------------------------


def test_names_with_underscores_are_no_numbers():
    """Python reads 1_12 and 11_2 as 112."""
    write("who,kind,v\n" + "\n".join(f"{w},{i % 2},{i}" for i, w in enumerate(["1_12", "11_2"] * 20)))
    assert Table(file="t.csv", label="kind", client="who").load().user_names == ("11_2", "1_12")
    assert columns.number("1_12") is None and columns.number(" 112 ") == 112.0


def test_names_that_begin_with_zeros_keep_them():
    write("who,kind,v\n" + "\n".join(f"{w},{i % 2},0{i}" for i, w in enumerate(["7", "007", "0", "07"] * 10)))
    found = Table(file="t.csv", label="kind", client="who").load()
    assert found.user_names == ("0", "007", "07", "7") and found.users.tolist() == [3, 1, 0, 2] * 10
    assert found.classes == ("0", "1") and found.x[:, 0].tolist() == list(range(40))  # of inputs they are numbers


LARGE = (2**53, 2**53 + 1)


@pytest.mark.parametrize("kind", [np.int64, np.uint64, object, "numpy", "csv", "parquet"])
def test_people_whose_numbers_are_too_large_for_floating_point_stay_apart(kind):
    who = [LARGE[i % 2] for i in range(40)]
    if kind == "csv":
        write("who,kind,v\n" + "\n".join(f"{w},{i % 2},{i}" for i, w in enumerate(who)))
        found = Table(file="t.csv", label="kind", client="who").load()
    elif kind == "parquet":
        parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        table = {"who": who, "kind": [0, 1] * 20, "v": list(range(40))}
        parquet.write_table(arrow.table(table), "t.parquet")
        found = Table(file="t.parquet", label="kind", client="who").load()
    else:
        kept = np.array([*map(np.int64, who)], object) if kind == "numpy" else np.array(who, kind)
        frame = {"who": kept, "kind": [0, 1] * 20, "v": np.arange(40.0)}
        found = Table.of(frame, label="kind", client="who").load()
        again = of(np.zeros((40, 1)), [0, 1] * 20, client=kept).load()
        assert again.user_names == found.user_names
    assert found.user_names == tuple(map(str, LARGE)) and found.users.tolist() == [0, 1] * 20


def test_people_whose_numbers_were_floating_point_already_are_refused():
    frame = {"who": np.array(LARGE * 20, np.float64), "kind": [0, 1] * 20, "v": np.arange(40.0)}
    with pytest.raises(ValueError, match=r"column 'who' has 9007199254740992 in row 1; numbers from 9,007,199,254,740"):
        Table.of(frame, label="kind", client="who")


def test_names_in_bytes_are_their_text():
    assert of(np.zeros((4, 1)), np.array([b"x", "é".encode()] * 2)).load().classes == ("x", "é")
    np.savez("t.npz", x=np.zeros((4, 1)), y=[0, 1] * 2, classes=np.array([b"cat", b"dog"]), user=np.array([b"a"] * 4))
    found = Arrays(file="t.npz", partition=IID(), clients=2).load()
    assert (found.classes, found.user_names) == (("cat", "dog"), ("a",))


@pytest.mark.parametrize("y", [["1", "0", "0"], ["0", "1", "1"]])
def test_labels_in_text_are_the_classes_of_that_name_even_if_these_are_numbers(y):
    found = of(np.zeros((3, 1)), y, classes=("1", "0")).load()
    assert [found.classes[i] for i in found.y] == y


def test_labels_that_are_a_name_and_another_number_are_refused():
    with pytest.raises(ValueError, match=r"y=0 may be the class of that name or of that number in classes=\('1', '0'"):
        of(np.zeros((2, 1)), [1, 0], classes=("1", "0"))
    assert of(np.zeros((3, 1)), [7, 5, 7], classes=("7", "5")).load().y.tolist() == [0, 1, 0]
    assert of(np.zeros((2, 1)), [1, 0], classes=("cat", "dog")).load().y.tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"classes=\('a', 'a'\) must differ from each other"):
        of(np.zeros((2, 1)), ["a", "b"], classes=("a", "a"))


@pytest.mark.parametrize(
    ("test", "said"),
    [
        (["train", "test", "test"], "values of type <U5 and shape (3,)"),
        (["False", "False", "True"], "values of type <U5 and shape (3,)"),
        ([0, 2, 1], "2 in row 2"),
        ([0.0, 1.0, NAN], "nan in row 3"),
    ],
)
def test_marks_of_official_tests_are_true_or_false(test, said):
    np.savez("t.npz", x=np.zeros((3, 1)), y=[0, 1, 0], test=test)
    allowed = ", allowed are true and false (or 1 and 0), one per row"
    with pytest.raises(ValueError, match=re.escape(f"t.npz: test has {said}{allowed}")):
        Arrays(file="t.npz", partition=IID(), clients=1).official_test()


def test_ones_and_zeros_mark_official_tests():
    np.savez("t.npz", x=np.zeros((3, 1)), y=[0, 1, 0], test=[0.0, 1.0, 0.0])
    assert Arrays(file="t.npz", partition=IID(), clients=1).official_test().tolist() == [False, True, False]


# --- dates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["D", "s", "us"])
def test_dates_beyond_what_nanoseconds_count_are_no_others(unit):
    """ "Valid until 9999-12-31" is how many tables say: for ever."""
    days = np.array(["2020-01-01", "9999-12-31", "NaT", "1600-02-29"], f"datetime64[{unit}]")
    found = columns.of_values("until", days).numbers
    epoch = np.datetime64("1970-01-01")
    wanted = [float((np.datetime64(d) - epoch).astype(int)) for d in ("2020-01-01", "9999-12-31", "1600-02-29")]
    assert found[[0, 1, 3]].tolist() == wanted and np.isnan(found[2])


def test_time_may_go_on_beyond_2262():
    frame = {"kind": [0, 1, 0], "when": ["2020-01-01", "2261-01-01", "9999-12-31"], "v": [1.0, 2.0, 3.0]}
    assert len(Table.of(frame, label="kind", time="when").load().y) == 3


def test_numbers_that_32_bits_do_not_tell_apart_get_a_note():
    seconds = 1.7e9 + np.arange(80.0)
    frame = {"at": seconds, "since": seconds - 1.7e9 + 0.5, "kind": [0, 1] * 40}
    said = [n for n in Table.of(frame, label="kind").world().notes if "32 bits" in n]
    left = len(set(seconds.astype(np.float32).tolist()))
    assert left < 5
    assert said == [
        f"'at' is so far from 0 that 32 bits tell {left} of its 80 numbers apart; subtract the least one first"
    ]


# --- noise on tables -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", [1, 2])
def test_noise_leaves_words_and_marks_of_a_table_alone_and_fills_no_number(revision):
    frame = {"v": [NAN if i % 4 == 0 else 100.0 + i for i in range(80)], "word": ["r", "g"] * 40, "kind": [0, 1] * 40}
    table = Table.of(frame, label="kind", scale="none")
    settings = {"partition": IID(), "clients": 2, "s": 0.05, "p": 0.0, "revision": revision}
    world = Noisy(data=table, **settings).world()
    train = torch.cat(world.train)
    number, mark, g, r = world.examples.x[train].T
    assert mark.tolist() == [float(i % 4 == 0) for i in train.tolist()]
    assert torch.equal(r, (train % 2 == 0).float()) and torch.equal(g, 1 - r)
    off = (number - (100 + train))[mark == 0]
    assert float(off.abs().max()) < 1 and (revision == 1 or float(off.abs().max()) > 0.01)


def test_noise_on_token_ids_is_refused():
    with pytest.raises(ValueError, match="Noisy: Phrases holds token ids, which are no numbers to add noise to"):
        Noisy(data=Phrases(each=16), partition=IID(), clients=2).world()


# --- streams of tables ---------------------------------------------------------------------------------------------


def shops(rows, first, columns=("v", "day")):
    frame = {"v": [NAN if i % 5 == 0 else float(i) for i in range(rows)]}
    frame["day"] = [str(np.datetime64(first) + i) for i in range(rows)]
    return {**{name: frame[name] for name in columns}, "kind": ["a", "b"] * (rows // 2)}


def test_rows_of_another_table_are_filled_and_counted_as_the_clients_are():
    data = Table.of(shops(60, "2024-01-10"), label="kind", partition=IID(), clients=2, split=(0.5, 0.0, 0.5))
    world = data.world()
    stream = shifts.Natural(source=Table.of(shops(40, "2023-12-01"), label="kind")).build(world, rng.key(0))
    number, mark, day = world.examples.features
    since = int((np.datetime64("2023-12-01") - np.datetime64(day.word)).astype(int))
    wanted = [[number.fill if i % 5 == 0 else float(i), float(i % 5 == 0), float(since + i)] for i in range(40)]
    assert number.fill > 0 and since < 0
    assert stream.shards.x.tolist() == wanted


@pytest.mark.parametrize("lacks", ["clients", "source", "setting"])
def test_rows_of_another_table_may_lack_other_cells_than_the_clients_do(lacks):
    whole = {"v": [float(i) for i in range(60)], "kind": ["a", "b"] * 30}
    gaps = {**whole, "v": [NAN if i % 5 == 0 else float(i) for i in range(60)]}
    own, other = (whole, gaps) if lacks == "source" else (gaps, whole if lacks == "clients" else gaps)
    missing = "mean" if lacks == "setting" else "mark"
    data = Table.of(own, label="kind", partition=IID(), clients=2, split=(0.5, 0.0, 0.5), missing=missing)
    world = data.world()
    x = shifts.Natural(source=Table.of(other, label="kind")).build(world, rng.key(0)).shards.x
    fill = world.examples.features[0].fill
    wanted = [fill if i % 5 == 0 and lacks != "clients" else float(i) for i in range(60)]
    assert fill > 0 and x[:, 0].tolist() == pytest.approx(wanted)
    assert x.shape[1] == world.shape[0] == (2 if lacks == "clients" else 1) and not x[:, 1:].any()


def test_rows_of_another_table_that_cannot_be_compared_are_refused():
    data = Table.of(shops(60, "2024-01-10"), label="kind", partition=IID(), clients=2)
    other = Table.of(shops(40, "2024-01-10", ("day", "v")), label="kind")
    with pytest.raises(ValueError, match=r"Natural: Table has the inputs day, v, the clients' are v, day; both must"):
        shifts.Natural(source=other).build(data.world(), rng.key(0))
    with pytest.raises(ValueError, match=r"Natural: Table cannot be scaled by each client's own training rows"):
        shifts.Natural(source=data).build(replace(data, scale="client").world(), rng.key(0))


def test_a_quantile_goes_by_a_columns_number_too():
    world = people(clients=10).world()
    wide = of(np.random.default_rng(0).random((40, 3)), [0, 1] * 20, clients=2).world()
    assert shifts.Quantile(column="0").build(world, rng.key(0)).card["column"] == "v"
    assert shifts.Quantile(column="2").build(wide, rng.key(0)).card["column"] == "2"
    with pytest.raises(ValueError, match=r"column='1' must be one of v, or an input's number \(0\)"):
        shifts.Quantile(column="1").build(world, rng.key(0))


def test_a_fraction_that_leaves_a_counted_client_without_examples_says_so():
    """The data names 40 clients, which are counted; a tenth of it holds examples of fewer."""
    people = [f"p{i // 5}" for i in range(200)]
    data = of(torch.rand(200, 4), torch.arange(200) % 2, client=people)
    assert data.clients == 40 and data.world().clients == 40
    left = int((torch.arange(200) // 5)[rng.uniform(rng.fold(rng.key(0), "fraction"), 200) < 0.1].unique().numel())
    says = (
        rf"^ByClient: clients=40 must be at most {left}, the clients that the data names; only fraction=0\.1 of the "
        r"data is used, in which some clients that the data names have too few examples: raise it, or set clients "
        r"lower$"
    )
    with pytest.raises(ValueError, match=says):
        replace(data, fraction=0.1).world()
    assert replace(data, fraction=0.1, clients=left).world().clients == left
    with pytest.raises(ValueError, match="fraction=0.1 of the data is used: raise it, or set clients lower$"):
        replace(data, partition=IID(), fraction=0.1).world()
    with pytest.raises(ValueError, match="the clients that the data names$"):  # whatever the fraction
        replace(data, fraction=0.5, clients=41).world()
