"""The task that turns the records of global tables into state rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import RejectedRecord
from sluice.engine.batch.record_headers import rows_with_headers
from sluice.engine.batch.row_schemas import rows
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.event_times import invalid_times
from sluice.engine.read.record_keys import Key, UnusableKeyError, require_short_keys
from sluice.engine.read.stream_reader import PartitionOutput, RecordReader
from sluice.engine.read.value_columns import without_nulls
from sluice.errors import error_text
from sluice.plan import Job
from sluice.registry.http_registry import NO_REGISTRY
from sluice.registry.registry import Registry
from sluice.state.model import NO_WINDOW
from sluice.support.arrays import columns_named
from sluice.values.record_metadata import MOST_KEY_BYTES

_POSITION = Struct(">QIQ")


@dataclass(frozen=True)
class TableReader(RecordReader):
    """Yields state rows.

    `value` is the value as JSON, or null for a tombstone; `position` orders a key's changes.

    If a key has changes in several partitions, they are ordered like the records of streams, not by
    their offsets.
    """

    groups: dict[str, int] = field(default_factory=dict)
    with_headers: frozenset[str] = frozenset()
    """The topics of the tables that keep headers."""
    keyed: bool = False
    """Whether records are rejected if their Kafka key cannot be a key. The stream reader rejects
    these records, too."""

    columns = (
        "group_id INT, key STRING, window_start BIGINT, window_end BIGINT, value STRING, "
        "position BINARY"
    )

    @classmethod
    def of(
        cls,
        job: Job,
        side_outputs: SideOutputs,
        *,
        interleaved: bool,
        registry: Registry = NO_REGISTRY,
    ) -> TableReader:
        """Return a reader of the job's global tables.

        If `interleaved`, the records have their order in `sequence`.
        """
        decoders: dict[str, ValueDecoder] = {}
        groups: dict[str, int] = {}
        global_stores: dict[str, str] = {}
        with_headers: set[str] = set()
        for table in job.tables:
            topic = table.source.topic
            decoders[topic] = ValueDecoder(table.source, registry)
            groups[topic] = table.group
            global_stores[topic] = table.store
            if table.keeps_headers:
                with_headers.add(topic)
        # Some joins need the order of records, so they read these tables as streams, too. Only the
        # stream reader counts the records of such a table.
        uncounted = frozenset(source.topic for source in job.streams)
        return cls(
            side_outputs, job.pipeline.dead_letters, decoders, groups,
            frozenset(with_headers), "_key" in job.metadata, sequenced=not interleaved,
            uncounted=uncounted, global_stores=global_stores,
        )  # fmt: skip

    def _decode(
        self, batch: pa.RecordBatch, output: PartitionOutput, clock: int
    ) -> Iterator[pa.RecordBatch]:
        raw = batch.column("value").to_pylist()
        changes: list[tuple[str, bytes]] = []
        decoder = self.decoders[output.topic]
        rows, values, dead_letters = decoder.decode(
            raw, batch.column("key"), batch.column("headers")
        )
        keys = list(decoder.keys.decode(batch.column("key").to_pylist(), batch.column("headers")))
        positions, unfit = _positions(batch, output.partition), decoder.columns.unfit(values)
        counted_as_rejected = self._rejected_as_stream(batch, rows, values, keys, output, clock)
        applied: list[Any] = []
        records: list[int] = []
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            # The stream reader makes the dead letters of these records, so skip the records here.
            if place in counted_as_rejected:
                continue
            if place in unfit:
                dead_letters.append(RejectedRecord(row, "out_of_range", unfit[place]))
                continue
            try:
                key = self._key(decoder, keys[row], value, batch.column("key")[row : row + 1])
            except UnusableKeyError as error:
                dead_letters.append(RejectedRecord(row, error.reason, str(error)))
                continue
            changes.append((key, positions[row]))
            applied.append(value)
            records.append(row)
        self._reject(batch, output, dead_letters)
        output.counts["applied"] += len(changes)
        texts = _texts(decoder, applied)
        if output.topic in self.with_headers:
            headers = batch.column("headers").take(pa.array(records, pa.int64()))
            texts = rows_with_headers(texts, headers)
        else:
            texts = pc.binary_join_element_wise("[", texts, "]", "")
        yield self._state_rows(self.groups[output.topic], changes, texts)

    @staticmethod
    def _key(decoder: ValueDecoder, kafka_key: Key, value: Any, raw_key: pa.Array) -> str:
        """Return the key of a record. Raises UnusableKeyError if it cannot be a table's key."""
        # If the key is a field of the value, Kafka's key is not used, and need not be text.
        if decoder.source.key is not None:
            text: str = decoder.keys.of_records([value], raw_key)[0].as_py()
            return text
        assert kafka_key is not None, "records without a key have been dropped"
        if isinstance(kafka_key, BaseException):
            raise UnusableKeyError("key_not_utf8", error_text(kafka_key))
        require_short_keys("the key", pa.array([kafka_key]))
        return kafka_key

    def _rejected_as_stream(
        self,
        batch: pa.RecordBatch,
        rows: list[int],
        values: list[Any],
        keys: list[Any],
        output: PartitionOutput,
        clock: int,
    ) -> set[int]:
        """Return the indices of records that the stream reader rejects if it reads this topic.

        The stream reader counts these records and writes their dead letters. Operators do not
        get them, so the table must not get them either.
        """
        if output.topic not in self.uncounted:
            return set()
        decoder = self.decoders[output.topic]
        times = decoder.columns.event_times(
            values,
            batch.column("timestamp").take(pa.array(rows, pa.int64())),
            clock,
        )
        rejected: set[int] = set()
        for place, problem in enumerate(invalid_times(decoder, times, clock)):
            if problem:
                rejected.add(place)
        if self.keyed and decoder.source.key is None:
            for place, row in enumerate(rows):
                if _is_unusable(keys[row]):
                    rejected.add(place)
        return rejected

    @staticmethod
    def _state_rows(
        group: int,
        changes: list[tuple[str, bytes]],
        values: pa.Array,
    ) -> pa.RecordBatch:
        keys = [key for key, _ in changes]
        positions = [position for _, position in changes]
        none = pa.repeat(pa.scalar(NO_WINDOW, pa.int64()), len(changes))
        return pa.RecordBatch.from_arrays(
            [
                pa.repeat(pa.scalar(group, pa.int32()), len(changes)),
                pa.array(keys, pa.string()),
                none,
                none,
                values,
                pa.array(positions, pa.binary()),
            ],
            names=["group_id", "key", "window_start", "window_end", "value", "position"],
        )


def _texts(decoder: ValueDecoder, values: list[Any]) -> pa.Array:
    """Return the values as JSON, or null for a null."""
    present = decoder.columns.json(without_nulls(values))
    # For each value, its index in `present`, or null for a null.
    places: list[int | None] = []
    count = 0
    for value in values:
        if value is None:
            places.append(None)
        else:
            places.append(count)
            count += 1
    return present.take(pa.array(places, pa.int64()))


def ordered_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the state rows as rows for shards.

    The `path` of a row orders the changes of its key.
    """
    for batch in batches:
        columns = columns_named(batch, ("key", "value")) | {
            "target": batch.column("group_id"),
            "path": batch.column("position"),
            "sequence": 0,
            "origin": 0,
            "time": 0,
        }
        yield rows(batch.num_rows, columns)


def _is_unusable(key: Key) -> bool:
    return isinstance(key, BaseException) or (
        key is not None and len(key.encode()) > MOST_KEY_BYTES
    )


def _positions(batch: pa.RecordBatch, partition: int) -> list[bytes]:
    """Return the positions of one partition's records, as bytes with the same order.

    A position consists of sequence, partition and offset.
    """
    sequences = batch.column("sequence").to_pylist()
    offsets = batch.column("offset").to_pylist()
    positions: list[bytes] = []
    for sequence, offset in zip(sequences, offsets, strict=True):
        positions.append(_POSITION.pack(max(sequence, 0), partition, offset))
    return positions
