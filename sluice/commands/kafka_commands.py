"""`sluice kafka`: a broker on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages, out
from sluice.settings import settings

app = typer.Typer(no_args_is_help=True, help="A Kafka broker on this machine.")

Folder = Annotated[
    Path | None, typer.Option(help="The broker's data folder; default: kafka in SLUICE_HOME.")
]


@app.command("start")
def kafka_start(
    port: Annotated[int, typer.Option(help="The port, reachable from this machine only.")] = 9092,
    folder: Folder = None,
) -> None:
    """Start a broker that runs until `sluice kafka stop`."""
    from sluice.local.broker import start

    with errors_as_messages():
        broker = start(folder or settings().home / "kafka", port)
        out.print(f"Kafka listens on {broker.bootstrap} (process {broker.pid})")


@app.command("stop")
def kafka_stop(folder: Folder = None) -> None:
    """Stop the broker that `sluice kafka start` has started."""
    from sluice.local.broker import stop

    with errors_as_messages():
        broker = stop(folder or settings().home / "kafka")
        out.print(
            "No broker is running."
            if broker is None
            else f"Stopped the broker on {broker.bootstrap}"
        )
