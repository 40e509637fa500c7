"""A DAG that runs once for each minute, as soon as the minute's visits are complete."""

# Airflow only reads files with the words airflow and dag in them.
from typing import Any

from airflow.sdk import dag, task

from sluice import Client
from sluice.orchestration.window_events import closed_windows, each_closed_window
from sluice.settings import settings


@dag(schedule=each_closed_window("windows", "minutes"), tags=["sluice", "samples"])
def complete_minutes() -> None:
    """Count the visits of each complete minute, over all pages."""

    @task
    def visits(**context: Any) -> dict[str, int]:
        """Return the number of visits by minute, from the snapshot of the minute's event."""
        query = settings()
        counts: dict[str, int] = {}
        with Client(query.url, user=query.user or None, password=query.password or None) as client:
            for window in closed_windows(context):
                entries = client.range(
                    window.store,
                    pipeline=window.pipeline,
                    as_of=window.snapshot,
                    start=window.start.isoformat(),
                    end=window.start.isoformat(),
                )
                counts[window.key] = sum(entry.value for entry in entries)
        print(counts)
        return counts

    visits()


complete_minutes()
