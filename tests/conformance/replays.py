"""Runs a pipeline on the same records in different batches, interrupts it, and replays the last batches from a copy.

All runs use the engine's DataFrames, tasks, shards and publisher, in the same folder. Two parts are
replaced: the input is a file, and instead of a streaming query, `_Run` runs the batches one after
the other. A streaming query would analyze and plan all operators again for every batch, which takes
20 times as long as running them.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.engine.batch.arrow_tasks import Chain
from sluice.engine.batch.batch_start import BatchStart, tell_tasks
from sluice.engine.batch.row_batches import ROW_BATCHES
from sluice.engine.batch.storage import Storage
from sluice.engine.publish.markers import PublishedState
from sluice.engine.publish.output_writer import Destinations
from sluice.engine.publish.publisher import BegunBatch, Publisher
from sluice.engine.publish.shard_writer import RowsOnSpark
from sluice.engine.publish.state_types import StateTypes
from sluice.engine.run.arrow_query import ArrowQuery
from sluice.engine.run.registration import generation_info
from sluice.engine.run.streaming_query import JobQuery
from sluice.errors import EngineError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.ledger.plans import PlannedBatch
from sluice.state.model import GenerationInfo
from sluice.state.shard.shard import Checksums
from sluice.testing.local_run import PIPED, PipedRows, decode_piped, why_not_local
from sluice.testing.piped_records import UncontestedLease
from sluice.testing.topology_test_driver import shared_session
from sluice.topology.pipeline import Pipeline
from sluice.values.key_owners import owner
from tests.support.leases import hold_lease

Moment = Literal["before the state", "before the output", "before the snapshot"]
"""What an interrupted batch has not written yet: nothing, or all that comes before it."""

Records = dict[str, list[dict[str, Any]]]
"""Topic → the records of one batch, in order."""
State = dict[str, Checksums]
"""Worker → the checksums of its stores and of its operators' states."""


class Interrupted(EngineError):
    """A batch was interrupted on purpose."""


@dataclass
class Written(UncontestedLease):
    """The output of a run, by batch; as the lease and the output of its publisher, it can interrupt a batch."""

    batches: dict[int, Records] = field(default_factory=dict)
    moment: Moment | None = None
    """Where to interrupt the next batch."""

    def check(self) -> None:
        self.pass_by("before the state")

    def send(
        self, batch: Batch, records: Iterable[tuple[str, pa.Table]], state: PublishedState
    ) -> dict[str, int]:
        """Keep a batch's records.

        A batch that is repeated must have the same records in the same order.
        """
        written: Records = {}
        for topic, table in records:
            written.setdefault(topic, []).extend(table.to_pylist())
        self.pass_by("before the output")
        if self.batches.setdefault(batch.number, written) != written:
            raise EngineError(
                f"Batch {batch.number} had other records when it was repeated: {written}."
            )
        self.pass_by("before the snapshot")
        return {topic: len(rows) for topic, rows in written.items()}

    def pass_by(self, moment: Moment) -> None:
        """Interrupt the batch if this is the moment."""
        if self.moment == moment:
            self.moment = None
            raise Interrupted(f"interrupted {moment}")

    def topics(self) -> Records:
        """The records of all batches, by topic."""
        topics: Records = {}
        for _, batch in sorted(self.batches.items()):
            for topic, records in batch.items():
                topics.setdefault(topic, []).extend(records)
        return topics


@dataclass
class Result:
    """The output of a run by topic, and the state after its last batch."""

    output: Records
    state: State
    stores: dict[str, list[Any]]
    info: GenerationInfo


@dataclass
class FileInput:
    """The records of the current batch, in a file that the task reads."""

    path: str
    interleaved: bool = True

    def read(
        self, partitions: Mapping[str, int], task: Chain, columns: StructType | str
    ) -> DataFrame:
        """The rows that a task makes of the records of topics."""
        record = ", ".join(f"{name} {kind}" for name, kind in _RECORD.items())
        frame = shared_session().range(0, 1, 1, 1).mapInArrow(self, record)
        of_topics = frame.where(f"topic IN ({', '.join(map(repr, partitions))})")
        return of_topics.mapInArrow(Chain((task,)).__call__, columns)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass  # a worker ends after the task if it has not read all of its input
        with pa.OSFile(self.path) as file:
            yield from pa.ipc.open_file(file).read_all().to_batches()

    def write(self, records: Sequence[str]) -> None:
        """Replace the records with others, each as JSON of the columns."""
        with pa.OSFile(self.path, "wb") as file, pa.ipc.new_file(file, PIPED) as writer:
            writer.write_table(
                pa.Table.from_pylist([decode_piped(record) for record in records], PIPED)
            )


_RECORD = {
    "topic": "STRING", "partition": "INT", "offset": "BIGINT", "timestamp": "TIMESTAMP", "key": "BINARY",
    "value": "BINARY", "headers": "STRING", "sequence": "BIGINT",
}  # fmt: skip


class PlannedWrites:
    """The written shards of every batch.

    The publisher takes them for a DataFrame; Spark plans its query only once.
    """

    def __init__(self, written: DataFrame) -> None:
        self._written = written
        self._plan: Any = None

    @property
    def sparkSession(self) -> SparkSession:  # noqa: N802  (the name of the DataFrame's property)
        return self._written.sparkSession

    def toArrow(self) -> pa.Table:  # noqa: N802  (the name of the DataFrame's method)
        if self._plan is None:
            spark = shared_session()
            for (
                name,
                value,
            ) in (
                spark.conf.getAll.items()
            ):  # tasks of a query without an execution id do not see them
                if name.startswith("spark.sql."):
                    spark.sparkContext.setLocalProperty(name, value)
            with without_adaptive_execution(spark):  # which would plan in every execution
                self._plan = self._written._jdf.queryExecution().executedPlan()
        # A plan can be executed once, because it keeps its shuffles.
        rows = self._plan.clone().executeCollect()
        columns = {
            "worker": [row.getInt(0) for row in rows],
            "rows": [row.getBinary(1) for row in rows],
        }
        return pa.table(columns | {"side_output": [row.getString(2) for row in rows]}, ROW_BATCHES)


@contextmanager
def without_adaptive_execution(spark: SparkSession) -> Iterator[None]:
    """Disable adaptive execution in the block.

    With adaptive execution, Spark computes a batch up to its last shuffle even before it calls the
    function of `foreachBatch`.
    """
    name = "spark.sql.adaptive.enabled"
    before = str(spark.conf.get(name))
    spark.conf.set(name, "false")
    try:
        yield
    finally:
        spark.conf.set(name, before)


class Replays:
    """The runs of one pipeline, one after the other, in one folder. A context manager.

    They are on Spark if `on_spark`; by default, only if a step needs it.
    """

    def __init__(
        self, pipeline: Pipeline, partitions: Mapping[str, int], *, on_spark: bool | None = None
    ) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-replays-"))
        self._home, self._copy = self._folder / "home", self._folder / "copy"
        self._settings = Settings.read({"SLUICE_HOME": str(self._home)})
        self.storage = Storage.of(plan(pipeline).job, 1, self._settings)
        job = self.storage.job
        self._query: Query = (
            OnSpark(self.storage, partitions, str(self._folder / "records"))
            if on_spark or (on_spark is None and why_not_local(job, self._settings))
            else InProcess(self.storage, partitions)
        )

    def __enter__(self) -> Replays:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def whole(self, records: Sequence[str]) -> Result:
        """The results of one batch."""
        with self._run(Written(), first=True) as run:
            run.take(records)
            return self._result(run)

    def cut(
        self, records: Sequence[Sequence[str]], chance: random.Random
    ) -> tuple[Result, list[str]]:
        """The results of several batches, and how those of a replay of the last batches differ.

        One batch is interrupted at a random moment and repeated. The replay starts from a copy of
        all files that was made after a random batch, so that it begins with state.
        """
        kept, broken = (
            chance.randrange(min(1, len(records) - 1), len(records)),
            chance.randrange(len(records)),
        )
        written = Written()
        states = []
        with self._run(written, first=True) as run:
            for number, batch in enumerate(records):
                if number == kept:
                    shutil.copytree(self._home, self._copy)
                written.moment = chance.choice(get_args(Moment)) if number == broken else None
                run.take(batch)
                states.append(self.storage.checksums(number))
            result = self._result(run)
        shutil.rmtree(self._home)
        self._copy.rename(self._home)
        problems = []
        again = Written(
            {number: batch for number, batch in written.batches.items() if number < kept}
        )
        with self._run(again, first=not kept) as run:
            for number, batch in enumerate(records[kept:], kept):
                run.take(batch)
                if again.batches.get(number) != written.batches.get(number):
                    problems.append(
                        f"batch {number} of {len(records)} has other records when replayed from {kept}"
                    )
                if self.storage.checksums(number) != states[number]:
                    problems.append(
                        f"batch {number} of {len(records)} has another state when replayed from {kept}"
                    )
        return result, problems

    @contextmanager
    def _run(self, written: Written, *, first: bool) -> Iterator[_Run]:
        """A run that continues in the folder; in an empty one if it is the `first`."""
        if first:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home.mkdir()
        with Ledger.open(self._settings.ledger) as ledger:
            ledger.generations.register(self._query.info)
            if (
                ledger.leases.get(self.storage.ref) is None
            ):  # a copy of the folder has the lease of its run
                hold_lease(ledger, self.storage.ref, UncontestedLease().epoch)
            yield _Run(self._query, ledger, written)

    def _result(self, run: _Run) -> Result:
        batch = run.batch
        stores: dict[str, list[Any]] = {}
        with Ledger.open(self._settings.ledger) as ledger:
            for store in ledger.generations.stores(self.storage.job.pipeline.name):
                rows: list[Any] = []
                for worker in range(len(self.storage.locations)):
                    with self.storage.shard(worker) as shard:
                        rows_of_worker = [*shard.scan(store.group_id, batch, limit=1_000_000)]
                        # A query of a key asks only the worker that owns the key.
                        owners = {
                            owner(row.key, len(self.storage.locations)) for row in rows_of_worker
                        }
                        assert store.kind == "global" or owners <= {worker}
                        rows += rows_of_worker
                stores[store.name] = [
                    (row.key, row.window_start, row.window_end, row.value) for row in rows
                ]
        return Result(run.written.topics(), self.storage.checksums(batch), stores, self._query.info)


class Query(Protocol):
    """Computes the batches of a run."""

    storage: Storage
    info: GenerationInfo
    partitions: Mapping[str, int]

    def publisher(self, ledger: Ledger, written: Written) -> Publisher:
        """Return a publisher of the batches after the newest snapshot."""

    def run(
        self, records: Sequence[str], start: BatchStart, publisher: Publisher, batch: BegunBatch
    ) -> None:
        """Compute and publish a batch."""


def publisher_of(
    storage: Storage,
    types: StateTypes,
    ledger: Ledger,
    written: Written,
) -> Publisher:
    """Return a publisher of the batches after the newest snapshot, whose output goes to `written`."""
    return Publisher(
        storage=storage,
        types=types,
        ledger=ledger,
        lease=written,
        identity=written,
        destinations=Destinations(written),
        newest=ledger.snapshots.newest(storage.ref),
    )


class OnSpark:
    """Computes batches on Spark."""

    def __init__(self, storage: Storage, partitions: Mapping[str, int], path: str) -> None:
        self.storage = storage
        self.partitions = partitions
        self._input = FileInput(path)
        self._query = JobQuery(
            shared_session(),
            storage,
            self._input,
            partitions,
            epoch=UncontestedLease().epoch,
            checked=True,
        )
        self._written = PlannedWrites(self._query.written.frame)
        self.info = self._query.info

    def publisher(self, ledger: Ledger, written: Written) -> Publisher:
        return publisher_of(self.storage, self._query.written.types, ledger, written)

    def run(
        self, records: Sequence[str], start: BatchStart, publisher: Publisher, batch: BegunBatch
    ) -> None:
        self._input.write(records)
        tell_tasks(shared_session().sparkContext, start)
        publisher.publish(batch, RowsOnSpark(cast(DataFrame, self._written)))


class InProcess:
    """Computes batches in this process."""

    def __init__(self, storage: Storage, partitions: Mapping[str, int]) -> None:
        self.storage = storage
        self.partitions = partitions
        self._query = ArrowQuery.of(
            storage.job, storage, partitions, UncontestedLease().epoch, interleaved=True
        )
        self.info = generation_info(storage, self._query.types)

    def publisher(self, ledger: Ledger, written: Written) -> Publisher:
        return publisher_of(self.storage, self._query.types, ledger, written)

    def run(
        self, records: Sequence[str], start: BatchStart, publisher: Publisher, batch: BegunBatch
    ) -> None:
        publisher.publish(batch, PipedRows.of(self._query, records, start))


class _Run:
    """The batches of a run. After an interruption, a new publisher continues."""

    def __init__(self, query: Query, ledger: Ledger, written: Written) -> None:
        self.written = written
        self.batch = -1
        self._query, self._ledger = query, ledger
        self._publisher = self._begin()

    def take(self, records: Sequence[str]) -> None:
        """Run the records as one batch, and repeat it if it is interrupted."""
        try:
            self._run_batch(records)
        except Interrupted:
            self._publisher = self._begin()
            self._run_batch(records)

    def _begin(self) -> Publisher:
        storage = self._query.storage
        storage.prepare(self._ledger, None, self.written.epoch)
        return self._query.publisher(self._ledger, self.written)

    def _run_batch(self, records: Sequence[str]) -> None:
        """Plan and run the next batch, or repeat the planned one if it is not published."""
        ref = self._query.storage.ref
        published = self._ledger.snapshots.last_batch(ref)
        number = 0 if published is None else published + 1
        planned = PlannedBatch(number=number, begun=time.time_ns() // 1_000_000)
        planned = self._ledger.plans.add(ref, planned, self.written.epoch)
        batch = self._publisher.begin(planned, {}, self._query.partitions)
        clocks = self._query.storage.job.read_clocks
        start = BatchStart.of(number, planned.begun, batch.times, clocks)
        self._query.run(records, start, self._publisher, batch)
        self.batch = number
