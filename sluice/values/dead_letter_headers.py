"""The headers of a dead letter: the rejected record's headers, then Sluice's headers, which no producer can forge.

Names of Sluice's headers start with `sluice.`. A header of the record with such a name is written
as `sluice.original.NAME`. Sluice's headers come last, and `sluice.reason` is the first of them.
"""

from __future__ import annotations

PREFIX = "sluice."
FIRST = "sluice.reason"
_ORIGINAL = "sluice.original."


def escaped(name: str) -> str:
    """The name that a header of the rejected record gets in the dead letter."""
    return f"{_ORIGINAL}{name}" if name.startswith(PREFIX) else name


def original(name: str) -> str:
    """The name that a header of a dead letter had in the rejected record; the inverse of `escaped`."""
    return name.removeprefix(_ORIGINAL)
