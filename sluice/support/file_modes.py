"""Creates files with mode 0600 and folders with mode 0700, and restricts existing files."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

_OTHERS = 0o077


def make_folder(path: Path) -> None:
    """Create a folder and its missing parents.

    Existing folders keep their modes, because they may be shared.
    """
    for folder in reversed((path, *path.parents)):
        with contextlib.suppress(FileExistsError):
            folder.mkdir(0o700)


def make_file(path: Path) -> None:
    """Create an empty file if it does not exist."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def close_folders(path: Path, levels: int) -> None:
    """Remove other users' access to a folder and its parents, `levels` folders in total."""
    for folder in (path, *path.parents)[:levels]:
        _close(folder)


def close_database(path: Path) -> None:
    """Remove other users' access to a SQLite file and its -wal and -shm files.

    Call this only after SQLite has read the file as a database, so that any other file keeps its
    mode.
    """
    for ending in ("", "-wal", "-shm"):
        _close(f"{path}{ending}")


def _close(path: Path | str) -> None:
    # Only the owner can change a file's mode. A link is left alone, because the file to which it
    # leads may belong to another program.
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if (
            status.st_mode & _OTHERS
            and status.st_uid == os.geteuid()
            and not stat.S_ISLNK(status.st_mode)
        ):
            Path(path).chmod(status.st_mode & 0o700)
