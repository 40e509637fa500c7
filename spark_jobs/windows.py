"""Page visits in windows of every kind.

Results are sent at every change, when a window closes, or at a time limit.

Each of the three topics uses a different event time: a field, the Kafka timestamp, or the time of
processing.
"""

from datetime import datetime

from msgspec import Struct

from sluice import WALL_CLOCK, Pipeline, hopping, session, sliding, tumbling


class Visit(Struct):
    """A visit to a page."""

    page: str
    at: datetime


# When a minute is complete, Airflow runs the DAG in `dags/closed_windows.py`.
pipeline = Pipeline("windows", workers=1, announce_windows=["minutes"])

# Three sources of event time: the field `at`, the record's Kafka timestamp, and the time of
# processing.
visits = pipeline.stream("visits", value=Visit, key="page", event_time="at")
visits_recorded = pipeline.stream("visits_recorded", value=Visit, key="page")
visits_processed = pipeline.stream(
    "visits_processed", value=Visit, key="page", event_time=WALL_CLOCK
)

# Four kinds of windows. A record is late once stream time has reached its window's end plus grace.
by_page = visits.group_by_key()
minute = tumbling("1 minute", grace="15 seconds")
minutes = by_page.windowed_by(minute, late="visits_late").count(store="minutes")
overlapping = hopping("1 minute", advance="30 seconds", grace="15 seconds")
by_page.windowed_by(overlapping).count(store="overlapping_minutes")
by_page.windowed_by(sliding("30 seconds", grace="15 seconds")).count(store="bursts")
sessions = by_page.windowed_by(session("30 seconds", grace="15 seconds")).count(store="sessions")

visits_recorded.group_by_key().windowed_by(minute).count(store="minutes_recorded")
visits_processed.group_by_key().windowed_by(minute).count(store="minutes_processed")

# Results can be sent at every change, once when a window closes, or at most once per time limit.
sessions.to("session_changes")
sessions.suppress_until_window_closes().to("sessions_closed")
minutes.suppress_until_window_closes(max_records=10_000).to("minutes_closed")

total = by_page.count(store="visits_total")
total.suppress_until_time_limit("1 minute").to("visits_total_per_minute")
total.suppress_until_time_limit("1 hour", max_records=2).to("visits_total_when_full")
