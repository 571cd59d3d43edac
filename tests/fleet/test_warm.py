"""The program that starts a node's messages: a process for each, forked from one that has torch in memory."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="the fleet needs Flower: pip install 'acclimate[flower]'")

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.types import ExecutionSpec

from acclimate.fleet import warm

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux only")


def spec(**more):
    told = {"task_type": TaskType.CLIENT_APP, "runtime_api_address": "127.0.0.1:1", "token": "t", "insecure": False}
    rest = {"root_certificates_path": "ca.crt", "runtime_dependency_install": False, "parent_pid": 1}
    return ExecutionSpec(**{**told, **rest, "suppress_output": False, "task_id": 1, "fab_hash": None, **more})


@pytest.fixture
def pipe():
    ends = list(os.pipe())
    yield ends
    for end in ends:
        os.close(end)


def test_a_message_is_handed_over_as_one_line(pipe):
    assert warm.handed_over(spec(), pipe[1])
    line = os.read(pipe[0], 10_000)
    assert line.endswith(b"\n") and json.loads(line) == {
        "runtime_api_address": "127.0.0.1:1",
        "token": "t",
        "insecure": False,
        "root_certificates": "ca.crt",
    }


@pytest.mark.parametrize("more", [{"task_type": TaskType.SERVER_APP}, {"runtime_dependency_install": True}])
def test_what_it_does_not_know_starts_as_flower_starts_it(pipe, more):
    assert not warm.handed_over(spec(**more), pipe[1])


def test_where_the_nursery_has_died_messages_start_as_flower_starts_them(pipe):
    os.close(pipe[0])
    pipe[0] = os.dup(pipe[1])  # for the fixture to close
    assert not warm.handed_over(spec(), pipe[1])


NURSERY = """\
import os, signal
from acclimate.fleet import warm

loaded = []

def work(task):
    if task["token"] == "bad":
        raise RuntimeError("this message fails")
    plain = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.write(1, f"{task['token']} {os.getpid()} {os.getppid()} {len(loaded)} {plain}\\n".encode())

warm.work, warm.preload = work, lambda: loaded.append("torch")
requests = warm.start_nursery()
os.write(requests, b'{"token": "one"}\\n{"token": "bad"}\\n{"token": "two"}\\n')
assert not loaded, "the SuperExec itself does without"
os.close(requests)
_, status = os.wait()
assert status == 0
os.write(1, f"parent {os.getpid()}\\n".encode())
"""


def test_every_message_has_a_process_of_its_own_and_a_bad_one_takes_nobody_with_it():
    done = subprocess.run([sys.executable, "-c", NURSERY], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    told = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert set(told) == {"one", "two", "parent"} and "this message fails" in done.stderr
    (one, nursery, *ready), (two, same, *also) = told["one"], told["two"]
    assert nursery == same and len({one, two, nursery, *told["parent"]}) == 4
    assert ready == also == ["1", "True"], "all is imported, once, and Ctrl-C works again"
