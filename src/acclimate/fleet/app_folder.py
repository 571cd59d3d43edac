"""The Flower app of acclimate as a folder: two shims and a pyproject.toml. Built once per fleet, sent to every node."""

from __future__ import annotations

import os
from pathlib import Path

from ..store import write
from ..version import __version__

PYPROJECT = """\
# A Flower app that runs acclimate. The code is the installed package; this folder only names it and the experiment.
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acclimate-fleet"
version = "{version}"
description = "acclimate over a Flower network"
license = "Apache-2.0"
dependencies = ["flwr=={flwr}", "acclimate=={version}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "acclimate"

[tool.flwr.app.components]
serverapp = "acclimate_app.server:app"
clientapp = "acclimate_app.client:app"

[tool.flwr.app.config]
# What is done: "train" (go on with the run folder, or start it), or "deploy" (leave each node with its live model).
task = "train"
# Where the data are: "shared" (every node can read the same data set and plays some of its clients), or "sites" (every
# node is one client and has its own).
data = {data}
# The run folder, on the machine of the SuperLink.
run-folder = {run_folder}
# The folder that says which key owns which clients, on the machine of the SuperLink.
registry = {registry}
# The experiment, as on the command line of `acclimate run`; read where the run folder holds none.
settings = {settings}
# For task = "deploy": which round's model ("last" or "validation"), and the adapter that serves it ("" for the first
# of the experiment).
selection = "last"
adapter = ""
# Signs what is above, where the server asks for it (acclimate.fleet.admin).
admin = ""
"""

SUPEREXEC = """\
#!/usr/bin/env python3
# Flower's SuperExec, whose messages start from a process with torch in memory.
from acclimate.fleet.warm import main

main()
"""

GUARDED = """\
#!/usr/bin/env python3
# Flower's {name}, which runs only apps whose hash is on this machine's list.
from acclimate.fleet.guard import {half}

{half}()
"""

FLOWER = "1.41.0"
"""The version of Flower that the fleet is made for; `acclimate[flower]` installs it."""


def write_app(folder: Path, run_folder: str = "", settings: str = "", data: str = "shared", registry: str = "") -> Path:
    """Write the app folder, which `flwr run` sends to the SuperLink."""
    text = PYPROJECT.format(
        version=__version__,
        flwr=FLOWER,
        run_folder=quoted(run_folder),
        registry=quoted(registry),
        settings=quoted(settings),
        data=quoted(data),
    )
    write(folder / "pyproject.toml", text)
    write(folder / "acclimate_app" / "__init__.py", '"""acclimate as a Flower app."""\n')
    for half in ("client", "server"):
        shim = f'"""The {half} half."""\n\nfrom acclimate.fleet.{half}_app import app\n\n__all__ = ["app"]\n'
        write(folder / "acclimate_app" / f"{half}.py", shim)
    return folder


def write_superexec(folder: Path) -> None:
    """Put `fleet.warm` where a node finds it, in a folder that comes first in the node's PATH, and what guards it."""
    write_guards(folder)
    program(folder / "flower-superexec", SUPEREXEC)


def write_guards(folder: Path) -> None:
    """Put the programs of `fleet.guard` into a folder that comes first in the PATH of a server or node."""
    for half in ("serverapp", "clientapp"):
        program(folder / f"flwr-{half}", GUARDED.format(name=f"flwr-{half}", half=half))


def program(path: Path, text: str) -> None:
    """Write a file that can be run."""
    write(path, text)
    os.chmod(path, 0o755)


def quoted(text: str) -> str:
    """The text as a TOML basic string."""
    if any(ord(c) < 32 for c in text):
        raise ValueError(f"{text!r} must be one line of plain text")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
