"""The checkpoint of a job whose state Spark keeps: the only checkpoint that must not be lost.

Delete this module, and what uses it, when Spark keeps no state any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from pyarrow import fs

from sluice.engine.batch.checkpoint import Sources, source_line, write_log
from sluice.engine.batch.side_outputs import open_path
from sluice.errors import EngineError, StateError
from sluice.state.ledger.plans import PlannedBatch

_LOGS = ("offsets", "commits")
_STATE = re.compile(r"\.?(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)(\.crc)?")
"""Spark's names of the files that hold a version of its state. The version after batch N is N + 1."""
_REBUILD = "Restore the checkpoint, or rebuild the state from the topics: sluice rebuild"


def has_spark_state(checkpoint: str) -> bool:
    """Whether an operator of the query keeps its state in Spark rather than in shards."""
    filesystem, path = open_path(f"{checkpoint}/state")
    return bool(filesystem.get_file_info(path).type == fs.FileType.Directory)


def last_batch(checkpoint: str, log: str) -> int:
    """The last batch in a log of the checkpoint: `offsets` (begun) or `commits` (done). -1 if there is none."""
    filesystem, path = open_path(f"{checkpoint}/{log}")
    files = filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True))
    return max((int(info.base_name) for info in files if info.base_name.isdigit()), default=-1)


def batch_log(checkpoint: str, batch: int, log: str = "offsets") -> list[str]:
    """A file of Spark's logs: version, metadata and, of `offsets`, each source's end offsets.

    Raises EngineError if the file is missing or damaged.
    """
    filesystem, path = open_path(checkpoint)
    try:
        with filesystem.open_input_stream(f"{path}/{log}/{batch}") as file:
            version, *lines = str(file.read().decode()).splitlines()
        for line in lines:
            if line != "-":
                json.loads(line)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"The checkpoint is damaged: {path}/{log}/{batch} cannot be read: {error}.",
            next_step=f"{_REBUILD} PIPELINE.",
        ) from error
    return [version, *lines]


def positions_before(checkpoint: str, batch: int) -> Sources:
    """Where a batch begins, by Spark's log of the batch before."""
    positions: dict[str, dict[str, int]] = {}
    for line in batch_log(checkpoint, batch - 1)[2:] if batch else ():
        positions |= {} if line == "-" else json.loads(line)
    return positions


def plan_batch(
    checkpoint: str, plan: PlannedBatch, sources: Sequence[Sequence[str]], conf: Mapping[str, str], name: str
) -> None:
    """Write Spark's log of a planned batch behind that of the batch before. Spark's state must be as of that batch.

    Raises EngineError if the checkpoint is older or newer.
    """
    done = last_batch(checkpoint, "commits")
    if done != plan.number - 1:
        raise EngineError(
            f"Batch {plan.number} of {name} is next, but the checkpoint {checkpoint}, which has Spark's state, ends at "
            f"batch {done}.",
            next_step=f"{_REBUILD} {name}.",
        )
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": plan.begun, "conf": dict(conf)}
    if plan.number:
        before = json.loads(batch_log(checkpoint, plan.number - 1)[1])
        watermark = json.loads(batch_log(checkpoint, plan.number - 1, "commits")[1])["nextBatchWatermarkMs"]
        metadata = before | {"batchWatermarkMs": watermark, "batchTimestampMs": plan.begun}
    lines = [json.dumps(metadata), *(source_line(plan.ends, topics) for topics in sources)]
    write_log(checkpoint, f"offsets/{plan.number}", ["v1", *lines])


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
