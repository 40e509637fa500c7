"""What workers hold besides the states of their keys is spread over another number of workers, too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.engine.batch.stream_time import earliest_timer, spread_timers
from sluice.operations.repartition import _Division
from sluice.state.shard.answer_rows import RecordedAnswer, by_worker
from sluice.state.shard.operator_states import StateVersion
from sluice.values.key_owners import owner

pytestmark = pytest.mark.unit


def version(key: str, shared: int) -> StateVersion:
    return StateVersion(7, shared, key, 3, None, None, b"1", 0)


def test_every_new_worker_gets_one_copy_of_a_table_that_a_processor_reads() -> None:
    old: Any = SimpleNamespace(workers=[0, 1])
    key = next(key for key in ("tea", "pot", "cup", "jar") if owner(key, 2) == 0)
    first, second = (_Division(old, worker, 3, frozenset()) for worker in (0, 1))
    copied, of_key = version("8:tea", 1), version(key, 0)
    assert second.of_states([copied]) == {}
    everyone = {number: [copied] for number in range(3)}
    assert first.of_states([copied]) == everyone
    everyone[owner(key, 3)].append(of_key)
    assert first.of_states([copied, of_key]) == everyone


def test_every_new_worker_looks_for_timers_at_the_earliest_time_of_an_old_one() -> None:
    times = {"sum/t/0": 5, ":wall/process-1/0": 9, ":wall/process-1/1": 7, ":wall/process-2/0": -1}
    spread = spread_timers(times, 3)
    timers = {f":wall/process-1/{worker}": 7 for worker in range(3)}
    assert spread == {"sum/t/0": 5} | timers
    assert (earliest_timer(times), earliest_timer(spread), earliest_timer({})) == (7, 7, None)


def test_recorded_answers_follow_their_keys() -> None:
    answers = [
        RecordedAnswer("score", str(number), key, 0, 0)
        for number, key in enumerate(("tea", "pot", ""))
    ]
    divided = by_worker(answers, 3)
    assert divided == {
        worker: [each for each in answers if owner(each.key, 3) == worker] for worker in divided
    }
    assert sum(map(len, divided.values())) == 3
