"""The words pipeline on a real broker: two jobs, several partitions, two runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sluice.engine.job.rebuild import Rebuild
from sluice.plan import plan
from sluice.settings import Settings
from sluice.testing.kafka import EmbeddedKafka
from sluice.topology import Pipeline, load_pipeline
from tests.engine.own import held, run, send, written

TOPICS = {"words": 2, "alphabet": 3, "alphabet_descriptions": 2}


@pytest.fixture
def words() -> Pipeline:
    return load_pipeline(Path(__file__).parents[2] / "spark_jobs", "words")


@pytest.fixture
def settings(kafka: EmbeddedKafka, tmp_path: Path) -> Settings:
    kafka.create_topics(TOPICS)
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    return Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": brokers})


def test_words_are_aggregated_and_joined_over_partitions_and_runs_and_come_back_when_lost(
    words: Pipeline, spark: SparkSession, settings: Settings
) -> None:
    send(settings, "words", ("a", "Apple"), ("b", "Bus"), ("c", "C3PO"))
    send(settings, "alphabet_descriptions", ("A", "the first"), at=500)
    send(settings, "alphabet", ("A", "Apple"), ("A", "Alpha"), ("B", "Bus"))
    run(spark, words, settings)
    send(settings, "words", ("b", None))
    send(settings, "alphabet", ("A", "Ant"), ("B", "Baby"), at=2_000)
    run(spark, words, settings)

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

    for shard in settings.home.rglob("worker-*.sqlite*"):
        shard.unlink()
    topics = {job.name: {topic: written(settings, topic) for topic in job.outputs} for job in plan(words).jobs}
    for job in plan(words).jobs:
        Rebuild(spark, job, settings).run()
        assert {topic: written(settings, topic) for topic in job.outputs} == topics[job.name], "nothing new is written"
    assert held(settings, words) == stores, "what was lost is built anew"
    send(settings, "alphabet", ("A", "Arm"), at=3_000)
    run(spark, words, settings)
    assert held(settings, words)["letters_joined"]["A"] == "Apple-Alpha-Ant-Arm"
