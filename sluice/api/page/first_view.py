"""The scripts of the page's first view, so that browsers can load all of them at once."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

_ENTRIES = ("app.js", "overview.js")
"""The page's script, and the view that it loads first."""
_IMPORT = re.compile(r'(?:from|import) "\./([\w.]+)"')


@cache
def first_view_modules(static: Path) -> tuple[str, ...]:
    """Return the names of the scripts that the first view imports, directly or indirectly.

    Without this list, a browser knows of a script only when it has read the script that imports it.
    """
    names = list(_ENTRIES)
    for name in names:
        for imported in _IMPORT.findall((static / name).read_text(encoding="utf-8")):
            if imported not in names:
                names.append(imported)
    return tuple(names)
