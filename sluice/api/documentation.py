"""The OpenAPI description: made of the routes, and of the types that parameters are read and answers written with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sluice.api.routes import Route

_REFERENCES = "#/components/schemas/{name}"
_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "nextStep": {"type": "string"},
    },
}


def describe(*mounted: tuple[str, Iterable[Route]]) -> dict[str, Any]:
    """The OpenAPI document of routes under their prefixes."""
    routes = [(prefix, route) for prefix, routes in mounted for route in routes if route.is_described]
    types = [one for _, route in routes for one in route.answers]
    _, components = msgspec.json.schema_components(types, ref_template=_REFERENCES)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "version": "1",
            "description": "Queryable state of the pipelines. Every route needs a log-in.",
        },
        "paths": {_plain(prefix + route.path): {"get": _operation(route)} for prefix, route in routes},
        "components": {
            "schemas": components | {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    name = getattr(route.handler, "__name__", "")
    return {
        "tags": [route.tag],
        "operationId": name,
        "summary": name.replace("_", " ").capitalize(),
        "description": inspect.getdoc(route.handler) or "",
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": "The answer", "content": _content(route)},
            "304": {"description": "What was sent before, with this ETag, is still the answer"},
            "default": {
                "description": "A problem",
                "content": {"application/problem+json": {"schema": {"$ref": _REFERENCES.format(name="Problem")}}},
            },
        },
    }


def _content(route: Route) -> dict[str, Any]:
    if not route.answers:
        return {name: {"schema": {"type": "string"}} for name in route.media_types}
    schemas, _ = msgspec.json.schema_components(route.answers, ref_template=_REFERENCES)
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {name: {"schema": schema} for name in route.media_types}


def _parameters(route: Route) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([route.parameters])
    schema = components[route.parameters.__name__]
    of_path = set(re.findall(r"\{(\w+)", route.path))
    return [_parameter(name, one, name in of_path) for name, one in schema["properties"].items()]


def _parameter(name: str, schema: dict[str, Any], of_path: bool) -> dict[str, Any]:
    said = {"name": name, "in": "path" if of_path else "query", "required": of_path}
    if "description" in schema:
        said["description"] = schema["description"]
    known = {key: value for key, value in schema.items() if key not in ("description", "anyOf", "default")}
    # Nothing in a query is null: a parameter that may be left out is simply not there.
    known |= next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), {})
    said["description"] = said.get("description") or known.pop("description", "")
    if schema.get("default") not in (None, "", []):
        known["default"] = schema["default"]
    if of_path:
        known["minLength"] = 1
    return said | {"schema": known}


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
