"""Airflow's log-in, which every request needs: it is checked before routing, even for paths that do not exist."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from jwt import InvalidTokenError
from starlette.requests import cookie_parser
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose

from sluice.api.auth.airflow_permissions import AirflowUser
from sluice.api.auth.permissions import authenticate, unauthorized
from sluice.api.http.problems import problem
from sluice.api.http.request_headers import header
from sluice.support.single_flight import SingleFlightCache

_REMEMBER_SECONDS = 5.0
"""How long a checked token and its permissions are cached, and therefore how long a revoked token
still works."""

_MAX_USERS = 1_000
_HOW_TO_LOG_IN = (
    "Log in to Airflow, or send a token from POST /auth/token as Authorization: Bearer."
)
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


class LoginRequired:
    """ASGI middleware that responds with 401 to every request without a valid log-in, whatever its path."""

    def __init__(self, app: ASGIApp, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._users = SingleFlightCache[AirflowUser | None](
            _REMEMBER_SECONDS, _MAX_USERS, clock=clock
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or respond with 401."""
        # No route accepts websockets, so a websocket is closed.
        if scope["type"] == "websocket":
            await WebSocketClose()(scope, receive, send)
            return
        if scope["type"] == "http":
            token = _token(scope)
            user = await self._user(token)
            if user is None:
                await unauthorized(_HOW_TO_LOG_IN)(scope, receive, send)
                return
            # A browser adds this site's cookie also to requests that pages of other sites make.
            # Such a page must not change anything in the user's name.
            if (
                scope["method"] not in _SAFE_METHODS
                and _bearer(scope) is None
                and not _is_same_origin(scope)
            ):
                detail = "A page of another site sent this request with the browser's cookie."
                await problem(403, detail, _HOW_TO_LOG_IN)(scope, receive, send)
                return
            authenticate(scope, user, partial(self._user, token))
        await self._app(scope, receive, send)

    async def _user(self, token: bytes) -> AirflowUser | None:
        if not token:
            return None
        # The cache stores digests instead of tokens.
        digest = hashlib.sha256(token).digest()
        return await self._users.get(
            digest, lambda: _user_of_token(token), keep=lambda user: user is not None
        )


async def _user_of_token(token: bytes) -> AirflowUser | None:
    try:
        return AirflowUser(await get_auth_manager().get_user_from_token(token.decode()))
    except (InvalidTokenError, UnicodeDecodeError):
        return None


def _token(scope: Scope) -> bytes:
    """The bearer token, or else the token in the browser's cookie.

    Airflow looks in the same order.
    """
    if (token := _bearer(scope)) is not None:
        return token
    cookie = header(scope, b"cookie")
    return (
        cookie_parser(cookie.decode("latin-1")).get(COOKIE_NAME_JWT_TOKEN, "").encode("latin-1")
        if cookie
        else b""
    )


def _bearer(scope: Scope) -> bytes | None:
    """The token in the Authorization header, which browsers do not send on their own."""
    scheme, _, token = header(scope, b"authorization").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def _is_same_origin(scope: Scope) -> bool:
    """Whether the browser says that a page of this site sent the request.

    A browser sends this site's cookie even if a page of another site makes the request.
    """
    if site := header(scope, b"sec-fetch-site"):
        return site == b"same-origin"
    # Older browsers do not send Sec-Fetch-Site.
    origin = urlsplit(header(scope, b"origin").decode("latin-1"))
    return origin.netloc != "" and origin.netloc.encode("latin-1") == header(scope, b"host")
