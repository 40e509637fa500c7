"""Airflow repeats failed runs, and the ledger says whether, when, and what follows."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.definitions.retry_policy import RetryAction

from sluice.airflow_releases import AirflowException
from sluice.errors import EngineError, SettingsError
from sluice.kafka.unread_records import Lag
from sluice.observe.health import held_failure
from sluice.orchestration.operator import SluiceOperator
from sluice.orchestration.repetition import AttemptEnded, Repetition, delay_after
from sluice.orchestration.trigger import BackOff, KafkaEndOffsetTrigger
from sluice.settings import settings
from sluice.state.ledger.failures import Failure
from sluice.state.ledger.ledger import Ledger

RUN = "orders/manual__1/main"
CONTEXT = {"ti": SimpleNamespace(dag_id="orders", run_id="manual__1", task_id="main")}
AWAY = EngineError("The warehouse is away.")


def attempt_fails(number: int, error: BaseException | None = None, run: str = RUN) -> Any:
    """Record the failure of an attempt as its driver does, and let Airflow ask what follows."""
    with Ledger.open(settings().ledger) as ledger:
        ledger.failures.keep(Failure.of(AWAY, "orders", run=run))
    error = error or AirflowException(str(AWAY))
    return Repetition("orders").evaluate(error, number, 2, cast(Any, CONTEXT))


def failure() -> Failure:
    with Ledger.open(settings().ledger) as ledger:
        (found,) = ledger.failures.of("orders")
    return found


def test_every_pipeline_is_repeated_by_this_policy() -> None:
    assert isinstance(SluiceOperator(task_id="main", pipeline="orders").retry_policy, Repetition)


def test_the_ledger_says_when_airflow_repeats_a_run_until_its_attempts_are_used_up() -> None:
    decision = attempt_fails(1)
    first = failure()
    assert decision.action is RetryAction.RETRY
    assert first.repeats_at is not None
    assert first.repeats_at - first.seen_at == pytest.approx(
        decision.retry_delay, abs=timedelta(seconds=2)
    )
    assert (
        first.outlook
        == f"Airflow repeats the run at {first.repeats_at:%H:%M:%S} UTC: 2 attempts left."
    )
    attempt_fails(2)
    assert failure().outlook.endswith(" UTC: 1 attempt left.")
    assert attempt_fails(3).action is RetryAction.DEFAULT
    assert failure().outlook == "Airflow has used up its attempts."
    assert failure().at == first.at, "the pipeline has failed since the first attempt"


def test_nobody_promises_another_attempt_if_airflow_has_ended_this_one() -> None:
    attempt_fails(1, AttemptEnded("Airflow ended the run."))
    assert failure().outlook == "", "the run may have been marked as failed"


def test_the_failure_of_another_run_stays_as_it_is() -> None:
    attempt_fails(1, run="")
    assert (
        failure().outlook == "The run was started with sluice run, so Airflow does not repeat it."
    )


def test_delays_double_up_to_five_minutes() -> None:
    for number, least in ((1, 10), (2, 20), (3, 40), (9, 300)):
        assert least <= delay_after(number).total_seconds() <= min(2 * least, 300)


def test_the_number_of_records_that_a_transaction_holds_back_is_kept_current() -> None:
    trigger = KafkaEndOffsetTrigger("orders", ["orders"])
    begun = datetime.now(UTC) - timedelta(seconds=90)

    def looks(last: int) -> Failure:
        held = held_failure("orders", Lag({"orders": {0: 5}}, {}, {}, {"orders": {0: last}}), begun)
        with Ledger.open(settings().ledger) as ledger:
            recorded = {each.kind: each for each in ledger.failures.of("orders")}
        asyncio.run(trigger._note("held", held, recorded))
        return failure()

    assert looks(7).detail == "The transaction holds back 2 records of orders/0."
    assert looks(9).detail == "The transaction holds back 4 records of orders/0."
    assert looks(12).detail == "The transaction holds back 4 records of orders/0.", (
        "not with each record"
    )
    assert failure().at == begun


def test_the_trigger_says_when_the_next_run_starts() -> None:
    trigger = KafkaEndOffsetTrigger("orders", ["orders"])

    def looks(since_event_s: float, until_event_s: float) -> Failure:
        asyncio.run(trigger._note_next_run(failure(), BackOff(since_event_s, until_event_s)))
        return failure()

    attempt_fails(1)
    repeats_at = failure().repeats_at
    assert looks(60, 540).repeats_at == repeats_at, "Airflow repeats it itself"
    attempt_fails(3)
    assert looks(0, 540).repeats_at is None, "this event's run has not failed"
    noted = looks(60, 540)
    assert noted.repeats_at == pytest.approx(
        datetime.now(UTC) + timedelta(seconds=540), abs=timedelta(seconds=5)
    )
    starts = f"A new run starts at {noted.repeats_at:%H:%M:%S} UTC."
    assert noted.outlook == f"Airflow has used up its attempts. {starts}"
    assert looks(61, 539.5).repeats_at == noted.repeats_at, "a time is noted once"
    with Ledger.open(settings().ledger) as ledger:
        ledger.failures.keep(Failure.of(SettingsError("No master."), "orders", run=RUN))
    assert (
        looks(60, 540).outlook
        == "Airflow does not repeat the run, because it would fail again in the same way."
    )
