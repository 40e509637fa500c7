"""Requests tokens from an OAuth endpoint, with the client credentials of OpenID Connect.

By default, each client gets its tokens by librdkafka's own implementation of OIDC. If there is no
token, an administrative client only reports that a request got no answer, so this module finds the
reason. It also gets the tokens that all clients of a process share, if the settings say so.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

_ANSWER_S = 5.0
_KEPT_S = 10
"""How long an answer is cached. A trigger needs an answer every few seconds."""
_MOST_BYTES = 1_000_000
_LONGEST_REASON = 300
_PREFIX = "sasl.oauthbearer."
_NEEDED = ("client.id", "client.secret", "token.endpoint.url")
_NAMES = (
    *(_PREFIX + name for name in (*_NEEDED, "scope", "extensions")),
    "https.ca.location",
    "https.ca.pem",
)
_CLIENT_CREDENTIALS = "client_credentials"

Token = tuple[str, float] | tuple[str, float, str, dict[str, str]]
"""A token, its expiry in epoch seconds, and optionally SASL's principal and extensions."""


class TokenError(Exception):
    """An endpoint has issued no valid token.

    `reason` completes a sentence that begins with the endpoint.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the token endpoint {reason}")
        self.reason = reason


def uses_endpoint(kafka: Mapping[str, str]) -> bool:
    """Return whether clients get their tokens from an endpoint, with an id and a secret."""
    is_oidc = kafka.get(f"{_PREFIX}method", "").lower() == "oidc"
    grant = kafka.get(f"{_PREFIX}grant.type") or _CLIENT_CREDENTIALS
    has_scheme = endpoint_of(kafka).lower().startswith(("http://", "https://"))
    is_known = is_oidc and grant == _CLIENT_CREDENTIALS
    return is_known and has_scheme and all(kafka.get(_PREFIX + name) for name in _NEEDED)


def endpoint_of(kafka: Mapping[str, str]) -> str:
    """Return the address of the token endpoint."""
    return kafka.get(f"{_PREFIX}token.endpoint.url", "")


def endpoint_trouble(kafka: Mapping[str, str]) -> str:
    """Return why the endpoint issues no valid token, as the end of a sentence; empty if it does.

    Also returns an empty text if the settings need more than an id and a secret, because only
    librdkafka can request such a token.
    """
    if not uses_endpoint(kafka):
        return ""
    return _trouble(argument_of(kafka), int(time.monotonic() / _KEPT_S))


def argument_of(kafka: Mapping[str, str]) -> str:
    """Return the argument of `shared_token` for these settings. It contains the secret."""
    return json.dumps({name: kafka[name] for name in _NAMES if kafka.get(name)})


def shared_token(argument: str) -> Token:
    """Request a token from the endpoint. Raises TokenError if there is no valid token."""
    settings: Mapping[str, str] = json.loads(argument)
    token = _requested(settings)
    expires_at = _expiry(token)
    late_s = time.time() - expires_at
    if late_s >= 0:
        raise TokenError(f"issues tokens that expired {late_s:.0f} s ago by the clock of this host")
    extensions: dict[str, str] = {}
    for text in settings.get(f"{_PREFIX}extensions", "").split(","):
        name, sign, value = text.partition("=")
        if sign:
            extensions[name.strip()] = value.strip()
    if extensions:
        return token, expires_at, "", extensions
    return token, expires_at


@lru_cache(maxsize=4)
def _trouble(argument: str, period: int) -> str:
    try:
        shared_token(argument)
    except TokenError as error:
        return error.reason
    return ""


def _requested(settings: Mapping[str, str]) -> str:
    # Imported only here, because these imports take as long as importing all of Kafka's clients,
    # and few processes need them.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import urlencode
    from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """Never sends the secret to another address. Neither does librdkafka."""

        def redirect_request(self, *_: object) -> None:
            return None

    client, secret, url = (settings[_PREFIX + name] for name in _NEEDED)
    log_in = base64.b64encode(f"{client}:{secret}".encode()).decode()
    form = {"grant_type": _CLIENT_CREDENTIALS}
    if scope := settings.get(f"{_PREFIX}scope"):
        form["scope"] = scope
    headers = {
        "Authorization": f"Basic {log_in}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    try:
        request = Request(url, urlencode(form).encode(), headers)
        opener = build_opener(NoRedirects, HTTPSHandler(context=_context(settings)))
        with opener.open(request, timeout=_ANSWER_S) as answer:
            return str(json.loads(answer.read(_MOST_BYTES))["access_token"])
    except HTTPError as error:
        text = " ".join(error.read(_MOST_BYTES).decode(errors="replace").split())
        reason = f"answers {error.code} {error.reason}: {text[:_LONGEST_REASON]}"
    except (HTTPException, OSError) as error:
        cause = getattr(error, "reason", error)
        reason = f"cannot be reached: {cause}"
        if isinstance(cause, TimeoutError):
            reason = f"does not answer within {_ANSWER_S:.0f} s"
    except (ValueError, KeyError, TypeError):
        reason = "answers without an access_token"
    raise TokenError(reason)


def _context(settings: Mapping[str, str]) -> ssl.SSLContext | None:
    if not endpoint_of(settings).lower().startswith("https:"):
        return None
    import ssl

    file, text = settings.get("https.ca.location"), settings.get("https.ca.pem")
    return ssl.create_default_context(cafile=file, cadata=text)


def _expiry(token: str) -> float:
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        raise TokenError("issues tokens that are not JSON Web Tokens with the claim exp") from None
