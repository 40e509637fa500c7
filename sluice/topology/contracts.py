"""Contracts: a msgspec Struct says what a topic's values are; here it is read as Spark SQL types."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Annotated

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError


def Digits(precision: int, scale: int) -> msgspec.Meta:  # noqa: N802  (reads as a type in an annotation)
    """For `Annotated[Decimal, Digits(12, 2)]`: at most `precision` digits, at most `scale` of them after the point."""
    return msgspec.Meta(extra={"precision": precision, "scale": scale})


Decimal2 = Annotated[Decimal, Digits(12, 2)]
"""An amount of money: twelve digits, two of them after the point."""

_SIMPLE: dict[type[inspect.Type], str] = {
    inspect.IntType: "BIGINT",
    inspect.StrType: "STRING",
    inspect.FloatType: "DOUBLE",
    inspect.BoolType: "BOOLEAN",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.DateType: "DATE",
    inspect.LiteralType: "STRING",
    inspect.EnumType: "STRING",
    inspect.BytesType: "BINARY",
}


def fields(contract: type[msgspec.Struct]) -> dict[str, str]:
    """The contract's fields by their names in the JSON, each with its Spark SQL type."""
    return {field.encode_name: _sql_type(field.type, f"{contract.__name__}.{field.name}") for field in _struct(contract).fields}


def attributes(contract: type[msgspec.Struct]) -> dict[str, str]:
    """JSON name → attribute name, where they differ or not."""
    return {field.encode_name: field.name for field in _struct(contract).fields}


def _struct(contract: type[msgspec.Struct]) -> inspect.StructType:
    if not (isinstance(contract, type) and issubclass(contract, msgspec.Struct)):
        raise TopologyError(f"{contract!r} is not a contract.", next_step="Declare the value as a msgspec.Struct.")
    info = inspect.type_info(contract)
    assert isinstance(info, inspect.StructType)
    return info


def _sql_type(kind: inspect.Type, where: str) -> str:
    if isinstance(kind, inspect.Metadata):
        digits = kind.extra or {}
        if isinstance(kind.type, inspect.DecimalType) and "scale" in digits:
            return f"DECIMAL({digits['precision']},{digits['scale']})"
        return _sql_type(kind.type, where)
    if isinstance(kind, inspect.UnionType):
        present = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        if len(present) == 1:
            return _sql_type(present[0], where)
    if isinstance(kind, inspect.StructType):
        inner = ", ".join(f"{f.encode_name}: {_sql_type(f.type, f'{where}.{f.name}')}" for f in kind.fields)
        return f"STRUCT<{inner}>"
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return f"ARRAY<{_sql_type(kind.item_type, where)}>"
    if isinstance(kind, inspect.DictType):
        return f"MAP<STRING, {_sql_type(kind.value_type, where)}>"
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    hint = "Use Annotated[Decimal, Digits(12, 2)]." if isinstance(kind, inspect.DecimalType) else ""
    raise TopologyError(f"{where}: {type(kind).__name__} has no Spark SQL type.", next_step=hint)


def key_counter(contract: type[msgspec.Struct]) -> Callable[[msgspec.Struct], int] | None:
    """A function that says how many JSON keys a value of this contract was written with, nested ones included.

    None if that cannot be told from the value: a field may be left out, or may hold keys of any name.
    """
    source = _count(_struct(contract), "v")
    return None if source is None else eval(f"lambda v: {source}")  # noqa: S307  (built from field names only)


def _count(kind: inspect.Type, value: str) -> str | None:
    if isinstance(kind, inspect.Metadata):
        return _count(kind.type, value)
    if isinstance(kind, inspect.StructType):
        if any(not field.required for field in kind.fields) or kind.tag_field:
            return None
        inner = [_count(field.type, f"{value}.{field.name}") for field in kind.fields]
        if None in inner:
            return None
        return " + ".join([str(len(kind.fields)), *(count for count in inner if count != "0")])  # type: ignore[misc]
    if isinstance(kind, inspect.ListType | inspect.VarTupleType):
        each = _count(kind.item_type, "i")
        if each is None or each == "0" or each.isdigit():
            return each if each in (None, "0") else f"{each} * len({value})"
        return f"sum(({each}) for i in {value})"
    if type(kind) in _SIMPLE or isinstance(kind, inspect.DecimalType):
        return "0"
    return None
