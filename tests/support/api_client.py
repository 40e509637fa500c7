"""The API in the tests' own process, without Airflow, with a configurable user, runs and Kafka settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from sluice.answers import Run
from sluice.api.apps import custom_routes_app, generic_app
from sluice.api.auth.permissions import Principal, authenticate
from sluice.api.routes.api_state import API_STATE, ApiState
from sluice.api.runs import DagState
from sluice.api.services import Services
from sluice.query import Reader
from sluice.state.ledger.ledger import Ledger
from tests.support.ports import free_port
from tests.support.server_thread import ServerThread

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}
"""A broker that does not exist."""


@dataclass
class User(Principal):
    """May read every pipeline except the hidden ones, and edit those in `editable`."""

    hidden: tuple[str, ...] = ()
    editable: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return "ada"

    async def may_read(self, pipeline: str) -> bool:
        return pipeline not in self.hidden

    async def may_edit(self, pipeline: str) -> bool:
        return pipeline in self.editable


class Clerk(Principal):
    """May read one pipeline and edit none; records the look-ups."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.looked_up: set[str] = set()

    @property
    @override
    def name(self) -> str:
        return "clerk"

    @override
    async def may_read(self, pipeline: str) -> bool:
        self.looked_up.add(pipeline)
        return pipeline == self.pipeline

    @override
    async def may_edit(self, pipeline: str) -> bool:
        return False


@dataclass
class KnownRuns:
    """Runs that the test chooses. Records the runs that are started."""

    root: str = "/airflow"
    states: dict[str, DagState] = field(default_factory=dict)
    history: dict[str, list[Run]] = field(default_factory=dict)
    started: list[tuple[str, Mapping[str, Any], str]] = field(default_factory=list)

    def dags(self) -> Mapping[str, DagState]:
        return self.states

    def recent(self, pipeline: str, limit: int) -> list[Run]:
        return self.history.get(pipeline, [])[:limit]

    def start(self, pipeline: str, parameters: Mapping[str, Any], user: str) -> str:
        self.started.append((pipeline, parameters, user))
        return f"manual__{len(self.started)}"


@dataclass
class Api:
    """The app over one ledger."""

    ledger: Ledger
    user: User = field(default_factory=User)
    runs: KnownRuns = field(default_factory=KnownRuns)
    kafka: Mapping[str, str] = field(default_factory=lambda: NOWHERE)
    folder: Path = Path("spark_jobs")

    def get(self, path: str, **parameters: Any) -> Any:
        """The body of the response to a GET request.

        Raises AssertionError unless the request succeeds.
        """
        response = self.ask("GET", path, params=parameters)
        assert response.status_code == httpx.codes.OK, response.text
        return response.json()

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._ask(method, path, options))

    @cached_property
    def app(self) -> ASGIApp:
        """The app as it is mounted, at `/sluice` and `/v1`, for the user."""
        state = ApiState(self.ledger, Reader(self.ledger))
        services = Services(self.runs, lambda _: dict(self.kafka))
        apps = {
            "/sluice": generic_app(self.folder, services),
            "/v1": custom_routes_app(self.folder),
        }

        async def with_user(scope: Scope, receive: Receive, send: Send) -> None:
            async def again() -> Principal:
                return self.user

            authenticate(scope, self.user, again)
            scope["state"][API_STATE] = state
            prefix = "/" + scope["path"].split("/")[1]
            await apps[prefix]({**scope, "root_path": prefix}, receive, send)

        return with_user

    async def _ask(self, method: str, path: str, options: dict[str, Any]) -> httpx.Response:
        # Each call has an event loop of its own, and so an app: nothing is cached.
        self.__dict__.pop("app", None)
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app), base_url="http://api"
        ) as client:
            return await client.request(method, f"/sluice{path}", **options)

    @contextmanager
    def serve(self) -> Iterator[str]:
        """Serve the app in a thread; yields its address."""
        port = free_port()
        with ServerThread(uvicorn.Config(self.app, port=port, log_level="error", lifespan="off")):
            yield f"http://127.0.0.1:{port}"
