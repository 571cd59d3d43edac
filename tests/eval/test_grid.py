"""The table of an experiment: an adapter that diverges on a stream has a reason there, and no number."""

import json
import re
from dataclasses import replace

import pytest

import acclimate as ac
from acclimate.running import evaluate, train
from acclimate.running.check import check_all

WILD = ac.adapters.MEMO(views=2, steps=2, opt=ac.optim.SGD(lr=1e30))
SMALL = ac.Experiment(
    ac.data.Digits(clients=3, fraction=0.2),
    ac.models.MLP(hidden=(8,), norm="batch"),
    streams=(ac.shifts.Original(), ac.shifts.Corrupted()),
    adapters=(ac.adapters.NoAdapt(), WILD),
    rounds=2,
)
REASON = r"memo produced values that are not finite on client\(s\) 0, 1, 2 of stream (original|corrupted) at round"


def test_an_adapter_that_diverges_is_refused_and_not_scored(tmp_path):
    table = ac.run(SMALL, tmp_path / "run")
    assert {r["adapter"] for r in table.rows} == {"none"}
    assert [r["adapter"] for r in table.refused] == ["memo", "memo"]  # one for each stream
    for refused in table.refused:
        assert re.match(REASON, refused["reason"])
    kept = json.loads((tmp_path / "run" / "results.json").read_text())
    assert kept["refused"] == list(table.refused)
    assert "produced values that are not finite" in (tmp_path / "run" / "report.html").read_text()


def test_nothing_but_what_diverges_is_a_table_without_rows(tmp_path):
    table = ac.run(replace(SMALL, adapters=(WILD,)), tmp_path / "run")
    assert table.rows == () and len(table.refused) == 2


def test_what_is_tested_together_is_refused_alike(monkeypatch):
    monkeypatch.setattr(train, "can_join", lambda *_, **__: True)  # lanes are for GPUs, but run anywhere
    fits = ac.train_together([SMALL, replace(SMALL, seed=4)])
    assert evaluate._shared(fits) is not None
    for fit, table in zip(fits, ac.evaluate_together(fits), strict=True):
        assert table.refused and table.refused == ac.evaluate(fit).refused
        assert {r["adapter"] for r in table.rows} == {"none"}


def test_an_exchange_has_its_bytes_in_the_table_and_what_cannot_exchange_is_refused():
    def of(clients, *adapters):
        return ac.Experiment(
            data=ac.data.Digits(clients=clients, fraction=0.3),
            model=ac.models.MLP(hidden=(8,), norm="batch"),
            method=ac.methods.FedAvg(work=ac.Work(epochs=1)),
            adapters=adapters,
            streams=(ac.shifts.Original(batch=8),),
            rounds=1,
            backend=ac.backends.Serial(),
        )

    own, uniform = ac.adapters.Together(weights="own"), ac.adapters.Together(weights="uniform")
    both = ac.evaluate(ac.train(of(3, own, uniform)))
    own, uniform = (r["exchanged_bytes"] for r in both.rows if r["selection"] == "last")
    assert own == 0 and uniform > 0 and uniform % 8 == 0
    assert "exchanged" in str(both).splitlines()[1] and str(both).splitlines()[3].split()[-2:] == [f"{uniform}", "B"]
    with pytest.raises(ValueError, match="no adapter can be tested.*at least 2 clients"):
        check_all([of(1, ac.adapters.Together())])
    alone = ac.evaluate(ac.train(of(1, ac.adapters.Tent(), ac.adapters.Together())))
    assert [r["adapter"] for r in alone.rows if r["selection"] == "last"] == ["tent"]
    assert "at least 2 clients" in alone.refused[0]["reason"] and "exchanged" not in str(alone)


@pytest.mark.parametrize("backend", [ac.backends.Serial(), ac.backends.Vmap()], ids=["serial", "vmap"])
def test_batches_of_one_that_batch_norm_cannot_use_cost_one_cell_and_not_the_table(backend):
    """Features without places have one value per channel in such a batch: the run ended without any result."""
    streams = (ac.shifts.Original(batch=1), ac.shifts.LabelSorted(batch=4))
    adapters = (ac.adapters.Tent(), ac.adapters.NoAdapt())
    fit = ac.train(replace(SMALL, streams=streams, adapters=adapters, rounds=1, backend=backend))
    table = ac.evaluate(fit)
    cells = {(r["adapter"], r["stream"]) for r in table.rows}
    assert cells == {("tent", "label-sorted"), ("none", "label-sorted"), ("none", "original")}
    (refused,) = table.refused
    assert refused["adapter"] == "tent"
    assert refused["reason"].startswith("stream original: batch norm needs two values per channel")
