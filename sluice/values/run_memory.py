"""Divides the memory that a run may use (SLUICE_MEMORY) between Spark's JVM and everything else.

`spark_submit.py` starts the JVM with its part. `engine/run/batch_size.py` uses the memory that the
processes leave for the records of a batch.
"""

from __future__ import annotations

FIXED_MB = 925
"""The memory of a run's processes without any rows: the JVM, the driver and two workers."""
GROWN_MB = 50
"""The memory that these processes need in addition after their first batches."""
# Spark does not start with less than 450 MiB.
_LEAST_HEAP_MB = 512


def heap_mb(memory_mb: int) -> int:
    """Return the heap of a local JVM in MiB.

    The heap gets only a third of the memory, because tasks read and process the records outside of
    the JVM.
    """
    return max(_LEAST_HEAP_MB, memory_mb // 3)
