"""Services that the API's server provides: Airflow's runs, Kafka, and the pipelines' files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from sluice.api.declared_pipelines import DeclaredPipelines
from sluice.api.runs import NO_RUNS, Runs
from sluice.errors import BrokersUnreachable
from sluice.kafka.brokers import broker_errors
from sluice.kafka.open_transactions import HELD_SECONDS, HeldPartitions
from sluice.kafka.replaced_files import LastingAdmin
from sluice.kafka.unread_records import Lag, Offsets, read_lag
from sluice.settings import settings
from sluice.support.single_flight import SingleFlightCache

SERVICES = "sluice_services"
"""The key of the services in a request's state."""
_LAG_SECONDS = 2.0
"""How long the topics' end offsets are cached."""


def _kafka_settings() -> dict[str, str]:
    return settings().kafka


@dataclass(frozen=True)
class Services:
    """The runs of pipelines, and the librdkafka settings."""

    runs: Runs = NO_RUNS
    kafka: Callable[[], dict[str, str]] = _kafka_settings
    declared: DeclaredPipelines = field(default_factory=DeclaredPipelines)
    _lags: SingleFlightCache[Lag | BrokersUnreachable] = field(
        default_factory=lambda: SingleFlightCache(_LAG_SECONDS, 10), repr=False
    )
    _held: HeldPartitions = field(default_factory=HeldPartitions, repr=False)

    def held_since(self, lag: Lag) -> datetime | None:
        """Return since when open transactions have held back unread records.

        Return None if they hold back none, or have done so for less than `HELD_SECONDS`.
        """
        now = datetime.now(UTC)
        since = self._held.since(lag, now)
        if since is None or (now - since).total_seconds() <= HELD_SECONDS:
            return None
        return since

    async def lag(self, positions: Mapping[str, Offsets]) -> dict[str, Lag]:
        """Return each pipeline's lag, with one request to the broker for all pipelines.

        `positions` has all topics that a pipeline reads. Raise BrokersUnreachable.
        """
        topics = sorted(set().union(*positions.values()))
        # Begin offsets are requested, too, because all records of a partition that a pipeline has
        # not read are unread. Errors are cached, too, because each attempt to reach a broker takes
        # seconds.
        lag = await self._lags.get(tuple(topics), lambda: asyncio.to_thread(self._read, topics))
        if isinstance(lag, BrokersUnreachable):
            raise lag
        return {pipeline: lag.of_pipeline(read, read) for pipeline, read in positions.items()}

    def _read(self, topics: list[str]) -> Lag | BrokersUnreachable:
        try:
            with broker_errors(self.kafka()):
                return read_lag(self._admin.client(), topics, {})
        except BrokersUnreachable as error:
            return error

    @cached_property
    def _admin(self) -> LastingAdmin:
        return LastingAdmin(self.kafka())


NO_SERVICES = Services()
"""The services of a state server: no runs in Airflow, and the Kafka settings of `settings()`."""
