"""Counts, durations and sizes as people write them."""

from __future__ import annotations

from collections.abc import Sequence, Sized

_SIZES = {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
_UNITS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000, "ms": 1}


def duration_text(ms: int) -> str:
    """Return a duration without rounding, such as `15 s`, `1 min 30 s`, `250 ms` or `7 d`."""
    parts: list[str] = []
    rest = abs(ms)
    for unit, size in _UNITS.items():
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    if not parts:
        return "0 s"
    sign = ""
    if ms < 0:
        sign = "-"
    return f"{sign}{' '.join(parts)}"


def size_text(size: int) -> str:
    """Return a size in KiB, MiB or GiB, with the unit that suits it: `0.2 KiB`, `1.5 GiB`."""
    unit = "KiB"
    for larger in ("MiB", "GiB"):
        if size >= _SIZES[larger]:
            unit = larger
    return f"{size / _SIZES[unit]:,.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """Return the number with the noun in the singular or plural: `1 worker`, `2 workers`."""
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def agreeing(names: Sized, singular: str, plural: str) -> str:
    """Return the form of a word that agrees with the number of names: `was`, `were`."""
    if len(names) == 1:
        return singular
    return plural


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return the names, or the first `most` and the number of the others: `a, b and 7 more`."""
    shown = ", ".join(names[:most])
    if len(names) <= most:
        return shown
    return f"{shown} and {len(names) - most} more"


def joined(names: Sequence[str]) -> str:
    """Join the names in a sentence: `a`, `a and b`, or `a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
