"""Copies of SQLite databases that are in use, with which a test lets databases go back to an earlier state."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Replicas:
    """Replicas of databases that lag: `lag` copies the databases, and `fail_over` puts the copies in their place."""

    files: Iterable[Path]
    _copies: dict[Path, Path] = field(default_factory=dict, init=False)

    def lag(self) -> None:
        for file in self.files:
            copy = file.with_name(f"{file.name}.replica")
            copy_database(file, copy)
            self._copies[file] = copy

    def fail_over(self) -> None:
        for file, copy in self._copies.items():
            copy_database(copy, file)


def copy_database(source: Path, target: Path) -> None:
    """Copy a database that may be in use."""
    with (
        closing(sqlite3.connect(source, timeout=20)) as old,
        closing(sqlite3.connect(target, timeout=20)) as new,
    ):
        old.backup(new)
