"""State rows as tuples, as the databases take and return them."""

from __future__ import annotations

from typing import TypeAlias

Row: TypeAlias = tuple[int, str, int, int, str | None]
"""The fields of a `StateRow`: group id, key, window start, window end, value."""

RowId: TypeAlias = tuple[int, str, int, int]
"""The fields that identify a state row: group id, key, window start, window end."""

VersionId: TypeAlias = tuple[int, str, int, int, int]
"""The fields that identify a version of a state row: the row's id, and the batch."""

DigestedRow: TypeAlias = tuple[int, str, int, int, str | None, int]
"""The fields of a `StateRow`, and its digest, which is 0 for a tombstone."""

StoredRow: TypeAlias = tuple[int, str, int, int, str, int]
"""The fields of a `StateRow` with a value, and its digest."""
