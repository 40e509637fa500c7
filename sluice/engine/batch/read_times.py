"""The stream times that the tasks of a batch report as soon as they have read the batch's records.

These times also travel with the rows, like all stats. But the driver gets the rows only when the
shards are written. The tasks of the next batch, which continue from these times, need not wait
until then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pyspark import AccumulatorParam, SparkContext


class _Union(AccumulatorParam[dict[str, int]]):
    """Merges the times of tasks.

    The times never conflict: each partition has its own names, and a task that runs twice reports
    the same times twice.
    """

    def zero(self, value: dict[str, int]) -> dict[str, int]:
        return {}

    def addInPlace(self, value1: dict[str, int], value2: dict[str, int]) -> dict[str, int]:  # noqa: N802 (Spark's name)
        return value1 | value2


class ReadTimes:
    """Collects the stream times that the tasks of the current batch report after reading."""

    def __init__(self, spark: SparkContext) -> None:
        # Spark gives a task's updates to the driver before it starts any work that depends on the
        # task.
        self._accumulator = spark.accumulator({}, _Union())

    @property
    def note(self) -> Callable[[Any], None]:
        """The function with which a task reports its times."""
        return self._accumulator.add

    def forget(self) -> None:
        """Forget the previous batch's times."""
        self._accumulator.value = {}

    @property
    def of_batch(self) -> Mapping[str, int]:
        """The times that the tasks of the batch have reported."""
        return self._accumulator.value
