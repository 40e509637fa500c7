"""The topics that a job's generation reads, as they were when it began: Kafka's id of each, and the first offsets."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from sqlalchemy import Engine, and_, insert, select

from sluice.state.database import speaking_to, writing
from sluice.state.ledger.tables import SOURCES


class SourcePartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition of a topic that a job reads."""

    topic: str
    partition: int
    topic_id: str
    """A topic that is deleted and made anew has another one."""
    first: int
    """The offset at which the job began."""


class Sources:
    """The ledger's memory of topics. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, pipeline: str, job: str, generation: int) -> list[SourcePartition]:
        """What the job's generation has begun to read, sorted by topic and partition."""
        of = and_(SOURCES.c.pipeline == pipeline, SOURCES.c.job == job, SOURCES.c.generation == generation)
        columns = [SOURCES.c[name] for name in SourcePartition.__struct_fields__]
        statement = select(*columns).where(of).order_by(SOURCES.c.topic, SOURCES.c.partition)
        with speaking_to("Reading the sources"), self._engine.connect() as connection:
            return [SourcePartition(**dict(row)) for row in connection.execute(statement).mappings()]

    def add(self, pipeline: str, job: str, generation: int, partitions: Iterable[SourcePartition]) -> None:
        """Remember partitions that are read from now on."""
        of = {"pipeline": pipeline, "job": job, "generation": generation}
        rows = [of | msgspec.structs.asdict(one) for one in partitions]
        if rows:
            with speaking_to("Remembering the sources"), writing(self._engine) as connection:
                connection.execute(insert(SOURCES), rows)
