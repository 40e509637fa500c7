"""The operations on a shard that runs, audits, retention and moves need.

They work locally or through a state server. Queries need more operations and are always executed by
the process that opens the shard itself: see `LocalShard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Literal, Protocol, Self, TypeAlias

import msgspec

from sluice.state.model import EntryId, StateRow
from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.operator_states import State, StateVersion, StoredState
from sluice.state.shard.ranges import EVERYTHING, RowRange
from sluice.state.shard.row_columns import RowColumns, RowIds
from sluice.state.shard.row_tuples import Row, RowId, StoredRow, VersionId

WholeNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number from 0 that fits a column of type BIGINT."""
Clock: TypeAlias = Literal["due", "wall"]
"""The clock by which a state is due: stream time, or the wall clock."""
DigestSum: TypeAlias = Callable[[], int] | None
"""Returns a sum of digests of rows, once the sum is known."""


class Version(msgspec.Struct, frozen=True, array_like=True):
    """A version of a state row, in the form in which shards copy it."""

    group_id: int
    key: str
    window_start: int
    window_end: int
    batch: int
    value: str | None
    digest: int

    @property
    def id(self) -> VersionId:
        return *self.row_id, self.batch

    @property
    def row_id(self) -> RowId:
        return self.group_id, self.key, self.window_start, self.window_end

    @property
    def row(self) -> Row:
        """The version without its batch."""
        return *self.row_id, self.value


STATE_ROWS, UNFINISHED = -1, -2
"""Numbers in a journal in place of an operator's number: for state rows, and for an unfinished
copy."""


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """A shard's record of one batch of state rows, or of one batch of an operator's states."""

    operator: int
    """The operator's number; STATE_ROWS for state rows; UNFINISHED for an unfinished copy."""
    batch: int
    """The batch's number. In the entry of an unfinished copy, the first batch that the copied rows
    may lack."""
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

    @property
    def unfinished(self) -> int | None:
        """The first batch that the rows of an unfinished copy lack; None for a complete shard."""
        for entry in self.batches:
            if entry.operator == UNFINISHED:
                return entry.batch
        return None


class LastPlaces(msgspec.Struct, frozen=True, array_like=True):
    """The ids of the last row, state and answer of a shard, in the order of copying.

    A field is None if the shard has nothing of this kind.
    """

    row: VersionId | None
    state: tuple[int, int, str, int] | None
    """Operator, `shared` (0 or 1), key and batch."""
    answer: int | None = None
    """The time of the newest answers, epoch ms."""


class RowCounts(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of rows in a shard, with all versions."""

    groups: dict[int, int]
    """Group id → number of its state rows."""
    operators: dict[int, int]
    """Operator's number → number of its states."""


NO_PLACES = LastPlaces(None, None)
NOTHING_FORGOTTEN: Mapping[str, int] = MappingProxyType({})


class Checksums(msgspec.Struct, frozen=True, array_like=True):
    """A shard's checksums at a batch."""

    state_rows: str
    states: str
    """Checksum of the operator states."""

    def difference(self, published: Checksums) -> str:
        """Describe the first checksum that is not as published; empty if both are as published."""
        for what, actual, expected in (
            ("state rows", self.state_rows, published.state_rows),
            ("operator states", self.states, published.states),
        ):
            if actual != expected:
                return f"The checksum of its {what} is {actual}, but {expected} was published."
        return ""


class Shard(Protocol):
    """One worker's state rows and operator states.

    A batch writes new versions of rows, and readers specify as of which batch they read. A writer
    passes the epoch of its lease. Once the holder of a newer lease has begun, older writers get a
    LeaseError and write nothing. A writer writes its batches in order. Rows have digests; reading a
    row that was altered since it was written raises DamagedState.

    Every method raises StateError if the shard cannot be reached. Methods may be called from any
    thread.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None: ...

    def begin_run(self, epoch: WholeNumber, as_of: int) -> Checksums:
        """Fence off older writers, and remove batches after `as_of`, which were never published.

        Return the checksums at batch `as_of`. Raise DamagedState if the number of rows is wrong. If
        the shard is of moderate size, also read all rows, and raise DamagedState if a row was
        altered.
        """

    def rows_before(
        self, batch: WholeNumber, ids: RowIds, epoch: WholeNumber
    ) -> dict[int, StoredRow]:
        """Read the newest versions of these state rows before a batch, by the row's place in `ids`.

        Omit rows without a value.
        """

    def write_pages(
        self,
        batch: WholeNumber,
        pages: Iterable[RowColumns],
        epoch: WholeNumber = 0,
        replaced: DigestSum = None,
    ) -> int:
        """Write a batch of state rows in one transaction. Return the number of written rows.

        A retry replaces the batch. Raise EngineError if the shard has a newer batch.

        A tombstone is written only for a row that the shard has. A session that grows several times
        in a batch causes other tombstones, for bounds that no earlier batch has stored. If
        `replaced` is passed, the writer has left such tombstones out of `pages` itself.

        No two rows may have the same group, key and window. Writing is fastest if the rows are
        sorted. `replaced` gives the sum of the digests of the versions that these rows replace, if
        the writer knows it from `rows_before`. This function is called after the last page was
        taken from `pages`, so `pages` may read these versions before.
        """

    def expire_windows(
        self, batch: WholeNumber, ends: Mapping[int, int], epoch: WholeNumber = 0
    ) -> None:
        """Add tombstones to a written batch for each group's windows that ended before a time.

        `ends`: group id → this time, epoch ms. The call can be repeated.
        """

    def read_states(
        self,
        operator: int,
        keys: Sequence[str],
        before: int,
        epoch: WholeNumber,
        *,
        shared: bool = False,
    ) -> dict[str, StoredState]:
        """Read an operator's states of these keys as of the batch before `before`.

        Omit keys that never had a state. With `shared`, read states that belong to no key. The
        state that all keys of the worker share has an empty key. A table's row that a processor
        reads has the row's name as its key.
        """

    def due_keys(
        self,
        operator: int,
        until: int,
        before: int,
        epoch: WholeNumber,
        clock: Clock = "due",
    ) -> list[str]:
        """Return the keys whose state is due at `until`, by stream time or by the wall clock.

        `clock` is `due` for stream time, or `wall` for the wall clock.
        """

    def earliest_timer(
        self,
        operator: int,
        before: int,
        epoch: WholeNumber,
        clock: Clock = "wall",
        after: int = -1,
    ) -> int | None:
        """Return the earliest time later than `after` at which a state of the operator is due.

        The times are in ms. Return None if no state is due after `after`. The states are those as
        of the batch before `before`. `clock` is `due` for stream time, or `wall` for the wall
        clock.
        """

    def write_states(
        self,
        batch: WholeNumber,
        numbers: Iterable[int],
        states: Sequence[State],
        epoch: WholeNumber,
    ) -> None:
        """Write states of the operators with these numbers in one transaction.

        A retry replaces the batch. Raise EngineError if one of the operators has a newer batch.
        """

    def read_answers(
        self, step: str, ids: Sequence[str], epoch: WholeNumber
    ) -> list[RecordedAnswer]:
        """Read the recorded answers of a step with these ids, in any order."""

    def write_answers(
        self,
        answers: Sequence[RecordedAnswer],
        epoch: WholeNumber,
        *,
        forget: Mapping[str, int] = NOTHING_FORGOTTEN,
    ) -> None:
        """Record answers in one transaction, independently of batches.

        The first answer of an id stays. `forget`: step → epoch ms; the step's answers from before
        this time are removed.
        """

    def forget_failures(self, batch: WholeNumber, epoch: WholeNumber) -> None:
        """Remove the answers of a batch that are failures.

        When the batch is repeated, the calls that failed are made again.
        """

    def answers(self, after: tuple[int, str, str] | None, limit: int) -> list[RecordedAnswer]:
        """Read a page of all answers, sorted by time, step and id.

        The page has answers that come after (time, step, id).
        """

    def absorb_answers(self, answers: Sequence[RecordedAnswer], oldest: int) -> None:
        """Record another shard's answers in a sealed shard, in one transaction.

        Answers from before the time `oldest`, epoch ms, are removed.
        """

    def journal(self) -> Journal:
        """Return the shard's records of the written batches."""

    def checksums(self, as_of: int) -> Checksums:
        """Return the checksums recorded with batch `as_of`, or with the last batch before it."""

    def verify_rows(self, as_of: int, published: Checksums | None = None) -> None:
        """Read and check all state rows as of a batch.

        Compare with the published checksum if given, otherwise with the recorded checksum. Raise
        DamagedState if the checksum differs, or if the database is damaged.
        """

    def verify_states(self, as_of: int, published: Checksums | None = None) -> None:
        """Do the same as `verify_rows` for operator states, of which two batches are kept."""

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
        """Read a page of state rows sorted by key and window, starting after `after`.

        With `checked`, raise DamagedState if a row was altered since it was written.
        """

    def compact(self, keep_from: WholeNumber) -> int:
        """Remove the versions that no snapshot since batch `keep_from` can show.

        Return the number removed. The transactions are small, so that a writer can work at the same
        time. The call may be interrupted at any time.
        """

    def row_versions(
        self,
        since: int,
        after: VersionId | None,
        limit: int,
    ) -> list[Version]:
        """Read a page of the sorted versions since batch `since` that come after `after`."""

    def absorb_rows(self, versions: Iterable[Version]) -> None:
        """Insert another shard's versions into a sealed shard, in one transaction."""

    def state_versions(
        self,
        since: int,
        after: tuple[int, int, str, int] | None,
        limit: int,
    ) -> list[StateVersion]:
        """Do the same as `row_versions` for states. `after` is (operator, shared, key, batch)."""

    def absorb_states(self, versions: Iterable[StateVersion]) -> None:
        """Do the same as `absorb_rows` for operator states."""

    def last_places(self) -> LastPlaces:
        """Return the last row, state and answer, after which an interrupted copy continues."""

    def row_counts(self) -> RowCounts:
        """Count the rows of each group and operator.

        This reads the whole shard, which may take minutes.
        """

    def replace_journal(self, since: int, journal: Journal) -> None:
        """Remove all versions since batch `since` from a sealed shard, and replace its journal."""

    def seal(self, *, sealed: bool = True) -> None:
        """Reject the writes of runs from now on, for example while the worker is being moved.

        With `sealed=False`, accept them again.
        """
