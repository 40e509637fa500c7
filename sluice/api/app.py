"""The apps that Airflow mounts: the generic view with the page under `/sluice`, the orders view under `/v1`."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, FastAPI
from starlette.staticfiles import StaticFiles

from sluice.api import orders, page, pipelines, stores
from sluice.api.login import LoginRequired
from sluice.api.problems import add_problems

STATIC = Path(__file__).parent / "static"


def make_app(*routers: APIRouter) -> FastAPI:
    """An app of these routes; to whoever is not logged in there is nothing, neither its description nor a 404."""
    # No redirect to a path without its last slash: it would say which paths there are, and lead past a proxy.
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    for router in routers:
        app.include_router(router)
    app.add_middleware(LoginRequired)
    add_problems(app)
    return app


def generic_app() -> FastAPI:
    """The app for `/sluice`."""
    app = make_app(page.router, stores.router, pipelines.router)
    app.mount("/static", StaticFiles(directory=STATIC))
    return app


def orders_app() -> FastAPI:
    """The app for `/v1`."""
    return make_app(orders.router)
