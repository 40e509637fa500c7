"""Converts errors to problem documents (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

from sluice.errors import SluiceError
from sluice.settings import masked

log = logging.getLogger(__name__)

_RETRY_SECONDS = "2"
_TEMPORARY = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS}


def problem(
    status: int,
    detail: str,
    next_step: str = "",
    *,
    title: str = "",
    headers: Mapping[str, str] | None = None,
    extensions: Mapping[str, Any] | None = None,
) -> Response:
    """A response with a problem document; `extensions` are additional members."""
    members = {
        "type": "about:blank",
        "title": title or HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    if next_step:
        members["nextStep"] = next_step
    return Response(
        msgspec.json.encode(members | dict(extensions or {})),
        status_code=status,
        media_type="application/problem+json",
        headers=dict(headers or {})
        | {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"},
    )


def problem_of(error: SluiceError) -> Response:
    """A response with the problem document of an error."""
    headers = {"Retry-After": _RETRY_SECONDS} if error.status in _TEMPORARY else {}
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("A request failed: %s", masked(str(error)))
    return problem(
        error.status,
        masked(error.detail),
        masked(error.next_step),
        title=error.title,
        headers=headers,
        extensions=error.extensions,
    )
