"""Decides which contracts Arrow's JSON reader can read, and in which Arrow types."""

from __future__ import annotations

import msgspec
import pyarrow as pa
from msgspec import inspect

from sluice.values.contract_parts import digits_of
from sluice.values.contracts import ObjectType, choice_type, members_of
from sluice.values.epochs import unit_of

TIME = pa.timestamp("us", "UTC")


def is_more_than_fields(kind: ObjectType) -> bool:
    """Return whether the class has a tag, or code that checks or changes its values."""
    if isinstance(kind, inspect.StructType) and (kind.tag_field is not None or kind.array_like):
        return True
    return hasattr(kind.cls, "__post_init__")


def present(kind: inspect.Type) -> inspect.Type:
    """Return the type of the values that are not null."""
    if isinstance(kind, inspect.UnionType):
        members = members_of(kind)
        if len(members) == 1 < len(kind.types):
            return members[0]
    return kind


def may_be_null(kind: inspect.Type) -> bool:
    return present(kind) is not kind


def may_be_missing(each: inspect.Field) -> bool:
    """Return whether a missing field counts as null. Arrow cannot distinguish the two."""
    return (
        may_be_null(each.type) and not each.required and each.default in (None, msgspec.NODEFAULT)
    )


def parsed_type(kind: inspect.Type) -> pa.DataType | None:
    """Return the type in which Arrow parses a field: text for times."""
    kind = present(kind)
    if isinstance(kind, inspect.DateTimeType | inspect.DateType):
        return pa.string()
    if isinstance(kind, inspect.Metadata) and unit_of(kind.extra) is not None:
        return pa.int64()
    return _part_type(kind)


def column_type(kind: inspect.Type) -> pa.DataType | None:
    """Return the type of a field's column; None if its values cannot be read."""
    kind = present(kind)
    if isinstance(kind, inspect.DateType):
        return pa.date32()
    is_number = isinstance(kind, inspect.Metadata) and unit_of(kind.extra) is not None
    if is_number or (isinstance(kind, inspect.DateTimeType) and kind.tz is None):
        return TIME
    return _part_type(kind)


def _part_type(kind: inspect.Type) -> pa.DataType | None:
    """Return the Arrow type of a number, text, list or object.

    Return None if values of this type cannot be read.
    """
    match present(kind):
        case inspect.IntType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return pa.int64()
        case inspect.FloatType(gt=None, ge=None, lt=None, le=None, multiple_of=None):
            return pa.float64()
        case inspect.BoolType():
            return pa.bool_()
        case inspect.StrType(min_length=None, max_length=None, pattern=None):
            return pa.string()
        case inspect.LiteralType() | inspect.EnumType() as choice:
            return {str: pa.string(), int: pa.int64()}.get(choice_type(choice))
        case inspect.Metadata() as amount:
            declared = digits_of(amount)
            if declared is None:
                return None
            return pa.decimal128(*declared)
        case inspect.ListType(item_type, min_length=None, max_length=None) | inspect.VarTupleType(
            item_type, min_length=None, max_length=None
        ):
            item = _part_type(item_type)
            if item is None:
                return None
            return pa.list_(item)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() as nested:
            return _struct_type(nested)
        case _:
            return None


def _struct_type(kind: ObjectType) -> pa.DataType | None:
    if is_more_than_fields(kind):
        return None
    fields: list[tuple[str, pa.DataType]] = []
    for each in kind.fields:
        field_type = _part_type(each.type)
        if field_type is None:
            return None
        fields.append((each.encode_name, field_type))
    return pa.struct(fields)


def with_unknown_fields(declared: pa.DataType, found: pa.DataType) -> pa.DataType:
    """Return the declared type, with the other fields that were found.

    The other fields have types that take as many values as possible.
    """
    if pa.types.is_struct(declared):
        fields: dict[str, pa.DataType] = {}
        for each in declared.fields:
            fields[each.name] = with_unknown_fields(each.type, found.field(each.name).type)
        for each in found.fields:
            if each.name not in fields:
                fields[each.name] = _widest(each.type)
        return pa.struct([*fields.items()])
    if pa.types.is_list(declared):
        return pa.list_(with_unknown_fields(declared.value_type, found.value_type))
    return declared


def _widest(found: pa.DataType) -> pa.DataType:
    """Return a type for the values of an unknown field, of which some had the type `found`."""
    if pa.types.is_struct(found):
        return pa.struct([(each.name, _widest(each.type)) for each in found.fields])
    if pa.types.is_list(found):
        return pa.list_(_widest(found.value_type))
    if pa.types.is_integer(found):
        return pa.float64()
    if pa.types.is_temporal(found):
        return pa.string()
    return found


def count_parts(found: pa.DataType) -> int:
    """Return the number of a type's parts at all levels."""
    count = 1
    for number in range(found.num_fields):
        count += count_parts(found.field(number).type)
    return count
