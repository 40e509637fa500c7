"""Headers of requests."""

from __future__ import annotations

from starlette.types import Scope


def header(scope: Scope, wanted: bytes) -> bytes | None:
    """The first header of this name, which must be in lower case. Takes less time than a request's `headers`."""
    for name, value in scope["headers"]:
        if name == wanted:
            found: bytes = value
            return found
    return None
