"""`sluice demo`: runs an example."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages, out
from sluice.examples import NAMES, load_example


def demo(
    name: Annotated[
        str, typer.Argument(help=f"The example: {', '.join(NAMES)}.", metavar="[EXAMPLE]")
    ] = "orders",
    leave: Annotated[
        bool,
        typer.Option("--exit", help="Exit after the queries, with status 1 if a result is wrong."),
    ] = False,
    port: Annotated[
        int | None,
        typer.Option(help="Airflow's port; default: 8080 or, if it is taken, any free port."),
    ] = None,
) -> None:
    """Start Kafka and Airflow, send an example's records, let its pipeline run, and check the results."""
    from sluice.examples import demo as demos

    with errors_as_messages():
        status = demos.demo(load_example(name), demos.Options(leave, port), out)
    raise typer.Exit(status)
