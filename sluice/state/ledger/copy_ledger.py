"""Copies a ledger to another database."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import delete, insert, select, tuple_, update

from sluice.errors import Refused
from sluice.state.database import database_errors, reading, transaction
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.ledger_tables import GENERATIONS, LEASES, METADATA, PIPELINES, WORKERS
from sluice.state.model import GenerationRef
from sluice.state.shard.passwords import without_password


def copy_ledger(
    source: Ledger, target: Ledger, locations: Mapping[tuple[GenerationRef, int], str] | None = None
) -> None:
    """Replace the target's rows by the source's rows, in one transaction.

    `locations` are the new addresses of the workers' shards. If they are given, the target must
    have no pipelines. If another command has added a pipeline, raises Refused and changes nothing.
    With `locations`, workers without a new address are not copied, because their shards belong to
    the source. An example is a worker of a generation that is being built.
    """
    with (
        database_errors("Copying the ledger", seconds=None),
        reading(source.engine) as old,
        transaction(target.engine) as new,
    ):
        # Check again, within the transaction: since the command found the target empty, a run may
        # have added a pipeline.
        pipeline = new.execute(select(PIPELINES.c.pipeline).limit(1)).scalar()
        if locations is not None and pipeline is not None:
            raise Refused(
                f"While the ledger was copied, a run or another command added the pipeline "
                f"{pipeline!r} to the target. Nothing has been copied.",
                next_step="Use the state that the target has now, or repeat the command with "
                "other, empty places for ledger and shards.",
            )
        for table in METADATA.sorted_tables:
            # Columns that count up automatically are not copied, because the target's database
            # numbers its rows itself.
            columns = [column for column in table.columns if column.autoincrement is not True]
            statement = select(*columns).order_by(*table.primary_key)
            rows = [dict(row) for row in old.execute(statement).mappings()]
            new.execute(delete(table))
            if rows:
                new.execute(insert(table), rows)
        # A driver may hold a lease of the source during the copy. Nobody holds a lease of the
        # target.
        new.execute(update(LEASES).values(held=False))
        if locations is None:
            return
        workers = new.execute(select(WORKERS)).mappings().all()
        new.execute(delete(WORKERS))
        for worker in workers:
            ref = GenerationRef(worker["pipeline"], worker["generation"])
            location = locations.get((ref, worker["number"]))
            if location is not None:
                new.execute(
                    insert(WORKERS).values({**worker, "location": without_password(location)})
                )
        # Set the number of workers to 0 for generations whose workers were not copied; otherwise
        # readers would report those workers as lost.
        with_workers = select(WORKERS.c.pipeline, WORKERS.c.generation)
        generation = tuple_(GENERATIONS.c.pipeline, GENERATIONS.c.generation)
        new.execute(update(GENERATIONS).where(generation.not_in(with_workers)).values(workers=0))
