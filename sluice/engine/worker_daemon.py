"""Spark's Python daemon. It imports the modules that tasks need before it forks workers, so that they start fast."""

import gc

from sluice.support.startup import importing

# Workers collect garbage after every task. `importing` excludes the imported modules from these
# collections. If they were scanned, a collection would take longer than a task: two small batches
# of the words pipeline would take 1.0 s of the workers' CPU time instead of 0.3 s.
with importing():
    # pyarrow imports pandas when it first makes an array of a list. If the daemon did not import
    # pandas, every worker would.
    import pandas  # noqa: F401
    from pyspark.daemon import manager

    from sluice.support.memory import release_unused_memory


def release_memory(phase: str, info: dict[str, int]) -> None:
    """Return a task's memory after the full collection with which PySpark ends the task.

    A worker waits for its next task while other workers, or the driver, need memory for the same batch.
    """
    if phase == "stop" and info["generation"] == 2:
        release_unused_memory()


if __name__ == "__main__":
    gc.callbacks.append(release_memory)
    manager()
