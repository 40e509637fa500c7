"""A shard: one worker's versioned state rows, and what its ordered operators remember."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from sluice.errors import DamagedState, LeaseError, Refused
from sluice.state.database import database_url
from sluice.state.model import NO_WINDOW, StateRow
from sluice.state.shard import operator_states, statements
from sluice.state.shard.addresses import is_remote, open_driver
from sluice.state.shard.checksums import NO_CHECKSUM, checksum_of, row_digest
from sluice.state.shard.drivers import Driver, Row
from sluice.state.shard.expiry import let_go
from sluice.state.shard.operator_states import Remembered, State, StateVersion
from sluice.state.shard.ranges import EVERYTHING, Range, conditions

if TYPE_CHECKING:
    import pyarrow as pa

_SORT = ("group_id", "key", "window_start")
_COMPACT_ROWS = 5_000
_KEYS_AT_ONCE = 500
FEW_KEYS = 32
"""As many keys of a file are looked up quicker one by one than together."""
_PAGE_ROWS = 20_000
_BEGIN, _END = (-1, "", NO_WINDOW, -1), (2**31 - 1, "", NO_WINDOW, -1)
_SEALED = "The shard has been moved away from here."
_STATE_ROWS = -1
"""In the journal, in place of an operator."""
_ROW_COLUMNS = ("group_id", "key", "window_start", "window_end", "value", "digest", "batch")


class Version(msgspec.Struct, frozen=True, array_like=True):
    """One version of one state row, as it goes from shard to shard."""

    group_id: int
    key: str
    window_start: int
    window_end: int
    batch: int
    value: str | None
    digest: int

    @property
    def row(self) -> Row:
        """The version without its batch."""
        return self.group_id, self.key, self.window_start, self.window_end, self.value


class Written(msgspec.Struct, frozen=True, array_like=True):
    """What a shard keeps of a batch: of its state rows, or of what one operator remembers."""

    operator: int
    """-1: of the state rows."""
    batch: int
    rows: int
    checksum: str


class Journal(msgspec.Struct, frozen=True, array_like=True):
    """All that a shard keeps of its batches, and the epoch of its last writer."""

    epoch: int
    batches: list[Written]

    @property
    def newest(self) -> int:
        """The newest batch; 0 if there is none."""
        return max((one.batch for one in self.batches), default=0)


class Checksums(msgspec.Struct, frozen=True, array_like=True):
    """A shard's checksums at a batch: of its state rows, and of what its operators remember."""

    state_rows: str
    states: str


class Shard:
    """One worker's state rows and operators' states, every batch a version of its own; readers name the batch they mean.

    Whoever writes, or reads to write, shows the epoch of a lease: LeaseError, and nothing is written, once the holder
    of a lease with a higher epoch has begun. Rows have digests: DamagedState for a row that a writer reads and that is
    not as it was written.

    Every method raises StateError when the database cannot be used. Calls may come from any thread.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.blocking = driver.blocking
        self.is_current = driver.is_current
        self.is_sealed = driver.is_sealed
        self.close = driver.close

    @classmethod
    def open(cls, url: str, *, to_write: bool = False, token: str = "") -> Self:
        """Open a shard; StateError if it is not there: a shard that is lost is never an empty one.

        `token` is shown to a state server; by default that of the settings.
        """
        if is_remote(url):
            return cast("Self", _remote().open(url, to_write=to_write, token=token))
        return cls(open_driver(url, "write" if to_write else "read"))

    @classmethod
    def create(cls, url: str, *, anew: bool = False) -> Self:
        """Open a shard for writing, and make it if it is not there: for a generation that has no snapshot yet.

        With `anew` it is to be filled from another one: it is sealed, and takes the place of one that is.
        """
        if is_remote(url):
            return cast("Self", _remote().create(url, anew=anew))
        if anew:
            discard_sealed(url)
        shard = cls(open_driver(url, "create"))
        if anew:
            shard.seal()
        return shard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, batch: int, rows: Iterable[Row], epoch: int = 0) -> int:
        """Write a batch in one transaction; written again, it replaces what it wrote before. Returns the rows written.

        No two rows may be of the same state row, key and window. Quickest when the rows come sorted by these.
        """
        ordered = sorted(rows, key=itemgetter(0, 1, 2))
        digests = [row_digest(row) for row in ordered]
        with self._writing(epoch):
            added = len(ordered)
            if self._driver.execute(statements.FORGET_BATCH, (_STATE_ROWS, batch)):
                added -= self._driver.execute("DELETE FROM state_rows WHERE batch = ?", (batch,))
            before = self._kept(_STATE_ROWS, batch - 1)
            replaced = () if before is None else self._driver.replaced(batch, ordered)
            total = int(before or "0", 16) + sum(digests) - sum(_checked(*row) for row in replaced)
            self._driver.insert(
                "state_rows",
                _ROW_COLUMNS,
                ((*row, digest, batch) for row, digest in zip(ordered, digests, strict=True)),
            )
            self._driver.execute(statements.WRITTEN, (_STATE_ROWS, batch, len(ordered), checksum_of(total)))
            self._driver.execute(statements.GROWN, (added, 0))
        return len(ordered)

    def expire(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> None:
        """Let go, as of a batch that is written, of windows that ended before a time: state row -> epoch ms.

        Done again, it changes nothing.
        """
        with self._writing(epoch):
            gone, added = let_go(self._driver, batch, ends)
            if gone:
                total = int(self.checksum(batch), 16) - sum(_checked(*row) for row in gone)
                rows = self.batches().get(batch, 0) + len(gone)
                self._driver.execute(statements.FORGET_BATCH, (_STATE_ROWS, batch))
                self._driver.execute(statements.WRITTEN, (_STATE_ROWS, batch, rows, checksum_of(total)))
                self._driver.execute(statements.GROWN, (added, 0))

    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, Remembered]:
        """What an operator remembers of keys as of the batch before `before`; keys without a state are left out.

        The state that is `shared` by all keys has the empty key.
        """
        found = operator_states.read(self._driver, operator, keys, before, shared)
        self._demand_newest(epoch)
        return found

    def due(self, operator: int, until: int, before: int, epoch: int, clock: str = "due") -> list[str]:
        """The keys for which an operator has something to do once a clock, `due` or `wall`, has reached `until`."""
        found = operator_states.due(self._driver, operator, until, before, clock)
        self._demand_newest(epoch)
        return found

    def write_states(self, batch: int, numbers: Iterable[int], states: Sequence[State], epoch: int) -> None:
        """Write what the operators of these numbers remember after a batch, in one transaction; again, it replaces."""
        by_operator: dict[int, list[State]] = {number: [] for number in numbers}
        for state in states:
            by_operator[state.operator].append(state)
        with self._writing(epoch):
            added = 0
            for number, mine in by_operator.items():
                if self._driver.execute(statements.FORGET_SINCE, (number, batch)):
                    added -= operator_states.remove(self._driver, number, batch)
                if mine:
                    before = int(self._kept(number, batch - 1) or "0", 16)
                    grown, more = operator_states.write(self._driver, batch, mine)
                    self._driver.execute(statements.FORGET_BUT_LAST, (number, number))
                    self._driver.execute(statements.WRITTEN, (number, batch, len(mine), checksum_of(before + grown)))
                    added += more
            self._driver.execute(statements.GROWN, (0, added))

    @contextmanager
    def _writing(self, epoch: int) -> Iterator[None]:
        """A transaction of the holder of a lease. Whoever held one before it is refused from then on."""
        with self._driver.transaction():
            if self._driver.is_sealed():
                raise Refused(_SEALED, next_step="Run the job again: it asks where the worker is when it starts.")
            # The row is locked until the end of the transaction: writers take turns.
            if not self._driver.execute(statements.FENCE, (epoch, epoch)):
                self._demand_newest(epoch)
            yield

    def _demand_newest(self, epoch: int) -> None:
        """Raise LeaseError if there is a newer writer: what was read just now may have been its."""
        found = self._driver.fetch("SELECT epoch FROM shard", ())
        if not found:
            raise DamagedState("The shard is damaged: it does not say who writes to it.")
        if found[0][0] > epoch:
            raise LeaseError("This driver has lost its lease: its successor works with the shard already.")

    def begin(self, epoch: int, as_of: int) -> Checksums:
        """Fence off every older writer, from now on; the checksums at a batch.

        DamagedState if there are more or fewer rows than were written.
        """
        with self._writing(epoch):
            pass
        self._demand_all_rows()
        return self.checksums(as_of)

    def _demand_all_rows(self) -> None:
        state_rows, rows_there, states, states_there = self._driver.fetch(statements.ROWS, ())[0]
        for what, written, there in (
            ("state_rows", state_rows, rows_there),
            ("operators' states", states, states_there),
        ):
            if written != there:
                raise DamagedState(f"The shard is damaged: {written} rows of {what} were written, and it has {there}.")

    def checksums(self, as_of: int) -> Checksums:
        """The checksums as they were kept when batch `as_of`, or the last one before it, was written."""
        kept = {number: int(text, 16) for number, text in self._driver.fetch(statements.CHECKSUMS, (as_of,))}
        return Checksums(checksum_of(kept.pop(_STATE_ROWS, 0)), checksum_of(sum(kept.values())))

    def checksum(self, as_of: int) -> str:
        """That of the state rows."""
        return self._kept(_STATE_ROWS, as_of) or NO_CHECKSUM

    def verify(self, as_of: int, published: Checksums | None = None) -> None:
        """Read all state rows as of a batch; DamagedState if they do not have their checksum, or the database is damaged.

        That is the checksum that was published, or else the one that was kept when they were written.
        """
        self._driver.check()
        self._demand_all_rows()
        wanted = self.checksum(as_of) if published is None else published.state_rows
        _demand_equal(sum(_checked(*row) for row in self._everything(as_of)), wanted, "state_rows")

    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        """The same of what operators remember. Only the newest two batches' states are kept."""
        wanted = (published or self.checksums(as_of)).states
        _demand_equal(operator_states.total(self._driver, as_of, _PAGE_ROWS), wanted, "operators' states")

    def _everything(self, as_of: int) -> Iterator[tuple[Any, ...]]:
        position: tuple[Any, ...] = (-1, "", NO_WINDOW)
        while page := self._driver.fetch(statements.PAGE_AS_OF, (*position, as_of, as_of, _PAGE_ROWS)):
            yield from page
            position = page[-1][:3]

    def _kept(self, operator: int, as_of: int) -> str | None:
        """The checksum with the newest batch, of state rows or an operator, that is not newer than `as_of`."""
        found = self._driver.fetch(statements.CHECKSUM, (operator, as_of))
        return found[0][0] if found else None

    def batches(self) -> dict[int, int]:
        """The batches of state rows written so far, each with its number of rows."""
        return dict(self._driver.fetch(statements.BATCHES, (_STATE_ROWS,)))

    def get(self, group_id: int, key: str, as_of: int, window_start: int = NO_WINDOW) -> str | None:
        """The value of a state row at a batch; None if there is none."""
        found = self._driver.fetch(statements.GET, (group_id, key, window_start, as_of))
        return found[0][0] if found else None

    def get_many(self, group_id: int, keys: Sequence[str], as_of: int) -> dict[str, str]:
        """The values of several keys at a batch; keys without a value are left out."""
        if len(keys) <= FEW_KEYS and not self.blocking:
            values = ((key, self.get(group_id, key, as_of)) for key in keys)
            return {key: value for key, value in values if value is not None}
        found: dict[str, str] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            sql = f"SELECT key, value {statements.AS_OF} AND c.window_start = ? AND c.key IN ({marks})"
            found.update(self._driver.fetch(sql, (group_id, as_of, as_of, NO_WINDOW, *some)))
        return found

    def changed(self, group_id: int, since: int, until: int, limit: int) -> list[tuple[str, int]]:
        """Keys and window starts of the state rows that batches after `since`, up to `until`, have changed, in order."""
        return [(key, start) for key, start in self._driver.fetch(statements.CHANGED, (group_id, since, until, limit))]

    def windows(
        self, group_id: int, key: str, as_of: int, start: int | None = None, end: int | None = None
    ) -> list[StateRow]:
        """The windows of a key whose start lies between two times (epoch ms, both inclusive), in order."""
        return self.scan(group_id, as_of, Range.of_key(key, start, end), limit=sys.maxsize)

    def scan(
        self,
        group_id: int,
        as_of: int,
        within: Range = EVERYTHING,
        *,
        after: tuple[str, int] | None = None,
        limit: int = 1_000,
        checked: bool = False,
    ) -> list[StateRow]:
        """A page of state rows sorted by key and window start, from right after the key and window start `after`.

        If it is to be `checked`, DamagedState for a state row that is not as it was written.
        """
        where, values = conditions(within, after)
        found = f"SELECT key, window_start, window_end, value, digest {statements.AS_OF}{where}"
        sql = f"{found} ORDER BY key, window_start LIMIT ?"
        rows = self._driver.fetch(sql, (group_id, as_of, as_of, *values, limit))
        for row in rows if checked else ():
            _checked(group_id, *row)
        return [StateRow(group_id, *row[:4]) for row in rows]

    def count(self, group_id: int, as_of: int, within: Range = EVERYTHING) -> int:
        """How many state rows a scan without a limit would give."""
        where, values = conditions(within, None)
        sql = f"SELECT count(*) {statements.AS_OF}{where}"
        counted: int = self._driver.fetch(sql, (group_id, as_of, as_of, *values))[0][0]
        return counted

    def compact(self, keep_from: int) -> int:
        """Remove the versions that no snapshot from batch `keep_from` on can show; returns how many.

        Works in small transactions, so that it may run beside a writer, and be ended at any time.
        """
        removed = 0
        position: tuple[Any, ...] | None = _BEGIN
        while position is not None:
            since = (*position, keep_from, keep_from)
            position = next(iter(self._driver.fetch(statements.NEXT_SUPERSEDED, (*since, _COMPACT_ROWS))), None)
            with self._driver.transaction():
                some = self._driver.execute(statements.DELETE_SUPERSEDED, (*since, *(position or _END)))
                self._driver.execute(statements.GROWN, (-some, 0))
                removed += some
        return removed

    def versions(self, since: int, after: tuple[int, str, int, int] | None, limit: int) -> list[Version]:
        """A page of all versions of batch `since` and later, sorted, after the state row, key, start and batch `after`."""
        return [Version(*row) for row in self._driver.fetch(statements.VERSIONS, (*(after or _BEGIN), since, limit))]

    def absorb(self, versions: Iterable[Version]) -> None:
        """Take versions over from another shard into a sealed one, in one transaction; their batches follow."""
        rows = [(*one.row, _checked(*one.row, one.digest), one.batch) for one in versions]
        with self._driver.transaction():
            self._demand_sealed()
            self._driver.insert("state_rows", _ROW_COLUMNS, rows)

    def state_versions(self, since: int, after: tuple[int, int, str, int] | None, limit: int) -> list[StateVersion]:
        """The same as `versions` of what operators remember, after the operator, shared, key and batch `after`."""
        return operator_states.versions(self._driver, since, after, limit)

    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        """The same as `absorb` of what operators remember."""
        with self._driver.transaction():
            self._demand_sealed()
            operator_states.absorb(self._driver, versions)

    def journal(self) -> Journal:
        """All that is kept of the batches written so far, oldest first."""
        ((epoch,),) = self._driver.fetch("SELECT epoch FROM shard", ())
        return Journal(epoch, [Written(*row) for row in self._driver.fetch(statements.JOURNAL, ())])

    def settle(self, since: int, journal: Journal) -> None:
        """Forget the versions of batch `since` and later, and take a journal for that of what is here."""
        with self._driver.transaction():
            self._demand_sealed()
            for table in ("state_rows", "states"):
                self._driver.execute(f"DELETE FROM {table} WHERE batch >= ?", (since,))
            self._driver.execute("DELETE FROM batches")
            for one in journal.batches:
                self._driver.execute(statements.WRITTEN, (one.operator, one.batch, one.rows, one.checksum))
            self._driver.execute(statements.COUNTED, (journal.epoch,))

    def seal(self, *, sealed: bool = True) -> None:
        """Refuse every batch from now on, because the shard is moved away; or, not `sealed`, take them again."""
        self._driver.seal(sealed)

    def _demand_sealed(self) -> None:
        if not self._driver.is_sealed():
            raise Refused("The shard is in use: nothing can be moved into it.")


def _checked(group_id: int, key: str, start: int, end: int, value: str | None, digest: int) -> int:
    """The digest of a state row's row; DamagedState if the row is not as it was written."""
    if row_digest((group_id, key, start, end, value)) != digest:
        raise DamagedState(f"The shard is damaged: state row {group_id} of the key {key!r} is not as it was written.")
    return digest


def _demand_equal(total: int, wanted: str, what: str) -> None:
    if (found := checksum_of(total)) != wanted:
        raise DamagedState(f"The shard is damaged: the checksum of its {what} is {found}, and was {wanted}.")


def discard_sealed(url: str) -> None:
    """Remove the file of a shard that was moved away, so that it can come back; Refused if it was not."""
    path = Path(database_url(url).database or "")
    if not path.exists():
        return
    with Shard.open(url) as shard:
        if not shard.is_sealed() and shard.batches():
            raise Refused(
                "There is a shard of this worker already, and it was not moved away.",
                next_step="If it is the very shard that is used now, start the state server with --workers.",
            )
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def rows_of(table: pa.Table) -> Iterator[Row]:
    """The rows of an Arrow table with the columns of `State row`, sorted as a shard likes them."""
    ordered = table.sort_by([(name, "ascending") for name in _SORT])
    return zip(*(ordered.column(name).to_pylist() for name in StateRow.__struct_fields__), strict=True)


def _remote() -> type[Shard]:
    # Only where there are state servers is a client of HTTP needed.
    from sluice.state.remote import RemoteShard

    return RemoteShard
