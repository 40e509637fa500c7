"""Steps that take the same rows of a topic share them: each row travels to its worker only once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.batch.batch_start import BatchStart, batch_context
from sluice.engine.batch.row_batches import RowBatchReader
from sluice.engine.batch.side_outputs import SideOutputs
from sluice.plan import stages
from sluice.testing import TopologyTestDriver
from sluice.testing.local_run import LocalRun, _batches, decode_piped

pytestmark = pytest.mark.unit


class Customer(Struct):
    shop: str
    number: int


def join_of_tables() -> Pipeline:
    pipeline = Pipeline("p")
    left, right = (pipeline.table(topic, value=Customer) for topic in ("left", "right"))
    left.join(right).to("joined")
    return pipeline


def several_joins_of_one_table() -> Pipeline:
    """The rows for the joins have different paths, which decide the order of the results of a record."""
    pipeline = Pipeline("p")
    left, right = (pipeline.table(topic, value=Customer) for topic in ("left", "right"))
    left.join(right).to("joined")
    left.left_join(right).to("left_joined")
    right.outer_join(left).to("outer")
    left.to_stream().to("changes")
    return pipeline


def join_by_foreign_key() -> Pipeline:
    """The join is in a later stage than the table's store."""
    pipeline = Pipeline("p")
    left, right = (pipeline.table(topic, value=Customer) for topic in ("left", "right"))
    left.join(right, on="shop").to("joined")
    return pipeline


def stream_and_tables() -> Pipeline:
    pipeline = Pipeline("p")
    left = pipeline.stream("left", value=Customer)
    right = pipeline.table("right", value=Customer)
    left.join(right).to("joined")
    left.group_by_key().aggregate(int, lambda count, _: count + 1, store="count", returns=int)
    left.group_by_key().aggregate(
        int, lambda total, left: total + left.number, store="total", returns=int
    )
    right.filter("number > 2").to_stream().to("large")
    right.group_by("shop").count(store="shops")
    return pipeline


PIPELINES = [join_of_tables, several_joins_of_one_table, join_by_foreign_key, stream_and_tables]
Piped = tuple[str, str | None, dict[str, Any] | None, int]
KEYS = st.sampled_from(["a", "b", "c", None])
VALUES = st.none() | st.builds(
    lambda shop, number: {"shop": shop, "number": number}, KEYS, st.integers(0, 5)
)
RECORDS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), KEYS, VALUES, st.integers(0, 1)), max_size=25
)


def processed(make: Callable[[], Pipeline], records: list[Piped], batch: int) -> dict[str, Any]:
    """Everything that a pipeline makes of records, in batches of a number of records."""
    with TopologyTestDriver(
        make(), partitions={"left": 2, "right": 2}, clock=1_700_000_000_000
    ) as driver:
        for number, (topic, key, value, partition) in enumerate(records):
            driver.pipe(topic, value, key=key, timestamp=number * 10, partition=partition)
            if number % batch == batch - 1:
                driver.commit()
        outputs = {sink.topic: driver.output(sink.topic) for sink in driver._job.sinks}
        stores = {name: driver.store(name) for name in driver._run.stores}
        return {"outputs": outputs, "stores": stores, "counts": driver.counts()}


@pytest.mark.parametrize("make", PIPELINES)
@given(records=RECORDS, batch=st.sampled_from([1, 4, 100]))
def test_shared_rows_give_the_same_results_as_rows_of_their_own(
    make: Callable[[], Pipeline], records: list[Piped], batch: int
) -> None:
    shared = processed(make, records, batch)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(stages, "share_rows", tuple)
        assert processed(make, records, batch) == shared


@pytest.mark.parametrize("make", [join_of_tables, several_joins_of_one_table])
def test_a_table_s_record_travels_once_for_its_store_and_all_joins(
    make: Callable[[], Pipeline],
) -> None:
    with TopologyTestDriver(make()) as driver:
        driver.pipe("left", {"shop": "north", "number": 1}, key="a")
        (record,) = map(decode_piped, driver._waiting)
        assert isinstance(driver._run, LocalRun)
        with batch_context(BatchStart(0, 0)):
            sent = [*driver._run._query.read(_batches([record]))]
        assert sum(batch.num_rows for batch in RowBatchReader(SideOutputs())(iter(sent))) == 1
        driver._waiting.clear()
