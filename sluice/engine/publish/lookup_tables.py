"""Keeps global tables in the driver's memory, for look-ups by steps between stores and outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sluice.engine.batch.worker_shards import worker_shard
from sluice.plan import Job, Lookup, Select
from sluice.state.shard.shard import Shard
from sluice.values.kept_headers import value_of_row

_PAGE = 10_000


@dataclass(frozen=True)
class LookupTables:
    """The global tables as of the last published batch."""

    values: dict[int, dict[str, str]] = field(default_factory=dict)
    """Group number of a table → key → JSON of an array with the value."""
    with_headers: frozenset[int] = frozenset()
    """The tables that keep headers, by group number."""

    @classmethod
    def load(cls, job: Job, shard: str, as_of: int | None) -> LookupTables:
        """Load the tables as of a published batch; they are empty if no batch has been published.

        Every worker's shard has the whole tables, so the first worker's shard is enough.
        """
        with_headers = frozenset(table.group for table in job.tables if table.keeps_headers)
        tables = cls({group: {} for group in job.looked_up_groups}, with_headers)
        if tables.values and as_of is not None:
            with worker_shard(0, shard) as opened:
                for group in tables.values:
                    tables._load(opened, group, as_of)
        return tables

    @property
    def groups(self) -> list[int]:
        """The group numbers of the tables."""
        return [*self.values]

    def apply(self, changes: pa.Table) -> None:
        """Apply changes of the tables."""
        groups = changes.column("group_id").to_pylist()
        keys, values = changes.column("key").to_pylist(), changes.column("value").to_pylist()
        for group_id, key, value in zip(groups, keys, values, strict=True):
            if value is None:
                self.values[group_id].pop(key, None)
            else:
                self.values[group_id][key] = self._only_value(group_id, value)

    def _load(self, shard: Shard, group: int, as_of: int) -> None:
        values = self.values[group]
        after = None
        # The values go into records for topics, so verify the rows' checksums: no damaged value may
        # be sent.
        while page := shard.scan(group, as_of, after=after, limit=_PAGE, checked=True):
            for row in page:
                if row.value is not None:
                    values[row.key] = self._only_value(group, row.value)
            after = page[-1].entry_id

    def _only_value(self, group: int, row: str) -> str:
        """Return a state row without the headers."""
        if group not in self.with_headers:
            return row
        return f"[{value_of_row(row)}]"

    def join(self, changes: pa.Table, steps: Sequence[Lookup | Select]) -> pa.Table:
        """Return the changes with a column of JSON per lookup: the table's value, or null.

        Omit changes whose key an inner join does not find.
        """
        for number, step in enumerate(steps):
            if isinstance(step, Lookup):
                values = self.values[step.table.group]
                keys = changes.column("key").to_pylist()
                rights = pa.array(map(values.get, keys), pa.string())
                changes = changes.append_column(right_column(number), rights)
                if step.how == "inner":
                    changes = changes.filter(pc.is_valid(rights))
        return changes


def right_column(step: int) -> str:
    """Return the name of the column with the values that a lookup has found.

    `step` is its number.
    """
    return f"right_{step}"
