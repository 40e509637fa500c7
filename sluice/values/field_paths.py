"""Paths to fields as in queries: `customer.city`, and `` `http.status` `` for a name with a dot."""

from __future__ import annotations

import re

_NAME = re.compile(r"`((?:[^`]|``)*)`(?=\.|$)|([^.]*)")


def names_of(path: str) -> tuple[str, ...]:
    """Return the names in a path, the outermost field first.

    The empty path stands for the whole value, and has no names.
    """
    names: list[str] = []
    place = 0
    while path and place <= len(path):
        match = _NAME.match(path, place)
        assert match is not None
        quoted, plain = match[1], match[2]
        names.append(plain if quoted is None else quoted.replace("``", "`"))
        place = match.end() + 1
    return tuple(names)
