"""Results that wait for stream time, as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sluice.engine.batch.row_schemas import rows
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.result_paths import release_paths
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import DEFAULT_OUTPUT
from sluice.operators.columns import ReleasedResults


def released_rows(
    operator: int, timeline: Timeline, results: ReleasedResults, *, before: bool
) -> pa.RecordBatch:
    """Return the rows of results that wait for stream time.

    As in the operators, each result has an advancing row: with this row, stream time reaches the
    time at which the result is due. The result gets this row's position, directly before or after
    the row. It also gets the headers of the row's record, unless `results` has headers.
    """
    columns: dict[str, Any] = timeline.closings(results.due)
    columns |= {
        "target": operator,
        "emitted": True,
        "output": DEFAULT_OUTPUT,
        "before": BEFORE_ALL,
        "after": BEFORE_ALL,
        "path": release_paths(columns["path"], results, before=before),
        "key": results.texts_of_keys(),
        "value": results.values,
        "time": pa.array(results.times),
    }
    if results.windows is not None:
        starts, ends = results.windows
        columns |= {"window_start": pa.array(starts), "window_end": pa.array(ends)}
    if results.headers is not None:
        columns["headers"] = results.headers
    return rows(len(results.keys), columns)
