"""One batch made visible: shards first, then output records, then the ledger's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame

from sluice.engine.audit import Auditor
from sluice.engine.changes import GlobalTables, change_records
from sluice.engine.delivery import AtLeastOnce
from sluice.engine.guard import Guard
from sluice.engine.lease import Lease
from sluice.engine.place import CELL, CLOSED
from sluice.engine.produce import TransactionalOutput
from sluice.engine.shards import RETURNED, WRITTEN, ShardWriter
from sluice.engine.source import batch_positions
from sluice.engine.storage import Storage
from sluice.errors import SluiceError
from sluice.state.ledger import Ledger
from sluice.state.model import Cut

log = structlog.get_logger()

_OUTPUT = "output/"


@dataclass
class Publisher:
    """Publishes one batch after the other. Every step may be done again, after a crash, with the same result."""

    storage: Storage
    ledger: Ledger
    lease: Lease
    guard: Guard
    output: TransactionalOutput
    tables: GlobalTables
    auditor: Auditor
    types: Mapping[str, str]
    at_least_once: AtLeastOnce | None = None
    silent: bool = False
    """Whether no output is written, since another generation has written it."""
    read: int = 0
    """Records read so far."""
    error: SluiceError | None = None
    """Why the last batch could not be published: what Spark raises says it only in the text of a traceback."""

    def __call__(self, cells: DataFrame, batch: int) -> None:
        """What Spark calls for each batch, with the changed cells. They are computed once, by writing the shards."""
        try:
            self._publish(cells, batch)
        except SluiceError as error:
            self.error = error
            raise

    def _publish(self, cells: DataFrame, batch: int) -> None:
        handoff = self.storage.handoff
        self.lease.check()
        handoff.start(batch)
        returned = self._write_shards(cells)
        facts = handoff.facts(batch)
        times = handoff.times(batch - 1) | facts.stream_times
        handoff.write_times(batch, times)
        counts = facts.counts | {"rows": _rows_written(returned)}
        if not facts.counts and not counts["rows"]:
            return  # Spark adds a batch without data to let go of closed windows: there is nothing to publish.
        audit = self.auditor.audit(batch, returned)
        self.guard.check_identity()
        written = {} if self.silent else self._write_output(cells, batch, returned)
        written |= {name.removeprefix(_OUTPUT): n for name, n in counts.items() if name.startswith(_OUTPUT)}
        cut = self._cut(batch, times, counts | {f"{_OUTPUT}{topic}": n for topic, n in written.items()})
        new = self.ledger.publish(cut, msgspec.structs.replace(audit, outputs=written))
        self.read += counts.get("read", 0)
        log.info("batch published" if new else "batch was published already", cut=cut.id, **cut.counts)

    def _write_shards(self, cells: DataFrame) -> pa.Table:
        writer = ShardWriter.of(self.storage.job, self.storage.locations, self.lease.epoch)
        return cells.select("worker", *CELL, "value", "position").mapInArrow(writer.__call__, RETURNED).toArrow()

    def _write_output(self, cells: DataFrame, batch: int, returned: pa.Table) -> dict[str, int]:
        job = self.storage.job
        self.lease.check()
        self.tables.apply(returned)
        topics = [*(sink.topic for sink in job.stream_sinks), job.pipeline.dead_letters]
        records = [(topic, table) for topic in topics for table in self.storage.handoff.records(batch, topic)]
        changes = change_records(cells.sparkSession, job, returned, self.tables, self.types)
        sent = self.at_least_once(dict(changes)) if self.at_least_once else {}
        records += [(topic, table) for topic, table in changes if topic not in sent]
        return sent | self.output.send(batch, records)

    def _cut(self, batch: int, times: dict[str, int], counts: dict[str, int]) -> Cut:
        job = self.storage.job
        return Cut(
            pipeline=job.pipeline.name,
            job=job.name,
            generation=self.storage.generation,
            batch=batch,
            published_at=datetime.now(UTC),
            positions=batch_positions(self.storage.checkpoint, batch),
            # How far everything is closed depends on the batches, and is for Spark's watermark alone.
            stream_times={name: time for name, time in times.items() if name != CLOSED},
            counts=counts,
        )


def _rows_written(returned: pa.Table) -> int:
    mine = returned.filter(pc.equal(returned.column("cell"), WRITTEN))
    return int(pc.sum(mine.column("window_start")).as_py() or 0)
