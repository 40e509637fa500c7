"""The headers of records.

As in Kafka Streams, an output record keeps the headers of the record that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sluice.values.dead_letter_headers import PREFIX
from sluice.values.headers import decode_headers
from sluice.values.kept_headers import kept_headers
from sluice.values.record_places import Place

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The Arrow type of a record's headers."""
RAW = "_raw_headers"
"""The column with each record's headers."""

Header = Mapping[str, str | bytes | None]
"""`key` and `value` of a header."""
HeadersAt = Callable[[Sequence[Place]], Mapping[Place, Sequence[Header]]]
"""Reads the headers of the records at these places; leaves out records that are no longer in their
topics."""

Texts: TypeAlias = pa.Array | pa.ChunkedArray
"""Each record's headers as JSON (see `values/headers.py`), or null."""


def headers_of_records(batch: pa.RecordBatch) -> Texts | None:
    """Return each record's headers; None if the job needs no headers."""
    if RAW not in batch.schema.names:
        return None
    return batch.column(RAW)


def header_texts(headers: pa.Array | None) -> list[str | None] | None:
    """Return each record's headers as JSON; None if no record has headers."""
    if headers is None or headers.null_count == len(headers):
        return None
    texts: list[str | None] = headers.to_pylist()
    return texts


def header(key: str, value: str) -> dict[str, str | bytes]:
    """Return a header whose value is text.

    Replaces surrogates, which an error from an author's code may contain.
    """
    return {"key": key, "value": value.encode(errors="replace")}


def headers_of(text: str | None) -> list[dict[str, str | bytes | None]]:
    """Decode a record's headers from their JSON."""
    return [{"key": header.key, "value": header.value} for header in decode_headers(text or "[]")]


def with_headers(records: pa.Table, texts: Texts | None) -> pa.Table:
    """Return the records with a column `headers`; without this column if no record has headers.

    Leaves out Sluice's own headers: a record that was re-driven from a dead letter has some.
    """
    if texts is None or texts.null_count == len(texts):
        return records
    names: list[str] = []
    values: list[bytes | None] = []
    ends = [0]
    for text in texts.to_pylist():
        for header in () if text is None else decode_headers(text):
            if not header.key.startswith(PREFIX):
                names.append(header.key)
                values.append(header.value)
        ends.append(len(names))
    # If the records have only Sluice's headers, or none, they get no column of headers.
    if not names:
        return records
    columns = [pa.array(names, pa.string()), pa.array(values, pa.binary())]
    pairs = pa.StructArray.from_arrays(columns, fields=[*HEADERS.value_type])
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
    return records.append_column("headers", lists.cast(HEADERS))


def rows_with_headers(values: Texts, headers: Texts) -> Texts:
    """Return the state rows of a store that keeps headers.

    A null value, which deletes a row, stays null.
    """
    if headers.null_count < len(headers):
        headers = pa.array(map(kept_headers, headers.to_pylist()), pa.string())
    ends = pc.binary_join_element_wise(",", pc.fill_null(headers, "null"), "]", "")
    return pc.binary_join_element_wise("[", values, ends, "")


def concatenate_records(tables: list[pa.Table]) -> pa.Table:
    """Return the records of several tables, of which some may have no column `headers`."""
    return pa.concat_tables(tables, promote_options="default")


def with_more(headers: pa.ChunkedArray | None, more: pa.Array) -> Texts:
    """Return each record's headers plus the headers `more`, which replace others of their name."""
    if headers is None:
        return more
    lists = []
    for own, added in zip(headers.to_pylist(), more.to_pylist(), strict=True):
        replaced = {header["key"] for header in added}
        kept: list[Mapping[str, Any]] = []
        for header in own or ():
            if header["key"] not in replaced:
                kept.append(header)
        lists.append([*kept, *added])
    return pa.array(lists, HEADERS)
