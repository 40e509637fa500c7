"""What a reader gets: values, and beside them the snapshot they are of and what each worker said."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from sluice.answers import WorkerStatus
from sluice.errors import QueryError, StateError
from sluice.state.model import JobInfo, Snapshot, StoreInfo, WorkerInfo

if TYPE_CHECKING:
    from sluice.query.combine import Group

T = TypeVar("T")

_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = b"null"


@dataclass(frozen=True)
class Pin:
    """A store at one snapshot: everything that is asked with it belongs together, whatever is published meanwhile."""

    store: StoreInfo
    snapshot: Snapshot
    job: JobInfo

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the snapshot's generation."""
        return self.job.workers

    @cached_property
    def of(self) -> tuple[int, int, int]:
        """Where the store's values are: state row, slot, batch."""
        return self.store.group_id, self.store.store_column, self.snapshot.batch

    @cached_property
    def name(self) -> str:
        """What tells apart all that is pinned: pipeline, job and snapshot."""
        return f"{self.store.pipeline}/{self.store.job}/{self.snapshot.id}"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One value of a store."""

    key: str
    window_start: int
    """Epoch ms; NO_WINDOW for a store without windows."""
    window_end: int
    value: msgspec.Raw
    """JSON, in the very text in which it was published: 27.00 stays 27.00."""

    def decode(self, kind: type[T]) -> T:
        """The value as a type that msgspec reads; QueryError if it is something else."""
        try:
            return msgspec.json.decode(self.value, type=kind)
        except (msgspec.DecodeError, RecursionError):
            raise QueryError(f"The value of {self.key[:100]!r} is not a {kind.__name__}.") from None


@dataclass(frozen=True)
class Result:
    """An answer of one snapshot; partial as soon as an asked worker could not be read."""

    pin: Pin
    workers: tuple[WorkerStatus, ...]

    @property
    def partial(self) -> bool:
        """Whether something may be missing because a worker is unavailable."""
        return any(worker.status != "ok" for worker in self.workers)


@dataclass(frozen=True)
class Answer(Result):
    """Entries of one snapshot."""

    entries: list[Entry]


@dataclass(frozen=True)
class Page(Answer):
    """One page of all entries; `after` is where the next one goes on, None at the end."""

    after: tuple[str, int] | None


@dataclass(frozen=True)
class Counted(Result):
    """How many entries there are."""

    entries: int


@dataclass(frozen=True)
class Combined(Result):
    """Figures of one snapshot, by group."""

    groups: list[Group]


@dataclass(frozen=True)
class Changes(Result):
    """What was changed since an earlier batch: keys and window starts, in order; `more` if there are others."""

    keys: list[tuple[str, int]]
    more: bool


def store_column(number: int, value: str | None) -> msgspec.Raw | None:
    """A store's own value out of a state row's JSON array; raises StateError if the array is damaged."""
    if value is None:
        return None
    try:
        found = _VALUES.decode(value)[number]
    except (msgspec.DecodeError, IndexError):
        raise StateError("A value is damaged.") from None
    except RecursionError:
        raise StateError("A value is nested too deeply to be read.") from None
    return None if bytes(found) == _NULL else found
