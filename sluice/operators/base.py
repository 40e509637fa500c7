"""The interface of operators: an operator gets a key's rows in order, with the key's state, and sends results.

Operators are plain Python and use neither Spark nor a database. The task of a stage
(`engine/stages/stage_task.py`) sorts the rows, loads the states of their keys and stores changed
states with the snapshot.
"""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    Callable,
    Collection,
    Coroutine,
    Generator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from sluice.errors import EngineError
from sluice.values.phrases import counted
from sluice.values.windows import Bounds

if TYPE_CHECKING:
    from sluice.operators.columns import KeyedRows, KeyStates, Results
    from sluice.operators.processor import Timer

LEFT, RIGHT, MOVED = 0, 1, 2
"""The sides of a join. A foreign-key join gets some rows of its left table as `MOVED` (see `ForeignKeyJoin`)."""
READ = 100
"""The side of the rows of the first table that a processor reads. Its other tables have the next
numbers."""
DEFAULT_OUTPUT = "output"
"""The name of an operator's output. Only a processor can have other outputs."""
AHEAD = 3
"""AHEAD + LEFT and AHEAD + RIGHT are the sides of a change that a `TableJoin` gets early.

Both sides of a join may depend on one table. A change of this table reaches one side first. To join
it, Kafka Streams reads the store of the other side, which already contains the change. To give the
same result, a `TableJoin` gets the change of the other side early, with AHEAD. Later, it gets this
change once more, as LEFT or RIGHT, and joins it.
"""


def rejects_record(error: BaseException) -> bool:
    """Whether an error of an author's code rejects one record. All other errors end the run.

    A MemoryError ends the run, because it depends on the machine: the record may succeed when it is
    read again.
    """
    # sys.exit() in a function must reject the record, not end the driver. Ctrl-C ends the driver.
    return isinstance(error, Exception | SystemExit) and not isinstance(error, MemoryError)


def require_run(result: object) -> None:
    """Raise TypeError for a result that shows that the author's code has not run: a coroutine or a generator."""
    if isinstance(result, Coroutine | Generator | AsyncGenerator):
        raise TypeError(f"the function returned a {type(result).__name__}, so its code did not run")


def listed_results(step: str, results: Any, count: int, error: type[EngineError]) -> list[Any]:
    """The results of a function that takes many values, as a list. Raises `error` unless each value has a result."""
    is_list = isinstance(results, Sequence) and not isinstance(results, str | bytes)
    if is_list and len(results) == count:
        return list(results)
    returned = counted(len(results), "result") if is_list else f"a {type(results).__name__}"
    raise error(
        f"{step} gave its function {counted(count, 'value')} and got {returned} back.",
        next_step="Nothing from the batch was published. Return a list with one result per value, in the order of the "
        "values, and run again.",
    )


class Row(msgspec.Struct):
    """An operator's input: a record, or the old or the new value of a table's change."""

    key: str | None
    value: str | None
    """JSON text; None for a table's tombstone or a stream's null value."""
    time: int
    """Event time, ms."""
    before: int
    """The operator's stream time before this row, ms; -1 before the first row (see `engine.batch.stream_time`)."""
    after: int
    """The operator's stream time including this row, ms."""
    side: int = LEFT
    """The input of a join: LEFT, RIGHT, MOVED, AHEAD + LEFT or AHEAD + RIGHT. Operators with one input use LEFT.

    The rows of tables that a processor reads have sides from READ on.
    """
    old: bool = False
    """Whether this row has a table's old value. A table's change is up to two rows with the same `time`, `before` and
    `after`: the old value, then the new value."""
    window: Bounds | None = None
    latest_of_sides: tuple[int, int] = (-1, -1)
    """In a join of two streams: the largest event times of the left and the right stream, including this row.

    In a cogrouped aggregate: the largest event time of all streams before this row, and -1.
    """
    foreign: str | None = None
    """The record's own key, if `key` is another key. These operators get both keys: the left side
    of a foreign-key join, a stream joined by a mapped key, a stream deduplicated by an id, and an
    aggregate of a grouped table. An aggregate of a stream that has a topic for late records gets
    the record's original value here, as JSON, and sends it to this topic if the record is late.
    A step that sets times or headers gets them here as JSON. A step that applies changes gets the
    kind and the old row of the change."""
    headers: str | None = None
    """The headers of the record that caused the row, as JSON."""


class Receiver(Protocol):
    """Receives what a processor forwards."""

    headers: str | None
    """The headers of the next results, as JSON: the current row's headers, unless the operator sets other headers."""

    @property
    def cause(self) -> int:
        """A number that identifies the record or timer that caused the current row.

        The number does not depend on the batch in which the record is read or the timer fires.
        """

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        to: str = DEFAULT_OUTPUT,
    ) -> None:
        """Send a result to one of the processor's outputs."""


class Output(Receiver, Protocol):
    """Receives the results of an operator."""

    def emit(
        self,
        key: str | None,
        value: str | None,
        time: int,
        *,
        window: Bounds | None = None,
        old: bool = False,
        to: str = DEFAULT_OUTPUT,
        rank: int | None = None,
    ) -> None:
        """Send a result. For a table, send the old value (`old=True`) before the new value or the tombstone.

        Only an author's processor has outputs (`to`) other than the default. If stream time
        advances and results of several keys become due, they are sent in the order of `rank`; its
        default is the time at which the result was due.
        """

    def count(self, reason: str, number: int = 1) -> None:
        """Count the current row as dropped: `null_key`, `null_value`, `duplicate`, `no_window` or `late`.

        Except for `late`, the row then has no effect: it changes no state and has no result. A row
        is counted as `late` once for each window for which it is late. `restarted` counts windows
        whose earlier records the row replaces (see `WindowedAggregate`). `expired` counts the
        records of a table that had expired.
        """

    def send_late(self) -> None:
        """Note that the current row is late for all windows, so that it has no effect.

        Send it to the operator's topic for late records, if any.
        """

    def hold(self) -> None:
        """Buffer further results until `release` sends them or `reject` discards them."""

    def release(self) -> None:
        """Send the results buffered since `hold`."""

    def reject(
        self,
        error: BaseException,
        key: str | None,
        value: str | None,
        time: int,
        timer: str = "",
        window: Bounds | None = None,
    ) -> None:
        """Discard the results buffered since `hold`, and reject the current row, or the key's timer named `timer`.

        `value` is the step's input, and `window` is the window of a timer's key. Raises EngineError
        if the error or the step's `on_error` ends the run.
        """


S = TypeVar("S")


class Moment(Protocol):
    """The place among the rows of a batch at which an operator sends results that are due."""

    @property
    def stream_time(self) -> int:
        """The stream time here, which may have jumped over several due times."""

    @property
    def latest_of_sides(self) -> tuple[int, int]:
        """See `Row.latest_of_sides`."""


class Searches(Protocol):
    """Results that are sent only when the operator looks for them (see `joins.stream_join.Watch`)."""

    def looks_after(self, side: int) -> int:
        """Return the stream time after which a record of this side starts a search."""

    def look(self, stream_time: int) -> None:
        """Look for the results of all keys that are due. They are sent when their keys are closed."""


@dataclass(frozen=True)
class Releasing:
    """How an operator sends results when they are due, without a row of their key."""

    before_row: bool = False
    """Whether the results are sent before the row that makes them due, or after it."""
    after_record: bool = False
    """Whether they are sent after all rows that come from the same record as this row."""
    by_clock: bool = False
    """Whether they are due at a time of the wall clock, and not at a stream time."""
    searches: Searches | None = None
    """Set if due results are only sent when the operator looks for them."""


@dataclass(frozen=True)
class BatchOfOperator:
    """What an operator may know of a batch before the batch's first row."""

    now: int
    """The batch's clock, epoch ms."""
    closed: int
    """The stream time that all partitions have reached when the batch ends; -1 without a stream time."""
    latest_of_sides: tuple[int, int]
    """See `Row.latest_of_sides`, when the batch ends."""
    is_one_task: bool
    """Whether all keys have one stream time: the topics have one partition, like a task of Kafka Streams."""
    fires_after_record: bool
    """Whether timers fire after all rows that come from one record, because a record may have several."""
    read_table: Callable[[int, str], str | None]
    """Returns the row of a table with this side (see `READ`) and key, as JSON."""


class Operator(Generic[S]):
    """An operator. It changes a key's state in place.

    A row with a null key gets a new state from `new_state`, which is not stored. The methods that
    are implemented here are for operators that send results only for rows of their key.
    """

    state_type: Any
    """The msgspec type of a key's state."""
    shared: Any = None
    """The state that all keys of a worker share, if any."""
    reads_tables = False
    """Whether the operator gets the rows of tables, from the side `READ` on, to look them up."""
    takes_changes = False
    """Whether `change` takes the old and the new value of a table's row in the same group at once."""
    has_wall_timers = False
    """Whether the operator may set timers on the wall clock (see `tick`)."""
    processes_due = False
    """Whether `process` also sends due results of the row's key, unless the row has no stream times."""

    @property
    def asking(self) -> Asking | None:
        """The operator itself, if it asks a service or a database about each row."""
        return None

    def begin_batch(self, batch: BatchOfOperator) -> None:
        """Prepare for a batch."""

    def new_state(self) -> S:
        """Return the initial state of a key."""
        raise NotImplementedError

    def process(self, state: S, row: Row, out: Output) -> None:
        """Process one row. If that fails, the row is rejected and the state is unchanged."""
        raise NotImplementedError

    def process_columns(self, states: KeyStates[S], rows: KeyedRows) -> Results | None:
        """Process all rows of many keys at once, and change the `states` of the keys in place.

        Returns None, and changes no state, if these rows have to be processed one by one. Raises
        RowFailedError if a row fails. States may then have changed: the caller loads them again,
        and processes the rows one by one.
        """
        return None

    def change(self, state: S, old: Row, new: Row, out: Output) -> None:
        """Process the old and the new value of a table's row as a unit. Only if `takes_changes`."""
        raise NotImplementedError

    @property
    def releasing(self) -> Releasing | None:
        """How the operator sends results when they are due; None if it only sends results for rows."""
        return None

    def release_due(self, state: S) -> int | None:
        """Return when the next result of the key is due: a stream time, or a time of the wall clock."""
        return self.due(state)

    def release(self, state: S, key: str, due: int, moment: Moment, out: Output) -> None:
        """Send the results of a key that are due at `due`."""
        self.close(state, key, due, out)

    def keys_sent_early(self) -> Collection[str]:
        """Return the keys that have results to send at once, although they are not due."""
        return ()

    def require_room(self) -> None:
        """Raise EngineError if the operator holds back more than it may, after all due results were sent."""

    def sent_until(self, stream_time: int) -> int:
        """Return the stream time up to which due results have been sent, when the batch ends."""
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
        """Send the results that are due at stream time `closed`, and drop state that can no longer change.

        All partitions have reached `closed`. For a join of two streams, `latest_of_sides` means the
        same as in `Row`.
        """

    def wall_due(self, state: S) -> int | None:
        """Return when this state needs `tick` or `release` by the wall clock, epoch ms; None if never."""
        return None

    def tick(
        self,
        state: S,
        key: str,
        now: int,
        stream_time: int,
        out: Output,
        before_timer: Callable[[str, Timer[Any], int], None] = lambda _, __, ___: None,
    ) -> None:
        """Fire, once, each wall-clock timer that is due at `now`. Called in every batch.

        Before each timer fires, calls `before_timer` with the key, the timer, and the number of the
        record or timer that set it.
        """

    def end_keys(self, states: Mapping[str, S], out: Output) -> None:
        """Send what is sent once for each key, after the last row of these keys."""

    def entries(self, state: S) -> Sequence[dict[str, tuple[Any, ...]]]:
        """Return the entries of each store of a key, if the operator has stores that can be queried.

        Entry's name → the time of the `put`, the value, and perhaps headers.
        """
        raise NotImplementedError

    def rows_of_entries(
        self, store: int, entries_of_keys: Sequence[dict[str, tuple[Any, ...]]]
    ) -> list[str | None]:
        """Return the row of each key in one of these stores, as JSON; None if a key has no entries."""
        raise NotImplementedError

    def is_empty(self, state: S) -> bool:
        """Return whether the state need not be stored."""
        raise NotImplementedError


class RecordedFailure(Exception):
    """The failure of a call, in this batch or recorded in an earlier one.

    The exception's text is the whole description of the failure.
    """


class Answered(msgspec.Struct, frozen=True):
    """What an asking operator has learned for one row: a result as JSON (None for null), or an error."""

    value: str | None = None
    error: str | None = None


class Asking(Protocol):
    """An operator that asks a service or a database about each row, before it processes the rows.

    The task of a stage keeps the answers, so that a repeated batch, or a rebuild, need not ask
    again.
    """

    rows_at_once: int
    """The number of rows to ask about before their answers are recorded."""

    def needs_answer(self, row: Row) -> bool:
        """Whether to ask about the row at all."""

    def ask(self, rows: Sequence[Row]) -> list[str | BaseException | None]:
        """Ask about these rows.

        Returns for each row the answer as JSON (None for null), or the exception that rejects it.
        """

    def send(self, row: Row, answer: Answered, out: Output) -> None:
        """Send the result of a row. `answer` is empty if the row needs no answer."""
