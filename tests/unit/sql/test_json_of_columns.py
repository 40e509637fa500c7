"""Columns of values become the same JSON, whatever stands beside them, and wherever their arrays begin."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.sql.arrow_to_json import json_array, json_object, json_values
from sluice.sql.arrow_values import bytes_of
from sluice.values.json_text import json_string

_TEXTS = st.text(st.sampled_from('ab"\\\n\x1f\x7fäπ😀'), max_size=4)
_PLAIN = [
    (pa.string(), _TEXTS),
    (pa.string(), st.text("ab", max_size=4)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.bool_(), st.booleans()),
    (pa.decimal128(9, 2), st.decimals(-9_999_999, 9_999_999, places=2)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC))),
]


@st.composite
def _kinds(draw: st.DrawFn, levels: int = 2) -> tuple[pa.DataType, st.SearchStrategy[Any]]:
    """An Arrow type, and a strategy for its values, some of which are null."""
    shape = draw(st.sampled_from(["plain", "list", "struct", "map"])) if levels else "plain"
    kind: pa.DataType
    values: st.SearchStrategy[Any]
    if shape == "plain":
        kind, values = draw(st.sampled_from(_PLAIN))
    else:
        inner, inner_values = draw(_kinds(levels - 1))
        if shape == "list":
            kind, values = pa.list_(inner), st.lists(inner_values, max_size=3)
        elif shape == "map":
            kind = pa.map_(pa.string(), inner)
            values = st.dictionaries(_TEXTS, inner_values, max_size=3).map(
                lambda entries: list(entries.items())
            )
        else:
            other, other_values = draw(st.sampled_from(_PLAIN))
            kind = pa.struct([("ä", inner), ('b"', other)])
            values = st.fixed_dictionaries({"ä": inner_values, 'b"': other_values})
    return kind, values | st.none() if draw(st.booleans()) else values


def _expected(value: Any, kind: pa.DataType) -> str:
    """The JSON of one value, written by Python."""
    match value:
        case None:
            return "null"
        case bool() | int() | Decimal():
            return str(value).lower()
        case str():
            return json_string(value)
        case datetime():
            return f'"{value:%Y-%m-%dT%H:%M:%S}.{value.microsecond:06}Z"'
        case date():
            return f'"{value.isoformat()}"'
        case dict():
            fields = [
                f"{json.dumps(each.name, ensure_ascii=False)}:{_expected(value[each.name], each.type)}"
                for each in kind
            ]
            return f"{{{','.join(fields)}}}"
    if pa.types.is_map(kind):
        entries = [f"{json_string(name)}:{_expected(item, kind.item_type)}" for name, item in value]
        return f"{{{','.join(entries)}}}"
    return f"[{','.join(_expected(item, kind.value_type) for item in value)}]"


@given(st.data())
def test_columns_become_the_json_of_their_values(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 5))
    begin = data.draw(st.integers(0, count))
    columns: list[pa.Array] = []
    expected: list[list[str]] = []
    for _ in range(data.draw(st.integers(1, 3))):
        kind, values = data.draw(_kinds())
        drawn = data.draw(st.lists(values, min_size=count, max_size=count))
        columns.append(pa.array(drawn, kind).slice(begin))
        expected.append([_expected(value, kind) for value in drawn[begin:]])
    assert [json_values(column).to_pylist() for column in columns] == expected
    rows = list(zip(*expected, strict=True))
    assert json_array(columns).to_pylist() == [f"[{','.join(row)}]" for row in rows]
    names = [f"f{number}" for number in range(len(columns))]
    objects = [
        ",".join(f'"{name}":{text}' for name, text in zip(names, row, strict=True)) for row in rows
    ]
    assert json_object(dict(zip(names, columns, strict=True))).to_pylist() == [
        f"{{{text}}}" for text in objects
    ]


@given(st.lists(_TEXTS | st.none(), max_size=5), st.integers(0, 5), st.integers(0, 5))
def test_the_bytes_of_a_slice_are_those_of_its_texts(
    texts: list[str | None], begin: int, length: int
) -> None:
    sliced = pa.array(texts, pa.string()).slice(begin, length)
    assert bytes_of(sliced).tobytes() == "".join(filter(None, sliced.to_pylist())).encode()
