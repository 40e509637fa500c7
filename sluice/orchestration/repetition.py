"""Decides when Airflow repeats a failed run, and notes this in the ledger.

An error that a retry cannot repair, such as a wrong setting, fails the task at once: see
`operator.SluiceOperator`. In this case, Airflow does not ask for a decision.
"""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sluice.airflow_releases import AirflowException, RetryDecision, RetryPolicy
from sluice.errors import SluiceError
from sluice.settings import settings
from sluice.state.ledger.ledger import Ledger

if TYPE_CHECKING:
    from airflow.sdk import Context

_FIRST_DELAY_S, _LONGEST_DELAY_S = 10.0, 300.0


class AttemptEnded(AirflowException):
    """Airflow has ended an attempt.

    This process does not know why. If somebody has marked the run as failed, Airflow does not
    repeat the run. Airflow's API server finds out whether somebody has (`api.airflow_causes`).
    """


class Repetition(RetryPolicy):
    """Repeats a pipeline's run after a delay that about doubles with each attempt.

    Airflow's own exponential delays are random, and only its scheduler knows them. So `sluice
    status` and the page could not say when the run is repeated.

    Airflow before 3.3 has no such policies, and uses its own delays.
    """

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,
        max_tries: int,
        context: Context | None = None,
    ) -> RetryDecision:
        """Decide whether and when an attempt that has failed is repeated.

        `try_number` counts from 1.
        """
        left = max(max_tries + 1 - try_number, 0)
        delay = delay_after(try_number)
        if context is not None:
            is_ended = isinstance(exception, AttemptEnded)
            self._note(run_name(context), None if is_ended else left, datetime.now(UTC) + delay)
        return RetryDecision.retry(delay) if left else RetryDecision.default()

    def _note(self, run: str, left: int | None, at: datetime) -> None:
        repeats_at = at if left else None
        with suppress(SluiceError, OSError), Ledger.open(settings().ledger) as ledger:
            for failure in ledger.failures.of(self.pipeline):
                if failure.kind == "run" and failure.run == run:
                    ledger.failures.change(failure, attempts_left=left, repeats_at=repeats_at)


def delay_after(try_number: int) -> timedelta:
    """Return a random time until the next attempt, to spread pipelines that failed together."""
    seconds = _FIRST_DELAY_S * 2.0 ** (try_number - 1) * random.uniform(1, 2)
    return timedelta(seconds=min(seconds, _LONGEST_DELAY_S))


def run_name(context: Context) -> str:
    """Return the run's name in the ledger: DAG/RUN/TASK.

    All attempts share the name, so that a retry recognizes a driver of an earlier attempt that is
    still running.
    """
    task = context["ti"]
    return f"{task.dag_id}/{task.run_id}/{task.task_id}"
