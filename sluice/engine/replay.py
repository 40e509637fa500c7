"""Batches that end where they are told to: history read again, up to a position, in the job's own query."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping

from pyarrow import fs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from sluice.engine.checkpoint import batch_log, batch_positions, last_batch
from sluice.engine.guard import Positions
from sluice.engine.handoff import open_path
from sluice.engine.storage import Storage

Sink = Callable[[DataFrame, int], None]
"""What Spark calls with each batch."""


def replay(storage: Storage, target: Positions, most: int, publish: Sink, stream: Callable[[Sink], None]) -> None:
    """Run the batches that lead up to `target`, each of at most about `most` records.

    `stream` runs one batch of the query. Where a batch ends Spark decides, so it is let to write a batch down, stopped
    before it runs it, and the batch's end is moved back: Spark then recovers it as one that was begun.
    """
    checkpoint = storage.checkpoint
    while True:
        begun, done = last_batch(checkpoint, "offsets"), last_batch(checkpoint, "commits")
        reached = batch_positions(checkpoint, done) if done >= 0 else {}
        left = sum(end - start for _, _, start, end in _ranges(reached, target))
        if begun == done:
            if left <= 0:
                return
            _begin(stream)
        share = min(1.0, most / left) if left > 0 else 1.0
        ends = {(topic, number): start + math.ceil((end - start) * share)
                for topic, number, start, end in _ranges(reached, target)}  # fmt: skip
        _move_end(checkpoint, last_batch(checkpoint, "offsets"), reached, ends)
        stream(publish)


def _begin(stream: Callable[[Sink], None]) -> None:
    """Let Spark write down its next batch, and not run it."""
    begun: list[int] = []

    def stop(_: DataFrame, batch: int) -> None:
        begun.append(batch)
        raise RuntimeError("the batch is written down")

    try:
        stream(stop)
    except StreamingQueryException:
        if not begun:
            raise


def _ranges(reached: Positions, target: Positions) -> Iterable[tuple[str, str, int, int]]:
    for topic, partitions in target.items():
        for number, end in partitions.items():
            yield topic, number, int(reached.get(topic, {}).get(number, 0)), end


def _move_end(checkpoint: str, batch: int, reached: Positions, ends: Mapping[tuple[str, str], int]) -> None:
    """Rewrite Spark's log of a batch that has not run: each partition ends no later than `ends` says."""
    lines = batch_log(checkpoint, batch)
    for place, line in enumerate(lines[2:], start=2):
        if line != "-":
            moved = {
                topic: {
                    number: min(end, ends.get((topic, number), int(reached.get(topic, {}).get(number, 0))))
                    for number, end in partitions.items()
                }
                for topic, partitions in json.loads(line).items()
            }
            lines[place] = json.dumps(moved)
    filesystem, path = open_path(checkpoint)
    if filesystem.get_file_info(f"{path}/offsets/.{batch}.crc").type != fs.FileType.NotFound:
        filesystem.delete_file(f"{path}/offsets/.{batch}.crc")
    with filesystem.open_output_stream(f"{path}/offsets/{batch}.moved") as file:
        file.write("\n".join(lines).encode())
    filesystem.move(f"{path}/offsets/{batch}.moved", f"{path}/offsets/{batch}")
