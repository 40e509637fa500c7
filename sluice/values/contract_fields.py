"""Lists a contract's fields as plain texts. The ledger keeps them to compare later contracts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError
from sluice.values.contracts import (
    ObjectType,
    choice_values,
    members_of,
    sql_type_of,
    type_info,
    variants,
)
from sluice.values.pydantic_models import required_fields

OPTIONAL = ", optional"
"""The suffix of the text of a field that a value may omit."""
NULLABLE = " or null"
"""The suffix of the type of a field whose value may be null."""
UNKNOWN_FIELDS, FORBIDDEN = "(unknown fields)", "forbidden"
"""The entry of an object that must have only the contract's fields."""
_ONE_OF = "one of "
_LIMITS = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern")
"""The limits that msgspec checks, by the names of its `Meta`."""


def contract_fields(contract: Any) -> dict[str, str]:
    """Return path of a field → its type, such as `BIGINT`, `STRING or null` or `DATE, optional`.

    A path such as `lines[].price` leads to the field of an object in a list. If the values have no
    fields, their type has the empty path.
    """
    fields: dict[str, str] = {}
    _add(fields, "", type_info(contract), "")
    return fields


def _add(fields: dict[str, str], path: str, kind: inspect.Type, optional: str) -> None:
    """Add a field, and the fields of the objects in it."""
    kind, nullable = _without_null(kind)
    objects = variants(kind)
    if objects:
        if path:
            fields[path] = f"object{nullable}{optional}"
        for each in objects:
            # Prefix the member's name, because members of a union may have fields with the same
            # name.
            of_member = path
            if len(objects) > 1:
                of_member = f"{path}<{each.cls.__name__}>"
                fields[of_member] = "object"
            _add_fields(fields, of_member, each)
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        fields[path] = f"list{nullable}{optional}"
        _add(fields, f"{path}[]", kind.item_type, "")
    elif isinstance(kind, inspect.DictType):
        fields[path] = f"map{nullable}{optional}"
        _add(fields, f"{path}[]", kind.value_type, "")
    else:
        fields[path] = f"{_name(kind)}{nullable}{optional}"


def _add_fields(fields: dict[str, str], path: str, kind: ObjectType) -> None:
    prefix = ""
    if path:
        prefix = f"{path}."
    # The Struct that stores a pydantic model requires all fields, because pydantic fills them in.
    # So ask the model which fields a value may omit.
    required = required_fields(kind.cls)
    for field in kind.fields:
        if required is None:
            is_required = field.required
        else:
            is_required = field.encode_name in required
        optional = "" if is_required else OPTIONAL
        _add(fields, f"{prefix}{field.encode_name}", field.type, optional)
    if isinstance(kind, inspect.StructType) and kind.forbid_unknown_fields:
        fields[f"{prefix}{UNKNOWN_FIELDS}"] = FORBIDDEN


def _without_null(kind: inspect.Type) -> tuple[inspect.Type, str]:
    """Return a type without null, and the text `NULLABLE` if the type allows null."""
    if isinstance(kind, inspect.Metadata):
        inner, nullable = _without_null(kind.type)
        # If the type does not allow null, keep the metadata, which has the digits of a Decimal.
        if nullable:
            return inner, nullable
        return kind, ""
    if isinstance(kind, inspect.UnionType):
        members = members_of(kind)
        if len(members) < len(kind.types):
            if len(members) == 1:
                return members[0], NULLABLE
            return inspect.UnionType(tuple(members)), NULLABLE
    return kind, ""


def _name(kind: inspect.Type) -> str:
    """Write the type, with its choices or its limits."""
    bare = kind.type if isinstance(kind, inspect.Metadata) else kind
    if isinstance(bare, inspect.LiteralType | inspect.EnumType):
        return choices_text(choice_values(bare))
    try:
        name = sql_type_of(kind)
    except TopologyError:
        name = type(bare).__name__.removesuffix("Type").lower()
    limits: list[str] = []
    for limit in _LIMITS:
        value = getattr(bare, limit, None)
        if value is not None:
            limits.append(f"{limit} {value}")
    if limits:
        return f"{name} with {' and '.join(limits)}"
    return name


def choices_text(choices: Iterable[Any]) -> str:
    return f"{_ONE_OF}{msgspec.json.encode(sorted(choices, key=str)).decode()}"


def choices_of(text: str) -> frozenset[Any] | None:
    """Return the choices in the type of a field; None if it has no choices."""
    if not text.startswith(_ONE_OF):
        return None
    return frozenset(msgspec.json.decode(text.removeprefix(_ONE_OF)))
