"""What every record has beside its value, and what an author may choose for records that fail."""

from __future__ import annotations

from typing import Literal

METADATA = {
    "_key": "STRING",
    "_topic": "STRING",
    "_partition": "INT",
    "_offset": "BIGINT",
    "_timestamp": "TIMESTAMP",
    "_headers": "MAP<STRING, STRING>",
}
"""What expressions can read of every record beside its value, each with its Spark SQL type."""

CHANGE_METADATA = {"_key": "STRING", "_window_start": "TIMESTAMP", "_window_end": "TIMESTAMP"}
"""What expressions can read of every change of a table; the window's times are null where the table has no windows."""

TEXT_FIELD = "value"
"""What expressions call a value that is no object."""

MOST_KEY_BYTES = 1024
"""The longest key, in UTF-8: a database's index takes no longer ones."""

How = Literal["inner", "left", "outer"]
OnNull = Literal["dead_letter", "keep"]
OnError = Literal["dead_letter", "skip", "fail"]
"""What becomes of a record that cannot be read, processed or written."""
OnTime = Literal["dead_letter", "skip", "fail", "clock"]
"""What becomes of a record without a valid event time; `clock`: it gets the time of processing."""
Delivery = Literal["exactly_once", "at_least_once"]
