"""Shows where the workers' CPU time goes: `workers.py [--records N] [--batches N] [--kind NAME]`.

The tasks of a run process the records of `operators.py` in this process, without Spark and Kafka: a
list takes the place of a shuffle. The CPU time of a task counts for the part of the work to which
the task belongs. The driver's part, from the tasks' side outputs to encoded output records, counts
as making outputs.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeAlias
from zlib import crc32

import pyarrow as pa
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.operators import HEAD, KINDS, TOPICS, clicks
from sluice.engine.batch.arrow_tasks import BatchTask, Chain
from sluice.engine.batch.batch_start import batch_context
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.markers import PublishedState
from sluice.engine.publish.shard_writer import ShardWriter
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.read.kafka_records import RECORDS
from sluice.engine.run.arrow_query import ArrowQuery
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationInfo
from sluice.testing.empty_databases import temporary_databases
from sluice.testing.local_run import LocalRun
from sluice.testing.memory import memory_folder
from sluice.testing.piped_records import OutputInMemory, UncontestedLease
from sluice.topology.loading.pipeline_folders import load_pipeline

PARTS = DECODE, OPERATORS, WRITE, OUTPUTS = (
    "decode and route",
    "operators",
    "write the shards",
    "make outputs",
)
Click: TypeAlias = tuple[str, bytes, int]
"""The key, value and timestamp of a record."""
_RECORDS_AT_ONCE = 20_000
"""So many records are in one Arrow batch, as in the tasks that read from Kafka."""


class Stopwatch:
    """The CPU seconds of parts of the work. The time of a part leaves out the parts that run inside it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._parts: list[str] = []
        self._since = 0.0

    def begin(self, part: str) -> None:
        self._count()
        self._parts.append(part)

    def end(self) -> None:
        self._count()
        self._parts.pop()

    def _count(self) -> None:
        now = time.process_time()
        if self._parts:
            self.seconds[self._parts[-1]] += now - self._since
        self._since = now


@dataclass(frozen=True)
class _Timed:
    """A task whose CPU time counts for a part of the work."""

    task: BatchTask
    part: str
    stopwatch: Stopwatch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        made = self.task(batches)
        while True:
            self.stopwatch.begin(self.part)
            batch = next(made, None)
            self.stopwatch.end()
            if batch is None:
                return
            yield batch


def _timed(chain: Chain, part: str, stopwatch: Stopwatch) -> Chain:
    tasks = [
        _Timed(task, WRITE if isinstance(task, ShardWriter) else part, stopwatch)
        for task in chain.tasks
    ]
    return Chain(tuple(tasks))


def timed_query(query: ArrowQuery, stopwatch: Stopwatch) -> ArrowQuery:
    """The query, with a stopwatch for its tasks."""
    return replace(
        query,
        read=_timed(query.read, DECODE, stopwatch),
        stages=tuple(_timed(stage, OPERATORS, stopwatch) for stage in query.stages),
        write=None if query.write is None else _timed(query.write, WRITE, stopwatch),
    )


@dataclass
class _CountedOutput(OutputInMemory):
    """Counts output records, and forgets them."""

    def send(
        self, batch: Batch, records: Iterable[tuple[str, pa.Table]], state: PublishedState
    ) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic, table in records:
            counts[topic] = counts.get(topic, 0) + table.num_rows
        return counts


class _Run(LocalRun):
    """A run whose records are Arrow batches."""

    def begin(self, info: GenerationInfo, types: StateTypes) -> None:
        self.output = _CountedOutput()
        super().begin(info, types)

    def process_batches(self, streams: Iterable[pa.RecordBatch]) -> None:
        """Process records as one batch, and publish it."""
        start = self.plan(self.batch + 1)
        with batch_context(start):
            self.publish(_StateRows(self._query, streams), start.number)


@dataclass(frozen=True)
class _StateRows:
    query: ArrowQuery
    streams: Iterable[pa.RecordBatch]
    spark = None

    def write(self) -> pa.Table:
        return self.query.run(self.streams, ())


@dataclass(frozen=True)
class Records:
    """The records of `operators.py`, as Arrow batches."""

    records: int
    keys: int
    batches: int
    """The number of batches among which the records of each partition are divided."""
    _of_topics: dict[str, list[list[pa.RecordBatch]]] = field(default_factory=dict)

    def of_batch(self, number: int, topics: Iterable[str]) -> list[pa.RecordBatch]:
        """The records of these topics in a batch of the run."""
        records: list[pa.RecordBatch] = []
        for topic in topics:
            if topic not in self._of_topics:
                self._of_topics[topic] = self._make(topic)
            records += self._of_topics[topic][number]
        return records

    def _make(self, topic: str) -> list[list[pa.RecordBatch]]:
        """For each batch of the run, the topic's records."""
        partitions: list[list[Click]] = [[] for _ in range(TOPICS[topic])]
        count = self.records if topic == "clicks" else self.records // 2
        for record in clicks(count, self.keys, random.Random(topic)):
            # As in Kafka, the partition of a key does not say which worker owns the key.
            partitions[crc32(record[0].encode()[::-1]) % len(partitions)].append(record)
        of_batches: list[list[pa.RecordBatch]] = [[] for _ in range(self.batches)]
        for partition, records in enumerate(partitions):
            size = -(-len(records) // self.batches)
            for number, of_batch in enumerate(of_batches):
                for begin in range(
                    number * size, min((number + 1) * size, len(records)), _RECORDS_AT_ONCE
                ):
                    end = min(begin + _RECORDS_AT_ONCE, (number + 1) * size)
                    of_batch.append(_record_batch(topic, partition, begin, records[begin:end]))
        return of_batches


def _record_batch(
    topic: str, partition: int, offset: int, records: Sequence[Click]
) -> pa.RecordBatch:
    count = len(records)
    keys, values, timestamps = zip(*records, strict=True)
    columns = [
        pa.repeat(pa.scalar(topic), count),
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array(range(offset, offset + count), pa.int64()),
        pa.array(timestamps, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array([key.encode() for key in keys], pa.binary()),
        pa.array(values, pa.binary()),
        pa.nulls(count, pa.string()),
        pa.repeat(pa.scalar(0, pa.int32()), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORDS)


def main(
    records: Annotated[int, typer.Option(help="Number of records.")] = 1_000_000,
    keys: Annotated[int, typer.Option(help="Number of keys.")] = 50_000,
    batches: Annotated[int, typer.Option(help="Number of batches.")] = 2,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", help=f"One of {', '.join(KINDS)}; can be repeated."),
    ] = None,
    runs: Annotated[int, typer.Option(help="Number of runs, of which the fastest counts.")] = 1,
) -> None:
    """Run each kind of operator, and print the CPU seconds of each part of the work."""
    if unknown := {*(kinds or ())} - {*KINDS}:
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: choose among {', '.join(KINDS)}.", param_hint="--kind"
        )
    made = Records(records, keys, batches)
    table = Table(
        "operator",
        *PARTS,
        "together",
        title=f"CPU seconds for {records:,} records in {batches} batches",
    )
    for kind in kinds or KINDS:
        parts = min(
            (cpu_seconds(kind, made) for _ in range(runs)),
            key=lambda seconds: sum(seconds.values()),
        )
        figures = [*(parts[part] for part in PARTS), sum(parts.values())]
        table.add_row(kind, *(f"{seconds:.2f}" for seconds in figures))
    Console().print(table)


def cpu_seconds(kind: str, records: Records) -> dict[str, float]:
    """The CPU seconds of each part of the work."""
    name = f"workers_{kind}"
    with tempfile.TemporaryDirectory(prefix="sluice-bench-", dir=memory_folder()) as folder:
        home = Path(folder)
        (home / f"{name}.py").write_text(f"{HEAD.replace('{name}', name)}{KINDS[kind]}\n")
        job = plan(load_pipeline(home, name)).job
        ledger, shards = temporary_databases(home)
        settings = Settings.read(
            {"SLUICE_HOME": folder, "SLUICE_LEDGER": ledger, "SLUICE_SHARDS": shards}
        )
        partitions = {topic: TOPICS[topic] for topic in job.topics}
        stopwatch = Stopwatch()
        storage, epoch = Storage.of(job, 1, settings), UncontestedLease().epoch
        query = timed_query(
            ArrowQuery.of(job, storage, partitions, epoch, interleaved=False), stopwatch
        )
        run = _Run(job, settings, partitions, query)
        for number in range(records.batches):
            of_batch = records.of_batch(number, job.topics)
            stopwatch.begin(OUTPUTS)
            run.process_batches(of_batch)
            stopwatch.end()
        run.stop()
    return {part: stopwatch.seconds[part] for part in PARTS}


if __name__ == "__main__":
    typer.run(main)
