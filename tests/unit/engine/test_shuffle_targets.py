"""How the results of operators reach stores, topics and later operators without Spark SQL."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.batch.row_schemas import SCHEMA, rows
from sluice.engine.stages.job_stages import first_edges, kinds_by_name
from sluice.engine.stages.shuffle_targets import ShuffleTargets
from sluice.engine.stages.stage_output import StageOperator, StageOutput
from sluice.plan import Job, plan
from sluice.plan.arrow_support import types_of, types_read
from sluice.plan.planned_operators import STORE


class Sale(Struct):
    shop: str
    amount: int


def latest(total: int, sale: Any) -> int:
    return total + int(sale["amount"])


def job(*, topic: bool = False, step: bool = False) -> Job:
    """A sum by shop in a store, also written to a topic, or filtered first."""
    pipeline = Pipeline("p")
    sums = (
        pipeline.stream("sales", value=Sale)
        .group_by("shop")
        .aggregate(int, latest, store="sums", returns=int)
    )
    if topic:
        sums.to_stream().to("changes")
    if step:
        sums.to_stream().filter("value > 3").to("large")
    return plan(pipeline).job


def routes_in(planned: Job) -> ShuffleTargets:
    """The routes after the job's only stage."""
    read = types_of(planned.layers, types_read(planned))
    _, known = first_edges(planned, kinds_by_name(read))
    targets, _ = ShuffleTargets.of(1, known.with_results(1))
    return targets


def results(number: int, *given: tuple[str, str | None, bool]) -> pa.RecordBatch:
    """Results of an operator: key, value, and whether it is the old value of a change."""
    keys, values, old = zip(*given, strict=True)
    columns: dict[str, Any] = {
        "target": number,
        "emitted": True,
        "output": "output",
        "path": b"\x00",
    }
    columns |= {"sequence": pa.array(range(len(given))), "origin": 0, "time": 5}
    return rows(
        len(given),
        columns | {"key": pa.array(keys), "value": pa.array(values), "old": pa.array(old)},
    )


def test_a_result_reaches_the_store_and_the_topic_without_its_old_value() -> None:
    planned = job(topic=True)
    (operator,), (sink,) = planned.operators, planned.operator_sinks
    routes = routes_in(planned)
    waiting = rows(1, {"target": 99, "key": "k", "sequence": 7, "origin": 0, "time": 1})
    given = pa.concat_batches(
        [results(operator.number, ("a", "1", True), ("a", "2", False), ("b", None, False)), waiting]
    )
    routed = pa.Table.from_batches(routes(iter([given])), SCHEMA).to_pylist()
    assert not any(row["emitted"] for row in routed)
    by_target = {
        target: [
            (row["key"], row["value"]) for row in routed if (row["target"], row["side"]) == target
        ]
        for target in ((operator.number, STORE), (sink.number, 0), (99, 0))
    }
    changed = [("a", "2"), ("b", None)]
    assert by_target == {
        (operator.number, STORE): changed,
        (sink.number, 0): changed,
        (99, 0): [("k", None)],
    }
    assert len(routed) == 5
    assert all(row["output"] is None and row["worker"] is None for row in routed)


def test_the_steps_after_an_operator_read_its_results() -> None:
    planned = job(step=True)
    (operator,), (sink,) = planned.operators, planned.operator_sinks
    given = results(operator.number, ("a", "3", False), ("b", "4", False), ("c", None, False))
    routed = pa.Table.from_batches(routes_in(planned)(iter([given])), SCHEMA).to_pylist()
    assert [(row["key"], row["value"]) for row in routed if row["target"] == sink.number] == [
        ("b", "4")
    ]


def test_only_the_last_result_of_a_key_leaves_an_operator_that_only_feeds_its_store() -> None:
    planned = job()
    (operator,) = planned.operators
    assert planned.store_only_operators == {operator.number}
    output = StageOutput(
        operator=StageOperator(operator, lambda: None),  # type: ignore[arg-type, return-value]
        only_stored=planned.store_only_operators,
    )
    for sequence, (key, value) in enumerate([("a", "1"), ("b", "2"), ("a", "3")]):
        output.start_row((sequence, 0, b"\x00"), 0)
        output.emit(key, value, 0)
    (batch,) = output.take()
    assert [(row["key"], row["value"], row["sequence"]) for row in batch.to_pylist()] == [
        ("b", "2", 1),
        ("a", "3", 2),
    ]


def test_every_result_leaves_an_operator_whose_changes_are_written_to_a_topic_or_read_by_a_step() -> (
    None
):
    assert job(topic=True).store_only_operators == set()
    assert job(step=True).store_only_operators == set()
