"""State rows added up within a task, before they go to the stateful operator: one row a state row in place of one a record.

Only groups whose every aggregate can be completed from parts (`count`, `sum`, `min`, `max` of a column) are combined;
of the others every record stays a row. The result is the same: adding up early is only quicker.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from sluice.plan import AggregationGroup, FusedJob

STATE_COLUMNS = ("group_id", "key", "window_start", "window_end", "expires_at", "closed_at")
_BY = ("key", "window_start")
_FLUSH_ROWS = 500_000
_MAX_DIGITS = 38
_SUM_DIGITS = 10
"""Digits that Spark adds to the sum of a decimal."""


@dataclass(frozen=True)
class Part:
    """An aggregate that is begun in tasks: its column there, and what is made of which input."""

    column: str
    function: str
    input: str | None
    type: pa.DataType

    @property
    def sql(self) -> str:
        """The aggregate that completes the parts, in Spark SQL."""
        if self.function in ("min", "max"):
            return f"{self.function}({self.column})"
        return f"CAST(sum({self.column}) AS {_sql(self.type)})"


@dataclass(frozen=True)
class Combiner:
    """Combines the rows that a placer yields. `parts` are by group and aggregate; `inputs` are carried as they are."""

    parts: dict[int, dict[str, Part]]
    inputs: dict[str, pa.DataType]

    @classmethod
    def of(cls, job: FusedJob, types: Mapping[str, pa.DataType]) -> Self:
        """The combiner of a job, given the types of the columns that its aggregates read."""
        made: dict[str, Part] = {}
        parts = {
            group.number: {text: made[text] for text in group.aggregates}
            for group in job.groups
            if all(_part(made, group, text, types) for text in group.aggregates)
        }
        used = {name for group in job.groups if group.number not in parts for name in group.inputs}
        return cls(parts, {name: types[name] for name in sorted(used)})

    @property
    def columns(self) -> dict[str, pa.DataType]:
        """Names and types of what follows the state row's own columns in a row."""
        found = {part.column: part.type for parts in self.parts.values() for part in parts.values()}
        return found | self.inputs

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Combine the rows of one task; every batch is of one group."""
        waiting: dict[int, list[pa.RecordBatch]] = {}
        for batch in batches:
            if not batch.num_rows:
                continue
            group = batch.column("group_id")[0].as_py()
            if group not in self.parts:
                yield self._whole(batch, self.inputs)
                continue
            waiting.setdefault(group, []).append(batch)
            if sum(one.num_rows for one in waiting[group]) >= _FLUSH_ROWS:
                yield from self._combined(group, waiting.pop(group))
        for group, batches_of in waiting.items():
            yield from self._combined(group, batches_of)

    def _combined(self, group: int, batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        parts = list(self.parts[group].values())
        table = pa.Table.from_batches(batches)
        single = {part.column: _single(table, part) for part in parts}
        rows = pa.table({name: table.column(name) for name in STATE_COLUMNS} | single)
        for batch in _add_up(rows, parts).combine_chunks().to_batches():
            yield self._whole(batch, single)

    def _whole(self, batch: pa.RecordBatch, there: Container[str]) -> pa.RecordBatch:
        """The batch with every column of the schema: null where its group has nothing."""
        columns = {
            name: batch.column(name) if name in there else pa.nulls(batch.num_rows, kind)
            for name, kind in self.columns.items()
        }
        return pa.RecordBatch.from_pydict({name: batch.column(name) for name in STATE_COLUMNS} | columns)


@dataclass(frozen=True)
class Combined:
    """What a task does after the stateless steps: place, then combine."""

    place: Any
    combine: Combiner

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Place and combine the records of one task."""
        return self.combine(self.place(batches))


def _part(made: dict[str, Part], group: AggregationGroup, text: str, types: Mapping[str, pa.DataType]) -> bool:
    """Whether the aggregate can be completed from parts; if so it is in `made`."""
    if text not in made and text in group.mergeable:
        function, column = group.mergeable[text]
        kind = pa.int64() if function == "count" else _part_type(function, types[column or ""])
        if kind is not None:
            made[text] = Part(f"m{len(made)}", function, column, kind)
    return text in made


def _part_type(function: str, kind: pa.DataType) -> pa.DataType | None:
    """The type of a sum, least or largest value of a column; None where Arrow and Spark may differ."""
    if pa.types.is_decimal(kind):
        if function != "sum":
            return kind
        digits = kind.precision + _SUM_DIGITS
        return pa.decimal128(digits, kind.scale) if digits <= _MAX_DIGITS else None
    return kind if function != "sum" and (pa.types.is_integer(kind) or pa.types.is_temporal(kind)) else None


def _single(table: pa.Table, part: Part) -> pa.ChunkedArray | pa.Array:
    """The part that each record is by itself."""
    if part.function != "count":
        return table.column(part.input).cast(part.type)
    if part.input is None:
        return pa.repeat(pa.scalar(1, pa.int64()), table.num_rows)
    return pc.is_valid(table.column(part.input)).cast(pa.int64())


def _add_up(rows: pa.Table, parts: list[Part]) -> pa.Table:
    """One row a state row. Within a group key and window start tell state rows apart."""
    functions = {part.column: "sum" if part.function == "count" else part.function for part in parts}
    rest = [name for name in STATE_COLUMNS if name not in _BY]
    grouped = rows.group_by(list(_BY), use_threads=False)
    added = grouped.aggregate([*((name, "max") for name in rest), *functions.items()])
    columns = {name: added.column(name) for name in _BY} | {name: added.column(f"{name}_max") for name in rest}
    columns |= {part.column: added.column(f"{part.column}_{functions[part.column]}").cast(part.type) for part in parts}
    return pa.table({name: columns[name] for name in (*STATE_COLUMNS, *functions)})


def _sql(kind: pa.DataType) -> str:
    return f"DECIMAL({kind.precision},{kind.scale})" if pa.types.is_decimal(kind) else "BIGINT"
