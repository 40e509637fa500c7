"""Finds the failures and the health of a pipeline, by one rule for the page, REST, `sluice status` and the metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Literal, get_args

import msgspec

from sluice.answers import FailureKind
from sluice.errors import InputAway, NoSlot, RecordsHeld
from sluice.kafka.unread_records import Lag
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import FAILED_KINDS, WAITING_KINDS, Failure
from sluice.values.phrases import counted, listed

Trouble = Literal["broken", "failed", "waiting", "held", "degraded"]
"""The health of a pipeline with which something is wrong. The worst comes first."""
Calm = Literal["not_started", "retired"]
"""The health of a pipeline that does not run, although nothing is wrong."""
_WORST_FIRST: Sequence[Trouble] = get_args(Trouble)
NOTHING: Mapping[str, Mapping[int, int]] = MappingProxyType({})
_NEVER_READ = f"Create it, or correct the pipeline. {InputAway.next_step}"
_DELETED = (
    "Create the topic again, write its old records back, and rebuild the state: sluice rebuild "
    "PIPELINE --from-topics. Or stop running the pipeline, which leaves its state unchanged."
)
_DENIED = f"Allow it in Kafka's access control lists. {InputAway.next_step}"


def failures_of(
    figures: LedgerFigures,
    pipeline: str,
    lag: Lag | None,
    lag_error: str = "",
    held_since: datetime | None = None,
) -> list[Failure]:
    """The recorded failures of a pipeline, and the present failures of its input.

    `lag` is None if it is unknown, and `lag_error` says why. `held_since` is the time since which a
    transaction holds back records, as far as the caller has seen; None if no transaction hangs.

    A missing input is no failure of a pipeline that is not to run: one that has never run, unless
    its trigger has recorded that it waits, or one that is retired.
    """
    failures = [*figures.failures.get(pipeline, ())]
    recorded = {failure.kind for failure in failures}
    generation = figures.generations.get(pipeline)
    if calm_of(figures, pipeline) is not None or generation is None:
        return failures
    missing = [] if lag is None else lag.missing(generation.topics)
    if "input" not in recorded and (missing or (lag is None and lag_error)):
        away = InputAway(lag_error)
        if lag is not None:
            away = input_away(missing, read=lag.positions, denied=lag.denied)
        failures.append(Failure.of(away, pipeline, kind="input"))
    if lag is not None and held_since is not None and "held" not in recorded:
        failures.append(held_failure(pipeline, lag, held_since))
    return failures


def input_away(
    missing: Sequence[str],
    lag_error: str = "",
    read: Mapping[str, Mapping[int, int]] = NOTHING,
    denied: Collection[str] = (),
) -> InputAway:
    """The error for topics that do not exist, or for brokers that do not answer.

    `read` has the offsets up to which the pipeline has read its topics. A missing topic that has
    such offsets was deleted, unless it is one of the topics in `denied`, which Sluice may not
    describe.
    """
    if not missing:
        return InputAway(lag_error)
    hidden = [topic for topic in missing if topic in denied]
    deleted = [topic for topic in missing if topic not in hidden and read.get(topic)]
    never_read = [topic for topic in missing if topic not in hidden and topic not in deleted]
    details: list[str] = []
    if deleted:
        ends = [
            f"{topic}/{number} up to {end}"
            for topic in deleted
            for number, end in sorted(read[topic].items())
        ]
        was = "was" if len(deleted) == 1 else "were"
        details.append(f"{_topics(deleted)} {was} deleted. The pipeline has read {listed(ends)}.")
    if never_read:
        do = "does" if len(never_read) == 1 else "do"
        details.append(
            f"{_topics(never_read)} {do} not exist. The pipeline has never read from there."
        )
    if hidden:
        denial = "cannot be found: Kafka denies Sluice the operation DESCRIBE."
        details.append(f"{_topics(hidden)} {denial}")
    next_step = _DELETED if deleted else _NEVER_READ
    if hidden and not deleted and not never_read:
        next_step = _DENIED
    return InputAway(" ".join(details), next_step=next_step)


def awaited_input(missing: Sequence[str]) -> str:
    """Return why a pipeline that has never run could not run; an empty text if it could."""
    if not missing:
        return ""
    do = "does" if len(missing) == 1 else "do"
    return f"{_topics(missing)} {do} not exist yet."


def _topics(names: Sequence[str]) -> str:
    return f"Topic {names[0]}" if len(names) == 1 else f"The topics {', '.join(names)}"


def not_started(pipeline: str, since: datetime) -> Failure:
    """The failure of a pipeline for which Airflow was asked for a run at `since`, and has not started a driver."""
    error = NoSlot(f"A run was asked for at {since:%H:%M:%S} UTC, and no driver has started.")
    return msgspec.structs.replace(Failure.of(error, pipeline, kind="slot"), at=since)


def held_failure(pipeline: str, lag: Lag, since: datetime) -> Failure:
    """The failure of a pipeline whose records a transaction has held back since a time."""
    held = {
        partition: count for partition in lag.partitions() if (count := lag.held_in(*partition))
    }
    places = ", ".join(f"{topic}/{number}" for topic, number in held)
    detail = f"It holds back {counted(sum(held.values()), 'record')} of {places}."
    error = RecordsHeld(
        detail, next_step=_end_transaction(lag, *next(iter(held))) if lag.broker and held else ""
    )
    failure = Failure.of(error, pipeline, kind="held")
    return msgspec.structs.replace(failure, at=since)


def _end_transaction(lag: Lag, topic: str, partition: int) -> str:
    """The commands that find the producer of the transaction in a partition, and end the transaction."""
    command = f"kafka-transactions.sh --bootstrap-server {lag.broker}"
    where = f"--topic {topic} --partition {partition}"
    # A reader of committed records stops at the first record of the oldest open transaction.
    start = lag.ends[topic][partition]
    return (
        f"Find the producer and stop it: `{command} describe-producers {where}`. "
        f"Or end its transaction: `{command} abort {where} --start-offset {start}`."
    )


def trouble_of(kinds: Collection[FailureKind]) -> Trouble | None:
    """Return the health of a pipeline with failures of these kinds; None if nothing is wrong."""
    if "file" in kinds:
        return "broken"
    if FAILED_KINDS.intersection(kinds):
        return "failed"
    if WAITING_KINDS.intersection(kinds):
        return "waiting"
    if "held" in kinds:
        return "held"
    return "degraded" if kinds else None


def calm_of(figures: LedgerFigures, pipeline: str) -> Calm | None:
    """Return the health of a pipeline that is not to run; None for all other pipelines."""
    if pipeline in figures.retired:
        return "retired"
    return None if pipeline in figures.generations else "not_started"


def severity(kinds: Collection[FailureKind]) -> int:
    """A number for sorting: 0 for the worst health that failures of these kinds cause."""
    trouble = trouble_of(kinds)
    return len(_WORST_FIRST) if trouble is None else _WORST_FIRST.index(trouble)


def by_cause(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Lists of failures. The failures that say the same about several pipelines are in one list.

    The lists with the worst failures come first. Equally bad ones are sorted by pipeline.
    """
    causes: dict[tuple[str, ...], list[Failure]] = {}
    for failure in sorted(
        failures, key=lambda failure: (severity({failure.kind}), failure.pipeline)
    ):
        cause = failure.kind, failure.host, failure.title, failure.detail, failure.next_step
        causes.setdefault(cause, []).append(failure)
    return list(causes.values())
