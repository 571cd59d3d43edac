"""Which apps may run here: those whose files have a hash on this machine's own list.

A Flower server may send any app to its nodes, and whoever reaches its control interface may send one to the server.
`app_folder.write_guards` puts programs before Flower's own in the PATH of server and nodes, which start ServerApps and
ClientApps; they install and run an app only if its hash is in the file that ACCLIMATE_APPS names. Without that file
nothing runs.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..store import write
from . import audit

LIST, VARIABLE, LOG = "apps.allow", "ACCLIMATE_APPS", "ACCLIMATE_AUDIT"
_INFO = re.compile(r"\.info/\w+")
"""Names of files in an app that are not hashed: none that leads out of that folder, and nothing that Python imports."""
_MOST = 1 << 24
"""Bytes that an app may have when it is unpacked."""


def digest(fab: bytes) -> str:
    """The hash of an app as Flower sends it: of the names and contents of all its files."""
    total, size = hashlib.sha256(), 0
    with zipfile.ZipFile(io.BytesIO(fab)) as packed:
        for entry in sorted(packed.infolist(), key=lambda e: e.filename):
            size += entry.file_size
            if size > _MOST:
                raise PermissionError(f"the app has more than {_MOST} bytes")
            if not _INFO.fullmatch(entry.filename):  # Flower's own list of the same hashes
                inner = hashlib.sha256(packed.read(entry)).hexdigest()
                total.update(f"{len(entry.filename)}:{entry.filename}:{inner}\n".encode())
    return total.hexdigest()


def digest_of_folder(app: Path) -> str:
    """The hash that an app folder has when Flower sends it."""
    from flwr.cli.build import build_fab_from_disk

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a package that Flower uses
        return digest(build_fab_from_disk(app))


def allow(path: Path, app: Path) -> None:
    """Write the list, with one app on it."""
    write(path, f"# apps that may run here, by hash; one line each\n{digest_of_folder(app)}\n")


def listed(path: Path | None) -> set[str]:
    """The hashes on a list; none where there is none."""
    if path is None or not path.is_file():
        return set()
    return {line.strip() for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")}


def check(fab: bytes, path: Path | None) -> None:
    """Raise PermissionError where an app is not on the list, and note it."""
    found = digest(fab)
    if found in listed(path):
        return
    if log := os.environ.get(LOG):
        audit.note(Path(log), "app " + found, "refused", reason="not on the list of apps")
    raise PermissionError(f"the app with hash {found} is not on this machine's list of apps ({path or VARIABLE})")


def install_guard() -> None:
    """Check every app of this process before Flower unpacks it."""
    for name in ("superlink.runtime.run_serverapp", "supernode.runtime.run_clientapp"):
        module: Any = importlib.import_module(f"flwr.{name}")
        module.install_from_fab = _guarded(module.install_from_fab)


def _guarded(install: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(fab: Any, *args: Any, **more: Any) -> Any:
        given = os.environ.get(VARIABLE)
        check(fab if isinstance(fab, bytes) else Path(fab).read_bytes(), Path(given) if given else None)
        return install(fab, *args, **more)

    return guarded


def serverapp() -> None:
    """Flower's `flwr-serverapp`, guarded."""
    from flwr.superlink.cli import flwr_serverapp

    install_guard()
    flwr_serverapp()


def clientapp() -> None:
    """Flower's `flwr-clientapp`, guarded."""
    from flwr.supernode.cli import flwr_clientapp

    install_guard()
    flwr_clientapp()
