"""Builds the ASGI apps, without a log-in."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.api.http.route import App
from sluice.api.page import page
from sluice.api.routes.custom_route_files import OwnRoutesApp
from sluice.api.services import NO_SERVICES, SERVICES, Services
from sluice.settings import settings


def generic_app(folder: Path | None = None, services: Services | None = None) -> ASGIApp:
    """The app for `/sluice`: the generic view and the page. `folder` has the files of pipelines and custom routes."""
    page_router = page.router(folder or settings().pipelines)
    routers = (page_router, *page.DESCRIBED)
    routes = [route for router in routers for route in router.routes]
    return App(routes, StaticFiles(directory=page.STATIC), {SERVICES: services or NO_SERVICES})


def own_routes_app(folder: Path | None = None, services: Services | None = None) -> ASGIApp:
    """The app for `/v1`: the custom routes, which need no services."""
    return OwnRoutesApp(folder or settings().pipelines)
