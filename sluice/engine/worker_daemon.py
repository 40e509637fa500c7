"""Spark's Python daemon. It imports the modules that tasks need before it forks workers.

So every worker starts fast, and all workers share the memory of the modules.
"""

import gc

from sluice.support.startup import importing

# Workers collect garbage after every task. `importing` excludes the imported modules from these
# collections. If they were scanned, a collection would take longer than a task: two small batches
# of the words pipeline would take 1.0 s of the workers' CPU time instead of 0.3 s.
with importing():
    # pyarrow imports pandas when it first makes an array of a list, and Acero when it first groups
    # a table. If the daemon did not import them, every worker would.
    import pandas  # noqa: F401
    import pyarrow.acero  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    # These two modules import all tasks: reading, the steps, the stages, and writing the shards.
    import sluice.engine.publish.shard_writer
    import sluice.engine.run.arrow_query  # noqa: F401
    from sluice.support.memory import release_unused_memory


def release_memory(phase: str, info: dict[str, int]) -> None:
    """Return memory to the system after the garbage collection with which PySpark ends a task.

    A worker waits for its next task while other workers, or the driver, need memory for the same
    batch.
    """
    if phase == "stop" and info["generation"] == 2:
        release_unused_memory()


if __name__ == "__main__":
    gc.callbacks.append(release_memory)
    manager()
