"""Detects that another file has taken the place of a file."""

from __future__ import annotations

from pathlib import Path


def file_identity(path: Path) -> tuple[int, int] | None:
    """Return the identity of the file that a path names now; None if there is none.

    A file that was restored or moved back has the same name and another identity.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
