"""Tasks that take and yield Arrow batches. They need no Spark session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

import pyarrow as pa

BatchTask: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The Python function of a Spark task, which takes and yields record batches."""


@dataclass(frozen=True)
class Chain:
    """Chains several tasks: each task takes the batches that the previous task yields."""

    tasks: tuple[BatchTask, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return reduce(lambda made, task: task(made), self.tasks, batches)
