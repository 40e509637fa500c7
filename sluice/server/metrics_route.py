"""`/metrics` of a state server: the metrics of all pipelines in Prometheus' text format."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.api.http.problems import problem_of
from sluice.api.services import Services
from sluice.errors import BrokersUnreachable, SluiceError
from sluice.kafka.record_times import OldestUnread
from sluice.kafka.unread_records import Lag
from sluice.observe.host_checks import Observer, disks
from sluice.observe.metrics import gauges, histogram_samples, of_pipeline, prometheus, shard_sizes
from sluice.observe.monitoring import LedgerFigures
from sluice.query.ledger_reads import read_ledger
from sluice.query.workers import ServedLocation
from sluice.server.latencies import Latencies
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.measurements import Measurement
from sluice.state.model import WorkerInfo


class MetricsApp:
    """Answers each request with the current metrics.

    If Kafka cannot be reached, the numbers of unread records are left out.
    """

    def __init__(
        self,
        ledger: Ledger,
        configuration: Settings,
        served: ServedLocation,
        latencies: Latencies,
    ) -> None:
        self._ledger = ledger
        self._configuration = configuration
        self._served = served
        self._latencies = latencies
        self._services = Services(kafka=configuration.kafka_of)
        self._oldest_unread = OldestUnread(configuration.kafka)
        self._observer = Observer(ledger, configuration)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            figures = await read_ledger(lambda: LedgerFigures.read(self._ledger))
            lags, errors = await self._services.lags(figures.positions)
            self._observer.observe()
            # The text is made in another thread, because the sizes of shards are read from files
            # and databases, which takes time.
            text = await asyncio.to_thread(self._format_metrics, figures, lags, errors)
            response = Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
        except SluiceError as error:
            response = problem_of(error)
        await response(scope, receive, send)

    def _format_metrics(
        self, figures: LedgerFigures, lags: Mapping[str, Lag], errors: Mapping[str, str]
    ) -> str:
        try:
            # Records of other clusters are not read, because this client knows only one cluster.
            of_cluster = [
                lag for name, lag in lags.items() if not self._services.connections.of(name)
            ]
            oldest_unread = self._oldest_unread.of(of_cluster)
        except BrokersUnreachable:
            oldest_unread = {}
        sizes = shard_sizes(figures, self._location)
        samples: list[Measurement] = [*histogram_samples(self._latencies.measurements())]
        for folder, (free, size) in disks(self._configuration).items():
            samples.append(Measurement("disk_free_bytes", free, (("folder", str(folder)),)))
            samples.append(Measurement("disk_size_bytes", size, (("folder", str(folder)),)))
        for name in figures.pipelines:
            lag = lags.get(name)
            held_since = None
            if lag is not None:
                held_since = self._services.held_since(lag)
            of_now = gauges(
                figures,
                name,
                lag,
                lag_error=errors.get(self._services.connections.of(name), ""),
                held_since=held_since,
                sizes=sizes,
                oldest_unread=oldest_unread,
            )
            since_ever = histogram_samples(figures.measurements.get(name, ()))
            samples += of_pipeline(name, [*of_now, *since_ever])
        return prometheus(samples)

    def _location(self, worker: WorkerInfo) -> str | None:
        if worker.server:
            return self._served(worker)
        return worker.location
