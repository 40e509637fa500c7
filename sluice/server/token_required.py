"""The token of the state servers, which every request to a state server needs."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Collection, Sequence

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
        """The same name for every program with the token: the token does not say who sends it."""
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
    only after the server has proved the same (`state.remote.server_identity`). While one token
    replaces another, both are in `tokens`, and the server proves that it knows the sender's token.
    """

    def __init__(self, app: ASGIApp, tokens: Sequence[str], card: Card) -> None:
        self._app = app
        self._tokens = tokens
        self._card = card
        self._expected = [f"Bearer {token}".encode() for token in tokens]
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
        if self._is_expected(authorization):
            return True
        scheme, _, credentials = authorization.partition(b" ")
        # Clients may write the scheme in capitals or in small letters.
        return self._is_expected(scheme.capitalize() + b" " + credentials)

    def _is_expected(self, authorization: bytes) -> bool:
        return any([hmac.compare_digest(authorization, each) for each in self._expected])

    async def _answer_without_token(
        self, authorization: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        scheme, _, credentials = authorization.partition(b" ")
        challenge = self._challenge(scheme, credentials)
        if challenge is not None:
            token, number = challenge
            content, proof = server_identity.proved_card(token, number, self._card)
            headers = {server_identity.PROOF: proof}
            await Response(content, headers=headers, media_type="application/json")(
                scope, receive, send
            )
            return
        refusal = unauthorized("Send the server's token in the header Authorization: Bearer.")
        # The server does not wait for the rest of the request, because anyone can send an endless
        # request.
        refusal.headers["Connection"] = "close"
        await refusal(scope, receive, send)

    def _challenge(self, scheme: bytes, credentials: bytes) -> tuple[str, str] | None:
        """Return the token that the sender of a challenge knows, and its random number.

        Return None for any other request.
        """
        if scheme.lower() != server_identity.SCHEME.lower().encode():
            return None
        for token in self._tokens:
            number = server_identity.challenge_number(token, credentials.decode("latin-1"))
            if number is not None:
                return token, number
        return None

    async def _same_holder(self) -> Principal:
        return self._holder
