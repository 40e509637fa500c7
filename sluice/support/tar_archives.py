"""Unpack tar archives."""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack an archive into a folder. Nothing is written outside of it."""
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
            return
        # Python before 3.11.4 has no filters.
        for member in tar.getmembers():
            place = (folder / member.name).resolve()
            if not (place.is_relative_to(folder.resolve()) and (member.isfile() or member.isdir())):
                raise tarfile.ExtractError(f"{member.name} in {archive} would be outside {folder}")
        tar.extractall(folder)
