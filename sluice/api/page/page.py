"""The page in Airflow's navigation, and the documentation of the REST API as HTML."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sluice.api.http.route import Router
from sluice.api.page.first_view import first_view_modules
from sluice.api.routes.access import access_of
from sluice.api.routes.rest_api import readable_description

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")
STATIC = Path(__file__).parent / "static"

# With these headers, browsers load content of the page only from the page's own server, and run no
# inline scripts. So data from stores cannot run as scripts.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'self'; "
    "base-uri 'none'; form-action 'none'",
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


class _PanelQuery(msgspec.Struct, frozen=True, kw_only=True):
    pipeline: str


def page_router(folder: Path) -> Router:
    """Return the routes of the page. `folder` has the pipelines' custom panels and routes."""
    router = Router("page")

    @router.get("/", is_described=False)
    async def show_page(request: Request, _query: object) -> Response:
        """Return the page with stores, workers and snapshots, whose script queries the REST API."""
        return _html("page.html", request, modules=first_view_modules(STATIC))

    @router.get("/panels/{pipeline}.js", is_described=False, parameters=_PanelQuery)
    async def get_panel(request: Request, query: _PanelQuery) -> Response:
        """Return the module of a pipeline's custom panel, or 204 if it has none.

        The module is the file PIPELINE_panel.js next to the pipeline.
        """
        access = await access_of(request)
        await access.require_pipeline(query.pipeline)
        file = folder / f"{query.pipeline}_panel.js"
        # A name with slashes could lead to a file outside the folder.
        if not _NAME.fullmatch(query.pipeline) or not file.is_file():
            return Response(status_code=204)
        return Response(
            await asyncio.to_thread(file.read_bytes), media_type="text/javascript", headers=_HEADERS
        )

    @router.get("/docs", is_described=False)
    async def show_docs(request: Request, _query: object) -> Response:
        """Return the documentation of the REST API as HTML."""
        return _html("docs.html", request, api=await readable_description(request, folder))

    return router


def _html(template: str, request: Request, **values: Any) -> Response:
    # Prefix links with Airflow's root path.
    base = request.scope.get("root_path", "").rstrip("/")
    content = _TEMPLATES.get_template(template).render(base=base, **values)
    return Response(content, media_type="text/html; charset=utf-8", headers=_HEADERS)
