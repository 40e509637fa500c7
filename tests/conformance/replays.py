"""Runs a pipeline on the same records in different batches, interrupts it, and replays the last batches from a copy.

All runs use the engine's own query and publisher, on Spark, in the same folder. Only the topics are in memory.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from sluice.engine.batch.storage import Storage
from sluice.engine.job.query import JobQuery
from sluice.engine.publish.publisher import Publisher
from sluice.errors import EngineError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.history import Batch
from sluice.state.ledger.ledger import Ledger
from sluice.state.shard.protocol import Checksums
from sluice.testing.driver import shared_session
from sluice.testing.piped_run import OnlyWriter, PipedInput
from sluice.topology.pipeline import Pipeline

Moment = Literal["before the state", "before the output", "before the snapshot", "before the commit"]
"""What an interrupted batch has not written yet: nothing, or all that comes before it."""

Records = dict[str, list[dict[str, Any]]]
"""Topic → the records of one batch, in order."""
State = dict[str, Checksums]
"""Worker → the checksums of its stores and of its operators' states."""


class Interrupted(EngineError):
    """A batch was interrupted on purpose."""


@dataclass
class Written(OnlyWriter):
    """The output of a run, by batch; as the lease and the output of its publisher, it can interrupt a batch."""

    batches: dict[int, Records] = field(default_factory=dict)
    moment: Moment | None = None
    """Where to interrupt the next batch."""

    def check(self) -> None:
        self.pass_by("before the state")

    def send(self, batch: Batch, records: Iterable[tuple[str, pa.Table]]) -> dict[str, int]:
        """Keep a batch's records. A batch that is repeated must have the same records in the same order."""
        written: Records = {}
        for topic, table in records:
            written.setdefault(topic, []).extend(table.to_pylist())
        self.pass_by("before the output")
        if self.batches.setdefault(batch.number, written) != written:
            raise EngineError(f"Batch {batch.number} had other records when it was repeated: {written}.")
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


class Replays:
    """The runs of one pipeline, one after the other, in one folder. A context manager."""

    def __init__(self, pipeline: Pipeline, partitions: Mapping[str, int]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-replays-"))
        self._home, self._copy = self._folder / "home", self._folder / "copy"
        self._settings = Settings.read({"SLUICE_HOME": str(self._home)})
        self.storage = Storage.of(plan(pipeline).job, 1, self._settings)
        self._input = PipedInput(shared_session())
        self._query = JobQuery(shared_session(), self.storage, self._input, partitions, epoch=OnlyWriter().epoch)

    def __enter__(self) -> Replays:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def whole(self, records: Sequence[str]) -> Result:
        """The results of one batch."""
        with self._run([], Written()) as run:
            run.take(records)
            return self._result(run)

    def cut(self, records: Sequence[Sequence[str]], chance: random.Random) -> tuple[Result, list[str]]:
        """The results of several batches, and how those of a replay of the last batches differ.

        One batch is interrupted at a random moment and repeated. The replay starts from a copy of all files that was
        made after a random batch.
        """
        kept, broken = chance.randrange(len(records)), chance.randrange(len(records))
        written = Written()
        states = []
        with self._run([], written) as run:
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
        again = Written({number: batch for number, batch in written.batches.items() if number < kept})
        with self._run(records[:kept], again) as run:
            for number, batch in enumerate(records[kept:], kept):
                run.take(batch)
                if again.batches.get(number) != written.batches.get(number):
                    problems.append(f"batch {number} of {len(records)} has other records when replayed from {kept}")
                if self.storage.checksums(number) != states[number]:
                    problems.append(f"batch {number} of {len(records)} has another state when replayed from {kept}")
        return result, problems

    @contextmanager
    def _run(self, done: Sequence[Sequence[str]], written: Written) -> Iterator[_Run]:
        """A run after the batches that are done; without any, in an empty folder."""
        if not done:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home.mkdir()
        with Ledger.open(self._settings.ledger) as ledger:
            ledger.jobs.register(self._query.info)
            self._input.forget(done)
            run = _Run(self._query, ledger, self._input, written)
            try:
                yield run
            finally:
                run.stop()

    def _result(self, run: _Run) -> Result:
        batch = run.batch
        stores: dict[str, list[Any]] = {}
        with Ledger.open(self._settings.ledger) as ledger:
            for store in ledger.jobs.stores(self.storage.job.pipeline.name):
                rows: list[Any] = []
                for worker in range(len(self.storage.locations)):
                    with self.storage.shard(worker) as shard:
                        rows += shard.scan(store.group_id, batch, limit=1_000_000)
                stores[store.name] = [(row.key, row.window_start, row.window_end, row.value) for row in rows]
        return Result(run.written.topics(), self.storage.checksums(batch), stores)


class _Run:
    """A query from its start to its end. After an interruption, the next query continues."""

    def __init__(self, query: JobQuery, ledger: Ledger, source: PipedInput, written: Written) -> None:
        self.written = written
        self.batch = -1
        self._query, self._ledger, self._input = query, ledger, source
        self._publisher: Publisher
        self._running = self._start()

    def take(self, records: Sequence[str]) -> None:
        """Run the records as one batch, and repeat it if it is interrupted."""
        self._input.add([*records])
        try:
            self._running.processAllAvailable()
        except StreamingQueryException as error:
            if not isinstance(self._publisher.error, Interrupted) and "interrupted" not in str(error):
                raise
            self._running = self._start()
            self._running.processAllAvailable()

    def stop(self) -> None:
        self._running.stop()

    def _start(self) -> StreamingQuery:
        storage = self._query.storage
        published = self._ledger.snapshots.last_batch(storage.ref)
        storage.prepare(published, max(self.written.batches, default=-1), self._ledger, self.written.epoch)
        self._publisher = self._query.publisher(
            self._ledger, self.written, self.written, self.written, published=published
        )
        self._publisher.begin()
        return self._query.start(self._publish)

    def _publish(self, state_rows: Any, batch: int) -> None:
        self._publisher(state_rows, batch)
        self.batch = batch
        self.written.pass_by("before the commit")
