"""The tables outside Kafka that a job writes: PostgreSQL tables and Delta tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sluice.errors import SettingsError
from sluice.plan import Job, Sink
from sluice.settings import Settings
from sluice.sinks.delta_sink import DeltaSink, DeltaTarget
from sluice.sinks.target import Column, TableSink
from sluice.values.sink_tables import DeltaTable, PostgresTable, connection_variable

if TYPE_CHECKING:
    from sluice.sinks.postgres_sink import PostgresTables, PostgresTarget


def table_sinks(
    job: Job, settings: Settings, spark: SparkSession, formerly: Sequence[str] = ()
) -> Mapping[str, TableSink]:
    """Return destination → the writer of its tables.

    `formerly`: former names of the pipeline, which takes over their tables. Raise
    SettingsError if a connection has no URL.
    """
    lake: dict[str, TableSink] = {}
    for sink in job.sinks:
        if isinstance(sink.table, DeltaTable):
            target = delta_target(sink)
            lake[target.output] = DeltaSink(spark, job.pipeline.name, target, formerly=formerly)
    return {**databases_of(job, settings, formerly), **lake}


def databases_of(
    job: Job, settings: Settings, formerly: Sequence[str] = ()
) -> dict[str, PostgresTables]:
    """Return connection → the writer of the job's tables in its database.

    `formerly` are the former names of the pipeline. Raise SettingsError if a connection has no URL.
    """
    if not job.connections:
        return {}
    # Imported only here, because the import takes 45 ms, and most pipelines write no PostgreSQL
    # tables.
    from sluice.sinks.postgres_sink import PostgresTables, checked_url

    databases = {}
    for connection in job.connections:
        variable = connection_variable(connection)
        if not (url := settings.connections.get(variable)):
            raise SettingsError(
                f"There is no connection {connection!r} for the tables of {job.pipeline.name}.",
                next_step=f"Set {variable} to postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or in "
                f"Airflow, add a connection of type Postgres with the id {connection}.",
            )
        targets = [postgres_target(sink) for sink in job.written_tables[connection]]
        databases[connection] = PostgresTables(
            connection,
            checked_url(connection, url),
            job.pipeline.name,
            targets,
            formerly=formerly,
        )
    return databases


def declared_columns(sink: Sink) -> Sequence[Column]:
    """Return the columns of a sink's table if Sluice creates it."""
    if isinstance(sink.table, DeltaTable):
        return delta_target(sink).declared
    return postgres_target(sink).declared


def postgres_target(sink: Sink) -> PostgresTarget:
    """Return the table of a database that a sink writes."""
    from sluice.sinks.postgres_sink import PostgresTarget

    assert isinstance(sink.table, PostgresTable)
    return PostgresTarget(sink.topic, sink.at, sink.table, sink.is_windowed, sink.columns)


def delta_target(sink: Sink) -> DeltaTarget:
    """Return the Delta table that a sink writes."""
    assert isinstance(sink.table, DeltaTable)
    return DeltaTarget(sink.topic, sink.at, sink.table, sink.is_windowed, sink.columns)
