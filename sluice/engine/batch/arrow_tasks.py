"""Tasks that take and yield Arrow batches. They need no Spark session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from typing_extensions import override

from sluice.engine.batch.batch_start import RunningTask, task_on_spark

BatchTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The Python function of a Spark task, which takes and yields record batches."""


class TaskOfBatch(ABC):
    """A task that must know its batch, or its worker."""

    @abstractmethod
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        """Take and yield record batches."""


@dataclass(frozen=True)
class Chain(TaskOfBatch):
    """Chains several tasks: each task takes the batches that the previous task yields."""

    tasks: tuple[BatchTask | TaskOfBatch, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run all tasks in the current Spark task."""
        return self.run(batches, task_on_spark())

    @override
    def run(self, batches: Iterator[pa.RecordBatch], task: RunningTask) -> Iterator[pa.RecordBatch]:
        for step in self.tasks:
            if isinstance(step, TaskOfBatch):
                batches = step.run(batches, task)
            else:
                batches = step(batches)
        return batches
