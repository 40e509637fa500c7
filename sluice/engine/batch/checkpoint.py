"""Writes Spark's checkpoint before each batch, from the ledger's positions and plan. Only Spark reads the checkpoint.

The checkpoint says that Spark has begun the planned batch and not finished it, so Spark runs exactly that batch. No
earlier checkpoint is needed: it may be lost, damaged, or on another host.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from sluice.state.ledger.plans import PlannedBatch

Sources = Mapping[str, Mapping[str, int]]
"""Topic → partition as text → offset."""


def write_checkpoint(
    checkpoint: Path,
    plan: PlannedBatch,
    before: Sources,
    sources: Sequence[Sequence[str]],
    conf: Mapping[str, str],
) -> None:
    """Write a checkpoint whose next batch is the planned batch, into an empty folder.

    `before` are the offsets at which the batch begins, for all of the plan's partitions. `sources` are the topics of
    each source of the query. `conf` are the settings that Spark keeps with a batch; without
    spark.sql.shuffle.partitions, Spark fails with `None.get`.
    """
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": plan.begun, "conf": dict(conf)}
    _write(checkpoint / "metadata", [json.dumps({"id": str(uuid.uuid4())})])
    for number, topics in enumerate(sources):
        # Spark reads a source's first offsets from this file. It expects a zero byte and a
        # version before them.
        _write(checkpoint / f"sources/{number}/0", ["\0v1", _line(before, topics)])
    logs: dict[int, Sources] = {plan.number: plan.ends}
    if plan.number:
        # Spark begins a batch at the end offsets of the previous batch. So the checkpoint contains
        # a previous batch that ends at the offsets `before`.
        logs[plan.number - 1] = before
        _write(
            checkpoint / f"commits/{plan.number - 1}",
            ["v1", json.dumps({"nextBatchWatermarkMs": 0})],
        )
    for number, ends in logs.items():
        lines = [json.dumps(metadata), *(_line(ends, topics) for topics in sources)]
        _write(checkpoint / f"offsets/{number}", ["v1", *lines])


def _line(ends: Sources, topics: Sequence[str]) -> str:
    """A source's end offsets exactly as Spark writes them.

    Spark compares the offsets as text to find out whether there are new records: an additional
    space would make Spark begin a batch without records.
    """
    in_order: dict[str, dict[str, int]] = {}
    # A repeated batch has no offsets for topics that were found after it was planned.
    for topic in sorted(ends.keys() & topics):
        of_topic = ends[topic]
        in_order[topic] = {partition: of_topic[partition] for partition in sorted(of_topic, key=int)}
    return json.dumps(in_order, separators=(",", ":"))


def _write(file: Path, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
