"""Positions of records in jobs with operators: they never overlap, because a number that is too large is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice import Pipeline
from sluice.engine.batch.row_schemas import (
    SORT_KEY,
    offset_of,
    origins,
    partition_of,
    position_keys,
    position_numbers,
    sorted_indices,
    stable_order,
    taken,
)
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.engine.combine.totals import Totals
from sluice.engine.stages.ingest import Ingest
from sluice.errors import EngineError
from sluice.plan import Job, plan

LARGEST = {"step": 1_023, "partition": 8_191, "offset": 2**40 - 1}


def test_the_largest_origin_keeps_its_numbers() -> None:
    (origin,) = origins(LARGEST["step"], LARGEST["partition"], np.array([LARGEST["offset"]]))
    assert origin == 2**63 - 1
    assert (*partition_of(int(origin)), offset_of(int(origin))) == tuple(LARGEST.values())


def joined() -> Job:
    pipeline = Pipeline("p")
    pipeline.table("sales", value=str).join(pipeline.table("shops", value=str)).to("joined")
    return plan(pipeline).job


@pytest.mark.parametrize("name", ["partition", "offset"])
def test_a_record_without_an_origin_is_an_error(name: str) -> None:
    job = joined()
    ingest = Ingest.of(job, Totals.of(job, {}), SideOutputs(), {"sales": 1, "shops": 1})
    numbers = {"partition": 3, "offset": 5, name: LARGEST[name] + 1}
    batch = pa.RecordBatch.from_pydict(
        {
            "_source": [0],
            "_partition": [numbers["partition"]],
            "_offset": [numbers["offset"]],
            "_sequence": [1],
        }
    )
    message = (
        f"sales, partition {numbers['partition']}, cannot be read: {name} {numbers[name]} is above"
    )
    with pytest.raises(EngineError, match=message):
        ingest._positions(batch)


def test_numbers_are_sorted_by_all_of_their_digits() -> None:
    numbers = np.array([70_000, 3, 1 << 31, 70_000, 65_536, 3, 0, (1 << 32) - 1, 4_464])
    assert stable_order(numbers).tolist() == np.argsort(numbers, kind="stable").tolist()
    assert stable_order(numbers[:0]).tolist() == []


@given(
    rows=st.lists(
        st.tuples(
            st.integers(-1, 3),
            st.integers(0, 3),
            st.sampled_from([b"", b"\x00", b"\x00\xff", b"\x00a"]),
        )
    ),
    chunk=st.integers(1, 5),
)
def test_rows_are_sorted_by_sequence_origin_and_path(
    rows: list[tuple[int, int, bytes]], chunk: int
) -> None:
    columns: Any = zip(*rows, strict=True) if rows else [[]] * 3
    types = (pa.int64(), pa.int64(), pa.binary())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    table = pa.table(dict(zip(SORT_KEY, arrays, strict=True)))
    parts = [table.slice(begin, chunk) for begin in range(0, len(table), chunk)]
    order = sorted_indices(pa.concat_tables(parts) if parts else table)
    assert order.tolist() == sorted(range(len(rows)), key=rows.__getitem__)
    assert order.tolist() == np.lexsort(position_keys(table)).tolist()


_NUMBERS = st.sampled_from([0, 1, 7, 2**40 - 1, 2**40, 2**53 + 3, 2**62, 2**63 - 1])


@example([(-(2**63), 0, b""), (2**63 - 1, 0, b"")])
@given(
    st.lists(
        st.tuples(
            _NUMBERS | st.sampled_from([-1, -(2**63)]),
            _NUMBERS,
            st.sampled_from([b"", b"\x00", b"a", b"ab"]),
        )
    )
)
def test_numbers_of_positions_have_the_order_of_the_positions(
    positions: list[tuple[int, int, bytes]],
) -> None:
    """Also of positions that are too far apart for 64 bits."""
    table = pa.table({
        "sequence": pa.array([sequence for sequence, _, _ in positions], pa.int64()),
        "origin": pa.array([origin for _, origin, _ in positions], pa.int64()),
        "path": pa.array([path for _, _, path in positions], pa.binary()),
    })  # fmt: skip
    numbers = position_numbers(table).tolist()
    for number, position in zip(numbers, positions, strict=True):
        assert [number < other for other in numbers] == [position < other for other in positions]


@given(values=st.lists(st.none() | st.text(max_size=3), max_size=8), data=st.data())
def test_taken_values_are_those_that_arrow_takes(
    values: list[str | None], data: st.DataObject
) -> None:
    column = pa.array(values, pa.string())
    places = st.lists(st.integers(0, len(values) - 1), max_size=12) if values else st.just([])
    indices = pa.array(data.draw(places), pa.int64())
    for values_of in (column, pa.nulls(len(values), pa.string()), pa.chunked_array([column])):
        assert taken(values_of, indices).to_pylist() == values_of.take(indices).to_pylist()
        assert taken(values_of, indices).type == pa.string()
