"""Airflow's log-in and permissions: a user who may read a pipeline's DAG may read its stores.

A user who may edit the DAG may also start runs and re-drive dead letters. All other routes of an app require only a
log-in. The log-in is checked before routing, so it is also required for paths that do not exist.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.models.dag import DagModel
from jwt import InvalidTokenError
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from typing_extensions import override

from sluice.api.auth.permissions import Principal, authenticate, unauthorized
from sluice.api.http.problems import problem
from sluice.api.http.request_headers import header
from sluice.support.single_flight import SingleFlightCache

REMEMBER_SECONDS = 5.0
"""How long a checked token and its permissions are cached, and therefore how long a revoked token still works."""

_MAX_USERS = 1_000
_HOW = "Log in to Airflow, or send a token from POST /auth/token as Authorization: Bearer."
_SAFE = {"GET", "HEAD", "OPTIONS"}

_Method = Literal["GET", "PUT"]


class AirflowUser(Principal):
    """A user of Airflow, with a cache of the user's permissions."""

    def __init__(self, user: BaseUser) -> None:
        self._user = user
        self._permissions: dict[tuple[str, _Method], asyncio.Future[bool]] = {}

    @property
    @override
    def name(self) -> str:
        return self._user.get_name()

    @override
    async def may_read(self, pipeline: str) -> bool:
        return await self._may(pipeline, "GET")

    @override
    async def may_edit(self, pipeline: str) -> bool:
        return await self.may_read(pipeline) and await self._may(pipeline, "PUT")

    async def _may(self, pipeline: str, method: _Method) -> bool:
        permission = self._permissions.get((pipeline, method))
        if permission is None or (permission.done() and permission.exception() is not None):
            # Auth managers block while they query their databases.
            lookup = asyncio.to_thread(_is_allowed, self._user, pipeline, method)
            permission = self._permissions[pipeline, method] = asyncio.ensure_future(lookup)
        return permission.result() if permission.done() else await asyncio.shield(permission)


class LoginRequired:
    """ASGI middleware that responds with 401 to every request without a valid log-in, whatever its path."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._users = SingleFlightCache[AirflowUser | None](REMEMBER_SECONDS, _MAX_USERS, clock=clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or respond with 401."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] == "http":
            token = _token(scope)
            user = await self._user(token)
            if user is None:
                await unauthorized(_HOW)(scope, receive, send)
                return
            if scope["method"] not in _SAFE and _bearer(scope) is None and not _is_same_origin(scope):
                await problem(403, "A page of another site sent this request with the browser's cookie.", _HOW)(
                    scope, receive, send
                )
                return
            authenticate(scope, user, partial(self._user, token))
        await self._app(scope, receive, send)

    async def _user(self, token: bytes) -> AirflowUser | None:
        if not token:
            return None
        # The cache stores digests instead of tokens.
        digest = hashlib.sha256(token).digest()
        return await self._users.get(digest, lambda: _check(token), keep=lambda user: user is not None)


async def _check(token: bytes) -> AirflowUser | None:
    try:
        return AirflowUser(await get_auth_manager().get_user_from_token(token.decode()))
    except (InvalidTokenError, UnicodeDecodeError):
        return None


def _token(scope: Scope) -> bytes:
    """The bearer token, or else the token in the browser's cookie. Airflow looks in the same order."""
    if (token := _bearer(scope)) is not None:
        return token
    cookie = header(scope, b"cookie")
    return cookie_parser(cookie.decode("latin-1")).get(COOKIE_NAME_JWT_TOKEN, "").encode("latin-1") if cookie else b""


def _bearer(scope: Scope) -> bytes | None:
    """The token in the Authorization header, which browsers do not send on their own."""
    scheme, _, token = header(scope, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _is_same_origin(scope: Scope) -> bool:
    """Whether the browser says that a page of this site sent the request. Browsers send cookies for any page."""
    if site := header(scope, b"sec-fetch-site"):
        return site == b"same-origin"
    origin = urlsplit(header(scope, b"origin").decode("latin-1"))
    return origin.netloc != "" and origin.netloc.encode("latin-1") == header(scope, b"host")


def _is_allowed(user: BaseUser, pipeline: str, method: _Method) -> bool:
    details = DagDetails(id=pipeline, team_name=DagModel.get_team_name(pipeline))
    manager: Any = get_auth_manager()
    return bool(manager.is_authorized_dag(method=method, details=details, user=user))
