"""The page in Airflow's navigation, and the description of the REST view."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from starlette.requests import Request
from starlette.responses import Response

from sluice.api import changes, orders, pipelines, stores
from sluice.api.documentation import describe
from sluice.api.replies import reply
from sluice.api.routes import Routes

routes = Routes("page")

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


@routes.get("/", is_described=False)
async def show_page(request: Request, _asked: object) -> Response:
    """The page: stores, workers, snapshots, orders; it asks the REST view for what it shows."""
    return _html("page.html", request)


@routes.get("/docs", is_described=False)
async def show_docs(request: Request, _asked: object) -> Response:
    """The REST view, for people."""
    return _html("docs.html", request, api=_description())


@routes.get("/openapi.json", is_described=False)
async def get_openapi(_request: Request, _asked: object) -> Response:
    """The REST view, for programs."""
    return reply(_description())


@cache
def _description() -> dict[str, Any]:
    generic = [*stores.routes.found, *changes.routes.found, *pipelines.routes.found]
    return describe(("/sluice", generic), ("/v1", orders.routes.found))


def _html(template: str, request: Request, **values: Any) -> Response:
    # Below wherever Airflow itself is served.
    base = request.scope.get("root_path", "").rstrip("/")
    content = _TEMPLATES.get_template(template).render(base=base, **values)
    return Response(content, media_type="text/html; charset=utf-8", headers=_HEADERS)
