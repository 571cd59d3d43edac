"""A node's `flower-superexec` with torch in memory: a message's process is forked in milliseconds, not started anew.

Flower starts a process for every message, and the import of torch is most of what that costs. Each message still gets a
process of its own, which ends with it; only the imports are shared. The node finds this program before Flower's own,
because the folder in which `app_folder.write_superexec` put it comes first in its PATH.

`nursery` is the process that forks. It is forked before Flower's SuperExec opens connections or starts threads, so
that its children inherit neither. It ends when the SuperExec ends. Where it cannot be forked, Flower starts messages in
its own way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from . import guard


def main() -> None:
    """The node starts this instead of Flower's own program, with the same arguments."""
    if sys.platform == "linux":  # elsewhere, libraries do not promise to survive a fork
        requests = start_nursery()
        cold = SubprocessExecutor.launch

        def launch(self: SubprocessExecutor, spec: ExecutionSpec) -> LaunchResult:
            return LaunchResult.accepted() if handed_over(spec, requests) else cold(self, spec)

        SubprocessExecutor.launch = launch  # type: ignore[method-assign]
    flower_superexec()


def handed_over(spec: ExecutionSpec, requests: int) -> bool:
    """Whether the nursery takes a task. It starts only ClientApps that need no installation, and it may have died."""
    if spec.task_type != TaskType.CLIENT_APP or spec.runtime_dependency_install:
        return False
    task = {
        "runtime_api_address": spec.runtime_api_address,
        "token": spec.token,
        "insecure": spec.insecure,
        "root_certificates": spec.root_certificates_path,
    }
    try:
        os.write(requests, json.dumps(task).encode() + b"\n")
    except OSError:
        return False
    return True


def start_nursery() -> int:
    """Start the process that forks. Returns the file to write tasks to, one JSON object per line."""
    read, write_end = os.pipe()
    if os.fork() == 0:
        os.close(write_end)
        nursery(read)
        raise SystemExit(0)
    os.close(read)
    return write_end


def nursery(requests: int) -> None:
    """Import the modules that messages need, then fork a process for each task, until the SuperExec has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole node, which ends the SuperExec and so this
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children leave nothing behind
    preload()
    with os.fdopen(requests) as lines:
        for line in lines:
            if os.fork() == 0:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                work(json.loads(line))
                raise SystemExit(0)


def preload() -> None:
    """Import, and run nothing: the threads that torch starts when it computes would not survive a fork."""
    import torch._dynamo  # noqa: F401 - what the first `torch.func.grad` of a process would import

    from . import client_app  # noqa: F401 - torch, and all else that a message needs


def work(task: dict[str, Any]) -> None:
    """One message, as Flower's own `flwr-clientapp` does it. Ends the process."""
    if guard.VARIABLE in os.environ:
        guard.install_guard()
    certificates = validate_and_resolve_root_certificates(task["root_certificates"], task["insecure"])
    run_clientapp(
        runtime_api_address=task["runtime_api_address"],
        token=task["token"],
        insecure=task["insecure"],
        certificates=certificates,
        parent_pid=os.getppid(),
    )
