"""`sluice status`: the health of the pipelines."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Self

import typer

from sluice.commands.console import errors_as_messages, out, wide
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.kafka.unread_records import Offsets
    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.failures import Failure
    from sluice.state.model import Snapshot

_KAFKA_SECONDS = 2.0
"""How long the command waits for a broker."""
_WATCH_SECONDS = 3.0
"""How long the command watches an open transaction; most producers end theirs earlier."""


_STATES = {
    "run": "failed at",
    "overdue": "is overdue since",
    "input": "waits for its input since",
    "rejections": "is degraded since",
}
"""Kind of a failure → the words that the command prints before the failure's time."""


def status() -> None:
    """Print the health of each pipeline.

    Exit with status 1 if a file is broken, a run failed, data are overdue, brokers or topics are
    away, many records were rejected, or a transaction holds back records.
    """
    from rich.table import Table
    from rich.text import Text

    from sluice.observe.monitoring import LedgerFigures
    from sluice.state.ledger.failures import FAILED_KINDS
    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    table = Table("pipeline", "status", "newest snapshot", box=None)
    problems: list[str] = []
    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        figures = LedgerFigures.read(ledger)
        # A broken file is reported as it is now, from `loaded`, and not as it was recorded.
        failures = [failure for failure in chain.from_iterable(figures.failures.values()) if failure.kind != "file"]
        broken = {file.name for file in loaded.broken}
        failed = {failure.pipeline for failure in failures if failure.kind in FAILED_KINDS}
        degraded = {failure.pipeline for failure in failures if failure.kind == "rejections"}
        inputs = Inputs.of(figures)
        recorded = {failure.pipeline: failure.detail for failure in failures if failure.kind == "input"}
        away, held = inputs.away | recorded, inputs.held
        names = {pipeline.name for pipeline in loaded.pipelines} | {*figures.generations} | broken
        for name in sorted(names | {failure.pipeline for failure in failures}):
            kinds = {
                "broken": broken,
                "failed": failed,
                "waiting": away,
                "held back": held,
                "degraded": degraded,
            }
            # The kinds are in order, the worst first, and only the worst is shown.
            state = next((kind for kind, of_kind in kinds.items() if name in of_kind), "ok")
            table.add_row(
                Text(name),
                Text(state, "green" if state == "ok" else "red"),
                _newest(figures.snapshots.get(name)),
            )
        problems += [str(file.error) for file in loaded.broken]
        problems += map(_problem, failures)
        # A recorded failure about the input is already among the failures.
        problems += [f"{name} waits for its input: {why}" for name, why in sorted(away.items()) if name not in recorded]
        for name, (records, oldest) in sorted(held.items()):
            problems.append(
                f"{name}: an open transaction of a producer holds back {counted(records, 'record')}, "
                f"the oldest with the timestamp {oldest:%Y-%m-%d %H:%M:%S} UTC. Stop the producer, or "
                "end its transaction: kafka-transactions.sh find-hanging."
            )
        wide.print(table)
    for problem in problems:
        out.print(f"✗ {problem}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def _problem(failure: Failure) -> str:
    run = f", run {failure.run}" if failure.run else ""
    since = f"{_STATES[failure.kind]} {failure.at:%Y-%m-%d %H:%M:%S} UTC{run}"
    return f"{failure.pipeline} {since}: {failure.title}. {failure.detail} {failure.next_step}".rstrip()


@dataclass
class Inputs:
    """What is wrong with the topics of pipelines now."""

    held: dict[str, tuple[int, datetime]] = field(default_factory=dict)
    """Pipeline → the number of its records that hanging transactions hold back, and the timestamp of the oldest.

    A transaction counts as hanging if this timestamp is old and the transaction is still open after `_WATCH_SECONDS`.
    """
    away: dict[str, str] = field(default_factory=dict)
    """Pipeline → a message that no broker answers, or which of the pipeline's topics are
    missing."""

    @classmethod
    def of(cls, figures: LedgerFigures) -> Self:
        """Look at the topics of all pipelines that have run."""
        from sluice.errors import BrokersUnreachable
        from sluice.kafka.brokers import broker_errors, require_brokers

        inputs, kafka, positions = cls(), settings().kafka, figures.positions
        try:
            if positions:
                require_brokers(kafka, _KAFKA_SECONDS)
                with broker_errors(kafka):
                    inputs._look(kafka, positions)
        except BrokersUnreachable as error:
            inputs.away = dict.fromkeys(positions, error.detail)
        return inputs

    def _look(self, kafka: Mapping[str, str], positions: Mapping[str, Offsets]) -> None:
        """`positions` has all topics of each pipeline."""
        from sluice.kafka.brokers import silent_admin
        from sluice.kafka.open_transactions import HELD_SECONDS, oldest_held
        from sluice.kafka.unread_records import read_lag

        admin = silent_admin(kafka)
        watched = sorted(set[str]().union(*positions.values()))
        lag_of_all = read_lag(admin, watched, {})
        for name, read in positions.items():
            if missing := lag_of_all.missing(read):
                self.away[name] = f"Missing topics: {', '.join(missing)}."
        if not lag_of_all.held_ends:
            return
        time.sleep(_WATCH_SECONDS)
        lag_of_all = lag_of_all.still_held(read_lag(admin, watched, {}))
        for name, read in positions.items():
            lag = lag_of_all.of_pipeline(read, read)
            oldest = oldest_held(kafka, lag)
            if oldest is not None and (datetime.now(UTC) - oldest).total_seconds() > HELD_SECONDS:
                records = sum(lag.held_in(*partition) for partition in lag.partitions())
                self.held[name] = records, oldest


def _newest(snapshot: Snapshot | None) -> str:
    return "none" if snapshot is None else f"{snapshot.id}, {snapshot.published_at:%Y-%m-%d %H:%M:%S} UTC"
