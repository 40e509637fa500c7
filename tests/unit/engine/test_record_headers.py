"""Which headers of a record its output records keep."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest

from sluice.engine.batch.record_headers import concatenate_records, with_headers, with_more


def texts(*records: list[tuple[str, bytes | None]] | None) -> pa.Array:
    """Headers as Spark writes them."""

    def value(content: bytes | None) -> dict[str, str]:
        return {} if content is None else {"value": base64.b64encode(content).decode()}

    return pa.array(
        [
            None if headers is None else json.dumps([{"key": k, **value(v)} for k, v in headers])
            for headers in records
        ],
        pa.string(),
    )


def table(count: int) -> pa.Table:
    return pa.table({"key": pa.array([str(number) for number in range(count)])})


def pairs(records: pa.Table) -> list[list[tuple[str, Any]]]:
    return [[(h["key"], h["value"]) for h in row["headers"] or ()] for row in records.to_pylist()]


def test_headers_keep_their_order_repetitions_nulls_and_bytes() -> None:
    given = [("b", b"1"), ("a", None), ("b", b"\xff\0"), ("é", b"")]
    assert pairs(with_headers(table(3), texts(None, given, []))) == [[], given, []]


@pytest.mark.parametrize("own", ["sluice.redriven", "sluice.history.1", "sluice.original.x"])
def test_headers_of_sluice_are_left_out(own: str) -> None:
    kept = with_headers(table(2), texts([(own, b"1"), ("sluicegate", b"2")], [(own, b"1")]))
    assert pairs(kept) == [[("sluicegate", b"2")], []]


@pytest.mark.parametrize(
    "given", [None, texts(None, None), texts([], None), texts([("sluice.x", b"")], None)]
)
def test_without_headers_there_is_no_column(given: pa.Array | None) -> None:
    assert with_headers(table(2), given).column_names == ["key"]


def test_records_with_and_without_headers_come_together() -> None:
    together = concatenate_records(
        [table(1), with_headers(table(1), texts([("a", b"1")])), table(1)]
    )
    assert pairs(together) == [[], [("a", b"1")], []]


def test_the_bounds_of_a_window_replace_headers_of_the_same_name() -> None:
    own = with_headers(table(2), texts([("window_start", b"theirs"), ("a", b"1")], None)).column(
        "headers"
    )
    bounds = pa.array(
        [[{"key": "window_start", "value": b"0"}], [{"key": "window_start", "value": b"5"}]],
        own.type,
    )
    together = with_more(own, bounds)
    assert [[(h["key"], h["value"]) for h in headers] for headers in together.to_pylist()] == [
        [("a", b"1"), ("window_start", b"0")],
        [("window_start", b"5")],
    ]
    assert with_more(None, bounds) is bounds
