"""TopologyTestDriver runs a pipeline on the real engine without a broker.

A test pipes records in and reads results.

    with TopologyTestDriver(pipeline) as driver:
        driver.pipe("words", "Apple", key="A")
        assert driver.store("count") == {"A": 1}

Records wait until `commit()` publishes a snapshot; reading any result commits first.
"""

from __future__ import annotations

import atexit
import json
import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec
import structlog

from sluice.errors import TopologyError
from sluice.operators.encoding import Declared
from sluice.plan import Job, is_of_processor, matched_job, plan
from sluice.plan.arrow_support import NeedsSparkError
from sluice.plan.operator_parameters import TableLookupParameters
from sluice.provision.class_archive import archive_file
from sluice.provision.jars import bundles_for_this_machine
from sluice.registry.opening import MEMORY, forget, memory_registry
from sluice.settings import Settings, settings
from sluice.spark_submit import DELTA_CONF, QUICK_JVM
from sluice.state.model import StateRow, StoreInfo
from sluice.state.queries.entries import entry_with_headers
from sluice.state.remote.opening import open_shard
from sluice.testing.empty_databases import temporary_databases
from sluice.testing.local_run import LocalRun, local_query
from sluice.testing.memory import memory_folder
from sluice.testing.piped_records import HeadersArgument, PipedRecords
from sluice.testing.piped_run import ManualClock, PipedRun
from sluice.testing.registered_records import RegisteredRecords
from sluice.topology.pipeline import Pipeline
from sluice.values.call_parameters import SharedStore
from sluice.values.json_limits import refuse_nesting
from sluice.values.json_text import encode_bytes, encode_text, plain_json
from sluice.values.key_owners import owner
from sluice.values.pipeline_modules import require_no_task
from sluice.values.sink_tables import connection_variable
from sluice.values.topic_patterns import matches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Output:
    """A record that the pipeline wrote to a topic."""

    key: Any
    """The key as text, or as bytes if it is not UTF-8. None for a record without a key."""
    value: Any
    """Text if the sink writes text (`value=str`), else decoded JSON, or bytes if that fails. None
    is a tombstone."""
    timestamp: int | None
    headers: dict[str, Any] = field(default_factory=dict)
    """Name → value as text, or as bytes if it is not UTF-8. A repeated name has its last value."""
    header_pairs: tuple[tuple[str, Any], ...] = ()
    """All headers in order, as pairs of name and value."""
    partition: int | None = None
    """The number that `to(partition=...)` has chosen, before it is taken modulo the number of
    partitions."""


_MOST_ROUNDS = 1_000
"""The maximum number of batches that one `commit` runs because each batch reads the output of the
batch before."""
_LONGEST_MS = 2**63 // 1_000
"""The limit of timestamps, because Spark stores microseconds in 64 bits."""


class TopologyTestDriver:
    """Runs a pipeline in a test. Use it in a `with` statement.

    All drivers that need Spark share one session, with two cores.

    Topics have one partition by default; `partitions` maps topics to other numbers. A topic that
    matches a pattern of the pipeline exists once a test has written a record to it. Values of type
    str, bytes or None are written unchanged, other values as JSON.

    The state is in SQLite files, which are deleted when the driver ends. The files are in the
    folder that TMPDIR names, else in /dev/shm if it has room for 2 GiB, else in Python's default
    folder for temporary files. If `database` is the URL of an empty PostgreSQL database, the state
    is in this database, and is not deleted.

    `connections` maps the names of connections to the URLs of the databases that `lookup` reads,
    such as `sqlite:////tmp/customers.db` for a SQLite file.

    The wall clock is the machine's clock, plus the time by which `advance` has moved it. With
    `clock`, in epoch ms, the wall clock starts at this time, and only `advance` moves it.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        spark: SparkSession | None = None,
        partitions: Mapping[str, int] | None = None,
        database: str = "",
        clock: int | None = None,
        connections: Mapping[str, str] | None = None,
    ) -> None:
        require_no_task()
        self.pipeline = pipeline
        # On a disk, removing the files may take longer than processing a record.
        self.home = Path(tempfile.mkdtemp(prefix="sluice-test-", dir=memory_folder()))
        """The folder of the ledger and the shards, as in SLUICE_HOME. The driver deletes it at the
        end."""
        # Clean up at exit, too: the pipeline may be rejected below, or a task may still write after
        # its query has stopped.
        atexit.register(shutil.rmtree, self.home, ignore_errors=True)
        url = f"{MEMORY}{self.home}"
        self._settings = _settings(self.home, database, connections or {}, url)
        atexit.register(forget, url)
        self._job = job = plan(pipeline).job
        self.registry = memory_registry(url)
        """The schema registry of the test, which has the schemas of the pipeline."""
        self._registered = RegisteredRecords.of(job, self.registry)
        self._topics = {*job.topics}
        self._new_topics: list[str] = []
        """Topics that match a pattern, and that the next batch reads for the first time."""
        self._outputs = {sink.topic for sink in job.sinks}
        self._outputs.add(pipeline.dead_letters)
        self._cycles = self._topics & self._outputs
        """The topics that the pipeline both reads and writes."""
        self._fed_back: Counter[str] = Counter()
        """Topic → the number of its output records that a batch has read."""
        self._texts: set[str] = set()
        self._bytes: set[str] = set()
        for topic, sink in pipeline.sinks.items():
            if sink.encode is encode_text:
                self._texts.add(topic)
            if sink.encode is encode_bytes:
                self._bytes.add(topic)
        self._records = PipedRecords(pipeline.zone)
        self._waiting: list[str] = []
        self._time = 0
        self._read: dict[str, int] = {}
        self._run = _make_run(job, self._settings, partitions or {}, spark)
        if clock is not None:
            self._run.clock = ManualClock(clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._run.stop()
        forget(self._settings.registry["url"])
        shutil.rmtree(self.home, ignore_errors=True)

    def pipe(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *,
        timestamp: int | None = None,
        headers: HeadersArgument | None = None,
        partition: int = 0,
    ) -> None:
        """Write a record to a topic of the pipeline.

        `timestamp` is in epoch ms; by default, it is the timestamp of the record that was piped
        before. A key that is neither str nor bytes is written as its text.
        """
        if topic not in self._topics:
            if not any(matches(pattern, topic) for pattern in self._job.patterns):
                raise TopologyError(
                    f"{self.pipeline.name} does not read a topic {topic!r}.",
                    next_step=f"It reads {', '.join(sorted(self._topics))}.",
                )
            self._topics.add(topic)
            self._new_topics.append(topic)
        count = self._run.partitions.get(topic, 1)
        if not 0 <= partition < count:
            raise TopologyError(
                f"{topic} has no partition {partition!r}; it has {count}, numbered from 0.",
                next_step=(
                    "Give the driver more: TopologyTestDriver(pipeline, "
                    f"partitions={{{topic!r}: ...}})."
                ),
            )
        if timestamp is not None:
            if not isinstance(timestamp, int) or abs(timestamp) >= _LONGEST_MS:
                raise TopologyError(
                    f"The timestamp {timestamp!r} is not a time in epoch milliseconds.",
                    next_step="Pass a whole number, such as int(time.time() * 1_000).",
                )
            self._time = timestamp
        record = self._records.record(
            topic,
            self._registered.encoded(topic, value),
            self._registered.encoded_key(topic, key),
            contract=self._contract(topic),
            timestamp=self._time,
            headers=headers,
            partition=partition,
        )
        self._waiting.append(record)

    def _contract(self, topic: str) -> Any:
        """Return the type of the values of a topic whose JSON Sluice decodes.

        Return None for other topics.
        """
        table_sources = [table.source for table in self._job.tables]
        for source in (*self._job.streams, *table_sources):
            is_of_topic = topic == source.topic
            if source.pattern is not None and matches(source.pattern, topic):
                is_of_topic = True
            if is_of_topic:
                if source.contract is None or source.decode is not None:
                    return None
                return source.value_class
        return None

    def pipe_store(self, pipeline: str, store: str, key: str, value: Any) -> None:
        """Set the value of a key in a store of another pipeline, which `lookup_in` reads.

        None removes the key. The next batch reads the value as if the other pipeline had published
        it.
        """
        self.commit()
        name = str(SharedStore(pipeline, store))
        if name not in self._run.shared:
            raise TopologyError(
                f"{self.pipeline.name} does not read a store {name}.",
                next_step=f"It reads {', '.join(sorted(self._run.shared)) or 'none'}.",
            )
        rows = self._run.shared[name].rows
        assert rows is not None
        if value is None:
            rows.pop(key, None)
        else:
            rows[key] = self._stored_text(name, value)

    def _stored_text(self, store: str, value: Any) -> str:
        """Return the JSON of a value as another pipeline stores it."""
        for operator in self._job.operators:
            action = operator.action
            if isinstance(action, TableLookupParameters) and str(action.table) == store:
                return Declared(action.returns.value).json(value) or "null"
        raise AssertionError(store)

    def commit(self) -> None:
        """Process all records that were piped after the last batch, as one batch.

        If the pipeline also reads a topic that it writes, more batches follow, until a batch writes
        nothing to this topic.
        """
        for _ in range(_MOST_ROUNDS):
            self._feed_back()
            if not self._waiting:
                return
            self._process_waiting()
        raise TopologyError(
            f"{self.pipeline.name} still writes to a topic that it reads after {_MOST_ROUNDS} "
            "batches.",
            next_step=(
                "Write fewer records to the topic than are read from it, for example with a filter."
            ),
        )

    def _feed_back(self) -> None:
        """Let the next batch read what the pipeline has written to topics that it also reads."""
        for topic in self._cycles:
            records = self._run.output.records.get(topic, [])
            for record in records[self._fed_back[topic] :]:
                piped = self._records.record(
                    topic,
                    record["value"],
                    record["key"],
                    timestamp=record["timestamp"],
                    headers=_header_pairs(record),
                    partition=(record.get("partition") or 0) % self._run.partitions[topic],
                )
                self._waiting.append(piped)
            self._fed_back[topic] = len(records)

    def _process_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            if self._new_topics:
                self._new_topics.clear()
                matched = self._run.job.matched_topics
                self._run.read_also(matched_job(self._job, matched, self._topics, partly=True))
            before = len(self._dead_letters())
            self._run.process(waiting)
            _log_errors(self._dead_letters()[before:])

    def advance(self, milliseconds: int) -> None:
        """Process the records that were piped before, advance the wall clock, and fire due timers.

        If the pipeline has `advance_when_idle`, stream time advances with the clock, too, and
        results that wait for stream time are sent if they become due.
        """
        if not (isinstance(milliseconds, int) and milliseconds >= 0):
            raise TopologyError(
                f"The clock cannot advance by {milliseconds!r} ms.",
                next_step="Pass a whole number of milliseconds that is not negative.",
            )
        self.commit()
        self._run.clock.advance(milliseconds)
        self._run.fire_timers()

    def read(self, topic: str) -> list[Output]:
        """Return the records written to a topic since the last `read`, in order."""
        records = self.output(topic)
        begin = self._read.get(topic, 0)
        self._read[topic] = len(records)
        return records[begin:]

    def output(self, topic: str) -> list[Output]:
        """Return all records written to a topic, in order."""
        if topic not in self._outputs:
            raise TopologyError(
                f"{self.pipeline.name} does not write a topic {topic!r}.",
                next_step=f"It writes {', '.join(sorted(self._outputs))}.",
            )
        self.commit()
        decode: Callable[[Any], Any] = _text if topic in self._texts else _value
        if topic in self._bytes:
            decode = _unchanged
        records = self._run.output.records.get(topic, ())
        if topic in self._registered.written:
            return [self._registered_output(topic, record) for record in records]
        if topic in self._registered.keys:
            return [self._registered_output(topic, record, decode) for record in records]
        return [_output(record, decode) for record in records]

    def _registered_output(
        self, topic: str, record: dict[str, Any], decode: Callable[[Any], Any] | None = None
    ) -> Output:
        headers = record.get("headers") or ()

        def decode_value(value: Any) -> Any:
            return self._registered.decoded(value, headers)

        output = _output(record, decode or decode_value)
        if topic in self._registered.keys:
            key = self._registered.decoded_key(topic, record["key"], headers)
            return replace(output, key=key)
        return output

    def dead_letters(self) -> list[Output]:
        """Return the dead letters, whose headers contain the reasons."""
        return self.output(self.pipeline.dead_letters)

    def _dead_letters(self) -> list[dict[str, Any]]:
        return self._run.output.records.get(self.pipeline.dead_letters, [])

    def store(self, name: str) -> dict[Any, Any]:
        """Return a store's values by key.

        For a windowed store, the dictionary's keys are tuples: key, start and end of the window in
        epoch ms.
        """
        self.commit()
        if name not in self._run.stores:
            raise TopologyError(
                f"{self.pipeline.name} has no store {name!r}.",
                next_step=f"Its stores: {', '.join(self._run.stores)}.",
            )
        return dict(_read(self._run.storage.locations, self._run.stores[name], self._run.batch))

    def store_headers(self, name: str) -> dict[Any, Any]:
        """Return the headers of a store's rows by key.

        The pipeline's `keep_headers` must name the store. The dictionary has the same keys as the
        result of `store`. In a processor's store, each value of a key has its own headers: the
        result has, for each key, a dictionary from the value's name to its headers.
        """
        self.store(name)
        store = self._run.stores[name]
        if not store.keeps_headers:
            raise TopologyError(
                f"Store {name!r} of {self.pipeline.name} keeps no headers.",
                next_step=f"Create the pipeline with keep_headers=[{name!r}].",
            )
        is_of_processor_store = is_of_processor(store.group_id)
        headers: dict[Any, Any] = {}
        for row in _rows(self._run.storage.locations, store, self._run.batch):
            entry = entry_with_headers(row)
            if entry is not None:
                own = entry.headers_by_name if is_of_processor_store else entry.headers
                headers[_key_of(row, store)] = own
        return headers

    def counts(self) -> dict[str, int]:
        """Return how many records had which outcome: `read`, `applied`, `late/STORE` and so on."""
        self.commit()
        return dict(self._run.counts)


def _settings(home: Path, database: str, connections: Mapping[str, str], registry: str) -> Settings:
    """Return settings with the state in a database, or in SQLite files in the folder `home`."""
    ledger, shards = database, database
    if not database:
        ledger, shards = temporary_databases(home)
    variables = {"SLUICE_HOME": str(home), "SLUICE_LEDGER": ledger, "SLUICE_SHARDS": shards}
    variables["SLUICE_REGISTRY"] = json.dumps({"url": registry})
    for name, url in connections.items():
        variables[connection_variable(name)] = url
    return Settings.read(variables)


def _make_run(
    job: Job,
    settings: Settings,
    partitions: Mapping[str, int],
    spark: SparkSession | None,
) -> PipedRun:
    """Return a run in this process, or on Spark if a test asks for it or a step needs it."""
    # A run in this process starts in milliseconds. Spark takes seconds to start.
    if spark is None:
        try:
            return LocalRun(job, settings, partitions, local_query(job, settings, partitions))
        except NeedsSparkError as reason:
            log.warning("the driver starts Spark", pipeline=job.pipeline.name, because=str(reason))
    from sluice.testing.spark_run import SparkRun

    return SparkRun(spark or shared_session(), job, settings, partitions)


def _log_errors(dead_letters: Sequence[dict[str, Any]]) -> None:
    """Log each different error of a batch once. pytest shows the log of a test that fails."""
    names = ("reason", "step", "at", "detail")
    errors: Counter[tuple[str, ...]] = Counter()
    for dead_letter in dead_letters:
        headers = dict(_header_pairs(dead_letter))
        error = tuple(headers.get(f"sluice.{name}", "") for name in names)
        errors[error] += 1
    for (reason, step, at, detail), count in errors.items():
        place = {"step": step, "at": at} if step else {}
        log.warning("dead letters", count=count, reason=reason, **place, error=detail)


def _output(record: dict[str, Any], decode: Callable[[str | bytes | None], Any]) -> Output:
    pairs = _header_pairs(record)
    return Output(
        _text(record["key"]),
        decode(record["value"]),
        record.get("timestamp"),
        dict(pairs),
        pairs,
        record.get("partition"),
    )


def _header_pairs(record: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    pairs: list[tuple[str, Any]] = []
    for header in record.get("headers") or ():
        pairs.append((header["key"], _text(header["value"])))
    return tuple(pairs)


def _unchanged(value: Any) -> Any:
    return value


def _value(value: str | bytes | None) -> Any:
    if value is None:
        return None
    try:
        # Python can decode fewer levels if its call stack is already deep, so nesting is limited
        # explicitly.
        refuse_nesting(value.encode() if isinstance(value, str) else value)
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, ValueError):
        return value


def _text(value: str | bytes | None) -> str | bytes | None:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _read(locations: Sequence[str], store: StoreInfo, batch: int) -> Iterator[tuple[Any, Any]]:
    for row in _rows(locations, store, batch):
        assert row.value is not None
        yield _key_of(row, store), msgspec.json.decode(plain_json(row.value))[store.store_column]


def _key_of(row: StateRow, store: StoreInfo) -> Any:
    return (row.key, row.window_start, row.window_end) if store.kind == "window" else row.key


def _rows(locations: Sequence[str], store: StoreInfo, batch: int) -> Iterator[StateRow]:
    # Every shard holds a whole copy of a global table, so one shard is enough.
    if store.kind == "global":
        locations = locations[:1]
    for worker, location in enumerate(locations):
        with open_shard(location) as shard:
            for row in shard.scan(store.group_id, batch, limit=1_000_000):
                assert row.value is not None
                assert owner(row.key, len(locations)) == worker, (
                    "queries ask the worker that owns the key"
                )
                yield row


def shared_session() -> SparkSession:
    """Return the local Spark session on two cores that all tests of this process share.

    The first call creates it. The session has Delta Lake's jars if set-up has downloaded them, so
    that tests with Delta tables can use it too.
    """
    from pyspark.sql import SparkSession

    from sluice.engine.session import INTERPRETED, session

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    if not structlog.is_configured():
        # Batches are not logged, unless the tests have configured logging.
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    folder = settings().jars
    of_delta: list[Path] = []
    for bundle in bundles_for_this_machine():
        if bundle.startswith("delta"):
            of_delta += sorted((folder / bundle).glob("*.jar"))
    # The default sizes are too small for Spark: the JVM would collect all garbage after every few
    # thousand classes that it loads, and would remove compiled code that it needs again soon.
    options = [*QUICK_JVM, "-XX:MetaspaceSize=256m", "-XX:ReservedCodeCacheSize=200m"]
    # This JVM starts without Delta Lake's jars, so it can use the JVM archive (`SharedArchiveFile`)
    # of runs without Delta tables.
    archive = archive_file(folder, [])
    if archive.is_file():
        options.append(f"-XX:SharedArchiveFile={archive}")
    conf = {
        "spark.master": "local[2]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": " ".join(f'"{option}"' for option in options),
        "spark.log.level": "ERROR",
        "spark.python.daemon.module": "sluice.testing.daemon",
        "spark.sql.shuffle.partitions": "1",
        **INTERPRETED,
    }
    if of_delta:
        conf |= {"spark.jars": ",".join(map(str, of_delta)), **DELTA_CONF}
    return session(Settings.read({"SLUICE_SPARK_CONF": json.dumps(conf)}), "sluice tests")
