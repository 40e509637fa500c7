"""Parses many JSON objects at once with Arrow's JSON reader, and makes the checks that it lacks.

Arrow also accepts texts that are not valid values. Each function here raises UnsureError, or one of
Arrow's errors, if any of the values may be invalid; the values are then decoded one by one.
"""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as arrow_json

from sluice.engine.read.json_types import TIME
from sluice.values.json_limits import LONGEST_NAME

FIRST_DAY, LAST_DAY = -718_797, 2_932_531
"""The first day of year 2 and the last of 9998, as days since 1970: between them, a time is valid
in every zone."""
SECONDS_OF_DAY = 86_400
_DAY_LENGTH, _SHORTEST_TIME = len("2025-01-01"), len("2025-01-01T00:00:00")
"""Arrow also takes times without seconds or without a time of day, which a contract refuses."""
_LAST_ASCII = 127
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


class UnsureError(Exception):
    """Some of the values may be invalid."""


def require(is_sure: bool) -> None:
    if not is_sure:
        raise UnsureError


def require_all(mask: pa.Array) -> None:
    require(pc.all(mask, min_count=0).as_py())


def require_between(numbers: pa.Array, least: int | Decimal, most: int | Decimal) -> None:
    if len(numbers) > numbers.null_count:
        found = pc.min_max(numbers)
        require(least <= found["min"].as_py() and found["max"].as_py() <= most)


def lines_of_objects(texts: pa.Array) -> pa.Buffer:
    """Join texts to lines, and check that each text looks like one JSON object of valid Unicode."""
    # Each text begins and ends like an object. If Arrow then finds as many objects as texts, each
    # text is one object: an object cannot continue in the next text, because there is no comma
    # between them.
    for is_so in (texts.is_valid(), pc.starts_with(texts, b"{"), pc.ends_with(texts, b"}")):
        require_all(is_so)
    require(pc.max(pc.binary_length(texts)).as_py() <= LONGEST_NAME)
    lines = lines_of(texts)
    _require_unicode(lines)
    return lines


def _require_unicode(lines: pa.Buffer) -> None:
    """Raise UnsureError if strings of the JSON may not be Unicode: Arrow does not check them."""
    require(not count_of(lines, "\\") or _SURROGATE.search(lines) is None)
    try:
        if np.frombuffer(lines, np.uint8).max() > _LAST_ASCII:
            str(lines, "utf-8")
    except UnicodeDecodeError:
        raise UnsureError from None


def count_of(lines: pa.Buffer, character: str) -> int:
    # NumPy takes a fifth of the time of `bytes.count`, and needs no copy of the lines.
    return int(np.count_nonzero(np.frombuffer(lines, np.uint8) == ord(character)))


def lines_of(texts: pa.Array) -> pa.Buffer:
    return pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts), b"\n"
    )[0].as_buffer()


def parse(lines: pa.Buffer, schema: pa.Schema, unknown_fields: str) -> pa.Table:
    options = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
    parsing = arrow_json.ParseOptions(schema, unexpected_field_behavior=unknown_fields)
    # `read_json` would start a thread for each call, which takes as long as reading 70 texts.
    return arrow_json.open_json(pa.BufferReader(lines), options, parsing).read_all()


def one_array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def days_of(texts: pa.Array) -> pa.Array:
    """Return the dates of texts."""
    days = texts.cast(pa.date32())
    require_all(pc.equal(pc.binary_length(texts), _DAY_LENGTH))
    require_between(days.cast(pa.int32()), FIRST_DAY, LAST_DAY)
    return days


def times_of(texts: pa.Array, *, is_utc: bool) -> pa.Array:
    """Return the times of texts. Either none of them has a zone, or each has the zone Z.

    `is_utc`: whether a time without a zone is in UTC.
    """
    zone = "Z" if pc.all(pc.ends_with(texts, "Z")).as_py() else ""
    require(bool(zone) or is_utc)
    require_all(pc.greater_equal(pc.binary_length(texts), _SHORTEST_TIME + len(zone)))
    # Arrow raises an error if only the text, or only the type, has a zone.
    times = texts.cast(pa.timestamp("us", "UTC" if zone else None)).cast(TIME)
    per_day = SECONDS_OF_DAY * 1_000_000
    require_between(times.cast(pa.int64()), FIRST_DAY * per_day, LAST_DAY * per_day)
    return times
