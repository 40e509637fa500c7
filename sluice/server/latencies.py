"""How long this server's answers take, for its metrics."""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left
from collections.abc import Awaitable, Iterator, MutableSequence, Sequence
from functools import partial
from itertools import product, zip_longest

from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.server.http_protocol import BEGUN
from sluice.state.ledger.measurements import BUCKET, SECONDS, SUM, UNBOUNDED, Measurement

_NAME = "request_duration_seconds"
_NAMES = {"/local": "shard", "/sluice": "rest", "/v1": "route"}
"""The first segment of a request's path → the kind of request, as the metric's label names it."""


_BUCKETS = len(SECONDS) + 1
_WIDTH = _BUCKETS + 1
"""The numbers of a histogram: how many durations are in each bucket, not counting the durations in
smaller buckets; then the sum of all durations in seconds."""
_BEGINS = {kind: number * _WIDTH for number, kind in enumerate(product(_NAMES, range(1, 6)))}
"""The first segment of a path, and the first digit of a status → the index at which their histogram
begins."""
FIGURES = len(_BEGINS) * _WIDTH
"""How many numbers the histograms of one process have in total."""


def no_figures() -> MutableSequence[float]:
    """Return the figures of a process that has answered no request."""
    return array("d", bytes(8 * FIGURES))


class Latencies:
    """Measures how long a server's apps take to answer requests, from the server's start on.

    `figures` has the histograms of each of the server's processes. This process has the number
    `own`.
    """

    def __init__(self, figures: Sequence[MutableSequence[float]], own: int = 0) -> None:
        self._figures = figures
        self._own = figures[own]

    def measurements(self) -> Iterator[Measurement]:
        """Yield the histograms of all requests, by the kind of request and the class of status."""
        figures = [sum(of_processes) for of_processes in zip(*self._figures, strict=True)]
        for (prefix, status), begin in _BEGINS.items():
            *counts, seconds = figures[begin : begin + _WIDTH]
            if not any(counts):
                continue
            labels = (("for", _NAMES[prefix]), ("status", f"{status}xx"))
            for bound, count in zip_longest(SECONDS, counts):
                le = UNBOUNDED if bound is None else f"{bound:g}"
                if count:
                    yield Measurement(f"{_NAME}{BUCKET}", int(count), (*labels, ("le", le)))
            yield Measurement(f"{_NAME}{SUM}", seconds, labels)

    def of(self, prefix: str, app: ASGIApp) -> ASGIApp:
        """Return an app that measures the time from each request to `app` until the answer begins.

        `app` is mounted under `prefix`.
        """
        if prefix not in _NAMES:
            return app

        def measured(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
            scope[BEGUN] = partial(self._add_since, prefix, time.monotonic())
            return app(scope, receive, send)

        return measured

    def _add_since(self, prefix: str, since: float, status: int) -> None:
        self.add(prefix, status, time.monotonic() - since)

    def add(self, prefix: str, status: int, seconds: float) -> None:
        """Count an answer of the app that is mounted under `prefix`."""
        begin = _BEGINS[prefix, status // 100]
        self._own[begin + bisect_left(SECONDS, seconds)] += 1
        self._own[begin + _BUCKETS] += seconds
