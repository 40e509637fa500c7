"""Adds doubles exactly.

Sums depend neither on the order of the values nor on the ends of batches.
"""

from __future__ import annotations

from typing import Self

_EXPONENT_BYTES = 2


class Exact:
    """An immutable number `mantissa * 2**exponent`: any finite double, or any sum of them.

    It is encoded as bytes, because a state must hold mantissas of any size.
    """

    __slots__ = ("exponent", "mantissa")

    def __init__(self, mantissa: int = 0, exponent: int = 0) -> None:
        self.mantissa = mantissa
        self.exponent = exponent

    def add(self, value: float) -> Exact:
        numerator, denominator = value.as_integer_ratio()
        return self._plus(numerator, 1 - denominator.bit_length())

    def subtract(self, value: float) -> Exact:
        numerator, denominator = value.as_integer_ratio()
        return self._plus(-numerator, 1 - denominator.bit_length())

    def merge(self, other: Exact) -> Exact:
        return self._plus(other.mantissa, other.exponent)

    def _plus(self, mantissa: int, exponent: int) -> Exact:
        # Shift the number with the larger exponent: the other number then loses no bits.
        if exponent >= self.exponent:
            return Exact(self.mantissa + (mantissa << (exponent - self.exponent)), self.exponent)
        return Exact((self.mantissa << (self.exponent - exponent)) + mantissa, exponent)

    def __float__(self) -> float:
        """Round to the nearest double. Raises OverflowError if the number is too large."""
        return self.divided(1)

    def divided(self, count: int) -> float:
        """Divide, and round once to the nearest double.

        Raises OverflowError if the result is too large.
        """
        try:
            if self.exponent >= 0:
                return (self.mantissa << self.exponent) / count
            return self.mantissa / (count << -self.exponent)
        except OverflowError:
            raise OverflowError("the sum is larger than any double") from None

    def to_bytes(self) -> bytes:
        """Encode in normalized form: equal numbers have equal bytes."""
        mantissa, exponent = self.mantissa, self.exponent
        if not mantissa:
            return b""
        # Equal sums must have equal bytes, whatever the order of the additions. Otherwise, a
        # rebuilt state would differ.
        zeros = (mantissa & -mantissa).bit_length() - 1
        mantissa >>= zeros
        # Enough bytes for the bits of the mantissa and one bit for its sign.
        size = (mantissa.bit_length() >> 3) + 1
        exponent_bytes = (exponent + zeros).to_bytes(_EXPONENT_BYTES, signed=True)
        return exponent_bytes + mantissa.to_bytes(size, signed=True)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        exponent = int.from_bytes(data[:_EXPONENT_BYTES], signed=True)
        return cls(int.from_bytes(data[_EXPONENT_BYTES:], signed=True), exponent)
