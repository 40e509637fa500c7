"""Commands about state servers: serve, move, import-state and workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.activity_notes import note_activity
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
            help=(
                "The host name under which callers reach the server; default: the address of "
                "--bind."
            )
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
    """Serve the shards of workers on this host until Ctrl-C.

    Callers need the token in SLUICE_SERVER_TOKEN.
    """
    from sluice.server import state_server
    from sluice.server.shared import shared_among
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.postgres_checks import require_usable_shards

    with errors_as_messages():
        require_usable_shards([settings().shards])
        options = state_server.ServerOptions(
            port, bind, host, certificate, key, rest, take_over, processes
        )
        with Ledger.open(settings().ledger) as ledger, shared_among(processes) as shared:
            app = state_server.make_app(ledger, settings(), options, shared)
            numbers = _numbers(workers)

            def started() -> None:
                # The server registers before it claims workers. If the address does not lead to
                # this server, registering fails, and the server must not get workers.
                state_server.register(ledger, settings(), options)
                if numbers:
                    for name in pipeline or ledger.generations.pipelines():
                        state_server.claim(ledger, settings(), options, name, numbers)
                scheme = "https" if certificate else "http"
                url = f"{scheme}://{address_of(options.name, port)}"
                out.print(f"State server listens on {url}", soft_wrap=True)

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
    """Move a worker to another state server without interrupting queries.

    Repeat the command if it is interrupted.
    """
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
        note_activity(pipeline, "move", f"worker {worker} to {address}")
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
    """Copy all pipelines from SQLite files to an empty ledger.

    The new ledger is in SLUICE_LEDGER, and the new shards are in SLUICE_SHARDS. The old shards are
    sealed, so that no run writes to them any more. Repeat the command if it is interrupted.
    """
    from sluice.operations.state_import import import_state as copy
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(sqlite_url(ledger.absolute())) as source:
        with Ledger.open(settings().ledger) as target, out.status("copying") as status:
            copied = copy(source, target, settings().shards, status.update)
        names = source.generations.pipelines()
        for name in names:
            note_activity(name, "import state", f"from {ledger.absolute()}")
        imported = ", ".join(names) or "no pipeline"
        out.print(f"Imported {imported}; {copied:,} versions copied", soft_wrap=True)


def workers(pipeline: PipelineName) -> None:
    """List a pipeline's workers with their state servers, stores, and standbys if there are any."""
    from rich.table import Table

    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        info = current_generation(ledger, pipeline)
        stores = ", ".join(store.name for store in info.stores)
        headings = ["worker", "state server", "stores"]
        rows: list[list[str]] = []
        for worker in info.workers:
            server = "none: readers open its shard"
            if worker.port:
                server = address_of(worker.host, worker.port)
            rows.append([str(worker.number), server, stores])
        if any(worker.standby for worker in info.workers):
            headings.insert(2, "standby")
            for worker, row in zip(info.workers, rows, strict=True):
                row.insert(2, _standby(info, worker))
        table = Table(*headings, box=None)
        for row in rows:
            table.add_row(*row)
        wide.print(table)


def _standby(info: GenerationInfo, worker: WorkerInfo) -> str:
    standby = worker.standby
    if standby is None:
        return "none"
    copy = "no copy"
    if standby.batch >= 0:
        copy = f"snapshot {info.generation}.{standby.batch}"
    return f"{address_of(standby.host, standby.port)}, {copy}"


def _numbers(text: str) -> list[int]:
    if not text:
        return []
    numbers = text.split(",")
    # Both `isdecimal` and `int` accept digits of other scripts, so require ASCII.
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise SettingsError(
            f"--workers {text!r} is not a list of numbers.", next_step="Write for example 0,1."
        )
    return [*map(int, numbers)]
