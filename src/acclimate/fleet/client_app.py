"""The Flower ClientApp: it reads a request, lets the site answer, and writes the answer.

Private states are in `Context.state`, which Flower passes from message to message, and in files beside the node's data,
which outlive the node's process. The files are the truth; the context saves reading them.
"""

from __future__ import annotations

import json
import logging
import os
from collections import OrderedDict
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from ..backends.flower.protocol import Version, branches, rebuilt, version_conflict
from ..core import tree
from ..experiment import loads
from ..store import RunError
from . import audit
from .policy import Policy, PolicyRefusal
from .records import flat_of, pack, unpack, version_of
from .site import Place, Site
from .telling import told
from .vault import Memory, Vault, safe

app = ClientApp()
HELD = "held"
SITES = "ACCLIMATE_SITES"
"""The environment variable that names the folder in which nodes of Flower's simulation keep things."""
log = logging.getLogger("acclimate")


def place_of(context: Context) -> Place:
    """Which part of the federation this node is, as its --node-config says."""
    config = context.node_config
    if "site" not in config and "partition-id" in config:
        return simulated(int(config["partition-id"]), int(config["num-partitions"]))
    missing = [name for name in ("node", "nodes", "site") if name not in config]
    if missing:
        raise ValueError(
            f'the node\'s --node-config lacks {", ".join(missing)}; it must hold node=K nodes=N site="FOLDER"'
        )
    data = Path(str(config["data"])) if "data" in config else None
    return Place(int(config["node"]), int(config["nodes"]), Path(str(config["site"])), data)


def simulated(node: int, nodes: int) -> Place:
    """A node of Flower's simulation, which has a number and no folder: the user of this machine says where it keeps
    things, and never the server."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Place(node, nodes, Path(os.environ.get(SITES) or Path(state) / "acclimate" / "sites") / f"{node:03d}")


def respond(message: Message, context: Context) -> Message:
    """Answer one request of the server. A server with another acclimate is refused before anything else is read."""
    if conflict := version_conflict(server=version_of(message.content), node=Version()):
        log.error(conflict)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, conflict), reply_to=message)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    trees, fields = unpack(message.content)
    place, run = place_of(context), str(fields["run"])
    vault = Vault(place.folder / "runs" / safe("run", run), remembered(context.state, run))
    experiment, kind = loads(json.dumps(fields["experiment"])), message.metadata.message_type.partition(".")[0]
    known = {"run": run, "kind": kind, "method": type(experiment.method).__name__, "round": fields.get("round")}
    try:
        Policy.load(place.folder).check(experiment)
    except (PolicyRefusal, RunError) as e:  # before data are looked at: the site decides, not the request
        log.error("%s", e)
        audit.note(place.folder / audit.AUDIT, "server", "refused", reason=str(e), **known)
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, str(e)), reply_to=message)
    audit.note(place.folder / audit.AUDIT, "server", "answered", **known)
    try:
        answer = Site(place, experiment, run, vault).answer(kind, trees, fields)
    except Exception as e:  # Flower would send its text
        log.exception("a request failed")
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, told(e)), reply_to=message)
    remember(context.state, run, vault.memory)
    return Message(pack(*answer), reply_to=message)


app.query()(respond)
app.train()(respond)
app.evaluate()(respond)


def remembered(state: RecordDict, run: str) -> Memory:
    """The private states that the context holds, where they are of this run."""
    held = state.config_records.get(HELD)
    if held is None or held["run"] != run:
        return {}
    index = json.loads(str(held["index"]))
    return {int(c): (v, rebuilt(shape, flat_of(state.array_records[f"mine.{c}"]))) for c, (v, shape) in index.items()}


def remember(state: RecordDict, run: str, memory: Memory) -> None:
    """Put private states into the context; those of another run are removed."""
    for name in [n for n in state if n.startswith("mine.")]:
        del state[name]
    for client, (_, mine) in memory.items():
        flat = {k: v.contiguous() for k, v in tree.flatten(mine).items()}
        state[f"mine.{client}"] = ArrayRecord(OrderedDict(flat))
    index = {str(c): (version, branches(mine)) for c, (version, mine) in memory.items()}
    state[HELD] = ConfigRecord({"run": run, "index": json.dumps(index)})
