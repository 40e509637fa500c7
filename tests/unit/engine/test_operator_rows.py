"""The rows of an operator: the parts by key have the same rows, whether or not a column is read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from sluice.engine.batch.row_schemas import SCHEMA
from sluice.engine.stages import operator_rows
from sluice.engine.stages.operator_rows import COLUMNS, OperatorRows

_ROWS = st.lists(
    st.fixed_dictionaries({
        "key": st.none() | st.sampled_from(["a", "b", "c"]),
        "value": st.none() | st.text(max_size=2),
        "headers": st.none(),
        "sequence": st.integers(0, 4),
        "origin": st.integers(0, 4),
        "path": st.sampled_from([b"", b"\x00"]),
        "after": st.integers(-1, 5),
    }),
    min_size=1,
)  # fmt: skip


@given(rows=_ROWS, together=st.integers(1, 5), data=st.data())
def test_parts_by_key_have_the_rows_of_their_keys_in_order(
    rows: list[dict[str, Any]], together: int, data: st.DataObject
) -> None:
    columns = {
        name: pa.array([row.get(name) for row in rows], SCHEMA.field(name).type) for name in COLUMNS
    }
    before = operator_rows._KEYED_ROWS_AT_ONCE
    operator_rows._KEYED_ROWS_AT_ONCE = together
    try:
        parts = [*OperatorRows.of([columns], None).by_key()]
    finally:
        operator_rows._KEYED_ROWS_AT_ONCE = before
    keyed = sorted(
        (row for row in rows if row["key"] is not None),
        key=lambda row: (row["key"], _position(row)),
    )
    expected = keyed + sorted((row for row in rows if row["key"] is None), key=_position)
    for keyed_rows, part in parts:
        of_part, expected = expected[: len(part)], expected[len(part) :]
        indices = np.array(data.draw(st.lists(st.integers(0, len(part) - 1))), np.intp)
        for name in ("key", "value", "headers", "sequence", "origin", "path"):
            assert part.values_at(name, indices).to_pylist() == [
                of_part[index][name] for index in indices
            ]
            assert part.columns[name].to_pylist() == [row[name] for row in of_part]
        assert part.stream_times["after"].tolist() == [row["after"] for row in of_part]
        assert part.where(np.ones(len(part), bool)).columns == {**part.columns}
        if keyed_rows is None:
            assert {row["key"] for row in of_part} == {None}
        else:
            assert len(keyed_rows) == len(part)
            assert [keyed_rows.keys[number] for number in keyed_rows.key_numbers] == [
                row["key"] for row in of_part
            ]
    assert expected == []


def _position(row: dict[str, Any]) -> tuple[int, int, bytes]:
    return row["sequence"], row["origin"], row["path"]
