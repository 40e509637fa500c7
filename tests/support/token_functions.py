"""Functions that make tokens, for the Kafka setting `oauth_cb`."""

from __future__ import annotations

import json
import time
from base64 import urlsafe_b64encode
from urllib.parse import urlencode
from urllib.request import urlopen


def from_server(url: str) -> tuple[str, float]:
    """Ask the token server at this address for a token, as AWS's library asks AWS."""
    from tests.support.token_server import CLIENT_ID, CLIENT_SECRET

    form = {"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}
    with urlopen(url, urlencode(form).encode(), timeout=5) as answer:
        token = json.load(answer)
    return token["access_token"], time.time() + token["expires_in"]


calls: list[str] = []


def unsigned(argument: str) -> tuple[str, float]:
    """Make a token that no broker accepts, and note the call."""
    calls.append(argument)
    claims = json.dumps({"sub": "sluice"}).encode()
    return f"e30.{urlsafe_b64encode(claims).decode()}.", time.time() + 3_600


def failing(argument: str) -> tuple[str, float]:
    raise RuntimeError(f"no credentials for {argument}")


not_a_function = "text"
