"""Server and nodes need the same acclimate: whoever has another one is refused, in a sentence that says what to do."""

from dataclasses import replace

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from fakes import FakeGrid, changed, experiment, linked, run
from flwr.app import ConfigRecord, RecordDict

from acclimate.backends.flower.protocol import WIRE, FleetError, Request, Version, version_conflict
from acclimate.fleet import records, remote
from acclimate.version import __version__

OTHERS = {
    "older": ({"acclimate": "0.0.9", "wire": WIRE}, f"acclimate 0.0.9 (message format {WIRE})"),
    "newer format": (
        {"acclimate": __version__, "wire": WIRE + 1},
        f"acclimate {__version__} (message format {WIRE + 1})",
    ),
    "before versions were sent": ({}, "an acclimate that does not tell its version"),
    "nonsense": ({"acclimate": 3, "wire": "x"}, "an acclimate that does not tell its version"),
    "endless": ({"acclimate": "1" * 10**6, "wire": WIRE}, "an acclimate that does not tell its version"),
}
HERE = f"acclimate {__version__} (message format {WIRE})"
ADVICE = "install the same version of acclimate on the server and at all nodes, and start them again"


def as_from(content: RecordDict, version: dict[str, object]) -> None:
    """Let a message say that it comes from another version."""
    if version:
        content[records.VERSION] = ConfigRecord(version)
    else:
        del content[records.VERSION]


class OldServer(FakeGrid):
    """A network whose server has another version than its nodes."""

    version: dict[str, object]

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            as_from(message.content, self.version)
        return super().push_messages(messages)


@pytest.mark.parametrize("name", OTHERS)
def test_a_node_refuses_a_server_of_another_version(tmp_path, name, caplog):
    version, theirs = OTHERS[name]
    grid = OldServer(tmp_path)
    grid.version = version
    with linked(grid, experiment()) as link:
        answers = link.exchange([Request(100, "query", {}, {}), Request(101, "train", {}, {"round": 0})], 2.0, "0")
    expected = f"the server has {theirs}, but the node has {HERE}; {ADVICE}"
    assert [(a.node, a.error, a.kind) for a in answers] == [(100, expected, "error"), (101, expected, "error")]
    assert expected in caplog.text, "the site's own log says it too"
    assert not list(tmp_path.iterdir()), "nothing else of the request was read, and nothing was written"


def other_node(version, nodes=(101,)):
    """These nodes send answers of another version; others do not."""

    def tamper(node, request, reply):
        other = changed(reply, lambda name, record: record)
        if node in nodes:
            as_from(other.content, version)
        return [other]

    return tamper


@pytest.mark.parametrize("name", OTHERS)
def test_a_server_does_not_use_a_node_of_another_version(tmp_path, name):
    version, theirs = OTHERS[name]
    e = replace(experiment(patience=0.2), rounds=1)
    grid = FakeGrid(tmp_path, tamper=other_node(version))
    results = run(grid, e, tmp_path / "run")
    assert {(f["client"], f["kind"]) for f in results["faults"]} == {(1, "lost"), (3, "lost")}
    conflict = f"node 101 is not used: the server has {HERE}, but the node has {theirs}; {ADVICE}"
    assert all(conflict in f["reason"] for f in results["faults"])
    assert {kind for node, kind in grid.asked if node == 101} == {"query"}, "it gets neither a model nor a test"


def test_below_the_quorum_the_error_names_both_versions(tmp_path):
    version, theirs = OTHERS["older"]
    e = experiment(patience=0.2, quorum=0.75, tries=1)
    with pytest.raises(FleetError) as error:
        run(FakeGrid(tmp_path, tamper=other_node(version)), e, tmp_path / "run")
    assert f"the server has {HERE}, but the node has {theirs}; {ADVICE}" in str(error.value)


def test_real_sites_of_another_version_are_refused_before_their_data_counts(tmp_path):
    version, theirs = OTHERS["older"]
    e, grid = experiment(), FakeGrid(tmp_path, tamper=other_node(version, nodes=(100, 101)))
    with linked(grid, e) as link, pytest.raises(FleetError) as error:
        remote.gather(link, e.data, 1.0)
    conflict = f"the server has {HERE}, but the node has {theirs}; {ADVICE}"
    assert str(error.value) == f"node 100 cannot tell about its data: {conflict}"


def test_every_message_says_its_version_and_equal_versions_agree():
    assert records.version_of(records.pack({}, {})) == Version(__version__, WIRE)
    assert version_conflict(server=Version(), node=Version()) is None
