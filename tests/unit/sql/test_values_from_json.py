"""Columns from JSON: all texts together give the same values as one text after the other."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.sql.arrow_from_json import array_of_json, values_one_by_one

SIMPLE: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**53), 2**53),
    pa.string(): st.text(max_size=5),
    pa.bool_(): st.booleans(),
    pa.decimal128(12, 2): st.decimals(-1_000_000, 1_000_000, places=2),
    pa.binary(): st.binary(max_size=4),
}
NAMES = ("a", "order-id", "class", "ä")


@st.composite
def typed_values(draw: st.DrawFn, depth: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """A type, and values that its JSON may have."""
    form = draw(st.sampled_from(["simple", "struct", "list", "map"] if depth else ["simple"]))
    if form == "simple":
        kind = draw(st.sampled_from([*SIMPLE]))
        return kind, st.none() | SIMPLE[kind]
    if form == "struct":
        fields = {
            name: draw(typed_values(depth - 1))
            for name in draw(st.sets(st.sampled_from(NAMES), min_size=1))
        }
        values = st.none() | st.fixed_dictionaries(
            {}, optional={name: inner for name, (_, inner) in fields.items()}
        )
        return pa.struct([(name, inner) for name, (inner, _) in fields.items()]), values
    inner, values = draw(typed_values(depth - 1))
    if form == "list":
        return pa.list_(inner), st.none() | st.lists(values, max_size=3)
    return pa.map_(pa.string(), inner), st.none() | st.dictionaries(
        st.text(max_size=2), values, max_size=2
    )


@given(st.data())
def test_all_texts_together_give_the_values_of_each_text(data: st.DataObject) -> None:
    kind, values = data.draw(typed_values())
    encode = msgspec.json.Encoder(decimal_format="number").encode
    texts = pa.array(
        [None if value is None else encode(value).decode() for value in data.draw(st.lists(values))]
    )
    if len(texts):
        assert array_of_json(texts, kind).equals(values_one_by_one(texts, kind))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.struct([("x", pa.string())]), '{"x": {"y": 1}}', {"x": '{"y":1}'}),
        (pa.struct([("x", pa.decimal128(5, 2))]), '{"x": "1.50"}', {"x": Decimal("1.50")}),
        (pa.struct([("x", pa.binary())]), '{"x": "AQI="}', {"x": b"\x01\x02"}),
        (pa.map_(pa.string(), pa.binary()), '{"x": "AQI="}', [("x", b"\x01\x02")]),
        (pa.struct([]), "{}", {}),
    ],
)
def test_values_of_another_type_are_read_as_spark_reads_them(
    kind: pa.DataType, text: str, value: Any
) -> None:
    assert array_of_json(pa.array([text, None]), kind).to_pylist() == [value, None]
