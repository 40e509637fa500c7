"""Every worker knows an operator's stream time at any position, from the reports of all tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given as property_of
from hypothesis import strategies as st
from msgspec import Struct

from sluice import Pipeline, hopping, tumbling, within
from sluice.engine.batch.row_schemas import BEGIN, END, SCHEMA, STREAM_TIME, origins, rows
from sluice.engine.batch.side_outputs import open_table
from sluice.engine.batch.stream_time import CLOSED, StreamTimes
from sluice.engine.stages.advances import Advances, only_last_times
from sluice.engine.stages.timeline import Timeline
from sluice.plan import PlannedOperator, plan


class Order(Struct):
    amount: int


def windowed(*topics: str) -> PlannedOperator:
    """A windowed count over topics, in order."""
    pipeline = Pipeline("p")
    first, *others = (pipeline.stream(topic, value=Order) for topic in topics)
    merged = first.merge(*others) if others else first
    merged.group_by_key().windowed_by(tumbling("10 ms")).aggregate(store="s", c="first(_key)")
    return _operator(pipeline)


def joined() -> PlannedOperator:
    pipeline = Pipeline("p")
    left, right = pipeline.stream("a", value=Order), pipeline.stream("b", value=Order)
    left.left_join(right, within("5 ms")).to("out")
    return _operator(pipeline)


def _operator(pipeline: Pipeline) -> PlannedOperator:
    job = plan(pipeline).job
    return job.operators[-1]


def report(operator: PlannedOperator, *given: tuple[Any, ...], side: int = 0) -> bytes:
    """A task's report of rows (sequence, partition, time, whether complete)."""
    sequences, partitions, times, complete = zip(*given, strict=True)
    columns = {
        "sequence": pa.array(sequences, pa.int64()),
        "origin": pa.array(
            np.concatenate([origins(0, number, np.array([0])) for number in partitions])
        ),
        "path": pa.array([b"\x00"] * len(given)),
        "time": pa.array(times, pa.int64()),
    }
    advances = Advances()
    advances.add_rows(operator, side, np.array(complete, bool), columns)
    (batch,) = advances.reports([operator], 2)
    assert batch.column("side").to_pylist() == [STREAM_TIME, STREAM_TIME]
    assert batch.column("worker").to_pylist() == [0, 1]
    made: bytes = batch.column("advances")[0].as_py()
    return made


def before(partitions: int, *topics: str, **times: int) -> StreamTimes:
    return StreamTimes(times, dict.fromkeys(topics, partitions), 0)


def at(*given: tuple[int, int]) -> pa.Table:
    """Rows at sequences, of partitions."""
    sequences, partitions = zip(*given, strict=True)
    columns: dict[str, Any] = {
        "sequence": pa.array(sequences, pa.int64()),
        "origin": pa.array(
            np.concatenate([origins(0, number, np.array([0])) for number in partitions])
        ),
    }
    return pa.Table.from_batches([rows(len(given), columns | {"path": b"\x00"})], SCHEMA)


def test_reports_of_several_tasks_make_one_stream_time() -> None:
    operator = windowed("t")
    reports = [
        report(operator, (1, 0, 10, True), (3, 0, 30, True)),
        report(operator, (2, 0, 25, True), (4, 0, 20, True)),
    ]
    timeline = Timeline(operator, reports, before(1, "t"))
    columns = timeline.stream_times(at((1, 0), (2, 0), (3, 0), (4, 0), (9, 0)))
    assert columns["before"].tolist() == [-1, 10, 25, 30, 30]
    assert columns["after"].tolist() == [10, 25, 30, 30, 30]
    assert timeline.closed_after == 30
    assert [timeline.closing_position(due)[0] for due in (10, 11, 25, 26, 30)] == [1, 2, 2, 3, 3]
    assert timeline.closing_position(31) == END


@property_of(
    st.dictionaries(st.integers(0, 6), st.integers(0, 50), min_size=1),
    st.lists(st.tuples(st.integers(0, 7), st.sampled_from([b"\x00", b"\x00\x01"])), min_size=1),
)
def test_stream_time_at_a_row_is_the_largest_time_up_to_its_position(
    advances: dict[int, int], positions: list[tuple[int, bytes]]
) -> None:
    """The paths of all rows may be equal, or not."""
    operator = windowed("t")
    reported = report(operator, *((sequence, 0, time, True) for sequence, time in advances.items()))
    sequences, paths = (list(column) for column in zip(*positions, strict=True))
    table = at(*((sequence, 0) for sequence in sequences))
    table = table.set_column(table.column_names.index("path"), "path", pa.array(paths, pa.binary()))
    columns = Timeline(operator, [reported], before(1, "t")).stream_times(table)
    for row, position in enumerate(positions):
        earlier = [time for sequence, time in advances.items() if (sequence, b"\x00") < position]
        up_to = [time for sequence, time in advances.items() if (sequence, b"\x00") <= position]
        assert columns["before"][row] == max(earlier, default=-1)
        assert columns["after"][row] == max(up_to, default=-1)


class Advance(NamedTuple):
    """A row of a join of streams."""

    sequence: int
    side: int
    partition: int
    offset: int
    time: int
    complete: bool

    @property
    def origin(self) -> int:
        return int(origins(self.side, self.partition, np.array([self.offset]))[0])

    @property
    def position(self) -> tuple[int, int]:
        return self.sequence, self.origin


_ROW = st.tuples(
    st.integers(0, 9), st.integers(0, 1), st.integers(0, 2), st.integers(0, 30), st.booleans()
)
_CLOCKS = st.fixed_dictionaries({name: st.integers(-1, 20) for name in ("", ".any", ".0", ".1")})


@property_of(st.lists(_ROW, min_size=1), st.lists(_CLOCKS, min_size=3, max_size=3))
def test_a_join_has_the_stream_times_that_its_rows_move_on(
    given: list[tuple[int, int, int, int, bool]], clocks: list[dict[str, int]]
) -> None:
    """The stream times of each partition are those of a loop over its rows, and so are the closed times of all."""
    operator = joined()
    rows = [Advance(*row[:3], offset, *row[3:]) for offset, row in enumerate(given)]
    reports = [
        report_of_join(operator, [row for row in rows if (row.side, row.partition) == task])
        for task in sorted({(row.side, row.partition) for row in rows})
    ]
    times = {
        f"{operator.clock}{name}/a/{number}": time
        for number, of_number in enumerate(clocks)
        for name, time in of_number.items()
    }
    timeline = Timeline(operator, reports, before(3, "a", "b", **times))
    closed = [max(of_number[""], timeline.closed_before) for of_number in clocks]
    seen = [dict(of_number) for of_number in clocks]
    expected: dict[str, list[int]] = {"before": [], "after": [], "left": [], "right": []}
    reached = timeline.closed_before
    rows.sort(key=lambda row: row.position)
    for row in rows:
        own = seen[row.partition]
        expected["before"].append(closed[row.partition])
        own[".any"] = max(own[".any"], row.time)
        if row.complete:
            own[f".{row.side}"] = max(own[f".{row.side}"], row.time)
            if row.time == own[".any"]:
                closed[row.partition] = max(closed[row.partition], row.time)
        for name, clock in (("after", ".any"), ("left", ".0"), ("right", ".1")):
            expected[name].append(own[clock])
        if min(closed) > reached:
            for due in range(reached + 1, min(closed) + 1):
                assert timeline.closing_position(due) == (*row.position, b"\x00")
            reached = min(closed)
        assert timeline.closed_at((*row.position, b"\x00")) == reached
    table = pa.table({
        "side": pa.array([row.side for row in rows], pa.int8()),
        "sequence": pa.array([row.sequence for row in rows], pa.int64()),
        "origin": pa.array([row.origin for row in rows], pa.int64()),
        "path": pa.array([b"\x00"] * len(rows), pa.binary()),
    })  # fmt: skip
    # The rows of a worker are in any order.
    columns = timeline.stream_times(
        table.take(list(range(len(rows)))[::-1]) if len(rows) % 2 else table
    )
    for name, of_rows in expected.items():
        assert columns[name].tolist() == (of_rows[::-1] if len(rows) % 2 else of_rows)
    assert timeline.closed_after == reached
    last = {f"{operator.clock}/a/{row.partition}": closed[row.partition] for row in rows}
    assert last.items() <= timeline.after.items()


def report_of_join(operator: PlannedOperator, rows: list[Advance]) -> bytes:
    """The report of the task that reads these rows, all of one side."""
    columns = {
        "sequence": pa.array([row.sequence for row in rows], pa.int64()),
        "origin": pa.array([row.origin for row in rows], pa.int64()),
        "path": pa.array([b"\x00"] * len(rows), pa.binary()),
        "time": pa.array([row.time for row in rows], pa.int64()),
    }
    advances = Advances()
    advances.add_rows(operator, rows[0].side, np.array([row.complete for row in rows]), columns)
    (batch,) = advances.reports([operator], 1)
    data: bytes = batch.column("advances")[0].as_py()
    return data


def test_incomplete_rows_do_not_advance_stream_time() -> None:
    operator = windowed("t")
    timeline = Timeline(
        operator, [report(operator, (1, 0, 10, True), (2, 0, 90, False))], before(1, "t")
    )
    assert timeline.closed_after == 10


def test_everything_is_closed_up_to_the_smallest_stream_time_of_all_partition_numbers() -> None:
    operator = windowed("t")
    first = report(operator, (1, 0, 10, True), (3, 0, 30, True))
    second = report(operator, (2, 1, 5, True), (4, 1, 20, True))
    timeline = Timeline(operator, [first, second], before(2, "t"))
    assert [timeline.closing_position(due)[0] for due in (5, 6, 20)] == [2, 4, 4]
    assert timeline.closed_after == 20
    assert timeline.stream_times(at((3, 0), (3, 1)))["after"].tolist() == [30, 5]


def test_partitions_of_several_topics_with_one_number_share_a_stream_time() -> None:
    operator = windowed("t", "u")
    timeline = Timeline(operator, [], before(1, "t", "u", **{f"{operator.clock}/u/0": 40}))
    assert timeline.closed_before == 40


def test_stream_time_goes_on_from_the_last_batch_and_never_back() -> None:
    operator = windowed("t")
    carried = {f"{operator.clock}/t/0": 50, f"{CLOSED}/{operator.clock}": 50}
    timeline = Timeline(
        operator, [report(operator, (1, 0, 10, True), (2, 0, 60, True))], before(1, "t", **carried)
    )
    assert timeline.closing_position(50) == BEGIN
    assert timeline.closing_position(60)[0] == 2
    assert timeline.stream_times(at((1, 0)))["before"] == [50]
    assert timeline.after == {f"{operator.clock}/t/0": 60}


def test_a_join_is_closed_only_by_complete_rows_that_are_in_order() -> None:
    operator = joined()
    left = report(operator, (1, 0, 10, True), (2, 0, 40, False), (4, 0, 41, True))
    right = report(operator, (3, 0, 20, True), side=1)
    timeline = Timeline(operator, [left, right], before(1, "a", "b"))
    columns = timeline.stream_times(at((1, 0), (2, 0), (3, 0), (4, 0)))
    assert columns["after"].tolist() == [10, 40, 40, 41]
    assert columns["before"].tolist() == [-1, 10, 10, 10]
    assert columns["left"].tolist() == [10, 10, 10, 41]
    assert columns["right"].tolist() == [-1, -1, 20, 20]
    assert timeline.closed_after == 41
    assert timeline.latest_of_sides == (41, 20)


@pytest.mark.parametrize("count", [1, 1_000])
def test_a_report_has_only_the_rows_that_advance_stream_time(count: int) -> None:
    operator = windowed("t")
    many = [(number, 0, 7, True) for number in range(count)]
    table = pa.ipc.open_stream(report(operator, *many)).read_all()
    assert table.num_rows == 1


@pytest.mark.parametrize("waits", [False, True])
def test_an_operator_reports_each_advance_only_if_results_wait_for_stream_time(
    *, waits: bool
) -> None:
    pipeline = Pipeline("p")
    groups = pipeline.stream("t", value=Order).group_by_key()
    counts = groups.windowed_by(tumbling("10 ms")).aggregate(store="s", c="first(_key)")
    if waits:
        counts.suppress_until_time_limit("5 ms").to("at_last")
    operators = plan(pipeline).job.operators
    operator = operators[0]
    everything, reported = Advances(), Advances(only_last_times(operators))
    for begin in range(0, 100, 20):
        sequences = np.arange(begin, begin + 20)
        # The records of partition 1 come from two batches in which time goes back.
        columns = {
            "sequence": pa.array(sequences),
            "origin": pa.array(
                np.concatenate(
                    [
                        origins(0, number % 2, np.array([number]))
                        for number in range(begin, begin + 20)
                    ]
                )
            ),
            "path": pa.array([b"\x00"] * 20),
            "time": pa.array(np.where(sequences % 2, 500 - sequences, sequences)),
        }
        for advances in (everything, reported):
            advances.add_rows(operator, 0, np.ones(20, bool), columns)
    made = [
        next(iter(advances.reports([operator], 1))).column("advances")[0].as_py()
        for advances in (everything, reported)
    ]
    sizes = [open_table(pa.py_buffer(one)).read_all().num_rows for one in made]
    assert sizes == ([51, 51] if waits else [51, 6])
    now, then = (Timeline(operator, [one], before(2, "t")) for one in made)
    assert (now.after, now.closed_after) == (then.after, then.closed_after)
    assert now.after == {f"{operator.clock}/t/0": 98, f"{operator.clock}/t/1": 499}


@pytest.mark.parametrize("step", ["closes", "limit"])
def test_a_step_that_waits_for_closed_windows_needs_only_the_rows_that_close_windows(
    step: str,
) -> None:
    pipeline = Pipeline("p")
    groups = pipeline.stream("t", value=Order).group_by_key()
    hopping_windows = hopping("12 ms", advance="5 ms", grace="3 ms")
    counts = groups.windowed_by(hopping_windows).aggregate(store="s", c="first(_key)")
    counts.suppress_until_window_closes(max_records=1_000 if step == "limit" else None).to("closed")
    operator = plan(pipeline).job.operators[0]
    made = report(operator, *((time, 0, time, True) for time in range(40)))
    reported = open_table(pa.py_buffer(made)).read_all().column("time").to_pylist()
    # Windows end at 12, 17, 22 and so on, and close 3 ms later.
    assert reported == ([0, 5, 10, 15, 20, 25, 30, 35, 39] if step == "closes" else [*range(40)])
    timeline = Timeline(operator, [made], before(1, "t"))
    assert [timeline.closing_position(due)[0] for due in (15, 20, 35)] == [15, 20, 35]
    assert timeline.after == {f"{operator.clock}/t/0": 39}
