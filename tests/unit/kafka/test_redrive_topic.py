"""The names of a pipeline's topics are the same wherever they are made."""

from __future__ import annotations

from sluice import Pipeline
from sluice.kafka.dead_letter_topic import topic_of
from sluice.kafka.redrive_topic import batches_of


def test_clients_of_kafka_name_the_topics_as_pipelines_do() -> None:
    pipeline = Pipeline("orders", workers=1)
    assert batches_of("orders") == pipeline.markers
    assert topic_of("orders") == pipeline.dead_letters
