"""Strictly decodes records' bytes into typed columns. A value that violates its contract becomes a dead letter."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact
from enum import Enum
from functools import cached_property, partial
from operator import attrgetter
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.dead_letters import RejectedRecord
from sluice.engine.batch.rejections import run_ending_error
from sluice.errors import error_text
from sluice.operators.base import rejects_record
from sluice.plan import Source, SourceField
from sluice.sql.arrow_to_json import json_object, json_values
from sluice.sql.arrow_types import arrow_type
from sluice.values import contract_parts, contract_values, contracts, epochs
from sluice.values.epochs import Unit
from sluice.values.json_limits import (
    LONGEST_NAME,
    LONGEST_NUMBER,
    MOST_DIGITS,
    MOST_LEVELS,
    Amounts,
    refuse_long,
    refuse_long_strings,
    refuse_nesting,
    require_finite,
    require_time,
    shortened,
)
from sluice.values.keys import key_text
from sluice.values.record_metadata import MOST_KEY_BYTES, TEXT_FIELD, WALL_CLOCK
from sluice.values.sql_types import struct_fields

Key = str | BaseException | None
"""A key as text, or the error of a key that cannot be decoded."""


class UnusableKeyError(ValueError):
    """A key that no store can have: `reason` is the reason of the dead letter."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


def require_short_keys(name: str, keys: pa.Array) -> None:
    """Raise UnusableKeyError if a key is too long for a database's index."""
    longest = pc.max(pc.binary_length(keys)).as_py() or 0
    if longest > MOST_KEY_BYTES:
        raise UnusableKeyError("key_too_long", f"{name} has {longest} bytes; a key has at most {MOST_KEY_BYTES}")


@dataclass(frozen=True)
class ValueDecoder:
    """Decodes the values of one source."""

    source: Source

    @property
    def keeps_nulls(self) -> bool:
        return self.source.nulls == "keep"

    @property
    def _class(self) -> Any:
        assert self.source.contract is not None
        return self.source.contract.value

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        contract, author = self.source.contract, self.source.decode
        if author is not None:
            return partial(self._of_author, author.value)
        return bytes.decode if contract is None else epochs.decoder(self._class)

    def _of_author(self, decode: Callable[[bytes], Any], data: bytes) -> Any:
        """Call an author's decoder. Raises ValidationError for a value that is not of the contract's type.

        Returns a copy, because the decoder may use the same object for the next record.
        """
        value = decode(data)
        expected = self._class if self.source.is_object else str if self.source.contract is None else object
        if not isinstance(value, expected):
            raise msgspec.ValidationError(f"decode returned {type(value).__name__}, not {expected.__name__}")
        if self.source.contract is None:
            return value
        if self._check_amounts is not None:
            self._check_amounts(value)
        try:
            plain = msgspec.to_builtins(value, builtin_types=_ARROW_TYPES)
        except TypeError as error:
            raise msgspec.ValidationError(error_text(error)) from None
        return msgspec.convert(plain, self._class)

    @cached_property
    def _quotes(self) -> Callable[[Sequence[msgspec.Struct]], int] | None:
        return contract_parts.quote_counter(self._class) if self.source.is_object else None

    @cached_property
    def _attributes(self) -> dict[str, str]:
        return contracts.attributes(self._class)

    @cached_property
    def _by_name(self) -> frozenset[str]:
        """The fields that msgspec does not convert as columns need them."""
        kinds = {TEXT_FIELD: self._class}
        if self.source.is_object:
            kinds = {field.encode_name: field.type for field in msgspec.structs.fields(self._class)}
        return frozenset(name for name, kind in kinds.items() if contract_values.needs_by_name(kind))

    @cached_property
    def _decimals(self) -> list[tuple[str, Amounts, Callable[[Sequence[Any]], list[Decimal | None]]]]:
        return [
            (part.path, Amounts(*digits), part.collector())
            for part in contract_parts.parts_of(self._class)
            if (digits := part.digits) is not None
        ]

    @cached_property
    def _check_amounts(self) -> Callable[[Any], None] | None:
        return contract_parts.amount_check(self._class)

    @cached_property
    def _times(self) -> list[tuple[str, Callable[[Sequence[Any]], list[datetime]]]]:
        return [
            (part.path, part.collector())
            for part in contract_parts.parts_of(self._class)
            if isinstance(part.kind, msgspec.inspect.DateTimeType)
        ]

    @cached_property
    def _doubles(self) -> list[tuple[str, Callable[[Sequence[Any]], list[float | None]]]]:
        """The doubles that an author's decoder may have set to NaN or infinity. JSON has neither."""
        if self.source.decode is None or self.source.contract is None:
            return []
        parts = contract_parts.parts_of(self._class)
        return [(part.path, part.collector()) for part in parts if isinstance(part.kind, msgspec.inspect.FloatType)]

    @property
    def is_json(self) -> bool:
        """Whether the values are JSON of a contract, which Sluice decodes."""
        return self.source.contract is not None and self.source.decode is None

    def decode(self, raw: list[bytes | None]) -> tuple[list[int], list[Any], list[RejectedRecord]]:
        """The row numbers of valid values, the valid values, and dead letters for the other rows."""
        values: list[Any] = []
        dead_letters: list[RejectedRecord] = []
        decode: Callable[[Any], Any] = self._decode
        if self.keeps_nulls:
            decode = partial(_unless_null, decode)
        texts = iter(raw)
        while len(values) + len(dead_letters) < len(raw):
            try:
                for text in texts:
                    values.append(decode(text))  # noqa: PERF401  (keeps the values before one that fails)
            except BaseException as error:
                if not rejects_record(error):
                    raise run_ending_error(f"The decoder of {self.source.topic}", error, "a value") from error
                row = len(values) + len(dead_letters)
                dead_letters.append(RejectedRecord(row, *_reason(raw[row], error)))
        rows = _without(range(len(raw)), {dead_letter.row for dead_letter in dead_letters})
        if self.is_json:
            rows, values = self._refuse_extra(raw, rows, values, dead_letters)
        rows, values = self._refuse_unreadable(raw, rows, values, dead_letters)
        return self._check_digits(rows, values, dead_letters)

    def _refuse_extra(
        self, raw: list[bytes | None], rows: list[int], values: list[Any], dead_letters: list[RejectedRecord]
    ) -> tuple[list[int], list[Any]]:
        """Reject JSON with a field twice, with an amount in a text that is not written as a number, or nested too deep.

        msgspec accepts the nesting of fields outside the contract.
        """
        quotes = self._quotes
        if quotes is not None:
            # If the JSON has each contract field once and no other field, the value determines the number of quotation
            # marks. No value has fewer, so the numbers of all values are right if their sum is.
            texts = [text for row in rows if (text := raw[row]) is not None]
            if b"".join(texts).count(b'"') == quotes([value for value in values if value is not None]):
                return rows, values
        refused: set[int] = set()
        for place, row in enumerate(rows):
            text = raw[row]
            if text is None or (quotes is not None and text.count(b'"') == quotes([values[place]])):
                continue
            try:
                refuse_nesting(text)
                data = refuse_duplicates(text)
                if self._check_amounts is not None:
                    self._check_amounts(data)
            except Exception as error:
                dead_letters.append(RejectedRecord(row, *_reason(text, error)))
                refused.add(place)
        return _without(rows, refused), _without(values, refused)

    def _refuse_unreadable(
        self, raw: list[bytes | None], rows: list[int], values: list[Any], dead_letters: list[RejectedRecord]
    ) -> tuple[list[int], list[Any]]:
        """Reject values with strings, times or numbers that Spark cannot read back.

        A fast check of all values comes first.
        """
        present = self._present(values)
        if self._have_short_strings(raw, present) and self._have_usual_years(present) and self._are_finite(present):
            return rows, values
        refused: set[int] = set()
        for place, (row, value) in enumerate(zip(rows, values, strict=True)):
            text = raw[row]
            try:
                if text is not None:
                    self._require_readable(value, text)
            except Exception as error:
                dead_letters.append(RejectedRecord(row, "contract", error_text(error)))
                refused.add(place)
        return _without(rows, refused), _without(values, refused)

    def _present(self, values: list[Any]) -> list[Any]:
        """The values that are not null."""
        return [value for value in values if value is not None] if self.keeps_nulls else values

    def _have_short_strings(self, raw: list[bytes | None], values: list[Any]) -> bool:
        if self.source.decode is None:
            return max(map(len, filter(None, raw)), default=0) <= LONGEST_NAME
        try:
            refuse_long_strings(_encode(values))
        except Exception:  # an author's decoder may return values of any type
            return False
        return True

    def _have_usual_years(self, values: list[Any]) -> bool:
        """Whether all times are in the years 2 to 9998, which is the case in any zone."""
        if self.source.contract is None:
            return True
        try:
            return all({*map(_YEAR, collect(values))} <= _USUAL_YEARS for _, collect in self._times)
        except Exception:  # an author's decoder may return values of any type
            return False

    def _are_finite(self, values: list[Any]) -> bool:
        try:
            return all(all(map(math.isfinite, _not_null(collect(values)))) for _, collect in self._doubles)
        except Exception:  # an author's decoder may return values of any type
            return False

    def _require_readable(self, value: Any, text: bytes) -> None:
        if isinstance(value, str) and self.source.decode is None and not self.is_json:
            refuse_long(text, escaped=False)
        elif self.source.decode is not None or len(text) > LONGEST_NAME:
            refuse_long_strings(_encode(value))
        for path, doubles in self._doubles:
            for number in _not_null(doubles([value])):
                require_finite(number, path)
        if self.source.contract is not None:
            zone = ZoneInfo(self.source.zone)
            for path, collect in self._times:
                for time in collect([value]):
                    require_time(time, path, zone)

    def _check_digits(
        self, rows: list[int], values: list[msgspec.Struct], dead_letters: list[RejectedRecord]
    ) -> tuple[list[int], list[msgspec.Struct], list[RejectedRecord]]:
        """Reject values with decimals of more digits than declared. A fast check of all values comes first."""
        if self.source.contract is None:
            return rows, values, dead_letters
        if self._surely_fit(values):
            return rows, values, dead_letters
        refused: set[int] = set()
        for place in failing(len(values), lambda begin, end: self._surely_fit(values[begin:end])):
            try:
                self._require_digits(values[place])
            except ValueError as error:
                dead_letters.append(RejectedRecord(rows[place], "digits", str(error)))
                refused.add(place)
        return _without(rows, refused), _without(values, refused), dead_letters

    def _surely_fit(self, values: list[msgspec.Struct]) -> bool:
        present = self._present(values)
        return all(amounts.surely_include(collect(present)) for _, amounts, collect in self._decimals)

    def _require_digits(self, value: msgspec.Struct) -> None:
        for path, amounts, collect in self._decimals:
            for amount in collect([value]):
                if amount is not None:
                    amounts.require(amount, path)
                    exponent = amount.as_tuple().exponent
                    if isinstance(exponent, int) and exponent < -MOST_DIGITS:
                        # Arrow would take 1.5 with 41 decimals for 0, without an error.
                        raise ValueError(f"{path}: {shortened(str(amount))} has more than {MOST_DIGITS} decimals")

    def column_of(self, field: SourceField, values: Sequence[Any], kafka_keys: pa.Array) -> pa.Array:
        """The job's column for a field. Raises ValueError, and UnusableKeyError if a value cannot be a key."""
        match field.holds:
            case "value":
                return self.column(values, field.name)
            case "key_text":
                return self.field_keys(values, field.name)
            case "record_key":
                return self.record_keys(values, kafka_keys)

    def column(self, values: Sequence[msgspec.Struct], name: str) -> pa.Array:
        """A field of the values as an Arrow column.

        Raises ValueError, with the field, if a value does not fit the column's type. A time without a zone is in the
        pipeline's zone; a time that is ambiguous, because clocks were turned back, is the earlier.
        """
        try:
            return self._column(self._fields(values, name), name)
        except (pa.ArrowException, OverflowError, ValueError) as error:
            field = f"$.{name}" if self.source.is_object else "$"
            reason, _, _ = error_text(error).partition("\n")
            raise ValueError(f"{field}: {reason}") from error

    def _column(self, fields: list[Any], name: str) -> pa.Array:
        sql = self.source.types[name]
        is_nested = "<" in sql
        if sql != "TIMESTAMP" and (is_nested or any(issubclass(kind, Enum) for kind in set(map(type, fields)))):
            if is_nested and name in self._by_name:
                fields = contract_values.by_name(fields)
            fields = msgspec.to_builtins(fields, builtin_types=_ARROW_TYPES)
        if self.source.zone != "UTC" and "TIMESTAMP" in sql:
            fields = _in_zone(fields, ZoneInfo(self.source.zone))
        try:
            return pa.array(fields, arrow_type(sql))
        except pa.ArrowInvalid:
            if "DECIMAL" not in sql:
                raise
            return pa.array(_without_zeros(fields), arrow_type(sql))

    def json(self, values: Sequence[Any]) -> pa.Array:
        """Valid values, without nulls, as JSON in the same form as in the stores of other tables."""
        columns = {name: self.column(values, name) for name in self.source.types}
        return json_object(columns) if self.source.is_object else json_values(columns[TEXT_FIELD])

    def unfit(self, values: Sequence[Any]) -> dict[int, str]:
        """Index of a value → why one of its fields does not fit the type of its column."""

        def error(some: Sequence[Any]) -> str:
            try:
                for name in self.source.types:
                    self.column(some, name)
            except ValueError as error:
                return str(error)
            return ""

        return {
            place: error([values[place]])
            for place in failing(len(values), lambda begin, end: not error(values[begin:end]))
            if values[place] is not None
        }

    def _fields(self, values: Sequence[Any], name: str) -> list[Any]:
        if not self.source.is_object:
            return list(values)
        if name not in self._attributes:
            tag = self._class.__struct_config__.tag
            return [None if value is None else tag for value in values]
        attribute = self._attributes[name]
        if self.keeps_nulls:
            return [None if value is None else getattr(value, attribute) for value in values]
        return [*map(attrgetter(attribute), values)]

    def keys(self, raw: list[bytes | None]) -> Iterator[Key]:
        """Kafka keys as text; for a key that cannot be decoded, its error."""
        if self.source.key_decode is None:
            return key_texts(raw)
        return _decoded(raw, self.source.key_decode.value, self.source.topic)

    def field_keys(self, values: Sequence[Any], name: str) -> pa.Array:
        """The texts of a field as a key. Raises UnusableKeyError if a value cannot be a key."""
        column = self.column(values, name)
        try:
            keys = _key_texts_of(column)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            raise UnusableKeyError("key_not_utf8", f"{name}, which is used as a key, is not UTF-8") from None
        except (ValueError, OverflowError, TypeError) as error:
            raise UnusableKeyError("key", f"{name}, which is used as a key: {error}") from None
        require_short_keys(name, keys)
        return keys

    def record_keys(self, values: Sequence[Any], kafka_keys: pa.Array) -> pa.Array:
        """The keys of records of a source whose key is a field. Raises UnusableKeyError if any record has none."""
        name = self.source.key
        assert name is not None
        keys = self.field_keys(values, name)
        if self.keeps_nulls and keys.null_count:
            texts = keys.to_pylist()
            for place, value in enumerate(values):
                if value is None:
                    texts[place] = self._deleted_key(name, kafka_keys[place].as_py())
            keys = pa.array(texts, pa.string())
            require_short_keys(name, keys)
        if self.source.kind != "stream" and keys.null_count:
            raise UnusableKeyError("null_key", f"{name}, which is the table's key, is null")
        return keys

    def _deleted_key(self, name: str, kafka_key: bytes | None) -> str | None:
        """The key that a record without a value deletes. Only Kafka's key can say which.

        It is the field's value as text or as JSON, or an object with the field.
        """
        if kafka_key is None:
            if self.source.kind != "stream":
                raise UnusableKeyError("null_key", f"the value is null, and so is Kafka's key: no {name} to delete")
            return None
        try:
            value = self._value_in_key(name, kafka_key)
            key: str | None = _key_texts_of(self._column([value], name))[0].as_py()
        except UnicodeDecodeError as error:
            raise UnusableKeyError("key_not_utf8", str(error)) from None
        except (ValueError, OverflowError, TypeError, RecursionError) as error:
            raise UnusableKeyError(
                "deleted_key",
                f"the value is null, and Kafka's key {shortened(repr(kafka_key.decode()))} does not say which {name} "
                f"to delete: {error_text(error)}",
            ) from None
        return key

    def _value_in_key(self, name: str, kafka_key: bytes) -> Any:
        decode, check = self._of_key
        sql_type, text, written = self.source.types[name], kafka_key.decode(), kafka_key.strip()
        if written.startswith(b"{") and (members := _members(written)) is not None:
            fields = struct_fields(sql_type) or {}
            if name not in members and fields and not members.keys() & fields.keys():
                raise ValueError(f"it is an object without {name}")
            return decode(bytes(members.get(name, written)))
        if written.startswith(b'"') or sql_type not in ("STRING", "BINARY"):
            with suppress(msgspec.DecodeError):
                return decode(written)
        if sql_type == "BINARY":
            return kafka_key
        check(text)
        return msgspec.convert(text, self._type_of(name))

    @cached_property
    def _of_key(self) -> tuple[Callable[[bytes], Any], Callable[[Any], None]]:
        """The function that decodes JSON of the field that is the key, and the check of its amounts."""
        assert self.source.key is not None
        kind = self._type_of(self.source.key)
        decode, check = epochs.decoder(kind), contract_parts.amount_check(kind) or _accept

        def decode_checked(text: bytes) -> Any:
            value = decode(text)
            check(refuse_duplicates(text))
            return value

        return decode_checked, check

    def _type_of(self, name: str) -> Any:
        if not self.source.is_object:
            return str if self.source.contract is None else self._class
        types = {field.encode_name: field.type for field in msgspec.structs.fields(self._class)}
        return types.get(name, Any)

    def times(self, values: Sequence[msgspec.Struct], record_times: pa.Array, clock: int) -> pa.Array:
        """Event times in ms: of the declared field, or the record's timestamp if there is no such field or no value.

        With `WALL_CLOCK`, every record gets the batch's time, `clock`.
        """
        if self.source.event_time == WALL_CLOCK:
            return pa.repeat(pa.scalar(clock, pa.int64()), len(values))
        if self.source.event_time is None:
            return _milliseconds(record_times)
        column = self.column(values, self.source.event_time)
        times = self._of_numbers(column) if pa.types.is_integer(column.type) else _milliseconds(column)
        if self.keeps_nulls:
            empty = pa.array([value is None for value in values], pa.bool_())
            times = pc.if_else(empty, _milliseconds(record_times), times)
        return times

    def _of_numbers(self, numbers: pa.Array) -> pa.Array:
        """Numbers in the declared unit as ms, rounded down. A number that is too large remains too large."""
        match self.source.time_unit:
            case Unit.SECONDS:
                most = (2**63 - 1) // 1000
                exact = pc.ElementWiseAggregateOptions(skip_nulls=False)
                within = pc.min_element_wise(pc.max_element_wise(numbers, -most, options=exact), most, options=exact)
                return pc.multiply(within, 1000)
            case Unit.MICROSECONDS:
                return pc.subtract(pc.divide(numbers, 1000), pc.less(numbers, 0).cast(pa.int64()))
            case _:
                return numbers

    @property
    def assumed_ms(self) -> str | None:
        """The field of numbers that hold the event time without a declared unit, and are taken for milliseconds."""
        field = self.source.event_time
        is_number = field is not None and self.source.types.get(field) == "BIGINT"
        return field if is_number and self.source.time_unit is None else None


def _milliseconds(times: pa.Array) -> pa.Array:
    return pc.divide(pc.floor_temporal(times, unit="millisecond").cast(pa.int64()), 1000)


def _key_texts_of(column: pa.Array) -> pa.Array:
    """The texts of a column's values as keys, which are those that an SQL expression makes of the column."""
    if pa.types.is_string(column.type):
        return column
    if column.type in _CAST_TO_KEYS:
        return column.cast(pa.string())
    return pa.array(map(key_text, column.to_pylist(maps_as_pydicts="strict")), pa.string())


_CAST_TO_KEYS = frozenset({pa.int64(), pa.bool_(), pa.date32(), pa.binary()})
"""The types that Arrow casts to the text that they have as keys."""
_ARROW_TYPES = (Decimal, datetime, date, bytes)
_encode = msgspec.json.Encoder(decimal_format="number").encode
_EXACT = Context(prec=LONGEST_NUMBER, traps=[Inexact])
_YEAR, _USUAL_YEARS = attrgetter("year"), frozenset(range(2, 9999))


def _members(text: bytes) -> dict[str, msgspec.Raw] | None:
    """The members of a JSON object; None if the text is no JSON. Raises ValueError if a member occurs twice."""
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        refuse_duplicates(text)
    except msgspec.DecodeError:
        return None
    except DuplicateField as error:
        raise ValueError(f"field {str(error)!r} occurs twice") from None
    return members


def _in_zone(value: Any, zone: ZoneInfo) -> Any:
    """The value with `zone` added to every time without a zone, including nested times."""
    if isinstance(value, datetime):
        return value if value.tzinfo else value.replace(tzinfo=zone)
    if isinstance(value, list):
        return [_in_zone(element, zone) for element in value]
    if isinstance(value, dict):
        return {name: _in_zone(element, zone) for name, element in value.items()}
    return value


def _without_zeros(value: Any) -> Any:
    """The value with amounts in the fewest digits: Arrow counts zeros at the end, and an exponent of zero, too."""
    if isinstance(value, Decimal):
        return value.normalize(_EXACT)
    if isinstance(value, list):
        return [_without_zeros(element) for element in value]
    if isinstance(value, dict):
        return {name: _without_zeros(element) for name, element in value.items()}
    return value


def _accept(value: Any) -> None:
    """The check of a type without amounts."""


def _unless_null(decode: Callable[[bytes], Any], text: bytes | None) -> Any:
    return None if text is None else decode(text)


T = TypeVar("T")


def _not_null(numbers: Iterable[float | None]) -> Iterator[float]:
    return (number for number in numbers if number is not None)


def _without(items: Sequence[T], places: Container[int]) -> list[T]:
    return [item for place, item in enumerate(items) if place not in places] if places else [*items]


def failing(count: int, fits: Callable[[int, int], bool]) -> Iterator[int]:
    """The places, of so many, at which something fails. `fits(begin, end)` is whether a whole range does not.

    Ranges that fail are halved, because few places fail, and checking a range costs little more than checking a place.
    """
    ranges = [(0, count)]
    while ranges:
        begin, end = ranges.pop()
        if begin == end or fits(begin, end):
            continue
        if end - begin == 1:
            yield begin
        else:
            middle = (begin + end) // 2
            ranges += [(middle, end), (begin, middle)]


def refuse_duplicates(text: bytes) -> Any:
    """The data of JSON, with numbers as text. Raises DuplicateField, with the name, if an object has a field twice."""

    def pairs(fields: list[tuple[str, Any]]) -> dict[str, Any]:
        counted = Counter(name for name, _ in fields)
        if len(counted) < len(fields):
            raise DuplicateField(counted.most_common(1)[0][0])
        return dict(fields)

    # Numbers stay text: int() refuses a number of thousands of digits.
    return json.loads(text.decode(), object_pairs_hook=pairs, parse_int=str, parse_float=str)


class DuplicateField(ValueError):
    """A JSON object has a field twice. The message is the field's name."""


def _reason(text: bytes | None, error: BaseException) -> tuple[str, str]:
    """The reason code and the detail for a value that could not be decoded."""
    if text is None:
        return "null_value", "the value is null"
    if not text:
        return "empty_value", "the value has no bytes"
    match error:
        case DuplicateField():
            return "duplicate_field", f"field {str(error)!r} occurs twice"
        case msgspec.ValidationError():
            return "contract", error_text(error)
        case UnicodeDecodeError():
            return "not_utf8", str(error)
        case RecursionError():
            return "malformed", f"nested more than {MOST_LEVELS} levels deep"
        case msgspec.DecodeError() if "utf-8" in str(error).lower():
            return "not_utf8", str(error)
        case msgspec.DecodeError() if _has_unpaired_surrogate(text):
            return "malformed", "a string has an unpaired surrogate"
        case _:
            return "malformed", error_text(error)


def _has_unpaired_surrogate(text: bytes) -> bool:
    """Whether JSON is well-formed but for half of a surrogate pair, which msgspec calls truncated or invalid."""
    if b"\\u" not in text:
        return False
    try:
        json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        pass
    return False


def _decoded(keys: list[bytes | None], decode: Callable[[bytes], str], topic: str) -> Iterator[Key]:
    for key in keys:
        try:
            text = None if key is None else decode(key)
            if isinstance(text, str):
                text.encode()  # fails for surrogates, which no column can hold
        except BaseException as error:
            if not rejects_record(error):
                raise run_ending_error(f"The key decoder of {topic}", error, f"the key {key!r:.500}") from error
            yield error
            continue
        known = text is None or isinstance(text, str)
        yield text if known else TypeError(f"the key's decoder returned {type(text).__name__}, not str")


def key_texts(keys: list[bytes | None]) -> Iterator[Key]:
    """Kafka keys as text; for a key that is not UTF-8, its error."""
    for key in keys:
        try:
            yield None if key is None else key.decode()
        except UnicodeDecodeError as error:
            yield error
