"""The keys of records as texts, from Kafka's keys or from a field of the values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.record_headers import header_texts
from sluice.engine.batch.rejections import run_ending_error
from sluice.engine.read.decoding_errors import DuplicateField, refuse_duplicates
from sluice.engine.read.registered_values import RegisteredKeys
from sluice.engine.read.value_columns import ValueColumns, Values
from sluice.errors import error_text
from sluice.operators.base import rejects_record
from sluice.plan import Source
from sluice.registry.http_registry import NO_REGISTRY
from sluice.registry.registry import Registry
from sluice.values import contract_parts, epochs
from sluice.values.json_limits import shortened
from sluice.values.keys import key_text
from sluice.values.record_metadata import MOST_KEY_BYTES
from sluice.values.registry_formats import RegistryFormat
from sluice.values.sql_types import struct_fields

Key = str | BaseException | None
"""A key as text, or the error of a key that cannot be decoded."""


class UnusableKeyError(ValueError):
    """A key that no store can have. `reason` is the reason in the dead letter of the record."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def require_short_keys(name: str, keys: pa.Array) -> None:
    """Raise UnusableKeyError if a key is too long for a database's index."""
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > MOST_KEY_BYTES:
        raise UnusableKeyError(
            "key_too_long",
            f"{name} has {longest} bytes; a key has at most {MOST_KEY_BYTES}",
        )


@dataclass(frozen=True)
class RecordKeys:
    """The keys of one source's records."""

    columns: ValueColumns
    registry: Registry = field(default=NO_REGISTRY, repr=False)

    @property
    def source(self) -> Source:
        return self.columns.source

    def decode(self, raw: list[bytes | None], headers: pa.Array | None = None) -> Iterator[Key]:
        """Kafka keys as text.

        A key that cannot be decoded becomes the error that its decoder raised. `headers` are the
        headers of the records.
        """
        if self.source.key_decode is None:
            return key_texts(raw)
        if self._registered is not None:
            return self._registered.decode(raw, header_texts(headers))
        return _decoded_by_author(raw, self.source.key_decode.value, self.source.topic)

    @cached_property
    def _registered(self) -> RegisteredKeys | None:
        decode = self.source.key_decode
        if decode is None or not isinstance(decode.value, RegistryFormat):
            return None
        return RegisteredKeys(self.source.topic, decode.value, self.registry)

    def of_field(self, values: Values, name: str) -> pa.Array:
        """Return the texts of a field as a key.

        Raises UnusableKeyError if a value cannot be a key.
        """
        column = self.columns.column(values, name)
        try:
            keys = _key_texts_of_column(column)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            raise UnusableKeyError(
                "key_not_utf8",
                f"{name}, which is used as a key, is not UTF-8",
            ) from None
        except (ValueError, OverflowError, TypeError) as error:
            raise UnusableKeyError("key", f"{name}, which is used as a key: {error}") from None
        require_short_keys(name, keys)
        return keys

    def of_records(self, values: Values, kafka_keys: pa.Array) -> pa.Array:
        """Return the keys of records of a source whose key is a field, or several fields.

        Raises UnusableKeyError if any record has no key.
        """
        name = self.source.key
        assert name is not None
        if len(self.source.key_fields) == 1:
            keys = self.of_field(values, name)
        else:
            keys = self._of_fields(values)
        has_objects = not isinstance(values, pa.RecordBatch)
        if self.source.keeps_nulls and has_objects and any(value is None for value in values):
            texts = keys.to_pylist()
            for place, value in enumerate(values):
                if value is None:
                    texts[place] = self._deleted_key(name, kafka_keys[place].as_py())
            keys = pa.array(texts, pa.string())
            require_short_keys(name, keys)
        # A stream may have records without a key, which each
        # operator drops or keeps as Kafka Streams does.
        if self.source.kind != "stream" and keys.null_count:
            raise UnusableKeyError("null_key", f"{name}, which is the table's key, is null")
        return keys

    def _of_fields(self, values: Values) -> pa.Array:
        """Return the texts of keys that consist of several fields.

        A table's row must have all of these fields.
        """
        names, key = self.source.key_fields, self.source.key or ""
        columns = [self.columns.column(values, name) for name in names]
        try:
            keys = _key_texts_of_column(pa.StructArray.from_arrays(columns, [*names]))
        except (ValueError, OverflowError, TypeError) as error:
            raise UnusableKeyError("key", f"{key}, which is used as a key: {error}") from None
        if self.source.kind != "stream":
            for column in columns:
                keys = pc.if_else(column.is_valid(), keys, pa.scalar(None, pa.string()))
        require_short_keys(key, keys)
        return keys

    def _deleted_key(self, name: str, kafka_key: bytes | None) -> str | None:
        """Return the key that a record without a value deletes, decoded from Kafka's key.

        Such a record has no fields. Kafka's key is the field's value as text or as JSON, or a JSON
        object with the field. For a key of several fields, Kafka's key is a JSON object with all of
        them.
        """
        if kafka_key is None:
            if self.source.kind != "stream":
                raise UnusableKeyError(
                    "null_key",
                    f"the value is null, and so is Kafka's key, so it is unknown which {name} to "
                    "delete",
                )
            return None
        try:
            names = self.source.key_fields
            if len(names) == 1:
                value = self._value_in_key(name, kafka_key)
                column = self.columns.column_of_fields([value], name)
            else:
                column = self._fields_in_key(names, kafka_key)
            key: str | None = _key_texts_of_column(column)[0].as_py()
        except UnicodeDecodeError as error:
            raise UnusableKeyError("key_not_utf8", str(error)) from None
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            raise UnusableKeyError(
                "deleted_key",
                f"the value is null, and Kafka's key {shortened(repr(kafka_key.decode()))} does "
                f"not say which {name} to delete: {error_text(error)}",
            ) from None
        return key

    def _fields_in_key(self, names: Sequence[str], kafka_key: bytes) -> pa.Array:
        """Return the fields of a JSON object as a column with a single row.

        Raises ValueError if any of the fields is missing or null.
        """
        members = _members(kafka_key) or {}
        missing: list[str] = []
        for name in names:
            if bytes(members.get(name, b"null")) == b"null":
                missing.append(name)
        if missing:
            raise ValueError(f"it is not an object with {' and '.join(missing)}")
        columns: dict[str, pa.Array] = {}
        for name in names:
            decode, _ = self._field_decoder(name)
            columns[name] = self.columns.column_of_fields([decode(bytes(members[name]))], name)
        return pa.StructArray.from_arrays([*columns.values()], [*columns])

    def _value_in_key(self, name: str, kafka_key: bytes) -> Any:
        decode, check = self._field_decoder(name)
        sql_type, text, written = self.source.types[name], kafka_key.decode(), kafka_key.strip()
        # The key is an object that has the field, or an object that is itself the field's value.
        if written.startswith(b"{") and (members := _members(written)) is not None:
            fields = struct_fields(sql_type) or {}
            if name not in members and fields and not members.keys() & fields.keys():
                raise ValueError(f"it is an object without {name}")
            return decode(bytes(members.get(name, written)))
        # A text may be plain or JSON. Every other value is JSON.
        if written.startswith(b'"') or sql_type not in ("STRING", "BINARY"):
            with suppress(msgspec.DecodeError):
                return decode(written)
        if sql_type == "BINARY":
            return kafka_key
        check(text)
        return msgspec.convert(text, self._type_of(name))

    def _field_decoder(self, name: str) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        """Return two functions: one decodes a key field's JSON, the other checks its decimals."""
        if name not in self._field_decoders:
            self._field_decoders[name] = self._new_field_decoder(name)
        return self._field_decoders[name]

    @cached_property
    def _field_decoders(self) -> dict[str, tuple[Callable[[bytes], Any], Callable[[Any], None]]]:
        return {}

    def _new_field_decoder(self, name: str) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        kind = self._type_of(name)
        decode, check = epochs.decoder(kind), contract_parts.amount_check(kind) or _accept

        def decode_checked(text: bytes) -> Any:
            value = decode(text)
            # No other check finds a field that occurs twice in Kafka's key.
            check(refuse_duplicates(text))
            return value

        return decode_checked, check

    def _type_of(self, name: str) -> Any:
        if not self.source.is_object:
            return self.source.value_type
        return self.columns.field_types.get(name, Any)


def _key_texts_of_column(column: pa.Array) -> pa.Array:
    """Convert a column's values to texts for keys, in the same way as an SQL expression does."""
    if pa.types.is_string(column.type):
        return column
    if column.type in _CAST_TO_KEYS:
        return column.cast(pa.string())
    return pa.array(map(key_text, column.to_pylist(maps_as_pydicts="strict")), pa.string())


_CAST_TO_KEYS = frozenset({pa.int64(), pa.bool_(), pa.date32(), pa.binary()})
"""The types for which Arrow's cast to text gives the text of a key."""


def _members(text: bytes) -> dict[str, msgspec.Raw] | None:
    """Return the members of a JSON object.

    Return None if the text is not JSON. Raises ValueError if a member occurs twice.
    """
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        refuse_duplicates(text)
    except msgspec.DecodeError:
        return None
    except DuplicateField as error:
        raise ValueError(f"field {str(error)!r} occurs twice") from None
    return members


def _accept(value: Any) -> None:
    """Accept every value: the check for a type without amounts."""


def _decoded_by_author(
    keys: list[bytes | None],
    decode: Callable[[bytes], Any],
    topic: str,
) -> Iterator[Key]:
    for key in keys:
        if key is None:
            yield None
            continue
        try:
            text = decode(key)
            # `encode` fails for a text with surrogates, which no column can hold.
            if isinstance(text, str):
                text.encode()
        except BaseException as error:
            if not rejects_record(error):
                raise run_ending_error(
                    f"The key decoder of {topic}",
                    error,
                    f"the key {key!r:.500}",
                ) from error
            yield error
            continue
        if text is None or isinstance(text, str):
            yield text
        else:
            yield TypeError(f"the key's decoder returned {type(text).__name__}, not str")


def key_texts(keys: list[bytes | None]) -> Iterator[Key]:
    """Yield Kafka keys as text; for a key that is not UTF-8, yield the decoding error."""
    for key in keys:
        try:
            yield None if key is None else key.decode()
        except UnicodeDecodeError as error:
            yield error
