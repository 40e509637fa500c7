"""Tables: sources, stateless steps, joins of tables, and suppress.

A table without a store computes its rows from its parents' whenever another operator looks one up.
A join may therefore see a row of its other side before the update of that row arrives.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from tests.conformance.model.differences import SLUICE, Difference, Differences
from tests.conformance.model.expressions import Expression, evaluate, holds
from tests.conformance.model.flow import Change, Flow, Key, Node, Record, Windowed, plain


class Row(NamedTuple):
    value: Any
    time: int


@dataclass(kw_only=True)
class Table(Node):
    """Children of a table receive its updates as a `Change`."""

    parents: tuple[Table, ...] = ()
    window: dict[str, Any] | None = None
    """The window of the keys, if they have one."""

    @property
    def is_filtered(self) -> bool:
        """Whether the table is a filtered one, perhaps mapped."""
        return False

    @property
    def knows_old_values(self) -> bool:
        """Whether updates say what they replace, even if no later step asks."""
        return all(parent.knows_old_values for parent in self.parents)

    @property
    def is_versioned(self) -> bool:
        """Whether earlier values can be looked up."""
        return False

    def get(self, key: Key) -> Row | None:
        """The row of a key at this moment."""
        raise NotImplementedError

    def as_of(self, key: Key, time: int) -> Any:
        """The value that was valid at a time, of a versioned table."""
        raise NotImplementedError


@dataclass
class Versions:
    """The values of keys, with the times from which they are valid, as far back as `history`."""

    history: int
    values: dict[Key, dict[int, Any]] = field(default_factory=dict)
    time: int = -1

    def is_late(self, time: int) -> bool:
        return time < self.time - self.history

    def put(self, key: Key, value: Any, time: int) -> bool:
        """Add a version. Returns whether it is the latest of its key."""
        self.time = max(self.time, time)
        if self.is_late(time):
            return False
        values = self.values.setdefault(key, {})
        values[time] = value
        return time >= max(values)

    def as_of(self, key: Key, time: int) -> Any:
        values = self.values.get(key, {})
        if self.is_late(time):
            return values[max(values)] if values and max(values) <= time else None
        valid = [start for start in values if start <= time]
        return values[max(valid)] if valid else None


@dataclass(kw_only=True)
class Stored(Table):
    """A table with a store: a source, `to_table`, or the result of a foreign-key join."""

    rows: dict[Key, Row] = field(default_factory=dict)
    versions: Versions | None = None
    is_named: bool = True
    """Whether the author has named the store."""

    @property
    def knows_old_values(self) -> bool:
        return self.is_named

    @property
    def is_versioned(self) -> bool:
        return self.versions is not None

    def as_of(self, key: Key, time: int) -> Any:
        assert self.versions is not None
        return self.versions.as_of(key, time)

    def get(self, key: Key) -> Row | None:
        return self.rows.get(key)

    def process(self, record: Record) -> None:
        if record.key is not None:
            self.update(record.key, record.value, record.time)

    def update(self, key: Key, value: Any, time: int) -> None:
        """Store a row, or delete it if the value is null, and send the update."""
        old = self.rows.get(key)
        self.replace(key, old and old.value, value, time)

    def replace(self, key: Key, old: Any, value: Any, time: int) -> None:
        """Like `update`, but the update says that it replaces the value `old`."""
        self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = Row(value, time)
        if self.versions is not None:
            self.versions.put(key, value, time)
        self.send(Record(key, Change(value, old), time))


@dataclass(kw_only=True)
class VersionedTable(Stored):
    """Only the latest version of a row is an update of the table.

    All versions within the history can be looked up.
    """

    def process(self, record: Record) -> None:
        assert self.versions is not None
        if record.key is not None and self.versions.put(record.key, record.value, record.time):
            self.update(record.key, record.value, record.time)


@dataclass(kw_only=True)
class ExpiringTable(Stored):
    """A row is deleted when the time of the table's records is `expires` ms past the row's own time."""

    expires: int
    time: int = -1

    def process(self, record: Record) -> None:
        if record.key is None:
            return
        self.time = max(self.time, record.time)
        expired = [
            (row.time + self.expires, key)
            for key, row in self.rows.items()
            if self._has_expired(row.time)
        ]
        for time, key in sorted(expired, key=lambda one: (one[0], str(one[1]).encode())):
            self.update(key, None, time)
        value = None if self._has_expired(record.time) else record.value
        self.update(record.key, value, record.time)

    def _has_expired(self, time: int) -> bool:
        return time + self.expires <= self.time


@dataclass(kw_only=True)
class GlobalTable(Stored):
    """A table that streams look up, and whose updates cause nothing."""


@dataclass(kw_only=True)
class FilteredTable(Table):
    where: Expression
    wanted: bool
    is_filtered = True

    def get(self, key: Key) -> Row | None:
        row = self.parents[0].get(key)
        return row if row and self._kept(key, row.value) is not None else None

    @property
    def is_versioned(self) -> bool:
        return self.parents[0].is_versioned

    def as_of(self, key: Key, time: int) -> Any:
        return self._kept(key, self.parents[0].as_of(key, time))

    def process(self, record: Record) -> None:
        # Also for a row that never passed, as long as no later step needs old values, in Kafka
        # Streams.
        new, old = (self._kept(record.key, value) for value in record.value)
        self.send(replace(record, value=Change(new, old)))

    def _kept(self, key: Key, value: Any) -> Any:
        return value if value is not None and holds(self.where, key, value) is self.wanted else None


@dataclass(kw_only=True)
class MappedTable(Table):
    value: Expression

    @property
    def is_filtered(self) -> bool:
        return self.parents[0].is_filtered

    def get(self, key: Key) -> Row | None:
        row = self.parents[0].get(key)
        value = None if row is None else self._mapped(key, row.value)
        return None if row is None or value is None else Row(value, row.time)

    @property
    def is_versioned(self) -> bool:
        return self.parents[0].is_versioned

    def as_of(self, key: Key, time: int) -> Any:
        return self._mapped(key, self.parents[0].as_of(key, time))

    def process(self, record: Record) -> None:
        new, old = (self._mapped(record.key, value) for value in record.value)
        self.send(replace(record, value=Change(new, old)))

    def _mapped(self, key: Key, value: Any) -> Any:
        return None if value is None else evaluate(self.value, key, value)


Side = Literal["left", "right"]


@dataclass(kw_only=True)
class TableJoin(Table):
    """Both tables are parents, the left one first."""

    how: str
    like: Differences = SLUICE
    sent: dict[Key, Any] = field(default_factory=dict)
    """The rows of the join, as sent."""
    sent_at: dict[Key, int] = field(default_factory=dict)
    """The times of these rows."""
    knows_old_values = True

    def __post_init__(self) -> None:
        left, right = self.parents
        left.children.append(lambda record: self._update(record, "left"))
        right.children.append(lambda record: self._update(record, "right"))

    def get(self, key: Key) -> Row | None:
        left, right = (parent.get(key) for parent in self.parents)
        value = self._joined(left and left.value, right and right.value)
        if value is None:
            return None
        time = max(row.time for row in (left, right) if row)
        # Kafka Streams stores no rows of joins, so it does not know when a row was deleted.
        if Difference.COMPUTED_AGAIN not in self.like and value == self.sent.get(key):
            time = max(time, self.sent_at[key])
        return Row(value, time)

    def _update(self, record: Record, side: Side) -> None:
        own, other = self.parents[side == "right"], self.parents[side == "left"].get(record.key)
        change: Change = record.value
        new, old = (
            self._joined(value, other and other.value)
            if side == "left"
            else self._joined(other and other.value, value)
            for value in change
        )
        # Kafka Streams computes the old row from the other side's new row if the record has changed
        # both sides.
        deletes_row = False
        if Difference.ROWS_OF_ONE_TABLE not in self.like:
            old = self.sent.get(record.key)
            deletes_row = new is None and old is not None
        # A filter drops what never passed, but not of a versioned table, whose every update must be
        # passed on.
        if change == (None, None) and own.is_filtered and not own.is_versioned:
            return
        if self._sends_nothing(change, other, side) and not deletes_row:
            return
        self.sent[record.key] = new
        time = max(record.time, other.time) if other else record.time
        self.sent_at[record.key] = time
        self.send(Record(record.key, Change(new, old), time))

    def _sends_nothing(self, change: Change, other: Row | None, side: Side) -> bool:
        return other is None and (change == (None, None) or self._needs_other(side))

    def _needs_other(self, side: Side) -> bool:
        return self.how == "inner" or (self.how == "left" and side == "right")

    def _joined(self, left: Any, right: Any) -> Any:
        missing = {
            "inner": left is None or right is None,
            "left": left is None,
            "outer": left is right is None,
        }
        return None if missing[self.how] else {"left": left, "right": right}


Action = Literal["delete", "delete and answer", "answer a match", "answer"]


class Subscription(NamedTuple):
    """What the left side of a foreign-key join sends to the right side."""

    key: Key
    left: Any
    """The left row at the time of sending."""
    action: Action


class Answer(NamedTuple):
    """What the right side of a foreign-key join sends back."""

    left: Any
    right: Any


@dataclass(kw_only=True)
class ForeignKeyJoin(Stored):
    how: str
    fk: Expression
    left: Table
    right: Table
    flow: Flow
    is_named: bool = False
    like: Differences = SLUICE
    subscribed: dict[tuple[Key, Key], Any] = field(default_factory=dict)
    """Foreign key and left key → the left row."""

    def __post_init__(self) -> None:
        self._to_right = self.flow.later(self._subscribe)
        self._to_left = self.flow.later(self._answer)
        self.left.children.append(self._update_left)
        self.right.children.append(self._update_right)

    def _update_left(self, record: Record) -> None:
        new, old = record.value
        foreign, old_foreign = (self._foreign_key(record.key, one) for one in (new, old))
        for to, action in self._subscriptions(new, old, foreign, old_foreign):
            self._to_right(Record(to, Subscription(record.key, new, action), record.time))

    def _foreign_key(self, key: Key, left: Any) -> Any:
        return None if left is None else evaluate(self.fk, key, left)

    def _subscriptions(
        self, new: Any, old: Any, foreign: Any, old_foreign: Any
    ) -> Iterator[tuple[Any, Action]]:
        """The instructions for the old and the new right row of a changed left row; they delete stale results."""
        is_moved = old_foreign is not None and foreign != old_foreign
        if self.how == "left":
            if is_moved:
                yield old_foreign, "delete"
            if new is not None or old is not None:
                yield foreign, "answer"
        elif foreign is None:
            if is_moved:
                yield old_foreign, "delete and answer"
        elif is_moved:
            yield old_foreign, "delete"
            yield foreign, "answer"
        else:
            yield foreign, "answer a match"

    def _subscribe(self, record: Record) -> None:
        foreign, (key, left, action) = record.key, record.value
        if foreign is not None:
            if action.startswith("delete"):
                self.subscribed.pop((foreign, key), None)
            else:
                self.subscribed[foreign, key] = left
        right = None if foreign is None else self.right.get(foreign)
        if action == "delete" or (action == "answer a match" and right is None):
            return
        time = max(record.time, right.time) if right else record.time
        value = right.value if right and action != "delete and answer" else None
        self._to_left(Record(key, Answer(left, value), time))

    def _update_right(self, record: Record) -> None:
        # A filter that a join reads knows old values, so it drops what never passed.
        if record.value == (None, None) and self.right.is_filtered and not self.right.is_versioned:
            return
        found = [
            (key, left) for (foreign, key), left in self.subscribed.items() if foreign == record.key
        ]
        for key, left in sorted(found, key=lambda one: plain(one[0]) or ""):
            self._to_left(Record(key, Answer(left, record.value.new), record.time))

    def _answer(self, record: Record) -> None:
        row = self.left.get(record.key)
        left, right = record.value
        # In Kafka Streams, an answer counts only if the left row is still the same. If one record
        # has changed the left row and deleted its right row, Kafka Streams therefore keeps the
        # earlier result.
        if Difference.STALE_ANSWERS in self.like and (row and row.value) != left:
            return
        missing = left is None or (right is None and self.how == "inner")
        self.update(record.key, None if missing else {"left": left, "right": right}, record.time)


@dataclass
class _Held:
    """The last update of a row that suppress holds back."""

    since: int
    prior: Any
    """The row before the first update that is held."""
    update: Record


@dataclass(kw_only=True)
class Suppress(Table):
    """Until the window closes, or until a time limit of `ms`."""

    ms: int
    of_windows: bool
    like: Differences = SLUICE
    held: dict[Key, _Held] = field(default_factory=dict)
    time: int = -1
    sent: dict[Key, Row] = field(default_factory=dict)
    """The rows that were sent last."""

    def get(self, key: Key) -> Row | None:
        if Difference.LOOKED_UP_TOO_EARLY not in self.like:
            return self.sent.get(key)
        # Kafka Streams finds a row before it is held back, and does not know the time of the row
        # before a held one.
        if key in self.held:
            prior = self.held[key].prior
            return None if prior is None else Row(prior, -1)
        return self.parents[0].get(key)

    def process(self, record: Record) -> None:
        if self.parents[0].is_filtered and record.value == (None, None):
            return
        self.time = max(self.time, record.time)
        if record.key in self.held:
            self.held[record.key].update = record
        else:
            since = (
                record.key.end
                if self.of_windows and isinstance(record.key, Windowed)
                else record.time
            )
            self.held[record.key] = _Held(since, record.value.old, record)
        while self.held:
            key, first = min(
                self.held.items(), key=lambda item: (item[1].since, _bytes(item[0], self.window))
            )
            if first.since > self.time - self.ms:
                break
            del self.held[key]
            new, old = first.update.value
            is_dropped = new is None and self.of_windows
            # Kafka Streams sends the old row of the last update that was held back.
            if Difference.HELD_UPDATES not in self.like:
                old = first.prior
                is_dropped &= old is None
            if not is_dropped:
                self.sent.pop(key, None)
                if new is not None:
                    self.sent[key] = Row(new, first.update.time)
                self.send(replace(first.update, value=Change(new, old)))


def _bytes(key: Key, window: dict[str, Any] | None) -> bytes:
    """A key as the store writes it, which orders keys of the same time."""
    if not isinstance(key, Windowed):
        return (key or "").encode()
    numbers = (key.end, key.start) if window and window["type"] == "session" else (key.start,)
    return key.key.encode() + b"".join(number.to_bytes(8, "big") for number in numbers)
