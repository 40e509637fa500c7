"""The state that all requests of a process share: the reader and the caches of a ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sluice.api.http.replies import Payload
from sluice.query import Reader
from sluice.query.ledger_reads import read_ledger
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.support.single_flight import SingleFlightCache

API_STATE = "sluice_state"
"""The key, in a request's state, of the `ApiState` of a state server."""
FIGURES_SECONDS = 2.0
"""How long statistics about pipelines are cached. Computing them takes longer than a query."""
CACHE_SECONDS = 1.0
"""How long a complete response is cached, and therefore how long an unavailable worker can go
unnoticed."""
_CACHE_BYTES = 32 * 2**20


class ApiState:
    """State shared by all requests of a process: the reader, caches, the ledger's secrets."""

    def __init__(self, ledger: Ledger, reader: Reader) -> None:
        self.reader = reader
        self.responses = SingleFlightCache[Payload](
            CACHE_SECONDS, _CACHE_BYTES, size=lambda payload: len(payload.content)
        )
        self.ledger = ledger
        self.figures = SingleFlightCache[Any](FIGURES_SECONDS, 1_000)
        self._secrets: dict[str, bytes] = {}

    async def cached(
        self,
        key: tuple[object, ...],
        compute: Callable[[], Awaitable[Payload]],
    ) -> Payload:
        """Return the cached payload; compute it if it is not cached.

        Payloads that are partial or come from standbys are not cached.
        """
        return await self.responses.get(
            key, compute, keep=lambda payload: not (payload.partial or payload.standby)
        )

    async def secret(self, name: str) -> bytes:
        """Return a secret key that all servers with this ledger share."""
        if name not in self._secrets:
            self._secrets[name] = await read_ledger(lambda: self.ledger.secrets.get(name))
        return self._secrets[name]


_states: dict[str, ApiState] = {}
"""Ledger's address → the state that requests to this ledger share."""


async def state_of_settings() -> ApiState:
    """Return the state in Airflow's API server, whose ledger is opened at the first request."""
    url = settings().ledger
    if url not in _states:
        ledger = await read_ledger(lambda: Ledger.open(url))
        # Another request may have opened the ledger meanwhile.
        _states.setdefault(url, ApiState(ledger, Reader(ledger)))
    return _states[url]
