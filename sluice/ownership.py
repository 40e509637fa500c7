"""Files and folders that hold state are their owner's alone: 0600 and 0700, whatever the umask."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """Make a folder, and those above it that are missing; those that are there may be shared, and stay as they are."""
    for folder in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)


def make_file(path: Path) -> None:
    """Make an empty file, unless there is one."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def close_folders(path: Path, levels: int) -> None:
    """Close a folder and those above it, `levels` in all, to everybody but their owner."""
    for folder in (path, *path.parents)[:levels]:
        _close(folder)


def close_database(path: Path) -> None:
    """Close a SQLite file, and what SQLite writes beside it, to everybody but their owner."""
    for ending in ("", "-wal", "-shm"):
        _close(Path(f"{path}{ending}"))


def _close(path: Path) -> None:
    # Only its owner can; where that is somebody else, it is theirs to decide.
    with contextlib.suppress(OSError):
        status = path.stat()
        if status.st_mode & _OTHERS and status.st_uid == os.geteuid():
            path.chmod(status.st_mode & 0o700)
