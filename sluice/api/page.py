"""The page in Airflow's navigation, and the description of the REST view."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from fastapi import APIRouter, Request
from starlette.responses import Response

from sluice.api import orders, pipelines, stores
from sluice.api.documentation import describe
from sluice.api.replies import reply

router = APIRouter(include_in_schema=False)

# Everything the page shows comes from its own server, and nothing that a store holds can run in it.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'self'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TEMPLATES = jinja2.Environment(
    loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


@router.get("/")
async def show_page(request: Request) -> Response:
    """The page: stores, workers, cuts, orders; it asks the REST view for what it shows."""
    return _html("page.html", request)


@router.get("/docs")
async def show_docs(request: Request) -> Response:
    """The REST view, for people."""
    return _html("docs.html", request, api=_description())


@router.get("/openapi.json")
async def get_openapi() -> Response:
    """The REST view, for programs."""
    return reply(_description())


@cache
def _description() -> dict[str, Any]:
    return describe(("/sluice", stores.router), ("/sluice", pipelines.router), ("/v1", orders.router))


def _html(template: str, request: Request, **values: Any) -> Response:
    # Below wherever Airflow itself is served.
    base = request.scope.get("root_path", "").rstrip("/")
    content = _TEMPLATES.get_template(template).render(base=base, **values)
    return Response(content, media_type="text/html; charset=utf-8", headers=_HEADERS)
