"""Dead letters: what could not be read, processed or written, with headers that say where it stood and why."""

from __future__ import annotations

import json
from base64 import b64decode

import pyarrow as pa

from sluice.engine.read.decode import DeadLetter

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
DEAD_LETTER = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])


def dead_letters(batch: pa.RecordBatch, letters: list[DeadLetter]) -> pa.RecordBatch:
    """The original bytes and headers, with headers that say where they stood and why they are here."""
    found = batch.take(pa.array([letter.row for letter in letters]))
    headers = [
        [
            *headers_of(own),
            header("sluice.reason", letter.reason),
            header("sluice.detail", letter.detail),
            *(header(f"sluice.{name}", text) for name, text in (("step", letter.step), ("at", letter.at)) if text),
            *(header(f"sluice.{name}", str(record[name])) for name in ("topic", "partition", "offset")),
            header("sluice.timestamp", record["timestamp"].isoformat()),
        ]
        for letter, own, record in zip(
            letters,
            found.column("headers").to_pylist(),
            found.select(["topic", "partition", "offset", "timestamp"]).to_pylist(),
            strict=True,
        )
    ]
    columns = [found.column("key"), found.column("value"), pa.array(headers, HEADERS)]
    return pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, DEAD_LETTER, strict=True)], schema=DEAD_LETTER
    )


def headers_of(text: str | None) -> list[dict[str, str | bytes | None]]:
    """The headers of a record out of the JSON in which they came."""
    found = json.loads(text) if text else []
    return [{"key": one["key"], "value": b64decode(one["value"]) if "value" in one else None} for one in found]


def header(key: str, value: str) -> dict[str, str | bytes]:
    """One header with a text."""
    return {"key": key, "value": value.encode()}
