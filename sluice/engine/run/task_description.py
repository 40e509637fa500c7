"""Describes the tasks that Spark runs for a batch, for `sluice explain --master`."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pyspark.sql import SparkSession

from sluice.engine.batch.job_topics import partition_counts
from sluice.engine.batch.storage import Storage
from sluice.engine.read.kafka_input import KafkaInput
from sluice.engine.run.streaming_query import JobQuery
from sluice.plan import Job
from sluice.settings import Settings
from sluice.spark_submit import is_local
from sluice.state.ledger.ledger import Ledger
from sluice.state.shard.addresses import shown
from sluice.values.phrases import counted

_JOIN_SECONDS = 3.0
"""How long to wait for further executors after the first executor has started."""


def describe_tasks(spark: SparkSession, job: Job, settings: Settings) -> str:
    """Describe the topics' partitions, the tasks of each step, their cores, and the shards.

    If there are more tasks than cores, some tasks wait. Raise TopologyError in the same cases as a
    run.
    """
    with Ledger.open(settings.ledger) as ledger:
        generation = ledger.generations.current_number(job.pipeline.name) or 1
        storage = Storage.of(job, generation, settings).placed(ledger.placements)
        placements = ledger.placements.of(job.pipeline.name)
    partitions = partition_counts(settings.kafka, job.topics)
    JobQuery(spark, storage, KafkaInput(spark, settings.kafka), partitions, checked=True)
    cores = _cores(spark)
    lines = [f"tasks of a batch on {spark.sparkContext.master}, {counted(cores, 'core')}"]
    for topic, count in partitions.items():
        lines.append(f"  reads   {topic}: {counted(count, 'partition')}, a task for each")
    lines += _stage_tasks(job)
    lines.append(f"  shards  {counted(job.pipeline.workers, 'worker')}, a task for each")
    for worker, location in enumerate(storage.locations):
        text = f"          worker {worker}: {shown(location)}"
        if worker in placements:
            text += f", queried at {placements[worker].host_port}"
        lines.append(text)
    return "\n".join(lines)


def _stage_tasks(job: Job) -> Iterator[str]:
    """Yield the tasks between reading the topics and writing the shards."""
    for stage in range(1, job.stage_count + 1):
        yield f"  stage {stage} {counted(job.pipeline.workers, 'worker')}, a task for each"


def _cores(spark: SparkSession) -> int:
    """Return the number of cores of all executors.

    Run a job first, because Spark then waits for an executor.
    """
    spark.range(1).collect()
    # A cluster starts executors one after the other, and Spark counts only the cores of running
    # executors. So wait for more executors.
    if not is_local(spark.sparkContext.master or ""):
        time.sleep(_JOIN_SECONDS)
    return int(spark.sparkContext.defaultParallelism)
