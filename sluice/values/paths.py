"""Paths: how rows that were made of one record sort.

A path is the way from a record to a row, as bytes. Rows sort by path in the order in which a single thread would reach
them that follows the record depth first: the children of a step in the order of their declaration, each with all that
it leads to; the results of an operator one after the other. What a re-keying sends on comes after all that was reached
without it, as in Kafka Streams, where it goes through a repartition topic.

A path begins with one byte 0xff for every re-keying, and 0x00. Elements follow:

- a turn, two bytes: which child of a step, if the step has several;
- the number of an array's element, four bytes;
- a result of an operator: 0x20 and its number, four bytes;
- a release, which is what an operator sends because stream time has advanced: 0x10 (before the results of the row that
  advances it) or 0x30 (after them), a rank such as the time at which it was due, and its key.
"""

from __future__ import annotations

from collections.abc import Sequence

START = b"\x00"
"""The path of a record."""

_REKEYED, _BEFORE, _RESULT, _AFTER = b"\xff", b"\x10", b"\x20", b"\x30"
_RESULT_BYTES, _RANK_BYTES = 4, 8
_SIGN = 1 << 63


def result(path: bytes, number: int) -> bytes:
    """The path of an operator's result number `number` for a row."""
    return path + _RESULT + number.to_bytes(_RESULT_BYTES, "big")


def release(path: bytes, rank: int, key: str, *, before: bool) -> bytes:
    """The path of what is released with a row, in the order of ranks; `before`: before the row's own results."""
    return path + (_BEFORE if before else _AFTER) + (rank + _SIGN).to_bytes(_RANK_BYTES, "big") + key.encode() + b"\x00"


def rekeyed(path: bytes) -> bytes:
    """The path behind a re-keying."""
    return _REKEYED + path


def turn(number: int) -> str:
    """SQL of the turn to a step's child with this number."""
    return f"X'{number:04X}'"


def element(position: str) -> str:
    """SQL of the element at a position (SQL)."""
    return f"unhex(lpad(hex(coalesce({position}, 0)), 8, '0'))"


def sql(base: str, elements: Sequence[str], *, rekeyed: bool) -> str:
    """SQL of a path that begins with `base` (SQL)."""
    parts = [*(["X'FF'"] if rekeyed else []), base, *elements]
    return parts[0] if len(parts) == 1 else f"concat({', '.join(parts)})"


def constant(elements: Sequence[str], *, rekeyed: bool) -> bytes | None:
    """The path from a record; None if it differs from row to row."""
    if not all(element.startswith("X'") for element in elements):
        return None
    way = b"".join(bytes.fromhex(element[2:-1]) for element in elements)
    return (_REKEYED if rekeyed else b"") + START + way
