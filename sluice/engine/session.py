"""The Spark session of a run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from sluice.settings import Settings

DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.python.daemon.module": "sluice.engine.daemon",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    # No limit: to enforce one, Spark computes the batch's size after every row, which costs more than writing the row.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.streaming.metricsEnabled": "false",
    # Spark would run another, empty batch to remove closed windows. The next batch with records removes them too.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}


def session(settings: Settings, name: str) -> SparkSession:
    """The Spark session. spark-submit's settings take precedence over the pipeline's environment and DEFAULTS."""
    # Python workers must use this interpreter, not the first `python3` on the PATH.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**DEFAULTS, **settings.spark_conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    return spark


def start_workers(spark: SparkSession) -> None:
    """Start a local Spark's Python workers early: the first one takes seconds, and no batch should wait for it."""
    if (spark.sparkContext.master or "").startswith("local"):
        spark.range(1).mapInArrow(_identity, "id BIGINT").collect()


def _identity(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches
