"""Writes Spark's checkpoint before each batch, from the ledger's positions and plan. Nothing reads it but Spark.

Spark takes the planned batch for one that it has begun and not finished, and runs exactly that batch. A checkpoint that
is lost, damaged, or left on another host therefore does not matter.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence

from pyarrow import fs

from sluice.engine.batch.side_outputs import delete_folder, open_path
from sluice.state.ledger.plans import PlannedBatch

Sources = Mapping[str, Mapping[str, int]]
"""Topic → partition as text → offset."""


def write_checkpoint(
    checkpoint: str, plan: PlannedBatch, before: Sources, sources: Sequence[Sequence[str]], conf: Mapping[str, str]
) -> None:
    """Write a checkpoint whose next batch is the planned one.

    `before` is where the batch begins, for all of the plan's partitions. `sources` are the topics of each source of the
    query. `conf` are the settings that Spark keeps with a batch; without spark.sql.shuffle.partitions, Spark ends with
    `None.get`.
    """
    delete_folder(checkpoint)
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": plan.begun, "conf": dict(conf)}
    write_log(checkpoint, "metadata", [json.dumps({"id": str(uuid.uuid4())})])
    write_sources(checkpoint, before, sources)
    logs: dict[int, Sources] = {plan.number: plan.ends}
    if plan.number:
        # Spark reads the end of the batch before to find out where the batch begins.
        logs[plan.number - 1] = before
        write_log(checkpoint, f"commits/{plan.number - 1}", ["v1", json.dumps({"nextBatchWatermarkMs": 0})])
    for number, ends in logs.items():
        lines = [json.dumps(metadata), *(source_line(ends, topics) for topics in sources)]
        write_log(checkpoint, f"offsets/{number}", ["v1", *lines])


def write_sources(checkpoint: str, firsts: Sources, sources: Sequence[Sequence[str]]) -> None:
    """Write where each source of the query begins, which Spark reads before its first batch."""
    for number, topics in enumerate(sources):
        # Spark's Kafka source writes a byte before the version, which its version 2.1.0 expected.
        write_log(checkpoint, f"sources/{number}/0", ["\0v1", source_line(firsts, topics)])


def source_line(ends: Sources, topics: Sequence[str]) -> str:
    """A source's end offsets exactly as Spark writes them.

    Spark compares them as text to find out whether there are new records: with a space more, it would begin a batch
    without records.
    """
    in_order = {
        topic: dict(sorted(ends.get(topic, {}).items(), key=lambda part: int(part[0]))) for topic in sorted(topics)
    }
    return json.dumps(in_order, separators=(",", ":"))


def write_log(checkpoint: str, name: str, lines: Sequence[str]) -> None:
    """Write a file of the checkpoint, without the checksum that Hadoop may have written beside an earlier one."""
    filesystem, path = open_path(f"{checkpoint}/{name}")
    folder, _, base = path.rpartition("/")
    filesystem.create_dir(folder)
    if filesystem.get_file_info(f"{folder}/.{base}.crc").type != fs.FileType.NotFound:
        filesystem.delete_file(f"{folder}/.{base}.crc")
    with filesystem.open_output_stream(path) as file:
        file.write("\n".join(lines).encode())
