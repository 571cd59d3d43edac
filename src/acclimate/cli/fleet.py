"""`acclimate fleet`: a Flower network on this machine, and an app folder for real sites."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..ops.layout import counted
from .json_out import Json, document
from .trust import Trust

fleet_app = typer.Typer(
    help="Start and stop a Flower network, deploy a run to its nodes, set up real sites.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[
    Path | None, typer.Argument(help="The fleet's folder (default: ACCLIMATE_FLEET, else ./fleet).", show_default=False)
]


def _folder(given: Path | None) -> Path:
    from ..fleet.places import place

    return given or place()


@fleet_app.command()
def up(
    folder: Folder = None,
    clients: Annotated[int, typer.Option("--clients", help="How many nodes to start.")] = 2,
    port: Annotated[int | None, typer.Option(help="The port of the link (default: a free one).")] = None,
) -> None:
    """Start a SuperLink and its SuperNodes on this machine, with TLS and node keys; wait until all have joined."""
    from ..fleet import loopback

    fleet = loopback.up(_folder(folder), clients, port)
    joined = counted(clients, "node has", "nodes have")
    typer.echo(f"{joined} joined the link at 127.0.0.1:{fleet.port}; all is in {fleet.folder}")
    typer.echo("train with `acclimate run backend=flower ...`, stop with `acclimate fleet down`")


@fleet_app.command()
def status(folder: Folder = None, as_json: Json = False) -> None:
    """Say which processes of the fleet run. Exit 1 where one does not."""
    from ..fleet.loopback import Fleet

    fleet = Fleet.load(_folder(folder))
    if as_json:
        there = [{"name": name, "pid": pid, "up": alive} for name, pid, alive in fleet.status()]
        body = {"folder": str(fleet.folder), "port": fleet.port, "nodes": fleet.nodes, "running": fleet.running}
        typer.echo(document("fleet-status", **body, processes=there))
    else:
        typer.echo(f"link at 127.0.0.1:{fleet.port}, {counted(fleet.nodes, 'node')}, in {fleet.folder}")
    for name, pid, alive in fleet.status() if not as_json else ():
        typer.echo(f"  {name:<10} {pid:>8}  {'up' if alive else 'ended; see ' + str(fleet.log(name))}")
    if not fleet.running:
        raise typer.Exit(1)


@fleet_app.command()
def down(folder: Folder = None) -> None:
    """Stop exactly what `up` started. What nodes have stored stays."""
    from ..fleet import loopback

    stopped = loopback.down(_folder(folder))
    typer.echo(f"stopped {', '.join(stopped)}" if stopped else "nothing was running any more")


@fleet_app.command()
def deploy(
    run: Annotated[Path, typer.Argument(help="A finished run that was trained on the fleet.")],
    settings: Annotated[
        list[str] | None, typer.Argument(help="Which of the run's adapters serves, as for `deploy`: adapters=tent")
    ] = None,
    adapter: Annotated[str, typer.Option(help="The same by its name alone (default: the run's first).")] = "",
    selection: Annotated[str, typer.Option(help="Whose model: the `last` round's, or that of `validation`.")] = "last",
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Leave each node with its live model, and test it there: metrics are all that comes back."""
    from ..fleet import launch
    from .progress import display

    with display() as watch:
        deployed = launch.deploy(run, selection, _adapter(adapter, settings or []), watch=watch)
    if as_json:
        typer.echo(document("fleet-deploy", deployed=deployed))
        return
    live = counted(len(deployed["clients"]), "client is", "clients are")
    typer.echo(f"{live} live with {deployed['label']} of round {deployed['round']}")
    for stream, accuracy in deployed["accuracy"].items():
        mean = sum(accuracy) / len(accuracy)
        typer.echo(f"  {stream:<16} {deployed['adapter']:<10} {mean:.1%}")


def _adapter(named: str, settings: list[str]) -> str:
    """The adapter that `--adapter` or `adapters=` names; a fleet's nodes serve it as the run has it."""
    for typed in settings:
        key, _, name = typed.partition("=")
        if key != "adapters" or not name or "," in name or named not in ("", name):
            raise ValueError(f"{typed!r}: `fleet deploy` takes one of the run's adapters, as it is: adapters=NAME")
        named = name
    return named


@fleet_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    host: Annotated[str, typer.Option(help="The name or address at which sites reach the server.")],
    sites: Annotated[
        list[str],
        typer.Option("--site", help="NAME, or NAME=LOW-HIGH with its number of examples."),
    ],
    settings: Annotated[str, typer.Option(help="The experiment, as for `acclimate run`.")] = "method=fedavg",
    port: Annotated[int, typer.Option(help="The port of the server.")] = 8000,
    bind: Annotated[str, typer.Option(help="The address at which the server listens.")] = "127.0.0.1",
) -> None:
    """Write a deployable app, keys and certificates for real sites, and a page that says what to do with them."""
    from ..fleet.site_folders import init as write_fleet

    write_fleet(folder, host, sites, settings, port, bind)
    typer.echo(f"wrote {folder}; start with {folder / 'HOWTO.md'}")


@fleet_app.command()
def remove(
    site: Annotated[str, typer.Argument(help="The name of the site.")],
    server: Annotated[Path, typer.Argument(help="The server's folder, which `fleet init` wrote.")],
) -> None:
    """Take a site out of a fleet, on the server: runs that start or resume later go without it; its key is refused."""
    from ..fleet.removal import remove as remove_site

    unregistered = remove_site(server, site)
    typer.echo(f"{site} takes no part any more; the site deletes what it has kept with `acclimate fleet forget STATE`")
    if not unregistered:
        typer.echo("its key is still registered: the link did not answer; start it, and run this again", err=True)
        raise typer.Exit(1)


@fleet_app.command()
def forget(
    state: Annotated[Path, typer.Argument(help="The state folder of the site's node.")],
    client: Annotated[int | None, typer.Option(help="One client alone, where the node hosts several.")] = None,
    cache: Annotated[bool, typer.Option("--cache", help="Also copies of data in the cache folder.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete it. Without this, it is only listed.")] = False,
) -> None:
    """List or delete what a node has kept, on the site's machine: private states, live models, requests that it met."""
    from ..fleet.removal import forget as delete
    from ..fleet.removal import keeps
    from ..ops.places import cache_folder

    found = delete(state, client, cache) if yes else keeps(state, client, cache)
    for path in found:
        typer.echo(f"{'deleted' if yes else 'would delete'} {path}")
    if not found:
        typer.echo("nothing is kept here")
    if not cache:
        typer.echo(f"copies of data may be in {cache_folder()}; --cache deletes these too")
    typer.echo("the site's own data, audit.jsonl and policy.json stay, and so does what a trained model has learnt")
