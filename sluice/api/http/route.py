"""Routes: a path, its parameters as a Struct, and the handler.

Routes without a body are read-only and allow GET and HEAD; routes with a body allow POST. The
log-in rejects POST requests that pages of other sites send with a browser's cookie. In addition, a
body must be declared as JSON, which HTML forms cannot do.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sluice.api.http.bodies import TooLate, read_body
from sluice.api.http.problems import problem, problem_of
from sluice.errors import QueryError, SluiceError
from sluice.values.json_limits import JSON_NUMBER

log = logging.getLogger(__name__)

PATH_PARAMETER = re.compile(r"\{(\w+)(:path)?\}")
_ALWAYS_POSSIBLE = (401, 422, 503)
_SEE_DOCS = "See /sluice/docs for all routes."
_SHOWN_LENGTH = 100
"""Maximum length of an unknown parameter's name in an error."""

_BODY_BYTES = 64 * 1024
"""Size limit of a POST request's body."""
_BODY_SECONDS = 10.0

Handler = Callable[[Request, Any], Awaitable[Response]]
Change = Callable[[Request, Any, Any], Awaitable[Response]]
"""The handler of a POST request, which also takes the body."""


class InvalidParameters(QueryError):
    """A parameter is missing, too large, or of the wrong type."""

    status = 422
    title = "Invalid parameters"
    next_step = "See /sluice/docs for the route's parameters."


class NotJson(QueryError):
    """The body of a request is not declared as JSON."""

    status = 415
    title = "Not JSON"
    next_step = "Send Content-Type: application/json."


class _NoParameters(msgspec.Struct, frozen=True):
    """The parameters of a route without parameters."""


class Unchanged(Exception):
    """The client already has the current response.

    Handlers raise this to send a response with status 304.
    """

    def __init__(self, etag: str) -> None:
        super().__init__(etag)
        self.etag = etag


@dataclass(frozen=True)
class Route:
    """A path and its handler.

    `parameters` is the type of the parameters; `answers` are the types of JSON responses.
    """

    path: str
    tag: str
    handler: Handler
    parameters: type[msgspec.Struct]
    answers: tuple[Any, ...]
    problems: tuple[int, ...]
    """The possible status codes of problem documents."""
    media_types: tuple[str, ...] = ("application/json",)
    has_etag: bool = False
    may_be_empty: bool = False
    """Whether the path parameter that matches slashes may be empty."""
    is_described: bool = True
    body: type[msgspec.Struct] | None = None
    """The type of the JSON body of a POST request; None for a read-only route."""
    name: str = ""
    """The operation's id in the OpenAPI description; default: the handler's name."""
    description: str = ""

    @property
    def methods(self) -> tuple[str, ...]:
        """The HTTP methods that the route allows."""
        if self.body is None:
            return ("GET", "HEAD")
        return ("POST",)

    @property
    def pattern(self) -> re.Pattern[str]:
        """A regular expression for the path."""

        def group(parameter: re.Match[str]) -> str:
            name, may_have_slashes = parameter.groups()
            if not may_have_slashes:
                return f"(?P<{name}>[^/]+)"
            count = "*" if self.may_be_empty else "+"
            return f"(?P<{name}>.{count})"

        return re.compile(PATH_PARAMETER.sub(group, self.path), re.DOTALL)


class Router:
    """Collects routes with a common tag, path prefix and problem codes."""

    def __init__(self, tag: str, prefix: str = "", *problems: int) -> None:
        self._tag = tag
        self._prefix = prefix
        self._problems = tuple(sorted((*_ALWAYS_POSSIBLE, *problems)))
        self.routes: list[Route] = []

    def get(
        self,
        path: str,
        *answers: Any,
        parameters: type[msgspec.Struct] = _NoParameters,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Register the decorated function for GET and HEAD."""

        def register(handler: Handler) -> Handler:
            route = Route(
                self._prefix + path,
                self._tag,
                handler,
                parameters,
                answers,
                self._problems,
                **options,
            )
            self.routes.append(route)
            return handler

        return register

    def post(
        self,
        path: str,
        *answers: Any,
        body: type[msgspec.Struct],
        parameters: type[msgspec.Struct] = _NoParameters,
        **options: Any,
    ) -> Callable[[Change], Change]:
        """Register the decorated function for POST.

        The function takes the parameters and the decoded JSON body.
        """

        def register(handler: Change) -> Change:
            async def read_and_handle(request: Request, query: Any) -> Response:
                return await handler(request, query, await _read_body(request, body))

            problems = tuple(sorted({*self._problems, 403, 413, 415}))
            options.setdefault("name", getattr(handler, "__name__", ""))
            options.setdefault("description", inspect.getdoc(handler) or "")
            route = Route(
                self._prefix + path,
                self._tag,
                read_and_handle,
                parameters,
                answers,
                problems,
                body=body,
                **options,
            )
            self.routes.append(route)
            return handler

        return register


class App:
    """An ASGI app of routes. Errors become problem documents.

    `services` are added to the state of each request.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        static: ASGIApp | None = None,
        services: Mapping[str, Any] | None = None,
    ) -> None:
        self._plain: dict[str, dict[str, ParameterReader]] = {}
        """Path without parameters → HTTP method → the function that parses a request's
        parameters."""
        self._patterns: list[tuple[re.Pattern[str], dict[str, ParameterReader]]] = []
        """Patterns of paths with parameters, each with the parsers by HTTP method, as in
        `_plain`."""
        paths: dict[str, dict[str, ParameterReader]] = {}
        for route in routes:
            readers = paths.get(route.path)
            if readers is None:
                readers = paths[route.path] = {}
                if "{" in route.path:
                    self._patterns.append((route.pattern, readers))
                else:
                    self._plain[route.path] = readers
            readers |= dict.fromkeys(route.methods, ParameterReader(route))
        self._static = static
        self._services = dict(services or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"].removeprefix(root)
        # Static files need a log-in, like everything else, but no permission.
        if self._static is not None and path.startswith("/static/"):
            await self._static({**scope, "root_path": root + "/static"}, receive, send)
            return
        for name, service in self._services.items():
            scope.setdefault("state", {}).setdefault(name, service)
        response = await self._answer(path, Request(scope, receive))
        await response(scope, receive, send)

    async def _answer(self, path: str, request: Request) -> Response:
        readers, path_values = self._match(path)
        any_reader = next(iter(readers.values()), None)
        # The permission is checked before the method, because a 405 would reveal that a hidden path
        # exists.
        if not await self._may_use(request, any_reader) or not readers:
            return _no_route()
        reader = readers.get(request.scope["method"])
        if reader is None:
            are = "are" if len(readers) > 1 else "is"
            detail = f"Only {' and '.join(readers)} {are} allowed for this path."
            return problem(405, detail, _SEE_DOCS, headers={"Allow": ", ".join(readers)})
        try:
            parameters = reader.read(path_values, request.scope["query_string"])
            return await reader.route.handler(request, parameters)
        except Unchanged as unchanged:
            return Response(
                status_code=304,
                headers={"ETag": unchanged.etag, "Cache-Control": "private, no-cache"},
            )
        except SluiceError as error:
            return problem_of(error)
        except Exception:
            log.exception("A request failed")
            return problem(500, "The request failed.", "See the server's log.")

    async def _may_use(self, _request: Request, _reader: ParameterReader | None) -> bool:
        """Return whether the user may use the route.

        If not, the response is the same as for an unknown path.
        """
        return True

    def _match(self, path: str) -> tuple[dict[str, ParameterReader], dict[str, str]]:
        """Find the routes of a path.

        Return HTTP method → the function that parses a request's parameters, and the values of the
        parameters in the path.
        """
        plain = self._plain.get(path)
        if plain is not None:
            return plain, {}
        for pattern, readers in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return readers, match.groupdict()
        return {}, {}


async def _read_body(request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    content_type, _, _ = request.headers.get("content-type", "").partition(";")
    # A form on a page of another site can send a body, but not with this content type.
    if content_type.strip().lower() != "application/json":
        raise NotJson("The body of the request must be JSON.")
    try:
        body = await read_body(request, _BODY_BYTES, _BODY_SECONDS)
    except TooLate as late:
        raise InvalidParameters(late.detail) from None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise InvalidParameters(_without_values(str(error))) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise InvalidParameters("The body of the request is not valid JSON.") from None


def _no_route() -> Response:
    """Return the response for a path without a route."""
    return problem(404, "There is nothing at this path.", _SEE_DOCS)


class ParameterReader:
    """Reads a route's parameters from the path and the query."""

    def __init__(self, route: Route) -> None:
        self.route = route
        fields = msgspec.structs.fields(route.parameters)
        in_path = {parameter[1] for parameter in PATH_PARAMETER.finditer(route.path)}
        self._lists: set[str] = set()
        self._booleans: set[str] = set()
        self._numbers: set[str] = set()
        for field in fields:
            # A type's name is searched in the text of the annotation, so that `bool | None` is
            # found, too.
            kind = str(field.type)
            if "list" in kind:
                self._lists.add(field.encode_name)
            if "bool" in kind:
                self._booleans.add(field.encode_name)
            if "float" in kind or "Decimal" in kind:
                self._numbers.add(field.encode_name)
        self._names = {field.encode_name for field in fields} - in_path

    def read(self, path_values: dict[str, Any], query: bytes) -> msgspec.Struct:
        try:
            pairs = query_pairs(query.decode("ascii")) if query else ()
        except ValueError:
            raise InvalidParameters("The query is not UTF-8 text.") from None
        values: dict[str, Any] = {}
        for name, value in pairs:
            if name in self._lists:
                values.setdefault(name, []).append(value)
            elif name not in self._names:
                # The routes of the page are not in the OpenAPI description. They ignore unknown
                # parameters, because other sites may add parameters to their links to the page.
                if self.route.is_described:
                    raise self._unknown(name)
            elif name in values:
                raise InvalidParameters(f"The parameter {name} is given twice.")
            # Without these checks, msgspec would also take 1, yes, NaN, 1_000 and similar texts.
            elif name in self._booleans and value not in ("true", "false"):
                raise InvalidParameters(f"{name}: Expected true or false.")
            elif name in self._numbers and not JSON_NUMBER.fullmatch(value):
                raise InvalidParameters(f"{name}: Expected a number.")
            else:
                values[name] = value
        try:
            return msgspec.convert(values | path_values, self.route.parameters, strict=False)
        except msgspec.ValidationError as error:
            raise InvalidParameters(_without_values(str(error))) from None

    def _unknown(self, name: str) -> InvalidParameters:
        next_step = "The route has no parameters."
        if self._names:
            next_step = f"Its parameters: {', '.join(sorted(self._names))}."
        return InvalidParameters(
            f"The route has no parameter {name[:_SHOWN_LENGTH]!r}.",
            next_step=next_step,
        )


def query_pairs(query: str) -> list[tuple[str, str]]:
    """Return the names and values of a query that is not empty.

    Raise ValueError if they are not UTF-8.
    """
    if "%" not in query and "+" not in query and "&" not in query:
        # The most frequent query has one plain parameter. Reading it without `parse_qsl` takes
        # 0.6 us instead of 4.5 us.
        name, _, value = query.partition("=")
        return [(name, value)]
    return parse_qsl(query, keep_blank_values=True, errors="strict")


def _without_values(error: str) -> str:
    """Return a message of msgspec without the received value, which could contain anything."""
    message, _, place = error.partition(" - at `$.")
    message = message.replace("`", "")
    if message.startswith("Object missing required field"):
        return message.replace("Object missing required field", "Missing parameter")
    if message.startswith("Invalid enum value"):
        message = "Not one of the allowed values"
    return f"{place.rstrip('`') or 'parameters'}: {message}"
