"""How long this server's answers take, for its metrics."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import zip_longest

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.server.http_protocol import BEGUN
from sluice.state.ledger.measurements import BUCKET, SECONDS, SUM, UNBOUNDED, Measurement

_NAME = "request_duration_seconds"
_NAMES = {"/local": "shard", "/sluice": "rest", "/v1": "route"}
"""The first segment of a request's path → the kind of request, as the metric's label names it."""


class _Histogram:
    """The durations of requests of one kind, with one class of status."""

    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        """The number of durations in each bucket, without those in the buckets below it."""
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds


class Latencies:
    """Measures how long a server's apps take to answer requests, from the server's start on."""

    def __init__(self) -> None:
        self._histograms: dict[tuple[str, int], _Histogram] = {}
        """The kind of request, and the first digit of the response's status → the durations."""

    def measurements(self) -> Iterator[Measurement]:
        """The histograms of all requests, one for each kind of request and class of status."""
        for (asked_for, status), histogram in self._histograms.items():
            labels = (("for", asked_for), ("status", f"{status}xx"))
            for bound, count in zip_longest(SECONDS, histogram.counts):
                le = UNBOUNDED if bound is None else f"{bound:g}"
                if count:
                    yield Measurement(f"{_NAME}{BUCKET}", count, (*labels, ("le", le)))
            yield Measurement(f"{_NAME}{SUM}", histogram.seconds, labels)

    def of(self, prefix: str, app: ASGIApp) -> ASGIApp:
        """An app that measures the time from each request to `app` until the answer begins.

        `app` is mounted under `prefix`.
        """
        asked_for = _NAMES.get(prefix)
        if asked_for is None:
            return app

        def measured(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            scope[BEGUN] = partial(self._add, asked_for, time.monotonic())
            return app(scope, receive, send)

        return measured

    def _add(self, asked_for: str, since: float, status: int) -> None:
        kind = asked_for, status // 100
        histogram = self._histograms.get(kind)
        if histogram is None:
            histogram = self._histograms[kind] = _Histogram()
        histogram.add(time.monotonic() - since)
