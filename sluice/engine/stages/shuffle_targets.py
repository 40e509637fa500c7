"""Makes rows of a stage's results for their targets: operators, stores and sinks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sluice.engine.batch.accounting import boolean_mask
from sluice.engine.batch.rejections import rejection_sql
from sluice.engine.batch.row_schemas import REJECTED, ROW, SCHEMA
from sluice.engine.stages.job_stages import KnownTypes, kinds_by_name, results_of
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.engine.steps.python_calls import functions_of
from sluice.plan import Column, Edge, Failure, Job
from sluice.plan.arrow_support import UNDECLARED, NeedsSparkError, types_of
from sluice.sql.arrow_from_json import array_of_json
from sluice.sql.arrow_types import arrow_type, has_arrow_type
from sluice.values import row_order
from sluice.values.sql_types import canonical


@dataclass(frozen=True)
class StageResult:
    """The column with an operator's results, which the steps after the operator read."""

    operator: int
    column: str
    type: pa.DataType
    output: str | None
    """The processor's output to which these results go; None if they are all results of the
    operator."""


@dataclass(frozen=True)
class ShuffleTarget:
    """How results become rows for one target. The fields of type str are names of columns."""

    target: int
    side: int | None
    passed: str
    key: str
    value: str
    foreign: str | None
    path: str | tuple[bytes, bytes]
    """The name of the column with the path, or two texts: the bytes before and after the result's
    path."""

    @classmethod
    def of(cls, edge: Edge) -> Self:
        foreign = None if edge.foreign is None else edge.foreign_column
        path = edge.path_column or row_order.bytes_around_base(edge.path, rekeyed=edge.rekeyed)
        assert path is not None, "an edge whose path differs from row to row has a column for it"
        return cls(
            edge.target,
            edge.side,
            edge.column,
            edge.key_column,
            edge.value_column,
            foreign,
            path,
        )

    @classmethod
    def of_failure(cls, number: int) -> Self:
        """Return the target for a step's rejected rows.

        `number` is the failure's number in the stage.
        """
        name = f"failure{number}"
        return cls(REJECTED, None, name, f"{name}_key", f"{name}_value", None, (b"", b""))

    def failure_columns(self, failure: Failure) -> list[Column]:
        """Return the columns of the rows that a step rejects."""
        step = failure.step.number
        value = rejection_sql(step, failure.error, failure.value)
        return [
            Column(self.passed, failure.once, step),
            Column(self.key, f"IF({failure.once}, {failure.key}, NULL)", step),
            Column(self.value, f"IF({failure.once}, {value}, NULL)", step),
        ]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that the target needs besides the columns of the results' rows."""
        own = [self.passed, self.key, self.value]
        if self.foreign is not None:
            own.append(self.foreign)
        if isinstance(self.path, str):
            own.append(self.path)
        return tuple(own)

    def rows(self, columns: dict[str, pa.Array]) -> pa.RecordBatch | None:
        """Return the rows for the target, or None if no result goes there."""
        passed = np.flatnonzero(boolean_mask(columns[self.passed]))
        count = len(passed)
        if not count:
            return None
        if count == len(columns[self.passed]):
            indices = None
        else:
            indices = pa.array(passed)

        def chosen(name: str) -> pa.Array:
            # In most batches, all results go to the same target, so do not copy them.
            if indices is None:
                return columns[name]
            return columns[name].take(indices)

        changed = {
            "target": pa.repeat(pa.scalar(self.target, pa.int32()), count),
            "emitted": pa.repeat(False, count),
            "key": chosen(self.key),
            "value": chosen(self.value),
        }
        match self.path:
            case str():
                changed["path"] = chosen(self.path)
            case (b"", b""):
                changed["path"] = chosen("path")
            case before, after:
                parts = before, chosen("path"), after
                changed["path"] = pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary()))
        for name in ("output", "foreign", "undecided", "worker"):
            changed[name] = pa.nulls(count, SCHEMA.field(name).type)
        if self.side is not None:
            changed["side"] = pa.repeat(pa.scalar(self.side, pa.int32()), count)
        if self.foreign is not None:
            changed["foreign"] = chosen(self.foreign)
        arrays: list[pa.Array] = []
        for name in SCHEMA.names:
            if name in changed:
                arrays.append(changed[name])
            else:
                arrays.append(chosen(name))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


@dataclass(frozen=True)
class RowsForTargets:
    """Makes the rows for the targets of a stage from the columns that Spark SQL has computed."""

    targets: tuple[ShuffleTarget, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            emitted = boolean_mask(batch.column("emitted"))
            if not emitted.any():
                yield batch.select(SCHEMA.names)
                continue
            if not emitted.all():
                yield batch.filter(pa.array(~emitted)).select(SCHEMA.names)
                batch = batch.filter(pa.array(emitted))
            columns = self._columns(batch)
            for target in self.targets:
                if (rows := target.rows(columns)) is not None:
                    yield rows

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Return the batch's columns, and the columns that the rows for the targets need."""
        return dict(zip(batch.schema.names, batch.columns, strict=True))


def targets_of(job: Job, number: int) -> tuple[tuple[ShuffleTarget, ...], tuple[Column, ...]]:
    """Return a stage's targets, and the columns that they need besides the edges' columns."""
    targets: list[ShuffleTarget] = []
    columns: list[Column] = []
    for edge in job.edges_from(number):
        target = ShuffleTarget.of(edge)
        targets.append(target)
        if isinstance(target.path, str):
            columns.append(Column(target.path, edge.path_from("path"), edge.target))
    failures = [failure for failure in job.failures if failure.stage == number]
    for place, failure in enumerate(failures):
        target = ShuffleTarget.of_failure(place)
        targets.append(target)
        columns += target.failure_columns(failure)
    return tuple(targets), tuple(columns)


@dataclass(frozen=True)
class ShuffleTargets(RowsForTargets):
    """Makes the rows for a stage's targets in the stage's task, with Arrow instead of Spark SQL."""

    results: tuple[StageResult, ...]
    steps: ArrowSteps
    """Computes the steps after the stage's operators, and the columns that the targets' rows
    need."""

    @classmethod
    def of(cls, number: int, known: KnownTypes) -> tuple[Self, KnownTypes]:
        """Return the targets after a stage, and the known types with the types of its edges added.

        `known` has the types of the stage's results. Raises NeedsSparkError if Spark must compute
        the rows for the targets.
        """
        job = known.job
        types: dict[str, str] = dict(ROW)
        results: list[StageResult] = []
        for operator, column in results_of(job, number):
            if not known.results[column]:
                raise NeedsSparkError(f"{operator.step}: {UNDECLARED}")
            types[column] = canonical(known.results[column])
            if not has_arrow_type(types[column]):
                raise NeedsSparkError(f"{operator.step}: a value of type {types[column]}")
            kind, output = arrow_type(types[column]), operator.output_of(column)
            results.append(StageResult(operator.number, column, kind, output))
        steps = job.later_layers.get(number, ())
        edges, known = known.with_edges(number, kinds_by_name(types_of(steps, types)))
        targets, columns = targets_of(job, number)
        layers = (*steps, *edges, columns)
        # If Arrow cannot compute a column, this call raises NeedsSparkError now, not later in a
        # task.
        types_of(layers, types)
        arrow_steps = ArrowSteps(layers, types, functions_of(job))
        return cls(targets, tuple(results), arrow_steps), known

    @override
    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        columns = super()._columns(batch)
        for result in self.results:
            is_result = pc.equal(columns["target"], result.operator)
            if result.output is not None:
                is_result = pc.and_(is_result, pc.equal(columns["output"], result.output))
            texts = pc.if_else(is_result, columns["value"], None)
            columns[result.column] = array_of_json(texts, result.type)
        return self.steps.columns_from(columns, batch.num_rows)
