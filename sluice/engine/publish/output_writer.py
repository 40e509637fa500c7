"""Writes a batch's output: the rows of tables, then the topics' records in a transaction.

The batch's dead letters are written here, too, in the same transaction. They are made in
`engine/batch/dead_letters.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import pyarrow as pa

from sluice.engine.batch.dead_letters import (
    RejectedOutput,
    StepDeadLetter,
    shorten_dead_letters,
    with_record_headers,
)
from sluice.engine.batch.job_topics import NO_LIMITS, TopicLimits
from sluice.engine.batch.record_headers import HeadersAt, concatenate_records, with_headers
from sluice.engine.batch.row_schemas import SORT_KEY, sorted_indices
from sluice.engine.batch.side_outputs import Collected
from sluice.engine.publish.encode import accepted_records, encode_records
from sluice.engine.publish.encode_registered import RegisteredEncoder, encoder_of
from sluice.engine.publish.markers import PublishedState
from sluice.engine.publish.table_rows import join_rows, table_rows, with_positions
from sluice.plan import Job, Sink
from sluice.registry.http_registry import NO_REGISTRY
from sluice.registry.registry import Registry
from sluice.sinks.target import BatchId, Rows, TableSink
from sluice.state.ledger.history import Batch
from sluice.support.arrays import columns_named
from sluice.support.memory import release_memory_after_rows
from sluice.values.registry_formats import RegistryFormat
from sluice.values.sink_tables import WINDOW

Records = list[tuple[str, pa.Table]]
"""Pairs of a topic and a table of encoded records for it."""
SinkRecords = Sequence[tuple[Sink, pa.Table]]
"""Sinks, each with records for it that are not encoded yet. A sink may occur several times."""


class TopicsOutput(Protocol):
    """The destination of records for topics: a Kafka transaction, or a test driver's memory."""

    def send(
        self,
        batch: Batch,
        records: Iterable[tuple[str, pa.Table]],
        state: PublishedState,
    ) -> dict[str, int]:
        """Write a batch's records and its marker atomically.

        Return the number of records per topic. `state` is published in the ledger together with the
        batch.
        """


@dataclass(frozen=True)
class Destinations:
    """The topics and tables to which a run writes, and the records that they accept."""

    topics: TopicsOutput
    limits: Mapping[str, TopicLimits] = field(default_factory=dict)
    """Topic → the limits of the records that it accepts, if they are known."""
    tables: Mapping[str, TableSink] = field(default_factory=dict)
    """Destination (a connection of PostgreSQL, or the location of a Delta table) → the writer of
    its tables."""
    headers_at: HeadersAt = lambda _: {}
    """For records on which a step after an operator has failed: reads the headers from Kafka
    again."""

    def limits_of(self, topic: str) -> TopicLimits:
        return self.limits.get(topic, NO_LIMITS)


@dataclass(frozen=True)
class BatchOutput:
    """The records of a batch for its outputs, before they are encoded."""

    collected: Collected
    """The records of stateless steps, the results of operators, late records, and the dead letters
    of tasks."""
    changes: SinkRecords
    """The records for the changes of stores."""
    dead_letters: Sequence[StepDeadLetter]
    """The dead letters of steps after operators and stores."""


@dataclass(frozen=True)
class OutputWriter:
    """Writes the output of a job's batches."""

    job: Job
    generation: int
    destinations: Destinations
    registry: Registry = field(default=NO_REGISTRY, repr=False)

    def dead_letters(self, output: BatchOutput) -> list[pa.Table]:
        """Return the dead letters that `write` must get.

        These are the dead letters of tasks, and of steps after operators and stores.
        """
        of_tasks = output.collected.records(self.job.pipeline.dead_letters)
        return [*of_tasks, with_record_headers(output.dead_letters, self.destinations.headers_at)]

    def write(
        self,
        batch: Batch,
        output: BatchOutput,
        dead_letters: Iterable[pa.Table],
        rejected: RejectedOutput,
        state: PublishedState,
    ) -> dict[str, int]:
        """Write a batch's output and dead letters.

        Add the records that cannot be written to `rejected`. Return the number of records per topic
        and of rows per table.
        """
        records, results_of_tables = self._encoded_results(output, rejected)
        records += self._late_records(output.collected, rejected)
        rows = self._table_rows(results_of_tables, rejected)
        # Add the dead letters last, because encoding the other records can produce dead letters.
        records += self._dead_letter_records([*dead_letters, *rejected.dead_letters])
        written: dict[str, int] = {}
        # Tables are written before the topics, because the transaction's marker also means that the
        # tables have the batch.
        for destination, rows_of_tables in rows.items():
            batch_id = BatchId(self.generation, batch.number, batch.begun)
            written |= self.destinations.tables[destination].write(batch_id, rows_of_tables)
        # Sorting and encoding many records has freed memory. Release this memory, because the
        # client needs it for its queue.
        release_memory_after_rows(sum(table.num_rows for _, table in records))
        # A batch without records is sent, too, because the transaction's marker names the batch.
        return written | self.destinations.topics.send(batch, records, state)

    def _encoded_results(
        self,
        output: BatchOutput,
        rejected: RejectedOutput,
    ) -> tuple[Records, list[tuple[Sink, pa.Table]]]:
        """Return the encoded results for topics, and the results for tables, not encoded."""
        records: Records = []
        of_tables: list[tuple[Sink, pa.Table]] = []
        for sink, table in self._results(output):
            if sink.table:
                of_tables.append((sink, table))
            else:
                encoded = encode_records(sink, table, rejected, self._encoder)
                records.append((sink.topic, self._accepted(sink, encoded, rejected)))
        return records, of_tables

    @cached_property
    def _encoders(self) -> dict[tuple[str, bool], RegisteredEncoder]:
        """Topic, and whether keys are encoded → encoder.

        A run writes a topic with one schema.
        """
        return {}

    def _encoder(self, values: RegistryFormat, topic: str) -> RegisteredEncoder:
        place = topic, values.is_key
        if place not in self._encoders:
            self._encoders[place] = encoder_of(values, topic, self.registry)
        return self._encoders[place]

    def _results(self, output: BatchOutput) -> Iterator[tuple[Sink, pa.Table]]:
        """Return all results of the batch for sinks, not encoded yet."""
        for sink in self.job.stream_sinks:
            for table in _stream_tables(sink, output.collected.records(sink.topic)):
                yield sink, table
        yield from output.changes
        for sink, table in _operator_records(self.job, output.collected):
            if sink.appends:
                yield sink, with_positions(self.job, table)
            else:
                yield sink, table

    def _accepted(self, sink: Sink | None, records: pa.Table, rejected: RejectedOutput) -> pa.Table:
        limits = NO_LIMITS if sink is None else self.destinations.limits_of(sink.topic)
        return accepted_records(sink, records, limits, rejected)

    def _late_records(self, collected: Collected, rejected: RejectedOutput) -> Records:
        """Return the late records of groups.

        They are written as they were read, so they are not encoded.
        """
        # Several groups may send their late records to one topic. All late records for the topic
        # are in one list, so write the list only once.
        late_sinks: dict[str, Sink] = {}
        for group in self.job.groups:
            if group.late is not None:
                late_sinks[group.late.topic] = group.late
        records: Records = []
        for topic, sink in late_sinks.items():
            for table in collected.records(topic):
                records.append((topic, self._accepted(sink, table, rejected)))
        return records

    def _dead_letter_records(self, dead_letters: Iterable[pa.Table]) -> Records:
        """Make the pipeline's topic records from dead letters, within the topic's size limit."""
        topic = self.job.pipeline.dead_letters
        limit = self.destinations.limits_of(topic).size
        records: Records = []
        for table in dead_letters:
            if table.num_rows:
                records.append((topic, shorten_dead_letters(table, limit)))
        return records

    def _table_rows(
        self,
        results: SinkRecords,
        rejected: RejectedOutput,
    ) -> dict[str, dict[str, Rows]]:
        """Return destination → output → the rows for the output's table.

        They include outputs without rows in this batch.
        """
        rows: dict[str, dict[str, Rows]] = {}
        for destination, sinks in self.job.written_tables.items():
            rows[destination] = {}
            for sink in sinks:
                columns = self.destinations.tables[destination].columns[sink.topic]
                rows_of_sink: list[Rows] = []
                for of_sink, table in results:
                    if of_sink is sink:
                        rows_of_sink.append(table_rows(sink, columns, table, rejected))
                rows[destination][sink.topic] = join_rows(rows_of_sink)
        return rows


def _stream_tables(sink: Sink, records: Iterator[pa.Table]) -> Iterable[pa.Table]:
    """Return the records of a batch for an output of stateless steps, from all tasks.

    Return one table, sorted by position, if the job has operators, because the records of such a
    job have positions. Also return one table if only the latest record of each key is written.
    """
    tables = [*records]
    if not tables or (sink.emit == "every" and "sequence" not in tables[0].column_names):
        return tables
    together = concatenate_records(tables)
    if "sequence" in together.column_names:
        together = together.take(pa.array(sorted_indices(together)))
    return [together]


def _operator_records(job: Job, collected: Collected) -> Iterator[tuple[Sink, pa.Table]]:
    """Yield the sorted output records of operators, per sink."""
    for sink in job.operator_sinks:
        pages = [*collected.changes([sink.number])]
        if pages:
            of_sink = pa.concat_tables(pages)
            del pages
            order = pa.array(sorted_indices(of_sink))
            unread = {"group_id"}
            if not sink.is_windowed:
                unread.update(WINDOW)
            if not sink.appends:
                unread.update(SORT_KEY)
            names = [name for name in of_sink.column_names if name not in unread]
            columns = columns_named(of_sink, names)
            # First free the columns that no later step reads. Then free each remaining column as
            # soon as it has been copied.
            del of_sink
            for name in names:
                columns[name] = columns[name].take(order)
            headers = columns.pop("headers")
            yield sink, with_headers(pa.table(columns), headers)
