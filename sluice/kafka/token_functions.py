"""Functions that make tokens for clients that log in with OAUTHBEARER, for example at AWS.

Settings are passed on to tasks in other processes, so a setting can only be text. Therefore the
setting `oauth_cb` has a function's name, and each process imports the function. The function takes
the text of `sasl.oauthbearer.config`, and returns a token and the time at which the token expires,
in epoch seconds.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock

from sluice.errors import SettingsError, SluiceError, sentence
from sluice.kafka.token_endpoint import Token, TokenError, argument_of, uses_endpoint

FUNCTION, ARGUMENT = "oauth_cb", "sasl.oauthbearer.config"
"""The settings with the function's name and its argument."""
SHARED = "sluice.oauthbearer.shared"
"""The setting that is `true` if all clients of a process share the tokens of an OAuth endpoint."""
MSK_IAM = "sluice.kafka.msk_iam.token"
_ENDPOINT = "sluice.kafka.token_endpoint.shared_token"
_MSK_SERVER = re.compile(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", re.IGNORECASE)
_LEAST_RETURNED = 2
_LATER = 100
"""If a token's expiry is more than this many times the present time, it is in ms rather than in
seconds."""
_SHARED_PART = 0.5
"""After this part of a token's lifetime, further clients of the process get a new token."""


@dataclass
class TokenFunction:
    """A function whose tokens all clients of this process share."""

    name: str
    make: Callable[[str], Token]
    trouble: str = ""
    """Why the last call has failed; empty if it has not."""
    _tokens: dict[str, tuple[float, Token]] = field(default_factory=dict)
    """Argument → the time until which the token is shared, epoch seconds, and the token."""
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, argument: str) -> Token:
        """Return a token. A client calls this when it is made, and before its token expires."""
        with self._lock:
            now = time.time()
            shared_until, token = self._tokens.get(argument, (0.0, ("", 0.0)))
            if now < shared_until:
                return token
            try:
                token = self.make(argument)
                expires_at = _expiry(token, now)
            except Exception as error:
                # Keep the reason, because the client only reports that the function has raised an
                # exception.
                is_plain = isinstance(error, SluiceError | TokenError)
                self.trouble = str(error) if is_plain else f"{type(error).__name__}: {error}"
                raise
            self.trouble = ""
            self._tokens[argument] = now + _SHARED_PART * (expires_at - now), token
            return token


def token_settings(kafka: Mapping[str, str]) -> dict[str, str | TokenFunction]:
    """Return the settings by which a client with these settings gets tokens from a function.

    The result is empty if the client needs no such tokens. Raises SettingsError if there is no such
    function.
    """
    name, argument = _named(kafka)
    if not name:
        return {}
    settings: dict[str, str | TokenFunction] = {FUNCTION: _imported(name)}
    if argument:
        settings[ARGUMENT] = argument
    if name == _ENDPOINT:
        # With the method `oidc`, the client itself would request tokens from the endpoint.
        settings["sasl.oauthbearer.method"] = "default"
    return settings


def uses_msk_iam(kafka: Mapping[str, str]) -> bool:
    """Return whether AWS's library makes the tokens of clients with these settings."""
    name, _ = _named(kafka)
    return name == MSK_IAM


def function_trouble(kafka: Mapping[str, str]) -> str:
    """Return why the last call of the function for tokens failed; empty if it succeeded."""
    name, _ = _named(kafka)
    if not name:
        return ""
    function = _imported(name)
    return f"{name} has failed: {function.trouble}" if function.trouble else ""


def _named(kafka: Mapping[str, str]) -> tuple[str, str]:
    """Return the function's name and its argument. The name is empty if there is no function."""
    name, argument = kafka.get(FUNCTION, ""), kafka.get(ARGUMENT, "")
    if name:
        return name, argument
    if kafka.get(SHARED, "").lower() == "true" and uses_endpoint(kafka):
        return _ENDPOINT, argument_of(kafka)
    mechanism = kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms", "")
    server = _MSK_SERVER.search(kafka.get("bootstrap.servers", ""))
    is_oidc = kafka.get("sasl.oauthbearer.method", "").lower() == "oidc"
    # The brokers of MSK accept only tokens of IAM.
    if mechanism.upper() != "OAUTHBEARER" or server is None or is_oidc:
        return "", ""
    return MSK_IAM, argument or f"region={server[1].lower()}"


def _expiry(token: Token, now: float) -> float:
    """Return when a token expires, in epoch seconds.

    Raise TokenError if the function's result is not a token. The error's text does not show the
    result.
    """
    returned = token if isinstance(token, (tuple, list)) else ()
    if len(returned) < _LEAST_RETURNED or not (returned[0] and isinstance(returned[0], str)):
        raise TokenError(
            "it must return a token (a text) and the time at which the token expires (a number "
            "of epoch seconds)"
        )
    expires_at = float(returned[1])
    if expires_at <= now:
        raise TokenError("its token has expired already; the time is in epoch seconds")
    if expires_at > now * _LATER:
        raise TokenError("the time at which its token expires is in milliseconds, not in seconds")
    return expires_at


@lru_cache
def _imported(name: str) -> TokenFunction:
    module, _, function = name.replace(":", ".").rpartition(".")
    if not module:
        raise SettingsError(
            f"The function {name} in the Kafka setting {FUNCTION} cannot be imported: its module "
            "is missing.",
            next_step="Write the function's name with its module, such as "
            "my_company.tokens.kafka_token.",
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingsError(
            f"The function {name} in the Kafka setting {FUNCTION} cannot be imported: "
            f"{sentence(error)}",
            next_step="Install the function's package on this host and, on a cluster, on each "
            "executor's host.",
        ) from None
    if not callable(found):
        raise SettingsError(
            f"{name} in the Kafka setting {FUNCTION} is not a function.",
            next_step="Name a function that takes a text and returns a token and when it expires.",
        )
    return TokenFunction(name, found)
