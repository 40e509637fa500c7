"""Decides whether the tokens of a type in `CAST(... AS type)` are a type of Spark SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlglot.tokenizer_core import Token

from sluice.values.sql_types import MOST_DIGITS

_NUMBERS = (
    "byte",
    "tinyint",
    "short",
    "smallint",
    "int",
    "integer",
    "long",
    "bigint",
    "double",
    "float",
    "real",
)
_TIMES = ("date", "timestamp", "timestamp_ltz", "timestamp_ntz")
_SIMPLE = (*_NUMBERS, *_TIMES, "binary", "boolean", "string", "variant", "void")
_DECIMALS = ("dec", "decimal", "numeric")
_WITH_LENGTH = ("char", "character", "varchar")
_UNITS: Mapping[str, Sequence[str]] = {
    "year": ("month",), "month": (), "day": ("hour", "minute", "second"),
    "hour": ("minute", "second"), "minute": ("second",), "second": (),
}  # fmt: skip
"""The units in interval types: unit → the units that may follow after TO."""
_MOST_DECIMALS_OF_SECONDS = 6


def is_type(tokens: Sequence[Token], place: int) -> bool:
    """Return whether a Spark SQL type begins at a token, with no bracket or COLLATE after it.

    sqlglot would read `::INT[0]` as a conversion to a list, and the name after COLLATE as a field.
    """
    reader = _Reader(tokens, place)
    return reader.reads_type() and not reader.skips("[", "(", "unsigned", "collate")


class _Reader:
    """Reads tokens one after the other. A method that returns False may have read some tokens."""

    def __init__(self, tokens: Sequence[Token], place: int) -> None:
        self._tokens = tokens
        self._place = place

    def skips(self, *texts: str) -> bool:
        """Skip the next token if it is one of these words and signs."""
        found = self._next() in texts
        self._place += found
        return found

    def reads_type(self) -> bool:
        if self.skips("array"):
            return self.skips("<") and self.reads_type() and self.skips(">")
        if self.skips("map"):
            return (
                self.skips("<")
                and self.reads_type()
                and self.skips(",")
                and self.reads_type()
                and self.skips(">")
            )
        if self.skips("struct"):
            return self.skips("<") and self._reads_fields() and self.skips(">")
        if self.skips("interval"):
            return self._reads_units()
        return self._reads_single()

    def _reads_single(self) -> bool:
        if self.skips(*_WITH_LENGTH):
            return len(self._numbers()) == 1
        if self.skips(*_DECIMALS):
            digits = self._numbers() or [MOST_DIGITS]
            return (
                self._next() != "(" and len(digits) <= 2 and max(digits) == digits[0] <= MOST_DIGITS
            )
        if self.skips("time"):
            return (
                self._next() != "(" or max(self._numbers(), default=99) <= _MOST_DECIMALS_OF_SECONDS
            )
        return self.skips(*_SIMPLE)

    def _reads_units(self) -> bool:
        first = self._next()
        if not self.skips(*_UNITS):
            # Any other word, such as WEEK, is not a unit of these types.
            return not first.isidentifier()
        return not self.skips("to") or self.skips(*_UNITS[first])

    def _reads_fields(self) -> bool:
        is_read = self._reads_field()
        while is_read and self.skips(","):
            is_read = self._reads_field()
        return is_read

    def _reads_field(self) -> bool:
        is_read = self._reads_name()
        self.skips(":")
        is_read = is_read and self.reads_type()
        if self.skips("not"):
            is_read = is_read and self.skips("null")
        return is_read and (not self.skips("comment") or self._reads_name())

    def _reads_name(self) -> bool:
        is_read = self._next() not in ("", "<", ">", "(", ")", ",", ":")
        self._place += is_read
        return is_read

    def _numbers(self) -> list[int]:
        """Return the numbers of `(10, 2)`.

        If the next tokens are not such numbers, read nothing and return an empty list.
        """
        before, numbers = self._place, list[int]()
        sign = "("
        while self.skips(sign):
            if not self._next().isdecimal():
                break
            numbers.append(int(self._next()))
            self._place += 1
            sign = ","
        if not numbers or not self.skips(")"):
            self._place = before
            return []
        return numbers

    def _next(self) -> str:
        if self._place < len(self._tokens):
            return self._tokens[self._place].text.lower()
        return ""
