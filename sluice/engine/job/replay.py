"""Runs a job's query in batches with given end offsets and a given clock: to replay a history or divide a backlog."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyarrow import fs
from pyspark import SparkContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from sluice.engine.batch.checkpoint import batch_log, batch_positions, last_batch
from sluice.engine.batch.side_outputs import open_path
from sluice.engine.batch.storage import Storage
from sluice.engine.read.identity import Positions
from sluice.errors import LeaseError
from sluice.plan import FusedJob, Job, OrderedJob, Transformation
from sluice.state.ledger.history import Batch

Sink = Callable[[DataFrame, int], None]
"""The function that Spark calls with each batch."""


@dataclass(frozen=True)
class Step:
    """A batch to run again, with its end offsets and clock."""

    ends: Positions
    """The batch's end offsets, for the partitions that existed at that time."""
    begun: int | None = None
    """The time at which the batch began, epoch ms; None for now."""
    partitions: Mapping[str, int] | None = None
    """Topic → its number of partitions at that time; None for the current numbers."""
    by_clock: bool = False
    """Whether the batch's result depended on the clock."""


def steps_of(history: Iterable[Batch]) -> Iterator[Step]:
    """The steps that replay a history, whose batches are sorted from oldest to newest."""
    ends: dict[str, dict[str, int]] = {}
    for batch in history:
        ends = {topic: ends.get(topic, {}) | batch.ends.get(topic, {}) for topic in {*ends, *batch.ends}}
        yield Step(ends, batch.begun, batch.partitions, batch.by_clock)


def evenly(begin: Positions, target: Positions, most: int) -> list[Step]:
    """Divide the records up to `target` into batches of about `most` records, if the original batches are unknown."""
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
    """Join steps into larger steps of at most `most` records, if results do not depend on where batches end.

    Many small batches replay much faster when joined. `types` has the DDL type of each store's values.
    """
    if not _is_independent_of_batches(job, types):
        return list(steps)
    larger: list[Step] = []
    start = begin
    for step in steps:
        last = larger[-1] if larger else None
        if (
            last is not None
            and not last.by_clock
            and not step.by_clock
            and last.partitions == step.partitions
            and _moved(start, step.ends) <= most
        ):
            larger[-1] = replace(step, begun=max(last.begun or 0, step.begun or 0) or None)
        else:
            start = last.ends if last is not None else begin
            larger.append(step)
    return larger


def _is_independent_of_batches(job: Job, types: Mapping[str, str]) -> bool:
    """Whether all results are exact and independent of the time of processing."""
    groups = job.groups if isinstance(job, FusedJob) else ()
    return (
        not (isinstance(job, OrderedJob) and job.operators)
        and not any(isinstance(layer, Transformation) for layer in job.layers)
        and job.pipeline.idle_timeout_ms is None
        and not job.pipeline.depends_on_clock
        and not any(source.on_time == "clock" for source in job.streams)
        and all(text in group.mergeable for group in groups for text in group.aggregates)
        and not any(re.search("double|float", types[store]) for store in job.stores)
    )


def replay(
    storage: Storage, steps: Iterable[Step], firsts: Positions, publish: Sink, stream: Callable[[Sink, Step], None]
) -> None:
    """Run the steps that are not done yet, each as a batch.

    `stream` runs one batch of the query; `firsts` are the partitions' first offsets. Spark chooses a batch's end
    offsets and time itself. Therefore each batch is stopped after Spark has logged it, the log is rewritten, and Spark
    recovers the batch from the rewritten log.
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
    begin(lambda sink: stream(sink, step))


def begin(start: Callable[[Sink], object]) -> None:
    """Let Spark log a query's next batch without running it."""
    begun: list[int] = []

    def stop(_: DataFrame, batch: int) -> None:
        begun.append(batch)
        raise RuntimeError("the batch is logged")

    try:
        with _unlogged():
            start(stop)
    except StreamingQueryException:
        if not begun:
            raise


def log_batch(checkpoint: str, batch: int, ends: Positions, begun: int, pattern: Sequence[str]) -> None:
    """Write Spark's log of a batch, with end offsets and a time in epoch ms, from which Spark recovers the batch.

    `pattern` is the log of the query's previous batch, or of a first batch. The query must not have a watermark, which
    Spark would advance from batch to batch. Raises LeaseError if another driver has begun the batch.
    """
    filesystem, path = open_path(f"{checkpoint}/offsets/{batch}")
    if filesystem.get_file_info(path).type != fs.FileType.NotFound:
        raise LeaseError(
            f"Another driver has begun batch {batch} in {checkpoint}.", next_step="Wait until that driver has finished."
        )
    version, metadata, *lines = pattern
    lines = [line if line == "-" else _line({topic: ends[topic] for topic in json.loads(line)}) for line in lines]
    _write(checkpoint, batch, [version, json.dumps(json.loads(metadata) | {"batchTimestampMs": begun}), *lines])


def _line(ends: Positions) -> str:
    """A source's end offsets exactly as Spark writes them.

    Spark compares them as text to find out whether there are new records: with a space more, it would begin a batch
    without records.
    """
    in_order = {topic: dict(sorted(parts.items(), key=lambda part: int(part[0]))) for topic, parts in ends.items()}
    return json.dumps(in_order, separators=(",", ":"))


@contextmanager
def _unlogged() -> Iterator[None]:
    """Keep Spark and py4j from logging the end of a query, because users would mistake a planned stop for a failure."""
    clients = logging.getLogger("py4j.clientserver")
    jvm: Any = SparkContext._jvm
    levels = getattr(jvm, "org.apache.logging.log4j.Level")
    before = getattr(jvm, "org.apache.logging.log4j.LogManager").getLogger(_QUERY_LOGGER).getLevel()
    configurator = getattr(jvm, "org.apache.logging.log4j.core.config.Configurator")
    configurator.setLevel(_QUERY_LOGGER, levels.OFF)
    level = clients.level
    clients.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        clients.setLevel(level)
        configurator.setLevel(_QUERY_LOGGER, before)


_QUERY_LOGGER = "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution"


def _moved(begin: Positions, ends: Positions) -> int:
    """The number of offsets between two positions."""
    return sum(
        max(end - int(begin.get(topic, {}).get(number, 0)), 0)
        for topic, partitions in ends.items()
        for number, end in partitions.items()
    )


def _change(checkpoint: str, batch: int, reached: Positions, step: Step) -> None:
    """Rewrite Spark's log of a batch that has not run, with the step's end offsets and time."""
    lines = batch_log(checkpoint, batch)
    if step.begun is not None:
        lines[1] = json.dumps(json.loads(lines[1]) | {"batchTimestampMs": step.begun})
    for number, line in enumerate(lines[2:], start=2):
        if line != "-":
            moved = {
                topic: {
                    part: min(end, int(step.ends.get(topic, {}).get(part, reached.get(topic, {}).get(part, 0))))
                    for part, end in partitions.items()
                }
                for topic, partitions in json.loads(line).items()
            }
            lines[number] = _line(moved)
    _write(checkpoint, batch, lines)


def change_sources(checkpoint: str, batch: int, sources: Sequence[Sequence[str]]) -> None:
    """Rewrite Spark's log of a batch for a query whose sources read these topics, each from where the batch ended."""
    version, metadata, *lines = batch_log(checkpoint, batch)
    reached = batch_positions(checkpoint, batch)
    of_sources = [{} if line == "-" else json.loads(line) for line in lines]
    of_sources += [{}] * (len(sources) - len(of_sources))
    starts = [
        {topic: before.get(topic, reached[topic]) for topic in topics if topic in reached}
        for topics, before in zip(sources, of_sources, strict=False)
    ]
    _write(checkpoint, batch, [version, metadata, *(_line(start) if start else "-" for start in starts)])


def _write(checkpoint: str, batch: int, lines: Sequence[str]) -> None:
    """Replace Spark's log of a batch atomically."""
    filesystem, path = open_path(checkpoint)
    filesystem.create_dir(f"{path}/offsets")
    if filesystem.get_file_info(f"{path}/offsets/.{batch}.crc").type != fs.FileType.NotFound:
        filesystem.delete_file(f"{path}/offsets/.{batch}.crc")
    with filesystem.open_output_stream(f"{path}/offsets/{batch}.moved") as file:
        file.write("\n".join(lines).encode())
    filesystem.move(f"{path}/offsets/{batch}.moved", f"{path}/offsets/{batch}")
