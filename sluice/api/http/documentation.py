"""Generates the OpenAPI description from the routes and their types of parameters and answers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec

from sluice.api.http.route import Route

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
    """Return the OpenAPI document of routes. Each argument is a path prefix with its routes."""
    routes: list[tuple[str, Route]] = []
    types: list[Any] = []
    for prefix, prefix_routes in mounted:
        for route in prefix_routes:
            if route.is_described:
                routes.append((prefix, route))
                types += route.answers
                if route.body is not None:
                    types.append(route.body)
    _, components = msgspec.json.schema_components(types, ref_template=_REFERENCES)
    components = {name: _encoded_schema(schema) for name, schema in components.items()}
    paths: dict[str, dict[str, Any]] = {}
    for prefix, route in routes:
        method = "get" if route.body is None else "post"
        paths.setdefault(_plain(prefix + route.path), {})[method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice",
            "version": "1",
            "description": "The pipelines and their queryable state. Every route needs a log-in.",
        },
        "paths": paths,
        "components": {
            "schemas": components | {"Problem": _PROBLEM},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: Route) -> dict[str, Any]:
    name = route.name or getattr(route.handler, "__name__", "")
    responses: dict[str, Any] = {"200": {"description": "The answer", "content": _content(route)}}
    if route.has_etag:
        responses["304"] = {"description": "The response with this ETag is still current"}
    for status in route.problems:
        responses[str(status)] = _problem(status)
    body: dict[str, Any] = {}
    if route.body is not None:
        (schema,), _ = msgspec.json.schema_components([route.body], ref_template=_REFERENCES)
        body["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _encoded_schema(schema)}},
        }
    return body | {
        "tags": [route.tag],
        "operationId": name,
        "summary": name.rpartition(".")[2].replace("_", " ").capitalize(),
        "description": route.description or inspect.getdoc(route.handler) or "",
        "parameters": _parameters(route),
        "responses": responses,
    }


def _problem(status: int) -> dict[str, Any]:
    schema = {"$ref": _REFERENCES.format(name="Problem")}
    return {
        "description": HTTPStatus(status).phrase,
        "content": {"application/problem+json": {"schema": schema}},
    }


def _content(route: Route) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if route.answers:
        schemas, _ = msgspec.json.schema_components(route.answers, ref_template=_REFERENCES)
        (schema, *others) = schemas
        if others:
            schema = {"anyOf": list(schemas)}
        schema = _encoded_schema(schema)
    return {name: {"schema": schema} for name in route.media_types}


def _parameters(route: Route) -> list[dict[str, Any]]:
    _, components = msgspec.json.schema_components([route.parameters], ref_template="{name}")
    schema = components[route.parameters.__name__]
    in_path = set(re.findall(r"\{(\w+)", route.path))
    required = set(schema.get("required", ()))
    parameters: list[dict[str, Any]] = []
    for name, parameter in schema["properties"].items():
        resolved = _without_references(parameter, components)
        parameters.append(_parameter(name, resolved, name in in_path, name in required))
    return parameters


def _without_references(schema: dict[str, Any], components: Mapping[str, Any]) -> dict[str, Any]:
    """Return a parameter's schema, with the schema of an enum in place of a reference to it."""
    if "anyOf" in schema:
        variants = [_without_references(variant, components) for variant in schema["anyOf"]]
        return schema | {"anyOf": variants}
    if "$ref" not in schema:
        return schema
    inner = _without(components[schema["$ref"]], "title", "description")
    return inner | _without(schema, "$ref")


def _without(schema: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name not in names}


def _parameter(name: str, schema: dict[str, Any], in_path: bool, required: bool) -> dict[str, Any]:
    plain = _without(schema, "description", "anyOf", "default")
    for variant in schema.get("anyOf", ()):
        # A query has no nulls: an optional parameter is omitted instead.
        if variant.get("type") != "null":
            plain |= variant
            break
    description = schema.get("description") or plain.get("description") or ""
    plain.pop("description", None)
    # An empty default has no effect, so it needs no mention.
    if schema.get("default") not in (None, "", []):
        plain["default"] = schema["default"]
    place = "query"
    if in_path:
        place = "path"
        plain["minLength"] = 1
    return {
        "name": name,
        "in": place,
        "required": required,
        "description": description,
        "schema": plain,
    }


def _encoded_schema(schema: Any) -> Any:
    """Adapt a schema to the encoder.

    The encoder writes decimals as numbers, and omits optional members that are null.
    """
    if isinstance(schema, list):
        return [_encoded_schema(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("format") == "decimal":
        return {"type": "number"}
    fitted = {name: _encoded_schema(value) for name, value in schema.items()}
    if schema.get("default", ...) is None and "anyOf" in schema:
        del fitted["default"]
        variants = fitted.pop("anyOf")
        variants.remove({"type": "null"})
        (present,) = variants
        fitted |= present
    return fitted


def _plain(path: str) -> str:
    return path.replace(":path}", "}")
