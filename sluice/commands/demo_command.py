"""`sluice demo`: runs an example."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.commands.console import errors_as_messages, out
from sluice.errors import SettingsError
from sluice.examples import FORMATS, NAMES, load_example


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
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"The orders' format, with a schema registry: {', '.join(FORMATS)}.",
            metavar="FORMAT",
        ),
    ] = None,
) -> None:
    """Start Kafka and Airflow, send an example's records, run its pipeline, check the results."""
    from sluice.examples import demo as demos

    with errors_as_messages():
        if format_name and (name != "orders" or format_name not in FORMATS):
            raise SettingsError(
                f"The example {name} has no format {format_name}.",
                next_step="Only the example orders has formats: write one of --format "
                f"{', '.join(FORMATS)}, or leave --format out.",
            )
        options = demos.Options(leave, port, format_name or "")
        status = demos.demo(load_example(name), options, out.console)
    raise typer.Exit(status)
