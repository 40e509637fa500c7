"""Commands about state servers: serve, move, import-state and workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.command_arguments import PipelineName
from sluice.commands.console import errors_as_messages, out, wide
from sluice.commands.worker_arguments import current_generation, place_of
from sluice.errors import SettingsError
from sluice.settings import settings, sqlite_url
from sluice.values.host_ports import address_of

if TYPE_CHECKING:
    from sluice.state.model import GenerationInfo, WorkerInfo


def serve(
    workers: Annotated[
        str,
        typer.Option(
            help="Workers that this server claims, such as 0,1; they must not have a server yet."
        ),
    ] = "",
    pipeline: Annotated[
        list[str] | None,
        typer.Option(help="The pipeline of these workers; default: all pipelines in the ledger."),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 7070,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    host: Annotated[
        str,
        typer.Option(
            help="The host name under which callers reach the server; default: the address of --bind."
        ),
    ] = "",
    certificate: Annotated[
        Path | None, typer.Option(help="The server's TLS certificate, PEM.", exists=True)
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="The key of the certificate, PEM.", exists=True)
    ] = None,
    rest: Annotated[
        bool, typer.Option("--rest", help="Also serve the REST API to callers with the token.")
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Serve at the address of another server whose shards are lost for good.",
        ),
    ] = False,
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=64, help="Processes that answer requests; a process uses one core."
        ),
    ] = 1,
) -> None:
    """Serve the shards of workers on this host until Ctrl-C. Callers need the token in SLUICE_SERVER_TOKEN."""
    from sluice.server import state_server
    from sluice.server.shared import shared_among
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.postgres_checks import require_usable_shards

    with errors_as_messages():
        require_usable_shards([settings().shards])
        options = state_server.Options(
            port, bind, host, certificate, key, rest, take_over, processes
        )
        with Ledger.open(settings().ledger) as ledger, shared_among(processes) as shared:
            app = state_server.make_app(ledger, settings(), options, shared)
            numbers = _numbers(workers) if workers else []

            def started() -> None:
                # The server registers before it claims workers: registering fails if the address
                # does not lead to this server, which must then get no workers.
                state_server.register(ledger, settings(), options)
                for name in (pipeline or ledger.generations.pipelines()) if numbers else ():
                    state_server.claim(ledger, settings(), options, name, numbers)
                where = f"{'https' if certificate else 'http'}://{address_of(options.name, port)}"
                out.print(f"State server listens on {where}", soft_wrap=True)

            further = state_server.further_processes(settings(), options, shared)
            state_server.serve(app, options, started, further=further)


def move(
    pipeline: PipelineName,
    worker: Annotated[int, typer.Argument(min=0, help="The worker's number.")],
    address: Annotated[
        str, typer.Argument(help="HOST:PORT of the new state server.", metavar="HOST:PORT")
    ],
    tls: Annotated[bool, typer.Option("--tls", help="The server has a TLS certificate.")] = False,
) -> None:
    """Move a worker to another state server without interrupting queries. Repeat the command if it is interrupted."""
    from sluice.operations.moves import move as move_worker
    from sluice.state.ledger.ledger import Ledger

    with (
        errors_as_messages(),
        Ledger.open(settings().ledger) as ledger,
        out.status("connecting") as status,
    ):
        placement = place_of(pipeline, worker, address, tls)
        copied = move_worker(ledger, placement, status.update)
        status.stop()
        out.print(
            f"Worker {worker} of {pipeline} is now at {address}; {copied:,} versions copied",
            soft_wrap=True,
        )


def import_state(
    ledger: Annotated[
        Path,
        typer.Argument(help="The SQLite file of the ledger to copy.", exists=True, dir_okay=False),
    ],
) -> None:
    """Copy all pipelines from SQLite files to the empty ledger in SLUICE_LEDGER, and their shards to SLUICE_SHARDS.

    The old shards are sealed, so that no run writes to them any more. Repeat the command if it is
    interrupted.
    """
    from sluice.operations.state_import import import_state as copy
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(sqlite_url(ledger.absolute())) as source:
        with Ledger.open(settings().ledger) as target, out.status("copying") as status:
            copied = copy(source, target, settings().shards, status.update)
        names = ", ".join(source.generations.pipelines())
        out.print(f"Imported {names or 'no pipeline'}; {copied:,} versions copied", soft_wrap=True)


def workers(pipeline: PipelineName) -> None:
    """List a pipeline's workers with their state servers, stores, and standbys if there are any."""
    from rich.table import Table

    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        info = current_generation(ledger, pipeline)
        has_standbys = any(worker.standby for worker in info.workers)
        table = Table(
            "worker", "state server", *(["standby"] if has_standbys else []), "stores", box=None
        )
        stores = ", ".join(store.name for store in info.stores)
        for worker in info.workers:
            where = (
                address_of(worker.host, worker.port)
                if worker.port
                else "none: readers open its shard"
            )
            shown = [_standby(info, worker)] if has_standbys else []
            table.add_row(str(worker.number), where, *shown, stores)
        wide.print(table)


def _standby(info: GenerationInfo, worker: WorkerInfo) -> str:
    if (standby := worker.standby) is None:
        return "none"
    held = f"snapshot {info.generation}.{standby.batch}" if standby.batch >= 0 else "no copy"
    return f"{address_of(standby.host, standby.port)}, {held}"


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    # Both `isdecimal` and `int` accept digits of other scripts, too.
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise SettingsError(
            f"--workers {text!r} is not a list of numbers.", next_step="Write for example 0,1."
        )
    return [*map(int, numbers)]
