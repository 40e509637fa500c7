"""Services that the API's server provides: Airflow's runs, Kafka, and the pipelines' files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sluice.api.declared_pipelines import DeclaredPipelines
from sluice.api.runs import NO_RUNS, Runs
from sluice.errors import BrokersUnreachable, SettingsError, SluiceError
from sluice.kafka.brokers import broker_errors
from sluice.kafka.open_transactions import HELD_SECONDS, HeldPartitions
from sluice.kafka.replaced_files import LastingAdmin
from sluice.kafka.unread_records import Lag, Offsets, read_lag
from sluice.settings import settings
from sluice.support.single_flight import SingleFlightCache
from sluice.topology.loading.pipeline_connections import KafkaConnections

SERVICES = "sluice_services"
"""The key of the services in a request's state."""
_LAG_SECONDS = 2.0
"""How long the topics' end offsets are cached."""


def _kafka_settings(connection: str = "") -> dict[str, str]:
    return settings().kafka_of(connection)


def _pipelines_folder() -> Path:
    return settings().pipelines


@dataclass(frozen=True)
class Services:
    """The runs of pipelines, and the librdkafka settings."""

    runs: Runs = NO_RUNS
    kafka: Callable[[str], dict[str, str]] = _kafka_settings
    """Returns the librdkafka settings of a Kafka connection; an empty name is the connection of all
    pipelines."""
    declared: DeclaredPipelines = field(default_factory=DeclaredPipelines)
    connections: KafkaConnections = field(
        default_factory=lambda: KafkaConnections(_pipelines_folder), repr=False
    )
    _admins: dict[str, LastingAdmin] = field(default_factory=dict, repr=False)
    _lags: SingleFlightCache[Lag | SluiceError] = field(
        default_factory=lambda: SingleFlightCache(_LAG_SECONDS, 10), repr=False
    )
    _held: HeldPartitions = field(default_factory=HeldPartitions, repr=False)

    def held_since(self, lag: Lag) -> datetime | None:
        """Return since when open transactions have held back unread records.

        Return None if no records are held back, or only for less than `HELD_SECONDS`.
        """
        now = datetime.now(UTC)
        since = self._held.since(lag, now)
        if since is None or (now - since).total_seconds() <= HELD_SECONDS:
            return None
        return since

    def kafka_of(self, pipeline: str) -> dict[str, str]:
        """Return the librdkafka settings of a pipeline's cluster."""
        return self.kafka(self.connections.of(pipeline))

    async def lags(self, positions: Mapping[str, Offsets]) -> tuple[dict[str, Lag], dict[str, str]]:
        """Return each pipeline's lag, and connection → why its pipelines' lags are unknown.

        `positions` has all topics that a pipeline reads. One request to each cluster is enough for
        all of its pipelines.
        """
        clusters: dict[str, dict[str, Offsets]] = {}
        for pipeline, read in positions.items():
            clusters.setdefault(self.connections.of(pipeline), {})[pipeline] = read
        lags: dict[str, Lag] = {}
        errors: dict[str, str] = {}
        for connection, of_cluster in clusters.items():
            topics = sorted(set().union(*of_cluster.values()))
            # Begin offsets are requested, too, because in a partition that a pipeline has never
            # read, all records are unread. Errors are cached, too, because each attempt to reach a
            # broker takes seconds.
            read_topics = partial(asyncio.to_thread, self._read, connection, topics)
            lag = await self._lags.get((connection, *topics), read_topics)
            for pipeline, read in of_cluster.items():
                if isinstance(lag, SluiceError):
                    errors[connection] = lag.detail
                else:
                    lags[pipeline] = lag.of_pipeline(read, read)
        return lags, errors

    def _read(self, connection: str, topics: list[str]) -> Lag | SluiceError:
        try:
            kafka = self.kafka(connection)
            if connection not in self._admins:
                self._admins[connection] = LastingAdmin(kafka)
            with broker_errors(kafka):
                return read_lag(self._admins[connection].client(), topics, {})
        except BrokersUnreachable as error:
            return error
        except SettingsError as error:
            if not connection:
                raise
            # A wrong connection of one team must not hide the pipelines of the others.
            return error


NO_SERVICES = Services()
"""The services of a state server: no runs in Airflow, and the Kafka settings of `settings()`."""
