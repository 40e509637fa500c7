"""Workers whose shards must not be read: found damaged, and not rebuilt yet."""

from __future__ import annotations

from sqlalchemy import Engine, and_, delete, insert, select
from sqlalchemy.sql import ColumnElement

from sluice.state.database import speaking_to, writing
from sluice.state.ledger.tables import QUARANTINE


class Quarantine:
    """The ledger's list of damaged shards. Every method raises StateError when the database cannot be reached."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, pipeline: str, job: str, generation: int) -> dict[int, str]:
        """Worker → why its shard must not be read."""
        statement = select(QUARANTINE.c.worker, QUARANTINE.c.reason).where(_of(pipeline, job, generation))
        with speaking_to("Reading the damages"), self._engine.connect() as connection:
            return {row.worker: row.reason for row in connection.execute(statement)}

    def mark(self, pipeline: str, job: str, generation: int, worker: int, reason: str) -> None:
        """Let nobody read the worker's shard from now on."""
        values = {"pipeline": pipeline, "job": job, "generation": generation, "worker": worker, "reason": reason}
        with speaking_to("Marking the damage"), writing(self._engine) as connection:
            connection.execute(delete(QUARANTINE).where(_of(pipeline, job, generation), QUARANTINE.c.worker == worker))
            connection.execute(insert(QUARANTINE), values)

    def clear(self, pipeline: str, job: str, generation: int, worker: int) -> None:
        """Let the worker's shard be read again."""
        with speaking_to("Clearing the damage"), writing(self._engine) as connection:
            connection.execute(delete(QUARANTINE).where(_of(pipeline, job, generation), QUARANTINE.c.worker == worker))


def _of(pipeline: str, job: str, generation: int) -> ColumnElement[bool]:
    return and_(QUARANTINE.c.pipeline == pipeline, QUARANTINE.c.job == job, QUARANTINE.c.generation == generation)
