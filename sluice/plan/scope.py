"""A scope: the columns visible downstream of a node of the topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.values.record_metadata import RESERVED_NAMES


@dataclass(frozen=True)
class Scope:
    """The columns visible downstream of a node, and the condition for a record to reach it."""

    stage: int
    depth: int
    """The depth of the layer after which the columns of the next step can be computed."""
    passed: str
    """SQL of a condition that is true if the record reaches this point."""
    columns: Mapping[str, str]
    """Name of a field, or of metadata → SQL that reads the field, usually just the name of a
    column."""
    scalar: bool = False
    is_null: str = "false"
    """SQL of a condition that is true if the value is null or the table's row was removed. All
    fields are then null."""
    results_of: frozenset[int] = frozenset()
    """The operators from whose results the columns are made."""
    exploded: tuple[int, ...] = ()
    """The numbers of upstream nodes that turn one record into several rows."""
    unchanged_result: str | None = None
    """The column of an operator's results, if the value is an unchanged result. The column `value`
    then has the JSON of this result."""
    path: tuple[str, ...] = ()
    """SQL of the elements of the path (`values.row_order`) from the stage's record or result to
    this scope."""
    turns: tuple[int, ...] = ()
    """For each node with several children on the path to this scope: the number of the child on the
    path."""
    rekeyed: bool = False
    """Whether a step since the start of the stage has changed the key."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the value's fields."""
        return tuple(name for name in self.columns if name not in RESERVED_NAMES)

    @property
    def metadata(self) -> dict[str, str]:
        """The columns that are not fields of the value, such as the key."""
        return {name: sql for name, sql in self.columns.items() if name in RESERVED_NAMES}
