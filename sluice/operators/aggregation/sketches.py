"""Computes approximate results in a few KB: the number of distinct values, and percentiles.

Both sketches are exact for up to 512 distinct values. Beyond that, they keep only counts. The
counts depend on the values alone, not on their order, on batches or on merges, and two sketches can
be merged without loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from functools import partial
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

MOST_EXACT = 512
T = TypeVar("T")
Undo = Callable[[], object]
"""Undoes a change. Changes must be undone in reverse order."""


class Distinct(msgspec.Struct, array_like=True):
    """A set of hashes of distinct values.

    Beyond `MOST_EXACT`, registers of a HyperLogLog (error 1.6 %).
    """

    hashes: dict[int, None]
    registers: bytearray

    @property
    def estimate(self) -> int:
        if self.registers:
            return round(_estimate(self.registers))
        return len(self.hashes)

    def add(self, hashed: int) -> Undo | None:
        """Add a hash. Returns a function that undoes the change; None if nothing has changed."""
        if not self.registers:
            if hashed in self.hashes:
                return None
            self.hashes[hashed] = None
            if len(self.hashes) <= MOST_EXACT:
                return partial(self.hashes.pop, hashed)
            before_this: list[int] = []
            for earlier in self.hashes:
                if earlier != hashed:
                    before_this.append(earlier)
            undo = partial(self._restore, dict.fromkeys(before_this))
            self._fill(self.hashes)
            self.hashes = {}
            return undo
        register, rank = _place(hashed)
        before = self.registers[register]
        if rank <= before:
            return None
        self.registers[register] = rank
        return partial(self.registers.__setitem__, register, before)

    def _restore(self, hashes: dict[int, None]) -> None:
        self.hashes, self.registers = hashes, bytearray()

    def _fill(self, hashes: Iterable[int]) -> None:
        self.registers = self.registers or bytearray(_REGISTERS)
        for hashed in hashes:
            register, rank = _place(hashed)
            self.registers[register] = max(self.registers[register], rank)

    def copy(self) -> Distinct:
        return Distinct(dict(self.hashes), bytearray(self.registers))

    def merge(self, other: Distinct) -> Distinct:
        """Return a sketch of the distinct values of both sketches."""
        # If one sketch still has hashes and the other already has registers, `_fill` adds the
        # hashes to the registers.
        merged = Distinct(self.hashes | other.hashes, bytearray(self.registers or other.registers))
        if self.registers and other.registers:
            merged.registers = bytearray(map(max, self.registers, other.registers))
        if merged.registers or len(merged.hashes) > MOST_EXACT:
            merged._fill(merged.hashes)
            merged.hashes = {}
        return merged


_BITS = 12
_REGISTERS = 1 << _BITS
_RANKS = 64 - _BITS


def hash_of(value: Any) -> int:
    """Return a hash of 64 bits. Equal numbers have equal hashes."""
    # Turn -0.0 into 0.0: the two numbers are equal, so they need the same hash.
    if isinstance(value, float):
        value += 0.0
    if isinstance(value, Decimal):
        text = str(value.normalize())
    else:
        text = str(value)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest())


def _place(hashed: int) -> tuple[int, int]:
    """Return the number of a hash's register, and the position of the first 1 in its other bits."""
    rest = hashed >> _BITS
    return hashed & (_REGISTERS - 1), _RANKS - rest.bit_length() + 1


def _estimate(registers: bytearray) -> float:
    """Return the number of distinct values, by Ertl's improved estimator (arXiv 1702.01284).

    This estimator needs no correction for small or large numbers.
    """
    import numpy as np  # Plans import this module without numpy, so numpy is imported only here.

    counts = np.bincount(np.frombuffer(registers, np.uint8), minlength=_RANKS + 2).tolist()
    total = _REGISTERS * _tau(1 - counts[-1] / _REGISTERS)
    for count in reversed(counts[1:-1]):
        total = (total + count) / 2
    total += _REGISTERS * _sigma(counts[0] / _REGISTERS)
    return _REGISTERS**2 / (2 * math.log(2) * total)


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z, y = z + x * y, y + y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, y / 2
        z -= (1 - x) ** 2 * y
    return z / 3


class Histogram(msgspec.Struct, Generic[T], array_like=True):
    """Counts of each number.

    Beyond `MOST_EXACT` distinct numbers, counts of the numbers in each bin. The numbers of a bin
    differ from its middle by at most 1 %, as in a DDSketch.
    """

    counts: dict[T, int]
    bins: dict[int, int]
    least: T | None = None
    most: T | None = None

    def add(self, value: T) -> Undo:
        """Count a number. Returns a function that undoes the change."""
        undo = partial(self._restore, self.counts, self.bins, value, self.least, self.most)
        self.least, self.most = _range((value, self.least, self.most))
        if self.bins:
            _count(self.bins, _bin(value))
        else:
            _count(self.counts, value)
            if len(self.counts) > MOST_EXACT:
                self.counts, self.bins = {}, _binned(self.counts)
        return undo

    def _restore(
        self,
        counts: dict[T, int],
        bins: dict[int, int],
        value: T,
        least: T | None,
        most: T | None,
    ) -> None:
        self.counts, self.bins, self.least, self.most = counts, bins, least, most
        if bins:
            _count(bins, _bin(value), -1)
        else:
            _count(counts, value, -1)

    def copy(self) -> Histogram[T]:
        return Histogram(dict(self.counts), dict(self.bins), self.least, self.most)

    def merge(self, other: Histogram[T]) -> Histogram[T]:
        """Return a histogram of all numbers that either histogram has counted."""
        counts = dict(self.counts)
        for value, count in other.counts.items():
            _count(counts, value, count)
        bins: dict[int, int] = {}
        if self.bins or other.bins or len(counts) > MOST_EXACT:
            for part in (self.bins, other.bins, _binned(counts)):
                for place, count in part.items():
                    _count(bins, place, count)
            counts = {}
        return Histogram(counts, bins, *_range((self.least, other.least, self.most, other.most)))

    def percentile(self, part: float) -> T | float | None:
        """Return the smallest number that is not below the share `part` of all numbers."""
        counts: dict[Any, int] = self.bins or self.counts
        rank = max(math.ceil(part * sum(counts.values())), 1)
        for place in sorted(counts):
            rank -= counts[place]
            if rank <= 0:
                return self._number_in_bin(place) if self.bins else place  # type: ignore[no-any-return]
        return None

    def _number_in_bin(self, place: int) -> Any:
        """Return the middle of a bin, as a number of the same type as the values."""
        middle, least, most = _middle(place), self.least, self.most
        if isinstance(least, Decimal):
            value: Any = Decimal(middle).quantize(least)
        else:
            if isinstance(least, int):
                value = round(middle)
            else:
                value = middle
        # The middle of the first or last bin may lie beyond all counted numbers.
        return min(max(value, least), most)


def _count(counts: dict[T, int], place: T, count: int = 1) -> None:
    """Add `count` to the count of `place`, which is a number or a bin. Remove a count of 0."""
    counts[place] = counts.get(place, 0) + count
    if not counts[place]:
        del counts[place]


def _binned(counts: Mapping[Any, int]) -> dict[int, int]:
    bins: dict[int, int] = {}
    for value, count in counts.items():
        _count(bins, _bin(value), count)
    return bins


_ACCURACY = 0.01
_GAMMA = (1 + _ACCURACY) / (1 - _ACCURACY)
_SHIFT = 1 << 20
"""Added to the logarithm of a number's absolute value, so that the sum is positive for every
double. The sign of a bin's number is then free to show the sign of the numbers in the bin."""


def _bin(value: Any) -> int:
    """Return the number of a value's bin. A larger value never has a smaller bin number."""
    if not value:
        return 0
    number = math.ceil(math.log(abs(value)) / math.log(_GAMMA)) + _SHIFT
    if value > 0:
        return number
    return -number


def _middle(place: int) -> float:
    if not place:
        return 0.0
    middle = 2 * _GAMMA ** (abs(place) - _SHIFT) / (_GAMMA + 1)
    return math.copysign(middle, place)


def _range(values: Iterable[Any]) -> tuple[Any, Any]:
    present: list[Any] = []
    for value in values:
        if value is not None:
            present.append(value)
    return min(present, default=None), max(present, default=None)
