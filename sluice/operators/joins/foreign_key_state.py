"""State of a join by foreign key: a row of the right table, and the left rows that refer to it."""

from __future__ import annotations

import msgspec


class Referred(msgspec.Struct, array_like=True):
    """State of a key of the right table: its value, and the left table's rows that refer to it."""

    right: str | None = None
    right_time: int = -1
    left: dict[str, str] = {}
    """Key of a row of the left table → its value, in the order of the rows' last changes."""

    def put_left(self, key: str, value: str) -> None:
        """Add or replace a row of the left table."""
        # Move a replaced row to the end, so that the order is the same as if the row had been
        # removed and added again.
        self.left.pop(key, None)
        self.left[key] = value

    def put_right(self, value: str | None, time: int) -> None:
        """Replace or remove the row of the right table."""
        self.right = value
        # The time of a removed row is -1, so later results have the left row's time.
        self.right_time = -1 if value is None else time
