"""Who is asking, and what they may read: Airflow's log-in and Airflow's permissions, nothing of its own.

Whoever may read a pipeline's DAG may read its stores. Everything else of an app is open to whoever is logged in, and
nothing to anybody else: the check stands before the routes, so it also covers those there are not.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.models.dag import DagModel
from jwt import InvalidTokenError
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from typing_extensions import override

from sluice.api.problems import problem

REMEMBER_SECONDS = 5.0
"""How long a checked token and a permission count without being looked up again, hence how long a revoked one may."""

_MOST_VISITORS = 1_000
_STATE = "sluice_visitor"


class Reads(Protocol):
    """Whether somebody may read a pipeline."""

    async def may_read(self, pipeline: str) -> bool:
        """Whether the pipeline's DAG may be read."""


class Visitor(Reads):
    """A logged-in user, with what has been found out about their permissions lately."""

    def __init__(self, user: BaseUser, until: float) -> None:
        self.until = until
        self._user = user
        self._may_read: dict[str, bool] = {}

    @override
    async def may_read(self, pipeline: str) -> bool:
        if pipeline not in self._may_read:
            # Auth managers look permissions up in their databases, and block while they do.
            self._may_read[pipeline] = await asyncio.to_thread(_may_read, self._user, pipeline)
        return self._may_read[pipeline]


class LoginRequired:
    """ASGI middleware: 401 for every request, to whatever path, that does not come from a logged-in user."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._visitors: dict[bytes, Visitor] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer 401."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] == "http":
            visitor = await self._visitor(_token(HTTPConnection(scope)))
            if visitor is None:
                await _unauthorized()(scope, receive, send)
                return
            scope.setdefault("state", {})[_STATE] = visitor
        await self._app(scope, receive, send)

    async def _visitor(self, token: str | None) -> Visitor | None:
        if not token:
            return None
        # Tokens are not kept, only their digests.
        digest = hashlib.sha256(token.encode(errors="replace")).digest()
        known = self._visitors.get(digest)
        if known is not None and known.until > self._clock():
            return known
        try:
            user = await get_auth_manager().get_user_from_token(token)
        except InvalidTokenError:
            self._visitors.pop(digest, None)
            return None
        if len(self._visitors) >= _MOST_VISITORS:
            self._visitors.clear()
        visitor = self._visitors[digest] = Visitor(user, self._clock() + REMEMBER_SECONDS)
        return visitor


def visitor(request: Request) -> Reads:
    """Who is asking."""
    return cast("Visitor", getattr(request.state, _STATE))


def _token(request: HTTPConnection) -> str | None:
    """The bearer's token or the browser's, in Airflow's own order: a given token wins over the cookie."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE_NAME_JWT_TOKEN)


def _may_read(user: BaseUser, pipeline: str) -> bool:
    details = DagDetails(id=pipeline, team_name=DagModel.get_team_name(pipeline))
    manager: Any = get_auth_manager()
    return bool(manager.is_authorized_dag(method="GET", details=details, user=user))


def _unauthorized() -> Response:
    # A new one each time: Airflow's middleware changes the headers of what it passes on.
    return problem(
        401,
        "There is no log-in with this request, or it is no longer valid.",
        "Log in to Airflow, or send a token from POST /auth/token as Authorization: Bearer.",
        headers={"WWW-Authenticate": "Bearer"},
    )
