"""The headers that the driver hands to Kafka's client are those of each record."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.batch.record_headers import HEADERS
from sluice.engine.publish.kafka_transaction import _header_lists

pytestmark = pytest.mark.unit

Headers = list[tuple[str, bytes | None]]
few_headers = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([b"1", b"", None])), max_size=2
)


@given(runs=st.lists(st.tuples(st.none() | few_headers, st.integers(1, 3))), is_slice=st.booleans())
def test_each_record_has_its_own_headers(
    runs: list[tuple[Headers | None, int]], *, is_slice: bool
) -> None:
    records = [headers for headers, count in runs for _ in range(count)]
    column = pa.array(
        [None if headers is None else [*map(_struct, headers)] for headers in records], HEADERS
    )
    if is_slice:
        records, column = records[2:], column.slice(2)
    assert list(_header_lists(column)) == [headers or None for headers in records]


def _struct(header: tuple[str, bytes | None]) -> dict[str, str | bytes | None]:
    return dict(zip(("key", "value"), header, strict=True))


def test_records_of_a_window_share_their_headers() -> None:
    column = pa.array([[{"key": "window", "value": b"7"}]] * 3, HEADERS)
    first, *others = _header_lists(column)
    assert all(headers is first for headers in others)
