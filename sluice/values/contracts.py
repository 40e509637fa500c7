"""Converts contracts, the msgspec Structs that declare a topic's values, to Spark SQL types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import inspect

from sluice.errors import TopologyError
from sluice.values.epochs import unit_of
from sluice.values.json_limits import JSON_NUMBER, MOST_DIGITS
from sluice.values.keys import in_order
from sluice.values.sql_types import struct_type


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
    return _fields(_struct(contract), contract.__name__)


def sql_type(kind: Any) -> str:
    """The Spark SQL type of any type that a field can have."""
    name = getattr(kind, "__name__", str(kind))
    if isinstance(origin := get_origin(kind), type) and issubclass(origin, msgspec.Struct):
        text = f"{name}[{', '.join(getattr(each, '__name__', str(each)) for each in get_args(kind))}]"
        raise TopologyError(
            f"{text} is generic; a contract is a class.",
            next_step=f"Declare a class: class {name}Values({text}): pass.",
        )
    return _sql_type(_info(kind, name), name)


def attributes(contract: type[msgspec.Struct]) -> dict[str, str]:
    """The contract's attribute names by JSON name; a tag has none."""
    return {field.encode_name: field.name for field in _struct(contract).fields}


def _struct(contract: type[msgspec.Struct]) -> inspect.StructType:
    if not (isinstance(contract, type) and issubclass(contract, msgspec.Struct)):
        raise TopologyError(f"{contract!r} is not a contract.", next_step="Declare the value as a msgspec.Struct.")
    info = _info(contract, contract.__name__)
    assert isinstance(info, inspect.StructType)
    return info


def _info(kind: Any, name: str) -> inspect.Type:
    try:
        return inspect.type_info(kind)
    except (TypeError, NameError) as error:
        raise TopologyError(
            f"{name} is not a contract: {error}.", next_step="Declare the value as a msgspec.Struct, or as str."
        ) from None


def _sql_type(kind: inspect.Type, where: str) -> str:
    if isinstance(kind, inspect.Metadata):
        digits = kind.extra or {}
        if isinstance(kind.type, inspect.DecimalType) and "scale" in digits:
            return _decimal(digits["precision"], digits["scale"], where)
        return _sql_type(kind.type, where)
    if isinstance(kind, inspect.UnionType):
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
    raise TopologyError(f"{where}: {type(kind).__name__} has no Spark SQL type.", next_step=_instead(kind))


def _instead(kind: inspect.Type) -> str:
    """How to declare a type that has no Spark SQL type."""
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
        if twins := [known for known in types if known.lower() == field.encode_name.lower()]:
            raise TopologyError(
                f"{name}: the fields {twins[0]} and {field.encode_name} differ only in case, which Spark SQL ignores.",
                next_step="Leave one out, or give the values a Serde whose decoder renames it.",
            )
        if not field.encode_name:
            raise TopologyError(f"{name}: the field has an empty name in JSON.", next_step="Rename it.")
        types[field.encode_name] = _sql_type(field.type, name)
        # msgspec.inspect leaves UNSET out of types and defaults.
        if not field.required and field.default is field.default_factory is msgspec.NODEFAULT:
            raise TopologyError(
                f"{name}: SQL has no UNSET.", next_step="Declare a default of another type, such as None."
            )
    return types


def _map_type(kind: inspect.DictType, where: str) -> str:
    if not isinstance(kind.key_type, inspect.StrType):
        raise TopologyError(f"{where}: an object's keys must be str.", next_step="Declare it as dict[str, ...].")
    return f"MAP<STRING, {_sql_type(kind.value_type, where)}>"


def quote_counter(contract: type[msgspec.Struct]) -> Callable[[Sequence[msgspec.Struct]], int] | None:
    """Return a function that counts the quotation marks in the JSON of values, including nested values.

    The JSON of a value never has fewer. With exactly as many, it has no duplicate or unknown field and no escaped
    quotation mark. Returns None if the contract has optional fields, because the number then does not follow from the
    value.
    """
    source = _strings(_struct(contract), "v")
    if source is None:
        return None
    counter: Callable[[Sequence[msgspec.Struct]], int] = eval(f"lambda values: 2 * sum([{source} for v in values])")
    return counter


def _choice(kind: inspect.LiteralType | inspect.EnumType, where: str) -> str:
    sql = {str: "STRING", int: "BIGINT"}.get(_choice_type(kind))
    if sql is None:
        raise TopologyError(f"{where} must be a choice of str values, or of int values.")
    return sql


def _choice_type(kind: inspect.LiteralType | inspect.EnumType) -> type:
    """The type of all choices; NoneType if they differ."""
    values = kind.values if isinstance(kind, inspect.LiteralType) else [member.value for member in kind.cls]
    types = {type(value) for value in values}
    return types.pop() if len(types) == 1 else type(None)


_QUOTED = inspect.StrType | inspect.DateTimeType | inspect.DateType | inspect.BytesType


def _strings(kind: inspect.Type, value: str) -> str | None:
    """Python source that counts the strings, including field names, in the JSON of `value`."""
    match kind:
        case inspect.Metadata():
            return _strings(kind.type, value) if unit_of(kind.extra) is None else "0"
        case inspect.StructType():
            if kind.tag_field or any(not field.required for field in kind.fields):
                return None
            return _total([str(len(kind.fields)), *(_strings(f.type, f"{value}.{f.name}") for f in kind.fields)])
        case inspect.ListType() | inspect.VarTupleType():
            each = _strings(kind.item_type, "i")
            if each is None or "i" not in each:
                return each and (each if each == "0" else f"{each} * len({value})")
            return f"sum([{each} for i in {value}])"
        case inspect.LiteralType() | inspect.EnumType():
            return {str: "1", int: "0"}.get(_choice_type(kind))
        case inspect.IntType() | inspect.FloatType() | inspect.BoolType() | inspect.DecimalType():
            return "0"
        case _:
            return "1" if isinstance(kind, _QUOTED) else None


def _total(counts: list[str | None]) -> str | None:
    if None in counts:
        return None
    fixed = sum(int(count) for count in counts if count and count.isdigit())
    return " + ".join([str(fixed), *(count for count in counts if count and not count.isdigit())])


@dataclass(frozen=True)
class Part:
    """A number, text or time in values of some type."""

    kind: inspect.Type
    path: str
    """Its place, for messages: `$.lines[...].amount`."""
    item: str
    """Python source of the part, in terms of the value `v` and of the variables of `loops`."""
    loops: str
    """Python source: the loops and conditions of a comprehension in which `item` has the parts; empty for one part."""

    @property
    def digits(self) -> tuple[int, int] | None:
        """Precision and scale of a Decimal with declared digits."""
        if isinstance(self.kind, inspect.Metadata) and self.kind.extra and "scale" in self.kind.extra:
            return self.kind.extra["precision"], self.kind.extra["scale"]
        return None

    def collector(self) -> Callable[[Sequence[Any]], list[Any]]:
        """A function that collects the part from each of some values."""
        collect: Callable[[Sequence[Any]], list[Any]] = eval(
            f"lambda values: [{self.item} for v in values{self.loops}]"
        )
        return collect  # its source has only attribute names


def collector(parts: Iterable[Part]) -> Callable[[Any], list[Any]]:
    """A function that collects some parts of one value."""
    sources = [part.item if not part.loops else f"*[{part.item} for _ in (0,){part.loops}]" for part in parts]
    collect: Callable[[Any], list[Any]] = eval(f"lambda v: [{', '.join(sources)}]")
    return collect


def parts(kind: Any) -> list[Part]:
    """The parts of a contract or another field type, including nested ones."""
    found: list[Part] = []

    def visit(kind: inspect.Type, path: str, item: str, loops: str) -> None:
        name = f"i{len(found)}_{loops.count(' for ')}"
        match kind:
            case inspect.StructType():
                for field in kind.fields:
                    visit(field.type, f"{path}.{field.encode_name}", f"{item}.{field.name}", loops)
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                visit(kind.item_type, f"{path}[...]", name, f"{loops} for {name} in {item}")
            case inspect.DictType():
                visit(kind.value_type, f"{path}[...]", name, f"{loops} for {name} in {item}.values()")
            case inspect.UnionType():
                for member in kind.types:
                    visit(member, path, item, f"{loops} if {item} is not None")
            case inspect.Metadata() if not isinstance(kind.type, inspect.DecimalType):
                visit(kind.type, path, item, loops)
            case inspect.NoneType():
                pass
            case _:
                found.append(Part(kind, path, item, loops))

    visit(inspect.type_info(kind), "$", "v", "")
    return found


def amount_check(kind: Any) -> Callable[[Any], None] | None:
    """A function that raises ValidationError for a text in place of a Decimal that is not written as a number in JSON.

    msgspec takes every text that Python's Decimal takes, such as "1_000", " 5 " and digits of other scripts. The
    function takes a value, or the data of its JSON, in which numbers may be text. None if the type has no Decimals.
    """
    info = inspect.type_info(kind)
    if not any(isinstance(part.kind, inspect.DecimalType) or part.digits is not None for part in parts(kind)):
        return None

    def check(value: Any) -> None:
        for path, text in _amounts_as_text(info, value, "$"):
            # NaN and Infinity are refused later, as no amounts of the declared digits.
            if not JSON_NUMBER.fullmatch(text) and text not in ("NaN", "Infinity", "-Infinity"):
                raise msgspec.ValidationError(f"{text[:40]!r} is not written as a number in JSON - at `{path}`")

    return check


def _amounts_as_text(kind: inspect.Type, value: Any, path: str) -> Iterator[tuple[str, str]]:
    """The place and text of each text that msgspec reads as a Decimal."""
    match kind:
        case inspect.DecimalType() if isinstance(value, str):
            yield path, value
        case inspect.Metadata():
            yield from _amounts_as_text(kind.type, value, path)
        case inspect.UnionType():
            for member in kind.types:
                yield from _amounts_as_text(member, value, path)
        case inspect.StructType() if isinstance(value, dict | msgspec.Struct):
            for field in kind.fields:
                part = value.get(field.encode_name) if isinstance(value, dict) else getattr(value, field.name, None)
                yield from _amounts_as_text(field.type, part, f"{path}.{field.encode_name}")
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() if isinstance(value, list | tuple | set):
            for element in value:
                yield from _amounts_as_text(kind.item_type, element, f"{path}[...]")
        case inspect.DictType() if isinstance(value, dict):
            for element in value.values():
                yield from _amounts_as_text(kind.value_type, element, f"{path}[...]")


def needs_by_name(kind: Any) -> bool:
    """Whether `by_name` makes other data of a value of this type than msgspec.

    msgspec leaves the fields' names or their defaults out of some Structs, and has sets in any order.
    """

    def differs(part: inspect.Type) -> bool:
        match part:
            case inspect.StructType(cls=cls, array_like=array_like):
                return array_like or (get_origin(cls) or cls).__struct_config__.omit_defaults
            case _:
                return isinstance(part, inspect.SetType | inspect.FrozenSetType)

    return any(map(differs, _types_within(kind)))


def has_dicts(kind: Any) -> bool:
    """Whether values of this type may contain dicts."""
    return any(isinstance(part, inspect.DictType) for part in _types_within(kind))


def require_importable(kind: Any, where: str = "") -> None:
    """Raise TopologyError if the type contains a Struct or an Enum that Spark's tasks cannot import.

    A copy of such a Struct would have no fields, so a task would read empty objects.
    """
    for part in _types_within(kind):
        if isinstance(part, inspect.StructType | inspect.EnumType):
            name = (get_origin(part.cls) or part.cls).__qualname__
            if "<locals>" in name:
                raise TopologyError(
                    f"{where}{name} is defined in a function.",
                    next_step="Define it at the top level of its module, so that Spark's tasks can import it.",
                )


def _types_within(kind: Any) -> list[inspect.Type]:
    """A type, and the types of the parts of its values. A Struct that contains itself occurs once."""
    found = [inspect.type_info(kind)]
    known = {id(found[0])}
    for part in found:
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
        new = [each for each in inner if id(each) not in known]
        known |= {*map(id, new)}
        found += new  # the loop reads these, too
    return found


def by_name(value: Any) -> Any:
    """The value with a dict of all fields by name, and of its tag, in place of each Struct, and sets in order."""
    match value:
        case msgspec.Struct():
            fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            named = {name: by_name(getattr(value, attribute)) for name, attribute in fields}
            config = value.__struct_config__
            return named if config.tag_field is None else {config.tag_field: config.tag, **named}
        case list() | tuple():
            return [*map(by_name, value)]
        case set() | frozenset():
            return in_order(map(by_name, value))
        case dict():
            return {name: by_name(inner) for name, inner in value.items()}
        case _:
            return value
