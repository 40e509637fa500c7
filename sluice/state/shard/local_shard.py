"""A shard that this process opens itself, in SQLite or PostgreSQL."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from typing_extensions import override

from sluice.errors import DamagedState, EngineError, LeaseError, Refused
from sluice.state.model import NO_WINDOW, EntryId, StateRow
from sluice.state.shard import answer_rows as recorded_answers
from sluice.state.shard import operator_states, statements
from sluice.state.shard.addresses import drop, exists, open_driver, shown
from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.checksums import NO_CHECKSUM, checksum_of, row_digest
from sluice.state.shard.database_driver import Driver
from sluice.state.shard.expired_windows import expire
from sluice.state.shard.operator_states import State, StateVersion, StoredState
from sluice.state.shard.ranges import EVERYTHING, RowRange, conditions
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import StoredRow, VersionId
from sluice.state.shard.shard import (
    NOTHING_FORGOTTEN,
    STATE_ROWS,
    Checksums,
    Clock,
    DigestSum,
    Journal,
    JournalEntry,
    LastPlaces,
    RowCounts,
    Shard,
    Version,
)

_COMPACT_ROWS = 5_000
_KEYS_AT_ONCE = 500
FEW_KEYS = 32
"""Up to this number of keys, reading a SQLite file key by key is faster than in one statement."""
_PAGE_ROWS = 20_000
_ROWS_PER_KEY = 4
"""If a page has at least this many rows per key, the newest window of each key is looked up in the
shard."""
_BEFORE_ALL = -(2**63)
"""The smallest number that a column of window starts can have."""
_READ_AT_BEGIN = 100_000
"""When a run begins, it reads and checks all rows of a shard that has at most this many rows. If a
shard has more, the run only reads the rows that it uses."""
_BEGIN: VersionId = (-1, "", NO_WINDOW, NO_WINDOW, -1)
_END: VersionId = (2**31 - 1, "", NO_WINDOW, NO_WINDOW, -1)
_SEALED = "The shard has been moved away from this server."
_ROW_COLUMNS = ("group_id", "key", "window_start", "window_end", "value", "digest")


class LocalShard(Shard):
    """A shard that this process opens itself. Adds to `Shard` the operations that queries need."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.blocking = driver.blocking
        self.is_current = driver.is_current
        self.is_sealed = driver.is_sealed
        self.pinned = driver.pinned
        self.hold = driver.hold
        self.release = driver.release

    @classmethod
    def open(cls, url: str, *, to_write: bool = False) -> Self:
        """Open a shard.

        Raise StateError if it does not exist, because a lost shard must not look empty.
        """
        return cls(open_driver(url, "write" if to_write else "read"))

    @classmethod
    def create(cls, url: str, *, anew: bool = False, continued: bool = False) -> Self:
        """Open a shard for writing, and create it if it does not exist.

        If neither `anew` nor `continued` is set, call this only for a generation without a
        snapshot. Otherwise, an empty shard would take the place of a lost shard. With `anew` or
        `continued`, the shard is sealed, to be filled from another shard. If there is a sealed
        shard already, `anew` replaces it, and `continued` keeps its rows. If there is a shard in
        use, both raise Refused.
        """
        # This address may still have an old, sealed shard. For example, the worker may have been
        # moved from here to another server earlier.
        if anew or (continued and not _is_copy(url)):
            _discard_sealed(url)
        shard = cls(open_driver(url, "create"))
        if anew or continued:
            shard.seal()
        return shard

    @override
    def close(self) -> None:
        self._driver.close()

    @override
    def rows_before(self, batch: int, ids: RowIds, epoch: int) -> dict[int, StoredRow]:
        before = self._versions_before(batch, ids)
        # The check comes after the read, because a newer writer that has begun during the read may
        # have written these rows.
        self._require_newest_writer(epoch)
        return before

    def _versions_before(self, batch: int, ids: RowIds) -> dict[int, StoredRow]:
        """Return the same as `rows_before`, in the shard's own transaction."""
        if self._recorded_checksum(STATE_ROWS, batch - 1) is None:
            return {}
        places = self._places_to_look_up(ids)
        if len(places) < len(ids):
            ids = ids.at(places)
        stored = {row[:4]: row for row in self._driver.versions_before(batch, ids)}
        for row in stored.values():
            _checked_digest(*row)
        return {
            place: stored[row_id]
            for place, row_id in zip(places, ids, strict=True)
            if row_id in stored
        }

    def _places_to_look_up(self, ids: RowIds) -> Sequence[int]:
        """Return the places of the rows that may have earlier versions.

        Most windows of a batch are new: they start after their key's newest window in the shard. So
        only this newest window is looked up for each key, and most other windows need no look-up.
        """
        keys = set(ids.pairs())
        if len(keys) > len(ids) // _ROWS_PER_KEY:
            return range(len(ids))
        newest = self._driver.newest_windows(keys)
        places = []
        for place, (key, start) in enumerate(zip(ids.pairs(), ids.window_starts, strict=True)):
            if start <= newest.get(key, _BEFORE_ALL):
                places.append(place)
        return places

    @override
    def write_pages(
        self,
        batch: int,
        pages: Iterable[RowColumns],
        epoch: int = 0,
        replaced: DigestSum = None,
    ) -> int:
        with self._writing(epoch, batch, [STATE_ROWS]):
            written = 0
            # A retry replaces the rows that the first attempt has written.
            removed = 0
            if self._driver.execute(statements.DELETE_BATCH, (STATE_ROWS, batch)):
                removed = self._driver.execute("DELETE FROM state_rows WHERE batch = ?", (batch,))
            total = int(self._recorded_checksum(STATE_ROWS, batch - 1) or "0", 16)
            for page in pages:
                rows = page
                if replaced is None:
                    before = self._versions_before(batch, page.ids)
                    total -= sum(digest for *_, digest in before.values())
                    rows = page.with_needed_tombstones(before)
                total += sum(rows.digests)
                self._driver.insert("state_rows", _ROW_COLUMNS, rows, {"batch": batch})
                written += len(rows)
            if replaced is not None:
                total -= replaced()
            self._driver.execute(
                statements.INSERT_BATCH, (STATE_ROWS, batch, written, checksum_of(total))
            )
            self._driver.execute(statements.ADD_TO_ROW_COUNTS, (written - removed, 0))
        return written

    @override
    def expire_windows(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> None:
        with self._writing(epoch, batch, [STATE_ROWS]):
            expired, added = expire(self._driver, batch, ends)
            if expired:
                digests = sum(_checked_digest(*row) for row in expired)
                total = int(self.checksum(batch), 16) - digests
                rows = self.batches().get(batch, 0) + len(expired)
                self._driver.execute(statements.DELETE_BATCH, (STATE_ROWS, batch))
                self._driver.execute(
                    statements.INSERT_BATCH, (STATE_ROWS, batch, rows, checksum_of(total))
                )
                self._driver.execute(statements.ADD_TO_ROW_COUNTS, (added, 0))

    @override
    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, StoredState]:
        states = operator_states.read(self._driver, operator, keys, before, shared)
        self._require_newest_writer(epoch)
        return states

    @override
    def due_keys(
        self,
        operator: int,
        until: int,
        before: int,
        epoch: int,
        clock: Clock = "due",
    ) -> list[str]:
        keys = operator_states.due(self._driver, operator, until, before, clock)
        self._require_newest_writer(epoch)
        return keys

    @override
    def earliest_timer(
        self,
        operator: int,
        before: int,
        epoch: int,
        clock: Clock = "wall",
        after: int = -1,
    ) -> int | None:
        time = operator_states.earliest_timer(self._driver, operator, before, clock, after)
        self._require_newest_writer(epoch)
        return time

    @override
    def write_states(
        self,
        batch: int,
        numbers: Iterable[int],
        states: Sequence[State],
        epoch: int,
    ) -> None:
        by_operator: dict[int, list[State]] = {number: [] for number in numbers}
        for state in states:
            by_operator[state.operator].append(state)
        with self._writing(epoch, batch, by_operator):
            added = 0
            for number, states_of_operator in by_operator.items():
                if self._driver.execute(statements.DELETE_BATCH, (number, batch)):
                    added -= operator_states.remove(self._driver, number, batch)
                if states_of_operator:
                    total = int(self._recorded_checksum(number, batch - 1) or "0", 16)
                    digest_growth, row_growth = operator_states.write(
                        self._driver, batch, states_of_operator
                    )
                    # The entry of the preceding batch stays, because a retry of this batch starts
                    # from the checksum in that entry.
                    self._driver.execute(statements.DELETE_OLDER_BATCHES, (number, number))
                    entry = (
                        number,
                        batch,
                        len(states_of_operator),
                        checksum_of(total + digest_growth),
                    )
                    self._driver.execute(statements.INSERT_BATCH, entry)
                    added += row_growth
            self._driver.execute(statements.ADD_TO_ROW_COUNTS, (0, added))

    @override
    def read_answers(self, step: str, ids: Sequence[str], epoch: int) -> list[RecordedAnswer]:
        answers: list[RecordedAnswer] = []
        if self._has_answers:
            answers = recorded_answers.read(self._driver, step, ids)
        self._require_newest_writer(epoch)
        return answers

    @override
    def write_answers(
        self,
        answers: Sequence[RecordedAnswer],
        epoch: int,
        *,
        forget: Mapping[str, int] = NOTHING_FORGOTTEN,
    ) -> None:
        with self._writing(epoch):
            self._prepare_answers()
            recorded_answers.write(self._driver, answers)
            for step, before in forget.items():
                recorded_answers.forget(self._driver, step, before)

    @override
    def forget_failures(self, batch: int, epoch: int) -> None:
        with self._writing(epoch):
            self._prepare_answers()
            recorded_answers.forget_failures(self._driver, batch)

    @override
    def answers(self, after: tuple[int, str, str] | None, limit: int) -> list[RecordedAnswer]:
        if not self._has_answers:
            return []
        return recorded_answers.page(self._driver, after, limit)

    @override
    def absorb_answers(self, answers: Sequence[RecordedAnswer], oldest: int) -> None:
        with self._driver.transaction():
            self._require_sealed()
            self._prepare_answers()
            recorded_answers.write(self._driver, answers)
            recorded_answers.forget_all(self._driver, oldest)

    def _prepare_answers(self) -> None:
        # A task records answers many times. Preparing the table again each time would lock it,
        # because PostgreSQL takes a lock on the table even if the index to create exists already.
        if not self._has_answers:
            recorded_answers.prepare(self._driver)

    @property
    def _has_answers(self) -> bool:
        return self._driver.has_table("answers")

    @contextmanager
    def _writing(self, epoch: int, batch: int = 0, operators: Iterable[int] = ()) -> Iterator[None]:
        """Yield a write transaction of a lease's holder. It fences off holders of older leases.

        Raise EngineError if one of the operators has already written a newer batch. That happens
        because Spark gives up a task if it cannot reach the task's executor. The executor may still
        reach the shard, even after the next batch has begun.
        """
        with self._driver.transaction():
            if self._driver.is_sealed():
                raise Refused(
                    _SEALED,
                    next_step="Run the pipeline again. A run looks up each worker's state server "
                    "when it starts. If the error comes again, a move was interrupted: repeat "
                    "the move. Or move the worker back to the server that sluice workers "
                    "PIPELINE shows.",
                )
            # The update locks the only row of the table `shard` until the end of the transaction,
            # so writers take turns.
            if not self._driver.execute(statements.FENCE_OLDER_WRITERS, (epoch, epoch)):
                self._require_newest_writer(epoch)
            for operator in operators:
                self._require_batch_order(operator, batch)
            yield

    def _require_batch_order(self, operator: int, batch: int) -> None:
        newest = self._driver.fetch(statements.NEWEST_BATCH, (operator,))[0][0]
        if newest is not None and newest > batch:
            raise EngineError(
                f"The shard already has batch {newest}, so a late task can no longer write batch "
                f"{batch}.",
                next_step="Nothing needs to be done: Spark has run the task again elsewhere.",
            )

    def _require_newest_writer(self, epoch: int) -> None:
        """Raise LeaseError if a newer writer may have written the rows that were read."""
        epochs = self._driver.fetch("SELECT epoch FROM shard", ())
        if not epochs:
            raise DamagedState("The shard is damaged: the epoch of its writer is missing.")
        if epochs[0][0] > epoch:
            raise LeaseError(
                "This driver has lost its lease: another driver already writes to the shard.",
                next_step="Nothing needs to be done: the other driver continues after the newest "
                "published batch.",
            )

    @override
    def begin_run(self, epoch: int, as_of: int) -> Checksums:
        with self._writing(epoch):
            # This transaction fences off older writers, so that nothing changes while the rows are
            # counted.
            pass
        rows = self._require_row_counts()
        with self._writing(epoch):
            self._forget_since(as_of + 1)
        checksums = self.checksums(as_of)
        if rows <= _READ_AT_BEGIN:
            self._verify_rows(as_of, checksums.state_rows)
            self.verify_states(as_of, checksums)
        return checksums

    def _forget_since(self, batch: int) -> None:
        """Remove the batches from `batch` on, which were never published, within a transaction."""
        if self._driver.execute("DELETE FROM batches WHERE batch >= ?", (batch,)):
            rows = self._driver.execute("DELETE FROM state_rows WHERE batch >= ?", (batch,))
            states = self._driver.execute("DELETE FROM states WHERE batch >= ?", (batch,))
            self._driver.execute(statements.ADD_TO_ROW_COUNTS, (-rows, -states))

    def _require_row_counts(self) -> int:
        """Return the number of rows in the shard.

        Raise DamagedState if it differs from the recorded number.
        """
        state_rows, rows_there, states, states_there = self._driver.fetch(
            statements.ROW_COUNTS, ()
        )[0]
        for what, written, there in (
            ("state rows", state_rows, rows_there),
            ("operator states", states, states_there),
        ):
            if written != there:
                raise DamagedState(
                    f"The shard is damaged: {written} {what} were written, but the shard has "
                    f"{there}."
                )
        return int(rows_there + states_there)

    @override
    def checksums(self, as_of: int) -> Checksums:
        recorded = self._driver.fetch(statements.CHECKSUMS, (as_of,))
        totals = {operator: int(checksum, 16) for operator, checksum in recorded}
        return Checksums(checksum_of(totals.pop(STATE_ROWS, 0)), checksum_of(sum(totals.values())))

    def checksum(self, as_of: int) -> str:
        """Return the recorded checksum of the state rows at batch `as_of`."""
        return self._recorded_checksum(STATE_ROWS, as_of) or NO_CHECKSUM

    @override
    def verify_rows(self, as_of: int, published: Checksums | None = None) -> None:
        self._driver.check_integrity()
        self._require_row_counts()
        expected = self.checksum(as_of) if published is None else published.state_rows
        self._verify_rows(as_of, expected)

    def _verify_rows(self, as_of: int, checksum: str) -> None:
        total = sum(_checked_digest(*row) for row in self._rows_as_of(as_of))
        _require_checksum(total, checksum, "state rows")

    @override
    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        expected = (published or self.checksums(as_of)).states
        _require_checksum(
            operator_states.total(self._driver, as_of, _PAGE_ROWS), expected, "operator states"
        )

    def _rows_as_of(self, as_of: int) -> Iterator[tuple[Any, ...]]:
        position: tuple[Any, ...] = _BEGIN[:4]
        while page := self._driver.fetch(
            statements.PAGE_AS_OF, (*position, as_of, as_of, _PAGE_ROWS)
        ):
            yield from page
            position = page[-1][:4]

    def _recorded_checksum(self, operator: int, as_of: int) -> str | None:
        """Return the checksum of an operator's states, or of the state rows, at batch `as_of`.

        Return None if no batch up to `as_of` has written such states or rows.
        """
        rows = self._driver.fetch(statements.CHECKSUM, (operator, as_of))
        return rows[0][0] if rows else None

    def batches(self) -> dict[int, int]:
        """Return batch → number of state rows written."""
        return dict(self._driver.fetch(statements.ROWS_BY_BATCH, (STATE_ROWS,)))

    def get(self, group_id: int, key: str, as_of: int) -> str | None:
        """Return the value of a key without windows as of a batch; None if there is no value."""
        rows = self._driver.fetch(
            statements.VALUE_AS_OF, (group_id, key, NO_WINDOW, NO_WINDOW, as_of)
        )
        return rows[0][0] if rows else None

    def get_many(self, group_id: int, keys: Sequence[str], as_of: int) -> dict[str, str]:
        """Return key → value as of a batch, for several keys. Omit keys without a value."""
        by_key: dict[str, str] = {}
        if len(keys) <= FEW_KEYS and not self.blocking:
            for key in keys:
                value = self.get(group_id, key, as_of)
                if value is not None:
                    by_key[key] = value
            return by_key
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            chunk = keys[start : start + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(chunk))
            condition = f"c.window_start = ? AND c.key IN ({marks})"
            sql = f"SELECT key, value {statements.ROWS_AS_OF} AND {condition}"
            by_key.update(self._driver.fetch(sql, (group_id, as_of, as_of, NO_WINDOW, *chunk)))
        return by_key

    def changed_keys(
        self,
        group_id: int,
        since: int,
        until: int,
        limit: int,
    ) -> list[EntryId]:
        """Return the sorted ids of the state rows that changed after `since`, up to `until`."""
        rows = self._driver.fetch(statements.CHANGED, (group_id, since, until, limit))
        return [(key, start, end) for key, start, end in rows]

    def windows(
        self, group_id: int, key: str, as_of: int, start: int | None = None, end: int | None = None
    ) -> list[StateRow]:
        """Return the sorted windows of a key that start between two times (both inclusive)."""
        return self.scan(group_id, as_of, RowRange.of_key(key, start, end), limit=sys.maxsize)

    @override
    def scan(
        self,
        group_id: int,
        as_of: int,
        within: RowRange = EVERYTHING,
        *,
        after: EntryId | None = None,
        limit: int = 1_000,
        checked: bool = False,
    ) -> list[StateRow]:
        where, values = conditions(within, after)
        sql = (
            f"SELECT key, window_start, window_end, value, digest {statements.ROWS_AS_OF}{where} "
            "ORDER BY key, window_start, window_end LIMIT ?"
        )
        rows = self._driver.fetch(sql, (group_id, as_of, as_of, *values, limit))
        if checked:
            for row in rows:
                _checked_digest(group_id, *row)
        return [StateRow(group_id, *row[:4]) for row in rows]

    def count(self, group_id: int, as_of: int, within: RowRange = EVERYTHING) -> int:
        """Return the number of state rows of a range with a value of the first store.

        JSON's null does not count as a value.
        """
        where, values = conditions(within, None)
        sql = f"SELECT count(*) {statements.ROWS_AS_OF} AND substr(c.value, 1, 5) <> '[null'{where}"
        counted: int = self._driver.fetch(sql, (group_id, as_of, as_of, *values))[0][0]
        return counted

    @override
    def compact(self, keep_from: int) -> int:
        # Each step deletes a limited number of rows, so that a run never waits long for the lock.
        removed = 0
        position: tuple[Any, ...] | None = _BEGIN
        while position is not None:
            since = (*position, keep_from, keep_from)
            ends = self._driver.fetch(statements.NEXT_SUPERSEDED, (*since, _COMPACT_ROWS))
            position = ends[0] if ends else None
            until = position or _END
            with self._driver.transaction():
                deleted = self._driver.execute(statements.DELETE_SUPERSEDED, (*since, *until))
                self._driver.execute(statements.ADD_TO_ROW_COUNTS, (-deleted, 0))
                removed += deleted
        return removed

    @override
    def row_versions(
        self,
        since: int,
        after: VersionId | None,
        limit: int,
    ) -> list[Version]:
        place = after or _BEGIN
        rows = self._driver.fetch(statements.VERSIONS, (*place, since, limit))
        return [Version(*row) for row in rows]

    @override
    def absorb_rows(self, versions: Iterable[Version]) -> None:
        # The digest comes with the row, so a row that was altered on the way is refused.
        rows = [
            (*version.row, _checked_digest(*version.row, version.digest), version.batch)
            for version in versions
        ]
        with self._driver.transaction():
            self._require_sealed()
            self._driver.insert("state_rows", (*_ROW_COLUMNS, "batch"), rows)

    @override
    def state_versions(
        self,
        since: int,
        after: tuple[int, int, str, int] | None,
        limit: int,
    ) -> list[StateVersion]:
        return operator_states.versions(self._driver, since, after, limit)

    @override
    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        with self._driver.transaction():
            self._require_sealed()
            operator_states.absorb(self._driver, versions)

    @override
    def journal(self) -> Journal:
        ((epoch,),) = self._driver.fetch("SELECT epoch FROM shard", ())
        rows = self._driver.fetch(statements.JOURNAL, ())
        return Journal(epoch, [JournalEntry(*row) for row in rows])

    @override
    def last_places(self) -> LastPlaces:
        rows = self._driver.fetch(statements.LAST_ROW, ())
        states = self._driver.fetch(statements.LAST_STATE, ())
        newest_answer = None
        if self._has_answers:
            newest_answer = recorded_answers.newest(self._driver)
        return LastPlaces(
            row=rows[0] if rows else None,
            state=states[0] if states else None,
            answer=newest_answer,
        )

    @override
    def row_counts(self) -> RowCounts:
        groups = self._driver.fetch(statements.ROWS_BY_GROUP, ())
        operators = self._driver.fetch(statements.STATES_BY_OPERATOR, ())
        return RowCounts(dict(groups), dict(operators))

    @override
    def replace_journal(self, since: int, journal: Journal) -> None:
        with self._driver.transaction():
            self._require_sealed()
            for table in ("state_rows", "states"):
                self._driver.execute(f"DELETE FROM {table} WHERE batch >= ?", (since,))
            self._driver.execute("DELETE FROM batches")
            for entry in journal.batches:
                self._driver.execute(
                    statements.INSERT_BATCH,
                    (entry.operator, entry.batch, entry.rows, entry.checksum),
                )
            self._driver.execute(statements.RESET_WRITER, (journal.epoch,))

    @override
    def seal(self, *, sealed: bool = True) -> None:
        self._driver.seal(sealed)

    def _require_sealed(self) -> None:
        if not self._driver.is_sealed():
            raise Refused(
                "The shard is in use. Only a sealed shard can be filled from another shard."
            )


def _checked_digest(
    group_id: int,
    key: str,
    start: int,
    end: int,
    value: str | None,
    digest: int,
) -> int:
    """Return the digest of a state row.

    Raise DamagedState if the row was altered since it was written.
    """
    if row_digest((group_id, key, start, end, value)) != digest:
        raise DamagedState(
            f"The shard is damaged: the state row of group {group_id}, key {key!r} was altered."
        )
    return digest


def _require_checksum(total: int, expected: str, what: str) -> None:
    checksum = checksum_of(total)
    if checksum != expected:
        raise DamagedState(
            f"The shard is damaged: the checksum of its {what} is {checksum}, expected {expected}."
        )


def _is_copy(url: str) -> bool:
    """Return whether there is a sealed shard, which may be an unfinished copy."""
    if not exists(url):
        return False
    with LocalShard.open(url) as shard:
        return bool(shard.is_sealed())


def _discard_sealed(url: str) -> None:
    """Remove a sealed or empty shard, so that a new copy can take its place.

    Raise Refused if the shard has rows and is not sealed, because it may be in use.
    """
    if not exists(url):
        return
    with LocalShard.open(url) as shard:
        if not shard.is_sealed() and shard.batches():
            raise Refused(
                f"The worker already has a shard here that is not sealed: {shown(url)}.",
                next_step="If this shard is in use, start the state server with --workers. If "
                "another shard is in use, check that shard: sluice audit PIPELINE --verify. If "
                "that shard is intact, delete the shard here.",
            )
    drop(url)
