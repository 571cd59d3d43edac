"""`acclimate serve`, `acclimate replay` and `acclimate tokens`: live models over HTTP, and their log."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ..ops.layout import counted
from .json_out import Json, document
from .trust import Trust


def serve(
    live: Annotated[
        list[Path],
        typer.Argument(help="Live folders of one federation, folders of them, or a run folder that was deployed."),
    ],
    folder: Annotated[
        Path | None,
        typer.Option(help="Where the log and checkpoints are (default: 'serving' beside the live folders)."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="The model's name in the protocol (default: the method's).")] = None,
    host: Annotated[str, typer.Option(help="The address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 for a free one.")] = 8080,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "cpu",
    window_ms: Annotated[float, typer.Option(help="How long a request waits for those of other clients.")] = 2.0,
    group: Annotated[int, typer.Option(help="Clients in one step, at most; 0 for all.")] = 0,
    queue: Annotated[int, typer.Option(help="Requests of one client that may wait; more get 429.")] = 8,
    queue_all: Annotated[int, typer.Option(help="Requests of all clients that may wait; more get 429.")] = 1024,
    samples: Annotated[int, typer.Option(help="Samples of a request, at most.")] = 256,
    body: Annotated[int, typer.Option(help="Bytes of a request, at most.")] = 16 << 20,
    tokens: Annotated[Path | None, typer.Option(help="A file of tokens, from `acclimate tokens`.")] = None,
    certificate: Annotated[Path | None, typer.Option(help="A certificate for TLS (PEM).")] = None,
    key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    remember: Annotated[int, typer.Option(help="Requests whose answers are kept for retries.")] = 10_000,
    checkpoint_seconds: Annotated[float, typer.Option(help="How often all states are written down.")] = 60.0,
    log_mb: Annotated[float, typer.Option(help="Size of a segment of the log, after which the next begins.")] = 64.0,
    log_segments: Annotated[int, typer.Option(help="Segments of the log that are kept, at least; 0 for all.")] = 0,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="A line for every step too.")] = False,
    trust: Trust = False,
) -> None:
    """Serve live models over HTTP (Open Inference Protocol v2): they answer, adapt, and survive a crash.

    Stop it with Ctrl-C; the same command goes on where it stopped.
    """
    at_least: dict[str, tuple[float, int]] = {"--window-ms": (window_ms, 0), "--group": (group, 0)}
    at_least |= {"--queue": (queue, 1), "--queue-all": (queue_all, 1), "--remember": (remember, 1)}
    at_least |= {"--samples": (samples, 1), "--body": (body, 1000), "--checkpoint-seconds": (checkpoint_seconds, 0)}
    at_least |= {"--log-mb": (log_mb, 0), "--log-segments": (log_segments, 0)}
    for option, (value, least) in at_least.items():
        if not least <= value < math.inf:  # NaN is neither
            raise ValueError(f"{option} {value} must be at least {least}, and finite")
    try:
        from ..serving.app import Limits
        from ..serving.desk import Rules
        from ..serving.run import Address, open_front, run
        from ..serving.service import Keeping
    except ImportError as e:
        raise ImportError(f"{e}; `acclimate serve` needs: pip install 'acclimate[serve]'") from e
    from .threads import use_half_of_the_cores

    use_half_of_the_cores()
    place = Address(host, port, tokens, certificate, key)
    rules = Rules(window_ms / 1000, queue, queue_all, group or 1 << 20)
    keeping = Keeping(checkpoint_seconds, int(log_mb * (1 << 20)), log_segments, remember)
    front = open_front(live, folder, name, device, place, rules, Limits(body, samples), keeping)
    for client, digest in run(front, place, verbose).items():
        typer.echo(f"client {client}  {digest}")


def replay(
    log: Annotated[Path, typer.Argument(help="A server's folder, or the log in it.")],
    start: Annotated[
        Path | None,
        typer.Option("--from", help="The live folders that the server began with (default: beside the log)."),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda: as the server had.")] = "cpu",
    as_json: Json = False,
) -> None:
    """Do all that a server's log says again, and print the digest of every client's state.

    Exit 1 where an answer or a state is not, bit for bit, what the server had.
    """
    from ..serving.replay import replay as again

    done = again(log, start, device)
    if as_json:
        typer.echo(document("replay", **asdict(done), exact=done.exact))
        raise typer.Exit(0 if done.exact else 1)
    for client, digest in done.digests.items():
        typer.echo(f"client {client}  {digest}")
    typer.echo(
        f"{counted(done.requests, 'request')} in {counted(done.steps, 'step')}, "
        f"{counted(done.acts, 'act or label', 'acts and labels')}, {counted(done.marks, 'checkpoint')}"
    )
    if done.torn:
        typer.echo("the log ends within a record, which never counted")
    if not done.exact:
        typer.echo(
            f"not as it was: {counted(done.other_answers, 'step')}, {counted(done.other_states, 'checkpoint')}",
            err=True,
        )
        if start is not None:
            typer.echo(f"perhaps {start} is no longer what the server began with; leave --from out", err=True)
        raise typer.Exit(1)
    typer.echo("all answers and states have the same bits")


def tokens(
    file: Annotated[Path, typer.Argument(help="A new file, for hashes alone.")],
    live: Annotated[list[Path], typer.Argument(help="Live folders, or folders of them: whose clients get tokens.")],
) -> None:
    """Draw a token for the administrator and one for each client, and print them this once."""
    from ..live import load_live
    from ..serving.checkpoint import found
    from ..serving.tokens import create

    for name, token in create(file, sorted(load_live(path).client for path in found(live))).items():
        typer.echo(f"{'admin' if name == 'admin' else f'client {name}'}  {token}")
    typer.echo(f"wrote {file}, which holds their hashes", err=True)
