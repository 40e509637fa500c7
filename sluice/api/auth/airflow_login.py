"""Airflow's log-in, which is checked before routing, even for paths that do not exist."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.base_auth_manager import (
    COOKIE_NAME_JWT_TOKEN,
    BaseAuthManager,
)
from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api import security
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
_TRUSTED: object = getattr(security, "USER_INJECTED_BY_TRUSTED_MIDDLEWARE", None)
"""Airflow's middleware adds this marker to a request whose cookies it has checked. None before
Airflow 3.3, where the token alone is enough."""

_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


class LoginRequired:
    """ASGI middleware that responds with 401 to every request without a valid log-in."""

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
            bearer = _bearer(scope)
            # Like Airflow, prefer the token in the header to the token in the cookie.
            if bearer is not None:
                user_of_request = partial(self._user, bearer, None)
            else:
                user_of_request = partial(self._user, _cookie(scope), _session_user(scope))
            user = await user_of_request()
            if user is None:
                await unauthorized(_HOW_TO_LOG_IN)(scope, receive, send)
                return
            # A browser adds this site's cookie also to requests that pages of other sites make.
            # Such a page must not change anything in the user's name.
            is_change_by_cookie = bearer is None and scope["method"] not in _SAFE_METHODS
            if is_change_by_cookie and not _is_same_origin(scope):
                detail = "A page of another site sent this request with the browser's cookie."
                await problem(403, detail, _HOW_TO_LOG_IN)(scope, receive, send)
                return
            authenticate(scope, user, user_of_request)
        await self._app(scope, receive, send)

    async def _user(self, token: bytes, session_user: BaseUser | None) -> AirflowUser | None:
        if not token:
            return None
        # The cache stores digests instead of tokens. A token that is accepted together with other
        # cookies must not be accepted without them.
        key = hashlib.sha256(token).digest(), session_user is not None
        user = await self._users.get(
            key, lambda: _user_of(token, session_user), keep=lambda user: user is not None
        )
        if user is not None and session_user is not None:
            user.renew(session_user)
        return user


async def _user_of(token: bytes, session_user: BaseUser | None) -> AirflowUser | None:
    """Return the user to whom a token belongs; None if the token is invalid or has expired."""
    manager = get_auth_manager()
    try:
        if session_user is not None:
            # Airflow's middleware has already made the user from all cookies, so check only the
            # token.
            await BaseAuthManager.get_user_from_token(manager, token.decode())
            return AirflowUser(session_user)
        # Keycloak's manager returns None if a browser's token comes without the other cookies.
        user: BaseUser | None = await manager.get_user_from_token(token.decode())
    except (InvalidTokenError, UnicodeDecodeError):
        return None
    return None if user is None else AirflowUser(user)


def _session_user(scope: Scope) -> BaseUser | None:
    """Return the user that Airflow's own middleware has made from the browser's cookies, if any.

    Keycloak's manager keeps its credentials for Keycloak in separate cookies.
    """
    state = scope.get("state", {})
    if _TRUSTED is None or state.get("user_authenticated_via") is not _TRUSTED:
        return None
    user: BaseUser | None = state.get("user")
    return user


def _cookie(scope: Scope) -> bytes:
    """Return the token in the browser's cookie."""
    cookie = header(scope, b"cookie")
    if not cookie:
        return b""
    cookies = cookie_parser(cookie.decode("latin-1"))
    return cookies.get(COOKIE_NAME_JWT_TOKEN, "").encode("latin-1")


def _bearer(scope: Scope) -> bytes | None:
    """Return the token in the Authorization header, which browsers do not send on their own."""
    scheme, _, token = header(scope, b"authorization").partition(b" ")
    if scheme.lower() != b"bearer":
        return None
    return token.strip()


def _is_same_origin(scope: Scope) -> bool:
    """Return whether the browser says that a page of this site sent the request.

    A browser sends this site's cookie even if a page of another site makes the request.
    """
    site = header(scope, b"sec-fetch-site")
    if site:
        return site == b"same-origin"
    # Older browsers do not send Sec-Fetch-Site.
    origin = urlsplit(header(scope, b"origin").decode("latin-1"))
    return origin.netloc != "" and origin.netloc.encode("latin-1") == header(scope, b"host")
