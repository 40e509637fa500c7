"""The model of the CPU time of runs, which `make bench-scaling ARGS=model` compares with measurements."""

from __future__ import annotations

import pytest

from benchmarks.cost import DRIVER, JVM, WORKERS
from benchmarks.scaling_model import Model, Shape


def measured(shape: Shape) -> dict[str, float]:
    """The CPU seconds of a run whose costs are known."""
    per_batch = shape.batches * (0.5 + 0.05 * shape.partitions + 0.02 * shape.workers)
    return {
        JVM: 8 + per_batch + 6e-6 * shape.records,
        WORKERS: 2 + 1e-5 * shape.records,
        DRIVER: 2 + 1e-6 * shape.records,
    }


SMALL = [Shape(200, 1, 4, 2), Shape(1_200_000, 1, 4, 2), Shape(200, 10, 4, 2), Shape(200, 10, 64, 2),
         Shape(200, 10, 4, 32)]  # fmt: skip


def test_small_runs_predict_a_large_one() -> None:
    model = Model.fit([(shape, measured(shape)) for shape in SMALL])
    large = Shape(50_000_000, 20, 128, 64)
    assert model.predict(large) == pytest.approx(measured(large))
    # The start takes 12 s whatever the cores. The tasks need 963.6 s, and the driver 50 s of one
    # core.
    tasks = 300 + 500 + 20 * (0.5 + 6.4 + 1.28)
    assert model.shortest_s(large, 2) == pytest.approx((tasks + 50) / 2)
    assert model.shortest_s(large, 100) == pytest.approx(50)


def test_runs_that_leave_a_part_open_are_refused() -> None:
    with pytest.raises(ValueError, match="vary records, batches, partitions and workers"):
        Model.fit([(shape, measured(shape)) for shape in SMALL[:4]])
