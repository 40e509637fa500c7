"""A process returns the memory that it no longer needs."""

from __future__ import annotations

import psutil
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.worker_daemon import release_memory


def resident_mb() -> float:
    return psutil.Process().memory_info().rss / 1e6


def test_a_worker_returns_the_memory_of_a_task_after_the_task() -> None:
    before = resident_mb()
    numbers = pa.array(range(1_000))
    columns = [pc.add(numbers, number) for number in range(10_000)]
    texts = [b"%05d" % number * 400 for number in range(50_000)]
    # The last objects keep the memory in front of them from being returned by itself.
    last = columns[-1], texts[-1]
    assert resident_mb() > before + 150
    del columns, texts
    release_memory("stop", {"generation": 2})
    assert resident_mb() < before + 40
    assert last
