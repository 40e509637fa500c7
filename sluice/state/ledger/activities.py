"""The actions of people on pipelines, with the user and the time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import RowMapping, delete, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import ACTIVITIES

MOST = 1_000
"""How many activities of a pipeline are kept."""
LONGEST_DETAIL = 1_000
"""The maximum length of a detail, in characters."""


class Activity(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person has done to a pipeline."""

    pipeline: str
    at: datetime
    by: str
    """The user, as Airflow or the operating system knows them; empty if nobody knows who."""
    action: str
    """The action, such as `pause`, `replay` or `re-drive`."""
    detail: str
    run: str
    """The id of the run in Airflow that the action has started; empty if it has started none."""


class Activities(LedgerPart):
    """The activities of all pipelines."""

    def add(self, pipeline: str, action: str, by: str, detail: str = "", run: str = "") -> None:
        """Add an activity with the current time. Keep only the newest `MOST` activities."""
        row = {
            "pipeline": pipeline,
            "at": datetime.now(UTC).isoformat(timespec="microseconds"),
            "by": by,
            "action": action,
            "detail": detail[:LONGEST_DETAIL],
            "run": run,
        }
        c = ACTIVITIES.c
        own = c.pipeline == pipeline
        oldest_kept = select(c.number).where(own).order_by(c.number.desc()).offset(MOST - 1)
        with database_errors("Noting who did what"), transaction(self._engine) as connection:
            connection.execute(insert(ACTIVITIES), row)
            first = connection.execute(oldest_kept.limit(1)).scalar()
            if first is not None:
                connection.execute(delete(ACTIVITIES).where(own, c.number < first))

    def of(self, pipeline: str, limit: int) -> list[Activity]:
        """Return the newest activities of a pipeline, newest first."""
        c = ACTIVITIES.c
        statement = select(ACTIVITIES).where(c.pipeline == pipeline).order_by(c.number.desc())
        return [_activity(row) for row in self._read(statement.limit(limit))]


def _activity(row: RowMapping) -> Activity:
    values: dict[str, Any] = {**row, "at": datetime.fromisoformat(row["at"])}
    del values["number"]
    return Activity(**values)
