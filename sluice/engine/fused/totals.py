"""Adds up state in the shards, without state in Spark: each batch's totals are added to the totals in the shard.

This works if all aggregates of a job are counts, sums, minima and maxima of columns, because the next total then only
depends on the store's value. Tasks add up their own records and write each total as a state row's JSON. Each worker
adds it to the JSON from before the batch. Other jobs aggregate in Spark's stateful operator (`aggregate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property
from itertools import zip_longest
from typing import Any, Self, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.rows import STATE_KEY
from sluice.engine.fused.partial_aggregates import Combiner, Part
from sluice.plan import FusedJob
from sluice.sql.arrow_json import json_object, json_values
from sluice.sql.types import PLAIN_SCALE

COLUMNS = {**STATE_KEY, "value": "STRING", "position": "BINARY", "time": "BIGINT"}
"""Columns of the rows, which are the same as for the changes of global tables."""

Column: TypeAlias = "Part | tuple[tuple[str, Part], ...]"
"""A store's value: the aggregate itself, or fields that are aggregates."""

_EXACT = Context(prec=100)
"""Enough digits for any sum of decimals."""


@dataclass(frozen=True)
class Totals:
    """The task after partial aggregation: turns a group's partial aggregates into state rows to be added up."""

    groups: Mapping[int, tuple[Column, ...]]
    timed: frozenset[int]
    """Groups whose values end with the largest event time of their records, which is the time of output records."""

    @classmethod
    def of(cls, job: FusedJob, combiner: Combiner) -> Self | None:
        """The totals of a job; None if only Spark can compute its aggregates."""
        parts = combiner.parts
        if any(group.number not in parts for group in job.groups):
            return None
        if not all(_is_json_exact(part.type) for by_text in parts.values() for part in by_text.values()):
            return None
        groups = {
            group.number: tuple(
                parts[group.number][store_column.columns[0][1]]
                if store_column.scalar
                else tuple((name, parts[group.number][text]) for name, text in store_column.columns)
                for store_column in group.store_columns
            )
            for group in job.groups
        }
        return cls(groups, frozenset(sink.group for sink in job.table_sinks))

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """All rows of a record batch belong to the same group."""
        for batch in batches:
            group = batch.column("group_id")[0].as_py()
            values = [_json(batch, column) for column in self.groups[group]]
            values += [json_values(batch.column("time"))] if group in self.timed else []
            separated = [part for value in values for part in (value, ",")][:-1]
            columns = {name: batch.column(name) for name in (*STATE_KEY, "time")}
            columns["value"] = pc.binary_join_element_wise("[", *separated, "]", "")
            columns["position"] = pa.repeat(pa.scalar(b""), batch.num_rows)
            yield pa.RecordBatch.from_pydict({name: columns[name] for name in COLUMNS})

    def added(self, group: int, first: str, second: str) -> str:
        """The combined value of two values of a group."""
        how = self._how[group]
        # Earlier values also end with an event time if an output of the group has been removed since.
        parts = [_decode(value)[: len(how)] for value in (first, second)]
        return _encode([add(*values) for add, *values in zip_longest(how, *parts)]).decode()

    def time(self, value: str) -> int:
        """The largest event time in a value of a timed group."""
        time: int = _decode(value)[-1]
        return time

    @cached_property
    def _how(self) -> dict[int, list[Callable[[Any, Any], Any]]]:
        """Group → for each of its values, the function that combines two of them."""
        return {
            group: [_adding(column) for column in columns] + ([_larger] if group in self.timed else [])
            for group, columns in self.groups.items()
        }


_decode = msgspec.json.Decoder(list[Any], float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _is_json_exact(kind: pa.DataType) -> bool:
    """Whether JSON represents all values of a type exactly."""
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale <= PLAIN_SCALE))


def _json(batch: pa.RecordBatch, column: Column) -> pa.Array:
    if isinstance(column, Part):
        return json_values(batch.column(column.column))
    return json_object({name: batch.column(part.column) for name, part in column})


def _adding(column: Column) -> Callable[[Any, Any], Any]:
    if isinstance(column, Part):
        return _ADD[column.function]
    adds = [(name, _ADD[part.function]) for name, part in column]
    return lambda first, second: {name: add(first[name], second[name]) for name, add in adds}


def _sum(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first + second if isinstance(first, int) and isinstance(second, int) else _EXACT.add(first, second)


def _smaller(first: Any, second: Any) -> Any:
    return min((value for value in (first, second) if value is not None), default=None)


def _larger(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)


_ADD: dict[str, Callable[[Any, Any], Any]] = {"count": _sum, "sum": _sum, "min": _smaller, "max": _larger}
