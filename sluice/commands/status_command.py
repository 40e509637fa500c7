"""`sluice status`: the health of the pipelines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import msgspec
import typer

from sluice.commands.console import errors_as_messages, out, wide
from sluice.settings import settings

if TYPE_CHECKING:
    from sluice.kafka.unread_records import Lag, Offsets
    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.failures import Failure
    from sluice.state.model import Snapshot
    from sluice.topology.loading import Broken

_KAFKA_SECONDS = 2.0
"""How long the command waits for a broker."""
_WATCH_SECONDS = 3.0
"""How long the command watches an open transaction; most producers end their transactions earlier."""


def status() -> None:
    """Print the health of each pipeline, and what is wrong with each: since when, and the next step.

    Exit with status 1 if something is wrong with a pipeline.
    """
    from rich.table import Table
    from rich.text import Text

    from sluice.observe.health import trouble_of
    from sluice.observe.host_checks import check_hosts
    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    table = Table("pipeline", "status", "newest snapshot", box=None)
    problems: list[str] = []
    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        check_hosts(ledger, LedgerFigures.read(ledger), settings())
        figures = LedgerFigures.read(ledger)
        inputs = Inputs.of(figures)
        broken = {file.name for file in loaded.broken}
        problems += [_problem(_file_failure(file, figures)) for file in loaded.broken]
        for name in sorted({pipeline.name for pipeline in loaded.pipelines} | {*figures.pipelines} | broken):
            # This command has loaded the files itself, so it ignores failures of files that other processes recorded.
            failures = [failure for failure in inputs.failures_of(figures, name) if failure.kind != "file"]
            state = "broken" if name in broken else trouble_of({failure.kind for failure in failures}) or "ok"
            problems += map(_problem, failures)
            table.add_row(
                Text(name),
                Text(state, "green" if state == "ok" else "red"),
                _newest(figures.snapshots.get(name)),
            )
        wide.print(table)
    for problem in problems:
        out.print(f"✗ {problem}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def _problem(failure: Failure) -> str:
    run = f", run {failure.run}" if failure.run else ""
    since = f"since {failure.at:%Y-%m-%d %H:%M:%S} UTC{run}"
    return f"{failure.pipeline}, {since}: {failure.title}. {failure.detail} {failure.next_step}".rstrip()


def _file_failure(file: Broken, figures: LedgerFigures) -> Failure:
    """The failure of a file that this command cannot load. It began when a process first recorded it, or else now."""
    from sluice.state.ledger.failures import Failure

    failure = Failure.of(file.error, file.name, kind="file")
    recorded = [earlier.at for earlier in figures.failures.get(file.name, ()) if earlier.kind == "file"]
    return msgspec.structs.replace(failure, at=min([*recorded, failure.at]))


@dataclass
class Inputs:
    """What the command knows about the topics of pipelines."""

    lags: dict[str, Lag] = field(default_factory=dict)
    """Pipeline → its lag."""
    error: str = ""
    """Why the lags are unknown."""
    held: dict[str, datetime] = field(default_factory=dict)
    """Pipeline → the timestamp of the oldest record that a hanging transaction holds back.

    A transaction counts as hanging if this timestamp is old and the transaction is still open after `_WATCH_SECONDS`.
    """

    @classmethod
    def of(cls, figures: LedgerFigures) -> Self:
        """Read from Kafka what is unread or held back in the topics of all pipelines that have run."""
        from sluice.errors import BrokersUnreachable
        from sluice.kafka.brokers import broker_errors, require_brokers

        inputs, kafka, positions = cls(), settings().kafka, figures.positions
        try:
            if positions:
                require_brokers(kafka, _KAFKA_SECONDS)
                with broker_errors(kafka):
                    inputs._look(kafka, positions)
        except BrokersUnreachable as error:
            inputs.error = error.detail
        return inputs

    def failures_of(self, figures: LedgerFigures, pipeline: str) -> list[Failure]:
        """What is wrong with a pipeline."""
        from sluice.observe.health import failures_of

        # The command does not look at the topics of a pipeline that has never run.
        error = self.error if pipeline in figures.generations else ""
        return failures_of(figures, pipeline, self.lags.get(pipeline), error, self.held.get(pipeline))

    def _look(self, kafka: Mapping[str, str], positions: Mapping[str, Offsets]) -> None:
        """Read the lags of the pipelines and watch open transactions. `positions`: pipeline → offsets of its topics."""
        from sluice.kafka.brokers import silent_admin
        from sluice.kafka.open_transactions import HELD_SECONDS, oldest_held
        from sluice.kafka.unread_records import read_lag

        admin = silent_admin(kafka)
        watched = sorted(set[str]().union(*positions.values()))
        lag_of_all = read_lag(admin, watched, {})
        self.lags = {name: lag_of_all.of_pipeline(read, read) for name, read in positions.items()}
        if not lag_of_all.held_ends:
            return
        time.sleep(_WATCH_SECONDS)
        lag_of_all = lag_of_all.still_held(read_lag(admin, watched, {}))
        for name, read in positions.items():
            oldest = oldest_held(kafka, lag_of_all.of_pipeline(read, read))
            if oldest is not None and (datetime.now(UTC) - oldest).total_seconds() > HELD_SECONDS:
                self.held[name] = oldest


def _newest(snapshot: Snapshot | None) -> str:
    return "none" if snapshot is None else f"{snapshot.id}, {snapshot.published_at:%Y-%m-%d %H:%M:%S} UTC"
