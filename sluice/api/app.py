"""The apps, without a log-in: the generic view with the page for `/sluice`, the orders view for `/v1`."""

from __future__ import annotations

from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from sluice.api import orders
from sluice.api.http.routes import App
from sluice.api.views import changes, page, pipelines, stores


def generic_app() -> ASGIApp:
    """The app for `/sluice`."""
    routers = (page.router, stores.router, changes.router, pipelines.router)
    return App([route for router in routers for route in router.routes], StaticFiles(directory=page.STATIC))


def orders_app() -> ASGIApp:
    """The app for `/v1`."""
    return App(orders.routes.routes)
