"""History read again in the job's own query: batches that end, and go by the clock, as it was decided once."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyarrow import fs
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from sluice.engine.batch.checkpoint import batch_log, batch_positions, last_batch
from sluice.engine.batch.side_outputs import open_path
from sluice.engine.batch.storage import Storage
from sluice.engine.read.identity import Positions
from sluice.plan import FusedJob, Job, OrderedJob, Transformation
from sluice.state.ledger.history import Batch

Sink = Callable[[DataFrame, int], None]
"""What Spark calls with each batch."""


@dataclass(frozen=True)
class Step:
    """A batch to be run again."""

    ends: Positions
    """Where it ends in every partition that was known then."""
    begun: int | None = None
    """The time of processing that it goes by, epoch ms; None: now."""
    partitions: Mapping[str, int] | None = None
    """Topic → how many partitions it was taken to have; None: as many as it has."""
    by_clock: bool = False


def steps_of(history: Iterable[Batch]) -> Iterator[Step]:
    """The batches of a generation, oldest first, as they are to be run again."""
    ends: dict[str, dict[str, int]] = {}
    for batch in history:
        ends = {topic: ends.get(topic, {}) | batch.ends.get(topic, {}) for topic in {*ends, *batch.ends}}
        yield Step(ends, batch.begun, batch.partitions, batch.by_clock)


def evenly(begin: Positions, target: Positions, most: int) -> list[Step]:
    """Batches of at most about `most` records that lead up to `target`, where nothing is known of those there were."""
    moves = [(topic, number, int(begin.get(topic, {}).get(number, 0)), end)
             for topic, partitions in target.items() for number, end in partitions.items()]  # fmt: skip
    count = math.ceil(sum(end - start for _, _, start, end in moves) / most)
    steps = []
    for step in range(1, count + 1):
        ends: dict[str, dict[str, int]] = {}
        for topic, number, start, end in moves:
            ends.setdefault(topic, {})[number] = start + math.ceil((end - start) * step / count)
        steps.append(Step(ends))
    return steps


def joined(job: Job, types: Mapping[str, str], steps: Sequence[Step], begin: Positions, most: int) -> list[Step]:
    """The same steps, or fewer and larger ones of at most `most` records where the results cannot depend on it.

    `types` has the Spark SQL type of each store's value. A history of many small batches is read much sooner so.
    """
    if not _same_however_cut(job, types):
        return list(steps)
    made: list[Step] = []
    start = begin
    for step in steps:
        last = made[-1] if made else None
        if (
            last is not None
            and not last.by_clock
            and not step.by_clock
            and last.partitions == step.partitions
            and _moved(start, step.ends) <= most
        ):
            made[-1] = replace(step, begun=max(last.begun or 0, step.begun or 0) or None)
        else:
            start = last.ends if last is not None else begin
            made.append(step)
    return made


def _same_however_cut(job: Job, types: Mapping[str, str]) -> bool:
    """Whether batches can be joined: everything is exact, and nothing goes by the time of processing."""
    groups = job.groups if isinstance(job, FusedJob) else ()
    return (
        not (isinstance(job, OrderedJob) and job.operators)
        and not any(isinstance(layer, Transformation) for layer in job.layers)
        and job.pipeline.idle_timeout_ms is None
        and not job.pipeline.asks_the_moment
        and not any(source.on_time == "clock" for source in job.streams)
        and all(text in group.mergeable for group in groups for text in group.aggregates)
        and not any(re.search("double|float", types[store]) for store in job.stores)
    )


def replay(
    storage: Storage, steps: Iterable[Step], firsts: Positions, publish: Sink, stream: Callable[[Sink, Step], None]
) -> None:
    """Run the steps that are not done yet, each as one batch.

    `stream` runs one batch of the query; `firsts` is where the partitions begin. Where a batch ends and when it was
    begun Spark decides, so it is let to write a batch down, stopped before it runs it, and what it wrote is changed:
    Spark then recovers the batch as one that was begun.
    """
    checkpoint = storage.checkpoint
    for step in steps:
        begun, done = last_batch(checkpoint, "offsets"), last_batch(checkpoint, "commits")
        reached = batch_positions(checkpoint, done) if done >= 0 else {}
        reached = {topic: {**first, **reached.get(topic, {})} for topic, first in firsts.items()}
        if _moved(reached, step.ends) <= 0:
            continue
        if begun == done:
            _begin(stream, step)
        _change(checkpoint, last_batch(checkpoint, "offsets"), reached, step)
        stream(publish, step)


def _begin(stream: Callable[[Sink, Step], None], step: Step) -> None:
    """Let Spark write down its next batch, and not run it."""
    begun: list[int] = []

    def stop(_: DataFrame, batch: int) -> None:
        begun.append(batch)
        raise RuntimeError("the batch is written down")

    try:
        stream(stop, step)
    except StreamingQueryException:
        if not begun:
            raise


def _moved(begin: Positions, ends: Positions) -> int:
    """How many offsets lie between."""
    return sum(
        max(end - int(begin.get(topic, {}).get(number, 0)), 0)
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )


def _change(checkpoint: str, batch: int, reached: Positions, step: Step) -> None:
    """Rewrite Spark's log of a batch that has not run: it ends no later than the step, and was begun when it was."""
    lines = batch_log(checkpoint, batch)
    if step.begun is not None:
        lines[1] = json.dumps(json.loads(lines[1]) | {"batchTimestampMs": step.begun})
    for place, line in enumerate(lines[2:], start=2):
        if line != "-":
            moved = {
                topic: {
                    number: min(end, int(step.ends.get(topic, {}).get(number, reached.get(topic, {}).get(number, 0))))
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
