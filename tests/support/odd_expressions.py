"""Texts that are SQL expressions, or nearly: made at random, and the same in each run."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

from msgspec import Struct

from sluice import Decimal2
from sluice.sql.function_names import FUNCTIONS


class Line(Struct):
    product: int
    price: Decimal2 | None = None


class Odd(Struct):
    """Fields of every kind, two of which have the names of keywords."""

    text: str
    whole: int
    share: float
    amount: Decimal2
    flag: bool
    at: datetime
    day: date
    data: bytes
    tags: list[str]
    lines: list[Line]
    sizes: dict[str, int]
    line: Line
    any: Any = None
    all: str = ""


FIELDS = [
    "text", "whole", "share", "amount", "flag", "at", "day", "data", "tags", "lines", "sizes", "line", "any", "all",
    "`any`", "line.product", "lines.price", "lines[0].price", "sizes['a']", "sizes.a", "_key", "_timestamp", "_headers",
    "_headers['a']", "_partition",
]  # fmt: skip
UNKNOWN_FIELDS = ["missing", "line.missing", "text.x", "lines[0].missing"]
LITERALS = [
    "0", "1", "-1", "1.5", "1e400", "1e5", "'a'", "''", "'it''s'", r"'\''", "NULL", "TRUE", "FALSE", "0x1F", "X'AB'",
    "1L", "1.5BD", "99999999999999999999999999999999999999999", "DATE'2026-01-01'", "TIMESTAMP'2026-01-01 00:00:00'",
    "INTERVAL 1 DAY", "INTERVAL '1-2' YEAR TO MONTH", "'$.a'", "'$..a'", "'now'", "'2026-02-30'", "'%Y'",
    "'yyyy-MM-dd'", "'a INT'", "'ARRAY<INT>'", "'['", "'(?<x>'", "'\U0001f600'", "'ä'", "current_date",
    "current_timestamp()", r"r'\d'",
]  # fmt: skip
TYPES = [
    "STRING", "INT", "BIGINT", "DECIMAL(10,2)", "DECIMAL(50,2)", "DOUBLE", "FLOAT", "BOOLEAN", "DATE", "TIMESTAMP",
    "TIMESTAMP_NTZ", "BINARY", "ARRAY<INT>", "MAP<STRING,INT>", "MAP<INT,INT>", "STRUCT<a: INT>", "VARIANT",
    "INTERVAL DAY", "VARCHAR(3)", "TEXT", "TINYINT", "VOID", "FOO", "ARRAY<>", "ARRAY<STRUCT<product: INT, b: STRING>>",
]  # fmt: skip
OPERATORS = [
    "+", "-", "*", "/", "%", "DIV", "||", "=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>", "AND", "OR", "&", "|",
    "^", "<<", ">>", "LIKE", "RLIKE", "ILIKE", "IS DISTINCT FROM", "->", "=>", "::", "?", "~~", "XOR", "**", ".", ":",
]  # fmt: skip
WORDS = [
    "NOT", "IN", "BETWEEN", "CASE", "WHEN", "THEN", "ELSE", "END", "AS", "DISTINCT", "ALL", "FROM", "SELECT",
    "INTERVAL", "IS", "NULL", "ESCAPE", "(", ")", "[", "]", ",", ";", "{", "}", "'", "`", '"', "--", "/*", "*", "@",
    "$", "?", "#", "\\", "\n", "\0", "\u200b",
]  # fmt: skip
OFTEN = [
    "struct", "named_struct", "transform", "filter", "aggregate", "array", "map", "coalesce", "if", "concat",
    "element_at", "from_json", "get_json_object", "sum", "count", "max", "collect_list", "max_by", "percentile", "top",
]  # fmt: skip
AGGREGATES = [
    "count",
    "sum",
    "max",
    "min",
    "avg",
    "collect_list",
    "first",
    "any_value",
    "stddev",
    "count_if",
]
_DEPTH = 3


class OddExpressions:
    """Makes texts from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self) -> str:
        """An expression over the fields of `Odd`, sometimes with a word too many or too few."""
        text = self.expression(FIELDS + UNKNOWN_FIELDS)
        if self._random.random() < 0.2:
            text = f"{self._random.choice(AGGREGATES)}({text})"
        for _ in range(self._random.choice([0, 0, 0, 0, 1, 2])):
            parts = text.split(" ")
            place = self._random.randrange(len(parts))
            match self._random.randrange(3):
                case 0:
                    parts.insert(place, self._random.choice(WORDS))
                case 1:
                    parts.pop(place)
                case _:
                    self._random.shuffle(parts)
            text = " ".join(parts)
        return text

    def expression(self, fields: list[str] = FIELDS, depth: int = 0) -> str:
        """An expression without such mistakes. Most do not fit the types of the fields."""
        if depth > _DEPTH or self._random.random() < 0.28:
            return self._random.choice(fields if self._random.random() < 0.7 else LITERALS)
        weights: dict[Callable[[list[str], int], str], int] = {
            self._call: 30, self._operation: 20, self._cast: 5, self._case: 4, self._others: 16,
        }  # fmt: skip
        (make,) = self._random.choices([*weights], [*weights.values()])
        return make(fields, depth + 1)

    def _operation(self, fields: list[str], depth: int) -> str:
        sign = self._random.choice(OPERATORS)
        return f"{self.expression(fields, depth)} {sign} {self.expression(fields, depth)}"

    def _cast(self, fields: list[str], depth: int) -> str:
        name, kind = self._random.choice(["CAST", "TRY_CAST"]), self._random.choice(TYPES)
        return f"{name}({self.expression(fields, depth)} AS {kind})"

    def _case(self, fields: list[str], depth: int) -> str:
        value, condition, then, other = (self.expression(fields, depth) for _ in range(4))
        value = self._random.choice(["", "", value])
        ending = self._random.choice(["", f"ELSE {other}"])
        return f"CASE {value} WHEN {condition} THEN {then} {ending} END"

    def _others(self, fields: list[str], depth: int) -> str:
        a, b, c = (self.expression(fields, depth) for _ in range(3))
        negated = self._random.choice(["", "NOT "])
        name = self._random.choice(["product", "price", "x", "a"])
        sign = self._random.choice(["NOT ", "-", "~", "+", "!"])
        constant = self._random.choice(["NULL", "NOT NULL", "TRUE", "NOT FALSE", "UNKNOWN"])
        forms = [
            f"{a} {negated}IN ({b}, {c})", f"{a} BETWEEN {b} AND {c}", f"{a}[{b}]", f"({a}).{name}",
            f"{sign}{a}", f"{a} IS {constant}", f"({a})",
        ]  # fmt: skip
        return self._random.choice(forms)

    def _call(self, fields: list[str], depth: int) -> str:
        name = self._random.choice(OFTEN if self._random.random() < 0.15 else _NAMES)
        arguments = [
            self._argument(fields, depth)
            for _ in range(self._random.choice([0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 5]))
        ]
        quantifier = self._random.choice([*[""] * 5, "DISTINCT ", "ALL "])
        clauses = [
            " FILTER (WHERE flag)",
            " IGNORE NULLS",
            " OVER ()",
            " WITHIN GROUP (ORDER BY whole)",
        ]
        return f"{name}({quantifier}{', '.join(arguments)}){self._random.choice([*[''] * 12, *clauses])}"

    def _argument(self, fields: list[str], depth: int) -> str:
        value = self.expression(fields, depth)
        name = self._random.choice(["a", "b", "all"])
        odd = [f"x -> {value}", "(x, y) -> x + y", f"{value} AS {name}", f"a => {value}", "*"]
        return self._random.choice(odd) if self._random.random() < 0.15 else value


_NAMES = sorted(FUNCTIONS)
