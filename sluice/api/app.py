"""The apps, without a log-in."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.api.http.routes import App
from sluice.api.views import changes, page, pipelines, stores
from sluice.api.views.own_files import OwnRoutesApp
from sluice.settings import settings


def generic_app(folder: Path | None = None) -> ASGIApp:
    """The app for `/sluice`: the generic view and the page. `folder` holds the pipelines and their own routes."""
    page_router = page.router(folder or settings().pipelines)
    routers = (page_router, stores.router, changes.router, pipelines.router)
    return App([route for router in routers for route in router.routes], StaticFiles(directory=page.STATIC))


def own_routes_app(folder: Path | None = None) -> ASGIApp:
    """The app for `/v1`: the routes of one's own."""
    return OwnRoutesApp(folder or settings().pipelines)
