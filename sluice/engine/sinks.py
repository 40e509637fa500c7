"""Output records as bytes: an author's own encoders, and the headers that tell a window."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from sluice.topology import nodes


def encoded(sink: nodes.Sink, table: pa.Table) -> pa.Table:
    """Columns `key`, `value`, and `headers` and `timestamp` (epoch ms) if there are any, as they are written.

    JSON goes out as it is; what the author encodes is decoded first.
    """
    columns = {name: table.column(name) for name in ("key", "value")}
    if sink.encode is not None:
        columns["value"] = _values(sink, columns["value"])
    if sink.encode_key is not None:
        encode = sink.encode_key
        keys = [None if key is None else encode(key) for key in columns["key"].to_pylist()]
        columns["key"] = pa.array(keys, pa.binary())
    if nodes.window_of(sink.parent) is not None and "window_start" in table.column_names:
        columns["headers"] = _windows(table)
    for name in ("timestamp", "time"):
        if name in table.column_names:
            columns["timestamp"] = table.column(name)
    return pa.table(columns)


def _values(sink: nodes.Sink, values: pa.ChunkedArray) -> pa.Array:
    encode = sink.encode
    assert encode is not None
    decode = msgspec.json.Decoder().decode
    made = [None if text is None else encode(decode(text)) for text in values.to_pylist()]
    return pa.array(made, pa.binary())


def _windows(table: pa.Table) -> pa.Array:
    bounds = zip(*(table.column(name).to_pylist() for name in ("window_start", "window_end")), strict=True)
    headers = [[_header("window_start", start), _header("window_end", end)] for start, end in bounds]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.array(headers, kind)


def _header(name: str, time: int) -> dict[str, Any]:
    return {"key": name, "value": str(time).encode()}
