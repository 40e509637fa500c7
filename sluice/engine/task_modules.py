"""Imports everything that tasks need.

Processes that are forked from this process then need not import it again.
"""

# pyarrow imports Acero when it first groups a table.
import pyarrow.acero  # noqa: F401
import pyspark.daemon
import pyspark.worker  # noqa: F401

# These modules import all tasks: reading, the steps, the stages, and writing the shards.
import sluice.engine.publish.shard_writer
import sluice.engine.read.kafka_records
import sluice.engine.run.arrow_query  # noqa: F401
