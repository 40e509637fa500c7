"""The published snapshots.

Readers see the newest snapshot of each pipeline's current generation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import (
    Connection,
    RowMapping,
    ScalarSelect,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
    tuple_,
)
from sqlalchemy.sql import ColumnElement

from sluice.errors import DamagedState, StateError, WentBack
from sluice.state.database import as_json, database_errors, transaction
from sluice.state.ledger.audits import Audit, audit_row
from sluice.state.ledger.history import Batch, history_row
from sluice.state.ledger.leases import require_epoch
from sluice.state.ledger.ledger_part import LedgerPart, decode_columns, json_texts
from sluice.state.ledger.ledger_tables import (
    AUDITS,
    HISTORY,
    PIPELINES,
    SNAPSHOTS,
    TIMES,
    current,
    of_given_ref,
    of_ref,
)
from sluice.state.ledger.measurements import add_measurements, totals_of_batch
from sluice.state.ledger.sources import note_last_records
from sluice.state.model import GenerationRef, Snapshot


class KeptBatches(NamedTuple):
    """The oldest and the newest of a generation's batches that readers can see."""

    oldest: int
    newest: int


class _ReadCount(msgspec.Struct):
    """The number of records that a batch read. The other counts are not decoded."""

    read: int = 0


_PUBLISH_SECONDS = 60.0
"""Publishing fails if the database has not answered after this time. The limit is long, so that a
slow disk does not end a run."""
_JSON_COLUMNS = ("positions", "stream_times", "counts")


class Snapshots(LedgerPart):
    """The snapshots of all pipelines.

    Methods that take a `pipeline` read its current generation.
    """

    def publish(
        self,
        snapshot: Snapshot,
        audit: Audit | None = None,
        times: Mapping[str, int] | None = None,
        batch: Batch | None = None,
    ) -> bool:
        """Make a batch visible, in one transaction with its audit and its history.

        `times` are the stream times from which the next batch continues; the default is
        `snapshot.stream_times`.

        Return False and change nothing if the same batch is already published. Raise LeaseError
        if another driver has taken the lease since the audit's epoch. Raise WentBack if the ledger
        does not have the preceding batch. Raise StateError if the batch does not continue the
        published batches: it is older than the newest snapshot, or has the same number but other
        positions.
        """
        ref = snapshot.ref
        with (
            database_errors("Publishing the snapshot", _PUBLISH_SECONDS),
            transaction(self._engine) as connection,
        ):
            if audit is not None:
                require_epoch(connection, ref, audit.epoch)
            last = last_batch(connection, ref)
            if last is None or snapshot.batch > last:
                if audit is not None:
                    require_predecessor(ref, snapshot.batch, last)
                connection.execute(insert(SNAPSHOTS), snapshot_row(snapshot))
                if times is None:
                    times = snapshot.stream_times
                _insert_times(connection, snapshot, last, times)
                if audit is not None:
                    connection.execute(insert(AUDITS), audit_row(audit))
                    note_last_records(connection, ref, audit.sources)
                    # The batches that a rebuild or a replay repeats were counted when runs
                    # published them.
                    if audit.is_written:
                        add_measurements(connection, ref.pipeline, totals_of_batch(snapshot, audit))
                if batch is not None:
                    connection.execute(insert(HISTORY), history_row(ref, batch))
                return True
            # The batch may be published already: a driver that crashed or lost its connection
            # during the commit does not know that the commit succeeded, and publishes again.
            same_batch = select(SNAPSHOTS).where(
                of_ref(SNAPSHOTS, ref), SNAPSHOTS.c.batch == snapshot.batch
            )
            row = connection.execute(same_batch).mappings().first()
        if row is None or _snapshot(row).positions != snapshot.positions:
            raise StateError(
                f"Batch {snapshot.batch} of {snapshot.pipeline!r} does not continue the published "
                f"state: the newest snapshot is {snapshot.generation}.{last}.",
                next_step=f"Start a new generation: sluice rebuild {snapshot.pipeline}.",
            )
        return False

    def times_before(self, ref: GenerationRef, batch: int) -> dict[str, int]:
        """Return the stream times of the preceding snapshot, from which a batch continues.

        Empty for the first batch. The ledger keeps the times of the newest two snapshots only.
        Raise DamagedState if the times are gone.
        """
        (row,) = self._read(_TIMES_BEFORE, {**msgspec.structs.asdict(ref), "batch": batch})
        if row["times"] is not None:
            return msgspec.json.decode(row["times"], type=dict[str, int])
        if row["has_snapshot"]:
            raise DamagedState(
                f"The ledger no longer has the stream times before batch {batch} of "
                f"{ref.pipeline!r}, and the batch needs them.",
                next_step="Restore the ledger, or rebuild the state from the topics: "
                f"sluice rebuild {ref.pipeline}.",
            )
        return {}

    def latest(self, pipeline: str) -> Snapshot | None:
        """Return the newest snapshot; None if there is none yet."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            row = connection.execute(_LATEST, {"of_pipeline": pipeline}).mappings().first()
        return None if row is None else _snapshot(row)

    def of_all_pipelines(self) -> list[Snapshot]:
        """Return the newest snapshot of each pipeline that has a snapshot."""
        last = (
            select(func.max(SNAPSHOTS.c.batch))
            .where(_IS_CURRENT)
            .correlate(PIPELINES)
            .scalar_subquery()
        )
        newest = select(PIPELINES.c.pipeline, PIPELINES.c.generation, last)
        # With this condition, the database reads only the newest snapshots. With a join, SQLite
        # would read all snapshots.
        key = tuple_(SNAPSHOTS.c.pipeline, SNAPSHOTS.c.generation, SNAPSHOTS.c.batch)
        return self._snapshots(select(SNAPSHOTS).where(key.in_(newest)))

    def kept_of_all_pipelines(self) -> dict[GenerationRef, KeptBatches]:
        """Return the oldest and newest batch of each current generation that has a batch."""
        # The database finds the two ends in its index. With GROUP BY, it would read the whole
        # index.
        rows = self._read(
            select(
                PIPELINES.c.pipeline,
                PIPELINES.c.generation,
                _end_of_current(func.min).label("oldest"),
                _end_of_current(func.max).label("newest"),
            )
        )
        kept: dict[GenerationRef, KeptBatches] = {}
        for row in rows:
            if row["newest"] is not None:
                kept[GenerationRef(row["pipeline"], row["generation"])] = KeptBatches(
                    row["oldest"], row["newest"]
                )
        return kept

    def recent_counts(self, limit: int) -> dict[str, list[int]]:
        """Return pipeline → the record counts of its newest `limit` batches, oldest first."""
        c = SNAPSHOTS.c
        last = select(func.max(c.batch)).where(_IS_CURRENT).correlate(PIPELINES)
        # The database finds the last batch, and then the newest batches, in its index.
        statement = (
            select(c.pipeline, c.counts)
            .join(PIPELINES, _IS_CURRENT)
            .where(c.batch > last.scalar_subquery() - limit)
            .order_by(c.pipeline, c.batch)
        )
        counts: dict[str, list[int]] = {}
        for row in self._read(statement):
            read = msgspec.json.decode(row["counts"], type=_ReadCount).read
            counts.setdefault(row["pipeline"], []).append(read)
        return counts

    def recent(
        self, pipeline: str, limit: int = 100, since: datetime | None = None
    ) -> list[Snapshot]:
        """Return the newest snapshots, newest first, published at `since` or later."""
        statement = (
            current(SNAPSHOTS)
            .where(SNAPSHOTS.c.pipeline == pipeline)
            .order_by(SNAPSHOTS.c.batch.desc())
        )
        if since is not None:
            statement = statement.where(SNAPSHOTS.c.published_at >= _as_text(since))
        return self._snapshots(statement.limit(limit))

    def since(
        self,
        moment: datetime,
        counting: Sequence[str] = ("",),
        pipeline: str | None = None,
    ) -> list[Snapshot]:
        """Return the snapshots that were published at or after `moment`, newest first.

        With `counting`, return only snapshots with a count whose name contains one of these texts,
        such as `late/`. The default, an empty text, is contained in every name.
        """
        published = SNAPSHOTS.c.published_at >= _as_text(moment)
        texts = [SNAPSHOTS.c.counts.contains(text, autoescape=True) for text in counting]
        counted = or_(*texts)
        statement = current(SNAPSHOTS).where(published, counted)
        if pipeline is not None:
            statement = statement.where(SNAPSHOTS.c.pipeline == pipeline)
        return self._snapshots(statement.order_by(SNAPSHOTS.c.batch.desc()))

    def oldest(self, pipeline: str) -> Snapshot | None:
        """Return the oldest snapshot that retention has not removed."""
        return self._first(
            current(SNAPSHOTS).where(SNAPSHOTS.c.pipeline == pipeline).order_by(SNAPSHOTS.c.batch)
        )

    def at(self, pipeline: str, moment: datetime) -> Snapshot | None:
        """Return the newest snapshot that was published at or before `moment`."""
        published = SNAPSHOTS.c.published_at <= _as_text(moment)
        return self._newest(SNAPSHOTS.c.pipeline == pipeline, published)

    def of_run(self, pipeline: str, run: str) -> Snapshot | None:
        """Return the last snapshot that a run published."""
        return self._newest(SNAPSHOTS.c.pipeline == pipeline, SNAPSHOTS.c.run == run)

    def all_of_run(self, pipeline: str, run: str) -> list[Snapshot]:
        """Return all snapshots that a run published, oldest first.

        A run that lingers publishes thousands of snapshots.
        """
        statement = current(SNAPSHOTS).where(
            SNAPSHOTS.c.pipeline == pipeline, SNAPSHOTS.c.run == run
        )
        return self._snapshots(statement.order_by(SNAPSHOTS.c.batch))

    def first_of_newest_run(self, ref: GenerationRef) -> int | None:
        """Return the first kept batch of the run that published a generation's newest snapshot.

        Return None if the generation has no snapshot yet.
        """
        newest = self.newest(ref)
        if newest is None:
            return None
        c = SNAPSHOTS.c
        of_others = select(func.coalesce(func.max(c.batch), -1)).where(
            of_ref(SNAPSHOTS, ref), c.run != newest.run
        )
        later = select(func.min(c.batch)).where(
            of_ref(SNAPSHOTS, ref), c.batch > of_others.scalar_subquery()
        )
        (row,) = self._read(later)
        first: int = next(iter(row.values()))
        return first

    def get(self, ref: GenerationRef, batch: int) -> Snapshot | None:
        """Return a snapshot of a generation, current or not.

        Return None if the snapshot was never published, or if retention has removed it.
        """
        return self._first(
            select(SNAPSHOTS).where(of_ref(SNAPSHOTS, ref), SNAPSHOTS.c.batch == batch)
        )

    def newest(self, ref: GenerationRef) -> Snapshot | None:
        """Return the newest snapshot of a generation, current or not; None if it has none."""
        of_generation = select(SNAPSHOTS).where(of_ref(SNAPSHOTS, ref))
        return self._first(of_generation.order_by(SNAPSHOTS.c.batch.desc()))

    def last_batch(self, ref: GenerationRef) -> int | None:
        """Return the newest published batch of a generation."""
        with database_errors("Reading the ledger"), self._engine.connect() as connection:
            return last_batch(connection, ref)

    def kept_batches(self) -> dict[GenerationRef, KeptBatches]:
        """Return the oldest and newest batch of each generation that has published a batch."""
        c = SNAPSHOTS.c
        generation = c.pipeline, c.generation
        batches = func.min(c.batch).label("oldest"), func.max(c.batch).label("newest")
        rows = self._read(select(*generation, *batches).group_by(*generation))
        kept: dict[GenerationRef, KeptBatches] = {}
        for row in rows:
            kept[GenerationRef(row["pipeline"], row["generation"])] = KeptBatches(
                row["oldest"], row["newest"]
            )
        return kept

    def forget(self, ref: GenerationRef, before: int) -> int:
        """Remove the snapshots older than batch `before`, but never the newest.

        Return the number removed.
        """
        with (
            database_errors("Removing old snapshots", seconds=None),
            transaction(self._engine) as connection,
        ):
            last = last_batch(connection, ref)
            if last is None:
                return 0
            oldest = min(before, last)
            connection.execute(delete(AUDITS).where(of_ref(AUDITS, ref), AUDITS.c.batch < oldest))
            return connection.execute(
                delete(SNAPSHOTS).where(of_ref(SNAPSHOTS, ref), SNAPSHOTS.c.batch < oldest)
            ).rowcount

    def _newest(self, *where: ColumnElement[bool]) -> Snapshot | None:
        return self._first(current(SNAPSHOTS).where(*where).order_by(SNAPSHOTS.c.batch.desc()))

    def _first(self, statement: Select[Any]) -> Snapshot | None:
        snapshots = self._snapshots(statement.limit(1))
        return snapshots[0] if snapshots else None

    def _snapshots(self, statement: Select[Any]) -> list[Snapshot]:
        return [_snapshot(row) for row in self._read(statement)]


_IS_CURRENT = and_(
    SNAPSHOTS.c.pipeline == PIPELINES.c.pipeline, SNAPSHOTS.c.generation == PIPELINES.c.generation
)
"""Whether a snapshot belongs to the current generation of its pipeline."""


def _end_of_current(end: Callable[[Any], Any]) -> ScalarSelect[Any]:
    """Select the first or the last batch of the generation in `PIPELINES`, with `end`."""
    batches = select(end(SNAPSHOTS.c.batch)).where(_IS_CURRENT)
    return batches.correlate(PIPELINES).scalar_subquery()


def last_batch(connection: Connection, ref: GenerationRef) -> int | None:
    """Return the newest published batch of a generation; None if it has none."""
    return connection.execute(
        select(func.max(SNAPSHOTS.c.batch)).where(of_ref(SNAPSHOTS, ref))
    ).scalar()


def require_predecessor(ref: GenerationRef, batch: int, newest: int | None) -> None:
    """Raise WentBack unless the newest published batch is the one before `batch`.

    A driver publishes its batches without gaps. If there is a gap, the ledger has lost batches that
    were published before `batch` was planned.
    """
    if newest is None and batch > 0:
        raise WentBack.of(ref.pipeline, f"{ref.generation}.{batch - 1}", None)
    if newest is not None and batch > newest + 1:
        raise WentBack.of(
            ref.pipeline, f"{ref.generation}.{batch - 1}", f"{ref.generation}.{newest}"
        )


def _insert_times(
    connection: Connection,
    snapshot: Snapshot,
    last: int | None,
    times: Mapping[str, int],
) -> None:
    if last is not None:
        # If this batch is repeated, it needs the stream times of the batch before it. So the ledger
        # keeps those times until the next batch is published.
        connection.execute(delete(TIMES).where(of_ref(TIMES, snapshot.ref), TIMES.c.batch < last))
    values = {"batch": snapshot.batch, "times": as_json(dict(times))}
    connection.execute(insert(TIMES), msgspec.structs.asdict(snapshot.ref) | values)


def snapshot_row(snapshot: Snapshot) -> dict[str, Any]:
    texts = json_texts(snapshot, _JSON_COLUMNS)
    published_at = _as_text(snapshot.published_at)
    return msgspec.structs.asdict(snapshot) | texts | {"published_at": published_at}


def _as_text(moment: datetime) -> str:
    """Return a time as the text that the ledger stores.

    The texts of all times are equally long, so every collation sorts them by time.
    """
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _snapshot(row: RowMapping) -> Snapshot:
    values = dict(row) | decode_columns(row, _JSON_COLUMNS)
    values["published_at"] = datetime.fromisoformat(row["published_at"])
    return Snapshot(**values)


def _before(table: Table) -> ColumnElement[bool]:
    """Condition that selects a generation's rows of earlier batches.

    Its parameters are the parameters of `of_given_ref`, and `batch`.
    """
    return and_(of_given_ref(table), table.c.batch < bindparam("batch"))


# Every batch begins with this query, so it is built only once.
_TIMES_BEFORE = select(
    select(TIMES.c.times)
    .where(_before(TIMES))
    .order_by(TIMES.c.batch.desc())
    .limit(1)
    .scalar_subquery()
    .label("times"),
    exists().where(_before(SNAPSHOTS)).label("has_snapshot"),
)

# Every server runs this query many times a second, so it is built only once.
_LATEST = (
    current(SNAPSHOTS)
    .where(SNAPSHOTS.c.pipeline == bindparam("of_pipeline"))
    .order_by(SNAPSHOTS.c.batch.desc())
    .limit(1)
)
