"""Headers of requests."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, name: bytes) -> bytes:
    """Return the value of the first header with this name; empty if there is no such header.

    `name` must be in lower case. A look-up in Starlette's `Request.headers` takes longer.
    """
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    for header_name, value in headers:
        if header_name == name:
            return value
    return b""
