"""Sends the results of a stage's operators to their targets on Arrow, in the stage's task, without Spark SQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.accounting import truth
from sluice.engine.batch.rows import ROW, SCHEMA
from sluice.engine.steps.arrow_steps import evaluate
from sluice.plan import Edge, OrderedJob
from sluice.plan.one_pass import NeedsSparkError, kind
from sluice.values import paths
from sluice.values.dialect import tree_of


@dataclass(frozen=True)
class Routes:
    """Creates the rows for the targets of a stage: operators of the next stages, stores and sinks."""

    edges: tuple[Edge, ...]

    @classmethod
    def of(cls, job: OrderedJob, stage: int) -> Self | None:
        """The routes after a stage; None if Spark must compute them.

        Arrow can only pass results on unchanged, so no step may follow the operators and no value may be re-encoded.
        """
        edges = tuple(job.feeds_of(stage))
        is_plain = all(edge.raw is not None and edge.key == "key" and edge.foreign is None for edge in edges)
        has_steps = bool(job.later_layers.get(stage)) or any(failure.stage == stage for failure in job.failures)
        if has_steps or not is_plain or any(edge.constant_path is None for edge in edges):
            return None
        try:
            for edge in edges:
                for sql in (edge.passed, edge.is_null):
                    kind(tree_of(sql), ROW)
        except NeedsSparkError:
            return None
        return cls(edges)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            emitted = truth(batch.column("emitted"))
            if not emitted.any():
                yield batch
                continue
            yield batch.filter(pa.array(~emitted))
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for edge in self.edges:
                passed = np.flatnonzero(truth(evaluate(tree_of(edge.passed), columns, batch.num_rows)))
                if len(passed):
                    yield _rows(edge, batch.take(pa.array(passed)))


def _rows(edge: Edge, results: pa.RecordBatch) -> pa.RecordBatch:
    """The rows that carry results to an edge's target."""
    count = results.num_rows
    columns = dict(zip(results.schema.names, results.columns, strict=True))
    around = paths.around(edge.path, rekeyed=edge.rekeyed)
    assert around is not None
    before, after = (pa.scalar(part, pa.binary()) for part in around)
    is_null = evaluate(tree_of(edge.is_null), columns, count)
    changed = {
        "target": pa.repeat(pa.scalar(edge.target, pa.int32()), count),
        "side": pa.repeat(pa.scalar(edge.side, pa.int32()), count),
        "emitted": pa.repeat(False, count),
        "value": pc.if_else(is_null, pa.scalar(None, pa.string()), columns["value"]),
        "path": pc.binary_join_element_wise(before, columns["path"], after, pa.scalar(b"", pa.binary())),
        **{name: pa.nulls(count, SCHEMA.field(name).type) for name in ("output", "foreign", "worker")},
    }
    return pa.RecordBatch.from_arrays([changed.get(name, columns[name]) for name in SCHEMA.names], schema=SCHEMA)
