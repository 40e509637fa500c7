"""Metadata of records, and the options for records that fail."""

from __future__ import annotations

import hashlib
from typing import Literal

METADATA = {
    "_key": "STRING",
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_headers": "MAP<STRING, STRING>",
}
"""The columns that SQL can read in addition to a record's value, each with its Spark SQL type."""

STATEFUL_METADATA = {
    name: kind for name, kind in METADATA.items() if name not in ("_topic", "_headers")
}
"""The columns that SQL can read in addition to the value of a record that a stateful step has
computed."""

CHANGE_METADATA = {"_key": "STRING", "_window_start": "TIMESTAMP", "_window_end": "TIMESTAMP"}
"""The columns that SQL can read in addition to a table's value; window times are null if the table
is not windowed."""

MAPPED_KEY = "_mapped_key"
"""The column with the key that a Python function has computed for a join with a global table."""

RESERVED_NAMES = frozenset({*METADATA, *CHANGE_METADATA, MAPPED_KEY})
"""Names that no field of a value can have."""

TEXT_FIELD = "value"
"""The column name of a value that is not an object."""

MOST_KEY_BYTES = 1024
"""The maximum length of a key in UTF-8 bytes. PostgreSQL cannot index much longer keys."""


def record_fingerprint(key: bytes | None, value: bytes | None, timestamp_ms: int | None) -> str:
    """Return a hash of a record.

    It differs if a recreated topic has another record at the offset.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value):
        # The length shows where the key ends, and distinguishes an empty text from null.
        digest.update(b"-" if part is None else b"%d:" % len(part))
        digest.update(part or b"")
    # Clients write a missing timestamp as -1, 0 or nothing.
    digest.update(b"%d" % max(timestamp_ms or 0, 0))
    return digest.hexdigest()


How = Literal["inner", "left", "outer"]
Gives = Literal["value", "values", "key", "mapped_key", "record", "records", "condition", "nothing"]
"""The parts of a Python function's result that a step uses."""
OnBreach = Literal["warn", "fail"]
OnNull = Literal["dead_letter", "keep"]
OnError = Literal["dead_letter", "skip", "fail"]
"""Policy for a record that cannot be read, processed or written."""
OnMissing = Literal["null", "drop", "error"]
"""Policy for a record for which a look-up finds no row."""
OnTime = Literal["dead_letter", "skip", "fail", "clock"]
"""Policy for a record without a valid event time; `clock` sets the time of processing instead."""
WALL_CLOCK = "(wall clock)"
"""The value of `event_time` that stands for the time of processing. No field can have this name."""
Until = Literal["window_close", "window_final", "time_limit"]
"""The event that releases a held-back result: its window's close, the last record that can change
it, or a time limit."""
EmitStrategy = Literal["every", "window_close"]
"""Which results of a windowed aggregate are sent: each update, or the final result of each
window."""
Emit = Literal["every", "latest"]
"""Which of a key's changes within a batch are written: all of them, or only the last."""
