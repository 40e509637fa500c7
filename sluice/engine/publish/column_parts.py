"""The parts of a schema, as column writers need them: see `json_column_encoder`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.publish.byte_columns import Piece
from sluice.engine.read.json_lines import UnsureError, require, require_between, times_of
from sluice.values.avro_written import LARGEST_FLOAT


@dataclass(frozen=True)
class Part:
    """A part of a schema, such as a field."""

    type: pa.DataType
    """The type in which Arrow parses the JSON of the part's values."""
    pieces: Callable[[pa.Array], list[Piece]]
    """Encodes a column of values. Raises UnsureError if a value may not fit the schema."""
    amounts: tuple[str, ...] = ()
    """The names of its fields whose values must not be texts, although Arrow would accept texts."""


def whole_numbers(values: pa.Array, bits: int = 63) -> npt.NDArray[np.int64]:
    """Return whole numbers of at most `bits` bits and a sign.

    Raises UnsureError for other numbers.
    """
    if bits < 63:
        require_between(values, -(2**bits), 2**bits - 1)
    return np.asarray(values).astype(np.int64, copy=False)


def real_numbers(values: pa.Array) -> npt.NDArray[np.float64]:
    """Return the numbers. Raises UnsureError unless all are finite and none is a signed zero."""
    numbers = np.asarray(values)
    # JSON's -0 is a whole number, so it has no sign. But Arrow reads -0 and -0.0 alike.
    require(bool((np.isfinite(numbers) & ~(np.signbit(numbers) & (numbers == 0))).all()))
    return numbers


def float_numbers(values: pa.Array) -> npt.NDArray[np.float32]:
    """Return numbers rounded to 32 bits."""
    numbers = real_numbers(values)
    require(bool((np.abs(numbers) < LARGEST_FLOAT).all()))
    return numbers.astype(np.float32)


def microseconds(texts: pa.Array) -> npt.NDArray[np.int64]:
    """Parse texts as times. Return microseconds since 1970."""
    return whole_numbers(times_of(texts, is_utc=True).cast(pa.int64()))


def places_among(texts: pa.Array, names: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index of each text among the names. Raises UnsureError for an unknown text."""
    places = pc.index_in(texts, names)
    require(places.null_count == 0)
    return whole_numbers(places)


def bytes_of_rows(numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    """Return the bytes of each number as a row of an array."""
    return numbers.view(np.uint8).reshape(len(numbers), numbers.itemsize)


def bytes_of_each(convert: Callable[[str], bytes], texts: pa.Array) -> pa.Array:
    """Return the result of `convert` for each text. Raises UnsureError for a ValueError."""
    try:
        return pa.array([convert(text) for text in texts.to_pylist()], pa.binary())
    except ValueError:
        raise UnsureError from None


def unscaled(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return decimals without their points.

    Raises UnsureError for decimals of more than 64 bits.
    """
    halves = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)
    low, high = halves[values.offset : values.offset + len(values)].T
    require(bool((high == low >> 63).all()))
    return np.ascontiguousarray(low)
