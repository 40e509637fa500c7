"""Divides the memory that a run may use (SLUICE_MEMORY) between Spark's JVM and everything else.

`spark_submit.py` starts the JVM with its part. `engine/run/batch_size.py` gives what the processes
leave to the records of a batch.
"""

from __future__ import annotations

FIXED_MB = 925
"""The memory of a run's processes without any rows: the JVM, the driver and two workers."""
GROWN_MB = 50
"""So much more memory these processes need after their first batches."""
# Spark refuses less than 450 MiB.
_LEAST_HEAP_MB = 512


def heap_mb(memory_mb: int) -> int:
    """Return the heap of a local JVM in MiB.

    It gets only a third of the memory, because tasks read and process the records.
    """
    return max(_LEAST_HEAP_MB, memory_mb // 3)
