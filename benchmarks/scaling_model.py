"""A model of the CPU time of a run. It is fitted to small runs, and predicts others.

A run pays for its start, for each batch, for each partition and each worker of each batch, and for
each record. The seconds of all parts add up, separately for the JVM, Python's workers and the
driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from benchmarks.cost import DRIVER, JVM, WORKERS

PARTS = ("start", "batch", "partition of a batch", "worker of a batch", "record")
PROGRAMS = (JVM, WORKERS, DRIVER)


@dataclass(frozen=True)
class Shape:
    """What a run processes."""

    records: int
    batches: int
    partitions: int
    workers: int

    @property
    def counts(self) -> tuple[int, ...]:
        """How often a run of this shape pays for each of `PARTS`."""
        return (
            1,
            self.batches,
            self.batches * self.partitions,
            self.batches * self.workers,
            self.records,
        )

    def __str__(self) -> str:
        layout = f"partitions: {self.partitions}, workers: {self.workers}"
        return f"{self.records:,} records, batches: {self.batches}, {layout}"


@dataclass(frozen=True)
class Model:
    """The CPU seconds that each part of a run costs."""

    seconds: npt.NDArray[np.float64]
    """A row for each of `PARTS`, and a column for each of `PROGRAMS`."""

    @classmethod
    def fit(cls, runs: Sequence[tuple[Shape, Mapping[str, float]]]) -> Self:
        """The model that is closest to measured runs: shapes, and the CPU seconds of each program."""
        counts = np.array([shape.counts for shape, _ in runs], float)
        measured = np.array([[cpu_s[program] for program in PROGRAMS] for _, cpu_s in runs])
        seconds, _, rank, _ = np.linalg.lstsq(counts, measured)
        if rank < len(PARTS):
            raise ValueError(
                "The runs do not tell the parts apart: vary records, batches, partitions and workers."
            )
        return cls(seconds)

    def predict(self, shape: Shape) -> dict[str, float]:
        """The CPU seconds of each program for a run."""
        return dict(zip(PROGRAMS, (np.array(shape.counts) @ self.seconds).tolist(), strict=True))

    def shortest_s(self, shape: Shape, cores: int) -> float:
        """A lower bound of the time after the start, in seconds, if all programs share so many cores.

        The driver is one process, so more cores do not make it faster.
        """
        after: list[float] = (np.array(shape.counts[1:]) @ self.seconds[1:]).tolist()
        return max(after[PROGRAMS.index(DRIVER)], sum(after) / cores)
