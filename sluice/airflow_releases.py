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
    # The arguments of the task decide when Airflow repeats it: see `orchestration.retries`.
    RetryDecision, RetryPolicy = None, object

HAS_RETRY_POLICIES = RELEASE >= (3, 3)


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
    "HAS_RETRY_POLICIES",
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
    "send_gauge",
]
