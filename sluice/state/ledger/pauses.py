"""Pauses: pipelines that do not run until somebody resumes them, and why.

`run_begins.begin_run` refuses runs from the command line, and `orchestration/operator.py` skips
runs in Airflow.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
from sqlalchemy import delete, insert, select

from sluice.errors import PausedPipeline, sentence
from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import PAUSES

LONGEST_REASON = 500
"""The maximum length of a reason, in characters."""


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a pipeline is paused, and who paused it."""

    pipeline: str
    reason: str
    paused_by: str
    """The user who paused it; empty if nobody knows who it was."""
    paused_at: datetime

    def __str__(self) -> str:
        """Return the whole pause as a clause, such as `paused by ann since …: the reason`."""
        by = f" by {self.paused_by}" if self.paused_by else ""
        return f"paused{by} since {self.paused_at:%Y-%m-%d %H:%M:%S} UTC: {self.reason}"

    def error(self) -> PausedPipeline:
        """Return the error for a run of the pipeline."""
        return PausedPipeline(
            sentence(f"{self.pipeline} is {self}"),
            next_step=f"To let it run again: sluice resume {self.pipeline}.",
        )


class Pauses(LedgerPart):
    """The pauses of all pipelines."""

    def of(self, pipeline: str) -> Pause | None:
        """Return the pause of a pipeline, or None if it may run."""
        rows = self._read(select(PAUSES).where(PAUSES.c.pipeline == pipeline))
        return None if not rows else _pause(dict(rows[0]))

    def all(self) -> dict[str, Pause]:
        """Return pipeline → its pause, for the pipelines that are paused."""
        rows = self._read(select(PAUSES).order_by(PAUSES.c.pipeline))
        return {row["pipeline"]: _pause(dict(row)) for row in rows}

    def require_running(self, pipeline: str) -> None:
        """Raise PausedPipeline if the pipeline is paused."""
        pause = self.of(pipeline)
        if pause is not None:
            raise pause.error()

    def pause(self, pipeline: str, reason: str, by: str) -> Pause:
        """Pause a pipeline. If the pipeline is paused already, replace the reason."""
        now = datetime.now(UTC).replace(microsecond=0)
        pause = Pause(pipeline=pipeline, reason=reason, paused_by=by, paused_at=now)
        row = msgspec.structs.asdict(pause) | {"paused_at": now.isoformat()}
        with database_errors("Pausing the pipeline"), transaction(self._engine) as connection:
            connection.execute(delete(PAUSES).where(PAUSES.c.pipeline == pipeline))
            connection.execute(insert(PAUSES), row)
        return pause

    def resume(self, pipeline: str) -> bool:
        """Let a pipeline run again. Return False if it was not paused."""
        with database_errors("Resuming the pipeline"), transaction(self._engine) as connection:
            removed = delete(PAUSES).where(PAUSES.c.pipeline == pipeline)
            return connection.execute(removed).rowcount == 1


def _pause(row: dict[str, str]) -> Pause:
    return Pause(
        pipeline=row["pipeline"],
        reason=row["reason"],
        paused_by=row["paused_by"],
        paused_at=datetime.fromisoformat(row["paused_at"]),
    )
