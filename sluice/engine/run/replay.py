"""The steps of a replay: batches with given end offsets and a given clock."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sluice.engine.publish.markers import merge_ends
from sluice.engine.read.source_identity import Positions
from sluice.plan import Job, Transformation
from sluice.state.ledger.history import Batch

_SHARE_BEFORE_LAST = 0.75
"""The share of the last records that the last batch but one takes."""


@dataclass(frozen=True)
class ReplayStep:
    """A batch to run again, with its end offsets and clock."""

    ends: Positions
    """The batch's end offsets, for the partitions that existed when the batch first ran."""
    begun: int | None = None
    """The time at which the batch began, epoch ms; None for the current time."""
    partitions: Mapping[str, int] | None = None
    """Topic → its number of partitions when the batch first ran; None for the current numbers."""
    by_clock: bool = False
    """Whether the batch's result depended on the clock."""


def replay_steps(history: Iterable[Batch]) -> Iterator[ReplayStep]:
    """Yield the steps that replay a history, whose batches are sorted from oldest to newest."""
    ends: dict[str, dict[str, int]] = {}
    for batch in history:
        # A batch of the history has end offsets only for partitions from which it has read. For the
        # other partitions, the offsets of earlier batches apply.
        ends = merge_ends(ends, batch.ends)
        yield ReplayStep(ends, batch.begun, batch.partitions, batch.by_clock)


def divided(
    begin: Positions, target: Positions, most_records: Callable[[], int]
) -> Iterator[Positions]:
    """Yield the ends of the batches that together read the records from `begin` to `target`.

    Each batch takes the same share of every partition, and about `most_records()` records, which
    may change from batch to batch. The last batch is smaller, because no batch can be read while
    its output is being written.
    """
    position: dict[str, dict[str, int]] = {}
    for topic, ends in target.items():
        position[topic] = dict.fromkeys(ends, 0)
        for partition in ends:
            position[topic][partition] = begin.get(topic, {}).get(partition, 0)
    while (unread := offsets_between(position, target)) > 0:
        most = most_records()
        share = min(most / unread, 1)
        if most / 2 < unread <= most:
            # Do not read all remaining records in this batch: the last batch is to be small.
            share = _SHARE_BEFORE_LAST
        for topic, starts in position.items():
            for partition, start in starts.items():
                starts[partition] = start + math.ceil((target[topic][partition] - start) * share)
        yield {topic: dict(ends) for topic, ends in position.items()}


def join_steps(
    job: Job,
    types: Mapping[str, str],
    steps: Sequence[ReplayStep],
    begin: Positions,
    most: int,
) -> list[ReplayStep]:
    """Join steps into steps of at most `most` records, unless results depend on where steps end.

    Many small batches replay much faster when joined. `types` has the DDL type of each store's
    values.
    """
    if not _is_independent_of_batches(job, types):
        return list(steps)
    larger: list[ReplayStep] = []
    start = begin
    for step in steps:
        last = larger[-1] if larger else None
        if (
            last is not None
            and not last.by_clock
            and not step.by_clock
            and last.partitions == step.partitions
            and offsets_between(start, step.ends) <= most
        ):
            larger[-1] = replace(step, begun=max(last.begun or 0, step.begun or 0) or None)
        else:
            start = last.ends if last is not None else begin
            larger.append(step)
    return larger


def _is_independent_of_batches(job: Job, types: Mapping[str, str]) -> bool:
    """Return whether results depend neither on where batches end, nor on the time of processing."""
    if job.has_operators or any(isinstance(layer, Transformation) for layer in job.layers):
        return False
    # Which partitions are idle depends on each batch's clock.
    if job.pipeline.idle_timeout_ms is not None or job.pipeline.depends_on_clock:
        return False
    if any(source.on_time == "clock" for source in job.streams):
        return False
    # Sums of doubles depend on the order and the grouping of the additions.
    return not any(re.search("double|float", types[store]) for store in job.stores)


def offsets_between(begin: Positions, ends: Positions) -> int:
    """Return the number of offsets between two positions."""
    offsets = 0
    for topic, partition_ends in ends.items():
        starts = begin.get(topic, {})
        for partition, end in partition_ends.items():
            offsets += max(end - starts.get(partition, 0), 0)
    return offsets
