"""Reads Spark's logs in a checkpoint: which batches were begun and done, when they began, and their end offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from pyarrow import fs

from sluice.engine.batch.side_outputs import open_path
from sluice.errors import EngineError, StateError

_LOGS = ("offsets", "commits")
_STATE = re.compile(r"\.?(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)(\.crc)?")
"""Spark's names of the files that hold a version of its state. The version after batch N is N + 1."""


_BATCH: ContextVar[int] = ContextVar("batch")
"""The number of the batch that this thread runs without Spark."""


@contextmanager
def running(batch: int) -> Iterator[None]:
    """Run the tasks of a batch in this thread."""
    token = _BATCH.set(batch)
    try:
        yield
    finally:
        _BATCH.reset(token)


def current_batch() -> int:
    """The number of this task's batch."""
    if (batch := _BATCH.get(-1)) >= 0:
        return batch
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return int(context.getLocalProperty("streaming.sql.batchId") or 0)


def batch_log(checkpoint: str, batch: int) -> list[str]:
    """Spark's log of a batch, which Spark writes before the batch runs: version, metadata, each source's end offsets.

    Raises EngineError if the log is missing or damaged.
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
            next_step="Restore the checkpoint, or rebuild the state from the topics: sluice rebuild PIPELINE.",
        ) from error
    return [version, *lines]


def last_batch(checkpoint: str, log: str) -> int:
    """The last batch in a log of the checkpoint: `offsets` (begun) or `commits` (done). -1 if there is none."""
    filesystem, path = open_path(f"{checkpoint}/{log}")
    files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(info.base_name) for info in files if info.base_name.isdigit()), default=-1)


def copy_identity(checkpoint: str, to: str) -> None:
    """Copy the query's id from one checkpoint to another that has none: Spark cannot recover a batch without an id."""
    filesystem, path = open_path(to)
    if filesystem.get_file_info(f"{path}/metadata").type == fs.FileType.NotFound:
        filesystem.create_dir(path)
        # A driver that is killed meanwhile must not leave half a file, which Spark could not read.
        filesystem.copy_file(f"{open_path(checkpoint)[1]}/metadata", f"{path}/metadata.tmp")
        filesystem.move(f"{path}/metadata.tmp", f"{path}/metadata")


def forget_stray_checksums(checkpoint: str) -> None:
    """Delete Hadoop's checksums of log files that no longer exist, because Spark could not write these files again."""
    for log in ("offsets", "commits"):
        filesystem, path = open_path(f"{checkpoint}/{log}")
        files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
        names = {info.base_name for info in files}
        for info in files:
            if info.extension == "crc" and info.base_name.removeprefix(".").removesuffix(".crc") not in names:
                filesystem.delete_file(info.path)


def batch_clock(checkpoint: str, batch: int) -> int:
    """The time at which the batch was first begun, epoch ms; a retry does not change it."""
    return int(json.loads(batch_log(checkpoint, batch)[1])["batchTimestampMs"])


@dataclass(frozen=True)
class BatchClock:
    """Tells when the batches of a checkpoint were begun. Tests advance the clock by the ms in the file `moved`."""

    checkpoint: str
    moved: str = ""

    def begun(self, batch: int) -> int:
        """The time at which the batch was first begun, epoch ms; a retry does not change it."""
        ahead = int(Path(self.moved).read_text()) if self.moved else 0
        return batch_clock(self.checkpoint, batch) + ahead


def batch_positions(checkpoint: str, batch: int) -> dict[str, dict[str, int]]:
    """Topic → partition → the offset after the batch's last record."""
    positions: dict[str, dict[str, int]] = {}
    for line in batch_log(checkpoint, batch)[2:]:
        offsets = None if line == "-" else json.loads(line)
        if isinstance(offsets, dict):  # the offset of a test driver's source is a plain number
            positions |= offsets
    return positions


def has_spark_state(checkpoint: str) -> bool:
    """Whether an operator of the query keeps its state in Spark rather than in shards."""
    filesystem, path = open_path(f"{checkpoint}/state")
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


def copy_checkpoint(source: str, target: str, batch: int) -> None:
    """Copy a checkpoint without what belongs to later batches. Spark may be writing to the source.

    Raises EngineError if the checkpoint does not have the batch, and StateError if Spark has meanwhile removed it,
    which happens a hundred batches later.
    """
    filesystem, root = open_path(source)
    target_filesystem, target_root = open_path(target)
    log = f"{root}/offsets/{batch}"
    if filesystem.get_file_info(log).type == fs.FileType.NotFound:
        raise EngineError(
            f"The checkpoint {root} does not have batch {batch}, which was published.",
            next_step="Check SLUICE_CHECKPOINTS, or rebuild the state from the topics: sluice rebuild PIPELINE.",
        )
    for info in filesystem.get_file_info(fs.FileSelector(root, recursive=True)):
        name = info.path.removeprefix(root).lstrip("/")
        if info.type == fs.FileType.File and _is_part_of(name, batch):
            path = f"{target_root}/{name}"
            target_filesystem.create_dir(path.rpartition("/")[0])
            try:
                with filesystem.open_input_stream(info.path) as old, target_filesystem.open_output_stream(path) as new:
                    new.write(old.read())
            except FileNotFoundError:
                # Spark removes the files that none of its last hundred batches needs.
                target_filesystem.delete_file(path)
    if filesystem.get_file_info(log).type == fs.FileType.NotFound:
        raise StateError(
            f"Spark has removed batch {batch} from the checkpoint {root} while it was copied.",
            next_step="Back up again, at a time when fewer batches are published.",
        )


def _is_part_of(name: str, batch: int) -> bool:
    folder, _, base = name.rpartition("/")
    if base.endswith(".tmp"):
        return False
    if folder in _LOGS:
        number = base.removeprefix(".").removesuffix(".crc")
        return number.isdigit() and int(number) <= batch
    version = _STATE.fullmatch(base) if folder.startswith("state/") else None
    return version is None or int(version[1]) <= batch + 1
