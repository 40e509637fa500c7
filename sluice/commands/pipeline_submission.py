"""Runs a pipeline's driver with spark-submit, for the commands that need one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

import msgspec
import typer

from sluice.commands.console import err, errors_as_messages, say
from sluice.settings import OFF, USE_WARM, settings
from sluice.support.startup import importing

if TYPE_CHECKING:
    from sluice.settings import Settings
    from sluice.topology.pipeline import Pipeline


def action_of(options: Sequence[str]) -> str:
    """Return the name of the action that these options choose: `run`, `replay` and so on."""
    return options[0].removeprefix("--") if options else "run"


def submit(pipeline: str, master: str, *options: str, linger_ms: int | None = None) -> NoReturn:
    """Run a pipeline's driver with these options, and end the command with the driver's status."""
    with errors_as_messages():
        status = SubmittedRun(pipeline, master, options, linger_ms).run()
    raise typer.Exit(status)


@dataclass
class SubmittedRun:
    """The run of a pipeline that a command has asked for."""

    pipeline: str
    master: str
    options: Sequence[str]
    linger_ms: int | None
    has_begun: bool = False
    """Whether the ledger has recorded that this command's user runs the pipeline."""
    asks_warm: bool = True
    """Whether to ask warm drivers for the run; False if it may have begun on one."""

    def run(self) -> int:
        """Run the driver, and return its status."""
        with importing():
            from sluice.spark_submit import Interrupted

        started_at = datetime.now(UTC)
        try:
            status = self._on_known_driver()
            if status is None:
                status = self._on_any_driver()
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
        if status and self.has_begun and not self.options:
            from sluice.errors import EngineError
            from sluice.state.ledger.run_ends import note_killed

            note_killed(settings(), self.pipeline, "", started_at, EngineError(detail))
        return status

    @property
    def _arguments(self) -> list[str]:
        return [*self.options, self.pipeline]

    @property
    def _action(self) -> tuple[str, str]:
        """Return the name of the action in the ledger, and its details."""
        return action_of(self.options), " ".join(self.options[1:])

    def _on_known_driver(self) -> int | None:
        """Run on a warm driver. Return the status; None if no warm driver takes the run.

        A warm driver has imported everything. So the run's process loads the pipeline's file,
        refuses a paused pipeline, and notes who runs it. This command would first have to import
        modules for these steps.
        """
        with importing():
            from sluice.topology.loading.pipeline_files import files_naming
            from sluice.topology.loading.run_options import run_options

        files = files_naming(settings().pipelines, self.pipeline)
        if len(files) != 1:
            return None
        run_with = run_options(settings().pipelines, files[0], self.pipeline)
        own = run_with.with_connections(run_with.applied_to(settings()))
        if own.warm == OFF or run_with.requirements:
            return None
        with importing():
            from sluice.spark_submit import temporary_folder
            from sluice.values.commanded_run import BEGUN, COMMANDED, DECLINED, CommandedRun
            from sluice.warm.client import connect, run_warm

        connection = connect(replace(own, warm=USE_WARM), self.master, delta=False)
        if connection is None:
            return None
        action, detail = self._action
        with temporary_folder() as folder:
            commanded = CommandedRun(
                file=str(files[0]), action=action, detail=detail, answer=str(folder / "answer")
            )
            try:
                status = run_warm(
                    replace(own, linger_ms=self.linger_ms),
                    own.kafka,
                    self.master,
                    self._arguments,
                    variables={COMMANDED: msgspec.json.encode(commanded).decode()},
                    connection=connection,
                )
            finally:
                reply = commanded.replied
                self.has_begun = reply == BEGUN
        if reply == DECLINED:
            return None
        self.asks_warm = False
        return status

    def _on_any_driver(self) -> int:
        """Run on a warm driver or, if none takes the run, on a new driver. Return the status."""
        with importing():
            from sluice.driver import reads_records
            from sluice.spark_submit import submission
            from sluice.state.ledger.run_begins import begin_run
            from sluice.state.ledger.run_ends import note_failure
            from sluice.topology.loading.pipeline_connections import libraries_of_name
            from sluice.topology.loading.run_options import run_options
            from sluice.warm.client import run_warm

            # The import of the file needs the libraries, and so does the driver.
            libraries = libraries_of_name(settings().pipelines, self.pipeline, settings().home)
            packages = None if libraries is None else libraries.build(say)
            definition = load(self.pipeline)
            run_with = run_options(settings().pipelines, definition.file, self.pipeline)
            own = run_with.with_connections(run_with.applied_to(settings()))
            if packages is not None:
                own = replace(own, libraries=packages)
        if not self.has_begun:
            reads = reads_records(self.options)
            begin_run(settings(), self.pipeline, *self._action, reads_records=reads)
            self.has_begun = True
        configuration, delta = replace(own, linger_ms=self.linger_ms), definition.needs_delta
        status: int | None = None
        if self.asks_warm:
            status = run_warm(configuration, own.kafka, self.master, self._arguments, delta=delta)
        if status is not None:
            return status
        from sluice.kafka.brokers import require_brokers

        with submission(
            configuration, own.kafka, self.master, self._arguments, delta=delta
        ) as submitted:
            with note_failure(settings(), self.pipeline):
                require_brokers(own.kafka)
            return submitted.run()


def settings_of(pipeline: str, file: str = "") -> Settings:
    """Return the settings with which commands work on a pipeline, with its own connections.

    `file` is the pipeline's file in the newest run; the file may be gone.
    """
    from sluice.topology.loading import pipeline_connections

    return pipeline_connections.settings_of(settings(), pipeline, file)


def load(name: str) -> Pipeline:
    """Load a pipeline from the folder in the settings."""
    from sluice.topology import load_pipeline

    return load_pipeline(settings().pipelines, name)
