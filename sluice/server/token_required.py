"""The token of the state servers, which every request to a state server needs."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Collection

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override

from sluice.api.auth.permissions import Principal, authenticate, unauthorized
from sluice.api.http.request_headers import header
from sluice.server.http_protocol import PROVEN
from sluice.state.remote import server_identity
from sluice.state.remote.server_identity import Card


class TokenHolder(Principal):
    """A program with the servers' token, which may read and change all pipelines."""

    @property
    @override
    def name(self) -> str:
        """The name of every program with the token, which does not say who sends it."""
        return "state-server"

    @override
    async def may_read(self, pipeline: str) -> bool:
        return True

    @override
    async def may_edit(self, pipeline: str) -> bool:
        return True

    @override
    async def readable(self, pipelines: Collection[str]) -> Collection[str]:
        return pipelines


class TokenRequired:
    """ASGI middleware that responds with 401 to every request without the servers' token.

    Only a challenge needs no token: its sender proves that it knows the token, and sends the token
    only after the server has proved the same (`state.remote.server_identity`).
    """

    def __init__(self, app: ASGIApp, token: str, card: Card) -> None:
        self._app = app
        self._token = token
        self._card = card
        self._expected = f"Bearer {token}".encode()
        self._holder = TokenHolder()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on, or respond with 401."""
        authorization = header(scope, b"authorization")
        if not self._has_token(authorization):
            return self._answer_without_token(authorization, scope, receive, send)
        proven = scope.get(PROVEN)
        if proven is not None:
            proven()
        authenticate(scope, self._holder, self._same_holder)
        return self._app(scope, receive, send)

    def _has_token(self, authorization: bytes) -> bool:
        # The comparisons take equally long for every wrong token, so that their time tells nothing
        # about the token.
        if hmac.compare_digest(authorization, self._expected):
            return True
        scheme, _, credentials = authorization.partition(b" ")
        # Clients may write the scheme in capitals or in small letters.
        return hmac.compare_digest(scheme.capitalize() + b" " + credentials, self._expected)

    async def _answer_without_token(
        self, authorization: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scheme, _, credentials = authorization.partition(b" ")
        number = self._challenge_number(scheme, credentials)
        if number is not None:
            content, proof = server_identity.proved_card(self._token, number, self._card)
            headers = {server_identity.PROOF: proof}
            await Response(content, headers=headers, media_type="application/json")(
                scope, receive, send
            )
            return
        refusal = unauthorized(
            "Send the token that the server was started with as Authorization: Bearer."
        )
        # The server does not wait for the rest of the request, because anyone can send an endless
        # request.
        refusal.headers["Connection"] = "close"
        await refusal(scope, receive, send)

    def _challenge_number(self, scheme: bytes, credentials: bytes) -> str | None:
        """Return the random number of a challenge whose sender knows the token.

        Return None for any other request.
        """
        if scheme.lower() != server_identity.SCHEME.lower().encode():
            return None
        return server_identity.challenge_number(self._token, credentials.decode("latin-1"))

    async def _same_holder(self) -> Principal:
        return self._holder
