"""The command warm, which runs a warm driver."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from typing import Annotated

import typer

from sluice.commands.command_arguments import LOCAL, Master
from sluice.commands.console import err, errors_as_messages
from sluice.errors import SettingsError
from sluice.settings import settings


def warm(
    master: Master = LOCAL,
    at_once: Annotated[
        int,
        typer.Option(min=1, max=100, help="Maximum number of concurrent runs; others wait."),
    ] = 4,
    idle: Annotated[str, typer.Option(help="End after this time without a run.")] = "30 minutes",
    runs: Annotated[int, typer.Option(min=1, help="End after this many runs.")] = 500,
    age: Annotated[str, typer.Option(help="End after this time.")] = "12 hours",
    delta: Annotated[
        bool, typer.Option("--delta", help="Take runs of pipelines with Delta tables.")
    ] = False,
) -> None:
    """Run a warm driver: runs of pipelines on this host use its JVM, and so start faster."""
    with errors_as_messages():
        from sluice.spark_submit import Interrupted, submission
        from sluice.topology.durations import milliseconds
        from sluice.warm import warm_driver
        from sluice.warm.client import locked
        from sluice.warm.fork_server import Limits
        from sluice.warm.identity import driver_key, require_local, socket_path

        require_local(master)
        configuration = settings()
        key = driver_key(configuration, master, delta=delta)
        path = socket_path(configuration, key)
        limits = Limits(at_once, milliseconds(idle) / 1_000, runs, milliseconds(age) / 1_000)
        with locked(configuration, key) as is_free:
            if not is_free:
                raise SettingsError(
                    f"A warm driver with these settings is already running at {path}.",
                    next_step="End that warm driver first, or change SLUICE_MEMORY or "
                    "SLUICE_SPARK_CONF.",
                )
            os.environ[warm_driver.LIMITS] = json.dumps(asdict(limits))
            os.environ[warm_driver.KEY] = key
            os.environ[warm_driver.SOCKET] = str(path)
            os.environ[warm_driver.COMMAND] = str(os.getpid())
            # The driver's output goes to files and Airflow's log, never to a terminal.
            os.environ["NO_COLOR"] = "1"
            try:
                with submission(
                    configuration, {}, master, [], delta=delta, runs_at_once=at_once
                ) as submitted:
                    driver = replace(submitted, program=warm_driver.__file__, finished=None)
                    status = driver.run()
            except Interrupted as interrupted:
                status = 128 + interrupted.number
                err.print(f"The command was {interrupted}.", soft_wrap=True)
    raise typer.Exit(status)
