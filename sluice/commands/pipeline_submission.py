"""Runs a pipeline's driver with spark-submit, for the commands that need one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

import typer

from sluice.commands.activity_notes import note_activity
from sluice.commands.console import err, errors_as_messages, say
from sluice.settings import settings
from sluice.support.startup import importing

if TYPE_CHECKING:
    from sluice.settings import Settings
    from sluice.topology.pipeline import Pipeline


def action_of(options: Sequence[str]) -> str:
    """Return the name of the action that these options choose: `run`, `replay` and so on."""
    return options[0].removeprefix("--") if options else "run"


def submit(pipeline: str, master: str, *options: str, linger_ms: int | None = None) -> NoReturn:
    """Run a pipeline's driver with these options, and end the command with the driver's status."""
    with errors_as_messages(), importing():
        from sluice.driver import reads_records
        from sluice.errors import EngineError
        from sluice.spark_submit import Interrupted, submission
        from sluice.state.ledger.run_ends import (
            note_failure,
            note_killed,
            now,
            require_running,
        )
        from sluice.topology.loading.pipeline_connections import libraries_of_name
        from sluice.topology.loading.run_options import run_options
        from sluice.warm.client import run_warm

        # The import of the file needs the libraries.
        needed = libraries_of_name(settings().pipelines, pipeline, settings().home)
        if needed is not None:
            needed.build(say)
        definition = load(pipeline)
        run_with = run_options(settings().pipelines, definition.file, pipeline)
        own = run_with.with_connections(run_with.applied_to(settings()))
        libraries = run_with.libraries(own.home)
        if libraries is not None:
            own = replace(own, libraries=libraries.build(say))
        if reads_records(options):
            require_running(settings(), pipeline)
    with errors_as_messages():
        note_activity(pipeline, action_of(options), " ".join(options[1:]))
        started_at = now()
        configuration = replace(own, linger_ms=linger_ms)
        arguments, delta = [*options, pipeline], definition.needs_delta
        try:
            status = run_warm(configuration, own.kafka, master, arguments, delta=delta)
            if status is None:
                from sluice.kafka.brokers import require_brokers

                with submission(
                    configuration, own.kafka, master, arguments, delta=delta
                ) as submitted:
                    with note_failure(settings(), pipeline):
                        require_brokers(own.kafka)
                    status = submitted.run()
            detail = f"The driver ended with status {status} and without an error message."
        except Interrupted as interrupted:
            # A shell shows this status for a program that a signal has ended.
            status, detail = 128 + interrupted.number, f"The command was {interrupted}."
            err.print(
                f"{detail} Published batches are kept; repeat the command to continue.",
                soft_wrap=True,
            )
        # Note failures of plain runs only, for which `options` is empty. The ledger keeps a failure
        # until a plain run has read all records, so a failed rebuild or replay would stay there too
        # long.
        if status and not options:
            note_killed(settings(), pipeline, "", started_at, EngineError(detail))
    raise typer.Exit(status)


def settings_of(pipeline: str, file: str = "") -> Settings:
    """Return the settings with which commands work on a pipeline, with its own connections.

    `file` is its file in the newest run, which may be gone.
    """
    from sluice.topology.loading import pipeline_connections

    return pipeline_connections.settings_of(settings(), pipeline, file)


def load(name: str) -> Pipeline:
    """Load a pipeline from the folder in the settings."""
    from sluice.topology import load_pipeline

    return load_pipeline(settings().pipelines, name)
