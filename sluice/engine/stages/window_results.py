"""The results of windows as columns, and how a suppress step sends the results of many closed windows at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice.engine.batch.row_schemas import rows
from sluice.engine.batch.stream_time import BEFORE_ALL, Mask, Times
from sluice.engine.stages.result_paths import release_paths, result_paths
from sluice.engine.stages.stage_output import StageOperator
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import DEFAULT_OUTPUT
from sluice.operators.suppress import Suppress


@dataclass
class WindowResults:
    """The last results of windows."""

    key_texts: pa.Array
    """The texts of the keys, by number."""
    keys: npt.NDArray[np.int64]
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
        taken = pa.array(chosen)
        return WindowResults(
            self.key_texts,
            self.keys[chosen],
            self.starts[chosen],
            self.ends[chosen],
            self.times[chosen],
            self.values.filter(taken),
            self.headers.filter(taken),
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
    closed: WindowResults,
    due: Times,
) -> pa.RecordBatch:
    """The rows that a suppress step sends for windows that close in this batch.

    `due`: the stream time at which each window closes. As in the operators, each result gets the
    position of the row with which stream time reaches this time.
    """
    advances = timeline.closings(due)
    released = release_paths(advances.column("path").combine_chunks(), due, closed.texts_of_keys())
    position = {name: advances.column(name).combine_chunks() for name in ("sequence", "origin")}
    position["path"] = result_paths(released, np.zeros(len(closed), np.intp))
    # A final result has the headers of the record that has advanced stream time; any other result has
    # the headers of the window's last record.
    headers = advances.column("headers").combine_chunks() if suppress.is_final else closed.headers
    return emitted_rows(operator.number, len(closed), closed.columns() | position | {"headers": headers})


def emitted_rows(operator: int, count: int, columns: dict[str, Any]) -> pa.RecordBatch:
    """The results of an operator as rows."""
    fixed = {"target": operator, "emitted": True, "output": DEFAULT_OUTPUT, "before": BEFORE_ALL, "after": BEFORE_ALL}
    return rows(count, columns | fixed)
