"""Compares the type of published values with the type in which a pipeline reads them."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.values.sql_types import compact, struct_fields

SIZES = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4}
"""Types of whole numbers, by their size: a larger one can take the values of a smaller one."""


def differences(published: str, read: str) -> Iterator[str]:
    """Yield a description of each part that a published type lacks for its reader."""
    fields, published_fields = struct_fields(read), struct_fields(published)
    if not fields or not published_fields:
        if not _fits(published, read):
            yield f"its values are {compact(published)}, not {compact(read)}"
        return
    for name, kind in fields.items():
        if name not in published_fields:
            yield f"{name} is missing"
        elif not _fits(published_fields[name], kind):
            yield f"{name} is {compact(published_fields[name])}, not {compact(kind)}"


def _fits(published: str, read: str) -> bool:
    theirs, ours = compact(published), compact(read)
    if theirs == ours or not ours:
        return True
    fields, published_fields = struct_fields(read), struct_fields(published)
    if fields and published_fields:
        return not [*differences(published, read)]
    return 0 < SIZES.get(theirs, 0) < SIZES.get(ours, 0)
