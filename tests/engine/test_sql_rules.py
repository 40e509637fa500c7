"""Each rule for SQL on Arrow gives Spark's results and errors, for extreme values and for random ones."""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain, product
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from sluice.engine.steps import key_sql
from sluice.engine.steps.arrow_steps import ArrowSteps, is_same
from sluice.engine.steps.fallible_expressions import share_subexpressions, with_columns
from sluice.errors import TopologyError
from sluice.plan import FallibleExpression
from sluice.sql.arrow_types import arrow_type
from sluice.sql.expression_checks import require_valid
from sluice.sql.fallible import failure_causes
from sluice.sql.json_paths import is_json_path, is_variant_path
from sluice.sql.parsed_expression import parse
from sluice.sql.rules import key_problem
from sluice.sql.typed_expression import type_expression
from sluice.sql.types import holds_void
from sluice.values.sql_text import struct_json, value_json
from tests.unit.sql.spark_arguments import ACCEPTED
from tests.unit.sql.spark_arguments import COLUMNS as COLUMNS_OF_SPARK
from tests.unit.sql.test_field_names import CONSTANTS, KEYWORDS, OPERANDS, read_fields
from tests.unit.sql.test_json_paths import (
    READ,
    READ_IN_VARIANTS,
    REFUSED,
    REFUSED_IN_VARIANTS,
)

COLUMNS = {
    "text": "STRING", "other": "STRING", "number": "STRING", "day_text": "STRING", "whole": "BIGINT", "more": "BIGINT",
    "small": "INT", "tiny": "INT", "amount": "DECIMAL(12,2)", "rate": "DECIMAL(9,4)", "fine": "DECIMAL(20,10)",
    "huge": "DECIMAL(38,2)",
    "share": "DOUBLE", "part": "DOUBLE", "flag": "BOOLEAN", "at": "TIMESTAMP", "day": "DATE", "later": "DATE",
    "place": "STRUCT<city: STRING, zip: BIGINT>", "tags": "ARRAY<STRING>", "counts": "ARRAY<INT>",
    "lines": "ARRAY<STRUCT<item: STRING, price: DECIMAL(12,2)>>", "map": "MAP<STRING, STRING>",
}  # fmt: skip
TEXTS = [
    "", " ", "a", "ab", "A,b", "b%", "_", "ä", "ß", "İ", "日本", "😀", "a😀b", 'say "x"', "it's", "back\\slash",
    "line\nbreak", "\x01", "\x7f", "  two  words ", "a,b,,c,", "x=1;y=2", "ΑΣ", "\u2028", "\r\n", "aXbXc",
    "ǆ", "abc-123", "\ua7dc\u019b\U00010d55\U00016ed3",
]  # fmt: skip
NUMBERS = [
    "0", "1", "-1", "+5", " 7 ", "007", "-0", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1.5", "-2.50", ".5",
    "5.", "1e3", "1E-7", "1e400", "-1e-400", "NaN", "Infinity", "-inf", "+Infinity", "nan", "1.0f", "2d", "0x10",
    "0x1p3",
    "1_000", "12a", "", " ", ".", "-", "+", "1 2", "\t3\n", "\x004\x1f", "\x7f5", "\uff11\uff12", "٣",
    "99999999999.995", "0.005",
    "-0.005", "123456789012345678901234567890.12", "0.1", "1.00000000000000000001", "true", "T", "yes", " No ",
    "off", "f",
    "00000000000000000000000012", "-00000000000000000000000012", "1e5000", "0e99999999999", "1L", "--1", "1,5",
]  # fmt: skip
DAYS = [
    "2024-02-29", "2023-02-29", "1969-12-31", "0001-01-01", "9999-12-31", "2024", "2024-2", "2024-2-3",
    "2024-02-03T10:11",
    "2024-02-03 x", " 2024-02-03 ", "20240203", "12345-01-01", "-0044-03-15", "+2024-01-01", "0000-01-01", "2024-13-01",
    "2024-00-01", "2024-01-32", "2024-01-01x", "1582-10-10", "", "today", "epoch", "1000000-01-01", "2024/01/02",
    "2024-1-1 ",
]  # fmt: skip
WHOLE = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    10,
    -10,
    100,
    2**31 - 1,
    2**31,
    -(2**31),
    -(2**31) - 1,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
]
SHARES = [
    0.0, -0.0, 1.0, -1.0, 0.5, 1.5, -1.5, 2.5, 0.1, 1e-300, -1e300, 1e308, 1e10, 2.0**53, 2.0**63, -(2.0**63), 1e19,
    0.005, 2147483647.5, -2147483648.5, 123456.789, 5e-324,
]  # fmt: skip
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TIMES = [
    EPOCH, EPOCH - timedelta(microseconds=1), datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 23, 59, 59,
    999999, UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999999, UTC), datetime(2024, 3, 31, 1, 30, tzinfo=UTC),
    datetime(1969, 7, 20, 20, 17, 40, 120000, UTC), datetime(2000, 1, 1, 12, tzinfo=UTC), datetime(2021, 1, 3, 5, 6,
    7, 890, UTC),
]  # fmt: skip
DATES = [date(1970, 1, 1), date(1969, 12, 31), date(1, 1, 1), date(9999, 12, 31), date(2024, 2, 29), date(2023, 12, 31),
         date(2021, 1, 3), date(2000, 3, 1)]  # fmt: skip


def decimals(precision: int, scale: int) -> list[Decimal]:
    most = 10**precision - 1
    plain = [0, 1, -1, 5, -5, 10, 50, 100, 150, -250, 12345, most, -most, most // 2, -(most // 3)]
    return [Decimal(number).scaleb(-scale) for number in plain if abs(number) <= most]


VALUES: dict[str, list[Any]] = {
    "text": TEXTS, "other": TEXTS, "number": NUMBERS, "day_text": DAYS, "whole": WHOLE, "more": WHOLE,
    "small": [each for each in WHOLE if -(2**31) <= each < 2**31], "tiny": [-3, -2, -1, 0, 1, 2, 3, 4, 30],
    "amount": decimals(12, 2), "rate": decimals(9, 4), "fine": decimals(20, 10), "huge": decimals(37, 2),
    "share": SHARES, "part": SHARES,
    "flag": [True, False], "at": TIMES, "day": DATES, "later": DATES,
    "place": [{"city": "x", "zip": 1}, {"city": None, "zip": None}, {"city": "ä\"", "zip": -5}],
    "tags": [[], ["a"], ["a", None, "b"], [None], ["x", "y", "z", "a"]],
    "counts": [[], [1], [1, None, 2], [None], [3, 2, 1, 0]],
    "lines": [[], [None], [{"item": "p", "price": Decimal("1.50")}, {"item": None, "price": None}]],
    "map": [{}, {"a": "1"}, {"a": None, "b": "2", "": "3"}],
}  # fmt: skip


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Rows in which each value of each column stands at least once, with other values in a random order."""
    chance = random.Random(seed)
    columns = {}
    for name, values in VALUES.items():
        many = [*values, None] * (count // (len(values) + 1) + 1)
        chance.shuffle(many)
        rest = [each for each in values if each not in many[:count]]
        columns[name] = [*many[: count - len(rest)], *rest]
    return [dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)]


SIGNS = ("+", "-", "*", "/", "%", "DIV")
PAIRS = [
    ("whole", "more"), ("small", "tiny"), ("whole", "tiny"), ("share", "part"), ("share", "tiny"), ("amount", "rate"),
    ("amount", "whole"), ("tiny", "rate"), ("amount", "share"), ("huge", "amount"), ("amount", "3"), ("2", "small"),
    ("share", "1.5"), ("whole", "10"), ("share", "2"),
]  # fmt: skip
CASTS = {
    "number": (
        "INT",
        "BIGINT",
        "DOUBLE",
        "DECIMAL(12,2)",
        "DECIMAL(38,10)",
        "DECIMAL(5,0)",
        "BOOLEAN",
        "STRING",
    ),
    "day_text": ("DATE",),
    "whole": (
        "INT",
        "BIGINT",
        "DOUBLE",
        "DECIMAL(20,0)",
        "DECIMAL(12,2)",
        "BOOLEAN",
        "STRING",
        "TIMESTAMP",
    ),
    "small": (
        "INT",
        "BIGINT",
        "DOUBLE",
        "DECIMAL(5,1)",
        "DECIMAL(12,2)",
        "BOOLEAN",
        "STRING",
        "TIMESTAMP",
    ),
    "amount": (
        "INT",
        "BIGINT",
        "DOUBLE",
        "DECIMAL(12,1)",
        "DECIMAL(14,4)",
        "DECIMAL(5,2)",
        "STRING",
    ),
    "rate": ("INT", "DOUBLE", "DECIMAL(9,2)", "DECIMAL(4,3)", "STRING"),
    "huge": ("INT", "BIGINT", "DOUBLE", "DECIMAL(38,0)", "DECIMAL(38,4)"),
    "share": ("INT", "BIGINT", "DOUBLE"),
    "flag": ("INT", "BIGINT", "STRING"),
    "at": ("DATE", "BIGINT", "STRING"),
    "day": ("TIMESTAMP", "STRING"),
}


def expressions() -> Iterator[str]:
    for (left, right), sign in product(PAIRS, SIGNS):
        yield f"{left} {sign} {right}"
    for (left, right), sign in product(PAIRS, ("=", "<", "<=", "<=>")):
        yield f"{left} {sign} {right}"
    for name, kinds in CASTS.items():
        for kind, tried in product(kinds, ("", "TRY_")):
            yield f"{tried}CAST({name} AS {kind})"
    for (left, right), name in product(
        PAIRS, ("try_add", "try_subtract", "try_multiply", "try_divide")
    ):
        yield f"{name}({left}, {right})"
    for name in ("whole", "small", "amount", "huge", "share", "rate"):
        yield from (
            f"-{name}",
            f"abs({name})",
            f"floor({name})",
            f"ceil({name})",
            f"CAST(floor({name}) AS STRING)",
        )
        yield from (
            f"greatest({name}, {name}, NULL)",
            f"least({name}, 1, {name})",
            f"coalesce({name}, 0)",
        )
    yield from (
        "round(amount, 1)",
        "round(amount)",
        "round(rate, 3)",
        "round(rate, 9)",
        "round(rate, 0)",
    )
    yield from ("-2147483648", "-9223372036854775808", "1e3", "0.050", "12345678901234567890")
    yield from CONDITIONS
    yield from (text.format(name) for text in TEXT_FUNCTIONS for name in ("text", "number"))
    yield from (f"{name}({of})" for name in PARTS_OF_TIMES for of in ("at", "day"))
    yield from (
        f"date_trunc('{unit}', at)"
        for unit in ("YEAR", "quarter", "month", "WEEK", "day", "hour", "minute")
    )
    yield from (*TIME_FUNCTIONS, *LIST_FUNCTIONS, *OBJECTS, *OPERATORS, *COLUMNS)
    yield from (struct_json(f"named_struct('v', {name})") for name in COLUMNS)
    yield from (value_json(name) for name in COLUMNS)


TEXT_FUNCTIONS = [
    "upper({})", "lower({})", "trim({})", "ltrim({})", "rtrim({})", "trim(BOTH 'a ' FROM {})", "length({})",
    "trim(TRAILING '0' FROM {})", "substring({}, 2)", "substring({}, 0, 2)", "substring({}, -2)",
    "substring({}, -3, 2)",
    "substring({}, 2, 0)", "substring({}, 1, -1)", "substring({}, tiny, 2)", "substring({}, tiny)", "left({}, 2)",
    "right({}, 2)", "left({}, tiny)", "right({}, tiny)", "lpad({}, 4, 'xy')", "rpad({}, 4, 'xy')", "lpad({}, 3)",
    "reverse({})", "repeat({}, 2)", "repeat({}, 0)", "concat_ws('-', {}, other, text)", "replace({}, 'a', 'é')",
    "replace({}, 'b')", "{} RLIKE '^[a-z]+$'", "{} RLIKE '[0-9]{{2}}'", "{} RLIKE 'b'", "{} RLIKE '\\\\d+\\\\.'",
    "{} RLIKE '[^a-c]$'", "split({}, ',')", "split({}, ' +')", "split({}, '\\\\|')", "instr({}, 'b')",
    "instr({}, other)", "startswith({}, 'a')", "endswith({}, other)", "contains({}, other)", "contains({}, '')",
    "md5({})", "sha2({}, 256)", "sha2({}, 512)", "sha1({})", "hex(length({}))", "CAST({} AS STRING)", "{} LIKE '%b_'",
    "unhex(hex(length({})))", "unhex({})",
]  # fmt: skip
PARTS_OF_TIMES = (
    "year", "quarter", "month", "weekofyear", "day", "dayofmonth", "dayofyear", "dayofweek", "weekday", "hour",
    "minute",
    "second", "to_date",
)  # fmt: skip
TIME_FUNCTIONS = [
    "date_format(at, 'yyyy-MM-dd HH:mm:ss')", "date_format(day, 'dd.MM.yyyy')", "date_format(at, 'yyyy/MM')",
    "date_format(timestamp_millis(whole), \"yyyy-MM-dd'T'HH\")", "at >= '2000-01-01'", "at < '2024-02-29 23:59:59'",
    "day BETWEEN '1970-01-01' AND '2024-02-29'", "at = TIMESTAMP '2000-01-01 12:00:00'", "day IN ('2024-02-29')",
    "CAST('2024-02-29T10:11:12.123456' AS TIMESTAMP)",
    "to_date(day_text)", "date_add(day, 3)", "date_sub(day, 3)", "date_add(day, -400)", "datediff(day, later)",
    "datediff(at, day)", "unix_millis(at)", "unix_micros(at)", "unix_seconds(at)", "timestamp_millis(whole)",
    "timestamp_micros(whole)", "timestamp_seconds(whole)", "timestamp_seconds(small)", "timestamp_millis(small)",
    "CAST(timestamp_millis(small) AS STRING)", "CAST(to_date(day_text) AS STRING)",
    "CAST(timestamp_micros(whole) AS STRING)",
    "at > day", "day < DATE '2000-01-01'", "date_trunc('SECOND', at)", "date_trunc('MILLISECOND', at)",
    "date_trunc('HOUR', timestamp_millis(whole))",
]  # fmt: skip
LIST_FUNCTIONS = [
    "concat_ws('-', nullif(text, text), nullif(other, other))", "concat_ws(text, other)",
    "array_join(array(nullif(text, text)), '-')",
    "size(tags)", "size(map)", "array_size(counts)", "tags[0]", "tags[tiny]", "counts[1]", "element_at(tags, 1)",
    "element_at(tags, -1)", "element_at(tags, tiny)", "try_element_at(tags, tiny)", "try_element_at(counts, 2)",
    "map['a']",
    "element_at(map, 'b')", "map[text]", "array_contains(tags, 'a')", "array_contains(tags, text)",
    "array_contains(counts, 2)", "array_join(tags, ',')", "map_keys(map)", "map_values(map)", "lines[0].item",
    "array_compact(tags)", "array_compact(array(tiny, small))", "array(text, other)",
    "named_struct('a', text, 'b', tags).b", "tiny & 3", "small | tiny", "whole ^ tiny", "small >> 1", "whole >> 40",
    "small << 3", "whole & 8191", "pmod(whole, more)", "pmod(small, tiny)", "pmod(small, 7)", "sqrt(abs(share))",
    "sqrt(small)",
]  # fmt: skip

OBJECTS = [
    "struct(lines[0].price, map['a'], place.city, whole)", "struct((whole), small AS s, place)", "(whole, place.zip)",
    "named_struct('a', lines[0].item, 'b', map['b'])", "array(struct(place.city, whole))",
    "IF(flag, place, struct(text AS city, whole AS zip))", "coalesce(lines[0], lines[1])", "coalesce(lines, lines)",
    "CASE WHEN flag THEN lines END", "struct(upper(text), whole + 1)", "nullif(place, place)",
]  # fmt: skip
"""Objects whose fields Spark names, and lists of objects. Most keep the names that they have."""
OPERATORS = [
    "small | tiny & 3", "small & tiny | 3", "small ^ tiny & 1", "small ^ tiny | 1", "small | tiny ^ 5",
    "tiny & 3 << 1", "flag = flag < flag", "flag < flag = flag", "tiny = 1 IS NULL", "tiny = small IN (TRUE)",
    "text = 'a' = flag", "tiny > 1 <=> flag", "NOT tiny = 1 AND flag", "NOT flag OR flag", "NOT tiny IN (1) OR flag",
    "tiny BETWEEN 0 AND 2 AND flag", "flag BETWEEN FALSE AND tiny = 1", "-tiny * 2 - -tiny", "tiny - 1 - 2",
    "10 % 4 DIV 2 + tiny", "text || 'a' = other", "tiny + 1 << 2", "tiny << 1 + 1", "-9223372036854775808L", "-1.5BD",
    "~tiny & 6", "text LIKE 'a' || '%'", "(whole IS NULL) = flag",
]  # fmt: skip
"""Operators without parentheses: Spark's order of them decides."""


CONDITIONS = [
    "IF(tiny = 0, 0, 10 / tiny)", "tiny != 0 AND 10 % tiny = 1", "tiny = 0 OR 10 DIV tiny > 2",
    "tiny != 0 OR 10 % tiny = 1",
    "CASE WHEN tiny > 0 THEN 10 DIV tiny WHEN flag THEN CAST(number AS INT) ELSE small + 1 END",
    "CASE tiny WHEN 1 THEN 'one' WHEN 0 THEN CAST(10 DIV tiny AS STRING) END", "coalesce(CAST(number AS INT), tiny)",
    "coalesce(tiny, CAST(number AS INT))", "nullif(tiny, CAST(number AS INT))",
    "nvl2(tiny, small, CAST(number AS BIGINT))",
    "tiny IN (1, CAST(number AS INT), 3)", "tiny BETWEEN 0 AND CAST(number AS INT)", "tiny + CAST(number AS INT)",
    "CAST(number AS INT) + tiny", "CAST(number AS INT) / tiny", "tiny / CAST(number AS INT)", "1 / (small - small)",
    "concat(text, CAST(CAST(number AS INT) AS STRING), other)", "text || CAST(CAST(number AS INT) AS STRING)",
    "concat(text, whole)", "whole || '-' || tiny", "concat(day, ' ', flag, at)", "amount || rate", "concat(huge, 'x')",
    "named_struct('a', CAST(number AS INT), 'b', tiny / 0).b", "array(tiny, small)",
    "CAST(number AS INT) <=> tiny", "CAST(number AS INT) IS NULL", "greatest(tiny, CAST(number AS INT))",
    "share / part > 1", "greatest(share / tiny, part)", "share * part = share * part", "flag IS TRUE",
    "flag IS NOT FALSE",
    "IF(flag, share, tiny)", "coalesce(amount, rate, 1)", "IF(flag, amount, 0)", "text > other",
    "at < TIMESTAMP '2024-01-01'",
    "CAST(number AS DOUBLE) * 2", "CAST(number AS DECIMAL(12,2)) + amount", "least(share, part)", "isnull(text)",
    "at BETWEEN TIMESTAMP '1970-01-01 00:00:00' AND current_timestamp()",
]  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "every"),
    [(1, 4), *(pytest.param(seed, 1, marks=pytest.mark.heavy) for seed in range(1, 8))],
)
def test_rules_give_the_results_and_the_errors_of_spark(
    spark: SparkSession, seed: int, every: int
) -> None:
    sqls = [
        sql for sql in dict.fromkeys(expressions()) if not type_expression(sql, COLUMNS).why_spark
    ][::every]
    assert not (wrong := wrong_results(spark, sqls, seed)), "\n".join(wrong[:40])


@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 150), *(pytest.param(seed, 1500, marks=pytest.mark.heavy) for seed in range(2, 8))],
)
def test_expressions_in_expressions_give_the_results_and_the_errors_of_spark(
    spark: SparkSession, seed: int, count: int
) -> None:
    sqls = list(dict.fromkeys(filter(is_computed_by_arrow, compositions(seed, count))))
    assert len(sqls) > count / 2
    assert not (wrong := wrong_results(spark, sqls, seed)), "\n".join(wrong[:40])


def compositions(seed: int, count: int) -> Iterator[str]:
    """Expressions in which other expressions of the same type stand in place of some columns."""
    chance = random.Random(seed)
    of_type = defaultdict[str, list[str]](list)
    for sql in dict.fromkeys(expressions()):
        if is_computed_by_arrow(sql) and "to_json" not in sql:
            of_type[type_expression(sql, COLUMNS).type].append(sql)
    outer = list(chain.from_iterable(of_type.values()))
    for _ in range(count):
        expression = parse(chance.choice(outer))
        inner = {name: chance.choice(of_type[COLUMNS[name]]) for name in sorted(expression.fields)}
        kept = chance.choice([0.0, 0.5])
        yield expression.on(
            {name: name if chance.random() < kept else f"({sql})" for name, sql in inner.items()}
        )


def is_computed_by_arrow(sql: str) -> bool:
    if "current" in sql or not parse(sql).fields:
        return False
    try:
        require_valid(sql, COLUMNS, "")
    except TopologyError:
        return False
    typed = type_expression(sql, COLUMNS)
    return not typed.why_spark and not holds_void(typed.type)


def wrong_results(spark: SparkSession, sqls: list[str], seed: int) -> list[str]:
    table = pa.Table.from_pylist(
        rows(120, seed), pa.schema([(name, arrow_type(of)) for name, of in COLUMNS.items()])
    )
    (batch,) = table.combine_chunks().to_batches()
    frame = spark.createDataFrame(
        table, ", ".join(f"{name} {of}" for name, of in COLUMNS.items())
    ).cache()
    share_subexpressions(spark, shared=False)
    key_sql.register(spark)
    wrong = []
    for start in range(0, len(sqls), 60):
        some = sqls[start : start + 60]
        attempts = [attempt(number, sql) for number, sql in enumerate(some)]
        found = ArrowSteps((tuple(attempts),), COLUMNS, {}, pa.schema([])).columns(batch)
        results = (f"{each.result(0)} AS {each.name}" for each in attempts)
        others = [
            name for each in attempts for name in (each.error, each.key_text) if name in found
        ]
        expected = with_columns(frame, (), attempts).selectExpr(*results, *others).toArrow()
        for sql, each in zip(some, attempts, strict=True):
            of_arrow = {
                each.name: pc.struct_field(found[each.name], "c0"),
                each.error: found[each.error],
            }
            of_arrow |= {name: found[name] for name in (each.key_text,) if name in found}
            for name, values in of_arrow.items():
                wrong += list(differences(sql, table, values, expected.column(name)))
    return wrong


def attempt(number: int, sql: str) -> FallibleExpression:
    """An attempt of an expression; if it is a column, also as a key."""
    is_key = sql in COLUMNS and not key_problem(COLUMNS[sql])
    return FallibleExpression(
        f"t{number}",
        0,
        "true",
        (sql,),
        0 if is_key else None,
        () if "to_json" in sql else tuple(failure_causes(sql)),
    )


def differences(
    sql: str, table: pa.Table, found: pa.Array, expected: pa.ChunkedArray
) -> Iterator[str]:
    if not is_same(found.type, expected.type):
        yield f"{sql}: {found.type}, but for Spark {expected.type}"
    for row, (ours, theirs) in enumerate(
        zip(plain(found), [each for chunk in expected.chunks for each in plain(chunk)], strict=True)
    ):
        if repr(ours) != repr(theirs):
            read = {
                name: table.column(name)[row].as_py()
                for name in type_expression(sql, COLUMNS).columns
            }
            yield f"{sql} of {read}: {ours!r}, but for Spark {theirs!r}"
            return


def plain(values: pa.Array) -> list[Any]:
    """The values, with times as numbers, as Python has only the years from 1 to 9999."""
    if pa.types.is_struct(values.type):
        fields = map(plain, values.flatten())
        return [
            each if valid else None
            for each, valid in zip(
                zip(*fields, strict=True), values.is_valid().to_pylist(), strict=True
            )
        ]
    if pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    made: list[Any] = (
        values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
    ).to_pylist()
    return made


@pytest.mark.heavy
@pytest.mark.parametrize("columns", ACCEPTED)
def test_spark_accepts_the_arguments_that_the_unit_tests_name(
    spark: SparkSession, columns: str
) -> None:
    """Variant of `tests/unit/sql/test_function_arguments.py`, which compares Sluice's checks with this list."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in COLUMNS_OF_SPARK.items())
    frame = spark.createDataFrame([], kinds)
    for expression in ACCEPTED[columns]:
        accepted = []
        for column in COLUMNS_OF_SPARK:
            with suppress(AnalysisException):
                frame.selectExpr(expression.replace("{}", column))
                accepted.append(column)
        assert accepted == columns.split(), expression


def test_spark_reads_the_same_words_as_fields(spark: SparkSession) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    for number, word in enumerate(sorted({*KEYWORDS} - CONSTANTS - {"not", "e"})):
        for operand in OPERANDS[number % 20 :: 20]:
            text = operand.format(k=word)
            if read_fields(text, {word, "x", "y"}) is None:
                continue
            fields = {*re.findall(r"'`?(\w+)`?(?![\w(`])", parser.parseExpression(text).toString())}
            assert fields - {"e", "a", "b"} - {*re.findall(r"'(\w+)'", text)} == parse(
                text
            ).fields - {"a", "b"}, text


@pytest.mark.parametrize("path", [*READ, *REFUSED])
def test_spark_reads_the_same_paths_in_json(spark: SparkSession, path: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    expressions = jvm.org.apache.spark.sql.catalyst.expressions.json
    parser = getattr(getattr(expressions, "JsonPathParser$"), "MODULE$")
    try:
        is_read = parser.parse(path).isDefined()
    except PySparkException:  # an index that is too large
        is_read = False
    assert is_read is is_json_path(path)


@pytest.mark.parametrize("path", [*READ_IN_VARIANTS, *REFUSED_IN_VARIANTS])
def test_spark_reads_the_same_paths_in_variants(spark: SparkSession, path: str) -> None:
    jvm = spark._jvm
    assert jvm is not None
    expressions = jvm.org.apache.spark.sql.catalyst.expressions.variant
    parser = getattr(getattr(expressions, "VariantPathParser$"), "MODULE$")
    try:
        is_read = parser.parse(path).isDefined()
    except PySparkException:  # an index that is too large
        is_read = False
    assert is_read is is_variant_path(path)
