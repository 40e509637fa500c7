"""Casts Arrow arrays to other types, with the same results and errors as Spark."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.sql.arrow_numbers import java_longs
from sluice.sql.arrow_types import arrow_type
from sluice.sql.arrow_values import (
    Result,
    Value,
    any_of,
    array_of,
    map_present,
    map_rows,
    mask_of,
    valid_rows,
)
from sluice.sql.types import PLAIN_SCALE, is_decimal, is_integer
from sluice.support.arrays import Mask
from sluice.values.sql_types import precision_and_scale

_RANGES = {"INT": (-(2**31), 2**31 - 1), "BIGINT": (-(2**63), 2**63 - 1)}
_BLANK = "".join(map(chr, (*range(0x21), 0x7F)))
"""The characters around a text that Spark removes before it reads a number, a date or a Boolean."""


def widen(value: Value, of: str, to: str) -> Value:
    """Convert a value of the type `of` to a wider type, which contains every value of `of`."""
    if of == to or not isinstance(value, pa.Scalar):
        return _widened_array(value, of, to)
    return _widened_array(pa.repeat(value, 1), of, to)[0]


def _widened_array(values: Value, of: str, to: str) -> Value:
    wanted = arrow_type(to)
    if of == to or values.type == wanted:
        return values
    if to == "STRING":
        return _texts(values, of)
    # Cast through text: this gives the nearest double, which a direct cast may miss.
    if is_decimal(of) and to == "DOUBLE":
        return values.cast(pa.string()).cast(wanted)
    if is_integer(of) and is_decimal(to):
        return _decimals(values, wanted)
    return values.cast(wanted, safe=False)


def _decimals(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Convert whole numbers to decimals."""
    # Arrow casts a whole number only to a decimal of at least 19 digits, so cast it to a wide
    # decimal first.
    return (
        values.cast(pa.decimal128(38 - wanted.scale, 0))
        .cast(pa.decimal128(38, wanted.scale))
        .cast(wanted)
    )


def cast(value: Value, of: str, to: str, count: int) -> Result:
    """Return the CAST of a value from one type to another."""
    if of == to:
        return Result(value)
    values = array_of(value, count)
    if to == "STRING":
        return Result(_texts(values, of))
    if of == "STRING":
        kind = "DECIMAL" if is_decimal(to) else to
        return _FROM_TEXT[kind](values, to)
    if is_decimal(to):
        return _to_decimal(values, of, to)
    if is_integer(to):
        return _to_integer(values, of, to)
    match of, to:
        case _, "BOOLEAN":
            return Result(pc.not_equal(values, 0))
        case "TIMESTAMP", "DATE":
            return Result(values.cast(pa.timestamp("us")).cast(pa.date32(), safe=False))
        case "DATE", "TIMESTAMP":
            return Result(values.cast(arrow_type(to)))
        case _, "TIMESTAMP":
            return Result(_times_from_seconds(values.cast(pa.int64())))
    return Result(_widened_array(values, of, to))


def _times_from_seconds(seconds: pa.Array) -> pa.Array:
    """Convert seconds since 1970 to times.

    As in Spark, seconds beyond the possible times give the first or last possible time.
    """
    most = (2**63 - 1) // 10**6
    is_late, is_early = pc.greater(seconds, most), pc.less(seconds, -most)
    # Limit the seconds first, because the product of larger numbers would overflow.
    not_late = pc.min_element_wise(seconds, most, skip_nulls=False)
    limited = pc.max_element_wise(not_late, -most, skip_nulls=False)
    micros = pc.multiply(limited, 10**6)
    extremes = pc.case_when(pc.make_struct(is_late, is_early), 2**63 - 1, -(2**63), micros)
    return extremes.cast(arrow_type("TIMESTAMP"))


# -- To text


def _texts(values: pa.Array, of: str) -> pa.Array:
    match of:
        case "TIMESTAMP":
            return time_text(values)
        case "DATE":
            return date_text(values)
    # Arrow would write small numbers with an exponent, so Python writes the numbers.
    if is_decimal(of) and precision_and_scale(of)[1] > PLAIN_SCALE:
        return map_present("{:f}".format, values)
    return values.cast(pa.string())


def date_text(values: pa.Array) -> pa.Array:
    """Write dates as text."""
    return _with_far_years(values, values.cast(pa.string()))


def time_text(values: pa.Array) -> pa.Array:
    """Write times as text, with a fraction of a second only if it is not 0."""
    text = values.cast(pa.timestamp("us")).cast(pa.string())
    short = pc.utf8_rtrim(pc.replace_substring_regex(text, r"(\.[0-9]*?)0+$", r"\1"), ".")
    return _with_far_years(values, short)


def _with_far_years(values: pa.Array, text: pa.Array) -> pa.Array:
    """Return the text of dates or times.

    Years before 1 and after 9999 get a sign, as in Java. Arrow does not write this sign.
    """
    if _has_usual_years(values):
        return text
    if pa.types.is_date(values.type):
        return map_present(_far_date, values.cast(pa.int32()))
    return map_present(_far_time, values.cast(pa.int64()))


def _has_usual_years(values: pa.Array) -> bool:
    """Return whether all times are in the years from 1 to 9999."""
    years = pc.fill_null(pc.year(values), 1)
    return (
        pc.all(pc.and_(pc.greater(years, 0), pc.less_equal(years, _LAST_YEAR))).as_py() is not False
    )


def _far_date(day: int) -> str:
    year, month, of_month = str(np.datetime64(day, "D")).rsplit("-", 2)
    number = int(year)
    sign = ""
    if number > _LAST_YEAR:
        sign = "+"
    if number < 0:
        sign = "-"
    return f"{sign}{abs(number):04}-{month}-{of_month}"


_LAST_YEAR = 9999


def format_times(values: pa.Array, pattern: str) -> pa.Array:
    """Write times as text in a format with Java's letters, such as yyyy-MM-dd."""
    seconds = pc.floor_temporal(values.cast(pa.timestamp("us")), unit="second").cast(
        pa.timestamp("s")
    )
    if _has_usual_years(values):
        return pc.strftime(seconds, _filled(pattern, _STRFTIME))
    # Java writes a sign before years after 9999, but `strftime` does not. So format these times one
    # by one.
    return map_present(partial(_far_format, pattern=pattern), seconds.cast(pa.int64()))


def _filled(pattern: str, parts: Mapping[str, str]) -> str:
    """Fill in a format: replace its letters by `parts`, and remove the quotes around other text."""
    filled = ""
    for part in _PARTS.findall(pattern):
        filled += parts.get(part, part.strip("'"))
    return filled


_STRFTIME = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_PARTS = re.compile(r"yyyy|MM|dd|HH|mm|ss|'[A-Za-z]+'|.", re.DOTALL)


def _far_format(second: int, pattern: str) -> str:
    day, of_day = divmod(second, 86_400)
    year, month, of_month = str(np.datetime64(day, "D")).rsplit("-", 2)
    if int(year) > 0:
        of_era = int(year)
    else:
        of_era = 1 - int(year)
    sign = ""
    if of_era > _LAST_YEAR:
        sign = "+"
    parts = {
        "yyyy": f"{sign}{of_era:04}", "MM": month, "dd": of_month,
        "HH": f"{of_day // 3600:02}", "mm": f"{of_day // 60 % 60:02}", "ss": f"{of_day % 60:02}",
    }  # fmt: skip
    return _filled(pattern, parts)


def _far_time(micros: int) -> str:
    day, of_day = divmod(micros, 86_400_000_000)
    seconds, rest = divmod(of_day, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    fraction = ""
    if rest:
        fraction = f".{rest:06}".rstrip("0")
    return f"{_far_date(day)} {clock}{fraction}"


# -- To numbers


def _to_integer(values: pa.Array, of: str, to: str) -> Result:
    wanted = arrow_type(to)
    if is_decimal(of):
        whole = pc.trunc(values)
        try:
            return Result(whole.cast(pa.decimal128(38, 0), safe=False).cast(wanted))
        # Arrow's error does not name the rows whose numbers are too large, so check each row.
        except pa.ArrowInvalid:
            return map_rows(
                lambda number: _in_range(int(number), to), [values], wanted, len(values)
            )
    if of == "DOUBLE":
        least, most = _RANGES[to]
        numbers = pc.fill_null(values, 0.0).to_numpy(zero_copy_only=False)
        fits = (np.floor(numbers) <= most) & (np.ceil(numbers) >= least)
        whole = java_longs(pc.if_else(pa.array(fits), values, 0.0))
        return _number_result(whole.cast(wanted), values, ~fits)
    if of == "TIMESTAMP":
        micros = values.cast(pa.int64())
        return Result(pa.array(np.floor_divide(_numbers(micros), 10**6), mask=_nulls(values)))
    try:
        return Result(values.cast(wanted))
    except pa.ArrowInvalid:
        least, most = _RANGES[to]
        numbers = _numbers(values)
        fits = (numbers >= least) & (numbers <= most)
        return _number_result(pa.array(np.where(fits, numbers, 0), wanted), values, ~fits)


def _to_decimal(values: pa.Array, of: str, to: str) -> Result:
    wanted, (precision, scale) = arrow_type(to), precision_and_scale(to)
    if is_decimal(of):
        of_precision, of_scale = precision_and_scale(of)
        wide = values.cast(pa.decimal128(38, of_scale))
        if scale < of_scale:
            if of_precision < 38:
                wide = pc.round(wide, scale, "half_towards_infinity")
            else:
                wide = None
    else:
        wide = values.cast(pa.decimal128(19, 0))
    try:
        if wide is not None:
            return Result(wide.cast(wanted))
    except pa.ArrowInvalid:
        pass
    # Compute with Python's decimals: they have room for more digits, and show which rows do not
    # fit.
    return map_rows(
        lambda number: _decimal_in(Decimal(number), precision, scale), [values], wanted, len(values)
    )


def decimal_quotient(left: Decimal, right: Decimal, precision: int, scale: int) -> Decimal:
    """Return the quotient of two decimals. Raises ArithmeticError if it has too many digits."""
    # Spark rounds a quotient twice: to 39 decimal places, and then to the scale of the type.
    quotient = _EXACT.quantize(_DIVISION.divide(left, right), Decimal(1).scaleb(-39))
    return _decimal_in(quotient, precision, scale)


_EXACT = Context(prec=2000, rounding=ROUND_HALF_UP)
_DIVISION = Context(prec=130)
"""Has enough digits for the first 39 decimal places of any quotient. The division therefore rounds
none of these places."""


def _decimal_in(number: Decimal, precision: int, scale: int) -> Decimal:
    """Return the number as a decimal of a type.

    Raises ArithmeticError if it has too many digits.
    """
    if number.adjusted() > precision and number:
        raise InvalidOperation
    rounded = _EXACT.quantize(number, Decimal(1).scaleb(-scale))
    if rounded and rounded.adjusted() >= precision - scale:
        raise InvalidOperation
    return rounded


def _in_range(number: int, kind: str) -> int:
    least, most = _RANGES[kind]
    if not least <= number <= most:
        raise OverflowError
    return number


def _numbers(values: pa.Array) -> Any:
    return pc.fill_null(values, 0).to_numpy(zero_copy_only=False)


def _nulls(values: pa.Array) -> Mask:
    return ~valid_rows(values, len(values))


def _number_result(numbers: pa.Array, values: pa.Array, fails: Mask) -> Result:
    """Return the numbers computed from values; null for null and for failed computations."""
    is_null = _nulls(values)
    failed = fails & ~is_null
    results = pc.if_else(pa.array(failed | is_null), pa.scalar(None, numbers.type), numbers)
    return Result.with_failures(results, failed)


def times_from_numbers(values: pa.Array, micros: int) -> Result:
    """Convert numbers of time units since 1970 to times. A unit has `micros` microseconds."""
    kind = arrow_type("TIMESTAMP")
    numbers = _numbers(values.cast(pa.int64()))
    most = (2**63 - 1) // micros
    # A long has one more negative number than positive numbers.
    least = -most - 1 if micros == 1 else -most
    fits = (numbers <= most) & (numbers >= least)
    times = np.where(fits, numbers, 0) * micros
    return _number_result(pa.array(times, pa.int64()).cast(kind), values, ~fits)


# -- From text

_WHOLE = r"^[+-]?[0-9]+$"
_DOUBLE = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


def _to_whole(values: pa.Array, to: str) -> Result:
    texts = pc.utf8_trim(values, _BLANK)
    is_number = pc.match_substring_regex(texts, _WHOLE)
    numbers = pc.if_else(is_number, pc.utf8_ltrim(texts, "+"), pa.scalar(None, pa.string()))
    try:
        integers = numbers.cast(arrow_type(to))
    # Arrow's error does not name the rows whose numbers are too large, so check each row.
    except pa.ArrowInvalid:
        return map_rows(
            lambda text: _in_range(_whole(text), to), [texts], arrow_type(to), len(values)
        )
    return Result(integers, _failures(values, is_number))


def _whole(text: str) -> int:
    if not re.fullmatch(_WHOLE, text, re.ASCII):
        raise ValueError
    return int(text)


def _to_double(values: pa.Array, to: str) -> Result:
    if pc.all(pc.match_substring_regex(values, _DOUBLE)).as_py() in (True, None):
        return Result(pc.utf8_ltrim(values, "+").cast(pa.float64()))
    return map_rows(_java_double, [values], pa.float64(), len(values))


_JAVA_DOUBLE = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_JAVA_HEX = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_SPECIAL = {"nan": "nan", "inf": "inf", "infinity": "inf"}


def _java_double(text: str) -> float:
    """Return the double that Spark reads from a text.

    Raises ValueError if the text is not a number.
    """
    short = text.strip("".join(map(chr, range(0x21))))
    # Java allows a type letter at the end, as in 1.5f.
    if _JAVA_DOUBLE.fullmatch(short):
        return float(short.rstrip("fFdD"))
    # Java also reads hexadecimal numbers, such as 0x1p3.
    if _JAVA_HEX.fullmatch(short):
        mantissa, _, exponent = short.lower().partition("p")
        try:
            return float.fromhex(f"{mantissa}p{exponent.rstrip('fd')}")
        except OverflowError:
            return -math.inf if short.startswith("-") else math.inf
    sign, name = "", short
    if short[:1] in ("+", "-"):
        sign, name = short[:1], short[1:]
    if name.lower() not in _SPECIAL or (sign and name.lower() == "nan" and name != "NaN"):
        raise ValueError
    return float(sign + _SPECIAL[name.lower()])


_DECIMAL = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?(\d+))?")


def _text_to_decimal(values: pa.Array, to: str) -> Result:
    precision, scale = precision_and_scale(to)

    def read(text: str) -> Decimal:
        short = text.strip("".join(map(chr, range(0x21))))
        match = _DECIMAL.fullmatch(short)
        if match is None or (match[1] and len(match[1]) > 9):
            raise ValueError
        number = Decimal(short)
        if number.adjusted() < -scale - 2:
            return Decimal(0)
        return _decimal_in(number, precision, scale)

    wanted, simple = arrow_type(to), rf"^-?[0-9]{{1,{precision - scale}}}(\.[0-9]{{1,{scale}}})?$"
    # The fast method below reads only numbers with digits on both sides of the point.
    if precision == scale or not scale:
        return map_rows(read, [values], wanted, len(values))
    # Arrow reads all simple numbers at once. Python reads the others one by one.
    is_simple = pc.fill_null(pc.match_substring_regex(values, simple), True)
    decimals = pc.if_else(is_simple, values, pa.scalar(None, pa.string())).cast(wanted)
    if pc.all(is_simple).as_py() is not False:
        return Result(decimals)
    others = ~np.asarray(is_simple.to_numpy(zero_copy_only=False), bool)
    slow = map_rows(read, [values.filter(pa.array(others))], wanted, int(others.sum()))
    failed = np.zeros(len(values), bool)
    failed[others] = slow.failed_of(int(others.sum()))
    decimals = pc.replace_with_mask(decimals, pa.array(others), slow.values)
    return Result.with_failures(decimals, failed)


_TRUE, _FALSE = pa.array(["t", "true", "y", "yes", "1"]), pa.array(["f", "false", "n", "no", "0"])


def _to_boolean(values: pa.Array, to: str) -> Result:
    texts = pc.ascii_lower(pc.utf8_trim(values, _BLANK))
    is_true = pc.is_in(texts, _TRUE)
    is_known = pc.or_(is_true, pc.is_in(texts, _FALSE))
    booleans = pc.if_else(is_known, is_true, pa.scalar(None, pa.bool_()))
    return Result(booleans, _failures(values, is_known))


_DATE = re.compile(
    r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?",
    re.ASCII | re.DOTALL,
)
_ISO_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def _to_date(values: pa.Array, to: str) -> Result:
    if pc.all(pc.match_substring_regex(values, _ISO_DATE)).as_py() in (True, None):
        try:
            return Result(values.cast(pa.date32()))
        # A text has the form of a date, but the date does not exist, such as February 30.
        except pa.ArrowInvalid:
            pass
    days = map_rows(_days, [values], pa.int32(), len(values))
    return Result(days.values.cast(pa.date32()), days.failed)


def _days(text: str) -> int:
    """Return the days from 1970-01-01 to the date in a text.

    Raises ValueError if the text is not a date.
    """
    match = _DATE.fullmatch(text.strip(_BLANK))
    if match is None:
        raise ValueError
    sign, year, month, day = match.groups()
    whole = int(f"{sign}{year}")
    # `date` supports only the years from 1 to 9999. So compute with a year from 400 to 799. The
    # calendar repeats every 400 years, and 400 years have 146,097 days.
    eras, of_era = divmod(whole, 400)
    return (
        date(of_era + 400, int(month or 1), int(day or 1)).toordinal()
        - _EPOCH
        + (eras - 1) * 146_097
    )


_EPOCH = date(1970, 1, 1).toordinal()


def _plain_times(values: pa.Array, to: str) -> Result:
    """Read times from texts such as 2026-11-21 08:00:00.

    `rules` permits this cast only for constants in this form.
    """
    return Result(values.cast(pa.timestamp("us")).cast(arrow_type(to)))


def _failures(values: pa.Array, passed: pa.Array) -> Mask | None:
    """Return the rows that have a text for which `passed` is not true."""
    return any_of(valid_rows(values, len(values)) & ~mask_of(passed, len(values)))


_FROM_TEXT: dict[str, Callable[[pa.Array, str], Result]] = {
    "INT": _to_whole, "BIGINT": _to_whole, "DOUBLE": _to_double, "DECIMAL": _text_to_decimal,
    "BOOLEAN": _to_boolean, "DATE": _to_date, "TIMESTAMP": _plain_times,
}  # fmt: skip
