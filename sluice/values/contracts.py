"""Converts contracts, the types that declare a topic's values, to Spark SQL types.

A contract with fields is a msgspec Struct, a dataclass, a TypedDict, a pydantic model, or a union
of tagged Structs or of models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from decimal import Decimal
from functools import cache
from operator import attrgetter, itemgetter
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError, sentence
from sluice.values.json_text import JSON_FIELD
from sluice.values.pydantic_models import is_model
from sluice.values.sql_types import MOST_DIGITS, struct_type
from sluice.values.stored_values import JsonText, stored_type, unmarked


def Digits(precision: int, scale: int) -> msgspec.Meta:  # noqa: N802  (reads as a type in an annotation)
    """Limit a Decimal's digits: `precision` in all, and `scale` of them after the point.

    Use `Digits` in an annotation, such as `Annotated[Decimal, Digits(12, 2)]`. `precision` is 1 to
    38.
    """
    digits = {"precision": precision, "scale": scale}
    return msgspec.Meta(extra=digits, extra_json_schema=digits)


Decimal2 = Annotated[Decimal, Digits(12, 2)]
"""An amount of money: up to twelve digits, two of them after the point."""

ObjectType: TypeAlias = inspect.StructType | inspect.DataclassType | inspect.TypedDictType
"""A class whose instances have fields."""


def is_class_with_fields(kind: Any) -> bool:
    """Return whether `kind` is a Struct, a dataclass, a TypedDict or a pydantic model."""
    return isinstance(kind, type) and (
        issubclass(kind, msgspec.Struct)
        or is_dataclass(kind)
        or is_typeddict(kind)
        or is_model(kind)
    )


def is_bytes(kind: Any) -> bool:
    """Return whether a topic's values are plain bytes, not JSON."""
    return kind in (bytes, bytes | None)


@cache
def type_info(kind: Any) -> inspect.Type:
    """Return msgspec's description of the type in which values of the type `kind` are stored.

    The result is cached, because loading a pipeline needs the same types many times.
    """
    return inspect.type_info(stored_type(kind))


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
"""How deep objects may be nested. A contract that exceeds this limit is assumed to contain
itself."""


def name_of(kind: Any) -> str:
    """Return the name of a type, for messages."""
    if members := [*map(name_of, get_args(kind))]:
        if get_origin(kind) is UnionType:
            return " | ".join(members)
        return str(kind)
    return getattr(kind, "__name__", str(kind))


def variants(kind: inspect.Type) -> Sequence[ObjectType]:
    """Return the classes of values with fields: one class, or the members of a union.

    Empty for other types.
    """
    if isinstance(kind, ObjectType):
        return [kind]
    if isinstance(kind, inspect.UnionType):
        members = members_of(kind)
        classes = [member for member in members if isinstance(member, inspect.StructType)]
        if len(classes) == len(members):
            return classes
    return []


def has_fields(contract: Any) -> bool:
    """Return whether values of this type have fields."""
    return type(None) not in get_args(stored_type(contract)) and bool(
        variants(_info(contract, name_of(contract)))
    )


def fields(contract: Any) -> dict[str, str]:
    """Return the contract's tag and fields by their JSON names, each with its Spark SQL type."""
    return _fields(object_variants(contract), name_of(contract))


def field_types(contract: Any) -> dict[str, Any]:
    """Return the contract's fields by their JSON names, each with its declared type."""
    types: dict[str, Any] = {}
    for kind in object_variants(contract):
        hints = get_type_hints(kind.cls, include_extras=True)
        for field in kind.fields:
            types[field.encode_name] = unmarked(hints[field.name])
    return types


def members_of(union: inspect.UnionType) -> list[inspect.Type]:
    """Return the members of a union other than None."""
    return [member for member in union.types if not isinstance(member, inspect.NoneType)]


def sql_type(kind: Any) -> str:
    """Return the Spark SQL type of any type that a field can have."""
    name = _name_of_type(kind)
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, msgspec.Struct):
        text = f"{name}[{', '.join(map(_name_of_type, get_args(kind)))}]"
        raise TopologyError(
            f"{text} is a generic type with parameters, which cannot be a contract.",
            next_step=f"Declare a subclass: class {name}Values({text}): pass.",
        )
    return _sql_type(_info(kind, name), name)


def _name_of_type(kind: Any) -> str:
    return getattr(kind, "__name__", str(kind))


def sql_type_of(kind: inspect.Type) -> str:
    """Return the Spark SQL type of a type as msgspec describes it. Raises TopologyError."""
    return _sql_type(kind, "")


def field_reader(contract: Any, name: str) -> Callable[[Any], Any]:
    """Return a function that reads the field or tag with the JSON name `name` from a value."""
    kinds = object_variants(contract)
    attributes: dict[str, str] = {}
    for kind in kinds:
        for field in kind.fields:
            attributes[field.encode_name] = field.name
    if name not in attributes:
        return attrgetter("__struct_config__.tag")
    attribute = attributes[name]
    if isinstance(kinds[0], inspect.TypedDictType):
        for field in kinds[0].fields:
            if field.name == attribute and field.required:
                return itemgetter(attribute)
        return lambda value: value.get(attribute)
    # A member of a union may lack the field.
    if len(kinds) == 1:
        return attrgetter(attribute)
    return lambda value: getattr(value, attribute, None)


def object_variants(contract: Any) -> Sequence[ObjectType]:
    """Return the `variants` of a contract; raise TopologyError if its values have no fields."""
    kinds = variants(_info(contract, name_of(contract)))
    if not kinds:
        raise TopologyError(
            f"{contract!r} is not a contract.",
            next_step="Declare the value as a msgspec.Struct.",
        )
    return kinds


def _info(kind: Any, name: str) -> inspect.Type:
    try:
        return type_info(kind)
    except (TypeError, NameError) as error:
        raise TopologyError(
            f"{name} is not a contract: {sentence(error)}",
            next_step="Declare the value as a msgspec.Struct, or as str.",
        ) from None


def _sql_type(kind: inspect.Type, where: str) -> str:
    if isinstance(kind, inspect.Metadata):
        digits = kind.extra or {}
        if isinstance(kind.type, inspect.DecimalType) and "scale" in digits:
            return _decimal(digits["precision"], digits["scale"], where)
        return _sql_type(kind.type, where)
    if isinstance(kind, inspect.UnionType):
        # Every field can be null in SQL, so `X | None` has the type of X.
        # Other unions have a type in SQL only if their members are classes with fields.
        present = members_of(kind)
        if len(present) == 1:
            return _sql_type(present[0], where)
    if kinds := variants(kind):
        return _struct_type(kinds, where)
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
    name = type(kind).__name__
    if isinstance(kind, inspect.CustomType):
        name = kind.cls.__name__
    raise TopologyError(
        f"{where}: {name} has no Spark SQL type.",
        next_step=_instead(kind),
    )


def _instead(kind: inspect.Type) -> str:
    """Return advice on what to declare instead of a type that has no Spark SQL type."""
    match kind:
        case inspect.DecimalType():
            return "Use Annotated[Decimal, Digits(12, 2)]."
        case inspect.CustomType():
            return (
                "Declare a type of JSON values, such as str, or a class of fields, such as a "
                "msgspec.Struct."
            )
        case inspect.NamedTupleType():
            return "Declare it as a msgspec.Struct."
        case _:
            return (
                "Declare the type of its values, such as str, float, list[str] or a msgspec.Struct."
            )


def _decimal(precision: Any, scale: Any, where: str) -> str:
    if not (
        type(precision) is type(scale) is int
        and 1 <= precision <= MOST_DIGITS
        and 0 <= scale <= precision
    ):
        raise TopologyError(
            f"{where}: Digits({precision!r}, {scale!r}) has no Spark SQL type.",
            next_step=f"Declare 1 to {MOST_DIGITS} digits, and at most as many after the point.",
        )
    return f"DECIMAL({precision},{scale})"


def _struct_type(kinds: Sequence[ObjectType], where: str) -> str:
    # A contract that contains itself would have an infinite type.
    if where.count(".") > _DEEPEST:
        raise TopologyError(
            f"{where[:100]}...: a contract that contains itself has no Spark SQL type.",
            next_step="Declare the field as Any, or put the nested objects into one flat list.",
        )
    return struct_type(_fields(kinds, where))


def _fields(kinds: Sequence[ObjectType], where: str) -> dict[str, str]:
    """Return the tag and the fields of a class, or of all members of a union.

    A value has null in the fields of other members.
    """
    if len(kinds) == 1:
        return _fields_of_class(kinds[0], where)
    types: dict[str, str] = {}
    for kind in kinds:
        if isinstance(kind, inspect.StructType) and kind.forbid_unknown_fields:
            raise TopologyError(
                f"{where}: {kind.cls.__name__} forbids unknown fields, but in SQL each value has "
                "the fields of all members of the union.",
                next_step="Declare the members without forbid_unknown_fields or extra='forbid'.",
            )
        for name, sql in _fields_of_class(kind, f"{where}.{kind.cls.__name__}").items():
            if types.setdefault(name, sql) != sql:
                raise TopologyError(
                    f"{where}: the field {name} is {types[name]} in one member of the union, and "
                    f"{sql} in another.",
                    next_step="Rename it in one of them: SQL sees one column for all members.",
                )
            _require_different(name, types, f"{where}.{kind.cls.__name__}.{name}")
    return types


def _require_different(name: str, others: Iterable[str], where: str) -> None:
    """Raise TopologyError if Spark SQL, which ignores case, cannot tell two fields apart."""
    for other in others:
        if other != name and other.lower() == name.lower():
            raise TopologyError(
                f"{where}: the fields {other} and {name} differ only in case, which Spark SQL "
                "ignores.",
                next_step="Leave one of them out, or give the values a Serde whose decoder "
                "renames one of them.",
            )


def _fields_of_class(kind: ObjectType, where: str) -> dict[str, str]:
    if isinstance(kind, inspect.StructType) and kind.array_like:
        raise TopologyError(
            f"{where}: a Struct with array_like=True has no names in JSON.",
            next_step="Declare it without array_like; a Serde's decoder can convert arrays.",
        )
    types = {}
    if isinstance(kind, inspect.StructType) and kind.tag_field is not None:
        types[kind.tag_field] = "BIGINT" if isinstance(kind.tag, int) else "STRING"
    for field in kind.fields:
        name = f"{where}.{field.name}"
        _require_different(field.encode_name, types, name)
        if not field.encode_name:
            raise TopologyError(
                f"{name}: the field has an empty name in JSON.",
                next_step="Rename it.",
            )
        if field.encode_name == JSON_FIELD and kind.cls is not JsonText:
            raise TopologyError(
                f"{name}: the name {JSON_FIELD} is reserved by Sluice.", next_step="Rename it."
            )
        types[field.encode_name] = _sql_type(field.type, name)
        if (
            isinstance(kind, inspect.TypedDictType)
            and not field.required
            and not allows_none(field.type)
        ):
            raise TopologyError(
                f"{name}: if a record leaves this field out, Python functions get None for it, so "
                "its type must allow None.",
                next_step="Declare it as NotRequired[... | None].",
            )
        # msgspec.inspect does not show the default UNSET: a Struct's field then has no default
        # there, but is not required, either.
        has_default = (
            field.default is not msgspec.NODEFAULT or field.default_factory is not msgspec.NODEFAULT
        )
        if isinstance(kind, inspect.StructType) and not field.required and not has_default:
            raise TopologyError(
                f"{name}: SQL has no UNSET.",
                next_step="Declare a default of another type, such as None.",
            )
    return types


def allows_none(kind: inspect.Type) -> bool:
    """Return whether a type is a union with None."""
    return isinstance(kind, inspect.UnionType) and len(members_of(kind)) < len(kind.types)


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
        raise TopologyError(
            f"{where} must be a choice of str values, or of int values.",
            next_step="Give all values the same type.",
        )
    return sql


def choice_values(kind: inspect.LiteralType | inspect.EnumType) -> list[Any]:
    """Return the choices of a Literal, or the values of an Enum's members."""
    if isinstance(kind, inspect.LiteralType):
        return [*kind.values]
    return [member.value for member in kind.cls]


def choice_type(kind: inspect.LiteralType | inspect.EnumType) -> type:
    """Return the type of all choices of a Literal or an Enum; NoneType if their types differ."""
    types = set(map(type, choice_values(kind)))
    if len(types) == 1:
        return types.pop()
    return type(None)


def require_importable(kind: Any, where: str = "") -> None:
    """Raise TopologyError if the type contains a class or an Enum that Spark's tasks cannot import.

    A task would get a copy of the class. A Struct's copy has no fields, so the task would read
    empty objects.
    """
    for part in types_within(kind):
        if isinstance(part, ObjectType | inspect.EnumType):
            name = (get_origin(part.cls) or part.cls).__qualname__
            if "<locals>" in name:
                raise TopologyError(
                    f"{where}{name} is defined in a function.",
                    next_step="Define it at the top level of its module, so that Spark's tasks can "
                    "import it.",
                )


def types_within(kind: Any) -> list[inspect.Type]:
    """Return a type, and the types of the parts of its values.

    A Struct that contains itself occurs once.
    """
    types = [type_info(kind)]
    ids = {id(types[0])}
    for part in types:
        inner: Iterable[inspect.Type] = ()
        match part:
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                inner = [field.type for field in part.fields]
            case (
                inspect.ListType()
                | inspect.VarTupleType()
                | inspect.SetType()
                | inspect.FrozenSetType()
            ):
                inner = [part.item_type]
            case inspect.DictType():
                inner = [part.value_type]
            case inspect.UnionType():
                inner = part.types
            case inspect.Metadata():
                inner = [part.type]
        new = [inner_type for inner_type in inner if id(inner_type) not in ids]
        ids |= {*map(id, new)}
        types += new  # The loop then visits these types, too.
    return types
