"""Changes of a table as values, and their JSON in Debezium's format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import Raw, Struct, inspect

from sluice.errors import TopologyError
from sluice.values.contract_parts import quote_counter
from sluice.values.contracts import type_info, variants
from sluice.values.function_wrappers import Wrapper
from sluice.values.keys import key_text
from sluice.values.stored_values import author_value, topic_decoder

T = TypeVar("T")
V = TypeVar("V")

CheckOld: TypeAlias = Literal["count", "reject"]
"""What to do with a change whose old row differs from the table's row: count it, or reject it."""

Kind: TypeAlias = Literal["insert", "update", "delete", "truncate", "message", "transaction"]


class Change(Struct, Generic[V]):
    """A change of a table's row.

    Declare a class for the type of the rows: `class ShopChange(Change[Shop]): pass`.

    The kinds `insert`, `update` and `delete` mean the same as in `Table.changes()`. In a topic of
    Debezium, `truncate` removes all rows, and a `message` or a marker of a `transaction` belongs to
    no row.
    """

    kind: Kind
    old: V | None = None
    """The row before the change; None if there was none, or if the database sends only its key."""
    new: V | None = None
    """The row after the change; None if it was deleted."""


def row_type(changes: type[Change[Any]]) -> Any:
    """Return the type of rows that a class of changes declares."""
    for base in changes.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            if get_origin(generic) is Change and not isinstance(get_args(generic)[0], TypeVar):
                return get_args(generic)[0]
    raise TopologyError(
        f"{changes.__name__} does not declare the type of its rows.",
        next_step=f"Declare it: class {changes.__name__}(Change[MyRow]): pass.",
    )


_KINDS = {
    "c": b"insert",
    "r": b"insert",
    "u": b"update",
    "d": b"delete",
    "t": b"truncate",
    "m": b"message",
}
"""Debezium's operations. A row that a snapshot has read (`r`) is an insert."""
_WITH_NEW = (b"insert", b"update")
_OPERATIONS = {"insert": "c", "update": "u", "delete": "d"}
_NULL = Raw(b"null")


class _Envelope(Struct):
    """A change in Debezium's format, with or without its schema, or a transaction's marker."""

    op: str | None = None
    before: Raw = _NULL
    after: Raw = _NULL
    status: str | None = None
    payload: Raw = _NULL


def may_repeat_names(data: bytes) -> bool:
    """Return whether a Debezium value may repeat, outside of the rows, a field that Sluice reads.

    It certainly repeats no such field if each name occurs once, and no name is written with
    escapes.
    """
    return (
        data.count(b'"after"') > 1
        or data.count(b'"before"') > 1
        or data.count(b'"op"') > 1
        or data.count(b'"payload"') > 1
        or b"\\" in data
    )


def quote_counter_of_changes(changes: type[Change[Any]]) -> Callable[[Sequence[Any]], int] | None:
    """Return a function that counts the quotation marks that the JSON of changes must have.

    Return None if this number cannot be known. It counts the marks of the rows, of the names of the
    three fields of `Change`, and of the kind.
    """
    count_in_rows = quote_counter(row_type(changes))
    if count_in_rows is None:
        return None

    def count(values: Sequence[Any]) -> int:
        rows: list[Any] = []
        for change in values:
            if change.old is not None:
                rows.append(change.old)
            if change.new is not None:
                rows.append(change.new)
        return 8 * len(values) + count_in_rows(rows)

    return count


_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_columns = msgspec.json.Decoder(dict[str, Raw]).decode


class DebeziumEnvelope(Wrapper):
    """Finds the JSON of a change in a value of Debezium.

    The rows stay as Debezium has written them, so that they are decoded by the same rules as other
    JSON. The attribute `__wrapped__` is the class of changes. Pickling finds the author's module by
    it.
    """

    def __init__(self, changes: type[Change[Any]]) -> None:
        super().__init__(changes)
        self._changes = changes

    def __call__(self, data: bytes) -> Change[Any]:
        """Decode a value of Debezium, as tasks do."""
        _, change = self.decode(topic_decoder(self._changes), data, None)
        return cast(Change[Any], author_value(change))

    def decode(
        self, decode_change: Callable[[bytes], Any], data: bytes, key: bytes | None
    ) -> tuple[bytes, Any]:
        """Return the change in a value: as JSON that fits the class of changes, and decoded.

        `key` is the key of the record. Raises ValueError for a value that is not a change, and the
        errors of `decode_change`. If the row before the change does not fit the contract, because
        the database does not send all of its columns, `old` is null.
        """
        envelope = _decode_envelope(data)
        if envelope.payload != _NULL:
            envelope = _decode_envelope(envelope.payload)
        kind, old, new = _kind_of(envelope), envelope.before, envelope.after
        text = _CHANGE % (kind, old, new)
        try:
            change = decode_change(text)
        except msgspec.ValidationError:
            if old == _NULL:
                raise
            text = _CHANGE % (kind, _NULL, new)
            return text, decode_change(text)
        if change.old is None or self._is_whole(change.old) or self._is_row(old, new, key):
            return text, change
        return _CHANGE % (kind, _NULL, new), msgspec.structs.replace(change, old=None)

    def _is_whole(self, row: Any) -> bool:
        """Return whether a decoded row certainly has all columns, without looking at its JSON."""
        if not self._may_lack_columns:
            return True
        return self._values_of is not None and None not in self._values_of(row)

    def _is_row(self, before: Raw, after: Raw, key: bytes | None) -> bool:
        """Return whether the columns before the change form a complete row of the contract.

        Many databases send only the columns of the key, and Debezium then writes null for the other
        columns.
        """
        columns = _decode_columns(before)
        sent = {name for name in self._columns if columns.get(name, _NULL) != _NULL}
        if _are_of_key(sent, columns, self._columns.keys(), key):
            return False
        absent: list[str] = []
        for name, has_default in self._columns.items():
            if has_default and name not in columns:
                absent.append(name)
        # A column that the row after the change lacks, too, does not exist in the database's table.
        return not absent or (after != _NULL and _decode_columns(after).keys().isdisjoint(absent))

    @cached_property
    def _row_fields(self) -> list[inspect.Field]:
        """The fields of the rows; none if the rows are not objects."""
        fields: list[inspect.Field] = []
        for kind in variants(type_info(row_type(self._changes))):
            fields += kind.fields
        return fields

    @cached_property
    def _columns(self) -> dict[str, bool]:
        """Name of each of the rows' columns → whether it has a default other than null."""
        columns: dict[str, bool] = {}
        for field in self._row_fields:
            columns[field.encode_name] = not field.required and field.default is not None
        return columns

    @cached_property
    def _may_lack_columns(self) -> bool:
        """Whether a row that lacks columns, or has null in columns, can fit the contract."""
        return any(map(_may_be_null, self._row_fields))

    @cached_property
    def _values_of(self) -> Callable[[Any], tuple[Any, ...]] | None:
        """A function that reads the values of a row's columns.

        None if a column has a default other than null, because it then has a value even if it was
        not sent.
        """
        kind = type_info(row_type(self._changes))
        if not isinstance(kind, inspect.StructType) or any(self._columns.values()):
            return None
        # An attrgetter of a single name does not give a tuple.
        return attrgetter(*(field.name for field in kind.fields), "__class__")

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        for name in ("_row_fields", "_columns", "_may_lack_columns", "_values_of"):
            state.pop(name, None)
        return state


def _may_be_null(field: inspect.Field) -> bool:
    return not field.required or not isinstance(field.type, _NEVER_NULL)


_NEVER_NULL = (
    inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType,
    inspect.DateTimeType, inspect.DateType, inspect.DecimalType, inspect.ListType,
    inspect.DictType, inspect.StructType,
)  # fmt: skip
"""Types of fields that refuse null."""


def _kind_of(envelope: _Envelope) -> bytes:
    """Return the kind of a change. Raises ValueError if the envelope does not describe a change."""
    operation = envelope.op
    kind = None
    if operation is not None:
        kind = _KINDS.get(operation)
    if kind is None:
        if operation is None and envelope.status in ("BEGIN", "END"):
            return b"transaction"
        raise ValueError(f"`op` is {operation!r}, not one of {', '.join(_KINDS)}")
    has_new = envelope.after != _NULL
    if has_new is not (kind in _WITH_NEW):
        problem = "has an" if has_new else "has no"
        raise ValueError(f"a change with `op` {operation!r} {problem} `after`")
    return kind


_CHANGE = b'{"kind":"%b","old":%b,"new":%b}'


def _are_of_key(
    sent: set[str], columns: Mapping[str, Raw], names: Set[str], key: bytes | None
) -> bool:
    """Return whether a row has columns besides the record's key, and all of them are null."""
    if not sent:
        return True
    of_key = _columns_of_key(key)
    if of_key is None:
        # A key that is not an object is the text of a single column.
        text = bytes(columns[min(sent)]).strip(b'"')
        return len(sent) == 1 < len(names) and text == key
    return sent <= of_key and not names <= of_key


def _columns_of_key(key: bytes | None) -> frozenset[str] | None:
    """Return the names of the columns in a key that Debezium has written as JSON.

    Return None for any other key.
    """
    try:
        columns = _decode_columns(key or b"")
        if columns.keys() == {"schema", "payload"}:
            columns = _decode_columns(columns["payload"])
    except msgspec.DecodeError:
        return None
    return frozenset(columns)


def encode_debezium(change: dict[str, Any]) -> bytes:
    """Return a change as Debezium writes it without schema: before, after and op."""
    operation = _OPERATIONS.get(change.get("kind", ""))
    if operation is None:
        raise ValueError(f"a change of kind {change.get('kind')!r} has no row")
    envelope = {"before": change.get("old"), "after": change.get("new"), "op": operation}
    return _encode(envelope)


def debezium_key(data: bytes) -> str:
    """Return the text of a key that Debezium has written as JSON, with or without its schema.

    A key of one column has the column's text; a key of several columns is JSON, as for
    `struct(...)`.
    """
    key = json.loads(data)
    if isinstance(key, dict) and key.keys() == {"schema", "payload"}:
        key = key["payload"]
    if isinstance(key, dict) and len(key) == 1:
        (key,) = key.values()
    text = key_text(key)
    if text is None:
        raise ValueError("the key is null")
    return text
