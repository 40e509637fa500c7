"""The words pipeline on a real broker: two jobs, several partitions, two runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from sluice.engine.job import JobRun
from sluice.plan import plan
from sluice.samples.topics import read_topic
from sluice.settings import Settings
from sluice.state.ledger import Ledger
from sluice.testing.kafka import EmbeddedKafka
from sluice.topology import Pipeline, load_pipeline
from tests.engine.conftest import _cells

TOPICS = {"words": 2, "alphabet": 3, "alphabet_descriptions": 2}


@pytest.fixture
def words() -> Pipeline:
    return load_pipeline(Path(__file__).parents[2] / "spark_jobs", "words")


@pytest.fixture
def settings(kafka: EmbeddedKafka, tmp_path: Path) -> Settings:
    kafka.create_topics(TOPICS)
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    return Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": brokers})


def send(settings: Settings, topic: str, *records: tuple[str, str | None], at: int = 1_000) -> None:
    producer = Producer({**settings.kafka, "log_level": 0})
    for key, value in records:
        producer.produce(topic, key=key, value=value, timestamp=at)
    assert producer.flush(20) == 0


def held(settings: Settings, pipeline: Pipeline) -> dict[str, dict[Any, Any]]:
    """Every store, by key."""
    found: dict[str, dict[Any, Any]] = {}
    with Ledger.open(settings.ledger) as ledger:
        for store in ledger.stores(pipeline.name):
            cut = ledger.latest_cut(pipeline.name, store.job)
            assert cut is not None
            places = [worker.location for worker in ledger.workers(pipeline.name, store.job)]
            cells: Iterator[tuple[Any, Any]] = (one for place in places for one in _cells(place, store, cut.batch))
            found[store.name] = dict(cells)
    return found


def written(settings: Settings, topic: str) -> set[tuple[str, str]]:
    messages = read_topic(settings.kafka, topic)
    return {((message.key() or b"").decode(), (message.value() or b"").decode()) for message in messages}


def test_words_are_aggregated_and_joined_over_partitions_and_runs(
    words: Pipeline, spark: SparkSession, settings: Settings
) -> None:
    def run() -> None:
        for job in plan(words).jobs:
            JobRun(spark, job, settings).run()

    send(settings, "words", ("a", "Apple"), ("b", "Bus"), ("c", "C3PO"))
    send(settings, "alphabet_descriptions", ("A", "the first"), at=500)
    send(settings, "alphabet", ("A", "Apple"), ("A", "Alpha"), ("B", "Bus"))
    run()
    send(settings, "words", ("b", None))
    send(settings, "alphabet", ("A", "Ant"), ("B", "Baby"), at=2_000)
    run()

    stores = held(settings, words)
    assert stores["words_latest"] == {"a": "Apple", "c": "C3PO"}
    assert stores["words_clean"] == {"a": "Apple"}
    assert stores["letters_count"] == {"A": 3, "B": 2}
    assert stores["letters_joined"] == {"A": "Apple-Alpha-Ant", "B": "Bus-Baby"}
    assert stores["letters"]["A"]["runningCount"] == 3
    assert sorted(stores["letters"]["A"]["valueList"]) == ["Alpha", "Ant", "Apple"]
    described = {("A", json.dumps({"left": word, "right": "the first"}, separators=(",", ":"))) for word in
                 ("Apple", "Alpha", "Ant")}  # fmt: skip
    assert written(settings, "words_with_description_inner") == described
    assert written(settings, "words_near_description_inner") == described
    alone = {("B", json.dumps({"left": word, "right": None}, separators=(",", ":"))) for word in ("Bus", "Baby")}
    assert written(settings, "words_with_description_left") == described | alone
    last = ("A", json.dumps({"left": "Ant", "right": "the first"}, separators=(",", ":")))
    assert last in written(settings, "letters_with_description_inner")
