"""Secure sums in a fleet: clients drop out at every step, or send garbage, and the sum is that of the others."""

import functools
from dataclasses import replace

import pytest
import torch
from attacked import FIRST, Federation, MemoryLink, honest, parcel
from attacked import experiment as small

from acclimate.backends import Serial
from acclimate.backends.flower import secure_rounds
from acclimate.backends.flower.protocol import NodeAnswer
from acclimate.core import fit, tree
from acclimate.filters import Masked, shamir
from acclimate.filters.secure_sum import Keys
from acclimate.fleet.site_sums import SiteSums
from acclimate.running import run as api

SUMS = Masked(threshold=0.75)


@functools.cache
def masked(filters=(SUMS,)):
    return small("fedavg", "data.fraction=0.3", filters=filters)


class SumLink(MemoryLink):
    """Nodes of one process with the site's half of secure sums. `change` gets every answer, and `seen` what came."""

    def __init__(self, folder, e, worker, train, change):
        super().__init__(worker, train, honest)
        self.sites = {c: SiteSums(folder / str(c), e) for c in range(train.clients)}
        self.change, self.seen, self.sums = change, [], 0

    def exchange(self, requests, seconds, group):
        out = []
        for r in requests:
            c, step = r.node - FIRST, step_of(r)
            self.sums += step == "keys" and r is requests[0]
            answer = self.change(c, step, self.sums - 1, self.honest(r))
            self.seen.append((c, step, answer))
            out += [] if answer is None else [answer]
        return out

    def honest(self, request):
        c, told = request.node - FIRST, request.fields.get("sum")
        if told is None:
            return super().honest(request)
        try:
            if request.kind == "query":
                return NodeAnswer(request.node, {}, {"sum": {str(c): self.sites[c].answer(c, told)}, "failed": {}})
            self.worker = replace(self.worker, mask=self.sites[c].mask(c, request.fields))
            return super().honest(request)
        except ValueError as e:
            return NodeAnswer(request.node, {}, {"round": 0, "failed": {str(c): ["error", str(e)]}})


def step_of(request):
    return request.fields["sum"].get("step", "message") if "sum" in request.fields else "hello"


def trained(
    folder, rounds=2, lose=(), step="message", tries=range(100), change=None, options=None, e=None, strange=None
):
    """A federation after rounds in which the answers of some clients to a step are lost, or changed, in some sums."""

    def odd(c, now, sum, answer):
        if now != step or c not in lose or sum not in tries:
            return answer
        return None if change is None else change(answer)

    e = masked() if e is None else e
    f = Federation(e, **{"tries": 1, **(options or {})})
    f.link = SumLink(folder, e, f.worker, f.link.train, odd)
    f.link.sites |= dict(strange or {})
    f.engine.link = f.engine.roster._link = f.link
    f.engine._sums = secure_rounds.of(f.worker, f.link, f.engine.roster, 1.0, f.options.tries)
    f.run(rounds)
    return f


def same(f, cohorts):
    """Whether the model is that of rounds of these clients, in one process, where masks are simulated."""
    world, worker, engine = api.build(replace(masked(), backend=Serial()))
    server = fit.start(worker, engine, world.clients).server
    for r, clients in enumerate(cohorts):
        if clients:
            server, _, _ = fit.one_round(worker, engine, server, torch.tensor(clients), r)
    got, expected = tree.flatten(f.state.server), tree.flatten(server)
    assert set(got) == set(expected) and expected
    return all(torch.equal(got[k], expected[k]) for k in expected)


def faults(f):
    return [(x["round"], x["client"], x["kind"]) for x in f.state.faults]


def test_where_nobody_is_lost_the_sum_is_that_of_all(tmp_path):
    f = trained(tmp_path)
    assert faults(f) == [] and same(f, [[0, 1, 2, 3]] * 2)
    assert [step for c, step, _ in f.link.seen if c == 2] == ["hello", *["keys", "shares", "message", "open"] * 2]


@pytest.mark.parametrize(("step", "rounds"), [("keys", 1), ("shares", 1), ("message", 2)])
def test_a_client_that_drops_out_at_any_step_is_left_out_and_the_round_goes_on(tmp_path, step, rounds):
    f = trained(tmp_path, rounds, lose=(3,), step=step)
    assert faults(f) == [(r, 3, "late") for r in range(rounds)] and same(f, [[0, 1, 2]] * rounds)


def test_a_client_that_is_silent_at_the_end_counts_all_the_same(tmp_path):
    f = trained(tmp_path, rounds=1, lose=(1,), step="open")
    assert faults(f) == [] and same(f, [[0, 1, 2, 3]])


def garbage(answer):
    up = answer.parcels["up.2"].open()
    return answer._replace(parcels={"up.2": parcel(tree.map(lambda x: x[..., None], up))})


def told(value):
    return lambda answer: answer._replace(fields={"sum": value, "failed": {}})


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("message", garbage),
        ("keys", told({"2": ["1", "1", ""]})),
        ("keys", told({"2": ["zz", 3, {}]})),
        ("keys", told({})),
        ("shares", told({"2": {"check": "00", "shares": [3]}})),
        ("shares", told([])),
    ],
    ids=["message", "trivial keys", "no keys", "nothing", "no shares", "no object"],
)
def test_garbage_is_a_fault_of_its_sender_alone(tmp_path, step, change):
    f = trained(tmp_path, rounds=1, lose=(2,), step=step, change=change)
    assert faults(f) == [(0, 2, "shape")] and same(f, [[0, 1, 3]])
    assert f.state.intake["strikes"].tolist() == [0, 0, 1, 0]


def lied(answer):
    own = answer.fields["sum"]
    wrong = {c: {part: dict.fromkeys(v[part], "5") for part in ("seeds", "keys")} for c, v in own.items()}
    return told(wrong)(answer)


def test_a_wrong_share_at_the_end_is_got_round(tmp_path):
    f = trained(tmp_path, rounds=1, lose=(0,), step="open", change=lied)
    assert faults(f) == [(0, 0, "range")] and same(f, [[0, 1, 2, 3]])
    assert f.state.intake["strikes"].tolist() == [1, 0, 0, 0]


def test_a_liar_at_the_end_cannot_let_another_be_struck(tmp_path):
    """All shares are needed, and client 0 opens wrong ones: the round is lost, and it is the one who is named."""
    e = masked((replace(SUMS, threshold=1.0),))
    f = trained(tmp_path, rounds=1, lose=(0,), step="open", change=lied, e=e)
    assert faults(f) == [(0, 0, "range"), (0, -1, "round")]
    assert f.state.intake["strikes"].tolist() == [1, 0, 0, 0]


def withheld(answer):
    """No shares for client 2, as if its keys were not signed."""
    (own,) = answer.fields["sum"].values()
    return told({"1": {**own, "shares": {c: box for c, box in own["shares"].items() if c != "2"}}})(answer)


def test_a_client_that_keeps_shares_back_is_left_out_and_nobody_else(tmp_path):
    e = replace(masked((replace(SUMS, threshold=0.6),)), data=replace(masked().data, clients=3))
    f = trained(tmp_path, rounds=1, lose=(1,), step="shares", change=withheld, e=e)
    assert faults(f) == [(0, 1, "shape")] and f.state.intake["strikes"].tolist() == [0, 1, 0]


def test_where_two_clients_disagree_nobody_is_struck(tmp_path):
    """One of them keeps its share back, or the other's keys are not signed: nobody else can tell."""
    e = replace(masked(), data=replace(masked().data, clients=2))

    def none(answer):
        (own,) = answer.fields["sum"].values()
        return told({"1": {**own, "shares": {}}})(answer)

    f = trained(tmp_path, rounds=1, lose=(1,), step="shares", change=none, e=e)
    assert f.state.intake["strikes"].tolist() == [0, 0]


def test_a_liar_does_not_end_a_run_whose_sums_need_everybody(tmp_path):
    e = masked((replace(SUMS, threshold=1.0),))
    f = trained(tmp_path, rounds=1, lose=(2,), step="keys", change=told({}), e=e, options={"quorum": 1.0, "tries": 2})
    assert faults(f) == [(0, 2, "shape"), (0, -1, "round")] and f.state.round == 1


def cheated(answer):
    """Its own shares, sealed for nobody: whoever drops out after that cannot be helped."""
    (own,) = answer.fields["sum"].values()
    return told({"3": {**own, "shares": {c: "00" * (len(box) // 2) for c, box in own["shares"].items()}}})(answer)


def test_a_client_whose_shares_give_nothing_counts_and_is_struck_where_it_is_missed(tmp_path):
    f = trained(tmp_path, rounds=1, lose=(3,), step="shares", change=cheated)
    assert faults(f) == [(0, -1, "round")], "nobody has a share of the seed of its own mask"
    assert f.state.intake["strikes"].tolist() == [0, 0, 0, 1]


@pytest.mark.slow
def test_a_client_whose_shares_give_nothing_is_suspended_in_the_end(tmp_path):
    f = trained(tmp_path, rounds=5, lose=(3,), step="shares", change=cheated)
    assert f.state.fault_counts == {"-1": {"round": 3}, "3": {"suspended": 2}}
    assert same(f, [[], [], [], [0, 1, 2], [0, 1, 2]])


def test_below_the_threshold_the_round_is_left_out_with_a_sentence_and_the_next_goes_on(tmp_path):
    f = trained(tmp_path, rounds=3, lose=(1, 3), tries=[1])
    told = {(x["round"], x["client"]): x["reason"] for x in f.state.faults}
    assert set(told) == {(1, 1), (1, 3), (1, -1)}
    assert "messages of 2 of 4 clients, and 3 are needed" in told[1, -1]
    assert same(f, [[0, 1, 2, 3], [], [0, 1, 2, 3]]) and f.state.mine["version"].tolist() == [3] * 4


@pytest.mark.parametrize("step", ["keys", "shares"])
def test_too_few_at_an_early_step_leave_the_round_out(tmp_path, step):
    f = trained(tmp_path, lose=(0, 3), step=step, tries=[0])
    assert (0, -1, "round") in faults(f) and same(f, [[], [0, 1, 2, 3]])


def test_too_few_at_the_last_step_leave_the_round_out(tmp_path):
    f = trained(tmp_path, rounds=1, lose=(0, 3), step="open")
    assert faults(f) == [(0, -1, "round")]
    assert "2 clients opened their shares; 3 are needed" in f.state.faults[0]["reason"]


def test_shares_whose_answers_are_lost_are_asked_for_again(tmp_path):
    """Both nodes have opened, and the answers never came: the round is not lost with them."""
    lost = []

    def once(answer):
        lost.append(answer.node)
        return None if lost.count(answer.node) == 1 else answer

    f = trained(tmp_path, rounds=1, lose=(0, 3), step="open", change=once, options={"tries": 2})
    assert faults(f) == [] and same(f, [[0, 1, 2, 3]]) and f.link.sums == 1 and len(lost) == 4


def test_a_try_again_is_a_new_sum_of_everybody(tmp_path):
    f = trained(tmp_path, rounds=1, lose=(1, 3), tries=[0], options={"tries": 2})
    assert faults(f) == [] and f.link.sums == 2 and same(f, [[0, 1, 2, 3]])


class Forger(SiteSums):
    """Signs with nothing, and believes everybody."""

    def _tag(self, name, client, keys):
        return ""

    def _accepted(self, name, told):
        return {int(c): Keys(int(seal, 16), int(mask, 16)) for c, (seal, mask, _) in told.items()}


def test_who_does_not_have_the_secret_of_the_others_is_left_out_and_struck(tmp_path, monkeypatch):
    monkeypatch.setenv("SITES", "of the sites")
    e = masked((replace(SUMS, secret="SITES"),))
    f = trained(tmp_path, rounds=1, e=e, strange={3: Forger(tmp_path / "3", e)})
    assert faults(f) == [(0, 3, "identity")] and same(f, [[0, 1, 2]])
    assert f.state.intake["strikes"].tolist() == [0, 0, 0, 1]


def test_what_the_server_sees_of_one_client_is_uniform(tmp_path):
    """16 equally likely values of the upper bits, of the lower ones, and of the sum of two messages of one client."""
    f = trained(tmp_path)
    sent = [a.parcels[f"up.{c}"].open() for c, step, a in f.link.seen if step == "message"]
    words = [torch.cat([t.reshape(-1) for t in tree.leaves(m)]).to(torch.int64) for m in sent]
    assert len(words) == 8 and min(len(w) for w in words) > 500
    for w in (*words, *(a + b for a, b in zip(words[:4], words[4:], strict=True))):
        for part in ((w >> 28) & 15, w & 15):
            count = torch.bincount(part, minlength=16).double()
            chi = float(((count - len(w) / 16).square() / (len(w) / 16)).sum())
            assert chi < 60  # 15 degrees of freedom: beyond it with a chance of 3e-7


# --- the site's half ------------------------------------------------------------------------------------------------


def sites(folder, record, clients=3):
    return {c: SiteSums(folder / str(c), masked((record,))) for c in range(clients)}


def message_for(client, name, sent, round=0):
    """The request for a client's message in a sum, from what the clients sent before."""
    boxes = {str(c): [s[part][str(client)] for part in ("shares", "marks")] for c, s in sent.items() if c != client}
    return {"round": round, "sum": {"name": name, "members": sorted(sent), "boxes": {str(client): boxes}}}


def up_to_messages(own, name, round):
    """A sum of these sites up to the last step."""
    keys = {str(c): s.answer(c, {"name": name, "step": "keys"}) for c, s in own.items()}
    sent = {c: s.answer(c, {"name": name, "step": "shares", "keys": keys, "of": len(own)}) for c, s in own.items()}
    for c, site in own.items():
        site.mask(c, message_for(c, name, sent, round))(7)


def test_a_round_is_opened_for_the_same_clients_again_or_not_at_all(tmp_path):
    """A server that went on from an older checkpoint asks again, and now a client is missing."""
    own = sites(tmp_path, replace(SUMS, threshold=0.6))
    up_to_messages(own, "a", 4)
    assert own[0].answer(0, {"name": "a", "step": "open", "survivors": [2, 0, 1]})["keys"] == {}
    up_to_messages(own, "b", 4)
    with pytest.raises(ValueError, match="client 0 has opened the sum of round 4 for other clients"):
        own[0].answer(0, {"name": "b", "step": "open", "survivors": [0, 1]})
    up_to_messages(own, "c", 4)
    assert set(own[0].answer(0, {"name": "c", "step": "open", "survivors": [0, 1, 2]})["seeds"]) == {"0", "1", "2"}
    up_to_messages(own, "d", 5)
    assert set(own[0].answer(0, {"name": "d", "step": "open", "survivors": [0, 1]})["seeds"]) == {"0", "1"}


@pytest.mark.parametrize("number", ["-1", "4", str(shamir.FIELD - 1)])
def test_a_site_gives_no_share_to_a_number_that_is_no_client(tmp_path, number):
    """The share of -1 would be the secret itself, for whoever made that key."""
    own = sites(tmp_path, SUMS)
    keys = {str(c): s.answer(c, {"name": "a", "step": "keys"}) for c, s in own.items()}
    mine = SiteSums(tmp_path / "server", masked((SUMS,))).answer(0, {"name": "a", "step": "keys"})
    with pytest.raises(ValueError, match="is none of the 4 of this run"):
        own[0].answer(0, {"name": "a", "step": "shares", "keys": {**keys, number: mine}, "of": 3})


def test_a_site_masks_once_and_never_sends_without_a_sum(tmp_path):
    own = sites(tmp_path, SUMS)
    with pytest.raises(ValueError, match="names no sum"):
        own[0].mask(0, {})
    keys = {str(c): s.answer(c, {"name": "a", "step": "keys"}) for c, s in own.items()}
    body = {"name": "a", "step": "shares", "keys": keys, "of": 3}
    sent = {c: s.answer(c, body) for c, s in own.items()}
    request = message_for(0, "a", sent)
    assert len(own[0].mask(0, request)(7)) == 7
    with pytest.raises(ValueError, match="it has masked before"):
        own[0].mask(0, request)(7)
    with pytest.raises(ValueError, match="client 0 is not in this sum"):
        own[0].answer(0, {"name": "b", "step": "open", "survivors": [0, 1, 2]})
    assert (tmp_path / "0" / "sums" / "0.json").stat().st_mode & 0o777 == 0o600
    again = own[1].answer(1, {"name": "c", "step": "keys"})
    with pytest.raises(ValueError, match="threshold=4 must be above half of the 3"):
        own[1].answer(1, {**body, "name": "c", "keys": {**keys, "1": again}, "of": 5})
    assert SiteSums(tmp_path, masked(())).mask(0, {}) is None


def test_with_a_secret_a_server_cannot_put_its_own_keys_in_place_of_a_clients(tmp_path, monkeypatch):
    monkeypatch.setenv("SITES", "of the sites alone")
    own = sites(tmp_path, replace(SUMS, secret="SITES"))
    keys = {str(c): s.answer(c, {"name": "a", "step": "keys"}) for c, s in own.items()}
    monkeypatch.setenv("SITES", "what a server guesses")
    forged = sites(tmp_path / "server", replace(SUMS, secret="SITES"))[2].answer(2, {"name": "a", "step": "keys"})
    monkeypatch.setenv("SITES", "of the sites alone")
    body = {"name": "a", "step": "shares", "of": 3}
    with pytest.raises(ValueError, match="threshold=3 must be above half of the 2"):
        own[0].answer(0, {**body, "keys": {**keys, "2": forged}})
    assert set(own[1].answer(1, {**body, "keys": keys})["shares"]) == {"0", "2"}
    plain = sites(tmp_path / "plain", SUMS)
    keys = {str(c): s.answer(c, {"name": "a", "step": "keys"}) for c, s in plain.items()}
    assert "2" in plain[0].answer(0, {**body, "keys": {**keys, "2": [*forged[:2], ""]}})["shares"], "as its card says"
