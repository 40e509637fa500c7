"""Routes: a path, what may be asked along with it, and who answers. The parameters are one Struct per route."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.api.problems import of_error, problem
from sluice.errors import QueryError, SluiceError

log = logging.getLogger(__name__)

_PART = re.compile(r"\{(\w+)(:path)?\}")
_EVERYWHERE = (401, 422, 503)
_SEE = "See /sluice/docs for the routes there are."
_NAME_SHOWN = 100
"""How much of an unknown parameter's name an error repeats."""

Handler = Callable[[Request, Any], Awaitable[Response]]


class InvalidParameters(QueryError):
    """A parameter is missing, too big, or of the wrong type."""

    status = 422
    title = "Invalid parameters"
    next_step = "See /sluice/docs for what the route takes."


class NoParameters(msgspec.Struct, frozen=True):
    """Of a route that takes none."""


class Unchanged(Exception):
    """What the client has is what it would get: 304. Not an error, but the shortest way out of a handler."""

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag


@dataclass(frozen=True)
class Route:
    """One path. `parameters` are those of the path and of the query, by their names; answers are JSON of `answers`."""

    path: str
    tag: str
    handler: Handler
    parameters: type[msgspec.Struct]
    answers: tuple[Any, ...]
    problems: tuple[int, ...]
    """The statuses of its problem documents."""
    media_types: tuple[str, ...] = ("application/json",)
    has_etag: bool = False
    is_described: bool = True

    @property
    def pattern(self) -> re.Pattern[str]:
        """What matches the path."""
        parts = _PART.sub(lambda part: f"(?P<{part[1]}>{'.+' if part[2] else '[^/]+'})", self.path)
        return re.compile(parts, re.DOTALL)


class Routes:
    """Routes below one prefix."""

    def __init__(self, tag: str, prefix: str = "", *problems: int) -> None:
        self._tag = tag
        self._prefix = prefix
        self._problems = (*_EVERYWHERE, *problems)
        self.found: list[Route] = []

    def get(
        self, path: str, *answers: Any, parameters: type[msgspec.Struct] = NoParameters, **more: Any
    ) -> Callable[[Handler], Handler]:
        """Let a function answer a path."""

        def add(handler: Handler) -> Handler:
            problems = tuple(sorted(self._problems))
            self.found.append(Route(self._prefix + path, self._tag, handler, parameters, answers, problems, **more))
            return handler

        return add


class App:
    """An ASGI app of routes; GET and HEAD only, and every error is a problem document."""

    def __init__(self, routes: Iterable[Route], static: ASGIApp | None = None) -> None:
        routes = list(routes)
        self._plain = {route.path: _Reading(route) for route in routes if "{" not in route.path}
        self._patterns = [(route.pattern, _Reading(route)) for route in routes if "{" in route.path]
        self._static = static

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        path = _path(scope)
        if self._static is not None and path.startswith("/static/"):
            await self._static({**scope, "root_path": _root(scope) + "/static"}, receive, send)
            return
        response = await self._answer(path, Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, path: str, request: Request) -> Response:
        reading, values = self._find(path)
        if reading is None:
            return problem(404, "There is nothing at this path.", _SEE)
        if request.method not in ("GET", "HEAD"):
            return problem(405, "Nothing can be changed here.", _SEE, headers={"Allow": "GET, HEAD"})
        try:
            return await reading.route.handler(request, reading.parameters(values, request.scope["query_string"]))
        except Unchanged as found:
            return Response(status_code=304, headers={"ETag": found.etag, "Cache-Control": "private, no-cache"})
        except SluiceError as error:
            return of_error(error)
        except Exception:
            log.exception("A request failed")
            return problem(500, "The answer could not be made.", "See the server's log.")

    def _find(self, path: str) -> tuple[_Reading | None, dict[str, str]]:
        if (plain := self._plain.get(path)) is not None:
            return plain, {}
        for pattern, reading in self._patterns:
            if (found := pattern.fullmatch(path)) is not None:
                return reading, found.groupdict()
        return None, {}


class _Reading:
    """How a route's parameters are read."""

    def __init__(self, route: Route) -> None:
        self.route = route
        fields = msgspec.structs.fields(route.parameters)
        self._several = {one.encode_name for one in fields if "list" in str(one.type)}
        of_path = {part[1] for part in _PART.finditer(route.path)}
        self._booleans = {one.encode_name for one in fields if one.type is bool or "bool" in str(one.type)}
        self._known = {one.encode_name for one in fields} - of_path

    def parameters(self, values: dict[str, Any], query: bytes) -> msgspec.Struct:
        try:
            pairs = _pairs(query.decode("ascii")) if query else ()
        except ValueError:
            raise InvalidParameters("The query is not UTF-8 text.") from None
        asked: dict[str, Any] = {}
        for name, value in pairs:
            if name in self._several:
                asked.setdefault(name, []).append(value)
            elif name not in self._known:
                # The page's address may carry what others put there; everywhere else a typing error must not pass.
                if self.route.is_described:
                    raise self._unknown(name)
            elif name in asked:
                raise InvalidParameters(f"The parameter {name} is given twice.")
            elif name in self._booleans and value not in ("true", "false"):
                raise InvalidParameters(f"{name}: Expected true or false.")
            else:
                asked[name] = value
        try:
            return msgspec.convert(asked | values, self.route.parameters, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidParameters(_said(str(error))) from None

    def _unknown(self, name: str) -> InvalidParameters:
        known = f"It takes {', '.join(sorted(self._known))}." if self._known else "It takes no parameters."
        return InvalidParameters(f"The route has no parameter {name[:_NAME_SHOWN]!r}.", next_step=known)


def _pairs(query: str) -> list[tuple[str, str]]:
    if "%" not in query and "+" not in query and "&" not in query:
        name, _, value = query.partition("=")  # the most frequent one, at a tenth of the cost
        return [(name, value)]
    return parse_qsl(query, keep_blank_values=True, errors="strict")


def _said(error: str) -> str:
    """What is wrong, without repeating what was sent: it may be anything."""
    what, _, place = error.partition(" - at `$.")
    if what.startswith("Invalid enum value"):
        what = "It is none of the values there are"
    if what.startswith("Object missing required field"):
        return what.replace("Object missing required field", "Missing parameter").replace("`", "")
    return f"{place.rstrip('`') or 'parameters'}: {what.replace('`', '')}"


def _path(scope: Scope) -> str:
    path, root = scope["path"], _root(scope)
    found: str = path.removeprefix(root) if root else path
    return found


def _root(scope: Scope) -> str:
    root: str = scope.get("root_path", "")
    return root.rstrip("/")
