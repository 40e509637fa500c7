"""Asks an OAuth token endpoint for a token, to say why a client has none.

Clients get their tokens by librdkafka's own implementation of OIDC. But an administrative client
only reports that a request has got no answer, so this module finds the reason.
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
"""How long an answer is kept, because a trigger asks again every few seconds."""
_MOST_BYTES = 1_000_000
_LONGEST_REASON = 300
_PREFIX = "sasl.oauthbearer."


def uses_endpoint(kafka: Mapping[str, str]) -> bool:
    """Return whether the clients with these settings get their tokens by OIDC."""
    return kafka.get(f"{_PREFIX}method", "").lower() == "oidc"


def endpoint_of(kafka: Mapping[str, str]) -> str:
    """Return the address of the token endpoint."""
    return kafka.get(f"{_PREFIX}token.endpoint.url", "")


def endpoint_trouble(kafka: Mapping[str, str]) -> str:
    """Return why the endpoint issues no valid token, as the end of a sentence; empty if it does.

    Also returns an empty text if the settings need more than an id and a secret, because only
    librdkafka knows how such a token is asked for.
    """
    names = ("client.id", "client.secret", "token.endpoint.url", "scope")
    values = {name: kafka.get(f"{_PREFIX}{name}", "") for name in names}
    if not uses_endpoint(kafka) or not all(values[name] for name in names[:3]):
        return ""
    if not values["token.endpoint.url"].lower().startswith(("http://", "https://")):
        return ""
    authority = kafka.get("https.ca.location", ""), kafka.get("https.ca.pem", "")
    period = int(time.monotonic() / _KEPT_S)
    return _trouble(tuple(values[name] for name in names), authority, period)


@lru_cache(maxsize=4)
def _trouble(values: tuple[str, ...], authority: tuple[str, str], period: int) -> str:
    # Imported only here, because these imports take as long as those of all of Kafka's clients, and
    # only clients without a token need them.
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.parse import urlencode
    from urllib.request import Request, urlopen

    client, secret, url, scope = values
    log_in = base64.b64encode(f"{client}:{secret}".encode()).decode()
    form = {"grant_type": "client_credentials"}
    if scope:
        form["scope"] = scope
    headers = {
        "Authorization": f"Basic {log_in}",
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
    }
    try:
        request = Request(url, urlencode(form).encode(), headers)
        with urlopen(request, timeout=_ANSWER_S, context=_context(url, authority)) as answer:
            token = json.loads(answer.read(_MOST_BYTES))["access_token"]
    except HTTPError as error:
        text = error.read(_MOST_BYTES).decode(errors="replace")
        return f"answers {error.code} {error.reason}: {' '.join(text.split())[:_LONGEST_REASON]}"
    except (HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            return f"does not answer within {_ANSWER_S:.0f} s"
        return f"cannot be reached: {reason}"
    except (ValueError, KeyError, TypeError):
        return "answers without an access_token"
    return _trouble_of_token(token)


def _context(url: str, authority: tuple[str, str]) -> ssl.SSLContext | None:
    if not url.lower().startswith("https:"):
        return None
    import ssl

    file, text = authority
    return ssl.create_default_context(cafile=file or None, cadata=text or None)


def _trouble_of_token(token: object) -> str:
    """Return what is wrong with a token that the endpoint has issued; empty if nothing is."""
    try:
        payload = str(token).split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        late_s = time.time() - float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return "issues tokens that are not JSON Web Tokens with the claim exp"
    if late_s >= 0:
        return f"issues tokens that expired {late_s:.0f} s ago by the clock of this host"
    return ""
