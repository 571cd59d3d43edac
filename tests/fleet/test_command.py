"""Who may command: site policies, apps by hash, runs by ticket, and what is noted of it."""

import importlib
import io
import json
import warnings
import zipfile
from dataclasses import replace

import pytest

import acclimate as ac
from acclimate.filters import LocalDP, Masked
from acclimate.fleet import admin, audit
from acclimate.fleet.policy import Policy, PolicyRefusal
from acclimate.store import RunError

pytest.importorskip("flwr")
from acclimate.fleet import guard, server_app, site_folders

E = ac.Experiment(method=ac.methods.FedAvg(weights="uniform"))


@pytest.mark.parametrize(
    ("rules", "filters", "rule"),
    [
        ({"least_noise": 2.0}, (), "least_noise"),
        ({"least_noise": 2.0}, (LocalDP(noise=1.9),), "least_noise"),
        ({"least_noise": 2.0}, (LocalDP(noise=9.0, secret="seed"),), "least_noise"),
        ({"least_noise": 2.0}, (LocalDP(noise=9.0, secret="PATH"),), "least_noise"),
        ({"least_noise": 2.0}, (LocalDP(noise=2.0),), None),
        ({"must_mask": True}, (LocalDP(),), "must_mask"),
        ({"must_mask": True}, (Masked(),), "must_mask"),
        ({"must_mask": True}, (Masked(secret="MASKS"),), None),
        ({"must_mask": True}, (Masked(secret="HOME"),), "must_mask"),  # a value that a server can guess
        ({"must_mask": "SITES"}, (Masked(secret="MASKS"),), "must_mask"),
        ({"must_mask": "SITES"}, (Masked(secret="SITES"),), None),
        ({"allowed_methods": ["fedprox"]}, (), "allowed_methods"),
        ({"allowed_methods": ["FedAvg"]}, (), None),
        ({}, (), None),
    ],
)
def test_a_request_that_asks_for_less_is_refused_by_the_name_of_the_rule(tmp_path, rules, filters, rule):
    (tmp_path / "policy.json").write_text(json.dumps(rules))
    policy, asked = Policy.load(tmp_path), replace(E, filters=filters)
    if rule is None:
        return policy.check(asked)
    with pytest.raises(PolicyRefusal, match=f"this site's policy refuses the request: {rule}: "):
        policy.check(asked)


@pytest.mark.parametrize(
    "body", ['{"least_noise": true}', '{"must_mask": 1}', '{"allowed_methods": "x"}', '{"a": 1}', "["]
)
def test_a_policy_that_cannot_be_understood_is_an_error_and_none_is_no_demand(tmp_path, body):
    assert Policy.load(tmp_path) == Policy()
    (tmp_path / "policy.json").write_text(body)
    with pytest.raises(RunError, match=r"policy\.json"):
        Policy.load(tmp_path)


def packed(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, text in files.items():
            z.writestr(name, text)
    return out.getvalue()


def test_an_app_runs_only_with_its_hash_on_the_list(tmp_path, monkeypatch):
    from flwr.cli.build import build_fab_from_disk

    run_clientapp = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    run_serverapp = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    monkeypatch.setattr(run_serverapp, "install_from_fab", None)  # and put back afterwards

    site_folders.init(tmp_path / "f", host="h", sites=["a"], settings="rounds=1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        fab = build_fab_from_disk(tmp_path / "f" / "app")
    allow = tmp_path / "f" / "sites" / "a" / guard.LIST
    guard.check(fab, allow)
    installed = []
    monkeypatch.setattr(run_clientapp, "install_from_fab", lambda fab, **more: installed.append(fab))
    monkeypatch.setenv(guard.VARIABLE, str(allow))
    monkeypatch.setenv(guard.LOG, str(tmp_path / "audit.jsonl"))
    guard.install_guard()
    run_clientapp.install_from_fab(fab, skip_prompt=True)
    evil = packed({"pyproject.toml": "", "x.py": "print(open('node.key').read())"})
    with pytest.raises(PermissionError, match=f"{guard.digest(evil)} is not on this machine's list of apps"):
        run_clientapp.install_from_fab(evil)
    assert installed == [fab]
    (line,) = audit.lines(tmp_path / "audit.jsonl")
    assert line["what"] == "refused" and guard.digest(evil) in line["who"] and line["when"].endswith("+00:00")
    monkeypatch.delenv(guard.VARIABLE)
    with pytest.raises(PermissionError):  # no list: nothing runs
        run_clientapp.install_from_fab(fab)
    assert guard.digest(packed({"a": "1", "b": "2"})) == guard.digest(
        packed({"b": "2", "a": "1", ".info/CONTENT": "x"})
    )
    assert guard.digest(packed({"a": "1"})) != guard.digest(packed({"a": "2"}))
    for name in (".info/../x.py", ".info/x.py", ".info/x/y", ".info"):  # only Flower's own lists are left out
        assert guard.digest(packed({"a": "1", name: "evil"})) != guard.digest(packed({"a": "1"})), name


def test_folders_and_keys_are_their_owners_alone_and_the_server_listens_on_this_machine(tmp_path):
    site_folders.init(tmp_path / "f", host="h", sites=["a"], settings="rounds=1")
    for name in ("server", "authority", "sites/a"):
        assert (tmp_path / "f" / name).stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "f" / "server" / "admin.key").stat().st_mode & 0o777 == 0o600
    start = (tmp_path / "f" / "server" / "start.sh").read_text()
    assert '--host "${1:-127.0.0.1}"' in start and "0.0.0.0" not in start
    with pytest.raises(ValueError, match="nowhere"):
        site_folders.init(tmp_path / "g", host="h", sites=["a"], settings="rounds=1", bind="nowhere")


def test_a_run_needs_a_fresh_ticket_for_exactly_its_configuration(tmp_path):
    key, log = tmp_path / "admin.key", tmp_path / "audit.jsonl"
    key.write_bytes(bytes(range(32)))
    config = {
        "task": "train",
        "data": "sites",
        "run-folder": "/r",
        "settings": "rounds=1",
        "selection": "",
        "adapter": "",
    }
    good = {**config, "admin": admin.ticket(key.read_bytes(), config)}
    admin.admit(good, key, log)
    cases = [
        (good, "used before"),
        (config, "not signed by the admin key"),
        *[({**good, name: "other"}, "not signed by the admin key") for name in (*config, "registry")],
        ({**config, "admin": admin.ticket(bytes(32), config)}, "not signed by the admin key"),
        ({**config, "admin": admin.ticket(key.read_bytes(), config, now=1e9)}, "more than 600 s old"),
        ({**config, "admin": "é.x"}, "not signed by the admin key"),
    ]
    for asked, reason in cases:
        with pytest.raises(PermissionError, match=reason):
            admin.admit(asked, key, log)
    assert [line["who"] for line in audit.lines(log)] == ["admin"] + ["stranger"] * len(cases)
    assert log.stat().st_mode & 0o777 == 0o600


def test_the_server_app_asks_for_the_ticket_before_it_touches_anything(tmp_path, monkeypatch):
    (tmp_path / "admin.key").write_bytes(bytes(32))
    monkeypatch.setenv(admin.VARIABLE, str(tmp_path / "admin.key"))
    with pytest.raises(PermissionError, match="start runs with"):
        server_app.conduct(None, {"run-folder": str(tmp_path / "new"), "task": "train"})
    assert not (tmp_path / "new").exists() and audit.lines(tmp_path / "audit.jsonl")[0]["run"].endswith("new")
