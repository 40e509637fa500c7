"""Results do not depend on the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice import hopping, session, sliding, tumbling, within
from sluice.operators.aggregation import sketches
from sluice.operators.aggregation.aggregate import Aggregate, WindowedAggregate
from sluice.operators.aggregation.aggregate_functions import Function
from sluice.operators.aggregation.calculation import Functions
from sluice.operators.aggregation.sessions import SessionAggregate
from sluice.operators.aggregation.sliding import SlidingAggregate
from sluice.operators.base import LEFT, RIGHT
from sluice.operators.deduplicate import Deduplicate
from sluice.operators.joins.by_key import StreamTableJoin, TableJoin
from sluice.operators.joins.stream_join import StreamJoin
from sluice.operators.operator import Operator
from sluice.operators.processor import Context, Record, StoreOptions, Timer
from sluice.operators.processor_operator import Process
from sluice.operators.suppress import Suppress
from sluice.operators.table import Latest
from tests.unit.operators.feed import Given, run

OF_NUMBERS = ("sum", "max", "collect_list", "first", "count_distinct", "approx_count_distinct", "mode", "bit_xor",
              "stddev_samp", "kurtosis")  # fmt: skip
FUNCTIONS = [
    Function("count"), *(Function(name, int) for name in OF_NUMBERS), Function("top", int, (2,)),
    Function("percentiles", int, (0.2, 1)), Function("approx_percentile", int, (0.5,)),
]  # fmt: skip


def functions() -> Functions:
    return Functions(*FUNCTIONS)


@pytest.fixture(autouse=True, scope="module")
def small_sketches() -> Iterator[None]:
    """Sketches that stop being exact after a few values."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sketches, "MOST_EXACT", 3)
        yield


class Watch:
    """Adds up values, emits the sum 7 ms after the first record, then resets it."""

    def init(self, context: Context) -> None:
        self.context = context
        self.store = context.store("sum")

    def process(self, record: Record) -> None:
        if self.store.get("n") is None:
            self.context.schedule("tell", record.time + 7)
        self.store.put("n", self.store.get("n", 0) + 1)

    def on_timer(self, timer: Timer) -> None:
        self.context.forward(timer.key, self.store.get("n"))
        self.store.delete("n")


MAKERS: dict[str, Callable[[], Operator[Any]]] = {
    "aggregate": lambda: Aggregate(functions(), sends_old_values=True),
    "tumbling": lambda: WindowedAggregate(functions(), tumbling("5 ms", "3 ms")),
    "hopping": lambda: WindowedAggregate(functions(), hopping("10 ms", advance="3 ms")),
    "sliding": lambda: SlidingAggregate(functions(), sliding("5 ms", "3 ms")),
    "session": lambda: SessionAggregate(
        functions(), session("3 ms", "2 ms"), sends_old_values=True
    ),
    "suppress": lambda: Suppress("time_limit", 6),
    "latest": lambda: Latest(sends_old_values=True),
    "table join": lambda: TableJoin("outer", sends_old_values=True),
    "stream table join": lambda: StreamTableJoin("left"),
    "inner join": lambda: StreamJoin("inner", within(before="5 ms", after="2 ms", grace="4 ms")),
    "left join": lambda: StreamJoin("left", within(before="5 ms", after="0 s", grace="4 ms")),
    "outer join": lambda: StreamJoin("outer", within(before="2 ms", after="6 ms")),
    "deduplicate": lambda: Deduplicate(6),
    "process": lambda: Process(Watch, {"sum": StoreOptions(int, ttl=9)}),
}


@st.composite
def rows(draw: st.DrawFn) -> list[Given]:
    """Records of few keys with increasing times, some jumps, and many late ones."""
    now, made = 0, []
    for number in range(draw(st.integers(1, 40))):
        now += draw(st.sampled_from([0, 1, 1, 2, 3, 20]))
        time = max(0, now - draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9])))
        value = draw(st.sampled_from([None, 1, 1, 1])) and [number] * len(FUNCTIONS)
        made.append(
            Given(
                draw(st.sampled_from(["a", "a", "b", None])),
                value,
                time,
                draw(st.sampled_from([LEFT, RIGHT])),
            )
        )
    return made


@pytest.mark.parametrize("name", MAKERS)
@given(rows=rows(), cuts=st.sets(st.integers(1, 40)))
def test_results_and_counts_do_not_depend_on_the_batches(
    name: str, rows: list[Given], cuts: set[int]
) -> None:
    whole, parted = run(MAKERS[name](), rows), run(MAKERS[name](), rows, cuts)
    assert sorted(map(repr, parted.results)) == sorted(map(repr, whole.results))
    assert parted.dropped == whole.dropped
    assert parted.states == whole.states


@pytest.mark.parametrize("name", MAKERS)
def test_each_operator_has_something_to_compare(name: str) -> None:
    busy = [
        Given("ab"[n % 2], [n] * len(FUNCTIONS), 3 * n - 4 * (n % 3 == 2), n // 2 % 2)
        for n in range(30)
    ]
    assert run(MAKERS[name](), busy).results
