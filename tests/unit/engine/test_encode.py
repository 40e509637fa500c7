"""How output records are encoded."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.publish.encode import _with_plain_values
from sluice.values.json_text import JSON_TEXT, plain_json

PARTS = st.lists(
    st.sampled_from([JSON_TEXT, '1"}', "{", '{"_js', 'on":"2"}', "é", '{"a":"b"}', " "]), max_size=4
)
VALUES = st.lists(st.lists(st.none() | PARTS.map("".join), max_size=4), max_size=3)


@given(VALUES, st.integers(0, 5), st.integers(0, 5))
def test_the_json_of_values_of_any_type_becomes_plain_in_any_column(
    chunks: list[list[str | None]], begin: int, length: int
) -> None:
    whole = pa.table(
        {"value": pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())}
    )
    values = whole.slice(begin, length)
    plain = [
        None if value is None else plain_json(value) for value in values.column("value").to_pylist()
    ]
    assert _with_plain_values(values).column("value").to_pylist() == plain


def test_values_without_such_json_are_not_copied() -> None:
    values = pa.table({"value": [JSON_TEXT, '{"a":1}', None, '{"_js', 'on":"2"}']})
    for part in (
        values.slice(1, 2),
        values.slice(1, 0),
        values.slice(1, 3),
        pa.table({"value": pa.nulls(2)}),
    ):
        assert _with_plain_values(part) is part
