"""`/metrics` of a state server: the gauges of all pipelines in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.api.http.problems import problem_of
from sluice.api.services import Services
from sluice.errors import BrokersUnreachable, SluiceError
from sluice.kafka.unread_records import Lag, Offsets
from sluice.observe.metrics import Gauge, gauges, prometheus
from sluice.query.ledger_reads import read_ledger
from sluice.query.workers import ServedLocation
from sluice.state.ledger.ledger import Ledger
from sluice.state.model import WorkerInfo


class MetricsApp:
    """Answers every request with the current gauges; without the lag if Kafka does not answer."""

    def __init__(self, ledger: Ledger, kafka: Mapping[str, str], served: ServedLocation) -> None:
        self._ledger = ledger
        self._served = served
        self._services = Services(kafka=lambda: dict(kafka))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            lags = await self._lags()
            text = await read_ledger(lambda: self._text(lags))
            response = Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
        except SluiceError as error:
            response = problem_of(error)
        await response(scope, receive, send)

    async def _lags(self) -> dict[str, Lag]:
        positions = await read_ledger(self._positions)
        try:
            return await self._services.lag(positions)
        except BrokersUnreachable:
            return {}

    def _positions(self) -> dict[str, Offsets]:
        return {name: self._ledger.positions(name) for name in self._ledger.generations.pipelines()}

    def _text(self, lags: Mapping[str, Lag]) -> str:
        ledger = self._ledger
        names = sorted({*ledger.generations.pipelines()} | {failure.pipeline for failure in ledger.failures.all()})
        by_pipeline: dict[str, list[Gauge]] = {}
        for name in names:
            by_pipeline[name] = list(gauges(ledger, name, lags.get(name), location=self._location))
        return prometheus(by_pipeline)

    def _location(self, worker: WorkerInfo) -> str | None:
        return self._served(worker) if worker.server else worker.location
