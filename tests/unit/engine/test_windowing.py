"""Windowing: which windows a record is in, when it is late, and that batches make no difference."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, hopping, tumbling
from sluice.engine.batch.batch_start import BatchStart
from sluice.engine.batch.side_outputs import BatchStats, Collected, SideOutput, SideOutputs
from sluice.engine.batch.stream_time import BEFORE_ALL, CLOSED, SEEN, StreamTimes
from sluice.engine.combine.totals import Totals
from sluice.engine.combine.windowing import Windowed, assign_windows, closed
from sluice.engine.stages import ingest as ingest_module
from sluice.engine.stages.ingest import Ingest
from sluice.plan import plan
from sluice.values.windows import TimeWindow, Window

AMOUNT = pa.decimal128(20, 0)
WINDOW = tumbling("1 minute", grace="15 seconds")
NOW = 1_700_000_000_000


def put(
    times: Sequence[int],
    window: TimeWindow = WINDOW,
    stream_time: int = BEFORE_ALL,
    closed: int = BEFORE_ALL,
) -> Windowed:
    return assign_windows(np.array(times, np.int64), window, stream_time, closed)


def starts(placed: Windowed) -> list[tuple[int, int]]:
    """Row and window start for each counted record."""
    return list(zip(placed.rows.tolist(), placed.starts.tolist(), strict=True))


def at(text: str) -> int:
    return int(datetime.fromisoformat(f"2022-12-05T{text}").replace(tzinfo=UTC).timestamp() * 1000)


def test_the_example_of_the_mission() -> None:
    # Windows of 60 s with a grace of 15 s.
    first = put([at(f"08:{time}") for time in ("00:04", "00:54", "01:05", "00:58", "01:13")])
    counts = Counter(start for _, start in starts(first))
    assert counts == {at("08:00:00"): 3, at("08:01:00"): 2}
    assert (first.late, first.stream_time) == (0, at("08:01:13"))
    # It closes at 8:01:15 for every key; an event of 8:00:59 is then late.
    after = put([at("08:01:15"), at("08:00:59")], stream_time=first.stream_time)
    assert starts(after) == [(0, at("08:01:00"))]
    assert (after.late, after.stream_time) == (1, at("08:01:15"))


@pytest.mark.parametrize(
    ("beyond_grace", "late"),
    [(-1, False), (0, True), (1, True)],
    ids=["a millisecond before", "at the very end of grace", "a millisecond after"],
)
@pytest.mark.parametrize("grace", [0, 1, 15_000])
def test_a_window_accepts_records_until_its_grace_ends(
    grace: int, beyond_grace: int, late: bool
) -> None:
    window = tumbling("1 minute", grace=timedelta(milliseconds=grace))
    placed = put([60_000 + grace + beyond_grace, 59_999], window)
    if beyond_grace == -1 and grace == 0:
        # The first record is in the same window, which is still open.
        assert starts(placed) == [(0, 0), (1, 0)]
    else:
        assert (1 in placed.rows) is not late
    assert placed.late == late


def test_a_window_includes_its_start_but_not_its_end() -> None:
    assert starts(put([0, 59_999, 60_000, 119_999])) == [(0, 0), (1, 0), (2, 60_000), (3, 60_000)]


def test_late_records_do_not_move_stream_time_back() -> None:
    placed = put([200_000, 10, 100_000, 200_001])
    assert (placed.late, placed.stream_time) == (2, 200_001)
    assert put([10], stream_time=200_001).stream_time == 200_001


def test_lateness_is_decided_in_offset_order() -> None:
    # The same three records: in one order none is late, in the other one is late.
    assert put([10, 100_000, 200_000]).late == 0
    assert put([100_000, 10, 200_000]).late == 1


def test_no_records_give_no_rows() -> None:
    placed = put([], stream_time=7)
    assert (starts(placed), placed.late, placed.stream_time) == ([], 0, 7)


def test_closed_windows_accept_nothing() -> None:
    assert put([10], closed=75_000).late == 1
    assert put([10], closed=74_999).late == 0
    # Closing windows does not change the partition's stream time.
    assert put([10], closed=75_000).stream_time == 10


def test_a_record_is_in_every_hopping_window_around_its_time() -> None:
    window = hopping("1 minute", advance="20 seconds")
    # The last window includes its start; the first one ended at 60 s and excludes its end.
    assert starts(put([60_000], window)) == [(0, 20_000), (0, 40_000), (0, 60_000)]
    assert starts(put([59_999], window)) == [(0, 0), (0, 20_000), (0, 40_000)]
    # No window starts before 0.
    assert starts(put([5], window)) == [(0, 0)]


def test_hopping_windows_with_an_uneven_advance() -> None:
    window = hopping("50 ms", advance="20 ms")
    assert starts(put([100, 110], window)) == [(0, 60), (0, 80), (0, 100), (1, 80), (1, 100)]


def test_lateness_is_decided_per_hopping_window() -> None:
    window = hopping("1 minute", advance="20 seconds", grace="15 seconds")
    # At 130 s, of the windows that hold 65 s and end at 80 s, 100 s and 120 s only the last one is
    # open.
    placed = put([130_000, 65_000], window)
    assert [start for row, start in starts(placed) if row == 1] == [60_000]
    assert placed.late == 2


windows = st.builds(Window, st.integers(1, 100), st.integers(0, 100)) | st.integers(1, 60).flatmap(
    lambda size: st.builds(Window, st.just(size), st.integers(0, 100), st.integers(1, size))
)


@given(windows, st.lists(st.integers(0, 500), max_size=60), st.data())
def test_batches_make_no_difference(window: Window, times: list[int], data: st.DataObject) -> None:
    whole = put(times, window)
    snapshots = sorted(data.draw(st.lists(st.integers(0, len(times)), max_size=6)))
    stream_time, late = BEFORE_ALL, 0
    pieces: list[tuple[int, int]] = []
    for begin, end in zip([0, *snapshots], [*snapshots, len(times)], strict=True):
        piece = put(times[begin:end], window, stream_time)
        pieces += [(begin + row, start) for row, start in starts(piece)]
        stream_time, late = piece.stream_time, late + piece.late
    assert pieces == starts(whole)
    assert (late, stream_time) == (whole.late, whole.stream_time)


@given(windows, st.lists(st.integers(0, 500), max_size=60))
def test_results_equal_a_record_by_record_model(window: Window, times: list[int]) -> None:
    stream_time, expected = BEFORE_ALL, []
    late = 0
    for row, time in enumerate(times):
        stream_time = max(stream_time, time)
        holding = [
            start for start in range(0, time + 1, window.every_ms) if start + window.size_ms > time
        ]
        bounds = [(start, start + window.size_ms) for start in holding]
        assert window.bounds_of(time) == bounds, "operators use the same windows"
        for start in holding:
            if start + window.size_ms > stream_time - window.grace_ms:
                expected.append((row, start))
            else:
                late += 1
    placed = put(times, window)
    assert starts(placed) == expected
    assert placed.late == late


# --- the task: groups, partitions, keys ---


class Sale(Struct):
    shop: str
    amount: int


class Sales:
    """Two windowed stores, one behind a filter, and a store of totals; batches arrive as from Spark."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, partitions: int = 1) -> None:
        pipeline = Pipeline("p")
        sales = pipeline.stream("sales", value=Sale)
        sales.group_by("shop").windowed_by(tumbling("100 ms", grace="50 ms")).count(store="all")
        big = sales.filter("amount > 10")
        sums = {"n": "count(*)", "amount": "sum(amount)"}
        big.group_by("shop").windowed_by(tumbling("100 ms", grace="50 ms")).aggregate(
            sums, store="big"
        )
        big.group_by("shop").aggregate(sums, store="total")
        big.to("big_sales")
        pipeline.stream("returns", value=Sale).group_by("shop").count(store="back")
        self.job = plan(pipeline).job
        self.side_outputs = SideOutputs()
        self._taken: dict[int, list[SideOutput]] = {}
        (self.input,) = {name for group in self.job.groups for name in group.inputs}
        self.partitions = {"sales": partitions, "returns": 7}
        totals = Totals.of(self.job, {self.input: "decimal(20,0)"})
        self.ingest = Ingest.of(self.job, totals, self.side_outputs, self.partitions)
        self.start = BatchStart(0, NOW)
        monkeypatch.setattr(ingest_module, "this_batch", lambda: self.start)

    def run(
        self, *batches: list[tuple[int, str | None, int]], partition: int = 0
    ) -> list[tuple[str, str, int]]:
        """Process records (time, shop, amount) of one partition.

        Returns store, key and window start for each record that a state row counts.
        """
        result = self.ingest(self._arrow(records, partition) for records in batches)
        self.last = [row for batch in result for row in batch.to_pylist()]
        names = {group.number: group.name for group in self.job.groups}
        counted: list[tuple[str, str, int]] = []
        for row in self.last:
            (value,) = json.loads(row["value"])
            number = value if isinstance(value, int) else value["n"]
            counted += [(names[row["target"]], row["key"], row["window_start"])] * number
        return sorted(counted)

    def publish(self) -> None:
        """End the batch, as the driver does."""
        times = {**self.start.times, **self.collected().stats.stream_times}
        self.start = BatchStart(self.start.number + 1, NOW, times)

    def collected(self, batch: int | None = None) -> Collected:
        """The side outputs of a batch, by default of the current one."""
        self._taken.setdefault(self.start.number, []).extend(self.side_outputs.take())
        return Collected(self._taken.get(self.start.number if batch is None else batch, []))

    def stats(self, batch: int = 0) -> BatchStats:
        """A task's side outputs, without the last-seen times."""
        result = self.collected(batch).stats
        return BatchStats(
            result.counts,
            {name: time for name, time in result.stream_times.items() if SEEN not in name},
        )

    def _arrow(self, records: list[tuple[int, str | None, int]], partition: int) -> pa.RecordBatch:
        times, shops, amounts = (
            (list(column) for column in zip(*records, strict=True)) if records else ([], [], [])
        )
        count = len(records)
        big = [amount > 10 for amount in amounts]
        key = pa.array(shops, pa.string())
        columns: dict[str, pa.Array] = {
            "_source": pa.array([0] * count, pa.int32()),
            "_partition": pa.array([partition] * count, pa.int32()),
            "_time": pa.array(times, pa.int64()),
            self.input: pa.array(amounts, pa.int64()).cast(AMOUNT),
        }
        for group in self.job.groups:
            own = [group.name != "back" and (group.name == "all" or is_big) for is_big in big]
            columns[group.passed] = pa.array(own, pa.bool_())
            columns[group.key] = pa.array(
                [k if m else None for k, m in zip(shops, own, strict=True)], pa.string()
            )
        for sink in self.job.stream_sinks:
            columns[f"o{sink.number}"] = pa.array(big, pa.bool_())
            columns[f"o{sink.number}_key"] = key
            columns[f"o{sink.number}_value"] = pa.array(
                [str(a) if a > 10 else None for a in amounts], pa.string()
            )
        return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def sales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sales:
    return Sales(tmp_path, monkeypatch)


def test_a_record_counts_in_every_store_whose_filter_it_passed(sales: Sales) -> None:
    assert sales.run([(5, "a", 20), (105, "a", 1)]) == [
        ("all", "a", 0), ("all", "a", 100), ("big", "a", 0), ("total", "a", -1),
    ]  # fmt: skip
    stats = sales.stats(0)
    assert stats.counts == {"applied": 2, "filtered": 0}
    assert stats.stream_times == {"all/sales/0": 105, "big/sales/0": 5}


def test_filtered_records_do_not_advance_a_groups_stream_time(sales: Sales) -> None:
    # The second record closes the first window for `all`; `big` has not seen it.
    state_rows = sales.run([(5, "a", 20), (500, "a", 1), (6, "a", 20)])
    assert state_rows == [
        ("all", "a", 0),
        ("all", "a", 500),
        *2 * [("big", "a", 0)],
        *2 * [("total", "a", -1)],
    ]
    assert sales.stats(0).counts["late/all"] == 1
    assert "late/big" not in sales.stats(0).counts


def test_a_null_key_is_counted_without_advancing_stream_time(sales: Sales) -> None:
    state_rows = sales.run([(5, "a", 20), (500, None, 20), (6, "a", 20)])
    assert state_rows == [*2 * [("all", "a", 0)], *2 * [("big", "a", 0)], *2 * [("total", "a", -1)]]
    stats = sales.stats(0)
    assert stats.stream_times == {"all/sales/0": 6, "big/sales/0": 6}
    assert stats.counts == {
        "applied": 3,
        "filtered": 0,
        "null_key/all": 1,
        "null_key/big": 1,
        "null_key/total": 1,
    }


def test_a_batch_continues_with_the_previous_stream_time(sales: Sales) -> None:
    sales.run([(500, "a", 1)])
    sales.publish()
    assert sales.run([(5, "a", 1), (420, "a", 1)]) == [("all", "a", 400)]
    sales.side_outputs.take()  # the task has failed
    # A retried task starts from the same stream times.
    assert sales.run([(5, "a", 1), (420, "a", 1)]) == [("all", "a", 400)]
    assert sales.stats(1).counts["late/all"] == 1


def test_arrow_batches_within_a_task_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[tuple[int, str | None, int]] = [
        (5, "a", 20),
        (500, "a", 1),
        (6, "a", 20),
        (600, None, 3),
        (7, "b", 30),
    ]
    whole, parts = Sales(tmp_path / "1", monkeypatch), Sales(tmp_path / "2", monkeypatch)
    assert whole.run(records) == parts.run(records[:1], [], records[1:3], records[3:])
    assert whole.stats(0) == parts.stats(0)


def test_each_partition_has_its_own_stream_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Sales(tmp_path, monkeypatch, partitions=2)
    sales.run([(500, "a", 20)], partition=0)
    assert sales.run([(5, "a", 20)], partition=1) == [
        ("all", "a", 0),
        ("big", "a", 0),
        ("total", "a", -1),
    ]
    assert sales.stats(0).stream_times == {
        "all/sales/0": 500, "all/sales/1": 5, "big/sales/0": 500, "big/sales/1": 5,
    }  # fmt: skip


def test_a_window_is_closed_when_no_partition_can_add_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Sales(tmp_path, monkeypatch, partitions=2)

    def closed_at(times: dict[str, int]) -> int:
        return closed(sales.job.groups, StreamTimes(times, sales.partitions, NOW, None))

    everywhere = {"all/sales/0": 500, "all/sales/1": 300, "big/sales/0": 400, "big/sales/1": 450}
    assert closed_at(everywhere) == 300
    # A partition or store without records can still receive any record.
    assert (
        closed_at({name: time for name, time in everywhere.items() if name != "big/sales/1"})
        == BEFORE_ALL
    )
    assert closed_at({}) == BEFORE_ALL
    # A new partition does not reopen windows that were closed.
    assert closed_at({CLOSED: 250}) == 250
    # Totals have no windows, and other topics' partitions do not affect these stores.
    assert (
        closed_at(everywhere | {"total/sales/0": 1, "all/returns/0": 1, "back/returns/0": 1}) == 300
    )


def test_an_idle_partition_does_not_hold_windows_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sales = Sales(tmp_path, monkeypatch, partitions=2)
    times = {"all/sales/0": 500, "all/sales/1": 300, "big/sales/0": 500, "big/sales/1": 300}
    seen = {f"{SEEN}/sales/0": NOW - 10, f"{SEEN}/sales/1": NOW - 1_000}
    closed_at = [
        closed(sales.job.groups, StreamTimes(times | seen, sales.partitions, NOW, idle))
        for idle in (None, 1_000, 999)
    ]
    assert closed_at == [300, 300, 500]


def test_closed_windows_stay_closed_across_batches(sales: Sales) -> None:
    sales.run([(500, "a", 20)])
    assert CLOSED not in sales.stats(0).stream_times
    sales.publish()
    sales.run([(900, "a", 20)])
    assert sales.stats(1).stream_times[CLOSED] == 500


def test_a_state_row_has_the_windows_end_and_the_stores_values(sales: Sales) -> None:
    sales.run([(205, "a", 20), (207, "a", 30)])
    assert [(row["window_end"], row["value"], row["time"]) for row in sales.last] == [
        (300, "[2]", 207), (300, '[{"n":2,"amount":50}]', 207), (-1, '[{"n":2,"amount":50}]', 207),
    ]  # fmt: skip


def test_output_records_reach_the_driver_in_order(sales: Sales) -> None:
    sales.run([(1, "a", 30), (2, "b", 1)], [(3, None, 20)])
    (table,) = sales.collected().records("big_sales")
    assert table.to_pylist() == [
        {"key": "a", "value": "30", "timestamp": 1}, {"key": None, "value": "20", "timestamp": 3},
    ]  # fmt: skip


def test_records_without_a_consumer_count_as_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline("p")
    pipeline.stream("sales", value=Sale).filter("amount > 10").group_by("shop").count(store="n")
    job = plan(pipeline).job
    side_outputs = SideOutputs()
    ingest = Ingest.of(job, Totals.of(job, {}), side_outputs, {"sales": 1})
    monkeypatch.setattr(ingest_module, "this_batch", lambda: BatchStart(0, NOW))
    (group,) = job.groups
    batch = pa.RecordBatch.from_pydict({
        "_source": pa.array([0, 0, 0], pa.int32()),
        "_partition": pa.array([0, 0, 0], pa.int32()),
        "_time": pa.array([1, 2, 3], pa.int64()),
        group.passed: pa.array([True, False, None]),
        group.key: pa.array(["a", None, None]),
    })  # fmt: skip
    assert sum(state_rows.num_rows for state_rows in ingest(iter([batch]))) == 1
    assert Collected(side_outputs.take()).stats.counts == {"applied": 1, "filtered": 2}
