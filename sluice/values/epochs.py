"""Declares times in JSON as whole numbers of seconds, milliseconds or microseconds since 1970."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import (
    Annotated,
    Any,
    NotRequired,
    Required,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from typing_extensions import override

_1970 = datetime(1970, 1, 1, tzinfo=UTC)


class Unit(Enum):
    """A unit of time, with the number of units in a second."""

    SECONDS = 1
    MILLISECONDS = 1_000
    MICROSECONDS = 1_000_000

    @property
    def function(self) -> str:
        """The name of the function that declares an event time in this unit."""
        return {
            Unit.SECONDS: "epoch_s",
            Unit.MILLISECONDS: "epoch_ms",
            Unit.MICROSECONDS: "epoch_us",
        }[self]


def _annotation(unit: Unit) -> msgspec.Meta:
    return msgspec.Meta(extra={"epoch": unit})


EpochSeconds = Annotated[datetime, _annotation(Unit.SECONDS)]
"""A datetime that is written in JSON as a whole number of seconds since 1970."""
EpochMillis = Annotated[datetime, _annotation(Unit.MILLISECONDS)]
"""A datetime that is written in JSON as a whole number of milliseconds since 1970."""
EpochMicros = Annotated[datetime, _annotation(Unit.MICROSECONDS)]
"""A datetime that is written in JSON as a whole number of microseconds since 1970."""


@dataclass(frozen=True)
class EpochTime:
    """An event time in a field of type int."""

    field: str
    unit: Unit

    @override
    def __repr__(self) -> str:
        return f"{self.unit.function}({self.field!r})"


def epoch_s(field: str) -> EpochTime:
    """Read the event time from the int field `field`, in seconds since 1970."""
    return EpochTime(field, Unit.SECONDS)


def epoch_ms(field: str) -> EpochTime:
    """Read the event time from the int field `field`, in milliseconds since 1970."""
    return EpochTime(field, Unit.MILLISECONDS)


def epoch_us(field: str) -> EpochTime:
    """Read the event time from the int field `field`, in microseconds since 1970."""
    return EpochTime(field, Unit.MICROSECONDS)


def decoder(contract: Any) -> Callable[[bytes], Any]:
    """Return a decoder for the contract's JSON, in which EpochMillis etc. are whole numbers."""
    written = _json_type(contract)
    if written is contract:
        return msgspec.json.Decoder(contract).decode
    decode = msgspec.json.Decoder(written, dec_hook=_time_from_number).decode

    def decode_numbers(text: bytes) -> Any:
        return msgspec.convert(decode(text), contract, from_attributes=True)

    return decode_numbers


def unit_of(extra: Mapping[str, Any] | None) -> Unit | None:
    """Return the unit that the annotation of a field declares, if any."""
    unit = (extra or {}).get("epoch")
    if isinstance(unit, Unit):
        return unit
    return None


class _Times(type):
    """Metaclass of `_NUMBERS`.

    Times and whole numbers count as instances, so msgspec accepts them from a hook.
    """

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime | int)


_NUMBERS = {unit: _Times(f"Epoch{unit.name.title()}", (), {"unit": unit}) for unit in Unit}


def _time_from_number(kind: Any, number: Any) -> datetime:
    """Convert a number in JSON to the time.

    If this fails, msgspec adds the field to the message.
    """
    # `isinstance` would also accept a bool.
    if type(number) is not int:
        raise TypeError(f"Expected `int`, got `{type(number).__name__}`")
    try:
        seconds, units = divmod(number, kind.unit.value)
        return _1970 + timedelta(seconds=seconds, microseconds=units * 1_000_000 // kind.unit.value)
    except OverflowError:
        raise ValueError(
            f"{number} {kind.unit.name.lower()} are outside the years 1 to 9999"
        ) from None


def number_of(time: datetime, unit: Unit, zone: tzinfo) -> int:
    """Return the time as a number of units since 1970, rounded down.

    A time without a zone is in `zone`.
    """
    if time.tzinfo is None:
        time = time.replace(tzinfo=zone)
    return (time - _1970) // timedelta(microseconds=1) * unit.value // 1_000_000


def of_types(function: Callable[[Any], Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return the results of a function for the arguments of a generic type.

    Ellipses stay, as in `tuple[int, ...]`, because they are not types.
    """
    results: list[Any] = []
    for argument in arguments:
        results.append(argument if argument is ... else function(argument))
    return tuple(results)


def field_of_time(event_time: str | EpochTime | None) -> str | None:
    """Return the field with an event time, or WALL_CLOCK; None for the Kafka timestamp."""
    if isinstance(event_time, EpochTime):
        return event_time.field
    return event_time


@cache
def _json_type(kind: Any) -> Any:
    """Return the type of a value's JSON: `kind` with numbers in place of EpochMillis etc."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        for mark in arguments[1:]:
            if isinstance(mark, msgspec.Meta) and (unit := unit_of(mark.extra)) is not None:
                return _NUMBERS[unit]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct_in_json(kind)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _dataclass_in_json(kind)
    if is_typeddict(kind):
        return _typed_dict_in_json(kind)
    written = of_types(_json_type, arguments)
    if origin is None or written == arguments:
        return kind
    if origin is Annotated:
        return Annotated[(written[0], *arguments[1:])]
    if origin in (Required, NotRequired):
        return origin[written[0]]
    if origin in (Union, UnionType):
        return reduce(or_, written)
    return origin[written]


def _struct_in_json(contract: type[msgspec.Struct]) -> type[msgspec.Struct]:
    with_numbers: list[tuple[str, Any, Any]] = []
    has_times = False
    for field in msgspec.structs.fields(contract):
        written = _json_type(field.type)
        has_times = has_times or written != field.type
        with_numbers.append((field.name, written, field_of(field)))
    if not has_times:
        return contract
    config = contract.__struct_config__
    # If the contract is a member of a union, msgspec recognizes it by this attribute, its tag.
    if config.tag_field is not None:
        namespace = {config.tag_field: config.tag}
    else:
        namespace = {}
    return msgspec.defstruct(
        contract.__name__,
        with_numbers,
        tag=config.tag,
        tag_field=config.tag_field,
        namespace=namespace,
        forbid_unknown_fields=config.forbid_unknown_fields,
        kw_only=True,
    )


def _dataclass_in_json(contract: type) -> type:
    """Return the dataclass itself, or a Struct with numbers in place of times."""
    hints = get_type_hints(contract, include_extras=True)
    members: list[tuple[str, Any, Any]] = []
    has_times = False
    for field in dataclasses.fields(contract):
        written = _json_type(hints[field.name])
        has_times = has_times or written != hints[field.name]
        members.append((field.name, written, default_of(field)))
    if not has_times:
        return contract
    return msgspec.defstruct(contract.__name__, members, kw_only=True)


def _typed_dict_in_json(contract: Any) -> Any:
    """Return the TypedDict itself, or a TypedDict with numbers in place of times."""
    hints = get_type_hints(contract, include_extras=True)
    written = {name: _json_type(hint) for name, hint in hints.items()}
    if written == hints:
        return contract
    for name, hint in written.items():
        # In the new TypedDict, a field is optional only if it is marked. In `contract`, it can also
        # be optional without a mark, because its class has `total=False`.
        if name not in contract.__required_keys__ and get_origin(hint) not in (
            Required,
            NotRequired,
        ):
            written[name] = NotRequired[hint]
    return TypedDict(contract.__name__, written)  # type: ignore[operator]


def default_of(field: dataclasses.Field[Any]) -> Any:
    """Convert a field of a dataclass to the default of a Struct's field."""
    if field.default is not dataclasses.MISSING:
        return msgspec.field(default=field.default)
    if field.default_factory is not dataclasses.MISSING:
        return msgspec.field(default_factory=field.default_factory)
    return msgspec.field()


def field_of(info: msgspec.structs.FieldInfo) -> Any:
    """Return a field for another Struct, with the same name in JSON and the same default."""
    if info.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=info.default_factory, name=info.encode_name)
    return msgspec.field(default=info.default, name=info.encode_name)
