"""Copies a ledger to another database."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import and_, delete, insert, select, update

from sluice.state.database import database_errors, reading, transaction
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.tables import LEASES, METADATA, WORKERS, of_ref
from sluice.state.model import JobRef
from sluice.state.shard.passwords import without_password


def copy_ledger(source: Ledger, target: Ledger, locations: Mapping[tuple[JobRef, int], str]) -> None:
    """Replace the target's rows by the source's in one transaction, with new addresses of workers' shards."""
    with database_errors("Copying the ledger"), reading(source.engine) as old, transaction(target.engine) as new:
        for table in METADATA.sorted_tables:
            # The target numbers rows itself.
            columns = [column for column in table.columns if column.autoincrement is not True]
            rows = [dict(row) for row in old.execute(select(*columns).order_by(*table.primary_key)).mappings()]
            new.execute(delete(table))
            if rows:
                new.execute(insert(table), rows)
        new.execute(update(LEASES).values(held=False))  # the source's leases may be held during the copy
        for (ref, number), location in locations.items():
            is_worker = and_(of_ref(WORKERS, ref), WORKERS.c.number == number)
            new.execute(update(WORKERS).where(is_worker).values(location=without_password(location)))
