"""The connection to a database in which records are looked up.

A run's driver sends the connection to Spark's tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sluice.errors import SettingsError
from sluice.values.sink_tables import connection_variable

if TYPE_CHECKING:
    from sqlalchemy.engine import URL


@dataclass(frozen=True)
class Connection:
    """A database's URL, and the name by which a pipeline's author refers to the database."""

    name: str
    url: str = field(repr=False)

    def engine_url(self) -> URL:
        """Parse the URL for SQLAlchemy.

        Raises SettingsError if it is missing or invalid; the error omits the URL.
        """
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError

        variable = connection_variable(self.name)
        example = f"Set {variable} to postgresql://USER:PASSWORD@HOST:PORT/DATABASE"
        if not self.url:
            raise SettingsError(
                f"There is no connection {self.name!r}, in whose database records are looked up.",
                next_step=(
                    f"{example}, or in Airflow, add a connection of type Postgres with the id "
                    f"{self.name}."
                ),
            )
        try:
            url = make_url(self.url)
        except (ArgumentError, ValueError):
            raise SettingsError(
                f"The URL of connection {self.name!r} cannot be parsed.",
                next_step=f"{example}.",
            ) from None
        if url.drivername in ("postgresql", "postgres"):
            return url.set(drivername="postgresql+psycopg")
        return url
