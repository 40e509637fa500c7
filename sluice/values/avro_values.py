"""Resolves a writer's schema against a contract, and converts Avro's values exactly.

The contract takes the place of the reader's schema. Avro's rules hold: fields are matched by name
or alias, numbers are widened, fields that the contract lacks are skipped, and fields that the
writer lacks get the contract's default. A writer's schema that cannot be resolved raises
MismatchError with the path of the part.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation, Rounded
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

from msgspec import inspect

from sluice.values.avro_schemas import (
    Array,
    Choice,
    Decimals,
    Field,
    Fixed,
    Map,
    Node,
    Primitive,
    Record,
    Union,
    present,
)
from sluice.values.contract_parts import digits_of
from sluice.values.contracts import (
    ObjectType,
    allows_none,
    choice_type,
    members_of,
    variants,
)
from sluice.values.epochs import unit_of
from sluice.values.registry_formats import RegistryFormat
from sluice.values.stored_values import JsonText

Convert: TypeAlias = Callable[[Any], Any]
"""Converts a value, in the writer's type, to plain data of the contract's type."""

UNITS = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
"""The suffix of a logical type of times → its units in a second."""
_1970 = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1).toordinal()
_NULL = Primitive("null")


class MismatchError(ValueError):
    """The schema of a writer cannot be resolved against the contract."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")


class InexactError(ValueError):
    """A value does not fit the contract's type exactly."""


@dataclass(frozen=True)
class Aliases:
    """Other names of the contract's fields, which earlier writers used."""

    by_field: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """`Record.field` → its aliases."""
    enum_defaults: Mapping[str, str] = field(default_factory=dict)
    """Name of an enum → the symbol that replaces symbols that the contract lacks."""

    @classmethod
    def of(cls, values: RegistryFormat) -> Aliases:
        return cls(values.aliases, values.enum_defaults)

    def written(self, record: Record, kind: ObjectType, name: str) -> Field | None:
        """Return the writer's field from which a field of the contract is read, if there is one."""
        fields = {each.name: each for each in record.fields}
        for each in (name, *self.by_field.get(f"{kind.cls.__name__}.{name}", ())):
            if each in fields:
                return fields[each]
        return None


def unchanged(value: Any) -> Any:
    return value


def converter(node: Node, kind: inspect.Type, aliases: Aliases, path: str = "$") -> Convert:
    """Return the function that converts values of a writer's schema to a type of the contract.

    Raises MismatchError.
    """
    match kind:
        case inspect.UnionType():
            return _of_union(node, kind, aliases, path)
        case inspect.Metadata() if digits_of(kind) is not None:
            return _decimals(node, kind, path)
        case inspect.Metadata():
            if unit_of(kind.extra) is not None:
                return _of_branches(
                    node, partial(_times, kind.type, unit=unit_of(kind.extra)), path
                )
            return converter(node, kind.type, aliases, path)
    if isinstance(kind, inspect.StructType) and kind.cls is JsonText:
        return natural(node)
    return _of_branches(node, partial(_of_type, kind, aliases), path)


def _of_union(node: Node, kind: inspect.UnionType, aliases: Aliases, path: str) -> Convert:
    members = members_of(kind)
    if not members:
        return unchanged
    if len(members) == 1:
        return _nullable(converter(node, members[0], aliases, path))
    tagged = variants(inspect.UnionType(tuple(members)))
    records = node.branches if isinstance(node, Union) else (node,)
    by_number: dict[int, Convert] = {}
    for number, record in enumerate(records):
        if record == _NULL:
            continue
        if not isinstance(record, Record):
            raise MismatchError(path, f"{described(record)} is none of the contract's classes")
        member = _member(record, tagged)
        if member is None:
            raise MismatchError(path, f"the contract has no class for the record {record.name}")
        by_number[number] = _tagged(converter(record, member, aliases, path), member)
    if isinstance(node, Record):
        return by_number[0]
    return _by_branch(by_number)


def _member(record: Record, members: Any) -> ObjectType | None:
    for member in members:
        tag = getattr(member, "tag", None)
        if record.short_name in (member.cls.__name__, tag) or record.name == tag:
            found: ObjectType = member
            return found
    return None


def _tagged(convert: Convert, member: ObjectType) -> Convert:
    tag_field, tag = getattr(member, "tag_field", None), getattr(member, "tag", None)

    def with_tag(value: Any) -> Any:
        return {tag_field: tag, **convert(value)}

    if tag_field is None:
        return convert
    return with_tag


def _by_branch(by_number: Mapping[int, Convert]) -> Convert:
    """Return the function for a union, given the functions for its types other than null."""
    if len(by_number) == 1:
        return _nullable(next(iter(by_number.values())))

    def convert(pair: Any) -> Any:
        if pair is None:
            return None
        number, value = pair
        return by_number[number](value)

    return convert


def _nullable(convert: Convert) -> Convert:
    if convert is unchanged:
        return convert
    return lambda value: None if value is None else convert(value)


def _of_branches(node: Node, make: Callable[[Node, str], Convert], path: str) -> Convert:
    """Return the function for a union; `make` returns the function for each of its types."""
    inner = present(node)
    if not isinstance(inner, Union):
        convert = make(inner, path)
        if inner is node:
            return convert
        return _nullable(convert)
    converts: dict[int, Convert] = {}
    for number, branch in enumerate(inner.branches):
        if branch != _NULL:
            converts[number] = make(branch, path)
    return _by_branch(converts)


def _of_elements(convert: Convert) -> Convert:
    """Return the function that converts each element of a list."""
    if convert is unchanged:
        return unchanged
    return lambda values: [convert(value) for value in values]


def _of_entries(convert: Convert) -> Convert:
    """Return the function that converts each value of a map."""
    if convert is unchanged:
        return unchanged
    return lambda values: {name: convert(value) for name, value in values.items()}


def _of_type(  # noqa: C901  (a table)
    kind: inspect.Type, aliases: Aliases, node: Node, path: str
) -> Convert:
    match kind, node:
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType(), Record():
            return _record(node, kind, aliases, path)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType(), Array():
            return _of_elements(converter(node.items, kind.item_type, aliases, f"{path}[...]"))
        case inspect.DictType(), Map():
            return _of_entries(converter(node.values, kind.value_type, aliases, f"{path}[...]"))
        case ((inspect.DateTimeType() | inspect.DateType()), _):
            return _times(kind, node, path)
        case inspect.LiteralType(values=known), Choice() if aliases.enum_defaults:
            return partial(_known_symbol, known, aliases.enum_defaults.get(node.short_name))
        case ((inspect.LiteralType() | inspect.EnumType()), _):
            own = inspect.IntType() if choice_type(kind) is int else inspect.StrType()
            return _of_type(own, aliases, node, path)
        case inspect.IntType(), Primitive(kind="int" | "long"):
            return unchanged
        case inspect.FloatType(), Primitive(kind="int" | "long"):
            return float
        case inspect.FloatType(), Primitive(kind="float" | "double"):
            return unchanged
        case inspect.BoolType(), Primitive(kind="boolean"):
            return unchanged
        case inspect.StrType(), Choice() | Primitive(kind="string"):
            return unchanged
        case inspect.StrType(), Primitive(kind="bytes"):
            return bytes.decode
        case inspect.StrType(), Fixed(logical="uuid"):
            return lambda data: str(UUID(bytes=data))
        case inspect.BytesType(), Fixed() | Primitive(kind="bytes"):
            return unchanged
        case inspect.BytesType(), Primitive(kind="string"):
            return str.encode
        case _:
            raise MismatchError(path, f"{described(node)} is no {shown(kind)}")


def _known_symbol(known: Container[Any], default: str | None, symbol: str) -> str:
    return symbol if default is None or symbol in known else default


def _record(node: Record, kind: ObjectType, aliases: Aliases, path: str) -> Convert:
    parts: list[tuple[str, str, Convert, bool]] = []
    is_same = not node.may_lack_fields
    for each in kind.fields:
        name = each.encode_name
        written = aliases.written(node, kind, name)
        if written is None:
            if each.required:
                raise MismatchError(f"{path}.{name}", "the field is missing and has no default")
            continue
        convert = converter(written.type, each.type, aliases, f"{path}.{name}")
        is_same &= convert is unchanged and written.name == name
        parts.append((name, written.name, convert, allows_none(each.type)))
    names_read = {each.encode_name for each in kind.fields}
    if is_same and names_read.issuperset(each.name for each in node.fields):
        return unchanged

    if node.may_lack_fields:
        return partial(_present_fields, parts)
    # Use None in place of `unchanged`: calling `unchanged` for each field would take longer than
    # the rest of the conversion.
    converts: list[tuple[str, str, Convert | None]] = []
    for name, written_name, convert, _ in parts:
        if convert is unchanged:
            converts.append((name, written_name, None))
        else:
            converts.append((name, written_name, convert))
    return partial(_all_fields, converts)


def _all_fields(parts: list[tuple[str, str, Convert | None]], value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    name = ""
    try:
        for name, written, convert in parts:
            fields[name] = value[written] if convert is None else convert(value[written])
    except ValueError as error:
        raise _within(error, f".{name}") from None
    return fields


def _present_fields(parts: list[tuple[str, str, Convert, bool]], value: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    name = ""
    try:
        for name, written, convert, takes_null in parts:
            if written in value:
                fields[name] = convert(value[written])
            elif takes_null:
                fields[name] = None
    except ValueError as error:
        raise _within(error, f".{name}") from None
    return fields


def _within(error: ValueError, place: str) -> InexactError:
    text = str(error).removeprefix("$")
    if text.startswith("."):
        return InexactError(f"${place}{text}")
    return InexactError(f"${place}: {text}")


def _decimals(node: Node, kind: inspect.Metadata, path: str) -> Convert:
    digits = digits_of(kind)
    assert digits is not None

    def make(node: Node, path: str) -> Convert:
        match node:
            case Primitive(logical="decimal") | Fixed(logical="decimal"):
                require_scale(node, digits, path)
                return partial(decimal_of, node.scale)
            case Primitive(kind="int" | "long"):
                return Decimal
            case Primitive(kind="string"):
                return unchanged
            case _:
                raise MismatchError(path, f"{described(node)} is no {shown(kind)}")

    return _of_branches(node, make, path)


def require_scale(node: Decimals, digits: tuple[int, int], path: str) -> None:
    if node.scale > digits[1]:
        raise MismatchError(
            path, f"{described(node)} has more decimals than the contract's decimal{digits}"
        )


def decimal_of(scale: int, data: bytes) -> Decimal:
    """Return the decimal for the bytes of a whole number in two's complement, as Avro writes it."""
    unscaled = Decimal(int.from_bytes(data, "big", signed=True))
    if len(data) <= _MOST_BYTES_OF_DECIMAL and scale <= _MOST_SCALE:
        return unscaled.scaleb(-scale, _EXACT)
    sign, digits, _ = unscaled.as_tuple()
    return Decimal((sign, digits, -scale))


_MOST_BYTES_OF_DECIMAL, _MOST_SCALE = 100, 1_000
_EXACT = Context(prec=300, traps=[Inexact, Rounded, InvalidOperation])
"""Has enough digits for every whole number of `_MOST_BYTES_OF_DECIMAL` bytes."""


def _times(kind: inspect.Type, node: Node, path: str, unit: Any = None) -> Convert:
    match kind, node:
        case inspect.DateType(), Primitive(kind="int", logical="date"):
            return lambda days: date.fromordinal(_FIRST_DAY + days)
        case inspect.DateTimeType(), Primitive(kind="long", logical=logical) if logical:
            per_second, is_local = unit_of_logical(logical)
            if per_second:
                return partial(time_of, per_second, is_local)
        case inspect.DateTimeType(), Primitive(kind="long") if unit is not None:
            return partial(time_of, unit.value, False)
        case ((inspect.DateTimeType() | inspect.DateType()), Primitive(kind="string")):
            return unchanged
    raise MismatchError(path, f"{described(node)} is no {shown(kind)}")


def unit_of_logical(logical: str) -> tuple[int, bool]:
    """Return a logical type's number of units in a second, and whether the type is a local time.

    Return 0 for a logical type that is not a timestamp.
    """
    bare = logical.removeprefix("local-")
    unit = 0
    if bare.startswith("timestamp-"):
        unit = UNITS.get(bare.removeprefix("timestamp-"), 0)
    return unit, bare != logical


def time_of(per_second: int, is_local: bool, number: int) -> datetime:
    """Return the time, given its number of units since 1970.

    Raises InexactError if the time is not a whole number of microseconds, or outside the years 1 to
    9999.
    """
    if per_second > 1_000_000:
        number, rest = divmod(number, per_second // 1_000_000)
        if rest:
            raise InexactError(f"the time has {rest} ns, but a contract has only microseconds")
        per_second = 1_000_000
    try:
        time = _1970 + timedelta(microseconds=number * (1_000_000 // per_second))
    except OverflowError:
        raise InexactError(f"the time {number} is outside the years 1 to 9999") from None
    if is_local:
        return time.replace(tzinfo=None)
    return time


def natural(node: Node) -> Convert:
    """Return the function that converts to plain JSON data, for a part of type Any."""
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            return partial(decimal_of, node.scale)
        case Primitive(kind="int", logical="date"):
            return lambda days: date.fromordinal(_FIRST_DAY + days)
        case Primitive(kind="long", logical=logical) if unit_of_logical(logical)[0]:
            return partial(time_of, *unit_of_logical(logical))
        case Array():
            return _of_elements(natural(node.items))
        case Map():
            return _of_entries(natural(node.values))
        case Record():
            converts = {each.name: natural(each.type) for each in node.fields}
            return lambda value: {
                name: each(value[name]) for name, each in converts.items() if name in value
            }
        case Union(branches=branches):
            by_number: dict[int, Convert] = {}
            for number, branch in enumerate(branches):
                if branch != _NULL:
                    by_number[number] = natural(branch)
            if not by_number:
                return unchanged
            return _by_branch(by_number)
        case _:
            return unchanged


def described(node: Node) -> str:
    """Format a writer's type for messages."""
    match node:
        case Primitive(logical="decimal") | Fixed(logical="decimal"):
            return f"decimal({node.precision}, {node.scale})"
        case Primitive(kind=kind, logical=logical):
            if not logical:
                return kind
            return f"{kind} ({logical})"
        case Fixed(name=name, size=size):
            return f"fixed {name} of {size} bytes"
        case Choice(name=name):
            return f"enum {name}"
        case Record(name=name):
            return f"record {name}"
        case Array():
            return "array"
        case Map():
            return "map"
        case Union(branches=branches):
            return f"union of {', '.join(map(described, branches))}"


def shown(kind: inspect.Type) -> str:
    """Format a type of the contract for messages."""
    digits = digits_of(kind)
    if digits is not None:
        return f"decimal{digits}"
    if isinstance(kind, ObjectType):
        return str(kind.cls.__name__)
    return type(kind).__name__.removesuffix("Type").lower()
