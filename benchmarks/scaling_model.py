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
    """The numbers that determine how much CPU time a run takes."""

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
        """Return the model that is closest to measured runs.

        A run is given by its shape and the CPU seconds of each program.
        """
        counts: list[tuple[int, ...]] = []
        measured: list[list[float]] = []
        for shape, cpu_s in runs:
            counts.append(shape.counts)
            measured.append([cpu_s[program] for program in PROGRAMS])
        seconds, _, rank, _ = np.linalg.lstsq(np.array(counts, float), np.array(measured))
        if rank < len(PARTS):
            raise ValueError(
                "The runs do not tell the parts apart: vary records, batches, partitions and "
                "workers."
            )
        return cls(seconds)

    def predict(self, shape: Shape) -> dict[str, float]:
        """Return the CPU seconds of each program for a run."""
        seconds = np.array(shape.counts) @ self.seconds
        return dict(zip(PROGRAMS, seconds.tolist(), strict=True))

    def shortest_s(self, shape: Shape, cores: int) -> float:
        """Return a lower bound of the seconds after the start, with `cores` cores for all programs.

        The driver is one process, so more cores do not make it faster.
        """
        after: list[float] = (np.array(shape.counts[1:]) @ self.seconds[1:]).tolist()
        return max(after[PROGRAMS.index(DRIVER)], sum(after) / cores)
