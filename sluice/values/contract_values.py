"""Converts values to JSON data.

Unlike msgspec, this writes every field, sorts sets, and writes times as SQL does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from copy import copy
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from types import UnionType
from typing import Any, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from sluice.values.contracts import type_info, types_within
from sluice.values.epochs import number_of, unit_of
from sluice.values.keys import sorted_items
from sluice.values.pydantic_models import is_model
from sluice.values.stored_values import is_converted, plain_model


def as_produced(value: Any, contract: Any, zone: tzinfo = UTC) -> Any:
    """Convert the value as a producer writes it: times declared as EpochMillis etc. become numbers.

    Times without a zone are in `zone`.
    """
    if not any(map(_is_number_of_time, types_within(contract))):
        return value
    # `to_builtins` writes the tag of a union's member, which tells `_with_numbers` the member.
    plain = msgspec.to_builtins(value, builtin_types=_EXACT, enc_hook=plain_model)
    return _with_numbers(plain, type_info(contract), zone)


def _is_number_of_time(part: inspect.Type) -> bool:
    return isinstance(part, inspect.Metadata) and unit_of(part.extra) is not None


_EXACT = (bytes, date, datetime, Decimal, time, timedelta, UUID)
"""Types that `to_builtins` leaves as they are."""


def _with_numbers(value: Any, kind: inspect.Type, zone: tzinfo) -> Any:
    """Return plain data with numbers in place of times.

    Values that do not have the contract's type stay as they are.
    """
    match kind:
        case inspect.Metadata():
            unit = unit_of(kind.extra)
            if unit is not None:
                if isinstance(value, datetime):
                    return number_of(value, unit, zone)
                return value
            return _with_numbers(value, kind.type, zone)
        case inspect.UnionType():
            for member in kind.types:
                value = _with_numbers(value, member, zone)
            return value
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() if isinstance(
            value, dict
        ):
            if (
                isinstance(kind, inspect.StructType)
                and kind.tag_field
                and value.get(kind.tag_field) != kind.tag
            ):
                return value
            members = dict(value)
            for field in kind.fields:
                name = field.encode_name
                if name in members:
                    members[name] = _with_numbers(members[name], field.type, zone)
            return members
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            return [_with_numbers(element, kind.item_type, zone) for element in value]
        case inspect.DictType() if isinstance(value, dict):
            return {
                name: _with_numbers(part, kind.value_type, zone) for name, part in value.items()
            }
        case _:
            return value


def needs_plain_data(kind: Any) -> bool:
    """Return whether msgspec may encode a value of this type differently from `plain_data`.

    msgspec omits the field names or the default values of some Structs, and encodes the items of a
    set in any order.
    """

    def differs(part: inspect.Type) -> bool:
        match part:
            case inspect.StructType(cls=cls, array_like=array_like):
                return array_like or (get_origin(cls) or cls).__struct_config__.omit_defaults
            case _:
                return isinstance(part, inspect.SetType | inspect.FrozenSetType)

    return any(map(differs, types_within(kind)))


def has_times(kind: Any) -> bool:
    """Return whether values of this type may contain times."""
    return _has_part(kind, inspect.DateTimeType)


def has_dicts(kind: Any) -> bool:
    """Return whether values of this type may contain dicts."""
    return _has_part(kind, inspect.DictType)


def may_hold_sets(kind: Any) -> bool:
    """Return whether a value may contain a set, in place of a list or in a part of type Any."""
    return is_converted(kind) or _has_part(kind, _TAKES_SETS)


def _has_part(kind: Any, part_types: type | UnionType) -> bool:
    return any(isinstance(part, part_types) for part in types_within(kind))


_TAKES_SETS = (
    inspect.AnyType | inspect.ListType | inspect.VarTupleType | inspect.SetType
    | inspect.FrozenSetType
)  # fmt: skip


def with_sorted_sets(value: Any) -> Any:
    """Return a copy of the value, with a sorted list in place of each set.

    Return the value itself if it contains no set.

    The order of a set's elements differs between processes, but a repeated batch must write the
    same JSON.
    """
    return _replaced(
        value, (set, frozenset), lambda items: sorted_items(map(with_sorted_sets, items))
    )


def with_time_texts(value: Any) -> Any:
    """Return a copy of the value, with each time as the text that SQL writes in JSON.

    Return the value itself if it contains no time.

    Times without a zone are in UTC.
    """
    return _replaced(value, (datetime,), _time_text)


def _time_text(time: datetime) -> str:
    in_utc = time
    if time.tzinfo not in (None, UTC):
        try:
            in_utc = time.astimezone(UTC)
        except (
            OverflowError
        ):  # Python has no such time in UTC. `json_limits.require_time` rejects declared times.
            return time.isoformat(timespec="microseconds")
    return f"{in_utc.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def _replaced(value: Any, kinds: tuple[type, ...], replace: Callable[[Any], Any]) -> Any:
    """Return a copy of the value in which the parts of these kinds are replaced.

    Return the value itself if it has no such part.
    """
    if _holds(value, kinds):
        return _copied(value, kinds, replace)
    return value


def _holds(value: Any, kinds: tuple[type, ...]) -> bool:
    # This is called for each part of each result, and these types are by far the most frequent.
    if type(value) in _PLAIN:
        return False
    return isinstance(value, kinds) or any(_holds(inner, kinds) for inner in values_within(value))


def _copied(value: Any, kinds: tuple[type, ...], replace: Callable[[Any], Any]) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, kinds):
        return replace(value)
    if isinstance(value, dict):
        return {name: _copied(inner, kinds, replace) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_copied(item, kinds, replace) for item in value]
    # A model's copy would be encoded by the declared types of its fields, so a list would become a
    # set again.
    if is_model(type(value)):
        return _copied(plain_model(value), kinds, replace)
    fields = _fields_of(value)
    changed = copy(value) if fields else value
    for name, inner in fields.items():
        # Frozen instances can be changed only in this way.
        if isinstance(value, msgspec.Struct):
            msgspec.structs.force_setattr(changed, name, _copied(inner, kinds, replace))
        else:
            object.__setattr__(changed, name, _copied(inner, kinds, replace))
    return changed


_PLAIN = frozenset({str, int, float, bool, type(None), Decimal})


def values_within(value: Any) -> Iterable[Any]:
    """Return the values that a list, a set, a dict or an object holds; none for other values."""
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    return _fields_of(value).values()


def _fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a Struct, model or dataclass by Python name; none for other values."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if is_model(type(value)):
        return {**vars(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return {}


def plain_data(value: Any) -> Any:
    """Return plain data: a Struct becomes a dict of its tag and fields, a set a sorted list."""
    match value:
        case msgspec.Struct():
            members: dict[str, Any] = {}
            config = value.__struct_config__
            if config.tag_field is not None:
                members[config.tag_field] = config.tag
            fields = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
            for name, attribute in fields:
                members[name] = plain_data(getattr(value, attribute))
            return members
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            members = {}
            for field in dataclasses.fields(value):
                members[field.name] = plain_data(getattr(value, field.name))
            return members
        case list() | tuple():
            return [*map(plain_data, value)]
        # The order of a set's elements differs between processes, but equal values need equal JSON.
        case set() | frozenset():
            return sorted_items(map(plain_data, value))
        case dict():
            return {name: plain_data(inner) for name, inner in value.items()}
        case _:
            return value
