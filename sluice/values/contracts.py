"""Converts contracts, the msgspec Structs that declare a topic's values, to Spark SQL types."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError
from sluice.values.sql_types import MOST_DIGITS, struct_type


def Digits(precision: int, scale: int) -> msgspec.Meta:  # noqa: N802  (reads as a type in an annotation)
    """Declare the digits of an `Annotated[Decimal, ...]`: at most `precision`, `scale` of them after the point.

    `precision` is 1 to 38.
    """
    return msgspec.Meta(extra={"precision": precision, "scale": scale})


Decimal2 = Annotated[Decimal, Digits(12, 2)]
"""An amount of money: up to twelve digits, two of them after the point."""

_SIMPLE: dict[type[inspect.Type], str] = {
    inspect.IntType: "BIGINT",
    inspect.StrType: "STRING",
    inspect.FloatType: "DOUBLE",
    inspect.BoolType: "BOOLEAN",
    inspect.DateTimeType: "TIMESTAMP",
    inspect.DateType: "DATE",
    inspect.BytesType: "BINARY",
}


_DEEPEST = 40
"""Limit for nested objects; a contract that exceeds it contains itself."""


def fields(contract: type[msgspec.Struct]) -> dict[str, str]:
    """The contract's tag and fields by their JSON names, each with its Spark SQL type."""
    return _fields(struct_info(contract), contract.__name__)


def sql_type(kind: Any) -> str:
    """The Spark SQL type of any type that a field can have."""
    name = getattr(kind, "__name__", str(kind))
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, msgspec.Struct):
        text = f"{name}[{', '.join(getattr(argument, '__name__', str(argument)) for argument in get_args(kind))}]"
        raise TopologyError(
            f"{text} is generic; a contract is a class.",
            next_step=f"Declare a class: class {name}Values({text}): pass.",
        )
    return _sql_type(_info(kind, name), name)


def attributes(contract: type[msgspec.Struct]) -> dict[str, str]:
    """JSON name of a field → the contract's attribute. A tag has no attribute."""
    return {field.encode_name: field.name for field in struct_info(contract).fields}


def struct_info(contract: type[msgspec.Struct]) -> inspect.StructType:
    if not (isinstance(contract, type) and issubclass(contract, msgspec.Struct)):
        raise TopologyError(
            f"{contract!r} is not a contract.",
            next_step="Declare the value as a msgspec.Struct.",
        )
    info = _info(contract, contract.__name__)
    assert isinstance(info, inspect.StructType)
    return info


def _info(kind: Any, name: str) -> inspect.Type:
    try:
        return inspect.type_info(kind)
    except (TypeError, NameError) as error:
        raise TopologyError(
            f"{name} is not a contract: {error}.",
            next_step="Declare the value as a msgspec.Struct, or as str.",
        ) from None


def _sql_type(kind: inspect.Type, where: str) -> str:
    if isinstance(kind, inspect.Metadata):
        digits = kind.extra or {}
        if isinstance(kind.type, inspect.DecimalType) and "scale" in digits:
            return _decimal(digits["precision"], digits["scale"], where)
        return _sql_type(kind.type, where)
    if isinstance(kind, inspect.UnionType):
        # Every field can be null in SQL, so `X | None` has the type of X. SQL has no unions of other types.
        present = [member for member in kind.types if not isinstance(member, inspect.NoneType)]
        if len(present) == 1:
            return _sql_type(present[0], where)
    if isinstance(kind, inspect.StructType):
        return _struct_type(kind, where)
    if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType):
        return f"ARRAY<{_sql_type(kind.item_type, where)}>"
    if isinstance(kind, inspect.DictType):
        return _map_type(kind, where)
    if isinstance(kind, inspect.LiteralType | inspect.EnumType):
        return _choice(kind, where)
    if isinstance(kind, inspect.DateTimeType) and kind.tz is False:
        raise TopologyError(
            f"{where}: tz=False is impossible, because Sluice gives each time a zone.",
            next_step="Declare it as datetime: a time without a zone is in the pipeline's zone.",
        )
    if type(kind) in _SIMPLE:
        return _SIMPLE[type(kind)]
    raise TopologyError(
        f"{where}: {type(kind).__name__} has no Spark SQL type.",
        next_step=_instead(kind),
    )


def _instead(kind: inspect.Type) -> str:
    """Advice for an error message: what to declare instead of a type that has no Spark SQL type."""
    match kind:
        case inspect.DecimalType():
            return "Use Annotated[Decimal, Digits(12, 2)]."
        case inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType() | inspect.CustomType():
            return "Declare it as a msgspec.Struct."
        case _:
            return "Declare the type of its values, such as str, float, list[str] or a msgspec.Struct."


def _decimal(precision: Any, scale: Any, where: str) -> str:
    if not (type(precision) is type(scale) is int and 1 <= precision <= MOST_DIGITS and 0 <= scale <= precision):
        raise TopologyError(
            f"{where}: Digits({precision!r}, {scale!r}) has no Spark SQL type.",
            next_step=f"Declare 1 to {MOST_DIGITS} digits, and at most as many after the point.",
        )
    return f"DECIMAL({precision},{scale})"


def _struct_type(kind: inspect.StructType, where: str) -> str:
    # A contract that contains itself would have a type without end.
    if where.count(".") > _DEEPEST:
        raise TopologyError(f"{where[:100]}...: a contract that contains itself has no Spark SQL type.")
    return struct_type(_fields(kind, where))


def _fields(kind: inspect.StructType, where: str) -> dict[str, str]:
    if kind.array_like:
        raise TopologyError(
            f"{where}: a Struct with array_like=True has no names in JSON.",
            next_step="Declare it without array_like; a Serde's decoder can convert arrays.",
        )
    types = {}
    if kind.tag_field is not None:
        types[kind.tag_field] = "BIGINT" if isinstance(kind.tag, int) else "STRING"
    for field in kind.fields:
        name = f"{where}.{field.name}"
        if twins := [other for other in types if other.lower() == field.encode_name.lower()]:
            raise TopologyError(
                f"{name}: the fields {twins[0]} and {field.encode_name} differ only in case, which Spark SQL ignores.",
                next_step="Leave one out, or give the values a Serde whose decoder renames it.",
            )
        if not field.encode_name:
            raise TopologyError(
                f"{name}: the field has an empty name in JSON.",
                next_step="Rename it.",
            )
        types[field.encode_name] = _sql_type(field.type, name)
        # msgspec.inspect leaves UNSET out of types and defaults.
        if not field.required and field.default is field.default_factory is msgspec.NODEFAULT:
            raise TopologyError(
                f"{name}: SQL has no UNSET.",
                next_step="Declare a default of another type, such as None.",
            )
    return types


def _map_type(kind: inspect.DictType, where: str) -> str:
    if not isinstance(kind.key_type, inspect.StrType):
        raise TopologyError(
            f"{where}: an object's keys must be str.",
            next_step="Declare it as dict[str, ...].",
        )
    return f"MAP<STRING, {_sql_type(kind.value_type, where)}>"


def _choice(kind: inspect.LiteralType | inspect.EnumType, where: str) -> str:
    sql = {str: "STRING", int: "BIGINT"}.get(choice_type(kind))
    if sql is None:
        raise TopologyError(f"{where} must be a choice of str values, or of int values.")
    return sql


def choice_type(kind: inspect.LiteralType | inspect.EnumType) -> type:
    """The type of all choices of a Literal or an Enum; NoneType if their types differ."""
    values = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
    types = {type(value) for value in values}
    return types.pop() if len(types) == 1 else type(None)


def require_importable(kind: Any, where: str = "") -> None:
    """Raise TopologyError if the type contains a Struct or an Enum that Spark's tasks cannot import.

    A copy of such a Struct would have no fields, so a task would read empty objects.
    """
    for part in types_within(kind):
        if isinstance(part, inspect.StructType | inspect.EnumType):
            name = (get_origin(part.cls) or part.cls).__qualname__
            if "<locals>" in name:
                raise TopologyError(
                    f"{where}{name} is defined in a function.",
                    next_step="Define it at the top level of its module, so that Spark's tasks can import it.",
                )


def types_within(kind: Any) -> list[inspect.Type]:
    """A type, and the types of the parts of its values. A Struct that contains itself occurs once."""
    types = [inspect.type_info(kind)]
    ids = {id(types[0])}
    for part in types:
        inner: Iterable[inspect.Type] = ()
        match part:
            case inspect.StructType():
                inner = [field.type for field in part.fields]
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() | inspect.FrozenSetType():
                inner = [part.item_type]
            case inspect.DictType():
                inner = [part.value_type]
            case inspect.UnionType():
                inner = part.types
            case inspect.Metadata():
                inner = [part.type]
        new = [inner_type for inner_type in inner if id(inner_type) not in ids]
        ids |= {*map(id, new)}
        types += new  # the loop visits these types, too
    return types
