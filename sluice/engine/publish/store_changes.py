"""Turns a store's changes into output records: joins them with global tables, maps them, encodes them as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import HEADERS
from sluice.engine.batch.rejected import Row
from sluice.engine.batch.worker_shards import worker_shard
from sluice.engine.publish.change_steps import REJECTED, ChangeSteps, decode_row, right_column, tried, value_texts
from sluice.plan import Job, Lookup, Select, TableSink
from sluice.plan.arrow_support import NeedsSparkError
from sluice.state.shard.shard import Shard
from sluice.values.sink_tables import WINDOW
from sluice.values.sql_text import literal, struct_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PAGE = 10_000


@dataclass
class GlobalTables:
    """A job's global tables, held in the driver's memory to join the job's output: key → JSON of the value."""

    values: dict[int, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls, job: Job, shard: str, as_of: int | None) -> GlobalTables:
        """Load the tables that outputs look up, as of a published batch, from the first worker's shard.

        Empty before the first batch.
        """
        tables = cls({group: {} for group in job.looked_up_groups})
        if tables.values and as_of is not None:
            # Joined output goes to topics, so verify the rows' checksums while reading them.
            with worker_shard(0, shard) as opened:
                for group, values in tables.values.items():
                    _load(opened, group, as_of, values)
        return tables

    def apply(self, changed: pa.Table) -> None:
        """Apply a batch's changes to the copies of the global tables."""
        for group_id, key, value in zip(
            *(changed.column(name).to_pylist() for name in ("group_id", "key", "value")), strict=True
        ):
            if group_id not in self.values:
                continue
            if value is None:
                self.values[group_id].pop(key, None)
            else:
                self.values[group_id][key] = value

    def join(self, changed: pa.Table, steps: Sequence[Lookup | Select]) -> pa.Table:
        """The changes with a column of JSON for each lookup: the value of the change's key, or null.

        Omits changes whose key an inner join does not find.
        """
        for number, step in enumerate(steps):
            if isinstance(step, Lookup):
                values = self.values[step.table.group]
                found = pa.array([values.get(key) for key in changed.column("key").to_pylist()], pa.string())
                changed = changed.append_column(right_column(number), found)
                if step.how == "inner":
                    changed = changed.filter(pc.is_valid(changed.column(right_column(number))))
        return changed


def _load(shard: Shard, group: int, as_of: int, values: dict[str, str]) -> None:
    after = None
    while page := shard.scan(group, as_of, after=after, limit=_PAGE, checked=True):
        values.update((row.key, row.value) for row in page if row.value is not None)
        after = (page[-1].key, page[-1].window_start)


def change_records(
    spark: SparkSession | None, job: Job, changed: pa.Table, tables: GlobalTables, types: Mapping[str, str]
) -> tuple[list[tuple[str, pa.Table]], list[Row]]:
    """The output records for the batch's changes, and the rejected rows for changes on which a step failed.

    Output records are one table of `key`, `value` and `timestamp` per sink, with the sink's topic.
    """
    outputs, rejected = [], list[Row]()
    for sink in job.table_sinks:
        of_group = changed.filter(pc.equal(changed.column("group_id"), sink.group))
        if of_group.num_rows and not sink.steps:
            outputs.append((sink.sink.topic, _unchanged(job, sink, of_group)))
        elif of_group.num_rows:
            of_group = tables.join(of_group, sink.steps)
            records = _mapped(spark, job, sink, of_group, types)
            if REJECTED in records.column_names:
                is_fine = records.column(REJECTED).is_null()
                failed, reasons = (table.filter(pc.invert(is_fine)) for table in (of_group, records))
                columns = {"value": reasons.column(REJECTED)}
                columns |= {name: failed.column(name) for name in ("key", *WINDOW)}
                rejected += pa.table(columns).to_pylist()
                of_group = of_group.filter(is_fine)
                records = records.filter(is_fine).drop_columns([REJECTED])
            outputs.append((sink.sink.topic, _with_window(job, sink, of_group, records)))
    return outputs, rejected


def _mapped(
    spark: SparkSession | None, job: Job, sink: TableSink, changed: pa.Table, types: Mapping[str, str]
) -> pa.Table:
    """What the steps of a sink make of changes, in their order: on Arrow, or on Spark if a step needs it."""
    try:
        return ChangeSteps.of(job, sink, types)(changed)
    except NeedsSparkError:
        assert spark is not None, "without Spark, no step needs it"
        return _records(spark, job, sink, changed, types).toArrow()


def _unchanged(job: Job, sink: TableSink, changed: pa.Table) -> pa.Table:
    """The output records of a sink without steps: a store's values are written as they are."""
    values = value_texts(changed, sink.store_column)
    texts = [None if sink.scalar and value == "null" else value for value in values]
    columns = {"key": changed.column("key"), "value": pa.array(texts, pa.string()), "timestamp": changed.column("time")}
    return _with_window(job, sink, changed, pa.table(columns))


def _with_window(job: Job, sink: TableSink, changed: pa.Table, records: pa.Table) -> pa.Table:
    """The records with the bounds of the changes' windows as headers, if the store has windows."""
    if not job.groups_by_number[sink.group].window:
        return records
    bounds = zip(*(changed.column(name).to_pylist() for name in WINDOW), strict=True)
    headers = [
        [{"key": name, "value": str(time).encode()} for name, time in zip(WINDOW, times, strict=True)]
        for times in bounds
    ]
    return records.append_column("headers", pa.array(headers, HEADERS))


def check_changes(spark: SparkSession, job: Job, types: Mapping[str, str]) -> None:
    """Have Spark resolve the steps after stores on an empty frame. Raises Unresolved if it cannot."""
    from pyspark.errors import PySparkException

    from sluice.engine.steps.sql_errors import Unresolved

    schema = {name: pa.int64() for name in ("window_start", "window_end", "time")}
    schema |= {name: pa.string() for name in ("key", "value")}
    tables = GlobalTables({table.group: {} for table in job.tables})
    for sink in (sink for sink in job.table_sinks if sink.steps):
        try:
            empty = tables.join(pa.schema(schema.items()).empty_table(), sink.steps)
            _records(spark, job, sink, empty, types)
        except PySparkException as error:
            raise Unresolved(sink.sink.number, error) from None


def _records(
    spark: SparkSession,
    job: Job,
    sink: TableSink,
    changed: pa.Table,
    types: Mapping[str, str],
) -> DataFrame:
    frame = _typed(spark, job, sink, changed, types)
    kept = frame.columns[:-1]
    for number, step in enumerate(sink.steps):
        if isinstance(step, Lookup):
            frame = frame.selectExpr(*kept, f"named_struct('left', v, 'right', {right_column(number)}) AS v")
        elif not step.causes:
            frame = frame.selectExpr(*kept, f"{step.sql} AS v")
        else:
            frame = _tried(frame, step, f"t{step.step}_{number}", kept)
            kept = frame.columns[:-1]
    rejected = [REJECTED] if REJECTED in kept else []
    return frame.selectExpr("_key AS key", f"{struct_json('v')} AS value", "time AS timestamp", *rejected)


def _tried(frame: DataFrame, step: Select, name: str, kept: Sequence[str]) -> DataFrame:
    """Apply a step that may fail for a change. On failure, the column `_rejected` holds the JSON of a `Rejected`."""
    from sluice.engine.steps.fallible_expressions import with_columns

    attempt, rejected = tried(step, name, again=REJECTED in kept)
    made = with_columns(frame, (), [attempt])
    others = [name for name in kept if name != REJECTED]
    return made.selectExpr(*others, f"{rejected} AS {REJECTED}", f"{attempt.result(0)} AS v")


def _typed(spark: SparkSession, job: Job, sink: TableSink, changed: pa.Table, types: Mapping[str, str]) -> DataFrame:
    """The changes of the sink's store: `_key`, the window's times, `time`, what lookups found, and the value as `v`."""
    group = job.groups_by_number[sink.group]
    fields = ", ".join(f"`{i}` {types[store_column.store]}" for i, store_column in enumerate(group.store_columns))
    # The state row's array becomes an object, since a group's store columns differ in type.
    objects = pa.array([_as_object(value) for value in changed.column("value").to_pylist()], pa.string())
    state_rows = changed.select(["key", "window_start", "window_end", "time"]).append_column("json", objects)
    rights = {}
    for number, step in enumerate(sink.steps):
        if isinstance(step, Lookup):
            name = right_column(number)
            state_rows = state_rows.append_column(name, changed.column(name))
            rights[name] = f"from_json({name}, {literal(f'ARRAY<{step.table.value}>')})[0]"
    frame = spark.createDataFrame(state_rows)
    return frame.selectExpr(
        "key AS _key",
        *(f"IF({name} < 0, NULL, timestamp_millis({name})) AS _{name}" for name in ("window_start", "window_end")),
        "time",
        *(f"{value} AS {name}" for name, value in rights.items()),
        f"from_json(json, {literal(f'STRUCT<{fields}>')}).`{sink.store_column}` AS v",
    )


def _as_object(array: str) -> str:
    return msgspec.json.encode({str(i): value for i, value in enumerate(decode_row(array))}).decode()
