"""Spark SQL text for names, literals and JSON."""

from __future__ import annotations

import re

TO_JSON = "to_json({}, map('ignoreNullFields', 'false', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\"))"
"""SQL template for the JSON of a struct. Without the format, Spark truncates times to milliseconds."""
_WRAPPED = TO_JSON.format("named_struct('v', {0})")
VALUE_JSON = f"substring({_WRAPPED}, 6, length({_WRAPPED}) - 6)"
"""SQL template for the JSON of any value. `to_json` takes only structs, so the value is wrapped in one and cut out."""
FROM_JSON = "from_json({}, {}, map('writer', 'sluice'))"
"""SQL template for the value of JSON that Sluice has written, given its type. Spark ignores the option, which tells
Arrow that the JSON has this type."""


def quoted(name: str) -> str:
    """`name`, in backticks if it needs them after a dot or in a type, where keywords need none."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else backticked(name)


def backticked(name: str) -> str:
    """`name` in backticks."""
    return f"`{name.replace('`', '``')}`"


def literal(text: str) -> str:
    """`text` as a literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
