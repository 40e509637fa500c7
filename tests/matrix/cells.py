"""The combinations of versions that are tried. Each version is in at least one of them."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.provision.jars import BROKER

RESOLVED_UNTIL = {"3.1.8": "2026-03-13", "3.2.2": "2026-05-31", "3.3.2": "2026-09-19"}
"""Version of Airflow → the day after its release.

A cell installs the newest versions of that day, which Airflow's own constraints of that release
have, too. Airflow's constraints are not in the package registry, so that a closed network may not
reach them.
"""


@dataclass(frozen=True)
class Cell:
    """Versions that are installed together. `java` is the number of a release.

    `kafka` is the version of the broker of the orders example.
    """

    airflow: str
    spark: str
    python: str
    java: int = 17
    client: str = ""
    """The version of pyspark-client beside PySpark; empty if it is not installed."""
    constraints: bool = False
    """Whether the installed versions become the constraints for this release of Airflow."""
    kafka: str = BROKER

    @property
    def name(self) -> str:
        """A name for folders and for the command line."""
        name = f"airflow{self.airflow}-spark{self.spark}-python{self.python}-java{self.java}"
        if self.client:
            name += f"-client{self.client}"
        if self.kafka != BROKER:
            name += f"-kafka{self.kafka}"
        return name


CELLS = (
    Cell("3.1.8", "4.0.5", "3.11", constraints=True),
    Cell("3.2.2", "4.1.3", "3.12", client="4.1.3", constraints=True),
    Cell("3.3.2", "4.3.0", "3.13"),
    Cell("3.3.2", "4.2.1", "3.12", client="4.2.0"),
    Cell("3.1.8", "4.1.4", "3.13"),
    Cell("3.3.2", "4.2.0", "3.11", client="4.2.0", kafka="3.9.1", constraints=True),
    Cell("3.2.2", "4.0.5", "3.13"),
    Cell("3.1.8", "4.3.0", "3.12", kafka="4.4.0"),
    Cell("3.2.2", "4.2.1", "3.11", java=25),
)
