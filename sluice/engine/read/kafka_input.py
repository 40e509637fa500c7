"""Kafka topics as the input of a streaming query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.read.kafka_records import KafkaRecords
from sluice.engine.read.reread_headers import Headers, headers_at
from sluice.kafka.brokers import with_certificates
from sluice.values.record_places import Place

MOST_TASKS = 64
_TASKS_PER_CORE = 4


@dataclass(frozen=True)
class KafkaInput:
    """Reads topics of one Kafka cluster.

    Each task reads one or more partitions, one after the other, in offset order.
    """

    spark: SparkSession
    kafka: Mapping[str, str] = field(repr=False)

    interleaved = False

    def headers_at(self, places: Sequence[Place]) -> dict[Place, Headers]:
        return headers_at(self.kafka, places)

    def read(
        self, partitions: Mapping[str, int], task: Chain, columns: StructType | str
    ) -> DataFrame:
        """Return the rows that the task's steps compute from the batch's committed records."""
        # A topic may have thousands of partitions, and each task has a cost, even if it has no
        # records.
        most = max(MOST_TASKS, _TASKS_PER_CORE * self.spark.sparkContext.defaultParallelism)
        count = min(sum(partitions.values()), most)
        records = KafkaRecords(with_certificates(self.kafka), frozenset(partitions), count)
        return self._task_numbers(count).mapInArrow(Chain((records, task)).__call__, columns)

    def _task_numbers(self, count: int) -> DataFrame:
        """Return a stream of task numbers.

        Each of a batch's `count` tasks gets one number, which tells the task the ranges of the
        batch's plan that it reads. Executors therefore need no file of the driver.
        """
        options = {"rowsPerBatch": str(count), "numPartitions": str(count)}
        return (
            self.spark.readStream.format("rate-micro-batch")
            .options(**options)
            .load()
            .select("value")
        )
