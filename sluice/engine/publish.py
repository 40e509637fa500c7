"""One batch made visible: shards first, then output records, then the ledger's transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import structlog
from pyspark.sql import DataFrame

from sluice.engine.changes import GlobalTables, change_records
from sluice.engine.place import CELL, CLOSED
from sluice.engine.produce import TransactionalOutput
from sluice.engine.shards import RETURNED, WRITTEN, ShardWriter
from sluice.engine.source import batch_positions
from sluice.engine.storage import Storage
from sluice.settings import settings
from sluice.state.ledger import Ledger
from sluice.state.model import Cut

log = structlog.get_logger()


@dataclass
class Publisher:
    """Publishes one batch after the other. Every step may be done again, after a crash, with the same result."""

    storage: Storage
    ledger: Ledger
    output: TransactionalOutput
    tables: GlobalTables
    types: Mapping[str, str]
    read: int = 0
    """Records read so far."""

    def __call__(self, cells: DataFrame, batch: int) -> None:
        """What Spark calls for each batch, with the changed cells. They are computed once, by writing the shards."""
        handoff = self.storage.handoff
        handoff.start(batch)
        returned = self._write_shards(cells)
        facts = handoff.facts(batch)
        times = handoff.times(batch - 1) | facts.stream_times
        handoff.write_times(batch, times)
        counts = facts.counts | {"rows": _rows_written(returned)}
        if not facts.counts and not counts["rows"]:
            return  # Spark adds a batch without data to let go of closed windows: there is nothing to publish.
        counts |= {f"output/{topic}": n for topic, n in self._write_output(cells, batch, returned).items()}
        cut = self._cut(batch, times, counts)
        new = self.ledger.publish(cut)
        self.read += counts.get("read", 0)
        log.info("batch published" if new else "batch was published already", cut=cut.id, **counts)

    def _write_shards(self, cells: DataFrame) -> pa.Table:
        writer = ShardWriter.of(self.storage.job, self.storage.locations)
        return cells.select("worker", *CELL, "value", "position").mapInArrow(writer.__call__, RETURNED).toArrow()

    def _write_output(self, cells: DataFrame, batch: int, returned: pa.Table) -> dict[str, int]:
        job = self.storage.job
        self.tables.apply(returned)
        topics = [*(sink.topic for sink in job.stream_sinks), job.pipeline.dead_letters]
        records = [(topic, table) for topic in topics for table in self.storage.handoff.records(batch, topic)]
        records += change_records(cells.sparkSession, job, returned, self.tables, self.types)
        return self.output.send(batch, records)

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
            run=settings().run,
        )


def _rows_written(returned: pa.Table) -> int:
    mine = returned.filter(pc.equal(returned.column("cell"), WRITTEN))
    return int(pc.sum(mine.column("window_start")).as_py() or 0)
