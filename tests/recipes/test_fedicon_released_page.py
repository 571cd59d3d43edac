"""What FedICON's page says of the tables as released code has them is computed from the stored tables."""

import json
from pathlib import Path
from statistics import correlation, fmean, median, stdev

import pytest

ROOT = Path(__file__).parents[2]
DOMAINS = ("MNIST", "MNIST-M", "SVHN", "USPS")
FIVE = ("Local", "FedAvg", "FedBN", "Tent", "FedICON")
PARTS = ("extract", "share", "adapt")


def body(name):
    return json.loads((ROOT / f"results/fedicon/{name}.json").read_text())


def cells(name):
    """The cells of a stored table by row and column."""
    return {(c["row"], c["column"]): c for c in body(name)["cells"]}


def both(number):
    """A table as released code has it, by the text's recipe, and what the paper prints, by row and column."""
    released, text = cells(f"released-table{number}-paper"), cells(f"table{number}-paper")
    return released, text, {at: c["published"]["mean"] for at, c in released.items() if c["published"]}


def numbers(cell):
    return f"{cell['mean']:.1f} ± {cell['std']:.1f}"


def off(table, paper):
    return {at: table[at]["mean"] - printed for at, printed in paper.items()}


def near(apart):
    return sum(abs(x) <= 3 for x in apart)


def middle(apart):
    return f"{median(map(abs, apart)):.1f}"


@pytest.fixture(scope="module")
def page():
    """The section, and nothing else of the page, with its lines joined."""
    text = (ROOT / "docs/papers/fedicon.md").read_text()
    section = text.split("### The tables as released code has them\n")[1].split("\n## ")[0]
    return section.replace("\n  ", " ")


def test_stored_tables_are_of_three_seeds_one_device_and_one_commit(page):
    for number in (1, 8, 9):
        found = body(f"released-table{number}-paper")
        assert (found["seeds"], found["rounds"], found["fraction"]) == ([0, 1, 2], None, None)
        where = {(r["environment"]["commit"], r["environment"]["device"]) for r in found["records"]}
        assert where == {("7ec0626f", "cuda (NVIDIA H200)")} and {r["rounds"] for r in found["records"]} == {100}
        assert {r["trained_together"] for r in found["records"]} == {1} and "every seed trained by itself" in page
        assert all(len(c["ours"]) == 3 for c in found["cells"])
        data = {(r["seed"], r["data_hashes"]["examples"]): r["data_hashes"] for r in found["records"]}
        assert all(r["data_hashes"] == data[r["seed"], r["data_hashes"]["examples"]] for r in found["records"])


def test_the_numbers_of_table_1(page):
    released, text, paper = both(1)
    for row in dict.fromkeys(row for row, _ in released):
        line = []
        for domain in DOMAINS:
            printed = paper.get((row, domain))
            line.append((numbers(released[row, domain]), text[row, domain]["mean"], printed))
        means = [fmean(released[row, d]["ours"][seed] for d in DOMAINS) for seed in range(3)]
        old, printed = fmean(b for _, b, _ in line), [c for *_, c in line]
        line.append((f"{fmean(means):.1f} ± {stdev(means):.1f}", old, None if None in printed else fmean(printed)))
        told = [f"{a} ({b:.1f})" if c is None else f"{a} ({b:.1f}, {c:.1f})" for a, b, c in line]
        assert f"| {row} | {' | '.join(told)} |" in page


def test_how_near_table_1_is(page):
    released, text, paper = both(1)
    ours, before = off(released, paper), off(text, paper)
    assert (
        f"**{near(ours.values())} of {len(ours)} numbers are within 3 points of the paper, and the median difference "
        f"is {middle(ours.values())}; the recipe of the text has {near(before.values())} and "
        f"{middle(before.values())}.**"
    ) in page
    assert f"{sum(abs(ours[at]) < abs(before[at]) for at in paper)} of the 44 are nearer than by the text" in page
    by = {d: near(x for (_, domain), x in ours.items() if domain == d) for d in DOMAINS}
    assert by == {"MNIST": 6, "SVHN": 6, "MNIST-M": 7, "USPS": 0}
    assert "Six of eleven are within 3 points on MNIST and on SVHN, seven on MNIST-M, and none on USPS" in page


def test_rows_that_had_no_part_in_the_choice_of_74_images(page):
    released, text, paper = both(1)
    read = json.loads((ROOT / "results/causes/fedicon-wrapped.json").read_text())["accuracy"]["fedicon/table1"]
    assert tuple(read["74 per class"]) == FIVE
    assert all(len(read[n]) == 11 and "MNIST, wrapped" in read[n]["T3A"] for n in ("as it is", "30 per class"))
    six = {at: printed for at, printed in paper.items() if at[0] not in FIVE}
    ours, before = off(released, six).values(), off(text, six).values()
    assert (
        f"{near(ours)} of their {len(six)} numbers are within 3 points, and the median difference is {middle(ours)}, "
        f"where the recipe of the text has {near(before)} and {middle(before)}."
    ) in page
    five = {at: printed for at, printed in paper.items() if at[0] in FIVE}
    again = {at: read["74 per class"][at[0]][f"{at[1]}, wrapped"]["mean"] for at in five}
    most = max(abs(released[at]["mean"] - again[at]) for at in five)
    assert f"their numbers are within {most:.1f} points of those of before" in page
    then = near(again[at] - printed for at, printed in five.items())
    assert (
        f"{near(off(released, five).values())} of {len(five)} are within 3 points of the paper instead of {then}"
        in page
    )


def test_what_is_far_off_in_table_1(page):
    released, text, paper = both(1)
    ours, before = off(released, paper), off(text, paper)
    high, old = ({row: x for (row, d), x in o.items() if d == "USPS"} for o in (ours, before))
    least, most = min(high, key=high.__getitem__), max(high, key=high.__getitem__)
    assert (
        f"by {high[least]:.0f} points ({least}) to {high[most]:.0f} ({most}, {released[most, 'USPS']['mean']:.1f} "
        f"where the paper has {paper[most, 'USPS']:.1f}); FedICON is {high['FedICON']:.1f} too high there, T3A "
        f"{high['T3A']:.1f} and Local {high['Local']:.1f}. "
        f"The recipe of the text is {min(old.values()):.0f} to {max(old.values()):.0f} too high."
    ) in page
    rest = {at: x for at, x in ours.items() if at[1] != "USPS"}
    far = {at for at, x in rest.items() if abs(x) > 5.5}
    named = {("T3A", d) for d in ("MNIST", "SVHN", "MNIST-M")} | {("FedRep", d) for d in ("MNIST", "MNIST-M", "SVHN")}
    assert far == named | {("FedBN", "MNIST"), ("Local", "SVHN")}
    t3a, rep = ({d: x for (row, d), x in rest.items() if row == name} for name in ("T3A", "FedRep"))
    assert (
        f"({t3a['MNIST']:.1f} too high on MNIST, {-t3a['SVHN']:.1f} and {-t3a['MNIST-M']:.1f} too low on SVHN and "
        "MNIST-M)"
    ) in page
    assert (
        f"({rep['MNIST']:.1f} and {rep['MNIST-M']:.1f} too high on MNIST and MNIST-M, {-rep['SVHN']:.1f} too low on "
        "SVHN)"
    ) in page
    assert f"({rest['FedBN', 'MNIST']:.1f} too high on MNIST;" in page
    assert f"Local is {-rest['Local', 'SVHN']:.1f} too low on SVHN" in page
    assert released["FedBN", "MNIST"]["mean"] < released["FedAvg", "MNIST"]["mean"] - 10


def ranks(numbers):
    """From 0 for the highest; rows that are level share the mean of their places."""
    values = sorted(numbers.values(), reverse=True)
    return {row: fmean(i for i, v in enumerate(values) if v == value) for row, value in numbers.items()}


def agreement(one, other):
    """Spearman's rank correlation."""
    a, b = ranks(one), ranks(other)
    return f"{correlation(list(a.values()), [b[row] for row in a]):.2f}"


def test_the_order_of_methods_in_table_1(page):
    released, text, paper = both(1)
    rows = list(dict.fromkeys(row for row, _ in paper))

    def of(table, domains=DOMAINS):
        return {r: fmean(table[r, d] for d in domains) for r in rows}

    ours, before = ({at: c["mean"] for at, c in table.items()} for table in (released, text))
    means, old, printed = of(ours), of(before), of(paper)
    place, theirs = ranks(means), ranks(printed)
    assert len(rows) == 11 and sorted(means, key=means.__getitem__)[::-1][:4] == ["FedICON", "EATA", "Tent", "T3A"]
    assert {r for r, i in theirs.items() if i < 3} == {"FedICON", "EATA", "Tent"} and theirs["FedICON"] == 0
    assert place["Local"] == theirs["Local"] == 10
    assert (place["T3A"], theirs["T3A"], place["FedProx"], theirs["FedProx"]) == (3, 7, 7, 3)
    gaps = [f"{m['FedICON'] - m['EATA']:.1f}" for m in (means, printed, old)]
    assert "FedICON is {} points above EATA (paper {}), by the recipe of the text {}.".format(*gaps) in page
    assert (
        f"with the paper is {agreement(means, printed)}, by the recipe of the text {agreement(old, printed)};" in page
    )
    for i, domain in enumerate(("MNIST", "SVHN", "USPS", "MNIST-M")):
        own, text_, paper_ = (of(table, (domain,)) for table in (ours, before, paper))
        said = f"on {domain} {'it is ' if i == 0 else ''}{agreement(own, paper_)} ({agreement(text_, paper_)})"
        assert said in page
        assert max(paper_, key=paper_.__getitem__) == "FedICON"
    first = {d: max(rows, key=lambda r, d=d: ours[r, d]) for d in DOMAINS}
    assert (first["MNIST"], first["USPS"]) == ("FedICON", "FedICON")
    above = [ours[r, "MNIST-M"] - ours["FedICON", "MNIST-M"] for r in ("EATA", "Tent")]
    assert "EATA and Tent are {:.1f} and {:.1f} points above it on MNIST-M".format(*above) in page
    (svhn,) = {f"{ours[r, 'SVHN'] - ours['FedICON', 'SVHN']:.1f}" for r in ("EATA", "Tent")}
    assert f"on MNIST-M, and {svhn} on SVHN" in page


def joined(parts):
    return "+".join(p for p in PARTS if p in parts) or "nothing"


def test_the_numbers_of_table_8_and_what_its_parts_gain(page):
    released, text, paper = ({row: value for (row, _), value in table.items()} for table in both(8))
    for row, printed in paper.items():
        name = {"extract+share+adapt": "all"}.get(row, row).replace("+", " + ")
        assert f"| {name} | {numbers(released[row])} | {text[row]['mean']:.1f} | {printed:.1f} |" in page
    ours, before = ({row: c["mean"] for row, c in table.items()} for table in (released, text))

    def gains(part, beside):
        return [m[joined((*beside, part))] - m[joined(beside)] for m in (ours, before, paper)]

    nearer = 0
    for part in PARTS:
        line = []
        for beside in ((), *((p,) for p in PARTS), tuple(p for p in PARTS if p != part)):
            if part in beside:
                line.append("-")
                continue
            own, old, printed = gains(part, beside)
            nearer += abs(own - printed) < abs(old - printed)
            line.append(f"{own:.1f} ({old:.1f}, {printed:.1f})")
        assert f"| {part} | {' | '.join(line)} |" in page
    assert nearer == 9 and "Nine of the twelve gains lie nearer to the paper than by the text" in page
    alone, shared = gains("adapt", ()), gains("adapt", ("share",))
    assert all(gains("adapt", b)[0] > 0 for b in ((), ("extract",), ("share",), ("extract", "share")))
    told = (alone[0], shared[0], alone[2], shared[2], alone[1], shared[1])
    line = (
        "alone by {:.1f} points and beside sharing by {:.1f}, where the paper has {:.1f} and {:.1f}, and the recipe of "
    )
    assert (line + "the text {:.1f} and {:.1f}.").format(*told) in page
    both_, extracted = gains("share", ("extract", "adapt")), gains("adapt", ("extract",))
    own, old, printed = gains("share", ())
    assert f"gains in the paper**: {own:.1f} points (paper {printed:.1f}), by the recipe of the text {old:.1f}." in page
    assert f"gains too little, {both_[0]:.1f} ({both_[2]:.1f})" in page
    high = [ours[row] - printed for row, printed in paper.items() if "extract" in row]
    assert f"by {min(high):.1f} to {max(high):.1f} points, and adapting gains {extracted[0]:.1f} beside it" in page
    assert f"in the paper {extracted[2]:.1f}:" in page
    row = "extract+adapt"
    assert f"({ours[row]:.1f} and {before[row]:.1f}; paper {paper[row]:.1f})" in page
    apart, old = ([m[r] - paper[r] for r in paper] for m in (ours, before))
    assert (near(apart), near(old)) == (3, 1) and "three of eight numbers are within 3 points, by the text one" in page
    assert sum(abs(a) < abs(b) for a, b in zip(apart, old, strict=True)) == 4 and "four of eight are nearer" in page
    assert f"the median difference is {middle(apart)} instead of {middle(old)}" in page
    first = (ROOT / "docs/papers/fedicon.md").read_text().split("## What the differences have in common")[0]
    assert f"[as released code has it](#the-tables-as-released-code-has-them) it gives {alone[0]:.1f}." in first


def test_the_numbers_of_table_9(page):
    released, text, paper = both(9)
    digits, office = ({r: released[r, c] for r, c in paper if c == column} for column in ("Digit-5", "Office-10"))
    for row, cell in digits.items():
        old, printed = text[row, "Digit-5"]["mean"], paper[row, "Digit-5"]
        assert f"| {row} | {numbers(cell)} | {old:.1f} | {printed:.1f} |" in page
    ours, before = off(released, paper), off(text, paper)
    us, icon = ("FedICON-us", "Digit-5"), ("FedICON", "Digit-5")
    assert abs(ours[us]) > abs(before[us])
    lost = [table[icon]["mean"] - table[us]["mean"] for table in (released, text)]
    assert (
        f"FedICON-us loses {lost[0]:.1f} points to FedICON, by the text {lost[1]:.1f}, in the paper "
        f"{paper[icon] - paper[us]:.1f}. It is fourth of five, and in the paper second."
    ) in page
    assert ranks({r: c["mean"] for r, c in digits.items()})["FedICON-us"] == 3
    assert ranks({r: paper[r, "Digit-5"] for r in digits})["FedICON-us"] == 1
    close = [r for r in digits if abs(ours[r, "Digit-5"]) <= 3]
    assert close == ["Local", "FedAvg", "FedAvg-FT"] and f"FedICON is {ours[icon]:.1f} above it" in page
    again = [(c["mean"], text[row, "Office-10"]["mean"]) for row, c in office.items()]
    told = [f"{a:.1f} for {row} ({b:.1f})" for row, (a, b) in zip(office, again, strict=True)]
    told[0] = told[0].replace(")", " before)")
    assert f"its means are {', '.join(told[:-1])} and {told[-1]}" in page
    pairs = [p for row, c in office.items() for p in zip(c["ours"], text[row, "Office-10"]["ours"], strict=True)]
    assert f"single seeds differ by up to {max(abs(a - b) for a, b in pairs):.1f} points" in page


def test_what_was_run_of_table_7(page):
    found = body("released-table7-paper")
    assert found["seeds"] == [0] and "five rows were run, with seed 0 alone" in page
    released, text, paper = both(7)
    rows = list(dict.fromkeys(row for row, _ in released))
    assert rows == ["Local", "FedAvg", "FedAvg-FT", "FedProx", "T3A"] and len(paper) == len(released) == 20
    for row in rows:
        places = [(row, d) for d in DOMAINS]
        told = [f"{released[at]['mean']:.1f} ({text[at]['mean']:.1f}, {paper[at]:.1f})" for at in places]
        assert f"| {row} | {' | '.join(told)} |" in page
    ours, before = off(released, paper).values(), off(text, paper).values()
    above = sum(x > 0 for x in ours)
    assert f"{above} of these 20 numbers are above the paper, by up to {max(ours):.1f} points" in page
    assert f"the median difference is {middle(ours)}, and {middle(before)} by the recipe of the text" in page
    assert (near(ours), near(before)) == (2, 5) and "which has five within 3 points instead of two" in page


def test_office_was_trained_anew_on_the_same_data():
    """Of both tables: the same trainings, seeds and data, and of the stored trainings those of before."""
    old, new = (
        {r["training_hash"]: r for r in body(name)["records"] if r["data_hashes"]["examples"] == "edba9ff34152754c"}
        for name in ("table9-paper", "released-table9-paper")
    )
    assert set(old) == set(new) and len(new) == 12
    for name, record in new.items():
        assert record["data_hashes"] == old[name]["data_hashes"]
        kept = json.loads((ROOT / f"results/trainings/{name}.json").read_text())["environment"]["commit"]
        assert kept == old[name]["environment"]["commit"] != record["environment"]["commit"]
        assert (old[name]["trained_together"], record["trained_together"]) == (3, 1)


@pytest.mark.parametrize("number", [1, 2, 5, 7, 8])
def test_the_stored_trainings_make_the_stored_tables(number):
    """Every training of the table is kept, with the accuracies that the table is made of."""
    found = body(f"released-table{number}-paper")
    kept = [json.loads((ROOT / f"results/trainings/{h}.json").read_text()) for h in found["trainings"]]
    seen = {
        round(100 * value, 4) for r in kept for t in r["tests"].values() for value in (*t["per_client"], t["accuracy"])
    }
    assert {v for c in found["cells"] for v in c["ours"]} <= seen
