"""Aggregates records within a task before the shuffle: one row per state row instead of one per record.

Combines only groups whose aggregates can all be computed from partial results (`count`, `sum`, `min`, `max` of a
column). The other groups keep one row per record. Results are the same with and without combining.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from sluice.plan import AggregationGroup, FusedJob

STATE_COLUMNS = ("group_id", "key", "window_start", "window_end", "expires_at", "closed_at", "time")
_BY = ("key", "window_start")
_FLUSH_ROWS = 500_000
_MAX_DIGITS = 38
_SUM_DIGITS = 10
"""Extra digits of Spark's sum of a decimal column."""


@dataclass(frozen=True)
class Part:
    """A partial aggregate: `function` over the column `input` (None for `count(*)`), stored in `column`."""

    column: str
    function: str
    input: str | None
    type: pa.DataType

    @property
    def sql(self) -> str:
        """SQL of the aggregate that combines the tasks' parts."""
        if self.function in ("min", "max"):
            return f"{self.function}({self.column})"
        return f"CAST(sum({self.column}) AS {_sql(self.type)})"


@dataclass(frozen=True)
class Combiner:
    """Combines windowed rows. `parts` maps group and aggregate to a part; `inputs` are the other groups' columns."""

    parts: dict[int, dict[str, Part]]
    inputs: dict[str, pa.DataType]

    @classmethod
    def of(cls, job: FusedJob, types: Mapping[str, pa.DataType]) -> Self:
        """The combiner of a job. `types` are the types of the columns that its aggregates read."""
        by_text: dict[str, Part] = {}
        parts = {
            group.number: {text: by_text[text] for text in group.aggregates}
            for group in job.groups
            if all(_part(by_text, group, text, types) for text in group.aggregates)
        }
        used = {name for group in job.groups if group.number not in parts for name in group.inputs}
        return cls(parts, {name: types[name] for name in sorted(used)})

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Names and types of the columns after STATE_COLUMNS."""
        return {part.column: part.type for parts in self.parts.values() for part in parts.values()} | self.inputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine the rows of one task. All rows of one record batch belong to the same group."""
        waiting: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            if not batch.num_rows:
                continue
            group = batch.column("group_id")[0].as_py()
            if group not in self.parts:
                yield self._padded(batch, self.inputs)
                continue
            waiting.setdefault(group, []).append(batch)
            if sum(batch.num_rows for batch in waiting[group]) >= _FLUSH_ROWS:
                yield from self._combined(group, waiting.pop(group))
        for group, batches_of in waiting.items():
            yield from self._combined(group, batches_of)

    def _combined(self, group: int, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(self.parts[group].values())
        table = pa.Table.from_batches(batches)
        single = {part.column: _single(table, part) for part in parts}
        rows = pa.table({name: table.column(name) for name in STATE_COLUMNS} | single)
        for batch in _add_up(rows, parts).combine_chunks().to_batches():
            yield self._padded(batch, single)

    def _padded(self, batch: pa.RecordBatch, present: Container[str]) -> pa.RecordBatch:
        """The batch with all columns; columns of other groups are null."""
        columns = {
            name: batch.column(name) if name in present else pa.nulls(batch.num_rows, kind)
            for name, kind in self.columns.items()
        }
        return pa.RecordBatch.from_pydict({name: batch.column(name) for name in STATE_COLUMNS} | columns)


def _part(parts: dict[str, Part], group: AggregationGroup, text: str, types: Mapping[str, pa.DataType]) -> bool:
    """Add the aggregate's part to `parts`, and return whether the aggregate can be computed from parts."""
    if text not in parts and text in group.mergeable:
        function, column = group.mergeable[text]
        kind = pa.int64() if function == "count" else _part_type(function, types[column or ""])
        if kind is not None:
            parts[text] = Part(f"m{len(parts)}", function, column, kind)
    return text in parts


def _part_type(function: str, kind: pa.DataType) -> pa.DataType | None:
    """The type of a column's sum, min or max. None if Arrow's and Spark's results may differ."""
    if pa.types.is_decimal(kind):
        if function != "sum":
            return kind
        digits = kind.precision + _SUM_DIGITS
        return pa.decimal128(digits, kind.scale) if digits <= _MAX_DIGITS else None
    return kind if function != "sum" and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) else None


def _single(table: pa.Table, part: Part) -> pa.ChunkedArray | pa.Array:
    """Each record's contribution to the part."""
    if part.function != "count":
        return table.column(part.input).cast(part.type)
    if part.input is None:
        return pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
    return pc.is_valid(table.column(part.input)).cast(pa.int64())


def _add_up(rows: pa.Table, parts: list[Part]) -> pa.Table:
    """Aggregate records to one row per state row, identified by key and window start within the group."""
    functions = {part.column: "sum" if part.function == "count" else part.function for part in parts}
    rest = [name for name in STATE_COLUMNS if name not in _BY]
    grouped = rows.group_by(list(_BY), use_threads=False)
    added = grouped.aggregate([*((name, "max") for name in rest), *functions.items()])
    columns = {name: added.column(name) for name in _BY} | {name: added.column(f"{name}_max") for name in rest}
    columns |= {part.column: added.column(f"{part.column}_{functions[part.column]}").cast(part.type) for part in parts}
    return pa.table({name: columns[name] for name in (*STATE_COLUMNS, *functions)})


def _sql(kind: pa.DataType) -> str:
    return f"DECIMAL({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else "BIGINT"
