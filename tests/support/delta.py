"""Reads Delta tables as any other program would: the table's log, and the Parquet files that are in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def delta_rows(table: Path) -> list[dict[str, Any]]:
    """The rows of a table without deletion vectors, in no order."""
    files: dict[str, None] = {}
    for action in _actions(table):
        if "add" in action:
            files[action["add"]["path"]] = None
        elif "remove" in action:
            files.pop(action["remove"]["path"], None)
    return [row for file in files for row in pq.read_table(table / file).to_pylist()]


def written_snapshot(table: Path) -> str | None:
    """The last snapshot whose rows are in a table; None before the first, or if there is no table."""
    snapshot = None
    for action in _actions(table):
        if metadata := action.get("commitInfo", {}).get("userMetadata"):
            snapshot = json.loads(metadata)["sluice"]["snapshot"]
    return snapshot


def _actions(table: Path) -> Iterator[dict[str, Any]]:
    for commit in sorted((table / "_delta_log").glob("[0-9]*.json")):
        yield from map(json.loads, commit.read_text().splitlines())
