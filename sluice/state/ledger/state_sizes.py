"""The size of each pipeline's state on each of the last days, to detect endless growth."""

from __future__ import annotations

from datetime import date, timedelta

from sqlalchemy import delete, insert, select

from sluice.state.database import database_errors, transaction
from sluice.state.ledger.ledger_part import LedgerPart
from sluice.state.ledger.ledger_tables import SIZES

DAYS = 7
"""The number of days for which sizes are kept."""


class Sizes(LedgerPart):
    """The sizes of all pipelines' states."""

    def note(self, pipeline: str, day: date, size: int) -> None:
        """Note the bytes of a pipeline's state on a day. Forget all but the last `DAYS` days."""
        c, first = SIZES.c, (day - timedelta(days=DAYS - 1)).isoformat()
        with (
            database_errors("Writing the size of the state"),
            transaction(self._engine) as connection,
        ):
            # If a retry notes the size again on the same day, the new size replaces the old one.
            replaced = (c.day < first) | (c.day >= day.isoformat())
            connection.execute(delete(SIZES).where(c.pipeline == pipeline, replaced))
            connection.execute(
                insert(SIZES), {"pipeline": pipeline, "day": day.isoformat(), "bytes": size}
            )

    def of(self, pipeline: str) -> list[int]:
        """Return the bytes on the days that are noted, the oldest first."""
        c = SIZES.c
        statement = select(c.bytes).where(c.pipeline == pipeline).order_by(c.day)
        return [row["bytes"] for row in self._read(statement)]
