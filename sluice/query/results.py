"""Results of queries: values with their snapshot, and the status of each worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from sluice.answers import WorkerStatus, is_partial
from sluice.state.model import EntryId, GenerationInfo, Snapshot, StoreInfo, WorkerInfo
from sluice.state.queries.aggregates import Group
from sluice.state.queries.entries import Entry


def snapshot_name(snapshot: Snapshot) -> str:
    """Name a pipeline's snapshot in ETags and cache keys.

    The time of publication is part of the name, because a pipeline that starts over uses the same
    ids again.
    """
    return f"{snapshot.pipeline}/{snapshot.id}@{snapshot.published_at:%Y%m%dT%H%M%S.%fZ}"


@dataclass(frozen=True)
class Pin:
    """A store at one snapshot.

    Queries with the same pin see the same state, whatever is published meanwhile.
    """

    store: StoreInfo
    snapshot: Snapshot
    generation: GenerationInfo

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the snapshot's generation."""
        return self.generation.workers

    @cached_property
    def query_fields(self) -> tuple[int, int, int]:
        """Group, store column and batch: the first fields of every `Query`."""
        return self.store.group_id, self.store.store_column, self.snapshot.batch

    @cached_property
    def name(self) -> str:
        """The name of the snapshot in ETags and cache keys."""
        return snapshot_name(self.snapshot)


@dataclass(frozen=True)
class Result:
    """A result from one snapshot."""

    pin: Pin
    workers: tuple[WorkerStatus, ...]

    @property
    def partial(self) -> bool:
        """Whether entries may be missing because a worker is unavailable."""
        return is_partial(self.workers)


@dataclass(frozen=True)
class Answer(Result):
    """Entries of one snapshot, with the status of each worker that was queried."""

    entries: list[Entry]


@dataclass(frozen=True)
class Page(Answer):
    """A page of entries. The next page begins after the entry `after`; the last page has None."""

    after: EntryId | None


@dataclass(frozen=True)
class Counted(Result):
    entries: int


@dataclass(frozen=True)
class Combined(Result):
    groups: list[Group]


@dataclass(frozen=True)
class Changes(Result):
    """The sorted keys and windows that changed since an earlier batch.

    `more` says whether some are left out.
    """

    keys: list[EntryId]
    more: bool
