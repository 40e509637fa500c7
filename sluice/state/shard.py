"""A shard: one worker's versioned cells."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

import msgspec

from sluice.errors import LeaseError, Refused, StateError
from sluice.state import statements
from sluice.state.addresses import is_remote, open_driver
from sluice.state.checksums import NO_CHECKSUM, add_up
from sluice.state.database import database_url
from sluice.state.drivers import Driver, Row
from sluice.state.expiry import let_go
from sluice.state.model import NO_WINDOW, Cell
from sluice.state.ranges import EVERYTHING, Range, conditions

if TYPE_CHECKING:
    import pyarrow as pa

_SORT = ("cell", "key", "window_start")
_COMPACT_ROWS = 5_000
_KEYS_AT_ONCE = 500
FEW_KEYS = 32
"""As many keys of a file are looked up quicker one by one than together."""
_PAGE_ROWS = 20_000
_BEGIN, _END = (-1, "", NO_WINDOW, -1), (2**31 - 1, "", NO_WINDOW, -1)
_SEALED = "The shard has been moved away from here."


class Version(msgspec.Struct, frozen=True, array_like=True):
    """One version of one cell, as it goes from shard to shard."""

    cell: int
    key: str
    window_start: int
    window_end: int
    batch: int
    value: str | None

    @property
    def row(self) -> Row:
        """The version without its batch."""
        return self.cell, self.key, self.window_start, self.window_end, self.value


class Written(msgspec.Struct, frozen=True, array_like=True):
    """What a shard keeps of a batch."""

    batch: int
    rows: int
    checksum: str
    epoch: int


class Shard:
    """One worker's cells, every batch a version of its own; readers name the batch they mean.

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
        """Open a shard for writing, and make it if it is not there: for a generation that has no cut yet.

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

        No two rows may be of the same cell, key and window. Quickest when the rows come sorted by these. LeaseError,
        and nothing is written, if the holder of a lease with a higher epoch has written already.
        """
        ordered = sorted(rows, key=itemgetter(0, 1, 2))
        with self._driver.transaction():
            self._demand_mine(epoch)
            if self._driver.execute("DELETE FROM batches WHERE batch = ?", (batch,)):
                self._driver.execute("DELETE FROM cells WHERE batch = ?", (batch,))
            before = self._last("checksum", batch - 1, None)
            replaced = () if before is None else self._driver.replaced(batch, ordered)
            checksum = add_up(ordered, int(before or "0", 16), minus=replaced)
            self._driver.insert_cells(batch, ordered)
            values = (batch, len(ordered), f"{checksum:016x}", epoch)
            self._driver.execute(statements.WRITTEN, values)
        return len(ordered)

    def expire(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> str:
        """Let go, as of a batch that is written, of windows that ended before a time: cell -> epoch ms.

        Returns the state's checksum afterwards. Done again, it changes nothing. Raises LeaseError as `write` does.
        """
        with self._driver.transaction():
            self._demand_mine(epoch)
            if gone := let_go(self._driver, batch, ends):
                checksum = add_up((), int(self.checksum(batch), 16), minus=gone)
                rows = self.batches().get(batch, 0) + len(gone)
                self._driver.execute("DELETE FROM batches WHERE batch = ?", (batch,))
                self._driver.execute(statements.WRITTEN, (batch, rows, f"{checksum:016x}", epoch))
        return self.checksum(batch)

    def _demand_mine(self, epoch: int) -> None:
        """Within a transaction: raise Refused if the shard was moved away, LeaseError if it has a newer writer."""
        if self._driver.is_sealed():
            raise Refused(_SEALED, next_step="Run the job again: it asks where the worker is when it starts.")
        if self._last("epoch", sys.maxsize, 0) > epoch:
            raise LeaseError("This driver has lost its lease: its successor has written to the shard already.")

    def checksum(self, as_of: int) -> str:
        """The state's checksum as it was kept when batch `as_of`, or the last one before it, was written."""
        return str(self._last("checksum", as_of, NO_CHECKSUM))

    def verify(self, as_of: int, checksum: str | None = None) -> None:
        """Read everything; StateError if the database is damaged or its cells at a batch do not have their checksum.

        That is the one that was published, or else the one that was kept when they were written.
        """
        self._driver.check()
        found, published = f"{add_up(self._everything(as_of)):016x}", checksum or self.checksum(as_of)
        if found != published:
            raise StateError(f"The shard is damaged: its checksum is {found}, and was {published}.")

    def _everything(self, as_of: int) -> Iterator[Row]:
        position: tuple[Any, ...] = (-1, "", NO_WINDOW)
        while page := self._driver.fetch(statements.PAGE_AS_OF, (*position, as_of, as_of, _PAGE_ROWS)):
            yield from page
            position = page[-1][:3]

    def _last(self, column: str, batch: int, default: Any) -> Any:
        """A column of the newest batch written that is not newer than `batch`."""
        sql = f"SELECT {column} FROM batches WHERE batch <= ? ORDER BY batch DESC LIMIT 1"
        found = self._driver.fetch(sql, (batch,))
        return found[0][0] if found else default

    def batches(self) -> dict[int, int]:
        """The batches written so far, each with its number of rows."""
        return dict(self._driver.fetch('SELECT batch, "rows" FROM batches ORDER BY batch', ()))

    def get(self, cell: int, key: str, as_of: int, window_start: int = NO_WINDOW) -> str | None:
        """The value of a cell at a batch; None if there is none."""
        found = self._driver.fetch(statements.GET, (cell, key, window_start, as_of))
        return found[0][0] if found else None

    def get_many(self, cell: int, keys: Sequence[str], as_of: int) -> dict[str, str]:
        """The values of several keys at a batch; keys without a value are left out."""
        if len(keys) <= FEW_KEYS and not self.blocking:
            values = ((key, self.get(cell, key, as_of)) for key in keys)
            return {key: value for key, value in values if value is not None}
        found: dict[str, str] = {}
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            some = keys[start : start + _KEYS_AT_ONCE]
            marks = ", ".join("?" * len(some))
            sql = f"SELECT key, value {statements.AS_OF} AND c.window_start = ? AND c.key IN ({marks})"
            found.update(self._driver.fetch(sql, (cell, as_of, as_of, NO_WINDOW, *some)))
        return found

    def changed(self, cell: int, since: int, until: int, limit: int) -> list[tuple[str, int]]:
        """Keys and window starts of the cells that batches after `since`, up to `until`, have changed, in order."""
        return [(key, start) for key, start in self._driver.fetch(statements.CHANGED, (cell, since, until, limit))]

    def windows(self, cell: int, key: str, as_of: int, start: int | None = None, end: int | None = None) -> list[Cell]:
        """The windows of a key whose start lies between two times (epoch ms, both inclusive), in order."""
        return self.scan(cell, as_of, Range.of_key(key, start, end), limit=sys.maxsize)

    def scan(
        self,
        cell: int,
        as_of: int,
        within: Range = EVERYTHING,
        *,
        after: tuple[str, int] | None = None,
        limit: int = 1_000,
    ) -> list[Cell]:
        """A page of cells sorted by key and window start, from right after the key and window start `after`."""
        where, values = conditions(within, after)
        found = f"SELECT key, window_start, window_end, value {statements.AS_OF}{where}"
        sql = f"{found} ORDER BY key, window_start LIMIT ?"
        return [Cell(cell, *row) for row in self._driver.fetch(sql, (cell, as_of, as_of, *values, limit))]

    def count(self, cell: int, as_of: int, within: Range = EVERYTHING) -> int:
        """How many cells a scan without a limit would give."""
        where, values = conditions(within, None)
        sql = f"SELECT count(*) {statements.AS_OF}{where}"
        counted: int = self._driver.fetch(sql, (cell, as_of, as_of, *values))[0][0]
        return counted

    def compact(self, keep_from: int) -> int:
        """Remove the versions that no cut from batch `keep_from` on can show; returns how many.

        Works in small transactions, so that it may run beside a writer, and be ended at any time.
        """
        removed = 0
        position: tuple[Any, ...] | None = _BEGIN
        while position is not None:
            since = (*position, keep_from, keep_from)
            position = next(iter(self._driver.fetch(statements.NEXT_SUPERSEDED, (*since, _COMPACT_ROWS))), None)
            with self._driver.transaction():
                removed += self._driver.execute(statements.DELETE_SUPERSEDED, (*since, *(position or _END)))
        return removed

    def versions(self, since: int, after: tuple[int, str, int, int] | None, limit: int) -> list[Version]:
        """A page of all versions of batch `since` and later, sorted, after the cell, key, start and batch `after`."""
        return [Version(*row) for row in self._driver.fetch(statements.VERSIONS, (*(after or _BEGIN), since, limit))]

    def absorb(self, versions: Iterable[Version]) -> None:
        """Take versions over from another shard into a sealed one, in one transaction; their batches follow."""
        by_batch: dict[int, list[Row]] = {}
        for one in versions:
            by_batch.setdefault(one.batch, []).append(one.row)
        with self._driver.transaction():
            self._demand_sealed()
            for batch, rows in by_batch.items():
                self._driver.insert_cells(batch, rows)

    def journal(self) -> list[Written]:
        """The batches written so far, oldest first, each with all that is kept of it."""
        return [Written(*row) for row in self._driver.fetch(statements.JOURNAL, ())]

    def settle(self, since: int, batches: Iterable[Written]) -> None:
        """Forget the versions of batch `since` and later, and take `batches` for those that are written."""
        with self._driver.transaction():
            self._demand_sealed()
            self._driver.execute("DELETE FROM cells WHERE batch >= ?", (since,))
            self._driver.execute("DELETE FROM batches")
            for one in batches:
                values = (one.batch, one.rows, one.checksum, one.epoch)
                self._driver.execute(statements.WRITTEN, values)

    def seal(self, *, sealed: bool = True) -> None:
        """Refuse every batch from now on, because the shard is moved away; or, not `sealed`, take them again."""
        self._driver.seal(sealed)

    def _demand_sealed(self) -> None:
        if not self._driver.is_sealed():
            raise Refused("The shard is in use: nothing can be moved into it.")


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
    """The rows of an Arrow table with the columns of `Cell`, sorted as a shard likes them."""
    ordered = table.sort_by([(name, "ascending") for name in _SORT])
    return zip(*(ordered.column(name).to_pylist() for name in Cell.__struct_fields__), strict=True)


def _remote() -> type[Shard]:
    # Only where there are state servers is a client of HTTP needed.
    from sluice.state.remote import RemoteShard

    return RemoteShard
