"""The DAG that alerts when records of a pipeline with a deadline stay unread.

It also does so while the pipeline's DAG is paused. Airflow's own deadlines belong to runs, and a
paused DAG has no runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, Asset, AssetAny, AssetWatcher
from airflow.triggers.base import TriggerEvent

from sluice.airflow_connections import KAFKA
from sluice.orchestration.alerts import alert, keep_current
from sluice.orchestration.trigger import KafkaEndOffsetTrigger
from sluice.orchestration.watch import POLL_SECONDS, Watch
from sluice.values.phrases import duration_text

NAME = "sluice_deadlines"


@dataclass
class Age:
    """Decides when a pipeline's data have become older than its deadline."""

    deadline_s: float
    _unread_since: float | None = None
    _is_overdue: bool = False

    def due(self, records: int | None, snapshot_s: float | None, now: float) -> bool:
        """Return whether the data become overdue at `now`, in seconds of a monotonic clock.

        `records` is the number of unread records, None if it is unknown. `snapshot_s` is the age of
        the newest snapshot. The data become overdue when two conditions have lasted as long as the
        deadline. First, records are unread or their number is unknown. Second, no new snapshot is
        published.
        """
        if records == 0:
            self._unread_since = None
        elif self._unread_since is None:
            self._unread_since = now
        is_unread = self._unread_since is not None and now - self._unread_since >= self.deadline_s
        is_old = snapshot_s is None or snapshot_s >= self.deadline_s
        was_overdue, self._is_overdue = self._is_overdue, is_unread and is_old
        return self._is_overdue and not was_overdue


class OverdueTrigger(KafkaEndOffsetTrigger):
    """Fires when the data of `pipeline` become older than its deadline.

    A restarted triggerer does not know since when records are unread, and counts from its start.
    """

    def __init__(
        self,
        pipeline: str,
        topics: list[str],
        deadline_ms: int,
        kafka_config_id: str = KAFKA,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        super().__init__(pipeline, topics, kafka_config_id, poll_seconds)
        self.deadline_ms = deadline_ms

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and the arguments from which Airflow recreates this trigger."""
        names = ("pipeline", "topics", "deadline_ms", "kafka_config_id", "poll_seconds")
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            name: getattr(self, name) for name in names
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event each time the data become too old, forever."""
        age = Age(self.deadline_ms / 1_000)
        self._watch = Watch.shared(self.kafka_config_id, self.poll_seconds)
        self._watch.join(self, frozenset(self.topics))
        published: datetime | None = None
        while True:
            # All triggers wake up at the same moments, so that one read of the broker and the
            # ledger serves them all.
            await asyncio.sleep(self.poll_seconds - time.monotonic() % self.poll_seconds)
            seen = await self._look(self._watch, None)
            if seen is not None and seen.is_paused:
                # The data of a paused pipeline are old on purpose. Their age counts anew when the
                # pipeline is resumed.
                age = Age(self.deadline_ms / 1_000)
                continue
            published = published if seen is None else seen.published_at
            records = None if seen is None else seen.lag.unread
            snapshot_s = (
                None if published is None else (datetime.now(UTC) - published).total_seconds()
            )
            failure = None if seen is None else seen.failures.get("overdue")
            if failure is not None and records and self._may_change_text():
                why = _why({"records": records}, duration_text(self.deadline_ms))
                await asyncio.to_thread(keep_current, failure, why)
            if age.due(records, snapshot_s, time.monotonic()):
                overdue = {
                    "pipeline": self.pipeline,
                    "records": records,
                    "at": datetime.now(UTC).isoformat(),
                }
                overdue["trouble"] = self.trouble
                yield TriggerEvent(overdue)  # type: ignore[no-untyped-call]


def deadlines_dag(
    watched: Mapping[str, OverdueTrigger],
    notify: str,
    defaults: dict[str, Any],
    name: str = NAME,
) -> DAG:
    """Return the DAG that alerts for these pipelines.

    `notify` is the import path of an async function, and `name` is the DAG's id.
    """
    assets = [
        Asset(f"{pipeline}.overdue", watchers=[AssetWatcher(pipeline, trigger)])
        for pipeline, trigger in watched.items()
    ]
    dag = DAG(
        name,
        schedule=AssetAny(*assets),
        catchup=False,
        max_active_runs=1,
        description="Alert on pipelines whose records stay unread for longer than their deadline",
        doc_md=__doc__,
        tags={"sluice", "maintenance"},
        # A second attempt would find that the failure has been recorded, and would not call
        # `notify`.
        default_args=defaults | {"retries": 0},
    )
    deadlines = {each: trigger.deadline_ms for each, trigger in watched.items()}
    PythonOperator(
        dag=dag, task_id="alert", python_callable=alert_overdue,
        op_kwargs={"deadlines": deadlines, "notify": notify},
    )  # fmt: skip
    return dag


def alert_overdue(deadlines: Mapping[str, int], notify: str, **context: Any) -> list[str]:
    """Alert for each event of the run, unless a snapshot has been published meanwhile.

    Returns a sentence per event.
    """
    alerts = []
    dag_run = context["dag_run"]
    run = {"dag_run": {"dag_id": dag_run.dag_id, "dag_run_id": dag_run.run_id}}
    for event in chain.from_iterable(context["triggering_asset_events"].values()):
        overdue = event.extra["payload"]
        deadline_ms = deadlines[overdue["pipeline"]]
        since = datetime.fromisoformat(overdue["at"]) - timedelta(milliseconds=deadline_ms)
        why = _why(overdue, duration_text(deadline_ms))
        alerts.append(asyncio.run(alert(overdue["pipeline"], since, why, notify, run)))
    return alerts


def _why(overdue: Mapping[str, Any], deadline: str) -> str:
    """Return why data are overdue, from a trigger's event."""
    if overdue["records"] is None:
        return (
            f"For {deadline}, it has been unknown whether there are unread records "
            f"({overdue.get('trouble', '')})"
        )
    return f"{overdue['records']:,} records have been unread for more than {deadline}"
