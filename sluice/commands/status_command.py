"""`sluice status`: the health of the pipelines."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from sluice.commands.console import err, errors_as_messages, out, wide
from sluice.settings import settings
from sluice.values.phrases import counted

if TYPE_CHECKING:
    from sluice.state.ledger.failures import Failure
    from sluice.state.ledger.ledger import Ledger

_KAFKA_SECONDS = 2.0
"""How long the command waits for a broker."""
_WATCH_SECONDS = 3.0
"""How long the command watches an open transaction; most producers end theirs earlier."""


def status() -> None:
    """Print the health of each pipeline.

    Exit with status 1 if a file is broken, a run failed, data are overdue, or a transaction holds back records.
    """
    from rich.table import Table
    from rich.text import Text

    from sluice.state.ledger.ledger import Ledger
    from sluice.topology import load_pipelines

    table = Table("pipeline", "status", "newest snapshot", box=None)
    problems: list[str] = []
    with errors_as_messages(), Ledger.open(settings().ledger) as ledger:
        loaded = load_pipelines(settings().pipelines)
        failures = [failure for failure in ledger.failures.all() if failure.kind != "file"]
        failed, broken = {failure.pipeline for failure in failures}, {file.name for file in loaded.broken}
        names = {pipeline.name for pipeline in loaded.pipelines} | {*ledger.generations.pipelines()} | broken | failed
        held = _held_back(ledger)
        for name in sorted(names):
            kinds = {"broken": broken, "failed": failed, "held back": held}
            state = next((kind for kind, of_kind in kinds.items() if name in of_kind), "ok")
            table.add_row(Text(name), Text(state, "green" if state == "ok" else "red"), _newest(ledger, name))
        problems += [str(file.error) for file in loaded.broken]
        problems += [_failure_text(failure) for failure in failures]
        for name, (records, oldest) in sorted(held.items()):
            problems.append(
                f"{name}: an open transaction of a producer holds back {counted(records, 'record')}, the oldest with "
                f"the timestamp {oldest:%Y-%m-%d %H:%M:%S} UTC. Stop the producer, or end its transaction: "
                "kafka-transactions.sh find-hanging."
            )
        wide.print(table)
    for problem in problems:
        out.print(f"✗ {problem}", markup=False, soft_wrap=True)
    raise typer.Exit(1 if problems else 0)


def _failure_text(failure: Failure) -> str:
    what = "is overdue since" if failure.kind == "overdue" else "failed at"
    run = f", run {failure.run}" if failure.run else ""
    at = f"{failure.at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{failure.pipeline} {what} {at}{run}: {failure.title}. {failure.detail}"


def _held_back(ledger: Ledger) -> dict[str, tuple[int, datetime]]:
    """Pipeline → its records that a hanging transaction holds back, and the timestamp of the oldest.

    A transaction counts as hanging if this timestamp is old and the transaction is still open after `_WATCH_SECONDS`.
    Empty if Kafka does not answer.
    """
    from sluice.errors import BrokersUnreachable
    from sluice.kafka.brokers import broker_errors, require_brokers, silent_admin
    from sluice.kafka.open_transactions import HELD_SECONDS, oldest_held
    from sluice.kafka.unread_records import read_lag

    positions = {name: ledger.positions(name) for name in ledger.generations.pipelines()}
    held: dict[str, tuple[int, datetime]] = {}
    if not positions:
        return held
    kafka, topics = settings().kafka, set[str]().union(*positions.values())
    try:
        require_brokers(kafka, _KAFKA_SECONDS)
        with broker_errors(kafka):
            admin = silent_admin(kafka)
            lag_of_all = read_lag(admin, topics, {})
            if lag_of_all.held_ends:
                time.sleep(_WATCH_SECONDS)
                lag_of_all = lag_of_all.still_held(read_lag(admin, topics, {}))
        for name, read in positions.items():
            lag = lag_of_all.of_pipeline(read, read)
            oldest = oldest_held(kafka, lag)
            if oldest is not None and (datetime.now(UTC) - oldest).total_seconds() > HELD_SECONDS:
                records = sum(lag.held_in(*partition) for partition in lag.partitions())
                held[name] = records, oldest
    except BrokersUnreachable as error:
        err.print(f"Whether transactions hold back records is unknown: {error.detail}", markup=False)
    return held


def _newest(ledger: Ledger, pipeline: str) -> str:
    if (newest := ledger.snapshots.latest(pipeline)) is None:
        return "none"
    return f"{newest.id}, {newest.published_at:%Y-%m-%d %H:%M:%S} UTC"
