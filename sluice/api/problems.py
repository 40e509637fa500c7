"""Every error as a problem document (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sluice.errors import SluiceError

log = logging.getLogger(__name__)

_RETRY_SECONDS = "2"


def problem(
    status: int,
    detail: str,
    next_step: str = "",
    *,
    title: str = "",
    headers: Mapping[str, str] | None = None,
    extensions: Mapping[str, str] | None = None,
) -> Response:
    """One problem document; `extensions` are further members of it."""
    members = {"type": "about:blank", "title": title or HTTPStatus(status).phrase, "status": status, "detail": detail}
    if next_step:
        members["nextStep"] = next_step
    return Response(
        msgspec.json.encode(members | dict(extensions or {})),
        status_code=status,
        media_type="application/problem+json",
        headers=dict(headers or {}) | {"Cache-Control": "no-store"},
    )


def add_problems(app: FastAPI) -> None:
    """Let `app` answer every error with a problem document."""
    app.add_exception_handler(SluiceError, _sluice_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


def _sluice_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, SluiceError)
    headers = {"Retry-After": _RETRY_SECONDS} if error.status == HTTPStatus.SERVICE_UNAVAILABLE else {}
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("A request failed: %s", error)
    return problem(
        error.status, error.detail, error.next_step, title=error.title, headers=headers, extensions=error.extensions
    )


def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    # What was sent is not repeated: it may be anything.
    said = "; ".join(f"{_place(one)}: {one['msg']}" for one in error.errors())
    return problem(422, said, "See /sluice/docs for what the route takes.", title="Invalid parameters")


def _place(error: Mapping[str, Any]) -> str:
    return " ".join(str(part) for part in error["loc"])


def _http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    next_step = "See /sluice/docs for the routes there are." if error.status_code in (404, 405) else ""
    return problem(error.status_code, str(error.detail), next_step, headers=error.headers)


def _unexpected(_request: Request, error: Exception) -> Response:
    # The middleware outside of this handler logs the traceback.
    return problem(500, "The answer could not be made.", "See the API server's log.")
