"""How long this server's answers take, for its metrics."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sluice.state.ledger.measurements import Labels, Measurement, duration

_NAMES = {"/local": "shard", "/sluice": "rest", "/v1": "route"}
"""The first segment of a request's path → the kind of request, as the metric's label names it."""


class Latencies:
    """Measures the requests to apps of a server, since the server's start."""

    def __init__(self) -> None:
        self._totals: Counter[tuple[str, Labels]] = Counter()

    def measurements(self) -> Iterator[Measurement]:
        """The histogram of all requests."""
        for (name, labels), value in self._totals.items():
            yield Measurement(name, value, labels)

    def of(self, prefix: str, app: ASGIApp) -> ASGIApp:
        """An app that measures the time from each request to `app` until the answer begins.

        `app` is mounted under `prefix`.
        """
        asked_for = _NAMES.get(prefix)
        if asked_for is None:
            return app

        async def measured(scope: Scope, receive: Receive, send: Send) -> None:
            begun = time.monotonic()

            async def send_measured(message: Message) -> None:
                if message["type"] == "http.response.start":
                    status = f"{message['status'] // 100}xx"
                    self._add(time.monotonic() - begun, (("for", asked_for), ("status", status)))
                await send(message)

            await app(scope, receive, send_measured)

        return measured

    def _add(self, seconds: float, labels: Labels) -> None:
        for measurement in duration("request_duration_seconds", seconds):
            self._totals[measurement.name, (*labels, *measurement.labels)] += measurement.value  # type: ignore[assignment]
