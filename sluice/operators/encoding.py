"""Encodes states as MessagePack and results as JSON; refuses values that decoding would change."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from msgspec import inspect

from sluice.operators.exact_sums import Exact
from sluice.operators.plain_values import plain_check, plain_copy
from sluice.values import contract_parts, contract_values, pydantic_models
from sluice.values.contract_values import with_sorted_sets, with_time_texts
from sluice.values.json_limits import (
    MOST_LEVELS,
    MOST_UNTYPED_BYTES,
    Amounts,
    refuse_inexact_numbers,
    refuse_long_strings,
    refuse_nesting,
    require_all_finite,
    require_time,
    shortened,
)
from sluice.values.record_metadata import MOST_KEY_BYTES
from sluice.values.sql_types import MOST_DIGITS
from sluice.values.stored_values import (
    author_value,
    encode_model,
    has_models,
    is_converted,
    stored_type,
    storer,
)

IMMUTABLE = frozenset(
    {int, float, str, bool, type(None), bytes, Decimal, datetime, date, time, timedelta, UUID},
)
"""Types whose values cannot be modified in place."""
_WITHOUT_DECIMALS = IMMUTABLE - {Decimal}

_LARGE_INTEGER = re.compile(rb"\d{%d}" % (MOST_DIGITS + 1))

_encoder = msgspec.json.Encoder(decimal_format="number", enc_hook=encode_model)
_encode_json = _encoder.encode
_encode_decimals_as_text = msgspec.json.Encoder(
    decimal_format="string", enc_hook=encode_model
).encode


def to_json(value: Any) -> str:
    """Encode as JSON text. Raises ValueError for NaN and infinity, which do not exist in JSON."""
    return _to_json(with_time_texts(with_sorted_sets(value))).decode()


def plain_texts(values: Sequence[Any]) -> list[str]:
    """Encode values of finite numbers, texts, Booleans and nulls as JSON texts, all at once."""
    # Each value is one line, because msgspec escapes line breaks in texts.
    return _encoder.encode_lines(values).decode().split("\n")[:-1]


def _to_json(value: Any) -> bytes:
    data = _encode_json(value)
    _refuse_infinite(value, data)
    return data


def _refuse_infinite(value: Any, data: bytes) -> None:
    # msgspec writes NaN and infinity as null if they are floats, and by name if they are Decimals.
    # So only JSON that contains one of these words needs a check.
    if b"null" in data or b"NaN" in data or b"Infinity" in data:
        plain = msgspec.to_builtins(
            value, builtin_types=(Decimal,), str_keys=True, enc_hook=encode_model
        )
        require_all_finite(plain)


def require_key(key: str) -> None:
    """Raise ValueError for a key that is too long or has no UTF-8 encoding."""
    # A character has at most four bytes in UTF-8, so most keys are certainly short enough without
    # encoding them.
    if len(key) * 4 > MOST_KEY_BYTES or not key.isascii():
        size = len(key.encode())
        if size > MOST_KEY_BYTES:
            raise ValueError(f"the key has {size} bytes; a key has at most {MOST_KEY_BYTES}")


class Declared:
    """A type declared by an author, or Any.

    Later steps read values as this type, so each value is checked against it.

    Spark reads values, too, so a value that Spark would not read back exactly is rejected.
    """

    def __init__(self, kind: Any) -> None:
        self._is_known = kind is not Any and kind is not None
        self.is_plain = plain_check(kind if self._is_known else Any)
        """Returns True only for a value that needs neither a check nor a conversion (see
        `plain_values`)."""
        self.copy_plain = plain_copy(kind)
        self._validate: Callable[[Any], Any] | None = None
        if has_models(kind):
            self._validate = pydantic_models.validator(kind)
        self._store: Callable[[Any], Any] | None = None
        if self._is_known and is_converted(kind):
            self._store = storer(kind)
        if kind in IMMUTABLE and kind is not datetime:
            self._plain = kind
        else:
            self._plain = None
        self._decode = msgspec.json.Decoder(stored_type(kind) if self._is_known else Any).decode
        # By default, msgspec may leave out fields, such as those with default values, but later
        # steps read every field.
        self._encode: Callable[[Any], bytes] = _encode_json
        if self._is_known and contract_values.needs_plain_data(kind):
            self._encode = _encode_fields
        elif self._is_known and contract_values.has_times(kind):
            self._encode = _encode_times
        self._may_hold_sets = not self._is_known or contract_values.may_hold_sets(kind)
        self._has_dicts = self._is_known and contract_values.has_dicts(kind)
        if self._is_known:
            parts = contract_parts.parts_of(kind)
        else:
            parts = []
        if self._is_known:
            self._check_amounts = contract_parts.amount_check(kind)
        else:
            self._check_amounts = None
        integers = [part for part in parts if isinstance(part.kind, inspect.IntType)]
        self._integers = contract_parts.parts_collector(integers)
        self._times: list[tuple[str, Callable[[Any], Iterable[Any]]]] = []
        self._amounts: list[tuple[str, Callable[[Any], Iterable[Any]], Amounts]] = []
        for part in parts:
            collect = contract_parts.parts_collector([part])
            if isinstance(part.kind, inspect.DateTimeType):
                self._times.append((part.path, collect))
            if part.digits is not None:
                self._amounts.append((part.path, collect, Amounts(*part.digits)))

    def json(self, value: Any) -> str:
        """Return the value as JSON.

        Raises an error for a value that is not of the type, or that Spark cannot read exactly. A
        value in another form, such as a dict in place of a Struct, is first converted. For example,
        fields that the dict omits get their defaults.
        """
        if self.is_plain(value):
            return self.plain_text(value)
        if self._store is not None:
            if self._check_amounts is not None:
                self._check_amounts(value)
            _require_names(value)
            return self.typed_json(self.accepted(value))
        value = self.accepted(value)
        if not self._is_known:
            value = with_time_texts(value)
            return _checked_untyped(value, _to_json(value))
        data = _to_json(value)
        if type(value) is self._plain:
            return self._checked(value, data)
        if self._check_amounts is not None:
            self._check_amounts(value)
        if self._has_dicts:
            _require_names(value)
        decoded = self._decode(data)
        return self._checked(decoded, self._encode(decoded))

    def plain_text(self, value: Any) -> str:
        """Return the JSON of a plain value."""
        return self._encode(value).decode()

    def typed_json(self, value: Any) -> str:
        """Do the same as `json`, for a value that was decoded to the declared type."""
        if self.is_plain(value):
            return self.plain_text(value)
        if not self._is_known:
            return self.json(value)
        if self._store is not None:
            # `_encode` writes times as text, except in values of type Any, so convert those times
            # here.
            value = self._store(with_time_texts(value))
        data = self._encode(value)
        _refuse_infinite(value, data)
        return self._checked(value, data)

    def typed_texts(self, values: Sequence[Any]) -> list[str]:
        """Return the result of `typed_json` for each value."""
        if all(map(self.is_plain, values)) and self._encode is _encode_json:
            return plain_texts(values)
        return [self.typed_json(value) for value in values]

    def accepted(self, value: Any) -> Any:
        """Return an author's value in the form that Sluice stores: lists for sets, for example.

        If the type has models, pydantic turns dicts into models.
        """
        if self._validate is not None:
            value = self._validate(value)
        if self._may_hold_sets:
            return with_sorted_sets(value)
        return value

    def _checked(self, value: Any, data: bytes) -> str:
        refuse_long_strings(data)
        for integer in self._integers(value):
            # Python's integers have no limit, but later steps read them as BIGINT.
            if not -(1 << 63) <= integer < 1 << 63:
                text = shortened(data.decode(), 100)
                raise OverflowError(f"{text} contains an integer of more than 64 bits")
        for path, moments in self._times:
            for moment in moments(value):
                require_time(moment, path)
        for path, decimals, amounts in self._amounts:
            for amount in decimals(value):
                amounts.require(amount, path)
        return data.decode()


def _checked_untyped(value: Any, data: bytes) -> str:
    refuse_long_strings(data)
    if len(data) > MOST_UNTYPED_BYTES:
        raise ValueError(f"a result of {len(data):,} bytes needs a declared type: returns=...")
    # Each level of nesting takes two brackets, so only a longer text can be nested too deep.
    if len(data) > 2 * MOST_LEVELS:
        refuse_nesting(data)
    if type(value) not in IMMUTABLE:
        _require_names(value)
    # Only a large integer or a Decimal can be inexact. To find out whether the value contains a
    # Decimal, encode it with Decimals as text: their quotation marks make the JSON longer.
    has_large_integer = len(data) > MOST_DIGITS and _LARGE_INTEGER.search(data) is not None
    if has_large_integer or (
        type(value) not in _WITHOUT_DECIMALS and len(_encode_decimals_as_text(value)) > len(data)
    ):
        refuse_inexact_numbers(data)
    return data.decode()


def _require_names(value: Any) -> None:
    """Raise ValueError if two keys of a dict would become the same JSON name, such as 1 and "1"."""
    if isinstance(value, dict):
        # In JSON, all names are texts. Keys that are texts stay different, so check only a dict
        # with other keys.
        has_other_keys = not all(type(key) is str for key in value)
        if has_other_keys and len(msgspec.json.decode(_encode_json(value))) < len(value):
            keys = shortened(str([*value]))
            raise ValueError(f"two keys of a dict have the same name in JSON: {keys}")
    for inner in contract_values.values_within(value):
        _require_names(inner)


def require_same(value: Any, decoded: Any, declare: str) -> None:
    """Raise TypeError if a value without a declared type is decoded to another value.

    `declare` is the parameter for the declared type, such as `returns=...`; the error names it.
    Without this check, the author's function would get a value such as a set or a Decimal within a
    batch, and another value, such as a list or a float, in the next batch. The only exception is a
    tuple, which may be decoded as a list.
    """
    if (other := _other_type(value, decoded)) is not None:
        raise TypeError(f"a value of type {other} needs a declared type: {declare}")


def _other_type(value: Any, decoded: Any) -> str | None:
    """Return the type of the first part of the value that is decoded to another value.

    Return None if there is no such part.
    """
    # NaN is not equal to itself, and comparing a signaling NaN (a Decimal) raises an error.
    try:
        if value == decoded or isinstance(value, float):
            return None
    except ArithmeticError:
        pass
    pairs: Iterable[tuple[Any, Any]]
    if isinstance(value, list | tuple) and isinstance(decoded, list) and len(value) == len(decoded):
        pairs = zip(value, decoded, strict=True)
    elif isinstance(value, dict) and isinstance(decoded, dict) and value.keys() == decoded.keys():
        pairs = ((value[key], decoded[key]) for key in value)
    else:
        return type(value).__name__
    for part, decoded_part in pairs:
        other = _other_type(part, decoded_part)
        if other is not None:
            return other
    return None


def _encode_fields(value: Any) -> bytes:
    """Encode as JSON with the names of all fields.

    By default, msgspec omits values or names of some Structs.
    """
    return _encode_times(contract_values.plain_data(value))


def _encode_times(value: Any) -> bytes:
    """Encode as JSON, with times in the format of SQL."""
    return _encode_json(
        with_time_texts(msgspec.to_builtins(value, builtin_types=(datetime, Decimal)))
    )


def _encode_hook(value: Any) -> Any:
    if isinstance(value, Exact):
        return value.to_bytes()
    return encode_model(value)


def _decode_hook(kind: type, value: Any) -> Any:
    if kind is Exact:
        return Exact.from_bytes(value)
    if isinstance(kind, _Converted):
        # A model's state contains its stored value (see `encode_model`), so decode it as the stored
        # type.
        if has_models(kind.kind):
            return author_value(msgspec.convert(value, type=stored_type(kind.kind)))
        return author_value(storer(kind.kind)(value))
    raise TypeError(f"Decoding objects of type {kind.__name__} is unsupported")


class _Converted(type):
    """Metaclass of the types that stand for authors' types within the type of a state.

    `kind` is the author's type, whose values are stored in another form.
    """

    kind: Any

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def state_type(kind: Any) -> Any:
    """Return the type that replaces the author's type `kind` in the type of a state."""
    if kind is not Any and is_converted(kind):
        return _Converted("Converted", (), {"kind": kind})
    return kind


encode_state: Callable[[Any], bytes] = msgspec.msgpack.Encoder(enc_hook=_encode_hook).encode
"""Encode a state, or a part of it, as bytes."""


def state_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a decoder for states of type `kind`.

    Where a state contains a type `T` of the author, `kind` must contain `state_type(T)`.
    """
    return msgspec.msgpack.Decoder(kind, dec_hook=_decode_hook).decode
