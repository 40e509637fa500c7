"""Finds the fields of a joined stream's values that SQL reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

_JSON = re.compile(r"(?<!')\bvalue\b(?!'| IS NULL)")
"""Matches SQL that reads a whole result as JSON, from the column `value`. Does not match the name
of a field."""


def left_fields_read(texts: Iterable[str], result: str) -> frozenset[str] | None:
    """Return the fields that SQL reads from the left value of a join's result, such as `v3`.

    The names are in lower case. Return None if any of the texts may read the left value as a whole.
    """
    reads = re.compile(rf"\b{result}\b(?:\.(left|right)\b)?(?:\.(?:`((?:[^`]|``)+)`|(\w+)))?")
    names: set[str] = set()
    for text in texts:
        if _JSON.search(text):
            return None
        for side, quoted, plain in reads.findall(text):
            # A field other than `left` and `right` is the key with which the record was joined.
            if side == "right" or (not side and (quoted or plain)):
                continue
            if not side or not (quoted or plain):
                return None
            names.add((quoted.replace("``", "`") or plain).lower())
    return frozenset(names)
