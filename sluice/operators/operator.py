"""The interface of operators.

An operator gets a key's rows, in order, and its state, and sends results. Operators are plain
Python and use neither Spark nor a database. The task of a stage (`engine/stages/stage_task.py`)
sorts the rows, loads the states of their keys and stores changed states with the snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from sluice.operators.base import Asking, Output, Row

if TYPE_CHECKING:
    # Planning imports some operators, and must not import Arrow.
    from sluice.operators.columns import BatchTimeline, KeyedRows, KeyStates, Results

S = TypeVar("S")


class Moment(Protocol):
    """The place among the rows of a batch at which an operator sends results that are due."""

    @property
    def stream_time(self) -> int:
        """The stream time at this place, which may have jumped over several due times."""

    @property
    def latest_of_sides(self) -> tuple[int, int]:
        """See `Row.latest_of_sides`."""


class WallTimer(Protocol):
    """A timer on the wall clock that fires."""

    @property
    def name(self) -> str: ...

    @property
    def time(self) -> int:
        """The time for which the timer was set, epoch ms."""


class Searches(Protocol):
    """Searches for due results, which are sent only if a search has found them.

    See `joins.stream_join`.
    """

    def looks_after(self, side: int) -> int:
        """Return the stream time after which a record of this side starts a search."""

    def look(self, stream_time: int) -> None:
        """Search for the due results of all keys. `close` then sends them, key by key."""


@dataclass(frozen=True)
class Releasing:
    """How an operator sends results when they are due, without a row of their key."""

    before_row: bool = False
    """Whether the results are sent before the row that makes them due, rather than after it."""
    after_record: bool = False
    """Whether the results are sent only after all rows of the same record as this row."""
    by_clock: bool = False
    """Whether the results are due at a wall-clock time, rather than at a stream time."""
    searches: Searches | None = None
    """Given if due results are sent only when the operator searches for them."""


@dataclass(frozen=True)
class BatchOfOperator:
    """The facts that an operator gets about a batch before its first row."""

    now: int
    """The batch's clock, epoch ms."""
    closed: int
    """The stream time that all partitions have reached when the batch ends; -1 if there is no
    stream time."""
    latest_of_sides: tuple[int, int]
    """See `Row.latest_of_sides`, but at the end of the batch."""
    is_one_task: bool
    """Whether all keys have the same stream time, as in a Kafka Streams task. They do if the topics
    have one partition."""
    fires_after_record: bool
    """Whether timers fire only after all rows of a record, because a record may have several
    rows."""
    only_last: bool
    """Whether only the last result of each key and window in the batch matters."""
    has_listeners: bool
    """Whether another operator gets the results directly."""
    read_table: Callable[[int, str], str | None]
    """Returns the row of a table with this side (see `READ`) and key, as JSON."""


class Operator(Generic[S]):
    """An operator, which changes the state of a key in place.

    For a row with a null key, `new_state` makes a state that is not stored. The methods that are
    implemented here suit operators that send a key's results only for rows of this key.
    """

    state_type: Any
    """The msgspec type of a key's state."""
    shared: Any = None
    """The state that all keys of a worker share; None if there is none."""
    reads_tables = False
    """Whether the operator gets the rows of tables, with the sides READ, READ + 1 and so on."""
    takes_changes = False
    """Whether `change` takes the old and the new value of a table's row in one call. It gets both
    only if they belong to the same group."""
    has_wall_timers = False
    """Whether the operator may set timers on the wall clock (see `tick`)."""
    processes_due = False
    """Whether `process` also sends due results of the row's key, unless the row has no stream
    times."""

    @property
    def asking(self) -> Asking | None:
        """The operator itself, if it calls a service or a database for each row."""
        return None

    def begin_batch(self, batch: BatchOfOperator) -> None:
        """Prepare for a batch."""

    def new_state(self) -> S:
        """Return the initial state of a key."""
        raise NotImplementedError

    def process(self, state: S, row: Row, out: Output) -> None:
        """Process one row. If this fails, the row is rejected and the state is unchanged."""
        raise NotImplementedError

    @property
    def takes_columns(self) -> bool:
        """Return whether `process_columns` gets rows whose results wait or are passed on.

        Results wait if stream time must advance before they are sent. They are passed on if another
        operator gets them directly. If results neither wait nor are passed on, the operator always
        gets its rows as columns.
        """
        return False

    @property
    def takes_last_results(self) -> bool:
        """Return whether `process_columns` gets the results that another operator passes on.

        They are the last result of each window in a batch.
        """
        return False

    def process_columns(
        self, states: KeyStates[S], rows: KeyedRows, timeline: BatchTimeline | None
    ) -> Results | None:
        """Process all rows of many keys at once, and change the `states` of the keys in place.

        `Results.left_over` marks rows that must still be processed one by one. Returns None, and
        changes no state, if all rows must be processed one by one. `timeline` is None if the
        operator has no stream time.

        Raises RowFailedError if a row fails. States may then have changed: the caller loads them
        again, and processes the rows one by one.
        """
        return None

    def change(self, state: S, old: Row, new: Row, out: Output) -> None:
        """Process the old and the new value of a table's row as a unit.

        Called only if `takes_changes`.
        """
        raise NotImplementedError

    @property
    def releasing(self) -> Releasing | None:
        """How the operator sends results when they are due; None if it sends them only for rows."""
        return None

    def release_due(self, state: S) -> int | None:
        """Return when the key's next result is due: a stream time, or a time of the wall clock."""
        return self.due(state)

    def release(self, state: S, key: str, due: int, moment: Moment, out: Output) -> None:
        """Send the results of a key that are due at `due`."""
        self.close(state, key, due, out)

    def keys_sent_early(self) -> Collection[str]:
        """Return the keys that have results to send at once, although they are not due."""
        return ()

    def require_room(self) -> None:
        """Raise EngineError if the operator holds back too much, even after sending due results."""

    def sent_until(self, stream_time: int) -> int:
        """Return the stream time up to which due results have been sent by the end of the batch."""
        return stream_time

    def due(self, state: S) -> int | None:
        """Return the stream time at which this state needs `close`; None if it never does."""
        return None

    def close(
        self,
        state: S,
        key: str | None,
        closed: int,
        out: Output,
        latest_of_sides: tuple[int, int] = (-1, -1),
    ) -> None:
        """Send the results due at stream time `closed`, and drop state that can no longer change.

        All partitions have reached `closed`. For a join of two streams, `latest_of_sides` means the
        same as in `Row`.
        """

    def wall_due(self, state: S) -> int | None:
        """Return when this state next needs `tick` or `release` by the wall clock, epoch ms.

        Return None if it never does.
        """
        return None

    def tick(
        self,
        state: S,
        key: str,
        now: int,
        stream_time: int,
        out: Output,
        before_timer: Callable[[str, WallTimer, int], None] = lambda _, __, ___: None,
    ) -> None:
        """Fire, once, each wall-clock timer that is due at `now`. Called in every batch.

        Before each timer fires, calls `before_timer` with the key, the timer, and the number of the
        record or timer that set it.
        """

    def end_keys(self, states: Mapping[str, S], out: Output) -> None:
        """Send the results that are sent only once per key and batch, after the keys' last rows."""

    def entries(self, state: S) -> Sequence[dict[str, tuple[Any, ...]]]:
        """Return the entries of each store of a key, if the operator has stores to be queried.

        For each store: name of an entry → the time of the `put`, the value, and perhaps headers.
        """
        raise NotImplementedError

    def rows_of_entries(
        self, store: int, entries_of_keys: Sequence[dict[str, tuple[Any, ...]]]
    ) -> list[str | None]:
        """Return the row of each key in one of these stores, as JSON.

        Return None if a key has no entries.
        """
        raise NotImplementedError

    def is_empty(self, state: S) -> bool:
        """Return whether the state is empty, so that it need not be stored."""
        raise NotImplementedError
