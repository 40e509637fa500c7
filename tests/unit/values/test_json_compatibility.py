"""A contract of JSON is compared with a JSON Schema, as far as the schema says anything."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Any

import pytest
from msgspec import Struct

from sluice import Decimal2, EpochMillis, JsonSchema
from sluice.values.json_compatibility import json_problem
from sluice.values.json_schemas import parse_json_schema

pytestmark = pytest.mark.unit


class Line(Struct):
    item: str
    price: float


class Order(Struct):
    id: int
    amount: Decimal2
    at: datetime
    day: date | None
    millis: EpochMillis
    lines: list[Line]
    counts: dict[str, int]
    free: Any
    note: str | None = None
    points: int = 0


def problem(change: dict[str, Any], required: tuple[str, ...] = ()) -> str:
    """Compare the contract with its own schema, in which some properties are others."""
    encoded = JsonSchema(Order).encode
    schema = json.loads(encoded.schema)  # type: ignore[union-attr]
    own = schema["$defs"]["Order"]
    for name, each in change.items():
        if each is None:
            del own["properties"][name]
        else:
            own["properties"][name] = each
    own["required"] = [name for name in own["required"] if name not in (*required, *change)]
    own["required"] += [
        name for name in change if change[name] is not None and name not in required
    ]
    return json_problem(parse_json_schema(json.dumps(schema)), Order)


def test_a_contract_fits_its_own_schema() -> None:
    assert problem({}) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"id": {"type": "string"}}, "$.id: the schema has a text, and the contract a number"),
        ({"id": {"type": ["integer", "null"]}}, "$.id: the schema allows null"),
        ({"lines": {"type": "array", "items": {"type": "string"}}}, "$.lines[...]: the schema has"),
        ({"counts": {"additionalProperties": {"type": "boolean"}, "type": "object"}}, "$.counts["),
        ({"at": {"type": "boolean"}}, ""),
        ({"note": {"type": "integer"}}, "$.note: the schema has a number"),
        ({"id": None}, "$.id: the contract requires this field, but the schema lacks it"),
        ({"free": {"type": "integer"}}, ""),
        ({"id": {}}, ""),
    ],
)
def test_what_does_not_fit_is_named_with_its_path(change: dict[str, Any], expected: str) -> None:
    found = problem(change)
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_a_field_that_need_not_be_there_needs_a_default() -> None:
    required = "the contract requires this field, but the schema does not"
    assert f"$.id: {required}" in problem({}, ("id",))
    assert problem({}, ("day",)).startswith(f"$.day: {required}")
