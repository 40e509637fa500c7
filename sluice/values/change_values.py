"""Changes of a table as values, and the JSON in which Debezium writes them."""

from __future__ import annotations

import json
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args, get_origin

import msgspec
from msgspec import Raw, Struct

from sluice.errors import TopologyError
from sluice.values.function_wrappers import Wrapper
from sluice.values.keys import key_text

V = TypeVar("V")

CheckOld: TypeAlias = Literal["count", "reject"]
"""What to do with a change whose old row is not the row that the table has: count it, or reject
it."""

Kind: TypeAlias = Literal["insert", "update", "delete", "truncate", "message", "transaction"]


class Change(Struct, Generic[V]):
    """A change of a table's row.

    Declare a class for the type of the rows: `class ShopChange(Change[Shop]): pass`.

    The kinds `insert`, `update` and `delete` are those of `Table.changes()`. In a topic of
    Debezium, `truncate` removes all rows, and a `message` or a marker of a `transaction` belongs to
    no row.
    """

    kind: Kind
    old: V | None = None
    """The row before the change; None if there was none, or if the database does not send all of
    its columns."""
    new: V | None = None
    """The row after the change; None if it was deleted."""


def row_type(changes: type[Change[Any]]) -> Any:
    """Return the type of the rows of a class of changes."""
    for base in changes.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            if get_origin(generic) is Change and not isinstance(get_args(generic)[0], TypeVar):
                return get_args(generic)[0]
    raise TopologyError(
        f"{changes.__name__} does not say the type of its rows.",
        next_step=f"Declare it: class {changes.__name__}(Change[MyRow]): pass.",
    )


_KINDS: dict[str, Kind] = {
    "c": "insert",
    "r": "insert",
    "u": "update",
    "d": "delete",
    "t": "truncate",
    "m": "message",
}
"""Debezium's operations. A row that a snapshot has read (`r`) is an insert."""
_OPERATIONS = {"insert": "c", "update": "u", "delete": "d"}
_NULL = Raw(b"null")


class _Envelope(Struct):
    """A value of a topic of Debezium, with or without its schema, or a marker of a transaction."""

    op: str | None = None
    before: Raw = _NULL
    after: Raw = _NULL
    status: str | None = None
    payload: Raw = _NULL


_encode = msgspec.json.Encoder(decimal_format="number").encode
_decode_envelope = msgspec.json.Decoder(_Envelope).decode


class DebeziumDecoder(Wrapper):
    """Decodes a value of Debezium to an instance of a class of changes.

    The attribute `__wrapped__` is the class of changes, by which pickling finds the author's
    module.
    """

    def __init__(self, changes: type[Change[Any]]) -> None:
        super().__init__(changes)
        self._changes = changes
        self._rows: msgspec.json.Decoder[Any] | None = None

    def __call__(self, data: bytes) -> Change[Any]:
        envelope = _decode_envelope(data)
        if envelope.payload != _NULL:
            envelope = _decode_envelope(envelope.payload)
        if envelope.op is None and envelope.status in ("BEGIN", "END"):
            return self._changes(kind="transaction")
        if envelope.op not in _KINDS:
            raise ValueError(f"op is {envelope.op!r}, not one of {', '.join(_KINDS)}")
        kind = _KINDS[envelope.op]
        new = self._row(envelope.after)
        if (new is None) is (kind in ("insert", "update")):
            raise ValueError(
                f"a change with op {envelope.op!r} {'has no' if new is None else 'has an'} after"
            )
        return self._changes(kind=kind, old=self._old(envelope.before), new=new)

    def _row(self, data: Raw) -> Any:
        if self._rows is None:
            self._rows = msgspec.json.Decoder(row_type(self._changes))
        return None if data == _NULL else self._rows.decode(data)

    def _old(self, data: Raw) -> Any:
        # Many databases send only the key columns of the old row, so it does not fit the class.
        try:
            return self._row(data)
        except msgspec.ValidationError:
            return None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}  # decoders cannot be pickled


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
