"""Statistics of one or two columns from exact sums of powers.

Only the result is rounded, and only once. The result therefore does not depend on the order of the
values, or on where a batch ends. The result is None for too few values, for equal values if the
formula would then divide by zero, and for a statistic that is too large for a double.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from typing import Any

import msgspec
from typing_extensions import override

from sluice.operators.aggregation.accumulator import Accumulator
from sluice.operators.exact_sums import Exact

_EXACT = Context(prec=100_000, traps=[Inexact])
"""Enough digits for any sum of fourth powers of decimals."""


class ArgumentPair(msgspec.Struct, frozen=True):
    """The arguments of a function of two columns. Subclasses declare their types."""

    x: Any
    y: Any


Sums = tuple[int, tuple[Any, ...]]
"""The number of values, and the sums of the products that the statistic needs, such as x, x² and
x·y."""


class Statistic(Accumulator):
    """A statistic.

    `products` computes a value's products; `result_of` computes the result from their sums.
    """

    def __init__(
        self,
        number: type[Decimal] | type[Exact],
        products: Callable[[Any], tuple[Any, ...] | None],
        count: int,
        result_of: Callable[[int, tuple[Fraction, ...]], float | None],
    ) -> None:
        super().__init__(tuple[int, tuple[(number,) * count]])  # type: ignore[misc]
        self._zero: Sums = 0, (number(),) * count
        self._add: Callable[[Any, Any], Any] = _EXACT.add if number is Decimal else _plus
        self._subtract: Callable[[Any, Any], Any] = _EXACT.subtract if number is Decimal else _minus
        self._products = products
        self._result_of = result_of

    @override
    def new_accumulator(self) -> Sums:
        return self._zero

    @override
    def add(self, accumulator: Sums, value: Any) -> Sums:
        if value is None:
            products = None
        else:
            products = self._products(value)
        if products is None:
            return accumulator
        return accumulator[0] + 1, tuple(map(self._add, accumulator[1], products))

    @override
    def subtract(self, accumulator: Sums, value: Any) -> Sums:
        if value is None:
            products = None
        else:
            products = self._products(value)
        if products is None:
            return accumulator
        return accumulator[0] - 1, tuple(map(self._subtract, accumulator[1], products))

    @override
    def merge(self, earlier: Sums, later: Sums) -> Sums:
        return earlier[0] + later[0], tuple(map(self._add, earlier[1], later[1]))

    @override
    def result(self, accumulator: Sums) -> float | None:
        count, sums = accumulator
        try:
            if count:
                return self._result_of(count, tuple(map(_fraction, sums)))
            return None
        except OverflowError:
            return None


def statistic(name: str, argument: type) -> Statistic:
    """Return the accumulator of a statistic of integers, decimals or doubles.

    A statistic of two columns takes doubles.
    """
    if name in _OF_PAIRS:
        return Statistic(Exact, _products_of_pair, 5, _OF_PAIRS[name])
    powers, result_of = _OF_VALUES[name]
    if argument is float:
        return Statistic(Exact, lambda value: _powers_of_double(value, powers), powers, result_of)
    return Statistic(Decimal, lambda value: _powers(Decimal(value), powers), powers, result_of)


def _plus(one: Exact, other: Exact) -> Exact:
    return one.merge(other)


def _minus(one: Exact, other: Exact) -> Exact:
    return one.merge(Exact(-other.mantissa, other.exponent))


def _fraction(number: Decimal | Exact) -> Fraction:
    if isinstance(number, Decimal):
        return Fraction(number)
    return number.mantissa * Fraction(2) ** number.exponent


def _powers(value: Decimal, count: int) -> tuple[Decimal, ...]:
    powers = [value]
    while len(powers) < count:
        powers.append(_EXACT.multiply(powers[-1], value))
    return tuple(powers)


def _exact(*factors: float) -> Exact:
    """Return the product of doubles."""
    mantissa, exponent = 1, 0
    for factor in factors:
        numerator, denominator = factor.as_integer_ratio()
        mantissa, exponent = mantissa * numerator, exponent + 1 - denominator.bit_length()
    return Exact(mantissa, exponent)


def _powers_of_double(value: float, count: int) -> tuple[Exact, ...]:
    return tuple(_exact(*[value] * power) for power in range(1, count + 1))


def _products_of_pair(pair: ArgumentPair) -> tuple[Exact, ...] | None:
    x, y = pair.x, pair.y
    if x is None or y is None:
        return None
    # `_covariance` and `_correlation` unpack the sums in this order.
    return _exact(x), _exact(y), _exact(x, x), _exact(y, y), _exact(x, y)


def _squared_distances(count: int, total: Fraction, squares: Fraction) -> Fraction:
    """Return the sum of the squares of the values' distances from their mean."""
    return squares - total * total / count


def _square_root(square: Fraction) -> float:
    return math.sqrt(square)


def _variance(samples: bool, count: int, sums: tuple[Fraction, ...]) -> Fraction | None:
    divisor = count - samples
    if divisor:
        return _squared_distances(count, *sums) / divisor
    return None


def _float_or_none(value: Fraction | None) -> float | None:
    if value is None:
        return None
    return float(value)


def _stddev(samples: bool, count: int, sums: tuple[Fraction, ...]) -> float | None:
    variance = _variance(samples, count, sums)
    if variance is None:
        return None
    return _square_root(variance)


def _skewness(count: int, sums: tuple[Fraction, ...]) -> float | None:
    first, second, third = sums
    squares = _squared_distances(count, first, second)
    # The sum of the cubes of the values' distances from their mean.
    cubes = third - 3 * first * second / count + 2 * first**3 / count**2
    if not squares:
        return None
    return math.copysign(_square_root(count * cubes**2 / squares**3), cubes)


def _kurtosis(count: int, sums: tuple[Fraction, ...]) -> float | None:
    first, second, third, fourth = sums
    squares = _squared_distances(count, first, second)
    if not squares:
        return None
    # The sum of the fourth powers of the values' distances from their mean.
    fourths = (
        fourth
        - 4 * first * third / count
        + 6 * first**2 * second / count**2
        - 3 * first**4 / count**3
    )
    return float(count * fourths / squares**2 - 3)


def _covariance(samples: bool, count: int, sums: tuple[Fraction, ...]) -> float | None:
    xs, ys, _, _, products = sums
    divisor = count - samples
    if divisor:
        return float((products - xs * ys / count) / divisor)
    return None


def _correlation(count: int, sums: tuple[Fraction, ...]) -> float | None:
    xs, ys, x_squares, y_squares, products = sums
    common = products - xs * ys / count
    squares = _squared_distances(count, xs, x_squares) * _squared_distances(count, ys, y_squares)
    if squares:
        return math.copysign(_square_root(common**2 / squares), common)
    return None


_Result = Callable[[int, tuple[Fraction, ...]], float | None]
_OF_VALUES: dict[str, tuple[int, _Result]] = {
    "var_samp": (2, lambda count, sums: _float_or_none(_variance(True, count, sums))),
    "var_pop": (2, lambda count, sums: _float_or_none(_variance(False, count, sums))),
    "stddev_samp": (2, lambda count, sums: _stddev(True, count, sums)),
    "stddev_pop": (2, lambda count, sums: _stddev(False, count, sums)),
    "skewness": (3, _skewness),
    "kurtosis": (4, _kurtosis),
}
_OF_PAIRS: dict[str, _Result] = {
    "covar_samp": lambda count, sums: _covariance(True, count, sums),
    "covar_pop": lambda count, sums: _covariance(False, count, sums),
    "corr": _correlation,
}
