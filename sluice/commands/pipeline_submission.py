"""Runs a pipeline's driver with spark-submit, for the commands that need one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer

from sluice.commands.console import err, errors_as_messages
from sluice.settings import settings
from sluice.support.startup import importing

if TYPE_CHECKING:
    from sluice.topology.pipeline import Pipeline


def submit(pipeline: str, master: str, *options: str, linger_ms: int | None = None) -> NoReturn:
    """Run a pipeline's driver with these options, and end the command with the driver's status."""
    with errors_as_messages(), importing():
        from sluice.errors import EngineError
        from sluice.spark_submit import Interrupted, submission
        from sluice.state.ledger.run_ends import note_failure, note_killed, now
        from sluice.topology.loading.run_options import run_options
        from sluice.warm.client import run_warm

        definition = load(pipeline)
        run_with = run_options(settings().pipelines, definition.file, pipeline)
    with errors_as_messages():
        started_at = now()
        configuration = replace(run_with.applied_to(settings()), linger_ms=linger_ms)
        kafka, arguments, delta = settings().kafka, [*options, pipeline], definition.needs_delta
        try:
            status = run_warm(configuration, kafka, master, arguments, delta=delta)
            if status is None:
                from sluice.kafka.brokers import require_brokers

                with submission(configuration, kafka, master, arguments, delta=delta) as submitted:
                    with note_failure(settings(), pipeline):
                        require_brokers(kafka)
                    status = submitted.run()
            detail = f"The driver ended with status {status} and without an error message."
        except Interrupted as interrupted:
            # A shell shows this status for a program that a signal has ended.
            status, detail = 128 + interrupted.number, f"The command was {interrupted}."
            err.print(
                f"{detail} Published batches are kept; repeat the command to continue.",
                soft_wrap=True,
            )
        # `options` is empty for a plain run only. The ledger keeps a failure until a plain run has
        # read all records, so the failure of a rebuild or replay would stay too long.
        if status and not options:
            note_killed(settings(), pipeline, "", started_at, EngineError(detail))
    raise typer.Exit(status)


def load(name: str) -> Pipeline:
    """Load a pipeline from the folder in the settings."""
    from sluice.topology import load_pipeline

    return load_pipeline(settings().pipelines, name)
