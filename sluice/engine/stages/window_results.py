"""The results of windows as columns, and how a suppress step sends the results of many closed windows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.engine.stages.emitted_rows import released_rows
from sluice.engine.stages.stage_output import StageOperator
from sluice.engine.stages.timeline import Timeline
from sluice.operators.columns import ReleasedResults
from sluice.operators.suppress import Suppress
from sluice.support.arrays import Indices, Integers, Mask, Times


@dataclass
class WindowResults:
    """The last results of windows."""

    key_texts: pa.Array
    """The texts of the keys, by number, in order."""
    keys: Integers
    """The number of each window's key."""
    starts: Times
    ends: Times
    times: Times
    values: pa.Array
    """The results as JSON."""
    headers: pa.Array
    """The headers of each window's last record, as JSON."""

    def __len__(self) -> int:
        return len(self.keys)

    def where(self, chosen: Mask) -> WindowResults:
        return self.take(np.flatnonzero(chosen))

    def take(self, indices: Indices) -> WindowResults:
        taken = pa.array(indices)
        return WindowResults(
            self.key_texts,
            self.keys[indices],
            self.starts[indices],
            self.ends[indices],
            self.times[indices],
            self.values.take(taken),
            self.headers.take(taken),
        )

    def texts_of_keys(self) -> pa.Array:
        """The text of each window's key."""
        return self.key_texts.take(pa.array(self.keys))

    def columns(self) -> dict[str, Any]:
        """The columns of the results' rows, without their positions and headers."""
        return {
            "key": self.texts_of_keys(),
            "value": self.values,
            "time": pa.array(self.times),
            "window_start": pa.array(self.starts),
            "window_end": pa.array(self.ends),
        }


def closed_rows(
    operator: StageOperator,
    suppress: Suppress,
    timeline: Timeline,
    results: WindowResults,
    due: Times,
) -> pa.RecordBatch:
    """The rows that a suppress step sends for windows that close in this batch.

    `due`: the stream time at which each window closes.
    """
    # If the rows are sorted by position, the driver sorts them faster. The results are already
    # sorted by key.
    in_order = np.argsort(due, kind="stable")
    due, closed = due[in_order], results.take(in_order)
    numbers = np.zeros(len(closed), np.intp)
    released = ReleasedResults(
        closed.key_texts, closed.keys, due, due, numbers, closed.times, closed.values
    )
    columns = {"window_start": pa.array(closed.starts), "window_end": pa.array(closed.ends)}
    # A final result has the headers of the record that has advanced stream time; any other result
    # has the headers of the window's last record.
    if not suppress.is_final:
        columns["headers"] = closed.headers
    return released_rows(operator.number, timeline, released, columns, before=False)
