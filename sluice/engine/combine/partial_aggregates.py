"""Aggregates records within a task. Only one row per key and window then goes into the shuffle."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from sluice.errors import EngineError
from sluice.plan import Combinable, StoreColumn
from sluice.sql.aggregate_types import type_of_aggregate
from sluice.sql.arrow_types import arrow_type
from sluice.sql.types import PLAIN_SCALE
from sluice.values.partial_results import add_up, larger, smaller
from sluice.values.sql_types import canonical, precision_and_scale

WINDOWED = ("key", "window_start", "window_end", "time")
"""The first columns of windowed records. The columns that aggregates read come after them."""
_INTEGERS = ("int", "bigint")

CombineTwo = Callable[[Any, Any], Any]
_COMBINE_TWO: dict[str, CombineTwo] = {"sum": add_up, "min": smaller, "max": larger}


@dataclass(frozen=True)
class PartialAggregate:
    """One aggregate of a task's records. `column` is the name of the column with its results."""

    column: str
    aggregate: Combinable
    type: pa.DataType

    @property
    def function(self) -> str:
        """Arrow's function that combines the records' `contributions`."""
        if self.aggregate.function == "count":
            return "sum"
        return self.aggregate.function

    @property
    def combine_two(self) -> CombineTwo:
        """Return the function that combines two partial results."""
        return _COMBINE_TWO[self.function]

    def contributions(self, records: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return what each record adds to the aggregate: its value, or for a count, 1 or 0."""
        if self.aggregate.function != "count":
            return records.column(self.aggregate.column).cast(self.type)
        if self.aggregate.column is None:
            return pa.repeat(pa.scalar(1, pa.int64()), records.num_rows)
        return pc.is_valid(records.column(self.aggregate.column)).cast(pa.int64())


@dataclass(frozen=True)
class PartialAggregates:
    """The aggregates of one group.

    `values` has the fields of each store, each with its partial aggregate.
    """

    values: tuple[tuple[tuple[str, PartialAggregate], ...], ...]
    scalar: tuple[bool, ...]
    """For each store, whether a value is the result of its only field, instead of an object of
    fields."""

    @classmethod
    def of(cls, store_columns: Sequence[StoreColumn], types: Mapping[str, str]) -> Self:
        """Return the aggregates of a group's stores.

        `types` are the SQL types of the columns that they read.
        """
        # Equal aggregates of several stores are computed once.
        parts: dict[Combinable, PartialAggregate] = {}
        values: list[tuple[tuple[str, PartialAggregate], ...]] = []
        for store in store_columns:
            fields: list[tuple[str, PartialAggregate]] = []
            for name, aggregate in store.columns:
                if aggregate not in parts:
                    column, kind = f"m{len(parts)}", _type(aggregate, types)
                    parts[aggregate] = PartialAggregate(column, aggregate, kind)
                fields.append((name, parts[aggregate]))
            values.append(tuple(fields))
        return cls(tuple(values), tuple(store.scalar for store in store_columns))

    @property
    def parts(self) -> list[PartialAggregate]:
        """The partial aggregates of all stores, without duplicates."""
        parts: dict[PartialAggregate, None] = {}
        for fields in self.values:
            for _, part in fields:
                parts[part] = None
        return list(parts)

    def combine(self, records: pa.Table, before: pa.Table | None = None) -> pa.Table:
        """Aggregate windowed records, together with the earlier result `before`.

        The result has one row for each key and window start.
        """
        parts = self.parts
        rows = records.select([*WINDOWED])
        functions = [("window_end", "max"), ("time", "max")]
        for part in parts:
            rows = rows.append_column(part.column, part.contributions(records))
            functions.append((part.column, part.function))
        if before is not None:
            rows = pa.concat_tables([before, rows])
        # Threads would change the order of the rows from run to run.
        added = rows.group_by(["key", "window_start"], use_threads=False).aggregate(functions)
        columns = {
            "key": added.column("key"),
            "window_start": added.column("window_start"),
            "window_end": added.column("window_end_max"),
            "time": added.column("time_max"),
        }
        for part in parts:
            # Arrow gives a sum of decimals a type with more digits than Spark does, so cast the sum
            # to Spark's type.
            total = added.column(f"{part.column}_{part.function}")
            columns[part.column] = total.cast(part.type)
        return pa.table(columns).combine_chunks()

    def store_values(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the value of each store in combined rows."""
        values: list[pa.Array] = []
        for fields, scalar in zip(self.values, self.scalar, strict=True):
            columns = {name: rows.column(part.column) for name, part in fields}
            if scalar:
                (value,) = columns.values()
            else:
                value = pa.StructArray.from_arrays([*columns.values()], [*columns])
            values.append(value)
        return values


def _type(aggregate: Combinable, types: Mapping[str, str]) -> pa.DataType:
    """Return the type of an aggregate, as in Spark.

    Raises EngineError if JSON cannot represent the type exactly. The plan excludes such types, so
    this happens only if Spark's column has another type than planned.
    """
    argument = types.get(aggregate.column or "", "")
    kind = type_of_aggregate(aggregate.function, argument)
    if aggregate.function == "count" or (aggregate.function != "sum" and argument in _INTEGERS):
        return arrow_type(canonical(kind))
    if argument.startswith("decimal"):
        _, scale = precision_and_scale(argument)
        if scale <= PLAIN_SCALE:
            return arrow_type(canonical(kind))
    raise EngineError(
        f"Sluice cannot add up results of {aggregate.function} over values of the type {argument}.",
        next_step=f"Cast the argument of {aggregate.function} to a decimal with at most six "
        "decimal places.",
    )
