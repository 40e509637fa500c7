"""A backup's manifest, which lists the backup's files with their checksums.

The manifest is written last, so a backup without a manifest is incomplete.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import msgspec

from sluice.errors import DamagedState, StateError, sentence
from sluice.settings import sqlite_url
from sluice.state.model import OfGeneration
from sluice.support.file_modes import make_file

FORMAT = 1
"""Format of a backup's folder. Later formats are rejected."""

LEDGER = "ledger.sqlite"
_NAME = "backup.json"
_OTHER_BACKUP = "Restore another backup."


class BackedUp(OfGeneration, frozen=True, kw_only=True):
    """A generation, and its newest batch in the backup."""

    batch: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files and the generations of a backup."""

    format: int = FORMAT
    sluice: str
    """The version of Sluice that made the backup."""
    made_at: datetime
    generations: list[BackedUp]
    files: dict[str, str]
    """Path in the backup → SHA-256 of the file."""


def ledger(folder: Path) -> str:
    """Return the address of the ledger in a backup."""
    return sqlite_url(folder.absolute() / LEDGER)


def shards(folder: Path) -> str:
    """Return the address of the shards in a backup."""
    return sqlite_url(folder.absolute() / "shards")


@contextmanager
def file_errors(doing: str) -> Iterator[None]:
    """Turn an error of the file system into a StateError, which says that `doing` failed."""
    try:
        yield
    except OSError as error:
        raise StateError(
            f"{doing} failed: {sentence(error)}",
            next_step="Check the folder's permissions and the free space, then try again.",
        ) from error


def write(folder: Path, version: str, made_at: datetime, generations: list[BackedUp]) -> Manifest:
    """Flush the files of a backup to disk, and write its manifest."""
    files: dict[str, str] = {}
    for name, path in _files(folder).items():
        files[name] = _digest(path, flush=True)
    manifest = Manifest(sluice=version, made_at=made_at, generations=generations, files=files)
    unfinished = folder / f"{_NAME}.unfinished"
    make_file(unfinished)
    with unfinished.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    # A backup with a manifest counts as complete, so the manifest appears only with its whole
    # content.
    unfinished.rename(folder / _NAME)
    return manifest


def read(folder: Path) -> Manifest:
    """Read a backup's manifest, and check that all files of the backup are unchanged.

    Raise DamagedState if the backup is incomplete or a file was altered, and StateError if a later
    version wrote it.
    """
    try:
        content = (folder / _NAME).read_bytes()
    except OSError:
        raise DamagedState(
            f"{folder} is not a complete backup: it has no file {_NAME}.", next_step=_OTHER_BACKUP
        ) from None
    try:
        version = msgspec.json.decode(content, type=dict[str, object]).get("format")
        if isinstance(version, int) and version > FORMAT:
            raise StateError(
                f"{folder} has format {version}; "
                f"this version of Sluice reads backups up to format {FORMAT}.",
                next_step="Install the version of Sluice that made the backup, or a later one.",
            )
        manifest = msgspec.json.decode(content, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedState(
            f"{folder / _NAME} is damaged: {sentence(error)}", next_step=_OTHER_BACKUP
        ) from None
    present = _files(folder).keys() - {_NAME}
    missing, unknown = sorted({*manifest.files} - present), sorted(present - {*manifest.files})
    altered: list[str] = []
    for name in sorted(present & {*manifest.files}):
        if _digest(folder / name) != manifest.files[name]:
            altered.append(name)
    for names, what in (
        (missing, "is missing"),
        (unknown, "does not belong to it"),
        (altered, "was altered"),
    ):
        if names:
            raise DamagedState(
                f"The backup {folder} is damaged: {names[0]} {what}.", next_step=_OTHER_BACKUP
            )
    return manifest


def _files(folder: Path) -> dict[str, Path]:
    """Return the files by their names relative to the folder, sorted."""
    files: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            files[str(path.relative_to(folder))] = path
    return files


def _digest(path: Path, *, flush: bool = False) -> str:
    with path.open("rb") as file:
        if flush:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
