"""Computes the steps between stores and outputs, which turn changes into output records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.rejections import RejectedRow
from sluice.engine.batch.side_outputs import Collected
from sluice.engine.publish.change_steps import REJECTED_CHANGE, ChangeSteps, value_texts
from sluice.engine.publish.lookup_tables import LookupTables
from sluice.plan import Job, Sink
from sluice.support.arrays import columns_named
from sluice.values.sink_tables import WINDOW

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def change_records(
    collected: Collected,
    outputs: Sequence[ChangeSteps],
    tables: LookupTables,
    spark: SparkSession | None,
) -> tuple[list[tuple[Sink, pa.Table]], list[RejectedRow]]:
    """Return the output records for the batch's changes, and the rejected rows.

    Output records are one table of `key`, `value` and `timestamp` per sink. `spark` computes the
    steps that need it.
    """
    results: list[tuple[Sink, pa.Table]] = []
    rejected: list[RejectedRow] = []
    for output in outputs:
        # Turn only one page of changes at a time into Python objects, because the objects take
        # several times as much memory as the page.
        changes: Iterable[pa.Table] = collected.changes([output.sink.group])
        if output.why_spark and (pages := [*changes]):
            # Starting a Spark query costs more than computing its changes, so one query computes
            # all of them.
            changes = [pa.concat_tables(pages)]
        records_of_pages: list[pa.Table] = []
        for page in changes:
            records, rejected_of_page = _records_of(page, output, tables, spark)
            records_of_pages.append(records)
            rejected += rejected_of_page
        if records_of_pages:
            results.append((output.sink.sink, pa.concat_tables(records_of_pages)))
    return results, rejected


def _records_of(
    changes: pa.Table,
    output: ChangeSteps,
    tables: LookupTables,
    spark: SparkSession | None,
) -> tuple[pa.Table, list[RejectedRow]]:
    """Return the output records for changes of one group, and the rejected rows."""
    if not output.sink.steps:
        return _with_window(output, changes, _unchanged(output, changes)), []
    changes = tables.join(changes, output.sink.steps)
    records = output.records(changes, spark)
    is_fine = records.column(REJECTED_CHANGE).is_null()
    rejected = _rejected_rows(changes, records, pc.invert(is_fine))
    records = records.filter(is_fine).drop_columns([REJECTED_CHANGE])
    return _with_window(output, changes.filter(is_fine), records), rejected


def _rejected_rows(
    changes: pa.Table,
    records: pa.Table,
    is_rejected: pa.ChunkedArray,
) -> list[RejectedRow]:
    columns = columns_named(changes, ("key", *WINDOW))
    columns["value"] = records.column(REJECTED_CHANGE)
    rows: list[RejectedRow] = pa.table(columns).filter(is_rejected).to_pylist()
    return rows


def _unchanged(output: ChangeSteps, changes: pa.Table) -> pa.Table:
    """Return the output records of a sink without steps: values are written unchanged."""
    values = value_texts(changes, output.sink.store_column)
    # A store of plain values keeps a null as the JSON text `null`. A topic gets a record without a
    # value, a tombstone.
    texts: list[str | None] = [*values]
    if output.sink.scalar:
        texts = [None if value == "null" else value for value in values]
    columns = {
        "key": changes.column("key"),
        "value": pa.array(texts, pa.string()),
        "timestamp": changes.column("time"),
    }
    return pa.table(columns)


def _with_window(output: ChangeSteps, changes: pa.Table, records: pa.Table) -> pa.Table:
    """Return the records with the bounds of the changes' windows, if the store has windows."""
    if not output.group.window:
        return records
    for name in WINDOW:
        records = records.append_column(name, changes.column(name))
    return records


def require_resolvable(spark: SparkSession, job: Job, outputs: Sequence[ChangeSteps]) -> None:
    """Let Spark resolve the steps after stores on an empty frame.

    Raise Unresolved if this fails.
    """
    from pyspark.errors import PySparkException

    from sluice.engine.steps.sql_errors import Unresolved

    changes = _NO_CHANGES.empty_table()
    tables = LookupTables({table.group: {} for table in job.tables})
    for output in outputs:
        if not output.sink.steps:
            continue
        try:
            output.on_spark(spark, tables.join(changes, output.sink.steps))
        except PySparkException as error:
            raise Unresolved(output.sink.sink.number, error) from None


_NO_CHANGES = pa.schema(
    [
        ("window_start", pa.int64()),
        ("window_end", pa.int64()),
        ("time", pa.int64()),
        ("key", pa.string()),
        ("value", pa.string()),
    ]
)
