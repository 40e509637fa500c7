"""Rows in Debezium's envelopes are decoded by the same rules as the values of other topics."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import new_class
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa
import pytest
from msgspec import Struct

from sluice import (
    Change,
    Decimal2,
    Digits,
    EpochMicros,
    EpochMillis,
    EpochSeconds,
    Pipeline,
    debezium,
)
from sluice.engine.read.decode import ValueDecoder
from sluice.engine.read.decoding_errors import DuplicateField, refuse_duplicates
from sluice.plan.node_steps import source_of
from sluice.topology import nodes
from sluice.topology.serdes import Value
from sluice.values.contract_parts import amount_check, odd_amounts


class Color(Enum):
    RED = "red"


class Inner(Struct):
    at: EpochSeconds
    amounts: list[Decimal2] = []


@dataclass
class Data:
    at: EpochMillis


class Typed(TypedDict):
    at: EpochMicros


KINDS: dict[Any, tuple[str, ...]] = {
    EpochMicros: ("1672531200000000", "-1", "1.5", '"1672531200000000"', "true", "null", "9" * 30),
    EpochMillis | None: ("1672531200000", "null", "9" * 15),
    EpochSeconds: ("1672531200", "1e3"),
    Inner: (
        '{"at": 1672531200}', '{"at": "2026-01-01"}', '{"at": 1, "amounts": ["+5"]}', '{"at": 1, "amounts": [5, "5"]}',
    ),
    Data: ('{"at": 1672531200000}', '{"at": 1, "at": 2}'),
    Typed: ('{"at": 1672531200000000}', "{}"),
    list[EpochMillis]: ("[1672531200000]", "[1, null]"),
    dict[str, EpochMillis]: ('{"a": 1672531200000}', '{"a": 1, "a": 2}'),
    datetime: ('"2026-07-01T12:00:00"', '"2026-07-01T12:00:00.123456789Z"', '"0001-01-01T00:00:00+14:00"', '"x"'),
    date: ('"2026-07-01"', '"2026-02-30"'),
    Decimal2: ("12.50", '"12.50"', "12.345", '"+5"', '" 5 "', '"1_000"', '"NaN"', '"5"', "1e400", '"0x5"'),
    Annotated[Decimal, Digits(38, 10)]: ("1234567890123456789012345678.0123456789",),
    dict[str, Decimal2]: ('{"a": "5"}', '{"a": "+5"}'),
    Color: ('"red"', '"blue"'),
    int: ("9007199254740993", "9223372036854775808", "1.0", '"1"'),
    float: ("1.5", "1e999", "-0"),
    str: ('"a"', '"\\ud800"', '"\\u0022"', '"a\\\\\\"b"', "1"),
    bytes: ('"YWI="', '"?"'),
    Any: ('{"n": 12345678901234567890, "f": 1.50}', '{"a": {"b": 1, "b": 2}}', "null"),
}  # fmt: skip


def decoder(value: Value[Any]) -> ValueDecoder:
    pipeline = Pipeline("p", zone="Europe/Berlin")
    pipeline.stream("t", value=value, nulls="keep")
    (source,) = pipeline.nodes
    assert isinstance(source, nodes.Source)
    return ValueDecoder(source_of(source, tuple(source.fields)))


def contracts(kind: Any) -> tuple[type[Struct], type[Change[Any]]]:
    """A class of rows with a field x of this type, and a class of changes of such rows."""
    row = msgspec.defstruct("Row", [("id", int), ("x", kind)], module=__name__)
    return row, new_class("Changes", (Change[row],))  # type: ignore[valid-type]


def decoded(value: Value[Any], text: str, key: bytes | None = None) -> Any:
    """The columns of the value, or the reason and the detail of its dead letter."""
    of_value = decoder(value)
    rows, values, letters = of_value.decode([text.encode()], pa.array([key], pa.binary()))
    assert rows == [0] * len(values)
    if unfit := of_value.columns.unfit(values):
        return "out_of_range", unfit[0]
    if letters:
        return letters[0].reason, letters[0].detail
    return {
        name: of_value.columns.column(values, name)[0].as_py() for name in of_value.source.types
    }


def envelope(**fields: str) -> str:
    source = '{"sequence": "[\\"1\\"]", "ts_ms": 5}'
    members = [
        f'"{name}": {text}' for name, text in ({"source": source, "op": '"u"'} | fields).items()
    ]
    return f"{{{', '.join(members)}}}"


def with_schema(payload: str) -> str:
    return f'{{"schema": {{"fields": [1]}}, "payload": {payload}}}'


CASES = [(kind, text) for kind, texts in KINDS.items() for text in texts]


@pytest.mark.parametrize(
    ("kind", "text"), CASES, ids=[f"{kind} {text[:30]}" for kind, text in CASES]
)
def test_a_row_is_decoded_as_in_a_topic_of_its_own(kind: Any, text: str) -> None:
    row_class, changes = contracts(kind)
    row = f'{{"id": 1, "x": {text}}}'
    alone = decoded(row_class, row)
    inside = decoded(debezium(changes), envelope(before="null", after=row))
    assert decoded(debezium(changes), with_schema(envelope(after=row))) == inside
    if isinstance(alone, dict):
        assert inside == {"kind": "update", "old": None, "new": alone}
    else:
        assert inside[0] == alone[0]
        if (
            alone[0] != "out_of_range"
        ):  # the column with the whole row does not fit, not the column with the field
            assert inside[1].replace("$.new", "$") == alone[1]


@pytest.mark.parametrize(
    "kind", [EpochMicros, Inner, Decimal2, list[EpochMillis], dict[str, Decimal2], datetime, Any]
)
def test_the_row_before_a_change_is_decoded_like_the_row_after_it(kind: Any) -> None:
    _, changes = contracts(kind)
    row = f'{{"id": 1, "x": {KINDS[kind][0]}}}'
    change = decoded(debezium(changes), envelope(before=row, after=row))
    assert change["old"] == change["new"] is not None
    deleted = decoded(debezium(changes), envelope(before=row, op='"d"'))
    assert deleted == {"kind": "delete", "old": change["new"], "new": None}


ROW = '{"id": 1, "x": 5}'


@pytest.mark.parametrize(
    "text",
    [
        envelope(after=ROW)[:-1] + f', "after": {ROW}}}',
        envelope(after=ROW)[:-1] + ', "op": "c"}',
        envelope(after='{"id": 1, "x": 5, "x": 5}'),
        envelope(after='{"id": 1, "x": 5, "more": {"a": 1, "a": 1}}'),
        envelope(before='{"id": 1, "id": 2}', after=ROW),
        envelope(before='{"a": 1, "a": null}', after=ROW),
        f'{{"payload": null, "payload": {envelope(after=ROW)}}}',
        f'{{"schema": {{}}, "payload": {{"op": "x"}}, "payload": {envelope(after=ROW)}}}',
        with_schema(envelope(after='{"id": 1, "x": 5, "x": 5}')),
    ],
)  # fmt: skip
def test_a_field_that_occurs_twice_is_refused(text: str) -> None:
    _, changes = contracts(int)
    reason, detail = decoded(debezium(changes), text)
    assert reason == "duplicate_field"
    assert detail.endswith("occurs twice")


@pytest.mark.parametrize(
    "source", ['{"a": "b", "a": "c"}', '{"op": "after", "payload": "before"}', '{"after": 1}']
)
def test_the_names_in_the_source_do_not_matter(source: str) -> None:
    _, changes = contracts(int)
    change = decoded(debezium(changes), envelope(after=ROW, source=source))
    assert change == {"kind": "update", "old": None, "new": {"id": 1, "x": 5}}


class Strict(Struct):
    id: int
    city: str
    n: int


class Loose(Struct):
    id: int
    city: str | None = None
    n: int | None = None


class Defaults(Struct):
    id: int
    city: str | None = None
    n: int = 7


class Open(Struct):
    id: int
    city: Any
    n: Any = None


class OfType(TypedDict):
    id: int
    city: str | None
    n: int | None


class Single(Struct):
    id: int | None = None


class StrictChange(Change[Strict]):
    pass


class OpenChange(Change[Open]):
    pass


class TypedChange(Change[OfType]):
    pass


class SingleChange(Change[Single]):
    pass


class LooseChange(Change[Loose]):
    pass


class DefaultsChange(Change[Defaults]):
    pass


class NumberChange(Change[int]):
    pass


NEW = '{"id": 2, "city": "Oslo", "n": 3}'
OLD = {"id": 2, "city": "Rome", "n": 1}
KEYS = (b'{"id": 2}', b'{"schema": {}, "payload": {"id": 2}}', b"2")
PARTIAL: list[tuple[type[Change[Any]], str, dict[str, Any] | None]] = [
    (StrictChange, json.dumps(OLD), OLD),
    (StrictChange, '{"id": 2}', None),
    (StrictChange, '{"id": 2, "city": "Rome"}', None),
    (StrictChange, '{"id": 2, "city": null, "n": null}', None),
    (StrictChange, '{"id": 2, "city": "__debezium_unavailable_value", "n": "x"}', None),
    (LooseChange, json.dumps(OLD), OLD),
    (LooseChange, '{"id": 2}', None),
    (LooseChange, "{}", None),
    (LooseChange, '{"id": 2, "city": null, "n": null}', None),
    (LooseChange, '{"id": null, "city": null, "n": null}', None),
    (LooseChange, '{"id": 2, "city": "Rome"}', OLD | {"n": None}),
    (LooseChange, '{"id": 2, "city": "Rome", "n": null}', OLD | {"n": None}),
    (OpenChange, '{"id": 2, "city": null, "n": null}', None),
    (OpenChange, '{"id": 2, "city": null}', None),
    (TypedChange, '{"id": 2, "city": null, "n": null}', None),
    (TypedChange, json.dumps(OLD), OLD),
    (SingleChange, '{"id": 2}', {"id": 2}),
    (SingleChange, '{"id": null}', None),
    (DefaultsChange, '{"id": 2, "city": "Rome"}', None),
    (DefaultsChange, '{"id": 2, "city": "Rome", "n": 7}', OLD | {"n": 7}),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize(("changes", "before", "old"), PARTIAL)
def test_a_row_of_which_only_the_key_was_sent_is_null(
    changes: type[Change[Any]], before: str, old: dict[str, Any] | None, key: bytes
) -> None:
    change = decoded(debezium(changes), envelope(before=before, after=NEW), key)
    assert change["old"] == old
    assert change["new"]["id"] == 2
    assert decoded(debezium(changes), envelope(before=before, op='"d"'), key)["old"] == old


def test_a_column_that_the_table_lacks_has_its_default_in_both_rows() -> None:
    change = decoded(
        debezium(DefaultsChange),
        envelope(before='{"id": 2, "city": "a"}', after='{"id": 2, "city": "b"}'),
    )
    assert (change["old"]["n"], change["new"]["n"]) == (7, 7)


def test_the_columns_of_a_key_of_several_columns_are_not_enough() -> None:
    for before, old in (
        ('{"id": 2, "city": "a"}', None),
        ('{"id": 2, "city": "a", "n": 1}', {"id": 2, "city": "a", "n": 1}),
    ):
        change = decoded(
            debezium(LooseChange), envelope(before=before, op='"d"'), b'{"id": 2, "city": "a"}'
        )
        assert change["old"] == old


def test_rows_that_are_no_objects_stay_as_they_are() -> None:
    assert decoded(debezium(NumberChange), envelope(before="1", after="2")) == {
        "kind": "update",
        "old": 1,
        "new": 2,
    }


def test_values_without_a_change_are_refused_between_others() -> None:
    texts = [
        envelope(after=NEW),
        "",
        "[]",
        '{"op": "u"}',
        '{"op": "x", "after": 1}',
        '{"status": "END"}',
        envelope(after=NEW),
    ]
    raw: list[bytes | None] = [*(text.encode() for text in texts), None]
    rows, values, letters = decoder(debezium(StrictChange)).decode(raw)
    assert rows == [0, 5, 6, 7]
    assert [value and value.kind for value in values] == ["update", "transaction", "update", None]
    assert [(letter.row, letter.reason) for letter in letters] == [
        (1, "empty_value"), (2, "contract"), (3, "malformed"), (4, "malformed"),
    ]  # fmt: skip


def test_an_author_can_call_the_decoder() -> None:
    decode = debezium(StrictChange).decode
    assert decode is not None
    assert decode(envelope(before='{"id": 2}', after=NEW).encode()) == StrictChange(
        "update", None, Strict(2, "Oslo", 3)
    )


TEXTS_WITH_ESCAPES = ['"', "\\", '\\"', '\\\\"', "a\\", "\u0000", "\u2028", "ä", '"":""', "\\u0022"]


def test_escapes_hide_no_field_that_occurs_twice() -> None:
    for name in TEXTS_WITH_ESCAPES:
        for value in TEXTS_WITH_ESCAPES:
            for as_ascii in (True, False):
                member = f"{json.dumps(name, ensure_ascii=as_ascii)}: {json.dumps(value, ensure_ascii=as_ascii)}"
                assert refuse_duplicates(f"{{{member}}}".encode()) == {name: value}
                with pytest.raises(DuplicateField):
                    refuse_duplicates(f"{{{member}, {member}}}".encode())


def checked(kind: Any, texts: Sequence[str]) -> None:
    """Check that the pattern of amounts finds each text in which the thorough check finds an amount that is text."""
    check, pattern = amount_check(kind), odd_amounts(kind)
    assert check is not None
    assert pattern is not None
    for text in texts:
        try:
            check(json.loads(text))
        except msgspec.ValidationError:
            assert pattern.search(text.encode()), text


def test_no_amount_that_is_text_escapes_the_check() -> None:
    checked(
        contracts(Decimal2 | None)[0],
        ['{"x": "+5"}', '{"x"  :\n "+5"}', '{"\\u0078": "+5"}', '{"x": 5}'],
    )
    texts = [f'{{"x": {text}}}' for text in KINDS[Decimal2]]
    checked(contracts(Decimal2)[0], [*texts, '{"x": "1.5", "y": 1}', '{"x": "1\\u002e5"}'])
    checked(contracts(list[Decimal2])[0], ['{"x": ["+5"]}', '{"x": [5]}'])
    checked(contracts(dict[str, Decimal2])[0], ['{"x": {"y": "+5"}}'])
    checked(Decimal2, ['"+5"', "5"])
    checked(contracts(Inner)[0], ['{"x": {"amounts": ["+5"]}}'])
