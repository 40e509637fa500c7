"""Turns the records of combinable aggregates into state rows, and adds up state rows.

A state row's JSON contains all that is needed to add later records to it. A task aggregates its own
records and writes the totals of each key and window as JSON. The worker that owns the key adds
these totals to the state row in its shard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import zip_longest
from typing import Any, Self

import msgspec
import pyarrow as pa

from sluice.engine.batch.row_schemas import rows
from sluice.engine.combine.partial_aggregates import (
    WINDOWED,
    CombineTwo,
    PartialAggregate,
    PartialAggregates,
)
from sluice.plan import Job, StoreColumn
from sluice.sql.aggregate_types import type_of_aggregate
from sluice.sql.arrow_to_json import json_array
from sluice.support.arrays import columns_named
from sluice.values.partial_results import larger
from sluice.values.sql_types import compact, struct_type

_COMBINED_RECORDS = 50_000
"""A task waits for at least this many new records before it combines them."""
_MOST_ROWS = 150_000
"""A task makes state rows once a group has this many combined rows in the task."""
_SHARE_OF_OTHERS = 0.8
"""A task also makes state rows if the records that it has just combined have added many rows: at
least this share of the number of earlier rows. In this case, few new records have the key and
window of an earlier record."""


@dataclass(frozen=True)
class Totals:
    """Makes and adds up the state rows of a job's groups."""

    groups: Mapping[int, PartialAggregates]
    timed: frozenset[int]
    """The groups with outputs. Each of their values ends with the largest event time of its
    records, which becomes the output record's time."""

    @classmethod
    def of(cls, job: Job, types: Mapping[str, str]) -> Self:
        """Return the totals of a job.

        `types` are the SQL types of the columns that its groups read.
        """
        groups: dict[int, PartialAggregates] = {}
        for group in job.groups:
            groups[group.number] = PartialAggregates.of(group.store_columns, types)
        return cls(groups, frozenset(sink.group for sink in job.change_sinks))

    def rows(self, group: int, combined: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield the state rows of a group's combined records."""
        aggregates = self.groups[group]
        for batch in combined.to_batches():
            values = aggregates.store_values(batch)
            if group in self.timed:
                values.append(batch.column("time"))
            columns = columns_named(batch, WINDOWED)
            yield rows(batch.num_rows, columns | {"target": group, "value": json_array(values)})

    def combine(self, group: int, first: str, second: str) -> str:
        """Combine two values of a group into one."""
        combiners = self._combiners[group]
        # Values of earlier batches end with an event time if the group had an output in these
        # batches. If the group has no output now, cut off the time.
        first_values = _decode(first)[: len(combiners)]
        second_values = _decode(second)[: len(combiners)]
        # Values of batches before the group had an output have no event time; `zip_longest` adds
        # None.
        triples = zip_longest(combiners, first_values, second_values)
        combined = [combine(left, right) for combine, left, right in triples]
        return _encode(combined).decode()

    def time(self, value: str) -> int:
        """Return the largest event time: the last element of a timed group's value."""
        time: int = _decode(value)[-1]
        return time

    @cached_property
    def _combiners(self) -> dict[int, list[CombineTwo]]:
        """Group → the functions that combine two values at each place in a state row."""
        combiners: dict[int, list[CombineTwo]] = {}
        for group, aggregates in self.groups.items():
            of_group = combiners[group] = []
            for fields, scalar in zip(aggregates.values, aggregates.scalar, strict=True):
                of_group.append(_store_combiner(fields, scalar=scalar))
            if group in self.timed:
                of_group.append(larger)
        return combiners


_decode = msgspec.json.Decoder(list[Any], float_hook=Decimal).decode
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _store_combiner(fields: Sequence[tuple[str, PartialAggregate]], *, scalar: bool) -> CombineTwo:
    """Return the function that combines two values of a store with these fields."""
    if scalar:
        return fields[0][1].combine_two
    combiners = [(name, part.combine_two) for name, part in fields]

    def combine_objects(first: Any, second: Any) -> dict[str, Any]:
        return {name: combine(first[name], second[name]) for name, combine in combiners}

    return combine_objects


@dataclass
class _OfGroup:
    """The records of one group in a task.

    Most of them are combined in `rows`, and the newest are still `waiting`.
    """

    aggregates: PartialAggregates
    rows: pa.Table | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    count: int = 0
    """How many records are waiting."""

    def add(self, records: pa.RecordBatch) -> bool:
        """Keep records. Return whether it is time to make state rows of all records."""
        self.waiting.append(records)
        self.count += records.num_rows
        # Records are combined before the task has read all of them, so that it never holds the
        # records of a whole backlog in memory. They are combined again only when as many records
        # wait as there are combined rows. So the work for a record does not grow with the number of
        # rows.
        earlier = 0
        if self.rows is not None:
            earlier = self.rows.num_rows
        if self.count < max(_COMBINED_RECORDS, earlier):
            return False
        combined = self.combine().num_rows
        # Records arrive roughly in time order, so short windows soon get no more records. Their
        # rows need not be combined again.
        are_others = earlier > 0 and combined - earlier >= _SHARE_OF_OTHERS * earlier
        return combined >= _MOST_ROWS or are_others

    def combine(self) -> pa.Table:
        """Combine all records, and return the rows."""
        if self.waiting:
            self.rows = self.aggregates.combine(pa.Table.from_batches(self.waiting), self.rows)
            self.waiting, self.count = [], 0
        assert self.rows is not None
        return self.rows


@dataclass
class WindowedRecords:
    """The records of one task, with their windows, that have not become state rows yet."""

    totals: Totals
    groups: dict[int, _OfGroup] = field(default_factory=dict)

    def add_records(self, group: int, records: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Keep a group's records, and yield its state rows once there are many."""
        if records.num_rows:
            of_group = self.groups.setdefault(group, _OfGroup(self.totals.groups[group]))
            if of_group.add(records):
                yield from self._state_rows(group)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the state rows of all records that are left."""
        for group in [*self.groups]:
            yield from self._state_rows(group)

    def _state_rows(self, group: int) -> Iterator[pa.RecordBatch]:
        yield from self.totals.rows(group, self.groups.pop(group).combine())


def value_types(job: Job, types: Mapping[str, str]) -> dict[str, str]:
    """Return the SQL types of the stores' values, given the types of the columns they read."""
    return {store.store: _value_type(store, types) for store in _stores(job)}


def _stores(job: Job) -> Iterator[StoreColumn]:
    for group in job.groups:
        yield from group.store_columns


def _value_type(store: StoreColumn, types: Mapping[str, str]) -> str:
    fields: dict[str, str] = {}
    for name, aggregate in store.columns:
        argument = types.get(aggregate.column or "", "")
        fields[name] = type_of_aggregate(aggregate.function, argument)
    if store.scalar:
        (kind,) = fields.values()
        return kind
    return compact(struct_type(fields))


def input_types(job: Job, types: Mapping[str, str]) -> dict[int, str]:
    """Return number of a store's step → the SQL types of the columns that the store reads."""
    inputs: dict[int, str] = {}
    for store in _stores(job):
        inputs[store.step] = ", ".join([types[name] for name in store.inputs])
    return inputs
