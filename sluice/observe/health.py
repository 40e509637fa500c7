"""A pipeline's failures and health, the same for the page, REST, `sluice status` and metrics."""

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
from sluice.values.phrases import agreeing, counted, listed

Trouble = Literal["broken", "failed", "waiting", "held", "degraded"]
"""The health of a pipeline with which something is wrong. The worst comes first."""
Calm = Literal["not_started", "paused", "retired"]
"""The health of a pipeline that does not run, although nothing is wrong."""
_WORST_FIRST: Sequence[Trouble] = get_args(Trouble)
NOTHING: Mapping[str, Mapping[int, int]] = MappingProxyType({})
_WHILE_PAUSED: Collection[FailureKind] = (
    "file",
    "host",
    "disk",
    "clock",
    "growth",
    "retention",
    "schemas",
)
"""The failures of a paused pipeline that a person has to look at. The other kinds are
about runs that fail or do not start, which is normal during a pause."""
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
    """Return the recorded failures of a pipeline, and the failures that its input has now.

    `lag` is None if it is unknown, and `lag_error` says why. `held_since` is the time at which the
    caller first saw that a transaction holds back records; None if no transaction does.

    A missing input is not a failure of a pipeline that has never run, or that is retired.
    """
    failures = recorded_failures(figures, pipeline)
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


def recorded_failures(figures: LedgerFigures, pipeline: str) -> list[Failure]:
    """Return the failures that the ledger has of a pipeline.

    The trigger of a pipeline that has never run records that the pipeline waits for its topics.
    This is not a failure, because nothing has worked before: see `awaited_by`.
    """
    failures = figures.failures.get(pipeline, ())
    calm = calm_of(figures, pipeline)
    if calm == "paused":
        return [failure for failure in failures if failure.kind in _WHILE_PAUSED]
    if calm == "not_started":
        return [failure for failure in failures if failure.kind != "input"]
    return [*failures]


def awaited_by(figures: LedgerFigures, pipeline: str) -> str:
    """Return why a pipeline that has never run could not run; empty if that is not recorded."""
    if calm_of(figures, pipeline) == "not_started":
        for failure in figures.failures.get(pipeline, ()):
            if failure.kind == "input":
                return failure.detail
    return ""


def input_away(
    missing: Sequence[str],
    lag_error: str = "",
    read: Mapping[str, Mapping[int, int]] = NOTHING,
    denied: Collection[str] = (),
) -> InputAway:
    """Return the error for topics that do not exist, or for brokers that do not answer.

    `read` has the offsets up to which the pipeline has read its topics. A missing topic with such
    offsets was deleted, unless the topic is in `denied`: Sluice may not describe these topics.
    """
    if not missing:
        return InputAway(lag_error)
    hidden: list[str] = []
    deleted: list[str] = []
    never_read: list[str] = []
    for topic in missing:
        if topic in denied:
            hidden.append(topic)
        elif read.get(topic):
            deleted.append(topic)
        else:
            never_read.append(topic)
    details: list[str] = []
    if deleted:
        ends: list[str] = []
        for topic in deleted:
            for number, end in sorted(read[topic].items()):
                ends.append(f"{topic}/{number} up to {end}")
        was = agreeing(deleted, "was", "were")
        details.append(f"{_topics(deleted)} {was} deleted. The pipeline has read {listed(ends)}.")
    if never_read:
        do = agreeing(never_read, "does", "do")
        details.append(
            f"{_topics(never_read)} {do} not exist. The pipeline has never read from there."
        )
    if hidden:
        denial = "cannot be found: Kafka denies Sluice the operation DESCRIBE."
        details.append(f"{_topics(hidden)} {denial}")
    them = agreeing(never_read, "it", "them")
    next_step = f"Create {them}, or correct the pipeline. {InputAway.next_step}"
    if deleted:
        next_step = _DELETED
    if hidden and not deleted and not never_read:
        next_step = _DENIED
    return InputAway(" ".join(details), next_step=next_step)


def awaited_input(missing: Sequence[str]) -> str:
    """Return why a pipeline that has never run could not run; an empty text if it could."""
    if not missing:
        return ""
    do = agreeing(missing, "does", "do")
    return f"{_topics(missing)} {do} not exist yet."


def _topics(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"Topic {names[0]}"
    return f"The topics {', '.join(names)}"


def not_started(pipeline: str, since: datetime) -> Failure:
    """Return the failure of a pipeline whose run was requested at `since` and has no driver yet."""
    error = NoSlot(f"A run was requested at {since:%H:%M:%S} UTC, but no driver has started.")
    return msgspec.structs.replace(Failure.of(error, pipeline, kind="slot"), at=since)


def held_failure(pipeline: str, lag: Lag, since: datetime) -> Failure:
    """Return the failure of a pipeline whose records a transaction has held back since a time."""
    records = 0
    places: list[str] = []
    next_step = ""
    for topic, number in lag.partitions():
        held = lag.held_in(topic, number)
        if held:
            records += held
            places.append(f"{topic}/{number}")
            if lag.broker and not next_step:
                next_step = _end_transaction(lag, topic, number)
    detail = f"The transaction holds back {counted(records, 'record')} of {', '.join(places)}."
    error = RecordsHeld(detail, next_step=next_step)
    return msgspec.structs.replace(Failure.of(error, pipeline, kind="held"), at=since)


def _end_transaction(lag: Lag, topic: str, partition: int) -> str:
    """Return the commands that find the producer of a partition's transaction, and end it."""
    command = f"kafka-transactions.sh --bootstrap-server {lag.broker}"
    options = f"--topic {topic} --partition {partition}"
    # A reader of committed records stops at the first record of the oldest open transaction.
    start = lag.ends[topic][partition]
    return (
        f"Find the producer and stop it: `{command} describe-producers {options}`. "
        f"Or end its transaction: `{command} abort {options} --start-offset {start}`."
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
    """Return the health of a pipeline that is retired, paused or new; None for other pipelines."""
    if pipeline in figures.retired:
        return "retired"
    if pipeline in figures.pauses:
        return "paused"
    if pipeline not in figures.generations:
        return "not_started"
    return None


def severity(kinds: Collection[FailureKind]) -> int:
    """Return a number for sorting: 0 if failures of these kinds cause the worst health."""
    trouble = trouble_of(kinds)
    if trouble is None:
        return len(_WORST_FIRST)
    return _WORST_FIRST.index(trouble)


def by_cause(failures: Iterable[Failure]) -> list[list[Failure]]:
    """Group failures that say the same about several pipelines.

    The groups with the worst failures come first. Equally bad groups are sorted by pipeline.
    """
    causes: dict[tuple[str, ...], list[Failure]] = {}
    by_pipeline = sorted(failures, key=lambda failure: failure.pipeline)
    for failure in sorted(by_pipeline, key=lambda failure: severity({failure.kind})):
        cause = failure.kind, failure.host, failure.title, failure.detail, failure.next_step
        causes.setdefault(cause, []).append(failure)
    return list(causes.values())
