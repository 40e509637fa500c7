"""Masks secrets: finds the secrets in settings and URLs, and hides them in URLs and texts.

A secret is the password in a URL, and the value of a setting or of a URL's parameter whose name
says so. A URL is masked by its structure, so that even a short secret is hidden. A text is
masked by the secrets themselves, if they are long enough not to be ordinary words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from urllib.parse import quote, quote_plus, unquote, unquote_plus

MASK = "***"
_LEAST_LENGTH = 8
"""In a text, shorter secrets are not masked, because they may be parts of ordinary words."""

_SECRET_NAME = re.compile(
    "passw|passphrase|passcode|passfile|pwd|secret|token|credential|jaas|signature|userinfo"
    "|odbcconnect|oauthbearerconfig|(api|access|account|shared)key|(key|pass|pem|sig)$"
)
_HARMLESS_NAME = re.compile("(url|uri|endpoint|providers?)$")
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][\w+.-]*://)"
    # The log-in ends at the last @ before the parameters: a password may contain @, / and ?.
    r"(?:(?P<user>[^:/@?]*)(?::(?P<password>.*?))?@(?=[^@?]*(?:\?|$)))?"
    r"(?P<place>[^?]*)(?:\?(?P<parameters>.*))?",
    re.DOTALL,
)
_URL_IN_TEXT = re.compile(r"""[A-Za-z][\w+.-]*://[^\s'"`<>]*[^\s'"`<>.,;:!?)]""")
"""A URL in a sentence, without the punctuation after it."""
_ASSIGNMENT = re.compile(r"""([\w.-]+)(\s*=\s*)("[^"]*"|'[^']*'|\{[^}]*\}|[^\s;,&"']+)""")
"""A setting inside a value, such as `password="..."` for JAAS, or `PWD=...` for ODBC."""


def is_secret(name: str) -> bool:
    """Return whether the value of a setting or a parameter with this name is a secret."""
    letters = re.sub("[^a-z]", "", name.lower())
    return bool(_SECRET_NAME.search(letters)) and not _HARMLESS_NAME.search(letters)


def holds_secret(name: str, value: str) -> bool:
    """Return whether the value of a setting is a secret, or contains one."""
    if is_secret(name):
        return True
    return any(is_secret(assignment[1]) for assignment in _ASSIGNMENT.finditer(value))


def secrets_of_settings(settings: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets in settings, and the secrets in URLs that are values of settings."""
    for name, value in settings.items():
        if is_secret(name):
            # A message may repeat a single line of a secret, such as a key.
            yield from (value, *value.splitlines())
            # A log-in is written as USER:PASSWORD.
            if "userinfo" in re.sub("[^a-z]", "", name.lower()):
                yield value.partition(":")[2]
        yield from secrets_of_url(value)


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield the secrets in a URL, or in libpq's `host=... password=...`, as written and decoded."""
    parts = _URL.fullmatch(url)
    if parts is None:
        yield from _assigned_secrets(url)
        return
    password = parts["password"] or ""
    yield from (password, unquote(password))
    for name, value in _parameters(parts["parameters"] or ""):
        if is_secret(name):
            # In parameters, SQLAlchemy takes + for a blank, and libpq does not.
            yield from (value, unquote(value), unquote_plus(value))
        yield from _assigned_secrets(unquote_plus(value))


def shown_url(url: str) -> str:
    """Return the URL with all its secrets masked, for errors and logs."""
    parts = _URL.fullmatch(url)
    if parts is None:
        return _ASSIGNMENT.sub(_masked_assignment, url)
    log_in = ""
    if parts["user"] is not None:
        log_in = f"{parts['user']}@"
        if parts["password"] is not None:
            log_in = f"{parts['user']}:{MASK}@"
    shown = f"{parts['scheme']}{log_in}{parts['place']}"
    if parts["parameters"] is None:
        return shown
    parameters = map(_shown_parameter, parts["parameters"].split("&"))
    return f"{shown}?{'&'.join(parameters)}"


def without_log_in(url: str) -> str:
    """Return host, port and path of a URL, without scheme, log-in and parameters."""
    parts = _URL.fullmatch(url)
    return url if parts is None else parts["place"]


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return the text with these secrets masked, in any encoding, and with the URLs in it masked.

    Secrets are masked as whole words only, and only if they have eight characters or more. So the
    text stays readable, whatever somebody has chosen as a password.
    """
    words = _words(frozenset(secrets))
    if words is not None:
        text = words.sub(MASK, text)
    return _URL_IN_TEXT.sub(lambda url: shown_url(url[0]), text)


@lru_cache
def _words(secrets: frozenset[str]) -> re.Pattern[str] | None:
    """Return a pattern that matches the secrets that are long enough; None if all are too short."""
    forms: set[str] = set()
    for secret in secrets:
        for form in _forms(secret):
            if len(form) >= _LEAST_LENGTH:
                forms.add(form)
    if not forms:
        return None
    longest_first = sorted(forms, key=len, reverse=True)
    return re.compile("|".join(map(_whole_word, longest_first)))


def _forms(secret: str) -> set[str]:
    """Return the texts by which a secret may appear in a URL, in JSON or in Python's repr."""
    in_url = {quote(secret), quote(secret, safe=""), quote_plus(secret)}
    return {secret, *in_url, json.dumps(secret)[1:-1], repr(secret)[1:-1]}


def _whole_word(secret: str) -> str:
    """Return a regular expression for the secret, unless it is a part of a longer word."""
    pattern = re.escape(secret)
    if re.match(r"\w", secret):
        # The end of an encoded character, such as %3A, is not a part of the word after it.
        pattern = rf"(?:(?<!\w)|(?<=%[0-9A-Fa-f]{{2}})){pattern}"
    if re.search(r"\w\Z", secret):
        pattern = rf"{pattern}(?!\w)"
    return pattern


def _parameters(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and the encoded values of a URL's parameters."""
    for parameter in text.split("&"):
        name, _, value = parameter.partition("=")
        yield unquote_plus(name), value


def _shown_parameter(parameter: str) -> str:
    name, sign, value = parameter.partition("=")
    if sign and holds_secret(unquote_plus(name), unquote_plus(value)):
        return f"{name}={MASK}"
    return parameter


def _assigned_secrets(text: str) -> Iterator[str]:
    for assignment in _ASSIGNMENT.finditer(text):
        if is_secret(assignment[1]):
            value = assignment[3]
            yield value
            if value[0] in "\"'{":
                yield value[1:-1]


def _masked_assignment(assignment: re.Match[str]) -> str:
    name, sign = assignment[1], assignment[2]
    if not is_secret(name):
        return assignment[0]
    return f"{name}{sign}{MASK}"
