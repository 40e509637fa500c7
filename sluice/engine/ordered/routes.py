"""Sends the results of a stage's operators to their targets on Arrow, in the stage's task, without Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import truth
from sluice.engine.batch.json_arrow import array_of_json
from sluice.engine.batch.rows import ROW, SCHEMA
from sluice.engine.ordered.stages import Stages, kinds_by_name
from sluice.engine.steps.arrow_steps import ArrowSteps
from sluice.plan import Edge
from sluice.plan.one_pass import NeedsSparkError, types_of
from sluice.sql.arrow_types import arrow_type
from sluice.values import paths
from sluice.values.sql_types import canonical


@dataclass(frozen=True)
class Result:
    """Results of an operator that the steps behind it read."""

    operator: int
    column: str
    type: pa.DataType


@dataclass(frozen=True)
class Routes:
    """Creates the rows for the targets of a stage: operators of the next stages, stores and sinks."""

    results: tuple[Result, ...]
    steps: ArrowSteps
    """The steps behind the stage's operators, and the columns of the edges to their targets."""
    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, stages: Stages, number: int) -> Self:
        """The routes after a stage. Raises NeedsSparkError if Spark must compute them."""
        job = stages.job
        edges = tuple(job.feeds_of(number))
        types: dict[str, str] = dict(ROW)
        results = []
        for operator, column in stages.results(number):
            if not stages.types[column]:
                raise NeedsSparkError(f"results of unknown type: {operator.step}")
            types[column] = canonical(stages.types[column])
            results.append(Result(operator.number, column, arrow_type(types[column])))
        layers = job.later_layers.get(number, ())
        before, types = types, types_of(layers, types)
        if any(failure.stage == number for failure in job.failures):
            raise NeedsSparkError("a step can fail")
        if any(edge.constant_path is None for edge in edges):
            raise NeedsSparkError("turns one result into several")
        of_edges = stages.edges(number, kinds_by_name(types))
        types_of(of_edges, types)
        return cls(tuple(results), ArrowSteps((*layers, *of_edges), before), edges)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            emitted = truth(batch.column("emitted"))
            if not emitted.any():
                yield batch
                continue
            yield batch.filter(pa.array(~emitted))
            results = batch.filter(pa.array(emitted))
            columns = self._columns(results)
            for edge in self.edges:
                passed = np.flatnonzero(truth(columns[edge.column]))
                if len(passed):
                    yield _rows(edge, results, columns, pa.array(passed))

    def _columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """All columns of the edges."""
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for result in self.results:
            texts = pc.if_else(pc.equal(columns["target"], result.operator), columns["value"], None)
            columns[result.column] = array_of_json(texts, result.type)
        return self.steps.columns_from(columns, batch.num_rows)


def _rows(edge: Edge, results: pa.RecordBatch, columns: dict[str, pa.Array], passed: pa.Array) -> pa.RecordBatch:
    """The rows that carry results to an edge's target."""
    count = len(passed)
    around = paths.around(edge.path, rekeyed=edge.rekeyed)
    assert around is not None
    before, after = (pa.scalar(part, pa.binary()) for part in around)
    base = results.column("path").take(passed)
    changed = {
        "target": pa.repeat(pa.scalar(edge.target, pa.int32()), count),
        "side": pa.repeat(pa.scalar(edge.side, pa.int32()), count),
        "emitted": pa.repeat(False, count),
        "key": columns[edge.key_column].take(passed),
        "value": columns[edge.value_column].take(passed),
        "path": pc.binary_join_element_wise(before, base, after, pa.scalar(b"", pa.binary())),
        **{name: pa.nulls(count, SCHEMA.field(name).type) for name in ("output", "foreign", "worker")},
    }
    if edge.foreign is not None:
        changed["foreign"] = columns[edge.foreign_column].take(passed)
    kept = results.take(passed)
    return pa.RecordBatch.from_arrays([changed.get(name, kept.column(name)) for name in SCHEMA.names], schema=SCHEMA)
