"""Airflow's names that some of the supported releases lack, or have in other modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow import __version__ as airflow_version

from sluice.provision.supported_versions import AIRFLOW, check_python, release_of

check_python()
AIRFLOW.check(airflow_version)
RELEASE = release_of(airflow_version)
"""The release of Airflow, such as (3, 3)."""

if TYPE_CHECKING:
    from airflow.sdk import Asset, Context

if TYPE_CHECKING or RELEASE >= (3, 2):
    from airflow.sdk import (  # type: ignore[attr-defined]
        AsyncCallback,
        DeadlineAlert,
        DeadlineReference,
    )
    from airflow.sdk.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowOptionalProviderFeatureException,
        AirflowSkipException,
    )
else:
    from airflow.exceptions import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowOptionalProviderFeatureException,
        AirflowSkipException,
    )
    from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

if TYPE_CHECKING or RELEASE >= (3, 3):
    from airflow.sdk import RetryDecision, RetryPolicy
else:
    # Airflow before 3.3 has no retry policies. There, the task's arguments decide when Airflow
    # repeats the task: see `orchestration.retries`.
    RetryDecision, RetryPolicy = None, object

HAS_RETRY_POLICIES = RELEASE >= (3, 3)
HAS_PARTITIONS = RELEASE >= (3, 3)
"""Whether the events of an asset can have partition keys."""


_RUN_TYPES = ["scheduled", "manual", "asset_triggered", "asset_materialization"]
"""All types of runs except backfills."""
if RELEASE >= (3, 3):
    _RUN_TYPES.append("operator_triggered")
NO_BACKFILLS: dict[str, Any] = {}
"""The arguments with which a DAG refuses backfills; empty for Airflow 3.1, where no DAG can refuse
them."""
if RELEASE >= (3, 2):
    NO_BACKFILLS["allowed_run_types"] = _RUN_TYPES


def cron_timetable(expression: str, zone: str) -> Any:
    """Return the schedule for a cron expression in a time zone."""
    timetables: Any
    if RELEASE >= (3, 2):
        import airflow.sdk as timetables
    else:
        import airflow.timetables.trigger as timetables
    return timetables.CronTriggerTimetable(expression, timezone=zone)


def newest_events(context: Context, asset: Asset, count: int) -> list[Any]:
    """Return the newest events of an asset that is among the task's inlets, newest first."""
    events: Any = context["inlet_events"][asset]
    if RELEASE >= (3, 2):
        return list(events.ascending(ascending=False).limit(count))
    # Airflow 3.1 cannot limit the number of events, and returns the oldest event first.
    return list(events)[: -count - 1 : -1]


def send_gauge(name: str, value: float, tags: Mapping[str, str]) -> None:
    """Send a gauge to the metrics system for which Airflow is configured."""
    stats: Any
    if RELEASE >= (3, 3):
        from airflow.sdk.observability import stats
    elif RELEASE >= (3, 2):
        from airflow.sdk.observability.stats import Stats as stats  # noqa: N813
    else:
        from airflow.stats import Stats as stats  # noqa: N813
    stats.gauge(name, value, tags=dict(tags))


__all__ = [
    "HAS_PARTITIONS",
    "HAS_RETRY_POLICIES",
    "NO_BACKFILLS",
    "RELEASE",
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowOptionalProviderFeatureException",
    "AirflowSkipException",
    "AsyncCallback",
    "DeadlineAlert",
    "DeadlineReference",
    "RetryDecision",
    "RetryPolicy",
    "cron_timetable",
    "newest_events",
    "send_gauge",
]
