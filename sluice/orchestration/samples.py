"""What the DAG of the sample orders needs beyond the Kafka provider's operators."""

from __future__ import annotations

from sluice.orchestration.connections import KAFKA, kafka_config


def make_topics() -> None:
    """Make the topics of the orders pipeline that are missing."""
    from sluice.samples.topics import create_topics

    for topic in create_topics(kafka_config(KAFKA)):
        print(f"made topic {topic}")
