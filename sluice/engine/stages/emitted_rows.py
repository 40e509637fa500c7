"""The results of operators as rows, for results that come from no row of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sluice.engine.batch.row_schemas import rows
from sluice.engine.batch.stream_time import BEFORE_ALL
from sluice.engine.stages.result_paths import release_paths
from sluice.engine.stages.timeline import Timeline
from sluice.operators.base import DEFAULT_OUTPUT
from sluice.operators.columns import ReleasedResults


def emitted_rows(operator: int, count: int, columns: Mapping[str, Any]) -> pa.RecordBatch:
    """The results of an operator as rows."""
    fixed = {
        "target": operator,
        "emitted": True,
        "output": DEFAULT_OUTPUT,
        "before": BEFORE_ALL,
        "after": BEFORE_ALL,
    }
    return rows(count, {**columns, **fixed})


def released_rows(
    operator: int,
    timeline: Timeline,
    results: ReleasedResults,
    columns: Mapping[str, Any],
    *,
    before: bool,
) -> pa.RecordBatch:
    """Results that wait for stream time, as rows.

    As in the operators, each result gets the position of the row with which stream time reaches the
    time at which the result is due, and the headers of this row's record, unless `columns` has
    other headers. The result comes right before this row, or right after it.
    """
    caused = timeline.closings(results.due)
    caused["path"] = release_paths(caused["path"], results, before=before)
    of_results = {
        "key": results.texts_of_keys(),
        "value": results.values,
        "time": pa.array(results.times),
    }
    return emitted_rows(operator, len(results.keys), {**caused, **of_results, **columns})
