"""What a run, an audit, retention and a move need of a shard, on this host or behind a state server.

Queries need more, and are always executed by the process that opens the shard itself: see `LocalShard`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, Self

import msgspec

from sluice.state.model import StateRow
from sluice.state.shard.drivers import Row
from sluice.state.shard.operator_states import State, StateVersion, StoredState
from sluice.state.shard.ranges import EVERYTHING, Range


class Version(msgspec.Struct, frozen=True, array_like=True):
    """One version of one state row, as it is copied from shard to shard."""

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


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard's record of one batch: of its state rows, or of one operator's states."""

    operator: int
    """-1: the state rows."""
    batch: int
    rows: int
    checksum: str


class Journal(msgspec.Struct, frozen=True, array_like=True):
    """A shard's records of its batches, oldest first, and the epoch of its last writer."""

    epoch: int
    batches: list[JournalEntry]

    @property
    def newest(self) -> int:
        """The newest batch; 0 if there is none."""
        return max((entry.batch for entry in self.batches), default=0)


class Checksums(msgspec.Struct, frozen=True, array_like=True):
    """A shard's checksums at a batch."""

    state_rows: str
    states: str
    """Of the operator states."""


class Shard(Protocol):
    """One worker's state rows and operator states. Every batch is a version; readers name the batch that they read.

    A writer passes the epoch of its lease: LeaseError, and nothing is written, once the holder of a newer lease has
    begun. Rows have digests: DamagedState for a row that was altered since it was written.

    Every method raises StateError when the shard cannot be reached. Calls may come from any thread.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def begin(self, epoch: int, as_of: int) -> Checksums:
        """Fence off older writers; returns the checksums at a batch.

        Raises DamagedState if rows are missing or added and, in a shard of moderate size, if any row was altered.
        """

    def write(self, batch: int, rows: Iterable[Row], epoch: int = 0) -> int:
        """Write a batch of state rows in one transaction; returns their number. A retry replaces the batch.

        No two rows may have the same group, key and window. Sorted rows are written fastest.
        """

    def expire(self, batch: int, ends: Mapping[int, int], epoch: int = 0) -> None:
        """Write tombstones, as part of a written batch, for windows that ended before a time: group → epoch ms.

        Repeating it changes nothing.
        """

    def read_states(
        self, operator: int, keys: Sequence[str], before: int, epoch: int, *, shared: bool = False
    ) -> dict[str, StoredState]:
        """An operator's states of these keys as of the batch before `before`; keys without a state are left out.

        The state that all keys of the worker share (`shared`) has the empty key.
        """

    def due(self, operator: int, until: int, before: int, epoch: int, clock: str = "due") -> list[str]:
        """The keys with a timer of the operator at or before `until`, by stream time (`due`) or wall clock (`wall`)."""

    def write_states(self, batch: int, numbers: Iterable[int], states: Sequence[State], epoch: int) -> None:
        """Write the states of the operators with these numbers in one transaction. A retry replaces the batch."""

    def journal(self) -> Journal:
        """The records of the written batches."""

    def checksums(self, as_of: int) -> Checksums:
        """The checksums that were recorded with batch `as_of`, or with the last one before it."""

    def verify(self, as_of: int, published: Checksums | None = None) -> None:
        """Read all state rows as of a batch; DamagedState if their checksum differs, or the database is damaged.

        Compares with the published checksum if it is given, else with the recorded one.
        """

    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        """The same for operator states. Only the newest two batches of them are kept."""

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
        """A page of state rows sorted by key and window start, that begins after the key and window start `after`.

        With `checked`, DamagedState for a state row that was altered since it was written.
        """

    def compact(self, keep_from: int) -> int:
        """Remove the versions that no snapshot from batch `keep_from` on can show; returns how many.

        Works in small transactions beside a writer, and may be interrupted at any time.
        """

    def versions(self, since: int, after: tuple[int, str, int, int] | None, limit: int) -> list[Version]:
        """A page of all versions of batch `since` and later, sorted, after a group, key, window start and batch."""

    def absorb(self, versions: Iterable[Version]) -> None:
        """Insert another shard's versions into a sealed shard, in one transaction."""

    def state_versions(self, since: int, after: tuple[int, int, str, int] | None, limit: int) -> list[StateVersion]:
        """The same as `versions` for operator states, after an operator, shared, key and batch."""

    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        """The same as `absorb` for operator states."""

    def settle(self, since: int, journal: Journal) -> None:
        """Remove the versions of batch `since` and later from a sealed shard, and replace its journal."""

    def seal(self, *, sealed: bool = True) -> None:
        """Refuse writes from now on because the shard moves away; or, with `sealed=False`, accept them again."""
