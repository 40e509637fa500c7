"""Finds the files of custom routes in the folder of pipelines.

A file that cannot be used affects only its own routes.

A file is imported in a separate process before this process imports it. A file that hangs, exits or
crashes therefore affects only the separate process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock

from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from sluice.api.auth.permissions import principal
from sluice.api.http.route import App, ParameterReader, Route
from sluice.api.routes.custom_routes import Routes
from sluice.errors import RouteError, SluiceError
from sluice.topology.loading.isolated_imports import import_isolated
from sluice.topology.loading.pipeline_import import LOAD_SECONDS, import_file

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RouteFiles:
    """The routes of a folder, and the files that cannot be used."""

    routes: dict[Path, Routes]
    broken: dict[Path, SluiceError]


def load_routes(folder: Path, seconds: float = LOAD_SECONDS) -> RouteFiles:
    """Load the routes of all files `NAME_routes.py` in a folder."""
    files: list[Path] = []
    for file in sorted(folder.glob("*_routes.py")):
        if not file.name.startswith(("_", ".")):
            files.append(file)
    loaded = RouteFiles({}, {})
    segments: dict[str, Path] = {}
    for file, outcome in import_isolated(
        files, seconds, load=pipeline_of_routes, start_seconds=60.0
    ).items():
        try:
            if outcome.error:
                raise RouteError(outcome.error, next_step=outcome.next_step)
            routes = _load(file, seconds)
            _claim(file, routes, segments)
            loaded.routes[file] = routes
        except SluiceError as error:
            loaded.broken[file] = error
    return loaded


def pipeline_of_routes(file: Path, seconds: float) -> str:
    """Return the pipeline of a file's routes."""
    return _load(file, seconds).pipeline


def _load(file: Path, seconds: float) -> Routes:
    routes = getattr(import_file(file, seconds), "routes", None)
    if not isinstance(routes, Routes):
        raise RouteError(
            f"{file.name} has no routes.", next_step='Add: routes = Routes("PIPELINE").'
        )
    return routes


def _claim(file: Path, routes: Routes, segments: dict[str, Path]) -> None:
    """Reserve the first segments of the paths for this file.

    Two files cannot serve the same path.
    """
    # One app serves the routes of all files, so the first of two routes with the same path would
    # answer for both.
    firsts = {route.path.split("/")[1] for route in routes.routes}
    for first in sorted(firsts):
        if not first or "{" in first:
            raise RouteError(
                f"{file.name}: a path begins with /{first}, but must begin with a fixed part.",
                next_step="Write for example /pages/{page}.",
            )
        if first in segments:
            raise RouteError(
                f"{file.name}: paths that begin with /{first} belong to {segments[first].name}.",
                next_step="In one of the two files, let the paths begin with another part.",
            )
    segments.update(dict.fromkeys(firsts, file))


_LOADING = Lock()


def routes_in(folder: Path) -> tuple[Route, ...]:
    """Return the routes of a folder. The first caller loads them."""
    # The cache alone would let two threads load the files at the same time.
    with _LOADING:
        return _load_once(folder)


@cache
def _load_once(folder: Path) -> tuple[Route, ...]:
    files = load_routes(folder)
    for file, error in files.broken.items():
        log.error("The routes of %s are not served: %s", file.name, error)
    loaded: list[Route] = []
    for routes in files.routes.values():
        loaded += routes.routes
    return tuple(loaded)


async def readable_routes(request: Request, folder: Path) -> list[Route]:
    """Return the routes of pipelines that the request's user may read."""
    routes = await asyncio.to_thread(routes_in, folder)
    pipelines = await principal(request).readable(_pipelines_of(routes))
    return [route for route in routes if route.tag in pipelines]


def _pipelines_of(routes: Iterable[Route]) -> list[str]:
    return sorted({route.tag for route in routes})


class CustomRoutesApp:
    """The app for `/v1`, which loads the files of routes at the first request."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._app: App | None = None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return (self._app or self._load_and_answer)(scope, receive, send)

    async def _load_and_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._app = _RestrictedApp(await asyncio.to_thread(routes_in, self._folder))
        await self._app(scope, receive, send)


class _RestrictedApp(App):
    """An app whose routes look missing, even in timing, unless the user may read the pipeline."""

    def __init__(self, routes: Iterable[Route]) -> None:
        routes = list(routes)
        self._pipelines = _pipelines_of(routes)
        super().__init__(routes)

    @override
    async def _may_use(self, request: Request, reader: ParameterReader | None) -> bool:
        # Every request looks up the same permissions, so its time reveals nothing about the path.
        readable = await principal(request).readable(self._pipelines)
        return reader is not None and reader.route.tag in readable
