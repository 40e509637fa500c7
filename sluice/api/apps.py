"""Builds the ASGI apps. They do not check the log-in: `mounted` and state servers add the check."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.api.http.route import App, Route
from sluice.api.page.page import STATIC, page_router
from sluice.api.routes.custom_route_files import CustomRoutesApp
from sluice.api.routes.rest_api import ROUTERS, description_router
from sluice.api.services import NO_SERVICES, SERVICES, Services
from sluice.settings import settings


def generic_app(folder: Path | None = None, services: Services | None = None) -> ASGIApp:
    """Return the app for `/sluice`: the REST API and the page.

    `folder` has the files of pipelines and custom routes.
    """
    folder = folder or settings().pipelines
    routes: list[Route] = []
    for router in (page_router(folder), description_router(folder), *ROUTERS):
        routes += router.routes
    return App(routes, StaticFiles(directory=STATIC), {SERVICES: services or NO_SERVICES})


def custom_routes_app(folder: Path | None = None, services: Services | None = None) -> ASGIApp:
    """Return the app for `/v1`: the custom routes.

    Ignore `services`, which `Mounted` passes to every app.
    """
    return CustomRoutesApp(folder or settings().pipelines)
