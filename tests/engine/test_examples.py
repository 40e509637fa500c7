"""The example pipelines on a real broker: every store and output equals the results that plain Python computes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sluice.engine.run.job_run import JobRun
from sluice.errors import EngineError, StateError
from sluice.examples import load_example
from sluice.examples.example import (
    START_MS,
    Example,
    create_example_topics,
    decoded,
    produce_samples,
    read_samples,
)
from sluice.local.broker import EmbeddedKafka
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import StoreInfo
from sluice.state.remote.opening import open_shard
from sluice.topology import Pipeline, load_pipeline

COUNT = 150
PIPELINES = Path(__file__).parents[2] / "spark_jobs"


@pytest.fixture
def settings(kafka: EmbeddedKafka, tmp_path: Path) -> Settings:
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    return Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": brokers})


def run(spark: SparkSession, pipeline: Pipeline, settings: Settings) -> None:
    """Run a pipeline on its current generation."""
    job = plan(pipeline).job
    with Ledger.open(settings.ledger) as ledger:
        generation = ledger.generations.current_number(pipeline.name) or 1
    JobRun(spark, job, settings, generation).run()


def held(settings: Settings, pipeline: Pipeline) -> dict[str, dict[Any, Any]]:
    """The values of every store, by key, or by key and the window's start and end."""
    results: dict[str, dict[Any, Any]] = {}
    with Ledger.open(settings.ledger) as ledger:
        for store in ledger.generations.stores(pipeline.name):
            snapshot = ledger.snapshots.latest(pipeline.name)
            assert snapshot is not None
            places = [worker.location for worker in ledger.generations.workers(pipeline.name)]
            results[store.name] = {
                key: value
                for place in places
                for key, value in _entries(place, store, snapshot.batch)
            }
    return results


def _entries(location: str, store: StoreInfo, batch: int) -> Iterator[tuple[Any, Any]]:
    with open_shard(location) as shard:
        for row in shard.scan(store.group_id, batch, limit=1_000_000):
            key = (row.key, row.window_start, row.window_end) if store.kind == "window" else row.key
            yield key, decoded((row.value or "").encode())[store.store_column]


def differences(one: Example, settings: Settings) -> dict[str, int]:
    """The differences between the pipeline's results and those that its topics' records imply."""
    expected = one.expected(read_samples(settings.kafka, one))
    actual = one.actual(settings.kafka, expected)
    for store, entries in held(settings, load_pipeline(PIPELINES, one.name)).items():
        actual.stores[store] = one.actual_store(store, entries.items())
    return expected.differences(actual)


# tests/integration runs the orders pipeline end to end.
@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.heavy) for name in ("greetings", "pos", "windows")),
        "words",
        "products",
    ],
)
def test_stores_and_outputs_equal_those_of_plain_python_and_are_restored_after_a_loss(
    name: str, run_session: SparkSession, settings: Settings
) -> None:
    one, pipeline = load_example(name), load_pipeline(PIPELINES, name)
    create_example_topics(settings.kafka, one)
    samples = list(one.samples(COUNT, 7, START_MS))
    for part in (samples[: COUNT // 2], samples[COUNT // 2 :]):
        produce_samples(settings.kafka, one, part)
        run(run_session, pipeline, settings)
    assert differences(one, settings) == {}

    if name == "windows":
        before = held(settings, pipeline)
        for shard in settings.home.rglob("worker-*.sqlite*"):
            shard.unlink()
        with pytest.raises((EngineError, StateError), match="rebuild"):
            run(run_session, pipeline, settings)
        Rebuild(run_session, plan(pipeline).job, settings).run()
        assert held(settings, pipeline) == before, "even if the event times are from the wall clock"
        assert differences(one, settings) == {}, "the output is not written twice"
