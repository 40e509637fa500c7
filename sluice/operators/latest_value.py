"""The latest value of a key: the state of the operators in `table.py` and `changes.py`."""

from __future__ import annotations

import msgspec


class LatestValue(msgspec.Struct, array_like=True):
    """A key's latest value and its time in ms."""

    value: str | None = None
    time: int = -1
