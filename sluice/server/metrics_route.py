"""`/metrics` of a state server: the gauges of all pipelines in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from sluice.api.http.problems import problem_of
from sluice.api.services import Services
from sluice.errors import BrokersUnreachable, SluiceError
from sluice.kafka.unread_records import Lag
from sluice.observe.metrics import Gauge, gauges, prometheus
from sluice.observe.monitoring import LedgerFigures
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
            figures = await read_ledger(lambda: LedgerFigures.read(self._ledger))
            text = self._text(figures, await self._lags(figures))
            response = Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")
        except SluiceError as error:
            response = problem_of(error)
        await response(scope, receive, send)

    async def _lags(self, figures: LedgerFigures) -> dict[str, Lag]:
        try:
            return await self._services.lag(figures.positions)
        except BrokersUnreachable:
            return {}

    def _text(self, figures: LedgerFigures, lags: Mapping[str, Lag]) -> str:
        by_pipeline: dict[str, list[Gauge]] = {}
        for name in figures.pipelines:
            by_pipeline[name] = list(gauges(figures, name, lags.get(name), location=self._location))
        return prometheus(by_pipeline)

    def _location(self, worker: WorkerInfo) -> str | None:
        return self._served(worker) if worker.server else worker.location
