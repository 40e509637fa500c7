"""The OpenAPI description of both apps, made of the routes and of the very types that answers are encoded from."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI

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

_replies: list[Any] = []


def answers(*types: Any) -> dict[int | str, dict[str, Any]]:
    """What a route answers, as the `responses` of its decorator: one of `types`, or a problem document."""
    _replies.extend(types)
    schemas, _ = msgspec.json.schema_components(types, ref_template=_REFERENCES)
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        200: {"description": "The answer", "content": {"application/json": {"schema": schema}}},
        "default": {"description": "A problem", "content": problem},
    }


def describe(*mounted: tuple[str, APIRouter]) -> dict[str, Any]:
    """The OpenAPI document of routers under their prefixes."""
    app = FastAPI(
        title="Sluice", version="1", description="Queryable state of the pipelines. Every route needs a log-in."
    )
    for prefix, router in mounted:
        app.include_router(router, prefix=prefix)
    document = app.openapi()
    _, components = msgspec.json.schema_components(_replies, ref_template=_REFERENCES)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(components | {"Problem": _PROBLEM})
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    return document
