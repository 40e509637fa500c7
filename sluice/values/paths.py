"""Paths: the sort order of rows that come from the same record.

A path encodes, as bytes, the steps that lead from a record to a row. Rows sorted by path are in the order in which a
single thread would process them depth first: the children of a step in the order of their declaration, each with all of
its descendants; the results of an operator in sequence. Re-keyed rows sort after all rows that were not re-keyed, as in
Kafka Streams, where they go through a repartition topic.

A path begins with one byte 0xff for every re-keying, and 0x00. Elements follow:

- a turn, two bytes: the number of the child, for a step with several children;
- the index of an array's element, four bytes;
- a result of an operator: 0x20 and its number, four bytes;
- a release, a result that an operator sends because stream time has advanced: 0x10 (before the results of the row that
  advances it) or 0x30 (after them), a rank such as the time at which the result was due, and its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

START = b"\x00"
"""The path of a record."""

_REKEYED, _BEFORE, _RESULT, _AFTER = b"\xff", b"\x10", b"\x20", b"\x30"
_RESULT_BYTES, _RANK_BYTES = 4, 8
_SIGN = 1 << 63


def result(path: bytes, number: int) -> bytes:
    """The path of the operator's result with this number for a row."""
    return path + _element(number)


@lru_cache
def _element(number: int) -> bytes:
    return _RESULT + number.to_bytes(_RESULT_BYTES, "big")


def release(path: bytes, rank: int, key: str, *, before: bool) -> bytes:
    """The path of a result released with a row. Releases sort by rank, before or after the row's own results."""
    return path + (_BEFORE if before else _AFTER) + (rank + _SIGN).to_bytes(_RANK_BYTES, "big") + key.encode() + b"\x00"


def rekeyed(path: bytes) -> bytes:
    """The path of a row after a re-keying."""
    return _REKEYED + path


def turn(number: int) -> str:
    """SQL for the turn to the child with this number."""
    return f"X'{number:04X}'"


def element(position: str) -> str:
    """SQL for the index of an array's element; `position` is SQL."""
    return f"unhex(lpad(hex(coalesce({position}, 0)), 8, '0'))"


def sql(base: str, elements: Sequence[str], *, rekeyed: bool) -> str:
    """SQL for a path that begins with `base`, also SQL."""
    parts = [*(["X'FF'"] if rekeyed else []), base, *elements]
    return parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})"


def constant(elements: Sequence[str], *, rekeyed: bool) -> bytes | None:
    """The path that all rows of a record share; None if it differs from row to row."""
    parts = around(elements, rekeyed=rekeyed)
    return None if parts is None else START.join(parts)


def around(elements: Sequence[str], *, rekeyed: bool) -> tuple[bytes, bytes] | None:
    """What precedes and follows the base in a path; None if it differs from row to row."""
    if not all(element.startswith("X'") for element in elements):
        return None
    return _REKEYED if rekeyed else b"", b"".join(bytes.fromhex(element[2:-1]) for element in elements)
