"""What strategies chose, in the report: gaps to the oracle by value, and nothing where no run chose."""

from __future__ import annotations

import re
from typing import Any

from made_up import EVIL, Page, fake, suite

from acclimate.reporting.report import render

GAPS = {("entropy", "original"): (0.02, 0.04), ("entropy", "mixture"): (0.10, 0.10)}
GAPS |= {("snd", "original"): (0.05, 0.05), ("snd", "mixture"): (0.01, 0.03)}
GAPS |= {("oracle", "original"): (0.0, 0.0), ("oracle", "mixture"): (0.0, 0.0)}


def chosen(seed: int) -> dict[str, Any]:
    run = fake("fedavg", seed=seed)
    rows = [
        {"strategy": s, "stream": on, "by": "stream", "gap": gaps[seed], "accuracy": 0.9 - gaps[seed], "per_client": []}
        | {"chosen": {"tent": 3} if s == "entropy" else {"t3a": 2, "bn": 1}}
        for (s, on), gaps in GAPS.items()
    ]
    run["results"]["selected"] = {"rows": rows, "candidates": [], "left_out": []}
    return run


def test_gaps_are_means_over_seeds_and_the_least_of_a_column_is_bold() -> None:
    assert "Choice without labels" not in render(suite())
    text = render([chosen(0), chosen(1)])
    Page(text)
    part = text.split("Choice without labels</h2>")[1].split("</section>")[0]
    assert "<b>snd</b> comes nearest to the oracle: 3.5 points below it." in part
    rows = {r[0]: r[1] for r in re.findall(r"<th scope='row'>(.*?)</th>(.*?)</tr>", part)}
    cells = {name: re.findall(r'<td class="n">(.*?)</td>', row) for name, row in rows.items()}
    assert cells["entropy"] == ["<b>3.0</b><small>tent</small>", "10.0<small>tent</small>", "6.5", "83.5"]
    assert cells["snd"] == ["5.0<small>t3a and 1 more</small>", "<b>2.0</b><small>t3a and 1 more</small>",
                            "<b>3.5</b>", "86.5"]  # fmt: skip
    assert cells["oracle (test labels)"][2:] == ["0.0", "90.0"]


def test_a_run_that_is_there_twice_counts_once() -> None:
    """Seed 0 lies in two folders; a run of other streams of the same seed is no repeat."""
    part = render([chosen(0), chosen(1)]).split("Choice without labels</h2>")[1].split("</section>")[0]
    first, second, other = chosen(0), chosen(0), chosen(1)
    assert part in render([first, second, other])
    rows = first["results"]["selected"]["rows"]
    halves = [[r for r in rows if (r["stream"] == "original") is own] for own in (True, False)]
    first["results"]["selected"]["rows"], second["results"]["selected"]["rows"] = halves
    split = render([first, other, second]).split("Choice without labels</h2>")[1].split("</section>")[0]
    assert "<b>snd</b> comes nearest to the oracle: 3.5 points below it." in split


def test_names_cannot_break_it_and_a_stream_may_lack_a_strategy() -> None:
    run = chosen(0)
    run["results"]["selected"]["rows"][0] |= {"strategy": EVIL, "chosen": {EVIL: 1}}
    run["results"]["selected"]["rows"][1]["gap"] = None
    text = render([run])
    Page(text)
    assert EVIL not in text.split("Choice without labels</h2>")[1].split("</section>")[0]
    assert '<td class="n">-</td>' in text
