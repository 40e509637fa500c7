"""Encodes output records with the author's encoders, adds window headers, and rejects unwritable records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import HEADERS, header
from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.batch.record_headers import with_more
from sluice.engine.batch.rejected import describe, run_ended
from sluice.errors import EngineError
from sluice.operators.base import rejects_record
from sluice.plan import Sink
from sluice.values.dead_letter_headers import FIRST
from sluice.values.text import encode_text

UNWRITTEN = "unwritten/"
"""Prefix of the counts, per topic, of output records that could not be written."""
_RECORD_OVERHEAD = 100
"""Upper bound of the bytes that Kafka adds to a record: its batch's header, lengths, timestamps."""
_HEADER_OVERHEAD = 10
"""Upper bound of the bytes that Kafka adds to a header: two lengths."""
_LEFT_OUT_BYTES = 200
"""Upper bound of the size of the header that says what was left out."""
_MOST_EXACT_DIGITS = 15
"""A float has the digits of each number of up to so many digits."""


def _number(text: str) -> float | Decimal:
    number = float(text)
    return number if len(text) <= _MOST_EXACT_DIGITS or Decimal(repr(number)) == Decimal(text) else Decimal(text)


_decode = msgspec.json.Decoder(float_hook=_number).decode
"""Decodes JSON for an author's encoder. A number whose digits a float cannot hold is a Decimal."""


@dataclass(frozen=True)
class RejectedOutput:
    """Output records of a batch that cannot be written: their number per topic, and their dead letters."""

    dead_letters: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, sink: Sink, records: pa.Table, reason: str, details: list[str]) -> None:
        """Add rejected records (columns `key` and `value`). `details` describes each record's error."""
        self.counts[sink.topic] = self.counts.get(sink.topic, 0) + records.num_rows
        if sink.on_error == "skip":
            return
        own = records.column("headers").to_pylist() if "headers" in records.column_names else repeat(None)
        headers = [
            [
                *(kept or ()),
                header(FIRST, reason),
                header("sluice.detail", detail),
                header("sluice.output", sink.topic),
                header("sluice.at", sink.at),
            ]
            for detail, kept in zip(details, own, strict=False)
        ]
        columns = {name: records.column(name).cast(pa.binary()) for name in ("key", "value")}
        self.dead_letters.append(pa.table(columns | {"headers": pa.array(headers, HEADERS)}))


Encoder = Callable[[Any], bytes]


def encoded(sink: Sink, table: pa.Table, rejected: RejectedOutput) -> pa.Table:
    """Encode records: columns `key`, `value`, and perhaps `headers` and `timestamp` (epoch ms).

    JSON is written unchanged, unless the author passed an encoder, which receives the decoded value. Records that
    cannot be encoded are added to `rejected`; if the sink has `on_error="fail"`, they raise EngineError instead.
    """
    table = latest(sink, table)
    columns = {name: table.column(name) for name in ("key", "value", "headers") if name in table.column_names}
    errors: dict[int, str] = {}
    if sink.encode is not None:
        encode: Encoder = sink.encode.value
        of_json = encode_text if encode is encode_text else lambda text: encode(_decode(text))
        columns["value"] = _each(of_json, columns["value"], errors, sink)
    if sink.encode_key is not None:
        columns["key"] = _each(sink.encode_key.value, columns["key"], errors, sink)
    if sink.is_windowed and "window_start" in table.column_names:
        columns["headers"] = with_more(columns.get("headers"), _windows(table))
    for name in ("timestamp", "time"):
        if name in table.column_names:
            columns["timestamp"] = table.column(name)
    records = pa.table(columns)
    return _without_errors(sink, table, records, errors, rejected) if errors else records


def latest(sink: Sink, changes: pa.Table) -> pa.Table:
    """The last change of each key and window, if the sink wants no others.

    Rows without a key are kept, because no table has them. A group has one change of each anyway.
    """
    of_group = sink.is_windowed and "window_start" not in changes.column_names
    if sink.emit == "every" or of_group:
        return changes
    names = [name for name in ("key", "window_start", "window_end") if name in changes.column_names]
    last: dict[Any, int] = {}
    for row, name in enumerate(zip(*(changes.column(name).to_pylist() for name in names), strict=True)):
        last.pop(name, None)  # sorts keys by their last changes
        last[name if name[0] is not None else row] = row
    return changes.take(pa.array(last.values(), pa.int64()))


def _each(encode: Encoder, texts: pa.ChunkedArray, errors: dict[int, str], sink: Sink) -> pa.Array:
    """Encode each text. Adds the error of a row that fails to `errors`."""
    encoded: list[bytes | None] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            encoded.append(None if text is None else _bytes(encode, text))
        except BaseException as error:
            if not rejects_record(error):
                raise run_ended(f"The encoder of {sink.topic} at {sink.at}", error, f"{text:.500}") from error
            errors[row] = describe(error)
            encoded.append(None)
    return pa.array(encoded, pa.binary())


def _bytes(encode: Encoder, value: Any) -> bytes:
    data = encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"the encoder returned {type(data).__name__}, not bytes")
    return data


def _without_errors(
    sink: Sink, table: pa.Table, records: pa.Table, errors: Mapping[int, str], rejected: RejectedOutput
) -> pa.Table:
    """Remove and reject the records that could not be encoded. With `on_error="fail"`, raise EngineError instead."""
    if sink.on_error == "fail":
        row, why = next(iter(errors.items()))
        raise EngineError(
            f"A record for {sink.topic} ({sink.at}) cannot be encoded: {why}, for the value "
            f"{table.column('value')[row]}.",
            next_step="Nothing from the batch was published. Correct the encoder, or continue without such records: "
            f'to("{sink.topic}", on_error="dead_letter").',
        )
    rejected.add(sink, table.take(pa.array(list(errors))), "not_encoded", list(errors.values()))
    is_fine = np.ones(table.num_rows, bool)
    is_fine[list(errors)] = False
    return records.filter(pa.array(is_fine))


def fitting(sink: Sink | None, table: pa.Table, limits: TopicLimits, rejected: RejectedOutput) -> pa.Table:
    """The encoded records that their topic accepts.

    Sizes are measured before compression, so rejecting a record does not depend on other records. If the sink has
    `on_error="fail"`, all records are sent, and Kafka rejects those that it does not accept.
    """
    if sink is None or sink.on_error == "fail" or not table.num_rows:
        return table
    sizes = _sizes(table)
    table = _rejecting(
        sink, table, sizes > limits.size, rejected, "too_large",
        lambda row: f"{sizes[row]} bytes; {sink.topic} accepts at most {limits.size}",
    )  # fmt: skip
    if limits.needs_key:
        without = np.asarray(pc.is_null(table.column("key")))
        table = _rejecting(
            sink, table, without, rejected, "null_key", lambda _: f"{sink.topic} is compacted, so records need a key"
        )
    if "timestamp" in table.column_names:
        now = time.time_ns() // 1_000_000
        # A record without a timestamp, or with 0, gets the time at which it is sent.
        times = np.asarray(pc.fill_null(table.column("timestamp").cast(pa.int64()), 0).to_numpy(), np.int64)
        ahead = np.where(times == 0, 0, times - now)
        table = _rejecting(
            sink, table, (ahead > limits.after_ms) | (ahead < -limits.before_ms), rejected, "timestamp",
            lambda row: f"timestamp {times[row]} ms; {sink.topic} accepts at most {limits.after_ms} ms after the "
            f"broker's clock and {limits.before_ms} ms before it",
        )  # fmt: skip
    return table


def _rejecting(
    sink: Sink, table: pa.Table, refused: npt.NDArray[np.bool_], rejected: RejectedOutput, reason: str,
    detail: Callable[[int], str],
) -> pa.Table:  # fmt: skip
    """Add the refused records to `rejected`. Returns the others."""
    if not refused.any():
        return table
    rejected.add(sink, table.filter(pa.array(refused)), reason, [*map(detail, np.flatnonzero(refused).tolist())])
    return table.filter(pa.array(~refused))


def shortened(dead_letters: pa.Table, limit: int) -> pa.Table:
    """Leave out the value of each dead letter that exceeds the topic's limit, and if need be its headers and its key.

    A header says what was left out. Sluice's own headers, which are short, stay.
    """
    sizes = _sizes(dead_letters) + _LEFT_OUT_BYTES
    if not (sizes > limit).any():
        return dead_letters
    rows = dead_letters.to_pylist()
    for row, size in zip(rows, sizes.tolist(), strict=True):
        left_out: list[str] = []
        for part in ("value", "headers", "key"):
            if size > limit:
                kept = _own_headers(row["headers"]) if part == "headers" else None
                bytes_of_part = _size(row[part]) - _size(kept)
                row[part] = kept
                size -= bytes_of_part
                if bytes_of_part:
                    left_out.append(f"the {part}, of {bytes_of_part} bytes")
        if left_out:
            row["headers"].append(header("sluice.left_out", " and ".join(left_out)))
    return pa.Table.from_pylist(rows, dead_letters.schema)


def _own_headers(headers: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The headers of a dead letter that Sluice has written."""
    first = max(number for number, each in enumerate(headers) if each["key"] == FIRST)
    return list(headers[first:])


def _size(part: bytes | Sequence[Mapping[str, Any]] | None) -> int:
    """The bytes of a key, a value or headers."""
    if part is None or isinstance(part, bytes):
        return len(part or b"")
    return sum(len(each["key"].encode()) + len(each["value"] or b"") + _HEADER_OVERHEAD for each in part)


def _sizes(table: pa.Table) -> npt.NDArray[np.int64]:
    sizes = _lengths(table.column("key")) + _lengths(table.column("value")) + _RECORD_OVERHEAD
    if "headers" in table.column_names:
        for start, chunk in _chunks(table.column("headers")):
            names, values = chunk.flatten().flatten()
            lengths = _lengths(names) + _lengths(values) + _HEADER_OVERHEAD
            np.add.at(sizes, start + np.asarray(pc.list_parent_indices(chunk)), lengths)
    return sizes


def _chunks(column: pa.ChunkedArray) -> Iterator[tuple[int, pa.ListArray]]:
    """The chunks of a column, each with the number of its first row."""
    start = 0
    for chunk in column.chunks:
        yield start, chunk
        start += len(chunk)


def _lengths(values: pa.ChunkedArray | pa.Array) -> npt.NDArray[np.int64]:
    lengths: Any = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(), np.int64)


def _windows(table: pa.Table) -> pa.Array:
    bounds = zip(*(table.column(name).to_pylist() for name in ("window_start", "window_end")), strict=True)
    headers = [[header("window_start", str(start)), header("window_end", str(end))] for start, end in bounds]
    return pa.array(headers, HEADERS)
