"""Rows of wall-clock timers have the same position in a table, whatever batch they are sent in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sluice import Context, Pipeline, Record, Timer
from sluice.engine.batch.row_schemas import SCHEMA, origins, rows
from sluice.engine.batch.stream_time import StreamTimes
from sluice.engine.publish.table_rows import with_positions
from sluice.engine.stages.batch_states import BatchStates
from sluice.engine.stages.build import stage_operator
from sluice.engine.stages.stage_task import StageRows, StageRun
from sluice.engine.stages.timeline import Timeline
from sluice.plan import Job, plan
from sluice.state.remote.opening import create_shard
from tests.engine.shop import Amount


class Reminder:
    """Sets two timers that are due at once, and forwards two records from each.

    The second one sets another timer.
    """

    def init(self, context: Context) -> None:
        self.context = context

    def process(self, record: Record[Amount]) -> None:
        for name in ("first", "second"):
            self.context.schedule(name, record.value.n, clock="wall")

    def on_timer(self, timer: Timer) -> None:
        for number in range(2):
            self.context.forward(timer.key, f"{timer.name} {number} of {timer.key} at {timer.time}")
        if timer.name == "second":
            self.context.schedule("again", timer.time, clock="wall")


def job() -> Job:
    pipeline = Pipeline("reminders")
    pipeline.stream("amounts", value=Amount, key="n").process(Reminder, returns=str).output.to(
        "texts", value=str
    )
    return plan(pipeline).job


Positions = dict[tuple[object, ...], str]
"""Position of a row → its text."""


def positions(tmp_path: Path, batches: Sequence[Sequence[tuple[int, str, int]]]) -> Positions:
    """Process records (offset, key, time of the timers) in batches; one more batch has none."""
    planned, sent = job(), dict[tuple[object, ...], str]()
    (operator,) = planned.operators
    spec = stage_operator(operator, {}, is_read=False, only_stored=False, only_last=False)
    with create_shard(f"sqlite:///{tmp_path}/shard.sqlite") as shard:
        for batch, records in enumerate([*batches, []]):
            times = StreamTimes({}, {"amounts": 1}, now=100)
            states = BatchStates(shard, 0, batch, 1, times)
            stage: Any = SimpleNamespace(operators=(spec,), only_stored=frozenset())
            run = StageRun.of(stage, states, {operator.clock: Timeline(operator, (), times)})
            offsets, keys, due = zip(*records, strict=True) if records else ((), (), ())
            columns = {
                "target": spec.number,
                "key": pa.array(keys, pa.string()),
                "time": 5,
                "path": b"\x00",
                "worker": 0,
            }
            columns |= {
                "value": pa.array([f'{{"n":{n}}}' for n in due], pa.string()),
                "emitted": False,
            }
            columns |= {"sequence": pa.array(offsets, pa.int64())}
            columns |= {"origin": pa.array(origins(0, 0, pa.array(offsets, pa.int64()).to_numpy()))}
            received = StageRows([spec.number])
            assert sum(batch.num_rows for batch in received.add(rows(len(records), columns))) == 0
            sent_rows = [*run.process(received.by_target), *run.close()]
            shard.write_states(batch, run.operators, run.states_to_store(), 1)
            results = pa.Table.from_batches(sent_rows, SCHEMA)
            placed = with_positions(planned, results)
            for *place, text in zip(
                *(
                    placed.column(name).to_pylist()
                    for name in ("_topic", "_partition", "_offset", "_row", "value")
                ),
                strict=True,
            ):
                assert tuple(place) not in sent
                sent[tuple(place)] = text
    return sent


@pytest.mark.parametrize(
    "batches",
    [
        [[(0, "a", 7)], [(1, "b", 7)], [(2, "c\x00", 8)]],
        [[(0, "a", 7), (1, "b", 7)], [], [(2, "c\x00", 8)]],
        [[], [(2, "c\x00", 8), (0, "a", 7), (1, "b", 7)]],
    ],
)
def test_positions_do_not_depend_on_batches(
    batches: list[list[tuple[int, str, int]]], tmp_path: Path
) -> None:
    (tmp_path / "whole").mkdir()
    whole = positions(tmp_path / "whole", [[(0, "a", 7), (1, "b", 7), (2, "c\x00", 8)]])
    assert positions(tmp_path, batches) == whole
    assert {place[:2] for place in whole} == {("", -1)}
    assert {place[2] for place in whole} == {7, 8}
    assert len(whole) == len({*whole.values()}) == 3 * 3 * 2


def test_a_timer_that_is_set_again_for_the_same_time_has_another_position(tmp_path: Path) -> None:
    sent = positions(tmp_path, [[(0, "a", 7)], [(1, "a", 7)]])
    assert len(sent) == 2 * 3 * 2
    assert len({*sent.values()}) == 3 * 2
