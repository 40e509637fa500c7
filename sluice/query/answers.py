"""What a reader gets: values, and beside them the cut they are of and what each worker said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.errors import StateError
from sluice.state.model import Cell, Cut, JobInfo, StoreInfo, WorkerInfo

_VALUES = msgspec.json.Decoder(list[msgspec.Raw])
_NULL = b"null"


@dataclass(frozen=True)
class Pin:
    """A store at one cut: everything that is asked with it belongs together, whatever is published meanwhile."""

    store: StoreInfo
    cut: Cut
    job: JobInfo

    @property
    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers of the cut's generation."""
        return self.job.workers


class WorkerStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one of the asked workers said."""

    number: int
    status: Literal["ok", "unavailable"]
    reason: str = ""


class Entry(msgspec.Struct, frozen=True):
    """One value of a store."""

    key: str
    window_start: int
    """Epoch ms; NO_WINDOW for a store without windows."""
    window_end: int
    value: msgspec.Raw
    """JSON, in the very text in which it was published: 27.00 stays 27.00."""


@dataclass(frozen=True)
class Answer:
    """Entries of one cut; partial as soon as an asked worker could not be read."""

    pin: Pin
    entries: list[Entry]
    workers: tuple[WorkerStatus, ...]

    @property
    def partial(self) -> bool:
        """Whether entries may be missing because a worker is unavailable."""
        return any(worker.status != "ok" for worker in self.workers)


@dataclass(frozen=True)
class Page(Answer):
    """One page of all entries; `after` is where the next one goes on, None at the end."""

    after: tuple[str, int] | None


def entry(store: StoreInfo, cell: Cell) -> Entry | None:
    """The store's own value out of a cell; None if the cell holds none for it."""
    value = slot(store, cell.value)
    return None if value is None else Entry(cell.key, cell.window_start, cell.window_end, value)


def slot(store: StoreInfo, value: str | None) -> msgspec.Raw | None:
    """The store's own value out of a cell's JSON array; raises StateError if the array is damaged."""
    if value is None:
        return None
    try:
        found = _VALUES.decode(value)[store.slot]
    except (msgspec.DecodeError, IndexError):
        raise StateError(f"A value of store {store.name!r} is damaged.") from None
    return None if bytes(found) == _NULL else found
