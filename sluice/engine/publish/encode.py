"""Output records as bytes: an author's own encoders, the headers that tell a window, and what cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import HEADERS, header
from sluice.engine.batch.rejected import said
from sluice.errors import EngineError
from sluice.operators.base import FAILURES
from sluice.plan import Sink

NO_LIMIT = 2**31
UNWRITTEN = "unwritten/"
"""The counts of output records that could not be written, by topic."""
_AROUND = 100
"""Bytes that Kafka adds to a record at most: its batch's head, lengths, times."""
_LONGEST_HEADERS = 10_000
"""Bytes that a dead letter's own headers may have."""
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class SetAside:
    """Output records of one batch that cannot be written: how many by topic, and dead letters of those that get one."""

    letters: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, sink: Sink, records: pa.Table, reason: str, details: list[str]) -> None:
        """Add records, columns `key` and `value`, with a text for each that says what exactly is wrong."""
        self.counts[sink.topic] = self.counts.get(sink.topic, 0) + records.num_rows
        if sink.on_error == "skip":
            return
        headers = [
            [
                header("sluice.reason", reason),
                header("sluice.detail", detail),
                header("sluice.output", sink.topic),
                header("sluice.at", sink.at),
            ]
            for detail in details
        ]
        columns = {name: records.column(name).cast(pa.binary()) for name in ("key", "value")}
        self.letters.append(pa.table(columns | {"headers": pa.array(headers, HEADERS)}))


Encoder = Callable[[Any], bytes]


def encoded(sink: Sink, table: pa.Table, aside: SetAside) -> pa.Table:
    """Columns `key`, `value`, and `headers` and `timestamp` (epoch ms) if there are any, as they are written.

    JSON goes out as it is; what the author encodes is decoded first. EngineError if that fails, and the sink says so.
    """
    columns = {name: table.column(name) for name in ("key", "value")}
    errors: dict[int, str] = {}
    if sink.encode is not None:
        encode: Encoder = sink.encode.value
        columns["value"] = _each(lambda text: encode(_decode(text)), columns["value"], errors)
    if sink.encode_key is not None:
        columns["key"] = _each(sink.encode_key.value, columns["key"], errors)
    if sink.is_windowed and "window_start" in table.column_names:
        columns["headers"] = _windows(table)
    for name in ("timestamp", "time"):
        if name in table.column_names:
            columns["timestamp"] = table.column(name)
    made = pa.table(columns)
    return _without(sink, table, made, errors, aside) if errors else made


def _each(encode: Encoder, texts: pa.ChunkedArray, errors: dict[int, str]) -> pa.Array:
    made: list[bytes | None] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            made.append(None if text is None else _bytes(encode, text))
        except MemoryError:
            raise
        except FAILURES as error:
            errors[row] = said(error)
            made.append(None)
    return pa.array(made, pa.binary())


def _bytes(encode: Encoder, value: Any) -> bytes:
    data = encode(value)
    if not isinstance(data, bytes):
        raise TypeError(f"the encoder gave {type(data).__name__}, not bytes")
    return data


def _without(sink: Sink, table: pa.Table, made: pa.Table, errors: Mapping[int, str], aside: SetAside) -> pa.Table:
    """The records that could be encoded."""
    if sink.on_error == "fail":
        row, why = next(iter(errors.items()))
        raise EngineError(
            f"A record for {sink.topic} ({sink.at}) cannot be encoded: {why}, for the value "
            f"{table.column('value')[row]}.",
            next_step="Nothing of the batch is visible. Correct the encoder, or go on without such records: "
            f'to("{sink.topic}", on_error="dead_letter").',
        )
    aside.add(sink, table.take(pa.array(list(errors))), "not_encoded", list(errors.values()))
    fine = np.ones(table.num_rows, bool)
    fine[list(errors)] = False
    return made.filter(pa.array(fine))


def fitting(sink: Sink | None, table: pa.Table, limit: int, aside: SetAside) -> pa.Table:
    """The encoded records that are no larger than their topic takes.

    Sizes are those before compression, so that what is set aside does not depend on the records beside it. Where the
    sink says `fail` Kafka itself decides.
    """
    if sink is None or sink.on_error == "fail" or not table.num_rows:
        return table
    sizes = _sizes(table)
    too_large = sizes > limit
    if not too_large.any():
        return table
    details = [f"{size} bytes, and {sink.topic} takes {limit}" for size in sizes[too_large].tolist()]
    aside.add(sink, table.filter(pa.array(too_large)), "too_large", details)
    return table.filter(pa.array(~too_large))


def shortened(letters: pa.Table, limit: int) -> pa.Table:
    """Dead letters, without the values of those that are larger than their topic takes: their headers say so."""
    sizes = _sizes(letters) + _LONGEST_HEADERS
    if not (sizes > limit).any():
        return letters
    rows = letters.to_pylist()
    for row, size in zip(rows, sizes.tolist(), strict=True):
        if size > limit:
            row["headers"].append(header("sluice.left_out", f"the value, of {len(row['value'] or b'')} bytes"))
            row["value"] = None
    return pa.Table.from_pylist(rows, letters.schema)


def _sizes(table: pa.Table) -> npt.NDArray[np.int64]:
    return _lengths(table.column("key")) + _lengths(table.column("value")) + _AROUND


def _lengths(values: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    lengths: Any = pc.fill_null(pc.binary_length(values), 0)
    return np.asarray(lengths.to_numpy(), np.int64)


def _windows(table: pa.Table) -> pa.Array:
    bounds = zip(*(table.column(name).to_pylist() for name in ("window_start", "window_end")), strict=True)
    headers = [[header("window_start", str(start)), header("window_end", str(end))] for start, end in bounds]
    return pa.array(headers, HEADERS)
