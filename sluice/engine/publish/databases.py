"""The databases to whose tables a job writes, with the URLs of the settings."""

from __future__ import annotations

from sluice.errors import SettingsError
from sluice.plan import Job, Sink
from sluice.settings import Settings
from sluice.sinks.postgres import PostgresTables, Target, checked_url
from sluice.values.tables import connection_variable


def databases_of(job: Job, settings: Settings) -> dict[str, PostgresTables]:
    """Connection → the writer of the job's tables in its database. Raises SettingsError if a connection has no URL."""
    databases = {}
    for connection, sinks in job.written_tables.items():
        variable = connection_variable(connection)
        if not (url := settings.connections.get(variable)):
            raise SettingsError(
                f"There is no connection {connection!r} for the tables of {job.pipeline.name}.",
                next_step=f"Set {variable} to postgresql://USER:PASSWORD@HOST:PORT/DATABASE, or in Airflow, add a "
                f"connection of type Postgres with the id {connection}.",
            )
        databases[connection] = PostgresTables(
            connection, checked_url(connection, url), job.pipeline.name, job.name, [target_of(sink) for sink in sinks]
        )
    return databases


def target_of(sink: Sink) -> Target:
    """The table that a sink writes."""
    assert sink.table is not None
    return Target(sink.topic, sink.at, sink.table, sink.is_windowed, sink.columns)
