"""Output records as bytes: an author's own encoders, the headers that tell a window, and what cannot be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.letters import HEADERS, header
from sluice.engine.shipping import Shipped
from sluice.errors import EngineError
from sluice.topology import nodes

NO_LIMIT = 2**31
_AROUND = 100
"""Bytes that Kafka adds to a record at most: its batch's head, lengths, times."""
_decode = msgspec.json.Decoder().decode


@dataclass(frozen=True)
class SetAside:
    """Output records of one batch that cannot be written, as dead letters; and how many by topic."""

    letters: list[pa.Table] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, topic: str, records: pa.Table, reason: str, details: list[str]) -> None:
        """Add records, columns `key` and `value`, with a text for each that says what exactly is wrong."""
        headers = [
            [header("sluice.reason", reason), header("sluice.detail", detail), header("sluice.output", topic)]
            for detail in details
        ]
        columns = {name: records.column(name).cast(pa.binary()) for name in ("key", "value")}
        self.letters.append(pa.table(columns | {"headers": pa.array(headers, HEADERS)}))
        self.counts[topic] = self.counts.get(topic, 0) + records.num_rows


Encoder = Callable[[Any], bytes]


@dataclass(frozen=True)
class Encoding:
    """What making a sink's records takes; the sink itself hangs on the whole pipeline, which tasks cannot be sent."""

    topic: str
    encode: Encoder | Shipped | None
    encode_key: Encoder | Shipped | None
    windowed: bool
    on_error: nodes.OnError

    @classmethod
    def of(cls, sink: nodes.Sink) -> Self:
        """That of a sink, for use where it was made."""
        windowed = nodes.window_of(sink.parent) is not None
        return cls(sink.topic, sink.encode, sink.encode_key, windowed, sink.on_error)

    def shipped(self) -> Self:
        """The same, ready to travel."""
        encode, encode_key = (one and Shipped.of(one) for one in (self.encode, self.encode_key))
        return replace(self, encode=encode, encode_key=encode_key)


def encoded(sink: Encoding, table: pa.Table, aside: SetAside) -> pa.Table:
    """Columns `key`, `value`, and `headers` and `timestamp` (epoch ms) if there are any, as they are written.

    JSON goes out as it is; what the author encodes is decoded first. EngineError if that fails, unless the sink says
    that such records are dead letters.
    """
    columns = {name: table.column(name) for name in ("key", "value")}
    errors: dict[int, str] = {}
    if (encode := _here(sink.encode)) is not None:
        columns["value"] = _each(lambda text: encode(_decode(text)), columns["value"], errors)
    if (encode_key := _here(sink.encode_key)) is not None:
        columns["key"] = _each(encode_key, columns["key"], errors)
    if sink.windowed and "window_start" in table.column_names:
        columns["headers"] = _windows(table)
    for name in ("timestamp", "time"):
        if name in table.column_names:
            columns["timestamp"] = table.column(name)
    made = pa.table(columns)
    return _without(sink, table, made, errors, aside) if errors else made


def _here(encoder: Encoder | Shipped | None) -> Encoder | None:
    """The function itself."""
    return encoder.value if isinstance(encoder, Shipped) else encoder


def _each(encode: Encoder, texts: pa.ChunkedArray, errors: dict[int, str]) -> pa.Array:
    made: list[bytes | None] = []
    for row, text in enumerate(texts.to_pylist()):
        try:
            made.append(None if text is None else encode(text))
        except Exception as error:
            errors[row] = f"{type(error).__name__}: {error}"
            made.append(None)
    return pa.array(made, pa.binary())


def _without(sink: Encoding, table: pa.Table, made: pa.Table, errors: Mapping[int, str], aside: SetAside) -> pa.Table:
    """The records that could be encoded."""
    if sink.on_error == "fail":
        row, why = next(iter(errors.items()))
        raise EngineError(
            f"A record for {sink.topic} cannot be encoded: {why}, for the value {table.column('value')[row]}.",
            next_step=f"Nothing of the batch is visible. Mend the encoder, or have such records set aside: "
            f'to("{sink.topic}", on_error="dead_letter").',
        )
    aside.add(sink.topic, table.take(pa.array(list(errors))), "not_encoded", list(errors.values()))
    fine = np.ones(table.num_rows, bool)
    fine[list(errors)] = False
    return made.filter(pa.array(fine))


def fitting(sink: nodes.Sink | None, table: pa.Table, limit: int, aside: SetAside) -> pa.Table:
    """The encoded records that are no larger than their topic takes, where the sink says what becomes of the others.

    Sizes are those before compression, so that what is set aside does not depend on the records beside it. Without
    such a word Kafka itself decides.
    """
    if sink is None or sink.on_error == "fail" or not table.num_rows:
        return table
    sizes = sum(_lengths(table.column(name)) for name in ("key", "value")) + _AROUND
    too_large = sizes > limit
    if not too_large.any():
        return table
    details = [f"{size} bytes, and {sink.topic} takes {limit}" for size in sizes[too_large].tolist()]
    aside.add(sink.topic, table.filter(pa.array(too_large)), "too_large", details)
    return table.filter(pa.array(~too_large))


def _lengths(values: pa.ChunkedArray) -> Any:
    lengths: Any = pc.fill_null(pc.binary_length(values), 0)
    return lengths.to_numpy().astype(np.int64)


def _windows(table: pa.Table) -> pa.Array:
    bounds = zip(*(table.column(name).to_pylist() for name in ("window_start", "window_end")), strict=True)
    headers = [[header("window_start", str(start)), header("window_end", str(end))] for start, end in bounds]
    return pa.array(headers, HEADERS)
