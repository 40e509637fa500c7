"""Stream processing and queryable state for Python teams who run Airflow, Spark and Kafka."""

from sluice.topology import (
    Decimal2,
    Digits,
    Pipeline,
    Serde,
    Stream,
    Table,
    hopping,
    session,
    sliding,
    tumbling,
    within,
)

__all__ = [
    "Decimal2",
    "Digits",
    "Pipeline",
    "Serde",
    "Stream",
    "Table",
    "hopping",
    "session",
    "sliding",
    "tumbling",
    "within",
]
