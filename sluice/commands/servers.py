"""State servers: starting one, moving workers between them, and saying where they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sluice.commands.console import out, said
from sluice.errors import SettingsError
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.state.ledger.placement import Placement

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")

Name = Annotated[str, typer.Argument(help="The pipeline's name.", metavar="PIPELINE")]


def serve(
    workers: Annotated[str, typer.Option(help="Workers to take over that no server has, such as 0,1.")] = "",
    pipeline: Annotated[
        list[str] | None, typer.Option(help="Of this pipeline; default: of every one that the ledger knows.")
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port it listens on.")] = 7070,
    bind: Annotated[str, typer.Option(help="The address it listens on.")] = "127.0.0.1",
    host: Annotated[str, typer.Option(help="The name under which others reach it; default: as it listens.")] = "",
    certificate: Annotated[Path | None, typer.Option(help="Its TLS certificate, PEM.", exists=True)] = None,
    key: Annotated[Path | None, typer.Option(help="The key of the certificate, PEM.", exists=True)] = None,
    rest: Annotated[bool, typer.Option("--rest", help="Also serve the REST API to callers with the token.")] = False,
) -> None:
    """Answer for workers' shards on this host, until Ctrl-C. The token is SLUICE_SERVER_TOKEN's."""
    from sluice.server import run
    from sluice.state.ledger.ledger import Ledger

    with said():
        options = run.Options(port, bind, host, certificate, key, rest)
        with Ledger.open(settings().ledger) as ledger:
            app = run.make_app(ledger, settings(), options)
            for name in (pipeline or ledger.jobs.pipelines()) if workers else ():
                run.claim(ledger, settings(), options, name, _numbers(workers))
            where = f"{'https' if certificate else 'http'}://{options.name}:{port}"
            run.serve(app, options, lambda: out.print(f"State server answers on {where}", soft_wrap=True))


def move(
    pipeline: Name,
    worker: Annotated[int, typer.Argument(min=0, help="The worker's number.")],
    address: Annotated[str, typer.Argument(help="HOST:PORT of the state server it moves to.", metavar="HOST:PORT")],
    tls: Annotated[bool, typer.Option("--tls", help="The server has a TLS certificate.")] = False,
) -> None:
    """Move a worker to another state server, queries going on. May be done again if it was interrupted."""
    from sluice.server.moves import move as move_worker
    from sluice.state.ledger.ledger import Ledger

    with said(), Ledger.open(settings().ledger) as ledger, out.status("looking") as status:
        place = place_of(pipeline, worker, address, tls)
        copied = move_worker(ledger, place, status.update)
        status.stop()
        out.print(f"Worker {worker} of {pipeline} is at {address} now; {copied:,} versions copied", soft_wrap=True)


def workers(pipeline: Name) -> None:
    """Say where a pipeline's workers are, and which stores they hold."""
    from rich.table import Table

    from sluice.state.ledger.ledger import Ledger

    with said(), Ledger.open(settings().ledger) as ledger:
        table = Table("job", "worker", "state server", "stores", box=None)
        for job in ledger.jobs.current(pipeline):
            for one in job.workers:
                where = f"{one.host}:{one.port}" if one.port else "none: its shard is opened directly"
                table.add_row(job.job, str(one.number), where, ", ".join(store.name for store in job.stores))
        out.print(table)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise SettingsError(f"--workers {text!r} is no list of numbers.", next_step="Write for example 0,1.") from None


def place_of(pipeline: str, worker: int, address: str, tls: bool) -> Placement:
    """The place HOST:PORT of a worker; SettingsError if that is not all there is to the address."""
    from sluice.state.ledger.placement import Placement

    host, _, port = address.rpartition(":")
    if not _HOST.fullmatch(host) or not (port.isascii() and port.isdecimal()):
        raise SettingsError(f"{address!r} is no HOST:PORT.")
    return Placement(pipeline, worker, host.strip("[]"), int(port), tls)
