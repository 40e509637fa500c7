"""The benchmark of the workers runs every kind of operator, and divides the CPU time among the parts of the work."""

from __future__ import annotations

import pytest

from benchmarks.operators import KINDS
from benchmarks.workers import OPERATORS, PARTS, Records, cpu_seconds

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_of_the_work_has_its_time(kind: str) -> None:
    records = Records(records=400, keys=20, batches=2)
    of_batches = [records.of_batch(number, ["clicks"]) for number in range(2)]
    assert sum(part.num_rows for parts in of_batches for part in parts) == 400
    seconds = cpu_seconds(kind, records)
    # Tasks add combinable aggregates up while they read, so a count has no operator.
    assert {part for part in PARTS if seconds[part] > 0} == {*PARTS} - (
        {OPERATORS} if kind == "count" else set()
    )
