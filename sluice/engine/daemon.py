"""Spark's Python daemon with everything a task needs imported before it forks: each worker starts in milliseconds."""

import gc

from pyspark.daemon import manager

import sluice.engine.fused.windowing
import sluice.engine.publish.shards
import sluice.engine.read.streams  # noqa: F401

if __name__ == "__main__":
    # Workers collect garbage after every task: to look through all that was imported would take longer than the task.
    gc.freeze()
    manager()
