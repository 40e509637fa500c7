"""Pipeline: the root of a topology."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from sluice.errors import TopologyError
from sluice.topology import arguments, drawing, nodes
from sluice.topology.author_functions import decoder, require_callable
from sluice.topology.durations import Duration, milliseconds, milliseconds_if_given
from sluice.topology.expiries import require_no_versions
from sluice.topology.graph import Graph
from sluice.topology.handles import R
from sluice.topology.serdes import V, Value, serde_of, topic_shape
from sluice.topology.shared_stores import StoreOf
from sluice.topology.source_line import files_running, source_line
from sluice.topology.streams import Stream
from sluice.topology.structs import key_expression, key_field_names
from sluice.topology.tables import GlobalTable, Table
from sluice.topology.versioned_tables import history_in_ms
from sluice.values.calendar_windows import CalendarWindow
from sluice.values.call_parameters import SharedStore
from sluice.values.epochs import EpochTime, field_of_time
from sluice.values.expiry import ExpiryClock
from sluice.values.json_text import JSON_FIELD
from sluice.values.record_metadata import RESERVED_NAMES, WALL_CLOCK, OnError, OnNull, OnTime
from sluice.values.sink_tables import DeltaTable
from sluice.values.topic_patterns import pattern_text
from sluice.values.windows import TimeWindow, Window

# Pipeline names are also used in paths, DAG ids and PostgreSQL schema names.
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,199}")
ON_RECORDS, CONTINUOUS = "on_records", "continuous"
_MOST_TOPICS = 100
_CRON = re.compile(r"@(hourly|daily|weekly|monthly|yearly)|[-*/,0-9A-Za-z]+( [-*/,0-9A-Za-z]+){4}")
RESERVED = frozenset(
    {"complete_minutes", "produce_sample_orders", "sluice_deadlines", "sluice_retention"}
)
"""Names of Sluice's own DAGs."""


_made: ContextVar[list[tuple[Pipeline, frozenset[str]]] | None] = ContextVar("made", default=None)


@contextmanager
def pipelines_made_by(file: Path) -> Iterator[list[Pipeline]]:
    """Collect the pipelines that the code of a file makes while the `with` block runs.

    A pipeline that no variable holds is collected, too. Pipelines that an imported module makes are
    not collected.
    """
    made: list[tuple[Pipeline, frozenset[str]]] = []
    pipelines: list[Pipeline] = []
    token = _made.set(made)
    try:
        yield pipelines
    finally:
        _made.reset(token)
        # A pipeline that an imported module makes belongs to that module.
        pipelines += [pipeline for pipeline, files in made if str(file.absolute()) in files]


class Pipeline(Graph):
    """A named topology.

    `workers` is the number of workers that share the keys. The DAG in Airflow has the same name.

    `zone` is the time zone of event times without a time zone. A record whose event time is more
    than `max_future_skew` ahead of the clock becomes a dead letter, so that one producer's wrong
    clock cannot close the windows of all keys. By default, a window closes when the stream time of
    every partition has reached the window's end plus grace. With `idle_timeout`, a partition that
    has had no record for this duration no longer delays the closing of windows. By default, only
    records advance stream time. With `advance_when_idle`, a step's stream time also advances with
    the clock, once all topics that the step reads have had no record for this duration. Windows
    then close, and time limits pass, without records.

    A run ends when it has read all records. With `linger`, the run first waits for new records, and
    processes them at once; it ends when no record has come for this duration. While a run waits,
    Spark does not have to start again for new records, so their results are published within
    seconds.

    `on_error` is the policy for a record that cannot be read, processed or written; sources, steps,
    stores and sinks can override it. `dead_letter` writes the record to the topic
    `{name}_dead_letters` with the reason, `skip` only counts the record, and `fail` ends the run
    before anything from the record's batch is published. A run also fails if a step fails for more
    than `max_failures` records of a batch, or if more than `max_rejected` records of a batch cannot
    be read. Each limit is a number of records, or a share of the records read. A share ends a run
    only if at least 100 records of the batch are rejected, so that a single wrong record does not
    stop a pipeline whose batches are small. If neither limit is exceeded, the run goes on; but if
    at least ten records, and more than 5 % of the batch's records, are rejected, the pipeline is
    shown as degraded.

    `schedule` says when Airflow runs the pipeline. `"on_records"`: when its topics have unread
    records; the starts of two such runs are at least `min_interval` apart. `"continuous"`: again as
    soon as a run has ended. A cron expression: at the times that the expression names, on the
    clocks of the time zone `schedule_zone`. None: only when somebody triggers the DAG. With
    `deadline`, Airflow raises an alert if a run has not ended within this time after it was queued,
    and the newest snapshot is older than this time.

    With `keep_headers=True`, all stores keep the headers of records, and queries return them: a row
    has the headers of the result that has last changed it. With a list of store names, only
    these stores keep headers.

    For each store in `announce_windows`, Airflow gets an event when a window of the store has
    closed: no record can change the window's results any more, in any partition. The store must
    aggregate a stream in tumbling or hopping windows.

    The fields that other pipelines read in this pipeline's topics and stores are an interface. If a
    change of this pipeline would break another pipeline, its run, rebuild or deployment is refused,
    unless `may_break` names the other pipeline.
    """

    def __init__(
        self,
        name: str,
        *,
        workers: int = 2,
        zone: str = "UTC",
        max_future_skew: Duration = "1 hour",
        idle_timeout: Duration | None = None,
        advance_when_idle: Duration | None = None,
        linger: Duration = "0 s",
        on_error: OnError = "dead_letter",
        max_failures: float = 0.5,
        max_rejected: float = 0.5,
        schedule: str | None = ON_RECORDS,
        schedule_zone: str = "UTC",
        min_interval: Duration = "0 s",
        deadline: Duration | None = None,
        keep_headers: bool | Collection[str] = False,
        announce_windows: Collection[str] = (),
        may_break: Collection[str] = (),
    ) -> None:
        _require_name(name)
        super().__init__(name, on_error)
        self.at = source_line()
        where = f"{name} at {self.at}"
        self.keep_headers = _valid_keep_headers(where, keep_headers)
        self.announce_windows = _valid_names(
            where, "announce_windows", announce_windows, 'stores, such as ["per_hour"]'
        )
        self.may_break = _valid_names(
            where, "may_break", may_break, 'pipelines, such as ["reports"]'
        )
        if not (isinstance(workers, int) and 1 <= workers <= 1024):
            raise TopologyError(
                f"{where}: workers={workers!r} must be 1 to 1024.",
                next_step="Begin with two workers; sluice repartition changes their number.",
            )
        self.workers = workers
        arguments.require_zone(where, zone)
        self.zone = zone
        self.max_future_skew_ms = milliseconds(max_future_skew)
        self.idle_timeout_ms = milliseconds_if_given(idle_timeout)
        self.advance_when_idle_ms = milliseconds_if_given(advance_when_idle)
        self.linger_ms = milliseconds(linger)
        arguments.require_at_least(where, "linger", self.linger_ms, 0)
        arguments.require_at_least(where, "max_future_skew", self.max_future_skew_ms, 0)
        arguments.require_at_least(where, "idle_timeout", self.idle_timeout_ms, 1)
        arguments.require_at_least(where, "advance_when_idle", self.advance_when_idle_ms, 1)
        self.max_failures = arguments.require_batch_limit(where, "max_failures", max_failures)
        self.max_rejected = arguments.require_batch_limit(where, "max_rejected", max_rejected)
        self.schedule = _valid_schedule(where, schedule)
        arguments.require_zone(where, schedule_zone)
        if schedule_zone != "UTC" and self.schedule in (None, ON_RECORDS, CONTINUOUS):
            raise TopologyError(
                f"{where}: schedule_zone= needs a cron expression as the schedule.",
                next_step="Leave schedule_zone= out.",
            )
        self.schedule_zone = schedule_zone
        self.min_interval_ms = milliseconds(min_interval)
        arguments.require_at_least(where, "min_interval", self.min_interval_ms, 0)
        if self.min_interval_ms and self.schedule != ON_RECORDS:
            raise TopologyError(
                f'{where}: min_interval= needs schedule="{ON_RECORDS}".',
                next_step="Leave min_interval= or schedule= out.",
            )
        self.deadline_ms = milliseconds_if_given(deadline)
        arguments.require_at_least(where, "deadline", self.deadline_ms, 1_000)
        self.doc = ""
        self.file: Path | None = None
        # Sluice writes these topics itself, so the pipeline's steps cannot use their names.
        self.claim("topic", self.dead_letters)
        self.claim("topic", self.markers)
        self.claim("topic", f"{name}_redriven")
        # `pipelines_made_by` collects the pipelines that a file makes while it is imported.
        if (made := _made.get()) is not None:
            made.append((self, files_running()))

    def require_streams(self) -> None:
        """Raise TopologyError if the pipeline reads no stream: no topic would ever start a run."""
        if not any(
            isinstance(node, nodes.Source) and node.kind != "global_table" for node in self.nodes
        ):
            reads = "reads only global tables" if self.nodes else "reads nothing"
            raise TopologyError(
                f"{self.name} at {self.at} {reads}.",
                next_step='Read a topic: pipeline.stream("topic", value=...), or table(...).',
            )

    def require_kept_stores(self) -> None:
        """Raise TopologyError if `keep_headers` names a store that the pipeline does not have."""
        if isinstance(self.keep_headers, bool):
            return
        stores: set[str] = set()
        for node in self.nodes:
            stores.update(node.store_names)
        for name in sorted(self.keep_headers - stores):
            raise TopologyError(
                f"{self.name} at {self.at}: keep_headers= names the store {name!r}, which does not "
                "exist.",
                next_step=f"Its stores: {', '.join(sorted(stores)) or 'none'}.",
            )

    @property
    def announced_windows(self) -> dict[str, TimeWindow]:
        """The windows of each store in `announce_windows`, by the store's name.

        Raise TopologyError if a store does not exist, or if its windows have no common bounds.
        """
        windows: dict[str, TimeWindow] = {}
        aggregates: dict[str, nodes.Aggregate] = {}
        for node in self.nodes:
            if isinstance(node, nodes.Aggregate) and node.store is not None:
                aggregates[node.store] = node
        for store in self.announce_windows:
            aggregate = aggregates.get(store)
            if aggregate is None or not isinstance(aggregate.window, Window | CalendarWindow):
                raise TopologyError(
                    f"{self.name} at {self.at}: announce_windows= names {store!r}, which is not a "
                    "store with tumbling or hopping windows.",
                    next_step="Name a store that aggregates a stream after "
                    'windowed_by(tumbling("1 hour")), or leave the name out.',
                )
            windows[store] = aggregate.window
        return windows

    @property
    def dead_letters(self) -> str:
        """The name of the topic of dead letters."""
        return f"{self.name}_dead_letters"

    @property
    def topics(self) -> list[str]:
        """The topics that the pipeline reads."""
        return sorted({source.topic for source in self.nodes_of(nodes.Source)})

    @property
    def sinks(self) -> dict[str, nodes.Sink]:
        return {sink.topic: sink for sink in self.nodes_of(nodes.Sink)}

    @property
    def needs_delta(self) -> bool:
        """Whether the pipeline writes Delta tables, for which Spark needs Delta's jars."""
        return any(isinstance(sink.table, DeltaTable) for sink in self.sinks.values())

    @property
    def markers(self) -> str:
        """The topic of the markers, which name the batches whose output has been written."""
        return f"{self.name}_markers"

    def _repr_svg_(self) -> str | None:
        """Return the drawing of the topology for notebooks; None if it has no source yet."""
        return drawing.svg(self) if self.nodes else None

    def stream(
        self,
        topic: str | Sequence[str] | re.Pattern[str],
        *,
        value: Value[V],
        key: str | Sequence[str] | Callable[[bytes], str] | None = None,
        event_time: str | EpochTime | None = None,
        nulls: OnNull = "dead_letter",
        invalid_time: OnTime | None = None,
        max_topics: int | None = None,
        on_error: OnError | None = None,
    ) -> Stream[V]:
        """Read a topic, or several topics with values of one type, as a stream.

        With several topics, the column `_topic` in SQL expressions is the name of the topic from
        which a record comes. A pattern, such as `re.compile("sales_.*")`, means all topics whose
        whole name matches it. Each run looks for matching topics when it begins, and reads a new
        topic from the topic's beginning. If a run finds more than `max_topics` topics, by default
        100, it stops with an error.

        `value` is the values' type: a Struct for JSON, `str` for plain text, or a Serde. `key` is
        the field that holds the record's key, a list of fields that make up the key, or a function
        from the bytes of the Kafka key to text (default: the Kafka key as text). `event_time` is
        the field that holds the event time (default: the Kafka timestamp), or `WALL_CLOCK` for the
        time of processing: all records of a batch get the time at which the batch began. A rebuild
        gives the records the same times again. `invalid_time` is the policy for a record without a
        valid event time: one of the `on_error` policies, or "clock" to use the time of processing.

        If the field with the event time is an int, declare its unit with `epoch_ms("field")`,
        `epoch_s("field")` or `epoch_us("field")`. Without a declaration, the number is read as
        milliseconds since 1970, like Kafka's timestamps. If the number, read in this way, is a time
        before March 1973, the time is invalid, because the number is more likely to be in seconds.

        By default, a record with a null value becomes a dead letter. `nulls="keep"` passes such a
        record on, and Python functions get None as its value.
        """
        if not isinstance(topic, str | re.Pattern):
            options: Any = {
                "value": value,
                "key": key,
                "event_time": event_time,
                "nulls": nulls,
                "invalid_time": invalid_time,
                "on_error": on_error,
            }
            where = f"{self.name}: stream at {source_line()}"
            _refuse_most_topics(where, max_topics)
            arguments.require_instance(where, topic, Sequence, "a topic, or a list of topics")
            if not topic:
                raise TopologyError(
                    f"{where}: there is no topic to read.",
                    next_step="Name a topic, or list several.",
                )
            for name in topic:
                arguments.require_instance(where, name, str, "the name of a topic (str)")
            first, *others = (self.stream(name, **options) for name in topic)
            return first.merge(*others) if others else first
        source = self._source(
            topic,
            "stream",
            value,
            key,
            event_time=event_time,
            nulls=nulls,
            on_time=invalid_time,
            max_topics=max_topics,
            on_error=on_error,
        )
        return Stream(self, source, source.shape, source.serde.contract)

    def table(
        self,
        topic: str,
        *,
        value: Value[V],
        key: str | Sequence[str] | Callable[[bytes], str] | None = None,
        store: str | None = None,
        versioned: Duration | None = None,
        expires_at: str | None = None,
        expires_after: Duration | None = None,
        expiry_clock: ExpiryClock = "event",
        on_error: OnError | None = None,
    ) -> Table[V]:
        """Read a topic as a table: the latest value of each key, by offset.

        A null value deletes the key's row.

        If `key` is a field or a list of fields, the Kafka key of a record with a null value says
        which row the record deletes. The store has the topic's name unless `store` names it.

        With `versioned`, a duration, the table has for each key the value with the latest event
        time, and keeps the key's earlier values for this duration. In a join with a stream, each
        record of the stream gets the value as of the record's own time.

        With `expires_at`, an SQL expression, a row expires at the time that the expression gives.
        With `expires_after`, a duration, a row expires this long after the event time of the row's
        record. An expired row is deleted, and later steps see a deletion. By default, a row expires
        when the stream time of the table's records reaches the row's expiry time. With
        `expiry_clock="wall"`, a row expires in the first batch that begins after its expiry time,
        and Airflow starts a run for this batch.
        """
        source = self._source(topic, "table", value, key, nulls="keep", on_error=on_error)
        step = f"table {topic!r}"
        where = f"{self.name}: {step} at {source_line()}"
        store = store or topic
        self.claim("store", store)
        history_ms = history_in_ms(where, versioned)
        records: Stream[V] = Stream(self, source, source.shape, source.serde.contract)
        expiry = records._expiry(step, expires_at, expires_after, expiry_clock)
        require_no_versions(where, history_ms, expiry)
        node = self.add(
            nodes.ToTable,
            parent=source,
            store=store,
            history_ms=history_ms,
            expiry=expiry,
            on_error=on_error,
        )
        return Table(self, node, source.shape, source.serde.contract)

    def global_table(
        self,
        topic: str,
        *,
        value: Value[V],
        key: str | Sequence[str] | Callable[[bytes], str] | None = None,
        store: str | None = None,
        on_error: OnError | None = None,
    ) -> GlobalTable[V]:
        """Read a topic as a table of which every worker has all rows.

        The store has the topic's name unless `store` names it. Streams can join the table by any
        key, and processors can read it (`process(tables=...)`).
        """
        source = self._source(
            topic,
            "global_table",
            value,
            key,
            nulls="keep",
            on_error=on_error,
            store=store,
        )
        self.claim("store", store or topic)
        return GlobalTable(self, source, source.shape, source.serde.contract)

    def store_of(self, pipeline: str, store: str, *, value: type[R]) -> StoreOf[R]:
        """Return a store of another pipeline, in which `Stream.lookup_in` looks records up.

        No topic connects the pipelines: records are read from the other pipeline's newest published
        snapshot. `value` is the type of the store's values, or a Struct with some of their fields.
        A run compares `value` with the type that the other pipeline has published.
        """
        where = f"store_of at {source_line()}"
        for what, name in (("pipeline", pipeline), ("store", store)):
            if not isinstance(name, str) or not name:
                raise TopologyError(
                    f"{where}: {name!r} is not the name of a {what}.",
                    next_step='Write for example store_of("customers", "by_id", value=Customer).',
                )
        if pipeline == self.name:
            raise TopologyError(
                f"{where}: {store!r} is a store of this pipeline itself, not of another one.",
                next_step="Join the table, or read it in a processor.",
            )
        return StoreOf(SharedStore(pipeline, store), value)

    def _source(
        self,
        topic: str | re.Pattern[str],
        kind: Any,
        value: Value[V],
        key: str | Sequence[str] | Callable[[bytes], str] | None,
        *,
        event_time: str | EpochTime | None = None,
        nulls: OnNull,
        on_time: OnTime | None = None,
        on_error: OnError | None,
        store: str | None = None,
        max_topics: int | None = None,
    ) -> nodes.Source:
        if isinstance(topic, re.Pattern):
            if kind != "stream":
                raise TopologyError(
                    f"{self.name}: {kind} at {source_line()}: "
                    "only a stream can read the topics that match a pattern.",
                    next_step="Name the topic, or write "
                    "stream(re.compile(...), ...).to_table(store=...).",
                )
            most_topics = _MOST_TOPICS if max_topics is None else max_topics
            topic = self._pattern(topic, most_topics)
            self.claim_pattern(topic)
        else:
            most_topics = 1
            self.claim("topic", topic)
            _refuse_most_topics(f"{self.name}: {topic} at {source_line()}", max_topics)
        where = f"{self.name}: {topic} at {source_line()}"
        serde = serde_of(value)
        arguments.require_choice(where, "nulls", nulls, OnNull)
        is_timed_by_clock = event_time == WALL_CLOCK
        if is_timed_by_clock:
            on_time = "clock"
        else:
            on_time = on_time or on_error or self.on_error
        arguments.require_choice(where, "invalid_time", on_time, OnTime)
        key_fields = key_field_names(where, key)
        if key is not None and not key_fields:
            require_callable(where, key, "key")
        if serde.decode is not None:
            serde = replace(serde, decode=decoder(where, serde.decode))
        try:
            shape = topic_shape(serde.contract)
        except TopologyError as error:
            raise TopologyError(f"{where}: {error.detail}", next_step=error.next_step) from None
        fields = shape.fields
        for name in key_fields:
            _require_field(where, serde.name, fields, name)
            if JSON_FIELD in fields[name]:
                raise TopologyError(
                    f"{where}: the key {name} contains unparsed JSON, which cannot be a key.",
                    next_step=f"Declare the type of {name}.",
                )
        time_field = field_of_time(event_time)
        if time_field is not None and not is_timed_by_clock:
            _require_field(where, serde.name, fields, time_field)
            _require_time(where, event_time, fields[time_field])
        # No field can have a reserved name, because expressions read the record's metadata under
        # the reserved names.
        if reserved := fields.keys() & RESERVED_NAMES:
            raise TopologyError(
                f"{where}: the names {', '.join(sorted(reserved))} are reserved by Sluice.",
                next_step="Give the values a Serde whose decoder renames the fields.",
            )
        return self.add(
            nodes.Source,
            topic=topic,
            kind=kind,
            serde=serde,
            key=key_expression(key_fields),
            key_fields=key_fields,
            key_decode=key if callable(key) else None,
            event_time=event_time,
            zone=self.zone,
            max_future_skew_ms=self.max_future_skew_ms,
            nulls=nulls,
            on_time=on_time,
            shape=shape,
            store=store,
            most_topics=most_topics,
            on_error=on_error,
        )

    def _pattern(self, pattern: re.Pattern[str], max_topics: int) -> str:
        """Return the text of a pattern of topics."""
        where = f"{self.name}: stream at {source_line()}"
        arguments.require_instance(where, pattern.pattern, str, "a pattern of text, not of bytes")
        # The ledger and the trigger get only the text of the pattern, so flags would be lost.
        if pattern.flags != re.compile(pattern.pattern).flags:
            raise TopologyError(
                f"{where}: {pattern} has flags.",
                next_step="Write them into the pattern: (?i) ignores case, for example.",
            )
        arguments.require_instance(where, max_topics, int, "a number of topics (int)")
        arguments.require_at_least(where, "max_topics", max_topics, 1)
        return pattern_text(pattern)


def _refuse_most_topics(where: str, max_topics: int | None) -> None:
    """Raise TopologyError if `max_topics` is given although every topic is named."""
    if max_topics is not None:
        raise TopologyError(
            f"{where}: max_topics= limits the topics that match a pattern, "
            "but this stream names its topics.",
            next_step='Leave it out, or pass a pattern: re.compile("...").',
        )


def _require_field(where: str, contract: str, fields: Mapping[str, str], name: str) -> None:
    if name not in fields:
        raise TopologyError(
            f"{where}: {contract} has no field {name!r}.",
            next_step=f"Its fields: {', '.join(fields)}.",
        )


def _require_time(where: str, event_time: str | EpochTime | None, kind: str) -> None:
    """Raise TopologyError if a field of this type cannot hold the event time."""
    is_number = isinstance(event_time, EpochTime)
    if kind == "BIGINT" or (kind == "TIMESTAMP" and not is_number):
        return
    field = field_of_time(event_time)
    if kind == "TIMESTAMP":
        next_step = f"Write event_time={field!r}."
    else:
        next_step = (
            f"Declare {field} as datetime if JSON has ISO 8601 text. If it has a whole number, "
            f'declare it as int, and write event_time=epoch_ms("{field}"), epoch_s or epoch_us.'
        )
    wanted = "an int" if is_number else "a datetime or an int"
    raise TopologyError(
        f"{where}: event_time={event_time!r} is {kind}, not {wanted}.",
        next_step=next_step,
    )


def is_free_name(name: str) -> bool:
    """Return whether a pipeline may have this name."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED


def _require_name(name: str) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise TopologyError(
            f"{name!r} at {source_line()} is not a valid pipeline name.",
            next_step="Use letters, digits, '_', '-'.",
        )
    if name in RESERVED:
        raise TopologyError(
            f"{name!r} at {source_line()} is the name of one of Sluice's own DAGs.",
            next_step="Use another name.",
        )


def _valid_schedule(where: str, schedule: str | None) -> str | None:
    if schedule is None or schedule in (ON_RECORDS, CONTINUOUS):
        return schedule
    if isinstance(schedule, str) and _CRON.fullmatch(schedule):
        return schedule
    raise TopologyError(
        f"{where}: schedule={schedule!r} is not a schedule.",
        next_step=f'Write "{ON_RECORDS}", "{CONTINUOUS}", '
        'a cron expression such as "0 * * * *", or None.',
    )


def _valid_keep_headers(where: str, value: bool | Collection[str]) -> bool | frozenset[str]:
    if isinstance(value, bool):
        return value
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if is_list and all(isinstance(name, str) for name in value):
        return frozenset(value)
    raise TopologyError(
        f"{where}: keep_headers={value!r} must be True, False, or a list of stores.",
        next_step='Write for example keep_headers=["totals"].',
    )


def _valid_names(
    where: str, argument: str, value: Collection[str], expected: str
) -> tuple[str, ...]:
    is_list = isinstance(value, Collection) and not isinstance(value, str | bytes)
    if is_list and all(isinstance(name, str) for name in value):
        return tuple(dict.fromkeys(value))
    raise TopologyError(
        f"{where}: {argument}={value!r} must be a list.",
        next_step=f"Write a list of {expected}.",
    )
