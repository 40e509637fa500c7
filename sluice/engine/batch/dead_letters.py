"""Makes dead letters from each kind of rejection.

- A record that cannot be decoded, or for which a stateless step fails, is a `RejectedRecord`. The
  task that reads it makes its dead letter (`dead_letter_records`), which a side output takes to the
  driver.
- If a step after an operator or a store fails, its input becomes a rejected row
  (`rejections.Rejected`). The input is the operator's row or timer, or the store's change. The
  driver makes the dead letters of these rows (`dead_letters_of_steps`).
- An output record that cannot be encoded, that does not fit its table, or that its topic does not
  accept, goes to `RejectedOutput`.

The driver writes all of a batch's dead letters to the pipeline's topic of dead letters, in the same
transaction as the batch's output: `publish.output_writer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from sluice.engine.batch.record_headers import HEADERS, Header, HeadersAt, header
from sluice.engine.batch.record_sizes import record_sizes, size_of_part
from sluice.engine.batch.rejections import LONGEST_DETAIL, Rejected, RejectedRow, step_error
from sluice.engine.batch.row_schemas import has_origin, offset_of, partition_of
from sluice.engine.batch.side_outputs import BatchStats
from sluice.plan import Job, Sink, Step
from sluice.state.model import NO_WINDOW
from sluice.values.dead_letter_headers import (
    FIRST,
    STREAMS_HEADERS,
    STREAMS_PLACE,
    escaped,
    streams_headers,
)
from sluice.values.headers import decode_headers
from sluice.values.json_text import plain_json
from sluice.values.record_places import Place

DEAD_LETTER = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])

MOST_READ = 10_000
"""The maximum number of a batch's dead letters for which Sluice reads the rejected record from
Kafka again, to get its headers."""
_LEFT_OUT_BYTES = 200
"""The maximum size, in bytes, of the header in which `shorten_dead_letters` lists the parts that it
left out."""


@dataclass(frozen=True)
class RejectedRecord:
    """A record that a task rejects: its row in the task's batch, the reason, and the details."""

    row: int
    reason: str
    detail: str
    step: str = ""
    """The failed step; empty if the record could not be read."""
    at: str = ""
    """The step's `file:line`."""


def dead_letter_records(batch: pa.RecordBatch, rejected: list[RejectedRecord]) -> pa.RecordBatch:
    """Return the dead letters of rejected records.

    They have the original keys, values and headers, with Sluice's headers at the end.
    """
    records = batch.take(pa.array([rejection.row for rejection in rejected]))
    # A producer sets a record's time, which may be outside the years 1 to 9999 of Python's
    # `datetime`. So keep the times as numbers here; `iso_time` turns them into text.
    milliseconds = pa.timestamp("ms", "UTC")
    timestamps = records.column("timestamp").cast(milliseconds, safe=False).cast(pa.int64())
    in_topic = records.select(["topic", "partition", "offset"])
    places = in_topic.append_column("timestamp", timestamps).to_pylist()
    own_headers = records.column("headers").to_pylist()
    # A batch can have very many dead letters. Collecting their headers in columns is several times
    # as fast as making an object for each header.
    names: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    for rejection, own, place in zip(rejected, own_headers, places, strict=True):
        for of_record in decode_headers(own) if own else ():
            names.append(escaped(of_record.key))
            values.append(of_record.value)
        position = place["topic"].encode(), b"%d" % place["partition"], b"%d" % place["offset"]
        detail = rejection.detail[:LONGEST_DETAIL]
        for_sluice, for_streams = _headers_of_error(
            rejection.reason, detail, rejection.step, rejection.at
        )
        names += for_sluice[0]
        values += for_sluice[1]
        names += _HEADERS_OF_PLACE
        values += position
        values.append(iso_time(place["timestamp"]).encode())
        names += for_streams[0]
        values += for_streams[1]
        names += STREAMS_PLACE
        values += position
        ends.append(len(names))
    columns_of_headers = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
    pairs = pa.StructArray.from_arrays(columns_of_headers, fields=[*HEADERS.value_type])
    headers = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
    columns = [records.column("key"), records.column("value"), headers]
    typed = [column.cast(field.type) for column, field in zip(columns, DEAD_LETTER, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=DEAD_LETTER)


@dataclass(frozen=True)
class StepDeadLetter:
    """The dead letter of a row on which a step failed.

    `with_record_headers` adds the headers of the row's record.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]
    place: Place | None
    """The place of the row's record in its topic; None for a store's change or a timer, which come
    from no record."""


def dead_letters_of_steps(
    job: Job,
    rows: Iterable[RejectedRow],
) -> tuple[list[StepDeadLetter], BatchStats]:
    """Return the dead letters of rejected rows, and the number of failures of each step.

    Raises EngineError for the first row of a step with `on_error="fail"`.
    """
    topics = job.topics_by_source
    stats, dead_letters = BatchStats(), []
    for row in rows:
        rejected = msgspec.json.decode(row["value"], type=Rejected)
        step = job.pipeline.steps[rejected.node]
        if step.on_error == "fail":
            raise step_error(str(step), row["key"], rejected.detail)
        name = f"failed/{step.name}"
        stats.counts[name] = stats.counts.get(name, 0) + 1
        place: Place | None = None
        # Only a record's failure belongs to a partition. Timers and changes of stores have no
        # partition.
        if has_origin(row.get("sequence")) and rejected.timer is None:
            source, partition = partition_of(row["origin"])
            place = topics[source], partition, offset_of(row["origin"])
            partition_counts = stats.by_partition.setdefault(f"{topics[source]}-{partition}", {})
            partition_counts[name] = partition_counts.get(name, 0) + 1
        if step.on_error == "dead_letter":
            key = _encoded(row["key"])
            value = None
            if rejected.value is not None:
                value = plain_json(rejected.value).encode()
            headers: list[Header] = []
            for name, text in _step_headers(step, place, row, rejected):
                headers.append(header(f"sluice.{name}", text))
            headers += _streams_headers(rejected.detail, place, step.title, step.at)
            dead_letters.append(StepDeadLetter(key, value, headers, place))
    return dead_letters, stats


def with_record_headers(dead_letters: Sequence[StepDeadLetter], headers_at: HeadersAt) -> pa.Table:
    """Return the dead letters of steps as records.

    The headers of the rejected record come first, then Sluice's headers. Only the first `MOST_READ`
    dead letters get the rejected record's headers, because each of these records is read from Kafka
    again.
    """
    places = [dead_letter.place for dead_letter in dead_letters if dead_letter.place is not None]
    headers_of_records: Mapping[Place, Sequence[Header]] = {}
    if places:
        # If a step after an operator has failed on a row, only the place of the row's record is
        # known, so the record's headers are read from Kafka again.
        headers_of_records = headers_at(places[:MOST_READ])
    rows = []
    for dead_letter in dead_letters:
        own: Sequence[Header] = ()
        if dead_letter.place is not None:
            own = headers_of_records.get(dead_letter.place, ())
        headers = [*escape_headers(own), *dead_letter.headers]
        rows.append({"key": dead_letter.key, "value": dead_letter.value, "headers": headers})
    return pa.Table.from_pylist(rows, DEAD_LETTER)


@dataclass(frozen=True)
class RejectedOutput:
    """Output records that cannot be written: their number per topic, and their dead letters."""

    dead_letters: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def reject(
        self,
        sink: Sink,
        records: pa.Table,
        errors: Mapping[int, str],
        reason: str,
    ) -> pa.Array:
        """Add the records that a sink cannot write. Return a mask of the records that it can write.

        `records` have the columns `key`, `value` and perhaps `headers`. `errors` maps a record's
        index in `records` to its error.
        """
        is_fine = np.ones(records.num_rows, bool)
        is_fine[list(errors)] = False
        # The records are counted even with on_error="skip", because no record may be lost without a
        # trace.
        self.counts[sink.topic] = self.counts.get(sink.topic, 0) + len(errors)
        if sink.on_error != "skip":
            rejected = records.take(pa.array(list(errors)))
            self._add_dead_letters(sink, rejected, errors.values(), reason)
        return pa.array(is_fine)

    def _add_dead_letters(
        self,
        sink: Sink,
        records: pa.Table,
        details: Iterable[str],
        reason: str,
    ) -> None:
        own_headers: Iterable[Any] = repeat(None)
        if "headers" in records.column_names:
            own_headers = records.column("headers").to_pylist()
        headers = []
        for detail, own in zip(details, own_headers, strict=False):
            of_sluice = [
                header(FIRST, reason),
                header("sluice.detail", detail),
                header("sluice.output", sink.topic),
                header("sluice.at", sink.at),
            ]
            of_streams = _streams_headers(detail, None, f"output {sink.topic}", sink.at)
            headers.append([*(own or ()), *of_sluice, *of_streams])
        columns: dict[str, pa.Array] = {}
        for name in ("key", "value"):
            columns[name] = records.column(name).cast(pa.binary())
        self.dead_letters.append(pa.table(columns | {"headers": pa.array(headers, HEADERS)}))


def shorten_dead_letters(dead_letters: pa.Table, limit: int) -> pa.Table:
    """Shorten each dead letter that is larger than the topic's limit.

    First leaves out the headers of Kafka Streams, which only repeat Sluice's headers. If the dead
    letter is still too large, leaves out its value, then the record's own headers, and then the
    key. A header says which parts of the record were left out. Sluice's own headers, which are
    short, stay.
    """
    sizes = record_sizes(dead_letters) + _LEFT_OUT_BYTES
    if not (sizes > limit).any():
        return dead_letters
    rows = dead_letters.to_pylist()
    for row, size in zip(rows, sizes.tolist(), strict=True):
        left_out: list[str] = []
        if size > limit:
            shorter = _without_streams_headers(row["headers"])
            size -= size_of_part(row["headers"]) - size_of_part(shorter)
            row["headers"] = shorter
        # The value is left out first: the key and the headers help more to find the rejected
        # record.
        for part in ("value", "headers", "key"):
            if size > limit:
                rest = None
                if part == "headers":
                    rest = _headers_of_sluice(row["headers"])
                bytes_left_out = size_of_part(row[part]) - size_of_part(rest)
                row[part] = rest
                size -= bytes_left_out
                if bytes_left_out:
                    left_out.append(f"the {part}, of {bytes_left_out} bytes")
        if left_out:
            row["headers"].append(header("sluice.left_out", " and ".join(left_out)))
    return pa.Table.from_pylist(rows, dead_letters.schema)


def escape_headers(headers: Iterable[Header]) -> list[dict[str, str | bytes | None]]:
    """Return a record's own headers for a dead letter.

    A header with the name of one of Sluice's headers gets a prefix.
    """
    return [{"key": escaped(str(header["key"])), "value": header["value"]} for header in headers]


_HEADERS_OF_PLACE = ("sluice.topic", "sluice.partition", "sluice.offset", "sluice.timestamp")
_Columns: TypeAlias = tuple[Sequence[str], Sequence[bytes | None]]
"""Names and values of headers."""


@lru_cache(maxsize=1_000)
def _headers_of_error(reason: str, detail: str, step: str, at: str) -> tuple[_Columns, _Columns]:
    """Return the headers that describe an error: Sluice's, and the ones of Kafka Streams.

    Cached, because many records have the same error.
    """
    of_sluice = [header(FIRST, reason), header("sluice.detail", detail)]
    if step:
        of_sluice.append(header("sluice.step", step))
    if at:
        of_sluice.append(header("sluice.at", at))
    of_streams: list[Header] = []
    for each in _streams_headers(detail, None, step, at):
        if each["key"] not in STREAMS_PLACE:
            of_streams.append(each)
    return _columns(of_sluice), _columns(of_streams)


def _columns(headers: Iterable[Header]) -> _Columns:
    names: list[str] = []
    values: list[Any] = []
    for each in headers:
        names.append(str(each["key"]))
        values.append(each["value"])
    return names, values


def _streams_headers(
    detail: str, place: Place | None, step: str = "", at: str = ""
) -> Iterator[Header]:
    """Yield the headers that the dead letter would have in Kafka Streams."""
    for name, text in streams_headers(detail, place, step, at):
        yield {"key": name, "value": None} if text is None else header(name, text)


def iso_time(milliseconds: int) -> str:
    """Return a time in ISO format, given epoch ms.

    Return the number itself for a time outside the years 1 to 9999.
    """
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"


def _step_headers(
    step: Step,
    place: Place | None,
    row: RejectedRow,
    rejected: Rejected,
) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the headers of a step's dead letter."""
    yield "reason", rejected.reason
    yield "detail", rejected.detail
    yield "step", step.title
    yield "at", step.at
    if row["key"] is not None:
        yield "key", row["key"]
    if rejected.timer is not None:
        yield "timer", rejected.timer
    if place is not None:
        topic, partition, offset = place
        yield "topic", topic
        yield "partition", str(partition)
        yield "offset", str(offset)
    if row.get("time") is not None:
        yield "timestamp", iso_time(row["time"])
    if row["window_start"] not in (None, NO_WINDOW):
        yield "window_start", str(row["window_start"])
        yield "window_end", str(row["window_end"])


def _headers_of_sluice(headers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the headers that Sluice has written: the header with the reason, and all after it."""
    return list(headers[_first_of_sluice(headers) :])


def _without_streams_headers(headers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return a dead letter's headers, without the Kafka Streams headers that Sluice has written."""
    first = _first_of_sluice(headers)
    of_sluice: list[Mapping[str, Any]] = []
    for each in headers[first:]:
        if each["key"] not in STREAMS_HEADERS:
            of_sluice.append(each)
    return [*headers[:first], *of_sluice]


def _first_of_sluice(headers: Sequence[Mapping[str, Any]]) -> int:
    """Return the index of the first header that Sluice has written."""
    return max(number for number, header in enumerate(headers) if header["key"] == FIRST)


def _encoded(text: str | None) -> bytes | None:
    if text is None:
        return None
    return text.encode()
