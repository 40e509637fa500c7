"""Copies shards: the only way to bring state to another host, database or generation.

A copy is filled in pages. Until it is complete, the copy is sealed, so that no run writes to it.
Each row comes with its digest, which the copy checks before it stores the row. At the end, the copy
gets its journal, which lists the shard's batches and their checksums. All rows of the copy are then
read and compared with the checksums of a snapshot. If the copying of a whole shard is interrupted,
the next attempt continues after the last copied row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from typing import Self, TypeVar

from sluice.errors import DamagedState
from sluice.state.remote.opening import create_shard, open_shard
from sluice.state.shard.answer_rows import RecordedAnswer
from sluice.state.shard.checksums import NO_CHECKSUM, checksum_of
from sluice.state.shard.operator_states import StateVersion
from sluice.state.shard.pages import PAGE, pages_of_answers, pages_of_states, pages_of_versions
from sluice.state.shard.shard import (
    NO_PLACES,
    STATE_ROWS,
    UNFINISHED,
    Checksums,
    Journal,
    JournalEntry,
    LastPlaces,
    Shard,
    Version,
)

Progress = Callable[[str], None]
Versions = TypeVar("Versions", Version, StateVersion)


class ShardCopy:
    """A copy of the shard `source` at the address `place`, with all batches or those up to `until`.

    An unfinished copy at this address is continued, and a complete copy is brought up to date. If
    the copy differs from the source afterwards, a new copy replaces it. `is_complete` says whether
    the ledger knows of a complete copy at this address. If that copy is lost, a new copy replaces
    it, too. `settled` is the newest published batch, which no run writes again.
    """

    def __init__(
        self,
        source: Shard,
        place: str,
        progress: Progress = lambda _: None,
        *,
        until: int | None = None,
        settled: int = -1,
        is_complete: bool = False,
    ) -> None:
        self.versions = 0
        """The number of versions copied."""
        self.why_replaced = ""
        """Why an earlier copy at this address was replaced; empty if none was."""
        self._source, self._place, self._progress = source, place, progress
        self._until, self._settled = until, settled
        self._target: Shard | None = None
        try:
            if is_complete:
                self._target = open_shard(place, to_write=True)
            else:
                self._target = create_shard(place, continued=True)
            if is_complete:
                # A command that was killed while it promoted the standby may have left the copy
                # unsealed.
                self._target.seal()
        except DamagedState as error:
            # `fill` replaces a damaged copy by a new one.
            self.why_replaced = error.detail

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._target is not None:
            self._target.close()

    @property
    def target(self) -> Shard:
        """The copy, once it is filled."""
        assert self._target is not None
        return self._target

    def fill(
        self,
        published: Checksums | None = None,
        *,
        stop_writers: Callable[[], None] = lambda: None,
        let_write: Callable[[], None] = lambda: None,
        before_replacing: Callable[[], None] = lambda: None,
    ) -> None:
        """Copy the versions that are missing, and compare the checksums.

        Raise DamagedState if a new copy differs, too. `stop_writers` is called when most rows are
        copied. It must keep others from writing to the source, because if `until` is None, the copy
        would lack the rows that they write. `let_write` lets them write again if the copy differs.
        `before_replacing` is called before a copy is replaced.
        """
        if self._target is not None:
            is_continued = bool(self._target.journal().batches)
            try:
                return self._fill(self._target, published, stop_writers, let_write)
            except DamagedState as error:
                if not is_continued:
                    # This copy was made from the beginning, so another new copy would differ in the
                    # same way.
                    raise
                self.why_replaced = error.detail
        self.close()
        before_replacing()
        self._target = create_shard(self._place, anew=True)
        return self._fill(self._target, published, stop_writers, let_write)

    def _fill(
        self,
        target: Shard,
        published: Checksums | None,
        stop_writers: Callable[[], None],
        let_write: Callable[[], None],
    ) -> None:
        missing = self._copy_settled_batches(target)
        stop_writers()
        try:
            if self._until is None or missing <= self._until:
                self._copy_since(target, missing, target.journal())
            copy_answers(self._source, target)
            journal = self._source.journal()
            as_of = journal.newest if self._until is None else self._until
            entries = [entry for entry in journal.batches if entry.batch <= as_of]
            _finish_copy(target, Journal(journal.epoch, entries), as_of, published)
        except DamagedState:
            # The source stays in use, because the copy cannot take its place.
            let_write()
            raise

    def _copy_settled_batches(self, target: Shard) -> int:
        """Copy the rows of all batches that no run can change anymore.

        The source may be in use meanwhile. Return the first batch that the copy lacks afterwards.
        """
        # A run may write the newest batch again until the batch is published.
        unsettled = max(self._source.journal().newest, self._settled + 1)
        missing = unsettled if self._until is None else self._until + 1
        journal = target.journal()
        if not journal.batches:
            # If the copying is interrupted, the next attempt continues after the last copied row.
            # Between the attempts, runs may write new versions of rows that are copied already.
            # This entry names the first batch of which the copy may then lack versions.
            target.replace_journal(
                0, Journal(0, [JournalEntry(UNFINISHED, missing, 0, NO_CHECKSUM)])
            )
            self._copy_pages(target, 0, NO_PLACES)
        elif journal.unfinished is not None:
            self._copy_pages(target, 0, target.last_places())
            return min(journal.unfinished, missing)
        else:
            # The newest batch may have been written again since it was copied, so copy it again.
            complete = journal.newest - 1
            if self._until is not None:
                complete = min(journal.newest, self._until)
            self._copy_since(target, complete + 1, journal)
        return missing

    def _copy_since(self, target: Shard, since: int, journal: Journal) -> None:
        """Copy the batches from `since` on.

        If an interrupted attempt has copied a part of them, that part is removed before the
        copying.
        """
        target.replace_journal(since, journal)
        self._copy_pages(target, since, NO_PLACES)

    def _copy_pages(self, target: Shard, since: int, last: LastPlaces) -> None:
        for versions in pages_of_versions(self._source, since, after=last.row):
            target.absorb_rows(versions)
            self._count(len(versions))
        for states in pages_of_states(self._source, since, after=last.state):
            target.absorb_states(states)
            self._count(len(states))

    def _count(self, versions: int) -> None:
        self.versions += versions
        self._progress(f"{self.versions:,} versions copied")


@dataclass
class NewShard:
    """A sealed shard that a command fills with the state as of one batch.

    The rows come from other shards. On the way, the command may change them, or divide them among
    several new shards.
    """

    shard: Shard
    rows: Counter[int] = field(default_factory=Counter)
    totals: Counter[int] = field(default_factory=Counter)
    """Operator's number, or STATE_ROWS → in `rows`, the number of its rows; in `totals`, the sum of
    their digests."""

    def add(self, versions: Sequence[Version]) -> None:
        """Add a page of state rows."""
        self.shard.absorb_rows(versions)
        self._count(STATE_ROWS, versions)

    def add_states(self, states: Sequence[StateVersion]) -> None:
        """Add a page of operator states."""
        self.shard.absorb_states(states)
        for operator, operator_states in groupby(states, lambda state: state.operator):
            self._count(operator, [*operator_states])

    def _count(self, operator: int, versions: Sequence[Version | StateVersion]) -> None:
        self.rows[operator] += len(versions)
        self.totals[operator] += sum(version.digest for version in versions)

    def add_answers(self, answers: Sequence[RecordedAnswer]) -> None:
        """Add a page of recorded answers."""
        self.shard.absorb_answers(answers, oldest=0)

    def finish(self, batch: int, epoch: int) -> Checksums:
        """Write the journal, compare the checksums with the rows, and accept writes.

        Return the checksums.
        """
        entries: list[JournalEntry] = []
        for operator, rows in self.rows.items():
            entries.append(JournalEntry(operator, batch, rows, checksum_of(self.totals[operator])))
        _finish_copy(self.shard, Journal(epoch, entries), batch, None)
        self.shard.seal(sealed=False)
        return self.shard.checksums(batch)


def copy_answers(source: Shard, target: Shard) -> None:
    """Copy the answers that the sealed shard `target` lacks. Remove answers that `source` lacks."""
    oldest = source.answers(None, 1)
    newest = target.last_places().answer
    # Begin with the newest time that the target has: several answers may have this time, and an
    # interrupted copy may have only some of them.
    after = None if newest is None else (newest, "", "")
    for page in pages_of_answers(source, after):
        target.absorb_answers(page, oldest[0].at)


def _finish_copy(copy: Shard, journal: Journal, as_of: int, published: Checksums | None) -> None:
    """Give a copy its journal, remove batches after `as_of`, and read all of its rows.

    Raise DamagedState if the rows differ from the published checksums. If `published` is None, the
    rows are compared with the journal's checksums.
    """
    copy.replace_journal(as_of + 1, journal)
    copy.verify_rows(as_of, published)
    copy.verify_states(as_of, published)


@dataclass
class SourceShard:
    """A shard from which the newest versions are read, and their summed digests so far."""

    shard: Shard
    total_of_rows: int = 0
    total_of_states: int = 0

    def rows(self) -> Iterator[list[Version]]:
        """Yield pages of the newest version with a value of each state row, sorted."""
        for page in in_pages(newest_rows(self.shard)):
            self.total_of_rows += sum(version.digest for version in page)
            yield page

    def states(self) -> Iterator[list[StateVersion]]:
        """Yield sorted pages of the newest version of each operator state that still exists."""
        for page in in_pages(newest_states(self.shard)):
            self.total_of_states += sum(version.digest for version in page)
            yield page

    def difference(self, published: Checksums | None) -> str:
        """Return how the versions read differ from the published checksums; empty if equal."""
        if published is None:
            return ""
        read = Checksums(checksum_of(self.total_of_rows), checksum_of(self.total_of_states))
        return read.difference(published)


def newest_rows(shard: Shard, group: int | None = None) -> Iterator[Version]:
    """Yield the newest version of each state row that has a value, sorted, for one group or all."""
    versions = chain.from_iterable(pages_of_versions(shard, group=group))
    for _, row_versions in groupby(versions, lambda version: version.row_id):
        *_, newest = row_versions
        if newest.value is not None:
            yield newest


def newest_states(shard: Shard) -> Iterator[StateVersion]:
    """Yield the newest version of each operator state that has not been removed, sorted."""
    versions = chain.from_iterable(pages_of_states(shard))
    for _, state_versions in groupby(
        versions, lambda state: (state.operator, state.shared, state.key)
    ):
        *_, newest = state_versions
        if newest.state is not None:
            yield newest


def in_pages(versions: Iterable[Versions]) -> Iterator[list[Versions]]:
    """Group versions into lists of at most `PAGE` versions."""
    versions = iter(versions)
    while page := list(islice(versions, PAGE)):
        yield page
