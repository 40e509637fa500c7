"""The latest value of a key, which is the state of tables (`table.py`) and of `changes.py`."""

from __future__ import annotations

import msgspec


class LatestValue(msgspec.Struct, array_like=True):
    """A key's latest value and its time in ms."""

    value: str | None = None
    time: int = -1
