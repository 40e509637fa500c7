"""The OpenAPI description: made of the routes, and of the types that parameters are read and answers written with."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
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
    components = {name: _as_written(schema) for name, schema in components.items()}
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
    found: dict[str, Any] = {"200": {"description": "The answer", "content": _content(route)}}
    if route.has_etag:
        found["304"] = {"description": "What was sent before, with this ETag, is still the answer"}
    return {
        "tags": [route.tag],
        "operationId": name,
        "summary": name.replace("_", " ").capitalize(),
        "description": inspect.getdoc(route.handler) or "",
        "parameters": _parameters(route),
        "responses": found | {str(status): _problem(status) for status in route.problems},
    }


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REFERENCES.format(name="Problem")}
    return {"description": HTTPStatus(status).phrase, "content": {"application/problem+json": {"schema": schema}}}


def _content(route: Route) -> dict[str, Any]:
    if not route.answers:
        return {name: {"schema": {"type": "string"}} for name in route.media_types}
    schemas, _ = msgspec.json.schema_components(route.answers, ref_template=_REFERENCES)
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {name: {"schema": schema} for name in route.media_types}


def _parameters(route: Route) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([route.parameters], ref_template="{name}")
    schema = components[route.parameters.__name__]
    of_path, required = set(re.findall(r"\{(\w+)", route.path)), set(schema.get("required", ()))
    return [
        _parameter(name, _resolved(one, components), name in of_path, name in required)
        for name, one in schema["properties"].items()
    ]


def _resolved(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's schema with everything in it: an enum stands by itself otherwise."""
    if "$ref" not in schema:
        return schema
    inner = {name: value for name, value in components[schema["$ref"]].items() if name not in ("title", "description")}
    return inner | {name: value for name, value in schema.items() if name != "$ref"}


def _parameter(name: str, schema: dict[str, Any], of_path: bool, required: bool) -> dict[str, Any]:
    said: dict[str, Any] = {"name": name, "in": "path" if of_path else "query", "required": required}
    known = {key: value for key, value in schema.items() if key not in ("description", "anyOf", "default")}
    # Nothing in a query is null: a parameter that may be left out is simply not there.
    known |= next((one for one in schema.get("anyOf", ()) if one.get("type") != "null"), {})
    said["description"] = schema.get("description") or known.get("description") or ""
    known.pop("description", None)
    if schema.get("default") not in (None, "", []):
        known["default"] = schema["default"]
    if of_path:
        known["minLength"] = 1
    return said | {"schema": known}


def _as_written(schema: Any) -> Any:
    """A schema as answers are written: decimals are numbers, and what is null is left out where it may be."""
    if isinstance(schema, dict):
        if schema.get("format") == "decimal":
            return {"type": "number"}
        optional = schema.get("default", ...) is None and "anyOf" in schema
        found = {name: _as_written(one) for name, one in schema.items() if not (optional and name == "default")}
        if optional:
            (present,) = (one for one in found.pop("anyOf") if one != {"type": "null"})
            found |= present
        return found
    return [_as_written(one) for one in schema] if isinstance(schema, list) else schema


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
