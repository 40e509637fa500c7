"""Finds the failures and the health of a pipeline, by one rule for the page, REST, `sluice status` and the metrics."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from sluice.answers import FailureKind
from sluice.errors import InputAway, RecordsHeld
from sluice.kafka.unread_records import Lag
from sluice.observe.monitoring import LedgerFigures
from sluice.state.ledger.failures import FAILED_KINDS, WAITING_KINDS, Failure
from sluice.values.phrases import counted

Trouble = Literal["broken", "failed", "waiting", "held", "degraded"]
"""The health of a pipeline with which something is wrong."""


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
    """
    failures = [*figures.failures.get(pipeline, ())]
    recorded = {failure.kind for failure in failures}
    generation = figures.generations.get(pipeline)
    missing = [] if lag is None or generation is None else lag.missing(generation.topics)
    if "input" not in recorded and (missing or (lag is None and lag_error)):
        failures.append(Failure.of(input_away(missing, lag_error), pipeline, kind="input"))
    if lag is not None and held_since is not None and "held" not in recorded:
        failures.append(held_failure(pipeline, lag, held_since))
    return failures


def input_away(missing: Sequence[str], lag_error: str = "") -> InputAway:
    """The error for topics that do not exist, or for brokers that do not answer."""
    if not missing:
        return InputAway(lag_error)
    names = ", ".join(missing)
    detail = f"Topic {names} does not exist." if len(missing) == 1 else f"The topics {names} do not exist."
    return InputAway(detail, next_step=f"Create it, or correct the pipeline. {InputAway.next_step}")


def held_failure(pipeline: str, lag: Lag, since: datetime) -> Failure:
    """The failure of a pipeline whose records a transaction has held back since a time."""
    held = {partition: lag.held_in(*partition) for partition in lag.partitions()}
    places = ", ".join(f"{topic}/{number}" for (topic, number), count in held.items() if count)
    error = RecordsHeld(f"It holds back {counted(sum(held.values()), 'record')} of {places}.")
    failure = Failure.of(error, pipeline, kind="held")
    return msgspec.structs.replace(failure, at=since)


def trouble_of(kinds: Collection[FailureKind]) -> Trouble | None:
    """The health of a pipeline with failures of these kinds, that of the worst failure; None without failures."""
    if "file" in kinds:
        return "broken"
    if FAILED_KINDS.intersection(kinds):
        return "failed"
    if WAITING_KINDS.intersection(kinds):
        return "waiting"
    if "held" in kinds:
        return "held"
    return "degraded" if kinds else None
