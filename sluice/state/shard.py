"""A shard: one worker's versioned cells."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from sluice.errors import LeaseError, SettingsError, StateError
from sluice.state.database import database_url
from sluice.state.drivers import Driver, Mode, PostgresDriver, Row, SqliteDriver, drop_schema
from sluice.state.model import NO_WINDOW, Cell

if TYPE_CHECKING:
    import pyarrow as pa

_SORT = ("cell", "key", "window_start")
_COMPACT_ROWS = 5_000
_PAGE_ROWS = 20_000
_POSTGRES_NAME_BYTES = 63
_END = (2**31 - 1, "", NO_WINDOW, -1)

_GET = (
    "SELECT value FROM cells WHERE cell = ? AND key = ? AND window_start = ? AND batch <= ? ORDER BY batch DESC LIMIT 1"
)
# The version of each cell that was the newest at a batch, unless it is a tombstone.
_AS_OF = """FROM cells AS c WHERE cell = ? AND batch <= ? AND value IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
    AND n.batch > c.batch AND n.batch <= ?)"""
_PAGE_AS_OF = """SELECT cell, key, window_start, window_end, value FROM cells AS c
    WHERE (cell, key, window_start) > (?, ?, ?) AND batch <= ? AND value IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
        AND n.batch > c.batch AND n.batch <= ?)
    ORDER BY cell, key, window_start LIMIT ?"""
# Versions that no cut from a batch on can show: superseded by then, or a tombstone with nothing under it.
_SUPERSEDED = """FROM cells AS c WHERE (cell, key, window_start, batch) > (?, ?, ?, ?) AND batch <= ? AND (
    value IS NULL OR EXISTS (
        SELECT 1 FROM cells AS n WHERE n.cell = c.cell AND n.key = c.key AND n.window_start = c.window_start
        AND n.batch > c.batch AND n.batch <= ?))"""
_NEXT_SUPERSEDED = f"""SELECT cell, key, window_start, batch {_SUPERSEDED}
    ORDER BY cell, key, window_start, batch LIMIT 1 OFFSET ?"""
_DELETE_SUPERSEDED = f"DELETE {_SUPERSEDED} AND (cell, key, window_start, batch) <= (?, ?, ?, ?)"


@dataclass(frozen=True)
class Range:
    """Which cells a scan is about.

    Keys from `first` to `last`, both inclusive, or with a prefix; windows whose start lies between two times, epoch ms,
    both inclusive.
    """

    first: str | None = None
    last: str | None = None
    prefix: str = ""
    start_from: int | None = None
    start_to: int | None = None

    @classmethod
    def of_key(cls, key: str, start_from: int | None = None, start_to: int | None = None) -> Self:
        """All windows of one key."""
        return cls(first=key, last=key, start_from=start_from, start_to=start_to)


EVERYTHING = Range()

NO_CHECKSUM = "0" * 16
"""The checksum of nothing."""


class Shard:
    """One worker's cells, every batch a version of its own; readers name the batch they mean.

    Every method raises StateError when the database cannot be used. Calls may come from any thread.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.blocking = driver.blocking
        self.is_current = driver.is_current
        self.close = driver.close

    @classmethod
    def open(cls, url: str, *, to_write: bool = False) -> Self:
        """Open a shard; StateError if it is not there: a shard that is lost is never an empty one."""
        return cls(open_driver(url, "write" if to_write else "read"))

    @classmethod
    def create(cls, url: str) -> Self:
        """Open a shard for writing, and make it if it is not there: for a generation that has no cut yet."""
        return cls(open_driver(url, "create"))

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
            if self._last("epoch", sys.maxsize, 0) > epoch:
                raise LeaseError("This driver has lost its lease: its successor has written to the shard already.")
            if self._driver.execute("DELETE FROM batches WHERE batch = ?", (batch,)):
                self._driver.execute("DELETE FROM cells WHERE batch = ?", (batch,))
            before = self._last("checksum", batch - 1, None)
            replaced = () if before is None else self._driver.replaced(batch, ordered)
            checksum = add_up(ordered, int(before or "0", 16), minus=replaced)
            self._driver.insert_cells(batch, ordered)
            values = (batch, len(ordered), f"{checksum:016x}", epoch)
            self._driver.execute('INSERT INTO batches (batch, "rows", checksum, epoch) VALUES (?, ?, ?, ?)', values)
        return len(ordered)

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
        while page := self._driver.fetch(_PAGE_AS_OF, (*position, as_of, as_of, _PAGE_ROWS)):
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
        found = self._driver.fetch(_GET, (cell, key, window_start, as_of))
        return found[0][0] if found else None

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
        where, values = _conditions(within, after)
        sql = f"SELECT key, window_start, window_end, value {_AS_OF}{where} ORDER BY key, window_start LIMIT ?"
        return [Cell(cell, *row) for row in self._driver.fetch(sql, (cell, as_of, as_of, *values, limit))]

    def count(self, cell: int, as_of: int, within: Range = EVERYTHING) -> int:
        """How many cells a scan without a limit would give."""
        where, values = _conditions(within, None)
        counted: int = self._driver.fetch(f"SELECT count(*) {_AS_OF}{where}", (cell, as_of, as_of, *values))[0][0]
        return counted

    def compact(self, keep_from: int) -> int:
        """Remove the versions that no cut from batch `keep_from` on can show; returns how many.

        Works in small transactions, so that it may run beside a writer, and be ended at any time.
        """
        removed = 0
        position: tuple[Any, ...] | None = (-1, "", NO_WINDOW, -1)
        while position is not None:
            since = (*position, keep_from, keep_from)
            position = next(iter(self._driver.fetch(_NEXT_SUPERSEDED, (*since, _COMPACT_ROWS))), None)
            with self._driver.transaction():
                removed += self._driver.execute(_DELETE_SUPERSEDED, (*since, *(position or _END)))
        return removed


def rows_of(table: pa.Table) -> Iterator[Row]:
    """The rows of an Arrow table with the columns of `Cell`, sorted as a shard likes them."""
    ordered = table.sort_by([(name, "ascending") for name in _SORT])
    return zip(*(ordered.column(name).to_pylist() for name in Cell.__struct_fields__), strict=True)


def drop(url: str) -> None:
    """Remove a shard and all it holds; does nothing if it is not there."""
    parsed = database_url(url)
    if parsed.get_backend_name() == "sqlite":
        for ending in ("", "-wal", "-shm"):
            Path(f"{parsed.database}{ending}").unlink(missing_ok=True)
    else:
        drop_schema(parsed)


def add_up(rows: Iterable[Row], checksum: int = 0, minus: Iterable[Row] = ()) -> int:
    """The checksum of cells, added to what it was before and less that of the versions they replace.

    It is a sum, modulo 2**64, of a hash of each cell as it stands: so it does not depend on any order, nor on the
    batches by which the cells became what they are. Tombstones add nothing.
    """
    for row in rows:
        if row[4] is not None:
            checksum += _digest(row)
    for row in minus:
        checksum -= _digest(row)
    return checksum % 2**64


def _digest(row: Row) -> int:
    return int.from_bytes(blake2b("{}\0{}\0{}\0{}\0{}".format(*row).encode(), digest_size=8).digest(), "little")


def location(base_url: str, pipeline: str, job: str, generation: int, worker: int) -> str:
    """The address of a worker's shard below `base_url`: a file in a folder, or a schema of a PostgreSQL database."""
    base = database_url(base_url)
    if base.get_backend_name() == "sqlite":
        path = Path(base.database or "") / _name(pipeline) / _name(job) / f"g{generation}" / f"worker-{worker}.sqlite"
        return base.set(database=str(path)).render_as_string(hide_password=False)
    schema = f"sluice_{_name(pipeline)}_{_name(job)}_g{generation}_w{worker}"
    if len(schema) > _POSTGRES_NAME_BYTES:
        digest = hashlib.sha256(f"{pipeline}/{job}".encode()).hexdigest()[:16]
        schema = f"sluice_{digest}_g{generation}_w{worker}"
    return base.update_query_dict({"schema": schema}).render_as_string(hide_password=False)


def open_driver(url: str, mode: Mode) -> Driver:
    """A connection to the shard at an address."""
    parsed = database_url(url)
    if parsed.get_backend_name() == "sqlite":
        return SqliteDriver(Path(parsed.database or ""), mode)
    return PostgresDriver(parsed, mode)


def _name(text: str) -> str:
    # Part of a path or of a schema's name: what a topology's names may hold, and nothing else.
    if not re.fullmatch(r"[A-Za-z0-9_-]+", text):
        raise SettingsError(f"{text!r} cannot be part of a shard's address: letters, digits, _ and - only.")
    return text


def _conditions(within: Range, after: tuple[str, int] | None) -> tuple[str, list[Any]]:
    first = max(within.first or "", within.prefix)
    bounds: list[tuple[str, tuple[Any, ...]]] = []
    if after is not None and after[0] >= first:
        bounds.append(("(c.key, c.window_start) > (?, ?)", after))
    elif first and within.last != first:
        bounds.append(("c.key >= ?", (first,)))
    if within.last is not None:
        # One key is told from a range of keys: only so do its windows come in the index's order.
        bounds.append((f"c.key {'=' if within.last == first else '<='} ?", (within.last,)))
    if (end := _after_prefix(within.prefix)) is not None:
        bounds.append(("c.key < ?", (end,)))
    if within.start_from is not None:
        bounds.append(("c.window_start >= ?", (within.start_from,)))
    if within.start_to is not None:
        bounds.append(("c.window_start <= ?", (within.start_to,)))
    return "".join(f" AND {sql}" for sql, _ in bounds), [value for _, values in bounds for value in values]


def _after_prefix(prefix: str) -> str | None:
    """The least text greater than every text that begins with `prefix`; None if there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[index])
        if code < sys.maxunicode:
            # The surrogates are no characters: the one after U+D7FF is U+E000.
            return prefix[:index] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None
