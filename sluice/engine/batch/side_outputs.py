"""Side outputs of tasks: data for the driver other than state rows, such as counts and records.

Side outputs travel with the rows, through Spark's own data path. The tasks of a chain collect them,
and the chain's last task sends them after its rows. The tasks after the shuffles pass them on to
the writers of the shards, and the driver reads the writers' results. A task that is repeated, or
runs twice, therefore counts once, and hosts share no files.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_MOST_ROWS, _MOST_BYTES = 50_000, 1 << 22
"""A large side output is divided into pages. A page has at most this many rows and about this many
bytes. No page is then too large for Spark."""
# A side output has few rows. Handing it to other threads takes eight times as long as compressing
# or reading it in this thread.
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


class LastRecord(msgspec.Struct, array_like=True, frozen=True):
    """The last record that a task has read from its partition."""

    offset: int
    fingerprint: str
    leader_epoch: int = -1
    """The leader epoch of this record; -1 if it is unknown."""
    first_leader_epoch: int = -1
    """The leader epoch of the first record that the task has read."""


class BatchStats(msgspec.Struct):
    """Counts of records and stream times: of a task, of the driver, or of the whole batch."""

    counts: dict[str, int] = {}
    stream_times: dict[str, int] = {}
    partition: str = ""
    """For a task with rows of one partition: `TOPIC-PARTITION`."""
    last: LastRecord | None = None
    """For a task that reads one partition: its last record."""
    by_partition: dict[str, dict[str, int]] = {}
    """For a task with rows of several partitions: `TOPIC-PARTITION` → the counts of that
    partition."""
    row_bytes: dict[str, int] = {}
    """Kind of a task that holds all of its rows in memory at once → the size of its rows."""
    step_rows: dict[str, int] = {}
    """The numbers of rows that steps have received, and of their results (`plan/step_counts.py`).
    """


class Label(msgspec.Struct, array_like=True, order=True, frozen=True):
    """Identifies a side output.

    The driver sorts side outputs by label, because they arrive in any order.
    """

    part: str
    """The part of the input from which the side output was computed."""
    topic: str = ""
    """The topic for which the side output has records; empty for stats and changes."""
    page: int = 0
    groups: tuple[int, ...] = ()
    """For changes: the groups, sinks and so on to which the rows of the page belong."""
    size: int = 0
    """For records and changes: their size in bytes before they were compressed."""


class DataSize(NamedTuple):
    """The size of records or rows, in bytes."""

    plain: float
    compressed: float
    """The size after compression. Tasks compress many records or rows together."""


NOTHING = DataSize(0, 0)


class SideOutput(NamedTuple):
    """A side output on its way to the driver."""

    label: str
    """Its `Label` as JSON."""
    data: bytes


@dataclass(frozen=True)
class SideOutputs:
    """Collects the side outputs of the tasks of a chain, until the chain's last task takes them."""

    note_times: Callable[[Mapping[str, int]], None] | None = None
    """If set, called with the stream times of tasks that read records (see `read_times`)."""
    _collected: list[SideOutput] = field(
        default_factory=list,
        init=False,
        repr=False,
        compare=False,
    )

    def add(self, output: SideOutput) -> None:
        """Pass on a side output of an earlier task."""
        self._collected.append(output)

    def add_stats(self, part: str, stats: BatchStats) -> None:
        self._add(Label(part), msgspec.json.encode(stats))

    def add_stats_of_reading(self, part: str, stats: BatchStats) -> None:
        """Add the stats of a task that reads records, and pass its stream times to `note_times`."""
        self.add_stats(part, stats)
        if self.note_times is not None:
            self.note_times(stats.stream_times)

    def add_records(self, topic: str, part: str, records: pa.Table) -> None:
        """Add records for a topic, in order.

        Their columns are `key`, `value`, and optionally `headers` and `timestamp`.
        """
        for page, rows in enumerate(_pages(records)):
            self._add(Label(part, topic, page, size=rows.nbytes), pack_table(rows))

    def add_changes(self, part: str, rows: pa.Table, first_page: int = 0) -> int:
        """Add rows that the driver needs, with a column `group_id`.

        Returns the number of the next page.
        """
        page = first_page
        for page, of_page in enumerate(_pages(rows), first_page + 1):
            groups = tuple(pc.unique(of_page.column("group_id")).to_pylist())
            label = Label(f"{_CHANGES}{part}", page=page, groups=groups, size=of_page.nbytes)
            self._add(label, pack_table(of_page))
        return page

    def add_undecided(self, part: str, reports: pa.Table) -> None:
        """Add reports of rows that operators have not used (see `record_outcomes`)."""
        for page, rows in enumerate(_pages(reports)):
            self._add(Label(f"{_UNDECIDED}{part}", page=page), pack_table(rows))

    def take(self) -> list[SideOutput]:
        """Take out all side outputs, first those that earlier chains left in a file.

        The earlier chains are chains of the same Spark task.
        """
        taken = [*self._collected]
        self._collected.clear()
        file = _file_of_task()
        if file is not None and file.exists():
            taken += msgspec.msgpack.decode(file.read_bytes(), type=list[SideOutput])
            file.unlink()
        taken += self._collected
        self._collected.clear()
        return taken

    def leave(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches, then leave the side outputs in a file for the next chain.

        This is the last task of a chain whose rows go to Spark SQL. Both chains run in the same
        task of Spark, in two processes of one host.
        """
        yield from batches
        taken = self.take()
        if taken:
            file = _file_of_task()
            assert file is not None
            file.write_bytes(msgspec.msgpack.encode(taken))

    def _add(self, label: Label, data: bytes) -> None:
        self._collected.append(SideOutput(msgspec.json.encode(label).decode(), data))


class Collected:
    """The side outputs of all tasks of a batch, given as pairs of label and data."""

    def __init__(self, outputs: Iterable[tuple[str, bytes | pa.Buffer]]) -> None:
        decode_label = msgspec.json.Decoder(Label).decode
        labelled = [(decode_label(label), data) for label, data in outputs]
        self._stats: list[BatchStats] = []
        self._records: dict[str, list[bytes | pa.Buffer]] = {}
        self._changes: list[tuple[frozenset[int], bytes | pa.Buffer]] = []
        self._undecided: list[bytes | pa.Buffer] = []
        plain, compressed = 0, 0
        # Shuffles deliver side outputs in any order. Sort them, because a repeated batch must write
        # its records in the same order.
        for label, data in sorted(labelled, key=lambda output: output[0]):
            if label.size:
                plain += label.size
                compressed += len(data)
            if label.topic:
                self._records.setdefault(label.topic, []).append(data)
            elif label.part.startswith(_CHANGES):
                self._changes.append((frozenset(label.groups), data))
            elif label.part.startswith(_UNDECIDED):
                self._undecided.append(data)
            else:
                self._stats.append(msgspec.json.decode(data, type=BatchStats))
        self.output_size = DataSize(plain, compressed)
        """The size of all records and changes."""

    def add_stats(self, stats: BatchStats) -> None:
        """Add the driver's own counts."""
        self._stats.append(stats)

    @property
    def stats(self) -> BatchStats:
        """The counts of the batch, summed over its tasks, and the latest stream times."""
        counts: Counter[str] = Counter()
        times: dict[str, int] = {}
        for stats in self._stats:
            counts.update(stats.counts)
            times |= stats.stream_times
        return BatchStats(dict(counts), times)

    @property
    def row_bytes(self) -> int:
        """The bytes of the rows that tasks have held, for the kind of task with the largest sum."""
        by_kind: Counter[str] = Counter()
        for stats in self._stats:
            by_kind.update(stats.row_bytes)
        return max(by_kind.values(), default=0)

    @property
    def step_rows(self) -> dict[str, int]:
        """Return the numbers of rows that steps have received and passed on, over all tasks."""
        counts: Counter[str] = Counter()
        for stats in self._stats:
            counts.update(stats.step_rows)
        return dict(counts)

    @property
    def counts_by_partition(self) -> dict[tuple[str, int], Counter[str]]:
        """The counts of each topic and partition."""
        totals: dict[tuple[str, int], Counter[str]] = {}
        for stats in self._stats:
            by_partition: Mapping[str, Mapping[str, int]] = stats.by_partition
            if stats.partition:
                by_partition = {stats.partition: stats.counts}
            for topic_partition, counts in by_partition.items():
                # Divide the text at the last hyphen, because a topic's name may have hyphens.
                topic, _, partition = topic_partition.rpartition("-")
                totals.setdefault((topic, int(partition)), Counter()).update(counts)
        return totals

    @property
    def last_records(self) -> dict[tuple[str, int], LastRecord]:
        """Topic and partition → the last record that was read."""
        records: dict[tuple[str, int], LastRecord] = {}
        for stats in self._stats:
            if stats.last is not None:
                topic, _, partition = stats.partition.rpartition("-")
                records[topic, int(partition)] = stats.last
        return records

    def undecided(self) -> Iterator[pa.Table]:
        """Return the reports that `add_undecided` has added."""
        return map(_unpack_table, self._undecided)

    def records(self, topic: str) -> Iterator[pa.Table]:
        """Return the records for a topic, in tables, sorted by part."""
        return map(_unpack_table, self._records.get(topic, ()))

    def changes(self, groups: Collection[int]) -> Iterator[pa.Table]:
        """Yield the rows of these groups that `add_changes` has added, in pages, sorted by part.

        Only one page at a time is uncompressed.
        """
        numbers = pa.array(groups, pa.int32())
        for groups_of_page, data in self._changes:
            if groups_of_page.isdisjoint(groups):
                continue
            page = _unpack_table(data)
            if not groups_of_page.issubset(groups):
                page = page.filter(pc.is_in(page.column("group_id"), numbers))
            yield page


_CHANGES = "changes-"
_UNDECIDED = "undecided-"


def _file_of_task() -> Path | None:
    """Return the file with a chain's side outputs for the next chain; None if Spark is not used.

    Both chains run in the same task of Spark. Spark deletes the file's folder at the end.
    """
    # Importing PySpark here would make a batch without Spark wait for the import.
    if "pyspark" not in sys.modules:
        return None
    from pyspark import TaskContext

    context = TaskContext.get()
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    if context is None or not folder:
        return None
    # Each attempt of a task has its own number, so it never reads the file of a failed attempt.
    return Path(folder, f"side-outputs-{context.taskAttemptId()}")


def part_name(kind: str, topic: str, partition: int) -> str:
    """Return the name of the side outputs of one partition's records."""
    return f"{kind}-{topic}-{partition:05}"


def _pages(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the table in slices that are not too large."""
    most = max(1, min(_MOST_ROWS, table.num_rows * _MOST_BYTES // max(table.nbytes, 1)))
    for begin in range(0, table.num_rows, most):
        yield table.slice(begin, most)


def pack_table(table: pa.Table) -> bytes:
    """Return the table as a compressed Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=_WRITE_OPTIONS) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def open_table(data: pa.Buffer) -> pa.RecordBatchReader:
    """Return the batches of a table that `pack_table` has packed."""
    return pa.ipc.open_stream(data, options=_READ_OPTIONS)


def _unpack_table(data: bytes | pa.Buffer) -> pa.Table:
    return open_table(pa.py_buffer(data)).read_all()


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause garbage collection.

    Many short-lived values would start it often, but none is in a cycle.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
