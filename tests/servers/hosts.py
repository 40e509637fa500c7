"""Hosts with a state server each, in threads of this process. Each has its own folder, and all calls are counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.server.state_server import Options, claim, make_app, uvicorn_config
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.placement import Placement
from tests.support.ports import free_port
from tests.support.server_thread import ServerThread
from tests.support.states import States

TOKEN = "a-token-of-these-tests"


def placed(states: States, place: Placement) -> None:
    """Place a worker at an address, whatever is there."""
    states.ledger.placements.finish_move(states.ledger.placements.begin_move(place))


CLIENT = httpx.Client(timeout=120, trust_env=False)


@dataclass
class Host:
    """A host: its own folder of shards, and a state server with the REST API."""

    ledger: Ledger
    folder: Path
    port: int = field(default_factory=free_port)
    calls: Counter[str] = field(default_factory=Counter)
    """Path → number of requests."""

    def start(self, *numbers: int, pipeline: str = "orders") -> Host:
        """Start the server and claim the workers `numbers`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        known = replace(settings(), shards=f"sqlite:///{self.folder}")
        claim(self.ledger, known, self.options, pipeline, numbers)
        app = _Counting(make_app(self.ledger, known, self.options), self.calls)
        self._server = ServerThread(uvicorn_config(app, self.options)).start()
        return self

    def stop(self) -> None:
        """Stop the server at once and close its connections."""
        self._server.stop()

    def begin_stop(self) -> None:
        """Tell the server to stop, without waiting for it."""
        self._server.begin_stop()

    @property
    def options(self) -> Options:
        return Options(self.port, rest=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def get(self, path: str, **parameters: Any) -> httpx.Response:
        """Send a GET request to the REST API."""
        return self.ask("GET", path, params=parameters or None)

    def ask(
        self, method: str, path: str, *, token: str | None = TOKEN, **more: Any
    ) -> httpx.Response:
        """Send a request, by default with the servers' token."""
        headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
        return CLIENT.request(method, f"http://{self.address}{path}", headers=headers, **more)

    @property
    def queries(self) -> int:
        """The number of queries to shards of this host."""
        return sum(count for path, count in self.calls.items() if path.endswith("/query"))


class _Counting:
    def __init__(self, app: ASGIApp, calls: Counter[str]) -> None:
        self._app = app
        self._calls = calls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._calls[scope["path"]] += 1
        await self._app(scope, receive, send)
