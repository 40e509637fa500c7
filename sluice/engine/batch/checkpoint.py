"""Spark's own logs in a checkpoint: which batches were begun and done, when, and up to which offsets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from sluice.engine.batch.side_outputs import open_path
from sluice.errors import EngineError


def current_batch() -> int:
    """The batch that this task belongs to."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or 0)


def batch_log(checkpoint: str, batch: int) -> list[str]:
    """Spark's log of a batch, written before it runs: its version, its facts, then each source's end positions.

    Raises EngineError if it is not there, or damaged.
    """
    filesystem, path = open_path(checkpoint)
    try:
        with filesystem.open_input_stream(f"{path}/offsets/{batch}") as file:
            version, *lines = str(file.read().decode()).splitlines()
        for line in lines:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"The checkpoint is damaged: {path}/offsets/{batch} cannot be read: {error}.",
            next_step="Restore it, or build the state anew from the topics: sluice rebuild PIPELINE.",
        ) from error
    return [version, *lines]


def last_batch(checkpoint: str, log: str) -> int:
    """The last batch in one of the checkpoint's logs: `offsets` of those begun, `commits` of those done. -1 if none."""
    filesystem, path = open_path(f"{checkpoint}/{log}")
    found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(info.base_name) for info in found if info.base_name.isdigit()), default=-1)


def forget_stray_checksums(checkpoint: str) -> None:
    """Delete Hadoop's checksums of log files that are gone: Spark would refuse to write these files again."""
    for log in ("offsets", "commits"):
        filesystem, path = open_path(f"{checkpoint}/{log}")
        found = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        there = {info.base_name for info in found}
        for info in found:
            if info.extension == "crc" and info.base_name.removeprefix(".").removesuffix(".crc") not in there:
                filesystem.delete_file(info.path)


def batch_clock(checkpoint: str, batch: int) -> int:
    """When the batch was first begun, epoch ms: the same however often it is tried."""
    return int(json.loads(batch_log(checkpoint, batch)[1])["batchTimestampMs"])


@dataclass(frozen=True)
class BatchClock:
    """When the batches of a checkpoint were begun. A test moves the clock on by the ms in the file `moved`."""

    checkpoint: str
    moved: str = ""

    def begun(self, batch: int) -> int:
        """When the batch was first begun, epoch ms."""
        ahead = int(Path(self.moved).read_text()) if self.moved else 0
        return batch_clock(self.checkpoint, batch) + ahead


def batch_positions(checkpoint: str, batch: int) -> dict[str, dict[str, int]]:
    """By topic and partition the offset after the batch's last record, over all sources."""
    positions: dict[str, dict[str, int]] = {}
    for line in batch_log(checkpoint, batch)[2:]:
        found = None if line == "-" else json.loads(line)
        if isinstance(found, dict):  # what a test pipes in has a plain number
            positions |= found
    return positions
