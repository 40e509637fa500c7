"""Dead letters: records that could not be read, processed or written, with their origin and the reason as headers."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from sluice.values.dead_letter_headers import FIRST, escaped

Header = Mapping[str, str | bytes | None]
"""`key` and `value` of a header."""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
LONGEST_DETAIL = 2_000
"""Maximum length of a detail, because an error's text may repeat a value of any size."""
DEAD_LETTER = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS)])


@dataclass(frozen=True)
class DeadLetter:
    """A rejected record: its row in the batch, the code of the reason, and the details."""

    row: int
    reason: str
    detail: str
    step: str = ""
    """The failed step; empty if the record could not be read."""
    at: str = ""
    """The step's `file:line`."""


def dead_letter_records(batch: pa.RecordBatch, dead_letters: list[DeadLetter]) -> pa.RecordBatch:
    """The rejected records with their original bytes and headers, then headers of Sluice."""
    records = batch.take(pa.array([dead_letter.row for dead_letter in dead_letters]))
    # A producer sets a record's time, which may be a time that Python cannot represent.
    timestamps = records.column("timestamp").cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    headers = [
        [
            *escaped_headers(headers_of(own)),
            header(FIRST, dead_letter.reason),
            header("sluice.detail", dead_letter.detail[:LONGEST_DETAIL]),
            *([header("sluice.step", dead_letter.step)] if dead_letter.step else []),
            *([header("sluice.at", dead_letter.at)] if dead_letter.at else []),
            *(header(f"sluice.{name}", str(record[name])) for name in ("topic", "partition", "offset")),
            header("sluice.timestamp", iso_time(record["timestamp"])),
        ]
        for dead_letter, own, record in zip(
            dead_letters,
            records.column("headers").to_pylist(),
            records.select(["topic", "partition", "offset"]).append_column("timestamp", timestamps).to_pylist(),
            strict=True,
        )
    ]
    columns = [records.column("key"), records.column("value"), pa.array(headers, HEADERS)]
    return pa.RecordBatch.from_arrays(
        [c.cast(f.type) for c, f in zip(columns, DEAD_LETTER, strict=True)], schema=DEAD_LETTER
    )


def headers_of(text: str | None) -> list[dict[str, str | bytes | None]]:
    """Decode a record's headers from Spark's JSON, in which values are base64."""
    headers = json.loads(text) if text else []
    values = ((header["key"], header.get("value")) for header in headers)
    return [{"key": key, "value": None if value is None else b64decode(value)} for key, value in values]


def escaped_headers(headers: Iterable[Header]) -> list[dict[str, str | bytes | None]]:
    """A record's own headers as its dead letter has them."""
    return [{"key": escaped(str(header["key"])), "value": header["value"]} for header in headers]


def header(key: str, value: str) -> dict[str, str | bytes]:
    """A header with text, which may come from an author's error and may have surrogates."""
    return {"key": key, "value": value.encode(errors="replace")}


def iso_time(milliseconds: int) -> str:
    """A time from epoch ms, or the number itself if it is outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return f"{milliseconds} ms"
