"""The REST API: all of its routes, in the documentation's order, and their OpenAPI description."""

from __future__ import annotations

from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sluice.api.http.documentation import describe
from sluice.api.http.replies import reply
from sluice.api.http.route import Route, Router
from sluice.api.routes import (
    change_streams,
    costs,
    dead_letter_routes,
    overview,
    pipeline_routes,
    store_routes,
)
from sluice.api.routes.custom_route_files import readable_routes

ROUTERS = (
    overview.router,
    costs.router,
    pipeline_routes.router,
    dead_letter_routes.router,
    store_routes.router,
    change_streams.router,
    change_streams.pipelines_router,
)


def description_router(folder: Path) -> Router:
    """Return the route of the OpenAPI description, which includes the custom routes in `folder`."""
    router = Router("description")

    @router.get("/openapi.json", is_described=False)
    async def get_openapi(request: Request, _query: object) -> Response:
        """Return the OpenAPI description of the REST API."""
        return reply(await readable_description(request, folder))

    return router


async def readable_description(request: Request, folder: Path) -> dict[str, Any]:
    """Return the OpenAPI description with the custom routes in `folder` that the user may read."""
    return description(tuple(await readable_routes(request, folder)))


@cache
def description(custom: tuple[Route, ...] = ()) -> dict[str, Any]:
    """Return the OpenAPI description of the REST API and of custom routes."""
    generic = list(chain.from_iterable(router.routes for router in ROUTERS))
    return describe(("/sluice", generic), ("/v1", custom))
