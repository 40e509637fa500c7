"""Spark's Python daemon with everything a task needs imported before it forks: each worker starts in milliseconds."""

from pyspark.daemon import manager

import sluice.engine.place
import sluice.engine.shards
import sluice.engine.source  # noqa: F401

if __name__ == "__main__":
    manager()
