"""State servers: start one, move workers between them, list the workers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.console import errors_as_messages, out, show, wide
from sluice.errors import SettingsError, SluiceError
from sluice.settings import settings, sqlite_url
from sluice.values.host_ports import address_of, parsed

if TYPE_CHECKING:
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.ledger.placement import Placement
    from sluice.state.model import GenerationInfo, WorkerInfo

standby = typer.Typer(
    no_args_is_help=True, help="Copies of workers' shards at second state servers, for when the first is gone."
)

Name = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]


def serve(
    workers: Annotated[
        str, typer.Option(help="Workers to place on this server, such as 0,1; they must not have a server yet.")
    ] = "",
    pipeline: Annotated[
        list[str] | None, typer.Option(help="The pipeline of these workers; default: all pipelines in the ledger.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port to listen on.")] = 7070,
    bind: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    host: Annotated[
        str, typer.Option(help="The host name under which callers reach the server; default: the address of --bind.")
    ] = "",
    certificate: Annotated[Path | None, typer.Option(help="The server's TLS certificate, PEM.", exists=True)] = None,
    key: Annotated[Path | None, typer.Option(help="The key of the certificate, PEM.", exists=True)] = None,
    rest: Annotated[bool, typer.Option("--rest", help="Also serve the REST API to callers with the token.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take the address over from a server whose shards are gone for good.")
    ] = False,
) -> None:
    """Serve the shards of workers on this host until Ctrl-C. Callers need the token in SLUICE_SERVER_TOKEN."""
    from sluice.server import state_server
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages():
        options = state_server.Options(port, bind, host, certificate, key, rest, take_over)
        with Ledger.open(settings().ledger) as ledger:
            app = state_server.make_app(ledger, settings(), options)
            numbers = _numbers(workers) if workers else []

            def started() -> None:
                state_server.register(ledger, settings(), options)
                for name in (pipeline or ledger.generations.pipelines()) if numbers else ():
                    state_server.claim(ledger, settings(), options, name, numbers)
                where = f"{'https' if certificate else 'http'}://{address_of(options.name, port)}"
                out.print(f"State server listens on {where}", soft_wrap=True)

            state_server.serve(app, options, started)


def move(
    pipeline: Name,
    worker: Annotated[int, typer.Argument(min=0, help="The worker's number.")],
    address: Annotated[str, typer.Argument(help="HOST:PORT of the new state server.", metavar="HOST:PORT")],
    tls: Annotated[bool, typer.Option("--tls", help="The server has a TLS certificate.")] = False,
) -> None:
    """Move a worker to another state server without interrupting queries. Repeat the command if it is interrupted."""
    from sluice.operations.moves import move as move_worker
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger, out.status("connecting") as status:
        placement = place_of(pipeline, worker, address, tls)
        copied = move_worker(ledger, placement, status.update)
        status.stop()
        out.print(f"Worker {worker} of {pipeline} is now at {address}; {copied:,} versions copied", soft_wrap=True)


def import_state(
    ledger: Annotated[Path, typer.Argument(help="The ledger's SQLite file.", exists=True, dir_okay=False)],
) -> None:
    """Copy all pipelines from SQLite files to the empty ledger in SLUICE_LEDGER, and their shards to SLUICE_SHARDS.

    The old shards are sealed, so that no run writes to them any more. Repeat the command if it is interrupted.
    """
    from sluice.operations.imports import import_state as copy
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(sqlite_url(ledger.absolute())) as source:
        with Ledger.open(settings().ledger) as target, out.status("copying") as status:
            copied = copy(source, target, settings().shards, status.update)
        names = ", ".join(source.generations.pipelines())
        out.print(f"Imported {names or 'no pipeline'}; {copied:,} versions copied", soft_wrap=True)


def workers(pipeline: Name) -> None:
    """List a pipeline's workers with their state servers, stores, and standbys if there are any."""
    from rich.table import Table

    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        info = _current(ledger, pipeline)
        has_standbys = any(worker.standby for worker in info.workers)
        table = Table("worker", "state server", *(["standby"] if has_standbys else []), "stores", box=None)
        stores = ", ".join(store.name for store in info.stores)
        for worker in info.workers:
            where = address_of(worker.host, worker.port) if worker.port else "none: readers open its shard"
            shown = [_standby(info, worker)] if has_standbys else []
            table.add_row(str(worker.number), where, *shown, stores)
        wide.print(table)


def _current(ledger: Ledger, pipeline: str) -> GenerationInfo:
    """The pipeline's current generation. Raises NotFound for an unknown pipeline."""
    from sluice.errors import NotFound

    if (info := ledger.generations.current(pipeline)) is None:
        raise NotFound(f"The ledger has no pipeline {pipeline!r}.", next_step="Run it first; see SLUICE_LEDGER.")
    return info


def _standby(info: GenerationInfo, worker: WorkerInfo) -> str:
    if (standby := worker.standby) is None:
        return "none"
    held = f"snapshot {info.generation}.{standby.batch}" if standby.batch >= 0 else "no copy"
    return f"{address_of(standby.host, standby.port)}, {held}"


Worker = Annotated[int, typer.Argument(min=0, help="The worker's number.")]


@standby.command()
def add(
    pipeline: Name,
    worker: Worker,
    address: Annotated[str, typer.Argument(help="HOST:PORT of the standby's state server.", metavar="HOST:PORT")],
    tls: Annotated[bool, typer.Option("--tls", help="The server has a TLS certificate.")] = False,
) -> None:
    """Make a state server the standby of a worker, and copy the worker's shard to it."""
    from sluice.errors import LeaseError, NotFound, Refused
    from sluice.operations.moves import require_server
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.standby_copies import require_copyable

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        place = place_of(pipeline, worker, address, tls)
        workers = _current(ledger, pipeline).workers
        if worker >= len(workers):
            raise NotFound(f"Pipeline {pipeline!r} has no worker {worker}.")
        require_copyable(workers[worker])
        require_server(ledger, place, "sqlite")
        ledger.standbys.add(place)
        try:
            _refresh(ledger, pipeline)
        except LeaseError as error:
            out.print(error.detail, markup=False, soft_wrap=True)
        except Refused:
            # The server cannot make a copy: the worker's shard is in the same folder, for example.
            if (added := ledger.standbys.of(pipeline).get(worker)) and added.copied is None:
                ledger.standbys.remove(added)
            raise
        if ledger.standbys.of(pipeline)[worker].copied is None:
            out.print(
                f"{address} is the standby of worker {worker} of {pipeline}. A run makes the first copy when it has "
                "read all records.",
                soft_wrap=True,
            )


@standby.command()
def refresh(pipeline: Name) -> None:
    """Copy the newest snapshot to a pipeline's standbys, and check all of their rows. No run may be in progress.

    A run refreshes the standbys when it has read all records.
    """
    from sluice.errors import NotFound
    from sluice.state.ledger.ledger import Ledger

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        _current(ledger, pipeline)
        if not ledger.standbys.of(pipeline):
            raise NotFound(
                f"{pipeline!r} has no standbys.", next_step=f"Add one: sluice standby add {pipeline} WORKER HOST:PORT"
            )
        _refresh(ledger, pipeline)


def _refresh(ledger: Ledger, pipeline: str) -> None:
    from sluice.engine.run.driver_lease import current_lease, this_process
    from sluice.state.remote.standby_copies import Failed, refresh

    errors: list[SluiceError] = []
    with out.status("waiting for the lease") as status:
        _current(ledger, pipeline)
        with current_lease(ledger, pipeline, this_process("")) as lease:
            for done in refresh(ledger, lease.ref, lease.epoch, progress=status.update):
                if isinstance(done, Failed):
                    errors.append(done.error)
                    continue
                snapshot = f"{lease.ref.generation}.{done.batch}"
                why = f", the whole shard: {done.why_whole}" if done.why_whole else ""
                text = f"Worker {done.worker}'s standby has snapshot {snapshot}; {done.copied:,} versions copied"
                out.print(f"{text}{why}", markup=False, soft_wrap=True)
    for error in errors[:-1]:
        show(error)
    if errors:
        raise errors[-1]


@standby.command()
def promote(
    pipeline: Name,
    worker: Worker,
    stale: Annotated[
        bool, typer.Option("--stale", help="Also if the copy is old: the next run restores the state from the topics.")
    ] = False,
) -> None:
    """Put a worker's standby in the worker's place, because the worker's state server is lost."""
    from sluice.engine.run.driver_lease import current_lease, this_process
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.standby_copies import promote

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        _current(ledger, pipeline)
        with current_lease(ledger, pipeline, this_process("")) as lease:
            why = "It was promoted by hand."
            note = promote(ledger, lease.ref, worker, lease.epoch, why=why, accept_stale=stale)
            out.print(note, markup=False, soft_wrap=True)


@standby.command()
def remove(pipeline: Name, worker: Worker) -> None:
    """Forget a worker's standby, and delete its copy if the standby's state server answers."""
    from sluice.errors import NotFound, SluiceError
    from sluice.state.ledger.ledger import Ledger
    from sluice.state.remote.opening import drop_shard

    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        if (standby := ledger.standbys.of(pipeline).get(worker)) is None:
            raise NotFound(f"Worker {worker} of {pipeline!r} has no standby.")
        # The ledger goes first: a standby that was promoted meanwhile is the only copy in use.
        ledger.standbys.remove(standby)
        kept = ""
        if standby.copied is not None:
            try:
                drop_shard(standby.shard(standby.copied))
            except SluiceError as error:
                kept = f" Its copy was not deleted: {error.detail}"
        out.print(f"{standby.shown} is no standby of worker {worker} of {pipeline} any more.{kept}", soft_wrap=True)


def _numbers(text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise SettingsError(f"--workers {text!r} is not a list of numbers.", next_step="Write for example 0,1.")
    return [*map(int, numbers)]


def place_of(pipeline: str, worker: int, address: str, tls: bool) -> Placement:
    """The placement of a worker at HOST:PORT. Raises SettingsError for any other form of address."""
    from sluice.state.ledger.placement import Placement

    if (found := parsed(address)) is None:
        raise SettingsError(
            f"{address!r} is not HOST:PORT.", next_step="Write for example 10.0.0.6:7070, or [fd00::6]:7070."
        )
    return Placement(pipeline, worker, *found, tls)
