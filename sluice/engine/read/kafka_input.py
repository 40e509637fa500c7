"""Kafka topics as a streaming DataFrame."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from sluice.engine.batch.job_topics import partition_counts
from sluice.engine.batch.record_headers import Place
from sluice.engine.read.java_settings import java_settings
from sluice.engine.read.reread_headers import Headers, headers_at
from sluice.engine.read.stream_reader import RECORD

_KAFKA_OPTIONS = {
    "startingOffsets": "earliest",
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    # A longer wait for records at the end of the log would delay every batch.
    "kafka.fetch.max.wait.ms": "10",
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": "16777216",
    "kafka.fetch.max.bytes": "67108864",
    # If the broker is down, the run ends after this time; the next run continues.
    "kafkaConsumer.pollTimeoutMs": "60000",
    "kafka.default.api.timeout.ms": "30000",
}


@dataclass(frozen=True)
class KafkaInput:
    """The topics of a cluster. Each task reads one partition in offset order."""

    spark: SparkSession
    kafka: Mapping[str, str]

    interleaved = False

    def partitions(self, topics: Sequence[str]) -> dict[str, int]:
        return partition_counts(self.kafka, topics)

    def headers_at(self, places: Sequence[Place]) -> dict[Place, Headers]:
        return headers_at(self.kafka, places)

    def read(self, topics: Sequence[str]) -> DataFrame:
        """The topics' committed records."""
        settings = java_settings(self.kafka)
        options = {f"kafka.{name}": value for name, value in settings.items()}
        # A setting of the author must not replace an option on which exactly-once reading depends.
        options |= _KAFKA_OPTIONS
        reader = self.spark.readStream.format("kafka").options(**options)
        return reader.option("subscribe", ",".join(topics)).load().selectExpr(*RECORD)
