"""Create and restrict files and folders of state: modes 0600 and 0700, regardless of the umask."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents. Existing folders may be shared, so they keep their modes."""
    for folder in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)


def make_file(path: Path) -> None:
    """Create an empty file unless it exists."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def close_folders(path: Path, levels: int) -> None:
    """Remove other users' access to a folder and its parents, `levels` folders in all."""
    for folder in (path, *path.parents)[:levels]:
        _close(folder)


def close_database(path: Path) -> None:
    """Remove other users' access to a SQLite file and its -wal and -shm files."""
    for ending in ("", "-wal", "-shm"):
        _close(Path(f"{path}{ending}"))


def _close(path: Path) -> None:
    # Only the owner can change the mode; files of other owners are left alone.
    with contextlib.suppress(OSError):
        status = path.stat()
        if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
            path.chmod(status.st_mode & 0o700)
