"""Bytes to typed columns, strictly: a value keeps to its contract, or it is a dead letter with the reason and place.

Runs in Spark's tasks right after the Kafka source, so a task sees one partition of one topic, in offset order.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.arrow import arrow_type
from sluice.engine.batch.side_outputs import no_garbage_collection
from sluice.plan import Source
from sluice.values import contracts


@dataclass(frozen=True)
class DeadLetter:
    """A record that is set aside: its row in the batch, the reason's code, and what exactly is wrong."""

    row: int
    reason: str
    detail: str
    step: str = ""
    """The step that failed and its `file:line`, where the record could be read."""
    at: str = ""


@dataclass(frozen=True)
class ValueDecoder:
    """Decodes the values of one source. Made on the driver, used in tasks."""

    source: Source

    @property
    def keeps_nulls(self) -> bool:
        """Whether a record without a value is kept."""
        return self.source.nulls == "keep"

    @property
    def _class(self) -> Any:
        assert self.source.contract is not None
        return self.source.contract.value

    @cached_property
    def _decode(self) -> Callable[[bytes], Any]:
        contract, author = self.source.contract, self.source.decode
        if author is not None:
            expected = self._class if self.source.is_object else str if contract is None else object
            return partial(_of_author, author.value, expected)
        return bytes.decode if contract is None else msgspec.json.Decoder(self._class).decode

    @cached_property
    def _quotes(self) -> Callable[[msgspec.Struct], int] | None:
        return contracts.quote_counter(self._class) if self.source.is_object else None

    @cached_property
    def _attributes(self) -> dict[str, str]:
        return contracts.attributes(self._class)

    @cached_property
    def _decimals(self) -> list[tuple[str, pa.DataType, Callable[[list[msgspec.Struct]], list[Any]]]]:
        return [
            (path, arrow_type(sql), eval(f"lambda values: {text}"))  # made of attribute names only
            for path, sql, text in contracts.decimals(self._class)
        ]

    @property
    def _is_json(self) -> bool:
        return self.source.contract is not None and self.source.decode is None

    def decode(self, raw: list[bytes | None]) -> tuple[list[int], list[Any], list[DeadLetter]]:
        """The rows that keep to the contract, their values, and those that do not."""
        rows: list[int] = []
        values: list[Any] = []
        letters: list[DeadLetter] = []
        decode, quotes = self._decode, self._quotes
        strict, keeps_nulls = self._is_json, self.keeps_nulls
        with no_garbage_collection():
            for row, text in enumerate(raw):
                if text is None and keeps_nulls:
                    rows.append(row)
                    values.append(None)
                    continue
                try:
                    value = decode(text)  # type: ignore[arg-type]
                    if strict and (quotes is None or text.count(b'"') != quotes(value)):  # type: ignore[union-attr]
                        # Only what the contract does not name can be nested deeper than the contract itself.
                        refuse_nesting(text)  # type: ignore[arg-type]
                        refuse_duplicates(text)  # type: ignore[arg-type]
                except Exception as error:
                    letters.append(DeadLetter(row, *_reason(text, error)))
                else:
                    rows.append(row)
                    values.append(value)
        return self._check_digits(rows, values, letters)

    def _check_digits(
        self, rows: list[int], values: list[msgspec.Struct], letters: list[DeadLetter]
    ) -> tuple[list[int], list[msgspec.Struct], list[DeadLetter]]:
        """Take out the values with amounts of more digits than declared: looked at one by one only if there are any."""
        if self.source.contract is None:
            return rows, values, letters
        present = [value for value in values if value is not None] if self.keeps_nulls else values
        if not any(_refused(collect(present), kind) for _, kind, collect in self._decimals):
            return rows, values, letters
        kept_rows, kept = [], []
        for row, value in zip(rows, values, strict=True):
            wrong = "" if value is None else next(self._excess(value), "")
            if wrong:
                letters.append(DeadLetter(row, "digits", wrong))
            else:
                kept_rows.append(row)
                kept.append(value)
        return kept_rows, kept, letters

    def _excess(self, value: msgspec.Struct) -> Iterator[str]:
        """Say where an amount has more digits than declared."""
        for path, kind, collect in self._decimals:
            for amount in collect([value]):
                if _refused([amount], kind):
                    text = str(amount)
                    yield f"{path}: {text[:40]}{'…' * (len(text) > 40)} is not a decimal({kind.precision},{kind.scale})"

    def column(self, values: Sequence[msgspec.Struct], name: str) -> pa.Array:
        """One field of the values as an Arrow column. Raises what Arrow raises if one does not fit its type."""
        sql = self.source.types[name]
        found = self._found(values, name)
        if sql == "TIMESTAMP":
            return self._timestamps(found)
        if "<" in sql or any(issubclass(kind, Enum) for kind in set(map(type, found))):
            found = msgspec.to_builtins(found, builtin_types=_KEPT)
            if self.source.zone != "UTC" and "TIMESTAMP" in sql:
                found = _in_zone(found, ZoneInfo(self.source.zone))
        return pa.array(found, arrow_type(sql))

    def _found(self, values: Sequence[Any], name: str) -> list[Any]:
        if not self.source.is_object:
            return list(values)
        attribute = self._attributes[name]
        if self.keeps_nulls:
            return [None if value is None else getattr(value, attribute) for value in values]
        return [getattr(value, attribute) for value in values]

    def _timestamps(self, found: list[Any]) -> pa.Array:
        """Times that name no zone are taken in the pipeline's; the earlier one where clocks were turned back."""
        if self.source.zone != "UTC":
            found = _in_zone(found, ZoneInfo(self.source.zone))
        return pa.array(found, arrow_type("TIMESTAMP"))

    def keys(self, raw: list[bytes | None]) -> Iterator[str | Exception | None]:
        """Kafka keys as text, or why they are none."""
        if self.source.key_decode is None:
            return key_texts(raw)
        return _decoded(raw, self.source.key_decode.value)

    def json(self, value: Any, raw: bytes) -> str:
        """The value as JSON: the record's own text, if it is JSON."""
        return raw.decode() if self._is_json else _encode(value).decode()

    def text(self, value: Any, name: str) -> str | None:
        """A field as a key: the text that Spark makes of it, since streams are keyed by that; null if it is null."""
        (found,) = self.column([value], name).to_pylist()
        return None if found is None else _text(found)

    def times(self, values: Sequence[msgspec.Struct], record_times: pa.Array) -> pa.Array:
        """Event times in ms: of the declared field, else of the records; of a record without a value its own."""
        column = record_times if self.source.event_time is None else self.column(values, self.source.event_time)
        if self.keeps_nulls and self.source.event_time is not None:
            empty = pa.array([value is None for value in values], pa.bool_())
            column = pc.if_else(empty, record_times.cast(column.type), column)
        return pc.divide(pc.floor_temporal(column, unit="millisecond").cast(pa.int64()), 1000)


_KEPT = (Decimal, datetime, date, bytes)
_encode = msgspec.json.Encoder(decimal_format="number").encode


def _of_author(decode: Callable[[bytes], Any], expected: type, data: bytes) -> Any:
    """What an author's function makes of bytes; a ValueError if that is no value of the contract."""
    value = decode(data)
    if not isinstance(value, expected):
        raise msgspec.ValidationError(f"decode gave {type(value).__name__}, not {expected.__name__}")
    return value


def _text(found: Any) -> str:
    """A value as text, as Spark's CAST has it."""
    match found:
        case str():
            return found
        case bool():
            return str(found).lower()
        case datetime():
            whole, _, fraction = f"{found:%Y-%m-%d %H:%M:%S.%f}".partition(".")
            return f"{whole}.{fraction}".rstrip("0").rstrip(".") if int(fraction) else whole
        case Decimal():
            return f"{found:f}"
        case int() | float() | date():
            return str(found)
        case _:
            return _encode(found).decode()


def _in_zone(found: Any, zone: ZoneInfo) -> Any:
    """The same values, nested ones too, with every time that names no zone taken in `zone`."""
    if isinstance(found, datetime):
        return found if found.tzinfo else found.replace(tzinfo=zone)
    if isinstance(found, list):
        return [_in_zone(one, zone) for one in found]
    if isinstance(found, dict):
        return {name: _in_zone(one, zone) for name, one in found.items()}
    return found


def _refused(amounts: Iterable[Decimal | None], kind: pa.DataType) -> bool:
    """Whether Arrow cannot take all amounts without loss."""
    try:
        pa.array(amounts, kind)
    except (pa.ArrowException, OverflowError, ValueError):
        return True
    return False


MOST_LEVELS = 100
"""As many arrays and objects may lie within each other in a value: whatever reads it later reads it recursively."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def refuse_nesting(text: bytes) -> None:
    """ValueError if the JSON is nested more than `MOST_LEVELS` deep."""
    if text.count(b"[") + text.count(b"{") <= MOST_LEVELS:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", text)):
        depth += 1 if bracket in b"[{" else -1
        if depth > MOST_LEVELS:
            raise ValueError(f"nested more than {MOST_LEVELS} levels deep")


def refuse_duplicates(text: bytes) -> None:
    """ValueError that names the first field that an object in the text has twice."""

    def pairs(found: list[tuple[str, Any]]) -> None:
        counted = Counter(name for name, _ in found)
        if len(counted) < len(found):
            raise DuplicateField(counted.most_common(1)[0][0])

    # Numbers stay text: they are of no interest, and one of thousands of digits is refused as an int.
    json.loads(text.decode(), object_pairs_hook=pairs, parse_int=str, parse_float=str)


class DuplicateField(ValueError):
    """An object has a field twice."""


OF_VALUES = frozenset({"null_value", "empty_value", "duplicate_field", "contract", "not_utf8", "malformed", "digits"})
"""The reasons that do not depend on which fields a job reads, nor on when it does."""


def _reason(text: bytes | None, error: Exception) -> tuple[str, str]:
    """Code and detail of why a value could not be decoded."""
    if text is None:
        return "null_value", "the value is null"
    if not text:
        return "empty_value", "the value has no bytes"
    match error:
        case DuplicateField():
            return "duplicate_field", f"field {str(error)!r} stands twice"
        case msgspec.ValidationError():
            return "contract", str(error)
        case UnicodeDecodeError():
            return "not_utf8", str(error)
        case RecursionError():
            return "malformed", f"nested more than {MOST_LEVELS} levels deep"
        case msgspec.DecodeError() if "utf-8" in str(error).lower():
            return "not_utf8", str(error)
        case _:
            return "malformed", str(error)


def _decoded(keys: list[bytes | None], decode: Callable[[bytes], str]) -> Iterator[str | Exception | None]:
    for key in keys:
        try:
            yield None if key is None else decode(key)
        except Exception as error:
            yield error


def key_texts(keys: list[bytes | None]) -> Iterator[str | Exception | None]:
    """Kafka keys as text, or why they are none."""
    for key in keys:
        try:
            yield None if key is None else key.decode()
        except UnicodeDecodeError as error:
            yield error
