"""Writes the rows of a pipeline's batches to a Delta Lake table, each batch once, in one commit.

Every commit has a transaction identifier (`SetTransaction`): the pipeline as application, and a
version that grows with each commit. Delta Lake skips a commit whose version is not above the
table's version, and rejects a commit if another commit has changed this version meanwhile. A
version consists of three numbers:

- the writer's epoch, which each run increases when it begins;
- a random number, because two writers that begin at the same moment may take the same epoch;
- the number of the commit.

Every commit also has a `State` as user metadata, which `DESCRIBE HISTORY` shows.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from sluice.errors import BatchDiffers, EngineError, LeaseError, sentence
from sluice.sinks.delta_columns import DeltaColumn, fits, kind_of
from sluice.sinks.target import BatchId, Published, Row, Rows, Target, Written, written_rows
from sluice.spark_releases import arrow_type_of
from sluice.sql.arrow_types import arrow_type
from sluice.values.sink_tables import DeltaTable
from sluice.values.sql_text import backticked, literal

log = structlog.get_logger()

WRITER = "sluice.writer"
"""The table property with the pipeline that writes the table."""
ACCEPTED = "sluice.accept_gap"
"""The table property with a snapshot's id. A user sets this property to accept that rows up to this
snapshot are missing."""

_EPOCH, _NONCE = 40, 24
"""The number of the lowest bit of the epoch, and of the random number, in a version."""
_CONF = "spark.databricks.delta."
_VERSION = f"{_CONF}write.txnVersion"
_DELETED = "sluice_deleted"
_HISTORY = 100
"""The number of the table's newest commits in which a run looks for Sluice's last commit."""
_ATTEMPTS = 3
_CONFLICTS = ("DELTA_CONCURRENT", "DELTA_METADATA_CHANGED", "DELTA_PROTOCOL_CHANGED")
_ROWS_PER_FILE = 500_000
_SQL_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
"""In a column's metadata, the key of the declared type, VARCHAR or CHAR. In Spark's schema, such a
column has the type STRING."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The table's last batch when a commit was made. Rows of later batches may be in the table."""

    pipeline: str
    snapshot: str | None = None
    """The last batch written, as the id of the snapshot with which it is published; None if there
    is none."""
    begun: int = 0
    """When this batch began, in epoch ms."""
    rows: int = 0
    """The number of rows of this batch."""
    checksum: str = ""
    """The checksum of the rows of this batch."""
    may_repeat: bool = False
    """Whether rows of later batches may be in the table, too, because the state was restored or
    rebuilt."""

    @property
    def batch(self) -> BatchId | None:
        """The last batch written."""
        if self.snapshot is None:
            return None
        generation, _, number = self.snapshot.partition(".")
        return BatchId(int(generation), int(number), self.begun)


class _Commit(msgspec.Struct, frozen=True):
    """The user metadata of the commits that Sluice makes."""

    sluice: State


@dataclass(frozen=True)
class DeltaTarget(Target):
    """A Delta table to which a pipeline writes."""

    table: DeltaTable

    @property
    def created(self) -> dict[str, str]:
        """The columns with their Spark SQL types if Sluice creates the table.

        An unknown type is an empty text.
        """
        key = self.table.key
        types: dict[str, str] = {}
        for name, kind in self.wanted.items():
            default = "STRING" if name == key else ""
            types[name] = self.table.types.get(name) or kind or default
        return types

    @property
    def declared(self) -> tuple[DeltaColumn, ...]:
        """The columns of the table if Sluice creates it.

        Raises EngineError if a type is unknown.
        """
        unknown: list[str] = []
        columns: list[DeltaColumn] = []
        for name, kind in self.created.items():
            arrow = _arrow(kind)
            if arrow is None:
                unknown.append(name)
            else:
                columns.append(DeltaColumn(name, arrow))
        if unknown:
            raise EngineError(
                f"The table {self.output} ({self.at}) needs the types of its columns "
                f"{', '.join(unknown)}, which are unknown.",
                next_step=f'Give the types: types={{"{unknown[0]}": "STRING"}}. Or create the '
                "table.",
            )
        return tuple(columns)


def _arrow(kind: str) -> pa.DataType | None:
    try:
        return arrow_type(kind)
    except ValueError:
        return None


def _application(pipeline: str) -> str:
    return f"sluice/{pipeline}"


@dataclass
class DeltaSink:
    """Writes batches to a Delta table, each batch exactly once (see `TableSink`)."""

    spark: SparkSession
    pipeline: str
    target: DeltaTarget
    columns: Mapping[str, tuple[DeltaColumn, ...]] = field(default_factory=dict)
    version: int = -1
    """The version of this writer's last commit."""
    formerly: Sequence[str] = ()
    """The former names of the pipeline, whose commits it continues."""
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = State(pipeline=self.pipeline)

    def begin(self, published: Published | None) -> None:
        """Create or check the table, and fence off earlier writers.

        Raises EngineError if another pipeline writes the table.
        """
        target = self.target
        with self._errors("Checking"):
            delta_tables = self._jvm("io.delta.tables.DeltaTable")
            if not delta_tables.isDeltaTable(self._session, target.table.name):
                if published is not None and target.output in published.outputs:
                    raise self._incomplete_error("is gone", published)
                self._create()
            self.columns = {target.output: self._require_fitting_columns()}
            self._claim()
            # The version is negative if this pipeline has not yet written the table. The last
            # commit's metadata names the table's last batch.
            version, state = self._committed_version(), self._last_state()
            if published is not None:
                self._require_complete(published, version, state)
            at = None if published is None else published.batch
            # A row with a key replaces the earlier row of this key. A row without a key is
            # appended. After a restore or a rebuild, the rows to append may be in the table
            # already, unless the table's last batch is the last published batch.
            is_of_published_batch = version < 0
            if state is not None and state.batch == at and not state.may_repeat:
                is_of_published_batch = True
            may_repeat = False
            if target.table.key is None and not is_of_published_batch:
                may_repeat = self._has_later_rows(published)
            self.state = msgspec.structs.replace(state or self.state, may_repeat=may_repeat)
        # Fence off earlier writers with a commit of a higher version. Their next commits have lower
        # versions, so Delta Lake skips or rejects them.
        epoch, nonce = (max(version, 0) >> _EPOCH) + 1, secrets.randbits(_EPOCH - _NONCE)
        newest = epoch << _EPOCH | nonce << _NONCE
        for name in self.formerly:
            if self._version_of(name) >= 0:
                self._commit(newest, self.state, None, pipeline=name)
        self._commit(newest, self.state, None)

    def _require_complete(self, published: Published, version: int, state: State | None) -> None:
        """Raise EngineError if the table lacks published batches, unless a user accepts the gap."""
        newest = None if state is None else state.batch
        if version < 0 and self.target.output in published.outputs:
            error = self._incomplete_error("has no batch", published)
        elif newest is not None and self._is_before(newest, published):
            error = self._incomplete_error(f"ends at batch {newest.snapshot}", published)
        else:
            return
        if self._property(ACCEPTED) != published.batch.snapshot:
            raise error

    def _is_before(self, newest: BatchId, published: Published) -> bool:
        """Return whether the table's newest batch is older than the batch published last."""
        if newest.generation == published.batch.generation:
            return newest.number < published.batch.number
        # A rebuild renumbers the batches in a new generation and writes no rows. So only a batch
        # that a run has written can be compared with a batch of an earlier generation.
        is_written = published.is_written and self.target.output in published.outputs
        return is_written and newest.generation < published.batch.generation

    def write(self, batch: BatchId, rows: Mapping[str, Rows]) -> dict[str, int]:
        """Write a batch's rows. Return the number of rows written and deleted."""
        output, of_table = self.target.output, rows[self.target.output]
        self._require_unchanged()
        now = written_rows(of_table)
        if self.state.batch == batch:
            before = Written(self.state.rows, self.state.checksum)
            difference = before.difference(output, now)
            if difference:
                raise BatchDiffers.of(self.pipeline, batch.number, [difference])
            log.info("rows were written already", table=output, batch=batch.snapshot)
        else:
            state = msgspec.structs.replace(
                self.state,
                snapshot=batch.snapshot,
                begun=batch.begun,
                rows=now.count,
                checksum=now.checksum,
            )
            self._commit(self.version + 1, state, of_table)
        return {output: self.state.rows}

    def _require_unchanged(self) -> None:
        """Raise EngineError if the table no longer has this writer's last commit."""
        with self._errors("Checking"):
            committed = self._committed_version()
        if committed < self.version:
            newest = self.state.batch
            lost = ""
            if newest is not None:
                lost = f" Batch {newest.snapshot} was written, and may be lost."
            raise EngineError(
                f"The table {self.target.output} ({self.target.at}) has lost its newest commits "
                f"since this run wrote them, for example because its folder was restored.{lost}",
                next_step=(
                    "Restore the table's newest commits, then run again: the run checks the table "
                    "first, and its error says how to continue without the missing rows."
                ),
            )

    def _commit(self, version: int, state: State, rows: Rows | None, *, pipeline: str = "") -> None:
        """Commit a batch's rows.

        If `rows` is None, the commit only takes over the table from the last writer. `pipeline` is
        a former name, under which a driver may still write. Raises LeaseError if another driver has
        taken over. A commit that conflicts with a commit of another program, such as `OPTIMIZE`, is
        repeated.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            failure: Exception | None = None
            try:
                with self._transaction(version, state, pipeline or self.pipeline):
                    self._change(rows)
            except (PySparkException, Py4JJavaError, pa.ArrowException, OverflowError) as error:
                failure = error
            with self._errors("Writing"):
                committed = self._version_of(pipeline or self.pipeline)
            # If this version is committed, ignore a failure that occurred after the commit.
            if committed == version:
                self.version, self.state = version, state
                return
            if committed > version or committed > self.version >= 0:
                raise LeaseError(
                    "This driver has lost its lease and can no longer write the table "
                    f"{self.target.output}: another driver has begun to write it.",
                    next_step="Wait until the other driver has finished.",
                )
            # `failure` may be None, because Delta Lake skips a commit without an error if the
            # version is too low.
            is_conflict = any(conflict in str(failure) for conflict in _CONFLICTS)
            if attempt == _ATTEMPTS or not is_conflict:
                raise EngineError(
                    f"The rows for {self.target.output} ({self.target.at}) were not written: "
                    f"{_reason(failure)}",
                    next_step=_NEXT_STEP,
                ) from failure
            log.warning(
                "table was changed by another program",
                table=self.target.output,
                attempt=attempt,
            )

    def _change(self, rows: Rows | None) -> None:
        columns = self.columns[self.target.output]
        identity = [*self.target.identity]
        # Append rows without a key, because this is faster than a merge. After a restore or a
        # rebuild, merge them, because some of them may already be in the table.
        may_replace = self.target.table.key is not None or self.state.may_repeat
        if rows is not None and rows.count and may_replace:
            self._merge(rows, columns, identity)
            return
        written = () if rows is None else rows.written
        files = 1 + len(written) // _ROWS_PER_FILE
        frame = self._frame(columns, written).coalesce(files)
        frame.write.format("delta").mode("append").save(self.target.table.name)

    def _merge(self, rows: Rows, columns: Sequence[DeltaColumn], identity: Sequence[str]) -> None:
        """Replace, insert and delete rows by key.

        If the table has no key, append the rows whose positions it does not have yet.
        """
        names = [column.name for column in columns]
        missing = (None,) * (len(names) - len(identity))
        source: list[Row] = []
        for row in rows.written:
            source.append((*row, False))
        for row in rows.deleted:
            source.append((*row, *missing, True))
        # Given bounds, Delta Lake skips each file whose statistics show that all its keys or
        # positions are outside the bounds.
        bounded = "_offset"
        if self.target.table.key is not None:
            bounded = identity[0]
        values = [*map(itemgetter(names.index(bounded)), source)]
        conditions = [*map(_equal, identity)]
        least, most = _literal(min(values)), _literal(max(values))
        conditions.append(f"t.{backticked(bounded)} BETWEEN {least} AND {most}")
        clauses = []
        # Appended rows have no key. If such a row is already in the table, keep it unchanged.
        if self.target.table.key is not None:
            clauses.append(f"WHEN MATCHED AND s.{_DELETED} THEN DELETE")
            changes = [*map(_equal, names[len(identity) :])]
            # If the key is the table's only column, an existing row needs no update.
            if changes:
                clauses.append(f"WHEN MATCHED THEN UPDATE SET {', '.join(changes)}")
        listed = [*map(backticked, names)]
        insert = f"INSERT ({', '.join(listed)}) VALUES (s.{', s.'.join(listed)})"
        clauses.append(f"WHEN NOT MATCHED AND NOT s.{_DELETED} THEN {insert}")
        view = f"sluice_{secrets.token_hex(8)}"
        source_columns = [*columns, DeltaColumn(_DELETED, pa.bool_())]
        self._frame(source_columns, source).createOrReplaceTempView(view)
        on, changed = " AND ".join(conditions), " ".join(clauses)
        try:
            self.spark.sql(f"MERGE INTO {self._table} t USING {view} s ON {on} {changed}").collect()
        finally:
            self.spark.catalog.dropTempView(view)

    def _frame(self, columns: Sequence[DeltaColumn], rows: Sequence[Row]) -> DataFrame:
        values_of_columns: Sequence[tuple[Any, ...]] = [()] * len(columns)
        if rows:
            values_of_columns = list(zip(*rows, strict=True))
        arrays: dict[str, pa.Array] = {}
        for column, values in zip(columns, values_of_columns, strict=True):
            arrays[column.name] = pa.array(values, column.arrow)
        table = pa.table(arrays)
        return self.spark.createDataFrame(
            table,
            from_arrow_schema(table.schema, prefer_timestamp_ntz=True),
        )

    @contextmanager
    def _transaction(self, version: int, state: State, pipeline: str) -> Iterator[None]:
        """Give the commits in the block a transaction identifier and metadata."""
        settings = {
            f"{_CONF}write.txnAppId": _application(pipeline),
            _VERSION: str(version),
            f"{_CONF}commitInfo.userMetadata": msgspec.json.encode(_Commit(state)).decode(),
        }
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(name)

    def _has_later_rows(self, published: Published | None) -> bool:
        """Return whether the table has a row from a record after the published positions."""
        condition = "true"
        if published is not None:
            # The rows of timers have no topic, and their positions do not show which batch wrote
            # them. So treat each of them as a row after the published positions.
            later = ["(_topic = '')"]
            for topic, ends in published.positions.items():
                of_topic = f"_topic = {literal(topic)}"
                for number, end in ends.items():
                    later.append(f"({of_topic} AND _partition = {number} AND _offset >= {end})")
                later.append(f"({of_topic} AND _partition NOT IN ({', '.join(ends) or 'NULL'}))")
            condition = " OR ".join(later)
        rows = self.spark.read.format("delta").load(self.target.table.name)
        return not rows.where(condition).isEmpty()

    def _create(self) -> None:
        declared = self.target.declared
        identity = self.target.identity
        columns = []
        for column in declared:
            definition = f"{backticked(column.name)} {self.target.created[column.name]}"
            if column.name in identity:
                definition += " NOT NULL"
            columns.append(definition)
        writer = f"TBLPROPERTIES ('{WRITER}' = '{self.pipeline}')"
        self.spark.sql(f"CREATE TABLE {self._table} ({', '.join(columns)}) USING delta {writer}")
        log.info("table created", table=self.target.output)

    def _require_fitting_columns(self) -> tuple[DeltaColumn, ...]:
        """Return the columns that the pipeline writes.

        Raises an EngineError that lists all problems of the table.
        """
        target, snapshot = self.target, self._snapshot()
        if snapshot.version() < 0:
            raise EngineError(
                f"The table {target.output} ({target.at}) would be in the folder of another Delta "
                "table. VACUUM of that table would delete this table's files.",
                next_step="Give each table its own folder.",
            )
        schema = StructType.fromJson(json.loads(snapshot.schema().json()))
        fields = {column.name: column for column in schema}
        partitions = {*snapshot.metadata().partitionColumns().mkString("\n").split("\n")}
        columns, problems = list[DeltaColumn](), list[str]()
        for name, spark in target.wanted.items():
            if name not in fields:
                kind = target.created[name] or "TYPE"
                problems.append(
                    f"it has no column {name} (ALTER TABLE {self._table} ADD COLUMN "
                    f"{backticked(name)} {kind})"
                )
                continue
            arrow, type_text = _written_type(fields[name]), fields[name].dataType.simpleString()
            wanted = _arrow(target.table.types.get(name, "") or spark)
            if arrow is None:
                problems.append(f"Sluice cannot write the type {type_text} of the column {name}")
            elif wanted is not None and not fits(wanted, arrow):
                problems.append(f"the column {name} is {type_text}, but the field is {spark}")
            elif name in target.identity and not _tells_keys_apart(fields[name]):
                problems.append(
                    f"the column {name} is {type_text}, in which different keys can be equal"
                )
            else:
                required, most = not fields[name].nullable, _max_length(fields[name])
                columns.append(
                    DeltaColumn(name, arrow, required, most, partitions=name in partitions)
                )
        for name, column in fields.items():
            if name not in target.wanted and not column.nullable:
                problems.append(
                    f"the column {name} is NOT NULL, but the pipeline does not write it"
                )
        if problems:
            raise EngineError(
                f"The table {target.output} ({target.at}) does not fit: {'; '.join(problems)}.",
                next_step="Change the table, or what the pipeline writes. Nothing was read.",
            )
        return tuple(columns)

    def _claim(self) -> None:
        """Record in the table that this pipeline writes it.

        Raises EngineError if another pipeline writes it.
        """
        properties = f"SET TBLPROPERTIES ('{WRITER}' = '{self.pipeline}')"
        writer = self._property(WRITER)
        if not writer or writer in self.formerly:
            self.spark.sql(f"ALTER TABLE {self._table} {properties}")
        elif writer != self.pipeline:
            raise EngineError(
                f"{writer} already writes the table {self.target.output} ({self.target.at}).",
                next_step=(
                    f"Give one of them another table. If {writer} no longer writes it: ALTER TABLE "
                    f"{self._table} {properties}."
                ),
            )

    def _incomplete_error(self, problem: str, published: Published) -> EngineError:
        at = published.batch.snapshot
        accept = f"ALTER TABLE {self._table} SET TBLPROPERTIES ('{ACCEPTED}' = '{at}')"
        if problem == "is gone":
            accept = f"create it with the property '{ACCEPTED}' = '{at}'"
        return EngineError(
            f"The table {self.target.output} ({self.target.at}) {problem}, but batch {at} is "
            "published. Possible causes: the table has lost data, it is another table, or the "
            "pipeline ran without it.",
            next_step=f"Restore the table. To continue without the missing rows: {accept}.",
        )

    def _last_state(self) -> State | None:
        """Return the state after the pipeline's last commit, if it is one of the newest commits."""
        commits = self.spark.sql(f"DESCRIBE HISTORY {self._table} LIMIT {_HISTORY}")
        for (metadata,) in commits.select("userMetadata").collect():
            # Other programs commit, too, without metadata or with other metadata.
            try:
                state = msgspec.json.decode(metadata or "", type=_Commit).sluice
            except msgspec.DecodeError:
                continue
            if state.pipeline == self.pipeline:
                return state
            if state.pipeline in self.formerly:
                return msgspec.structs.replace(state, pipeline=self.pipeline)
        return None

    def _committed_version(self) -> int:
        """Return the version of the pipeline's last commit; -1 if the pipeline has made no commit.

        If the pipeline has former names, the highest version counts, because each name has its own
        versions.
        """
        return max(map(self._version_of, (self.pipeline, *self.formerly)))

    def _version_of(self, pipeline: str) -> int:
        version = self._snapshot().transactions().get(_application(pipeline))
        if not version.isDefined():
            return -1
        return int(version.get())

    def _property(self, name: str) -> str:
        """Return a property of the table, empty if it is not set."""
        value = self._snapshot().metadata().configuration().get(name)
        if not value.isDefined():
            return ""
        return str(value.get())

    def _snapshot(self) -> Any:
        """Return the newest snapshot of the Delta table."""
        none = self._jvm("scala.Option").empty()
        delta_log = self._jvm("org.apache.spark.sql.delta.DeltaLog").forTable(
            self._session,
            self.target.table.name,
        )
        return delta_log.update(False, none, none)

    @property
    def _table(self) -> str:
        return f"delta.`{self.target.table.name}`"

    @property
    def _session(self) -> Any:
        return self.spark._jsparkSession

    def _jvm(self, name: str) -> Any:
        """Return a class of the JVM.

        Looks it up by its full name, because py4j would search all jars for each part of a dotted
        path.
        """
        return getattr(self.spark.sparkContext._jvm, name)

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        """Raise EngineError for errors of Delta Lake and of the file system."""
        try:
            yield
        except (PySparkException, Py4JJavaError) as error:
            raise EngineError(
                f"{doing} the table {self.target.output} ({self.target.at}) failed: "
                f"{_reason(error)}",
                next_step=_NEXT_STEP,
            ) from error


_NEXT_STEP = (
    "Nothing from the batch was published. Remove the cause, then run again: the next run repeats "
    "the batch."
)


def _written_type(column: StructField) -> pa.DataType | None:
    """Return the Arrow type of a column's values; None if Sluice cannot write them."""
    # Sluice cannot check the length of a VARCHAR or CHAR within a nested type, so it does not write
    # columns of such types.
    if _SQL_TYPE in column.metadata and _max_length(column) is None:
        return None
    try:
        arrow = arrow_type_of(column.dataType)
    except PySparkException:
        return None
    if not _can_be_written(arrow):
        return None
    return arrow


def _can_be_written(arrow: pa.DataType) -> bool:
    # A JSON object can only have texts as names, so the keys of a map must be texts.
    if kind_of(arrow) == "map":
        return kind_of(arrow.key_type) == "text" and _can_be_written(arrow.item_type)
    for number in range(arrow.num_fields):
        field = arrow.field(number)
        # Spark shows a VARIANT as a struct with this metadata.
        is_variant = b"variant" in (field.metadata or {})
        if is_variant or not _can_be_written(field.type):
            return False
    return kind_of(arrow) != ""


def _max_length(column: StructField) -> int | None:
    """Return the largest number of characters of a VARCHAR or CHAR, or None for other types."""
    declared = re.fullmatch(r"(?:var)?char\((\d+)\)", str(column.metadata.get(_SQL_TYPE, "")))
    if declared is None:
        return None
    return int(declared[1])


def _tells_keys_apart(column: StructField) -> bool:
    """Return whether different keys always become different values in a column."""
    # Spark pads a CHAR with spaces, so `a` and `a ` become equal.
    if str(column.metadata.get(_SQL_TYPE, "")).startswith("char("):
        return False
    arrow = _written_type(column)
    return arrow is not None and kind_of(arrow) in ("text", "whole number", "timestamp")


def _equal(column: str) -> str:
    """Return SQL that compares a column of the table `t` with the same column of the rows `s`.

    In an UPDATE, the same SQL assigns the row's value to the table's column.
    """
    return f"t.{backticked(column)} = s.{backticked(column)}"


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        kind = "TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"
        return f"{kind} '{value.isoformat()}'"
    if isinstance(value, str):
        return literal(value)
    return str(value)


def _reason(error: Exception | None) -> str:
    """Return the first line of an error's message, without the Java class."""
    message = str(error)
    if isinstance(error, Py4JJavaError):
        message = str(error.java_exception.getMessage())
    first_line, _, _ = message.strip().partition("\n")
    return sentence(first_line[:500])
