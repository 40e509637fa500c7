"""Collects, checks and counts the parts of a contract's values, such as amounts and times."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from sluice.values.contracts import ObjectType, choice_type, type_info, types_within, variants
from sluice.values.epochs import unit_of
from sluice.values.json_limits import JSON_NUMBER


def quote_counter(
    contract: Any,
) -> Callable[[Sequence[Any]], int] | None:
    """Return a function that counts the quotation marks that the JSON of values must have.

    The marks of nested values count, too. JSON with exactly this number of marks has no duplicate
    field, no unknown field and no escaped quotation mark. Returns None if the contract has optional
    fields, because the number then depends on which optional fields the JSON contains.
    """
    source = _strings(type_info(contract), "v")
    if source is None:
        return None
    counter: Callable[[Sequence[Any]], int] = eval(
        f"lambda values: 2 * sum([{source} for v in values])"
    )
    return counter


_QUOTED = inspect.StrType | inspect.DateTimeType | inspect.DateType | inspect.BytesType


def _strings(kind: inspect.Type, value: str) -> str | None:
    """Return Python source that counts the strings in the JSON of `value`, with field names."""
    match kind:
        case inspect.Metadata():
            if unit_of(kind.extra) is None:
                return _strings(kind.type, value)
            return "0"
        case inspect.StructType(tag_field=str()):
            return None
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            if any(not field.required for field in kind.fields):
                return None
            parts: list[str | None] = [str(len(kind.fields))]
            for field in kind.fields:
                parts.append(_strings(field.type, _member(kind, field, value)))
            return _total(parts)
        case inspect.ListType() | inspect.VarTupleType():
            per_item = _strings(kind.item_type, "i")
            if per_item is None or per_item == "0":
                return per_item
            if "i" in per_item:
                return f"sum([{per_item} for i in {value}])"
            # The JSON of every item has the same number of strings.
            return f"{per_item} * len({value})"
        case inspect.LiteralType() | inspect.EnumType():
            return {str: "1", int: "0"}.get(choice_type(kind))
        case inspect.IntType() | inspect.FloatType() | inspect.BoolType() | inspect.DecimalType():
            return "0"
        case _:
            return "1" if isinstance(kind, _QUOTED) else None


def _member(kind: ObjectType, field: inspect.Field, value: str) -> str:
    """Return Python source that reads a field of `value`, or None if a TypedDict omits it."""
    if not isinstance(kind, inspect.TypedDictType):
        return f"{value}.{field.name}"
    if field.required:
        return f"{value}[{field.name!r}]"
    return f"{value}.get({field.name!r})"


def _total(counts: list[str | None]) -> str | None:
    fixed, sources = 0, list[str]()
    for count in counts:
        if count is None:
            return None
        if count.isdigit():
            fixed += int(count)
        else:
            sources.append(count)
    return " + ".join([str(fixed), *sources])


def digits_of(kind: inspect.Type) -> tuple[int, int] | None:
    """Return precision and scale of a Decimal with declared digits; None for other types."""
    if not isinstance(kind, inspect.Metadata) or not isinstance(kind.type, inspect.DecimalType):
        return None
    extra = kind.extra or {}
    if "scale" in extra:
        return (extra["precision"], extra["scale"])
    return None


@dataclass(frozen=True)
class ContractPart:
    """A number, text or time inside the values of a type."""

    kind: inspect.Type
    path: str
    """The place of the part, for messages: `$.lines[...].amount`."""
    item: str
    """Python source that reads the part from the value `v` and the variables of `loops`."""
    loops: str
    """Python source: the clauses after `for v in values` in a comprehension; empty if each value
    has exactly one such part."""

    @property
    def digits(self) -> tuple[int, int] | None:
        """Return precision and scale of a Decimal with declared digits."""
        return digits_of(self.kind)

    def collector(self) -> Callable[[Sequence[Any]], list[Any]]:
        """Return a function that collects this part of several values.

        Its code is generated for the part. It takes about a tenth of the time of traversing each
        value.
        """
        # `eval` is safe here, because the source contains only names of attributes.
        source = f"lambda values: [{self.item} for v in values{self.loops}]"
        collect: Callable[[Sequence[Any]], list[Any]] = eval(source)
        return collect


def parts_collector(parts: Iterable[ContractPart]) -> Callable[[Any], list[Any]]:
    """Return a function that collects several parts of one value."""
    sources = ", ".join(map(_source_of, parts))
    collect: Callable[[Any], list[Any]] = eval(f"lambda v: [{sources}]")
    return collect


def _source_of(part: ContractPart) -> str:
    """Return Python source for the elements of a list: all occurrences of this part in `v`."""
    if part.loops:
        return f"*[{part.item} for _ in (0,){part.loops}]"
    return part.item


def parts_of(kind: Any) -> list[ContractPart]:
    """Return the parts of a contract or another field type, including nested parts."""
    parts: list[ContractPart] = []

    def visit(kind: inspect.Type, path: str, item: str, loops: str) -> None:
        name = f"i{len(parts)}_{loops.count(' for ')}"
        match kind:
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                for field in kind.fields:
                    visit(
                        field.type, f"{path}.{field.encode_name}", _member(kind, field, item), loops
                    )
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                visit(kind.item_type, f"{path}[...]", name, f"{loops} for {name} in {item}")
            case inspect.DictType():
                visit(
                    kind.value_type,
                    f"{path}[...]",
                    name,
                    f"{loops} for {name} in {item}.values()",
                )
            case inspect.UnionType():
                present = f"{loops} if {item} is not None"
                is_tagged = len(variants(kind)) > 1
                for member in kind.types:
                    # Only values of this member of the union have the member's fields.
                    tag = getattr(member, "tag", None)
                    condition = ""
                    if is_tagged:
                        condition = f" and {item}.__struct_config__.tag == {tag!r}"
                    visit(member, path, item, present + condition)
            case inspect.Metadata() if not isinstance(kind.type, inspect.DecimalType):
                visit(kind.type, path, item, loops)
            case inspect.NoneType():
                pass
            case _:
                parts.append(ContractPart(kind, path, item, loops))

    visit(type_info(kind), "$", "v", "")
    return parts


def amount_check(kind: Any) -> Callable[[Any], None] | None:
    """Return a function that checks the texts in place of Decimals: each must be a JSON number.

    It raises ValidationError for other texts. msgspec accepts every text that Python's Decimal
    accepts, such as "1_000", " 5 " and digits of other scripts. The function takes a value, or the
    value's decoded JSON, in which numbers may be text. Returns None for a type without Decimals.
    """
    info = type_info(kind)
    if not any(map(_has_amount, parts_of(kind))):
        return None

    def check(value: Any) -> None:
        for path, text in _amounts_as_text(info, value, "$"):
            # NaN and Infinity are rejected later, because they do not fit the declared digits.
            if not JSON_NUMBER.fullmatch(text) and text not in ("NaN", "Infinity", "-Infinity"):
                raise msgspec.ValidationError(
                    f"{text[:40]!r} is not written as a number in JSON - at `{path}`"
                )

    return check


def _has_amount(part: ContractPart) -> bool:
    return isinstance(part.kind, inspect.DecimalType) or part.digits is not None


def odd_amounts(contract: Any) -> re.Pattern[bytes] | None:
    """Return a pattern that finds JSON with an amount that is a text but not a number.

    It may find other JSON, too. Returns None if the contract has no amounts. A search takes a tenth
    of the time of `amount_check`.
    """
    names: list[str] = []
    if _is_amount(type_info(contract)):
        return re.compile(b"")
    for kind in types_within(contract):
        if isinstance(kind, ObjectType):
            for field in kind.fields:
                if _is_amount(field.type):
                    names.append(field.encode_name)
        elif any(map(_is_amount, _items_of(kind))):
            # The elements of a list have no names to search for, so look at all JSON.
            return re.compile(b"")
    if not names:
        return None
    escaped = b"|".join([re.escape(name).encode() for name in names])
    number = JSON_NUMBER.pattern.encode()
    # A name may be written with escapes.
    return re.compile(rb'\\|"(?:%b)"\s*:\s*"(?!(?:%b)")' % (escaped, number))


def _is_amount(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(map(_is_amount, kind.types))
    return isinstance(kind, inspect.DecimalType) or digits_of(kind) is not None


def _items_of(kind: inspect.Type) -> Sequence[inspect.Type]:
    """Return the type of a list's elements, or of a dict's values; none for other types."""
    match kind:
        case (
            inspect.ListType()
            | inspect.VarTupleType()
            | inspect.SetType()
            | inspect.FrozenSetType()
        ):
            return (kind.item_type,)
        case inspect.DictType():
            return (kind.value_type,)
        case _:
            return ()


def _amounts_as_text(kind: inspect.Type, value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the place and text of each text that msgspec reads as a Decimal."""
    match kind:
        case inspect.DecimalType() if isinstance(value, str):
            yield path, value
        case inspect.Metadata():
            yield from _amounts_as_text(kind.type, value, path)
        case inspect.UnionType():
            for member in kind.types:
                yield from _amounts_as_text(member, value, path)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
            for field in kind.fields:
                if isinstance(value, dict):
                    part = value.get(field.encode_name)
                else:
                    part = getattr(value, field.name, None)
                yield from _amounts_as_text(field.type, part, f"{path}.{field.encode_name}")
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType() if isinstance(
            value,
            list | tuple | set,
        ):
            for element in value:
                yield from _amounts_as_text(kind.item_type, element, f"{path}[...]")
        case inspect.DictType() if isinstance(value, dict):
            for element in value.values():
                yield from _amounts_as_text(kind.value_type, element, f"{path}[...]")
