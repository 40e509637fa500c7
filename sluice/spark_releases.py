"""What differs between Spark's releases, except Python functions in SQL (`steps.python_steps`)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark import __version__ as spark_version
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from sluice.provision.supported_versions import release_of

RELEASE = release_of(spark_version)
"""The release of PySpark, such as (4, 2)."""

_STREAMING = "org.apache.spark.sql.execution.streaming"
CHECKPOINT_FILES = f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager"
MEMORY_STREAM = f"{_STREAMING}.runtime.MemoryStream"
if RELEASE < (4, 1):
    CHECKPOINT_FILES = f"{_STREAMING}.FileSystemBasedCheckpointFileManager"
    MEMORY_STREAM = f"{_STREAMING}.MemoryStream"

_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if RELEASE >= (4, 2) else {}
"""The argument with which PySpark makes Arrow's timestamps in UTC. Before Spark 4.2, PySpark always
makes them in UTC."""
_BITS = 0xFFFFFFFF


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the schema in Arrow, with timestamps in UTC."""
    return to_arrow_schema(schema, **_IN_UTC)


def arrow_type_of(kind: DataType) -> pa.DataType:
    """Return the type in Arrow, with timestamps in UTC."""
    return to_arrow_type(kind, **_IN_UTC)


def by_worker(frame: DataFrame, workers: int) -> DataFrame:
    """Move each row to the partition that the column `worker` names.

    The partitions are 0 to `workers` - 1.
    """
    # Spark 4.0 can only partition by the hash of a column. So each worker gets a number whose hash
    # falls into the worker's partition.
    if not hasattr(frame, "repartitionById"):
        numbers = F.array(*(F.lit(number) for number in numbers_of_workers(workers)))
        return frame.repartition(workers, F.get(numbers, F.col("worker")))
    return frame.repartitionById(workers, "worker")


def numbers_of_workers(workers: int) -> list[int]:
    """Return, for each worker, the smallest number that Spark's hash puts in its partition."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < workers:
        found.setdefault(_hash(number) % workers, number)
        number += 1
    return [found[worker] for worker in range(workers)]


def _hash(number: int) -> int:
    """Return Spark's hash of an INT: Murmur3 for 32 bits with the seed 42, as a signed number."""
    mixed = _rotated(number * 0xCC9E2D51 & _BITS, 15) * 0x1B873593 & _BITS
    state = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64) & _BITS
    # The last step also takes the number of bytes.
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & _BITS
    state = (state ^ state >> 13) * 0xC2B2AE35 & _BITS
    state ^= state >> 16
    return state - (1 << 32) if state >> 31 else state


def _rotated(bits: int, count: int) -> int:
    return (bits << count | bits >> (32 - count)) & _BITS
