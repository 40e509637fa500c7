"""The plan of each generation's newest batch: which records it reads, and its clock.

A driver writes the plan before it writes anything of the batch to a topic, a table or a shard. If
the driver ends before the batch is published, the next driver, on whatever host, repeats exactly
this plan.
"""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import RowMapping, Select, delete, func, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.leases import require_epoch
from sluice.state.ledger.ledger_part import LedgerPart, decode_columns, json_texts
from sluice.state.ledger.ledger_tables import PLANS, SNAPSHOTS, of_ref
from sluice.state.ledger.snapshots import last_batch, require_predecessor
from sluice.state.model import GenerationRef

_JSON_COLUMNS = ("partitions", "ends", "snapshots")


class PlannedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The records that a batch reads, and its clock."""

    number: int
    begun: int
    """Epoch ms at which the batch was planned; the processing time of all its records."""
    partitions: dict[str, int] = {}
    """Topic → its number of partitions when the batch was planned."""
    ends: dict[str, dict[str, int]] = {}
    """Topic → partition as text → offset after the batch's last record, for all partitions."""
    snapshots: dict[str, str] = {}
    """Other pipeline whose stores the batch reads → the id of the snapshot that it reads."""


class Plans(LedgerPart):
    """The plans of all generations' newest batches."""

    def add(self, ref: GenerationRef, plan: PlannedBatch, epoch: int) -> PlannedBatch:
        """Plan the next batch of a generation. Return the plan to execute.

        If the batch was planned before but not published, returns the earlier plan. Otherwise,
        stores and returns `plan`. Raise LeaseError unless the generation's lease is held in this
        epoch. Raise WentBack if the ledger does not have the batch before this one.
        """
        with database_errors("Planning the batch"), transaction(self._engine) as connection:
            require_epoch(connection, ref, epoch)
            newest = last_batch(connection, ref)
            require_predecessor(ref, plan.number, newest)
            row = connection.execute(select(PLANS).where(of_ref(PLANS, ref))).mappings().first()
            if row is not None and (newest is None or row["number"] > newest):
                # Output of the planned batch may have been written already, so exactly this batch
                # must be repeated.
                return _plan(row)
            connection.execute(delete(PLANS).where(of_ref(PLANS, ref)))
            texts = json_texts(plan, _JSON_COLUMNS)
            values = msgspec.structs.asdict(ref) | msgspec.structs.asdict(plan) | texts
            connection.execute(insert(PLANS), values)
        return plan

    def unpublished(self, ref: GenerationRef) -> PlannedBatch | None:
        """Return the plan of an unpublished batch, which the next run repeats.

        Return None if the newest planned batch is published.
        """
        published = (
            select(func.max(SNAPSHOTS.c.batch)).where(of_ref(SNAPSHOTS, ref)).scalar_subquery()
        )
        is_unpublished = PLANS.c.number > func.coalesce(published, -1)
        return self._first(select(PLANS).where(of_ref(PLANS, ref), is_unpublished))

    def newest(self, ref: GenerationRef) -> PlannedBatch | None:
        """Return the plan of the newest batch, published or not."""
        return self._first(select(PLANS).where(of_ref(PLANS, ref)))

    def readers(self, pipeline: str) -> dict[GenerationRef, PlannedBatch]:
        """Return the generations whose newest batches read stores of a pipeline, with the batches.

        Only generations of other pipelines are returned.
        """
        readers: dict[GenerationRef, PlannedBatch] = {}
        is_reader = PLANS.c.snapshots.contains(f'"{pipeline}"', autoescape=True)
        for row in self._read(select(PLANS).where(is_reader)):
            plan = _plan(row)
            if pipeline in plan.snapshots:
                readers[GenerationRef(row["pipeline"], row["generation"])] = plan
        return readers

    def _first(self, statement: Select[Any]) -> PlannedBatch | None:
        rows = self._read(statement)
        return _plan(rows[0]) if rows else None


def _plan(row: RowMapping) -> PlannedBatch:
    values: dict[str, Any] = {name: row[name] for name in PlannedBatch.__struct_fields__}
    return PlannedBatch(**values | decode_columns(row, _JSON_COLUMNS))
