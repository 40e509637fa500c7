"""Paths: the sort order of rows that come from the same record.

A path encodes, as bytes, the steps that lead from a record to a row. Rows sorted by path are in the
order in which a single thread would process them depth first. The children of a step follow each
other in the order of their declaration, each with all of its descendants. The results of an
operator are in sequence. Re-keyed rows sort after all rows that were not re-keyed, as in Kafka
Streams, where re-keyed rows go through a repartition topic.

A path begins with one byte 0xff for every re-keying, and 0x00. Elements follow:

- A turn, two bytes: the number of the child, for a step with several children.
- The index of an array's element, four bytes.
- A result of an operator: 0x20 and the result's number, four bytes.
- A release: a result that an operator sends because stream time has advanced. It has these parts:
  0x10 (before the results of the row that advances stream time) or 0x30 (after them);
  a rank, such as the time at which the result was due;
  for a timer that fires after a record, the processor's turn, four bytes;
  the result's key.
- An event: it follows a release that no record has caused, such as the release of a wall-clock
  timer's results. It has 0x18, the names of the operator and the timer, and a number for the record
  or timer that has set the timer. An event identifies the result independently of the batch in
  which it is sent.

In a key or a name, 0xff follows each 0x00; a 0x00 without 0xff ends the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

START = b"\x00"
"""The path of a record."""

_REKEYED, _BEFORE, _EVENT, _RESULT, _AFTER = b"\xff", b"\x10", b"\x18", b"\x20", b"\x30"
_END = b"\xf0"
END_OF_TEXT, ESCAPED = b"\x00", b"\x00\xff"
"""The end of a key or a name in a path, and the bytes for a 0x00 within the key or name."""
_RESULT_BYTES, _RANK_BYTES = 4, 8
_SIGN = 1 << 63
_LAST_STAGE = 0xFFFF


END_OF_RECORD = START + _END
"""The path of the end of a record, after all rows from it that were not re-keyed."""


def end_path(path: bytes) -> bytes:
    """Return the path after all rows of the record that have as many re-keyings as this row."""
    return path[: len(path) - len(path.lstrip(_REKEYED))] + END_OF_RECORD


def result_path(path: bytes, number: int) -> bytes:
    """Return the path of an operator's result.

    `path` is the path of the operator's row, and `number` is the result's number among the row's
    results.
    """
    return path + _element(number)


# Cached, because most results have one of a few small numbers.
@lru_cache
def _element(number: int) -> bytes:
    return _RESULT + number.to_bytes(_RESULT_BYTES, "big")


def release_path(path: bytes, rank: int, key: str, *, before: bool, turn: bytes = b"") -> bytes:
    """Return the path of a result released with a row.

    Releases are sorted by rank, before or after the row's own results. If the releases of several
    operators have the same `path`, they need a `turn`, by which they are then sorted before the
    key.
    """
    return path + release(rank, before=before) + turn + _escaped(key)


def release(rank: int, *, before: bool) -> bytes:
    """Return the element of a release, without its key."""
    # Add `_SIGN`, because bytes would sort negative ranks last: with it, no rank is negative.
    return (_BEFORE if before else _AFTER) + (rank + _SIGN).to_bytes(_RANK_BYTES, "big")


def turn_of_timers(stage: int, operator: int) -> bytes:
    """Return the turn of an operator whose timers fire after a record.

    Timers of a later stage have an earlier turn. A processor's timers therefore fire before it gets
    results of earlier stages' timers with the same time.
    """
    return (_LAST_STAGE - stage).to_bytes(2, "big") + operator.to_bytes(2, "big")


def event_path(path: bytes, operator: str, timer: str, cause: int) -> bytes:
    """Return the path of results that no record caused: a timer's results, or held-back results.

    `cause` is the number of the record or timer that has set the timer: see `Output.cause`.
    """
    return path + _EVENT + _escaped(operator) + _escaped(timer) + _escaped(str(cause))


def event_of(path: bytes) -> tuple[int, bytes]:
    """Return the rank of a result that no record caused, and the bytes that identify its cause.

    A cause is a timer, for example. The bytes are the beginning of the path, which all results of
    this cause share. A result that is held back until a batch's end has no such cause. Its rank is
    -1, and the bytes are its whole path.
    """
    base = path.lstrip(_REKEYED)
    if not base.startswith((_BEFORE, _AFTER)):
        return -1, path
    end = _end_of_text(base, 1 + _RANK_BYTES)
    if base[end : end + 1] == _EVENT:
        end = _end_of_text(base, _end_of_text(base, _end_of_text(base, end + 1)))
    return int.from_bytes(base[1 : 1 + _RANK_BYTES], "big") - _SIGN, base[:end]


def hash_of(content: bytes) -> int:
    """Return a hash that fits a BIGINT and is not negative."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def _escaped(text: str) -> bytes:
    return text.encode().replace(END_OF_TEXT, ESCAPED) + END_OF_TEXT


def _end_of_text(path: bytes, start: int) -> int:
    """Return the position after the text that begins at `start`."""
    end = path.index(b"\x00", start)
    while path[end + 1 : end + 2] == b"\xff":
        end = path.index(b"\x00", end + 1)
    return end + 1


def after_rekeying(path: bytes) -> bytes:
    """Return the path of a row after a re-keying."""
    return _REKEYED + path


def turn_sql(number: int) -> str:
    """Return SQL for a turn: the element of a path with the number of a child."""
    return f"X'{number:04X}'"


def element_sql(position: str) -> str:
    """Return SQL for the part of a row's path that holds the index of the row's array element.

    `position` is SQL for the element's index.
    """
    return f"unhex(lpad(hex(coalesce({position}, 0)), 8, '0'))"


def path_sql(base: str, elements: Sequence[str], *, rekeyed: bool) -> str:
    """Return SQL for a path, given the SQL of its beginning, `base`, and of its elements."""
    parts = [base, *elements]
    if rekeyed:
        parts.insert(0, "X'FF'")
    if len(parts) == 1:
        return parts[0]
    return f"concat({', '.join(parts)})"


def constant_path(elements: Sequence[str], *, rekeyed: bool) -> bytes | None:
    """Return the path that all rows of a record share; None if rows have different paths."""
    parts = bytes_around_base(elements, rekeyed=rekeyed)
    if parts is None:
        return None
    return START.join(parts)


def bytes_around_base(elements: Sequence[str], *, rekeyed: bool) -> tuple[bytes, bytes] | None:
    """Return the bytes before and after a path's base (see `path_sql`).

    Return None if these bytes differ between rows.
    """
    # Only a literal is the same for all rows; other elements are read from columns.
    if not all(element.startswith("X'") for element in elements):
        return None
    after = b"".join([bytes.fromhex(element[2:-1]) for element in elements])
    before = b""
    if rekeyed:
        before = _REKEYED
    return before, after
