"""`acclimate fleet init`: the folders that a server and its sites need, and a page that says what to do with them."""

from __future__ import annotations

import ipaddress
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from ..store import RunError, write
from ..version import __version__
from . import admin, guard, keys, registry
from .app_folder import FLOWER, program, write_app, write_guards, write_superexec
from .local_processes import check_port

SETTINGS = "method=fedavg"
"""The experiment of a fleet whose settings nobody typed."""
HOWTO = """\
# Running this fleet

{count} sites train `{settings}` together. The server is `{host}`, port {port}. Data and private states stay at the
sites. Everything below was written by `acclimate fleet init`; acclimate {version}, Flower {flower}.

## What is here

| folder | for whom | holds |
|---|---|---|
| `app/` | the server | the Flower app: two small files and pyproject.toml, where the experiment is set |
| `server/` | the server | its certificate and key, the public keys of all sites, `start.sh`, `register.sh` |
| `sites/NAME/` | that site alone | the authority's certificate, the site's own key, `start.sh`, `bin/` |
| `authority/` | nobody | `ca.key` signs new certificates: keep it offline |

Move `sites/NAME/` to its site over a channel that you trust, then delete it here. No two sites share a key.

## Once, on every machine

Make a wheel of your copy of acclimate (`pip wheel --no-deps .` in its folder), carry it to every machine, and there:

```bash
python -m venv venv && . venv/bin/activate && pip install './acclimate-{version}-py3-none-any.whl[flower]'
```

Every machine needs the same version of acclimate. Only the server's port {port} must be reachable from the sites; sites
open no port to the outside. `server/start.sh` listens at {bind}; `server/start.sh 0.0.0.0` listens everywhere. Flower's
control interface is on the same port and asks for no account: let a firewall admit the sites' addresses and the
operator's, and nobody else. Server and sites run no app but this one (`apps.allow`), and the server starts no run
without its `admin.key`; who asked for what is in `audit.jsonl` (see "Who may command" in acclimate's security page).

## Data at a site

`start.sh DATA STATE` names two folders: `DATA` is the root in which the experiment's data set lies (for
`data=arrays data.file=site.npz`, the file `DATA/site.npz`; see "Your own data" in the guides), `STATE` is where the
node keeps private states and its live model. Give both to the user that runs the node, and to nobody else. All sites
need the same shape of examples and the same class names; the server refuses the run where they differ, and says where.
To rehearse several sites on one machine, give each a port of its own: `start.sh DATA STATE 9095`.

## Start

1. Server: `server/start.sh`. It stays in the foreground; put it under a service manager.
2. Server, once, while it runs: `server/register.sh`. It tells the server the public keys of the sites.
3. Every site: `start.sh DATA STATE`, under a service manager that starts it again when it ends.
4. Server: `server/train.sh RUN_FOLDER`. Progress is in RUN_FOLDER/progress.jsonl, results are where `acclimate run`
   leaves them. It fails where the run does. Started again with the same folder it resumes.
5. Server: `server/train.sh RUN_FOLDER deploy`. Every site then has its live model in STATE/deployed.

## Stop

Sites first, then the server: SIGTERM (Ctrl-C). A run goes on without a site that stops, as long as the share of clients
that `backend.quorum` says is there; the site rejoins by starting again. To stop a run after its round, with a
checkpoint: `touch RUN_FOLDER/stop`.

## Upgrade

Stop the run, the sites and the server; install the new version everywhere; start again. Server and sites need the same
version: where a site has another one, it is not used, and the server's log, the site's log and results.json name both
versions. A run folder and the sites' states outlive upgrades as long as their schema does; acclimate says so where it
does not.

## Keys

`server/nodes/members.json` says which key owns which client, and how many training examples it may say it has. Change
the range of a site there before a run, and nowhere else: a site that tells more, or fewer, is left out. `register.sh`
notes which node each key is; a node that says it hosts the client of another key is not used.

The certificates are valid for {years} years. To remove a site, stop the run, and then on the server
`acclimate fleet remove NAME server`; the site deletes what its node has kept with `acclimate fleet forget STATE`. Runs
that start or resume after this go on without it. To add a site or to replace keys: `acclimate fleet init` into a new
folder, and hand out all of it again.
"""

SERVER = """\
#!/bin/sh
# start.sh [ADDRESS]: the SuperLink. TLS, only nodes with a registered key, only apps on the list, only runs of the
# admin key. It listens at ADDRESS ({bind}); Flower's control interface is there too, so mind who can reach it.
here=$(cd "$(dirname "$0")" && pwd)
umask 077
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$here/flower" PATH="$here/bin:$PATH"
export ACCLIMATE_APPS="$here/apps.allow" ACCLIMATE_AUDIT="$here/audit.jsonl" ACCLIMATE_ADMIN_KEY="$here/admin.key"
exec flower-superlink --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/link.crt" --ssl-keyfile "$here/link.key" \\
  --enable-supernode-auth --disable-runtime-dependency-installation --host "${{1:-{bind}}}" --port {port} \\
  --database "$here/link.db"
"""

REGISTER = """\
#!/bin/sh
# Tell the running SuperLink the public keys of the sites.
set -e
here=$(cd "$(dirname "$0")" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$here/flower"
mkdir -p "$FLWR_HOME"
cat > "$FLWR_HOME/config.toml" <<END
[superlink]
default = "fleet"

[superlink.fleet]
address = "{host}:{port}"
root-certificates = "$here/ca.crt"
END
for key in "$here"/nodes/*.pub; do
  name=$(basename "$key" .pub)
  [ -f "$here/nodes/$name.json" ] && continue
  flwr supernode register "$key" fleet --name "$name" --format json > "$here/nodes/$name.new"
  mv "$here/nodes/$name.new" "$here/nodes/$name.json"
  echo "$name is registered"
done
"""

TRAIN = """\
#!/bin/sh
# train.sh RUN_FOLDER [train|deploy]
set -e
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${{1:?give the run folder}}"
folder=$(cd "$1" && pwd)
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$here/flower"
rm -f "$folder/progress.jsonl"
task=${{2:-train}}
admin=$(python3 -m acclimate.fleet.admin "$here/admin.key" "$here/../app" \\
  "registry=$here/nodes" "run-folder=$folder" "task=$task")
config="registry=\\"$here/nodes\\" run-folder=\\"$folder\\" task=\\"$task\\" admin=\\"$admin\\""
flwr run "$here/../app" fleet --stream --run-config "$config" || true
# flwr is content when it has started a run; how that ended, the run itself says
last=$(tail -n 1 "$folder/progress.jsonl" 2>/dev/null) || true
case "$last" in *'"event": "finished"'*) ;; *) echo "not finished: ${{last:-it never started}}" >&2; exit 1 ;; esac
"""

NODE = """\
#!/bin/sh
# start.sh DATA STATE [PORT]: this site's node. DATA is the root of its data, STATE the folder for what never leaves it.
# PORT is for the node's own processes: nodes of one machine need one each.
here=$(cd "$(dirname "$0")" && pwd)
data=$(cd "${{1:?give the data folder}}" && pwd) || exit 2
umask 077
mkdir -p "${{2:?give the state folder}}" && chmod 700 "$2" && state=$(cd "$2" && pwd) || exit 2
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_HOME="$state/flower" PATH="$here/bin:$PATH"
export ACCLIMATE_APPS="$here/apps.allow" ACCLIMATE_AUDIT="$state/audit.jsonl"
exec flower-supernode --superlink {host}:{port} --root-certificates "$here/ca.crt" \\
  --auth-supernode-private-key "$here/{name}.key" \\
  --ssl-ca-certfile "$here/ca.crt" --ssl-certfile "$here/node.crt" --ssl-keyfile "$here/node.key" \\
  --port "${{3:-9094}}" --node-config "node={number} nodes={count} site=\\"$state\\" data=\\"$data\\""
"""


def init(
    folder: Path, host: str, sites: Sequence[str], settings: str = SETTINGS, port: int = 8000, bind: str = "127.0.0.1"
) -> None:
    """Write the folder. The experiment is checked now, so that a misspelt setting is not found at the sites.

    A site is a name, or `NAME=LOW-HIGH` with the numbers of training examples that it may say it has. The server
    listens at the address `bind`: on this machine alone, unless told otherwise.
    """
    ipaddress.ip_address(bind)
    given = [site.partition("=") for site in sites]
    ranges = {name: _range(name, text) for name, _, text in given}
    sites = [name for name, _, _ in given]
    check_request(folder, host, sites, port)
    typed, settings = settings, shlex.join(["backend=flower", f"data.clients={len(sites)}", *shlex.split(settings)])
    if typed != SETTINGS:
        from ..experiment.settings import expand  # not above: it loads torch, which nothing else here needs

        expand([s for s in shlex.split(settings) if s != "backend=flower"])
    authority = keys.make_ca(folder / "authority", f"acclimate fleet at {host}")
    server = folder / "server"
    app = write_app(folder / "app", settings=settings, data="sites")
    keys.make_certificate(server, "link", authority, list(dict.fromkeys([host, *keys.LOCAL])))
    write(server / "ca.crt", authority.public.read_bytes())
    owners = []
    for number, name in enumerate(sites):
        own = folder / "sites" / name
        node = keys.make_node_key(own, name)
        keys.make_certificate(own, "node", authority)
        write(own / "ca.crt", authority.public.read_bytes())
        write(server / "nodes" / node.public.name, node.public.read_bytes())
        owners.append(registry.KeyOwner(name, registry.fingerprint(node.public), ranges[name]))
        write_superexec(own / "bin")
        guard.allow(own / guard.LIST, app)
        own.chmod(0o700)
        program(own / "start.sh", NODE.format(host=host, port=port, name=name, number=number, count=len(sites)))
    registry.write_members(server / "nodes", owners)
    keys.write_private(server / admin.KEY, os.urandom(32))
    guard.allow(server / guard.LIST, app)
    write_guards(server / "bin")
    for own in (server, folder / "authority"):
        own.chmod(0o700)
    program(server / "start.sh", SERVER.format(port=port, bind=bind))
    program(server / "register.sh", REGISTER.format(host=host, port=port))
    program(server / "train.sh", TRAIN.format())
    text = HOWTO.format(
        count=len(sites),
        settings=settings,
        host=host,
        port=port,
        bind=bind,
        version=__version__,
        flower=FLOWER,
        years=keys.YEARS_CERTIFICATE,
    )
    write(folder / "HOWTO.md", text)


def _range(name: str, text: str) -> tuple[int, int]:
    """The range of a site's number of examples, LOW-HIGH, or one number."""
    if not text:
        return registry.EXAMPLES
    low, _, high = text.partition("-")
    plain = low.isdecimal() and (high.isdecimal() or "-" not in text)
    if not plain or int(low) > int(high or low):
        raise ValueError(f"site='{name}={text}' must be NAME, or NAME=LOW-HIGH with numbers of training examples")
    return int(low), int(high or low)


def check_request(folder: Path, host: str, sites: Sequence[str], port: int) -> None:
    """Refuse what cannot become a fleet."""
    if folder.exists() and any(folder.iterdir()):
        raise RunError(f"{folder} is not empty; choose a new folder")
    if not host or any(c.isspace() or c in "\"'`$\\/" for c in host):
        raise ValueError(f"host='{host}' must be a host name or an address")
    check_port(port)
    if not sites or len(set(sites)) < len(sites):
        raise ValueError(f"sites={list(sites)} must be at least one name, and all different")
    for name in sites:
        if not name.replace("-", "").isalnum() or not name.isascii():
            raise ValueError(f"site='{name}' must be letters, digits and hyphens")
