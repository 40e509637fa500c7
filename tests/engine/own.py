"""The repository's own pipelines on the real broker: their topics by name, their stores as a reader would see them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sluice.engine.job.run import JobRun
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.topics import read_topic
from sluice.topology import Pipeline
from tests.engine.conftest import _state_rows


def send(settings: Settings, topic: str, *records: tuple[str, str | None], at: int = 1_000) -> None:
    producer = Producer({**settings.kafka, "log_level": 0})
    for key, value in records:
        producer.produce(topic, key=key, value=value, timestamp=at)
    assert producer.flush(20) == 0


def run(spark: SparkSession, pipeline: Pipeline, settings: Settings) -> None:
    """Run every job, on the generation that readers see."""
    for job in plan(pipeline).jobs:
        with Ledger.open(settings.ledger) as ledger:
            generation = ledger.jobs.generation(pipeline.name, job.name) or 1
        JobRun(spark, job, settings, generation).run()


def held(settings: Settings, pipeline: Pipeline) -> dict[str, dict[Any, Any]]:
    """Every store, by key."""
    found: dict[str, dict[Any, Any]] = {}
    with Ledger.open(settings.ledger) as ledger:
        for store in ledger.jobs.stores(pipeline.name):
            snapshot = ledger.snapshots.latest(pipeline.name, store.job)
            assert snapshot is not None
            places = [worker.location for worker in ledger.jobs.workers(pipeline.name, store.job)]
            found[store.name] = {
                key: value for place in places for key, value in _state_rows(place, store, snapshot.batch)
            }
    return found


def written(settings: Settings, topic: str) -> set[tuple[str, str]]:
    messages = read_topic(settings.kafka, topic)
    return {((message.key() or b"").decode(), (message.value() or b"").decode()) for message in messages}
