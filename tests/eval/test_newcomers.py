"""Newcomers have no labels, so their models lack what a personaliser gives those of other clients."""

from __future__ import annotations

import acclimate as ac
from acclimate.experiment.settings import expand

QUICK = (
    *("data.clients=2", "data.new_clients=1", "data.fraction=0.1", "data.partition=iid", "model=mlp"),
    *("model.hidden=4", "rounds=1", "method.work.epochs=1", "method.work.batch=8", "device=cpu", "analysis=true"),
)


def test_an_adapter_that_needs_what_newcomers_lack_is_refused_on_their_stream_alone():
    e = expand([*QUICK, "personal=means", "adapters=neo-client,none", "streams=original,new-clients"])[0]
    fit = ac.train(e)
    table = ac.evaluate(fit)
    assert fit.history[-1]["adapter"] == "neo-client" and list(fit.history[-1]["streams"]) == ["original"]
    last = {(r["adapter"], r["stream"]) for r in table.rows if r["selection"] == "last"}
    assert last == {("neo-client", "original"), ("none", "original"), ("none", "new-clients")}
    assert [r["reason"][:39] for r in table.refused] == ["stream new-clients: NEO with against='c"]


def test_an_exchange_that_one_stream_has_too_few_clients_for_is_refused_there_alone():
    """One newcomer has nobody to exchange with; the two clients of the stream behind it have each other."""
    e = expand([*QUICK, "model.norm=batch", "adapters=together", "streams=new-clients,original"])[0]
    fit = ac.train(e)
    table = ac.evaluate(fit)
    assert {(r["adapter"], r["stream"]) for r in table.rows} == {("together", "original")}
    assert {r["reason"] for r in table.refused} == {
        "stream new-clients: Together exchanges with other clients: it needs at least 2 clients with a stream, not 1"
    }
    alone = ac.evaluate(fit, streams=[s for s in e.streams if isinstance(s, ac.shifts.NewClients)])
    assert [r["reason"][:9] for r in alone.refused] == ["Together "]  # of all streams: it is said once
