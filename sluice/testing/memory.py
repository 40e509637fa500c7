"""Finds a folder in memory for the files of tests."""

from __future__ import annotations

import os
from pathlib import Path

_FOLDER = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes. The tests of a large project at once, such as Sluice's own, need a quarter of a GiB."""


def memory_folder() -> str | None:
    """Return a folder in memory, if it has enough room and can also hold programs.

    None if there is none, or if TMPDIR names a folder for temporary files.
    """
    if "TMPDIR" in os.environ or not os.access(_FOLDER, os.W_OK):
        return None
    disk = os.statvfs(_FOLDER)
    has_room = disk.f_bavail * disk.f_frsize >= _ROOM
    return str(_FOLDER) if has_room and not disk.f_flag & os.ST_NOEXEC else None
