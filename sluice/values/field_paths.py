"""Paths to fields, as queries write them: `customer.city`, and `` `http.status` `` for a name with a dot."""

from __future__ import annotations

import re

_NAME = re.compile(r"`((?:[^`]|``)*)`(?=\.|$)|([^.]*)")


def names_of(path: str) -> tuple[str, ...]:
    """Return the names in a path, the outermost field first.

    The empty path, which means the whole value, has no names.
    """
    names, place = [], 0
    while path and place <= len(path):
        match = _NAME.match(path, place)
        assert match is not None
        names.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        place = match.end() + 1
    return tuple(names)
