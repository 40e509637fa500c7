"""Former names of pipelines, and of their stores and steps.

A pipeline is renamed in three phases. `begun`: its shards and topics are being copied, and the
pipeline is still used by its former name. `switched`: the ledger has the new name, and the copies
under the former name are being removed. `done`: only the former name itself is left.

Stores and steps have only rows in the ledger, so they are renamed in one transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec
from sqlalchemy import Connection, Table, delete, insert, select, update

from sluice.errors import Refused
from sluice.state.database import as_json, database_errors, transaction
from sluice.state.ledger.leases import LeaseRow, require_epoch
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import (
    ACTIVITIES,
    FAILURES,
    GENERATIONS,
    LEASES,
    MEASUREMENTS,
    METADATA,
    NOTES,
    PAUSES,
    PIPELINES,
    PLACEMENTS,
    PLACES,
    RENAMES,
    SIZES,
    SNAPSHOTS,
    STORES,
    TIMES,
    WORKERS,
    of_ref,
)
from sluice.state.ledger.notes import add_note
from sluice.state.model import GenerationInfo, GenerationRef
from sluice.state.shard.passwords import without_password

Kind = Literal["pipeline", "store", "step"]
Phase = Literal["begun", "switched", "done"]

_COPIED = (WORKERS, LEASES, PLACEMENTS, PLACES)
"""The tables whose rows stay under the former name. The workers' shards under that name still
exist, and their state servers serve them until they are removed. The leases stay, so that a driver
that has lost one of them cannot write for a later pipeline of the former name."""
_LEFT_BY_ATTEMPTS = (FAILURES, MEASUREMENTS, SIZES, NOTES, PAUSES, ACTIVITIES)
"""The tables that may have rows for a pipeline that has published nothing."""


_WITH_NAMES = ((SNAPSHOTS, "counts"), (SNAPSHOTS, "stream_times"), (TIMES, "times"))
"""The columns whose JSON objects have names of stores and steps in their keys."""


class Rename(msgspec.Struct, frozen=True, kw_only=True):
    """A former name of a pipeline, or of a store or step of the pipeline."""

    pipeline: str
    """The name of the pipeline now."""
    kind: Kind
    former: str
    name: str
    """The name of the pipeline, store or step now."""
    renamed_at: str
    """ISO 8601, UTC: when the renaming began."""
    phase: Phase


class Renames(LedgerPart):
    """The former names in all pipelines."""

    def of(self, former: str) -> Rename | None:
        """Return the renaming of the pipeline that once had this name, or None."""
        rows = self._read(
            select(RENAMES).where(RENAMES.c.kind == "pipeline", RENAMES.c.former == former)
        )
        return None if not rows else Rename(**dict(rows[0]))

    def to(self, pipeline: str) -> list[Rename]:
        """Return the former names of a pipeline, oldest first."""
        statement = select(RENAMES).where(
            RENAMES.c.kind == "pipeline", RENAMES.c.pipeline == pipeline
        )
        return [Rename(**dict(row)) for row in self._read(statement.order_by(RENAMES.c.renamed_at))]

    def source_of(self, ref: GenerationRef) -> GenerationRef | None:
        """Return the generation whose shards are being copied to the shards of `ref`, if any."""
        for rename in self.to(ref.pipeline):
            if rename.phase == "begun":
                return GenerationRef(rename.former, ref.generation)
        return None

    def former_names(self, pipeline: str) -> tuple[str, ...]:
        """Return the former names of a pipeline, oldest first."""
        return tuple(rename.former for rename in self.to(pipeline))

    def of_stores(self, former: str) -> list[Rename]:
        """Return the stores that had this name."""
        statement = select(RENAMES).where(RENAMES.c.kind == "store", RENAMES.c.former == former)
        return [Rename(**dict(row)) for row in self._read(statement.order_by(RENAMES.c.pipeline))]

    def require_current(self, pipeline: str) -> None:
        """Raise Refused if this is the former name of a pipeline, or if its renaming is under way.

        Otherwise, a run by the former name would begin a second pipeline, which would write all
        output again.
        """
        former = self.of(pipeline)
        if former is not None and former.phase != "begun":
            raise Refused(
                f"{pipeline} was renamed to {former.name}.",
                next_step="Use the new name in the pipeline's file. To use the former name for "
                f"another pipeline, first free this name: sluice remove {pipeline}.",
            )
        for rename in self.to(pipeline):
            if rename.phase != "done":
                back = "" if rename.phase == "switched" else ", or go back with --undo"
                raise Refused(
                    f"The renaming of {rename.former} to {pipeline} has not ended.",
                    next_step=f"Finish the renaming: sluice rename {rename.former} {pipeline} "
                    f"--yes{back}.",
                )

    def begin(self, lease: LeaseRow, name: str) -> None:
        """Note that a pipeline is about to be renamed. Do nothing if this is noted already.

        Raise Refused if another pipeline has this name, or had it before it was renamed.
        """
        old = lease.ref.pipeline
        with database_errors("Renaming the pipeline"), transaction(self._engine) as connection:
            require_epoch(connection, lease.ref, lease.epoch)
            _require_free(connection, old, name)
            taken = select(RENAMES).where(
                RENAMES.c.kind == "pipeline", RENAMES.c.former.in_([old, name])
            )
            for row in connection.execute(taken).mappings():
                if (row["former"], row["name"], row["phase"]) == (old, name, "begun"):
                    return
                # A pipeline may get one of its former names again.
                if row["former"] == name and row["pipeline"] == old and row["phase"] == "done":
                    continue
                if row["former"] == old and row["phase"] == "done":
                    connection.execute(delete(RENAMES).where(_is(row)))
                    continue
                raise Refused(
                    f"{row['former']} was renamed to {row['name']}, "
                    f"or its renaming to {row['name']} has begun.",
                    next_step="Choose another name. To see what that renaming does: sluice rename "
                    f"{row['former']} {row['name']}.",
                )
            connection.execute(insert(RENAMES), _row(name, "pipeline", old, name, "begun"))

    def switch(self, leases: Sequence[LeaseRow], name: str, shards: Mapping[Any, str]) -> None:
        """Give a pipeline its new name, in one transaction.

        `leases` are the leases of all of its generations, the current one first. `shards` maps
        generation and worker to the addresses of the copied shards. Raise LeaseError or Refused,
        and change nothing, if one of the leases is no longer held, or if another pipeline has got
        the name.
        """
        old = leases[0].ref.pipeline
        with (
            database_errors("Renaming the pipeline", seconds=None),
            transaction(self._engine) as connection,
        ):
            for lease in leases:
                require_epoch(connection, lease.ref, lease.epoch)
            _require_free(connection, old, name)
            for table in _LEFT_BY_ATTEMPTS:
                connection.execute(delete(table).where(table.c.pipeline == name))
            for table in METADATA.sorted_tables:
                if "pipeline" in table.c and table not in _COPIED:
                    renamed = update(table).where(table.c.pipeline == old)
                    connection.execute(renamed.values(pipeline=name))
            # Somebody has to change the name in the file. The next run then registers the file.
            files = update(GENERATIONS).where(GENERATIONS.c.pipeline == name)
            connection.execute(files.values(file=""))
            _copy_leases(connection, old, name)
            for table in (PLACEMENTS, PLACES):
                _copy_rows(connection, old, name, table)
            for row in _rows(connection, WORKERS, old):
                address = shards[row["generation"], row["number"]]
                values = row | {"pipeline": name, "location": without_password(address)}
                connection.execute(insert(WORKERS), values)
            own = RENAMES.c.kind == "pipeline", RENAMES.c.pipeline == name
            # A former name that the pipeline has again is no longer a former name.
            connection.execute(delete(RENAMES).where(*own, RENAMES.c.former == name))
            connection.execute(update(RENAMES).where(*own).values(name=name))
            begun = update(RENAMES).where(*own, RENAMES.c.former == old)
            connection.execute(begun.values(phase="switched"))
            ref = GenerationRef(name, leases[0].ref.generation)
            add_note(connection, ref, "", f"The pipeline was renamed: {old} became {name}.")

    def finish(self, former: str) -> None:
        """Note that nothing is left under a former name."""
        with database_errors("Renaming the pipeline"), transaction(self._engine) as connection:
            for table in (PLACEMENTS, PLACES):
                connection.execute(delete(table).where(table.c.pipeline == former))
            of_former = RENAMES.c.kind == "pipeline", RENAMES.c.former == former
            connection.execute(update(RENAMES).where(*of_former).values(phase="done"))

    def forget(self, former: str) -> bool:
        """Forget a former name of a pipeline. Return False if it is not a former name."""
        with database_errors("Forgetting the name"), transaction(self._engine) as connection:
            of_former = RENAMES.c.kind == "pipeline", RENAMES.c.former == former
            return connection.execute(delete(RENAMES).where(*of_former)).rowcount > 0

    def rename_parts(
        self,
        lease: LeaseRow,
        info: GenerationInfo,
        names: Mapping[tuple[Kind, str], str],
        rename_key: Callable[[str], str],
    ) -> None:
        """Rename stores and steps of a pipeline's current generation, in one transaction.

        `info` is the generation as it is registered afterwards. `names`: kind and former name → new
        name. `rename_key` returns a key of counts or stream times with the new names. Raise
        LeaseError, and change nothing, if the lease is no longer held.
        """
        ref = lease.ref
        with (
            database_errors("Renaming the stores", seconds=None),
            transaction(self._engine) as connection,
        ):
            require_epoch(connection, ref, lease.epoch)
            generation = update(GENERATIONS).where(of_ref(GENERATIONS, ref))
            connection.execute(generation.values(operators=as_json(info.operators)))
            connection.execute(delete(STORES).where(of_ref(STORES, ref)))
            rows: list[dict[str, Any]] = []
            for store in info.stores:
                rows.append(msgspec.structs.asdict(store) | {"generation": ref.generation})
            if rows:
                connection.execute(insert(STORES), rows)
            for table, column in _WITH_NAMES:
                _rename_in_texts(connection, table, column, ref, rename_key)
            for (kind, former), name in names.items():
                own = RENAMES.c.pipeline == ref.pipeline, RENAMES.c.kind == kind
                connection.execute(
                    update(RENAMES).where(*own, RENAMES.c.name == former).values(name=name)
                )
                gone = RENAMES.c.former.in_([former, name])
                connection.execute(delete(RENAMES).where(*own, gone))
                connection.execute(insert(RENAMES), _row(ref.pipeline, kind, former, name, "done"))
            changes = ", ".join(f"{kind} {old} became {new}" for (kind, old), new in names.items())
            add_note(connection, ref, "", f"Renamed: {changes}.")


def _require_free(connection: Connection, old: str, name: str) -> None:
    """Raise Refused if the name is in use, or if a removed pipeline of this name has shards."""
    for table in (PIPELINES, GENERATIONS, WORKERS, PLACEMENTS):
        row = connection.execute(select(table).where(table.c.pipeline == name).limit(1)).first()
        if row is not None:
            raise Refused(
                f"The ledger already has a pipeline {name} or shards of it. {old} is unchanged.",
                next_step=f"Choose another name, or remove that pipeline: sluice remove {name}.",
            )


def _copy_leases(connection: Connection, old: str, name: str) -> None:
    """Copy the leases. A driver that lost a lease of an earlier pipeline `name` stays fenced."""
    earlier = {row["generation"]: row["epoch"] for row in _rows(connection, LEASES, name)}
    connection.execute(delete(LEASES).where(LEASES.c.pipeline == name))
    rows = {row["generation"]: row for row in _rows(connection, LEASES, old)}
    for generation, row in rows.items():
        epoch = max(row["epoch"], earlier.pop(generation, 0))
        values = row | {"pipeline": name, "held": False, "epoch": epoch}
        connection.execute(insert(LEASES), values)
    template = next(iter(rows.values()))
    for generation, epoch in earlier.items():
        values = template | {"pipeline": name, "generation": generation, "held": False}
        connection.execute(insert(LEASES), values | {"epoch": epoch})


def _copy_rows(connection: Connection, old: str, name: str, table: Table) -> None:
    connection.execute(delete(table).where(table.c.pipeline == name))
    for row in _rows(connection, table, old):
        connection.execute(insert(table), row | {"pipeline": name})


def _rows(connection: Connection, table: Table, pipeline: str) -> list[dict[str, Any]]:
    rows = connection.execute(select(table).where(table.c.pipeline == pipeline)).mappings()
    return [dict(row) for row in rows]


def _rename_in_texts(
    connection: Connection,
    table: Table,
    column: str,
    ref: GenerationRef,
    rename_key: Callable[[str], str],
) -> None:
    """Rename stores and steps in the keys of the JSON objects of a column."""
    key = [each for each in table.primary_key if each.name not in ("pipeline", "generation")]
    for row in connection.execute(select(table).where(of_ref(table, ref))).mappings():
        before: dict[str, Any] = msgspec.json.decode(row[column])
        after = {rename_key(name): value for name, value in before.items()}
        if after != before:
            same = [each == row[each.name] for each in key]
            changed = update(table).where(of_ref(table, ref), *same)
            connection.execute(changed.values({column: as_json(after)}))


def _is(row: Mapping[Any, Any]) -> Any:
    return (
        (RENAMES.c.pipeline == row["pipeline"])
        & (RENAMES.c.kind == row["kind"])
        & (RENAMES.c.former == row["former"])
    )


def _row(pipeline: str, kind: Kind, former: str, name: str, phase: Phase) -> dict[str, str]:
    return {
        "pipeline": pipeline,
        "kind": kind,
        "former": former,
        "name": name,
        "renamed_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "phase": phase,
    }
