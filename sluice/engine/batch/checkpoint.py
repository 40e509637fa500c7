"""Writes Spark's checkpoint before each batch, from the ledger's positions and plan. Nothing reads it but Spark.

Spark takes the planned batch for one that it has begun and not finished, and runs exactly that batch. A checkpoint that
is lost, damaged, or left on another host therefore does not matter.
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
    checkpoint: Path, plan: PlannedBatch, before: Sources, sources: Sequence[Sequence[str]], conf: Mapping[str, str]
) -> None:
    """Write a checkpoint whose next batch is the planned one, into an empty folder.

    `before` is where the batch begins, for all of the plan's partitions. `sources` are the topics of each source of the
    query. `conf` are the settings that Spark keeps with a batch; without spark.sql.shuffle.partitions, Spark ends with
    `None.get`.
    """
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": plan.begun, "conf": dict(conf)}
    _write(checkpoint / "metadata", [json.dumps({"id": str(uuid.uuid4())})])
    for number, topics in enumerate(sources):
        # Where the source begins, which Spark reads before its first batch. Spark writes a byte before the version.
        _write(checkpoint / f"sources/{number}/0", ["\0v1", _line(before, topics)])
    logs: dict[int, Sources] = {plan.number: plan.ends}
    if plan.number:
        # Spark reads the end of the batch before to find out where the batch begins.
        logs[plan.number - 1] = before
        _write(checkpoint / f"commits/{plan.number - 1}", ["v1", json.dumps({"nextBatchWatermarkMs": 0})])
    for number, ends in logs.items():
        lines = [json.dumps(metadata), *(_line(ends, topics) for topics in sources)]
        _write(checkpoint / f"offsets/{number}", ["v1", *lines])


def _line(ends: Sources, topics: Sequence[str]) -> str:
    """A source's end offsets exactly as Spark writes them.

    Spark compares them as text to find out whether there are new records: with a space more, it would begin a batch
    without records.
    """
    in_order = {
        topic: dict(sorted(ends.get(topic, {}).items(), key=lambda part: int(part[0]))) for topic in sorted(topics)
    }
    return json.dumps(in_order, separators=(",", ":"))


def _write(file: Path, lines: Sequence[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
