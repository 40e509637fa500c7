"""The apps, without a log-in: the generic view with the page for `/sluice`, the orders view for `/v1`."""

from __future__ import annotations

from pathlib import Path

from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.api import changes, orders, page, pipelines, stores
from sluice.api.routes import App

STATIC = Path(__file__).parent / "static"


def generic_app() -> ASGIApp:
    """The app for `/sluice`."""
    found = (page.routes, stores.routes, changes.routes, pipelines.routes)
    return App([route for routes in found for route in routes.found], StaticFiles(directory=STATIC))


def orders_app() -> ASGIApp:
    """The app for `/v1`."""
    return App(orders.routes.found)
