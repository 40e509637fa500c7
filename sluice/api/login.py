"""Who is asking, and what they may read: Airflow's log-in and Airflow's permissions, nothing of its own.

Whoever may read a pipeline's DAG may read its stores. Everything else of an app is open to whoever is logged in, and
nothing to anybody else: the check stands before the routes, so it also covers those there are not.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any
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

from sluice.api.problems import problem
from sluice.api.visitors import Visitor, let_in, unauthorized

REMEMBER_SECONDS = 5.0
"""How long a checked token and a permission count without being looked up again, hence how long a revoked one may."""

_MOST_VISITORS = 1_000
_HOW = "Log in to Airflow, or send a token from POST /auth/token as Authorization: Bearer."
_SAFE = {"GET", "HEAD", "OPTIONS"}

_Headers = list[tuple[bytes, bytes]]


class AirflowVisitor(Visitor):
    """A user of Airflow, with what has been found out about their permissions lately."""

    def __init__(self, user: BaseUser, until: float) -> None:
        self.until = until
        self._user = user
        self._may_read: dict[str, asyncio.Future[bool]] = {}

    @override
    async def may_read(self, pipeline: str) -> bool:
        known = self._may_read.get(pipeline)
        if known is None or (known.done() and known.exception() is not None):
            # Auth managers look permissions up in their databases, and block while they do.
            looking = asyncio.to_thread(_may_read, self._user, pipeline)
            known = self._may_read[pipeline] = asyncio.ensure_future(looking)
        return known.result() if known.done() else await asyncio.shield(known)


class LoginRequired:
    """ASGI middleware: 401 for every request, to whatever path, that does not come from a logged-in user."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._clock = clock
        self._visitors: dict[bytes, AirflowVisitor] = {}
        self._looking: dict[bytes, asyncio.Task[AirflowVisitor | None]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through, or answer 401."""
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] == "http":
            token = _token(scope)
            visitor = await self._visitor(token)
            if visitor is None:
                await unauthorized(_HOW)(scope, receive, send)
                return
            if scope["method"] not in _SAFE and _bearer(scope["headers"]) is None and not _is_of_this_site(scope):
                await problem(403, "A page of another site asks for this with the browser's log-in.", _HOW)(
                    scope, receive, send
                )
                return
            let_in(scope, visitor, partial(self._visitor, token))
        await self._app(scope, receive, send)

    async def _visitor(self, token: bytes) -> AirflowVisitor | None:
        if not token:
            return None
        # Tokens are not kept, only their digests.
        digest = hashlib.sha256(token).digest()
        known = self._visitors.get(digest)
        if known is not None and known.until > self._clock():
            return known
        # However many requests come with it at the same time, it is looked up once.
        looking = self._looking.get(digest)
        if looking is None:
            looking = self._looking[digest] = asyncio.ensure_future(self._look_up(token, digest))
            looking.add_done_callback(lambda _: self._looking.pop(digest, None))
        return await asyncio.shield(looking)

    async def _look_up(self, token: bytes, digest: bytes) -> AirflowVisitor | None:
        asked_at = self._clock()
        try:
            user = await get_auth_manager().get_user_from_token(token.decode())
        except (InvalidTokenError, UnicodeDecodeError):
            self._visitors.pop(digest, None)
            return None
        if len(self._visitors) >= _MOST_VISITORS:
            self._visitors.clear()
        visitor = self._visitors[digest] = AirflowVisitor(user, asked_at + REMEMBER_SECONDS)
        return visitor


def _token(scope: Scope) -> bytes:
    """The bearer's token or the browser's, in Airflow's own order: a given token wins over the cookie."""
    headers: _Headers = scope["headers"]
    if (token := _bearer(headers)) is not None:
        return token
    cookie = _header(headers, b"cookie")
    return cookie_parser(cookie.decode("latin-1")).get(COOKIE_NAME_JWT_TOKEN, "").encode("latin-1") if cookie else b""


def _bearer(headers: _Headers) -> bytes | None:
    """The token that was given explicitly, which no browser does by itself."""
    scheme, _, token = _header(headers, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _is_of_this_site(scope: Scope) -> bool:
    """Whether a browser says that a page of this very site asks: cookies it sends for the pages of all others, too."""
    if said := _header(scope["headers"], b"sec-fetch-site"):
        return said == b"same-origin"
    origin = urlsplit(_header(scope["headers"], b"origin").decode("latin-1"))
    return origin.netloc != "" and origin.netloc.encode("latin-1") == _header(scope["headers"], b"host")


def _header(headers: _Headers, wanted: bytes) -> bytes:
    return next((value for name, value in headers if name == wanted), b"")


def _may_read(user: BaseUser, pipeline: str) -> bool:
    details = DagDetails(id=pipeline, team_name=DagModel.get_team_name(pipeline))
    manager: Any = get_auth_manager()
    return bool(manager.is_authorized_dag(method="GET", details=details, user=user))
