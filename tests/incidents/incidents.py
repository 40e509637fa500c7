"""Incidents: how each is caused and ended on a stage, and what the places must say about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import psutil
from confluent_kafka import Producer

from sluice.answers import FailureKind
from tests.incidents.stage import CannotBeStaged, Stage, resume, suspend
from tests.support.postgres import frozen

LARGE_FILE_MIB = 300
DEADLINE_S = 15.0
LINGER_S = 150


@dataclass(frozen=True)
class Incident:
    """An incident of a pipeline, and what the places say about it."""

    name: str
    """A sentence for the table."""
    pipeline: str
    kind: FailureKind | None
    """The kind of the failure; None if the ledger is away, so that nobody knows anything about
    pipelines."""
    alert: str
    cause: Callable[[Stage], AbstractContextManager[None]]
    """Causes the incident. Enters the block once it has happened, and ends it afterwards."""
    in_airflow: Callable[[Stage], str]
    """What Airflow says; an empty text as long as it says nothing."""
    title: str
    """The title of the failure, which `sluice status` prints."""
    text: str
    """A part of the failure's detail or next step, which leads to the cause."""
    ends: bool = True
    """Whether the pipeline becomes healthy by itself, soon after the cause has ended."""
    grows_worse: Callable[[Stage], None] | None = None
    """Waits until the incident has grown worse. A drill ends the cause before."""


def says(text: str, said: Callable[[Stage], bool]) -> Callable[[Stage], str]:
    """`text` once the stage says so."""
    return lambda stage: text if said(stage) else ""


def waits_in_the_trigger_log(pipeline: str) -> Callable[[Stage], str]:
    def waits(stage: Stage) -> bool:
        return any(
            "waiting" in line and pipeline in line for line in stage.trigger_log().splitlines()
        )

    return says("trigger's log", waits)


def task_is(pipeline: str, *states: str) -> Callable[[Stage], str]:
    def in_state(stage: Stage) -> str:
        state = str(stage.newest_task(pipeline).get("state"))
        return f"task `{state}`" if state in states else ""

    return in_state


def nothing(_: Stage) -> str:
    return "nothing"


@contextmanager
def brokers_away(stage: Stage) -> Iterator[None]:
    """All brokers end while every pipeline is idle.

    When they are back, the pipeline reads new records.
    """
    stage.platform.kafka.stop()
    yield
    stage.platform.kafka.start()
    stage.send("sales")


@contextmanager
def topic_deleted(stage: Stage) -> Iterator[None]:
    stage.delete_topic("returns")
    yield


@contextmanager
def topic_never_created(stage: Stage) -> Iterator[None]:
    """The incident began when Airflow read the pipeline's file, so the pipeline's file is new to it."""
    file = stage.platform.pipelines / "coupons.py"
    file.write_text(
        '"""Copies coupons."""\n\nfrom sluice import Pipeline\n\npipeline = Pipeline("coupons", workers=1)\n'
        'pipeline.stream("coupons", value=str).to("current_coupons", value=str)\n'
    )
    with stage.admin() as airflow:
        stage.wait(
            lambda: airflow.ask("/api/v2/dags/coupons").status_code == 200, "no DAG of coupons"
        )
    yield
    stage.create_topics("coupons", "current_coupons", "coupons_dead_letters")
    stage.send("coupons")


@contextmanager
def some_bad_records(stage: Stage) -> Iterator[None]:
    stage.send("scans", 1_000, bad=300)
    yield
    stage.send("scans", 100)


@contextmanager
def flood_of_bad_records(stage: Stage) -> Iterator[None]:
    stage.send("scans", 20_000, bad=19_406)
    yield


@contextmanager
def step_fails(stage: Stage) -> Iterator[None]:
    stage.send("prices", 1_000)
    yield


@contextmanager
def database_away(stage: Stage) -> Iterator[None]:
    stage.send("shipments")
    yield
    stage.start_warehouse()


def retries_used_up(stage: Stage) -> None:
    """Airflow has repeated the run twice, and the trigger says when it starts a new run."""

    def has_failed_three_times() -> bool:
        task = stage.newest_task("shipments")
        return (task["state"], task["try_number"]) == ("failed", 3)

    stage.wait(has_failed_three_times, "the retries are not used up")
    said = "Airflow has used up its attempts. A new run starts at"
    stage.wait(
        lambda: bool(stage.places.page("shipments", "run", said)),
        "nobody says when a new run starts",
    )


@contextmanager
def marked_as_failed(stage: Stage) -> Iterator[None]:
    """A run's second attempt is marked as failed, after the first one has failed with an error that says why."""
    stage.send("refunds")
    stage.wait(
        lambda: stage.newest_task("refunds").get("try_number") == 2, "no second attempt", 0.2
    )
    driver = stage.java("refunds")
    task = stage.newest_task("refunds")
    stage.change(f"dags/refunds/dagRuns/{task['dag_run_id']}", state="failed")
    stage.wait(lambda: not driver.is_running(), "the driver goes on")
    yield


@contextmanager
def driver_killed(stage: Stage) -> Iterator[None]:
    stage.await_no_driver("sales")
    stage.send("sales")
    driver = stage.java("sales")
    stage.wait(lambda: stage.holds_lease("sales"), "the driver has not taken the lease", 0.1)
    driver.kill()
    yield


@contextmanager
def transaction_left_open(stage: Stage) -> Iterator[None]:
    producer = Producer(
        {**stage.kafka, "transactional.id": "shop", "transaction.timeout.ms": 600_000}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("sales", b'{"shop": "a", "amount": 1}')
    producer.flush(20)
    stage.send("sales")
    yield
    producer.abort_transaction(20)


@contextmanager
def pool_taken(stage: Stage) -> Iterator[None]:
    """A long task of another team takes the whole pool."""
    with stage.admin() as airflow:
        run = airflow.trigger("other_team")
    stage.wait(
        lambda: stage.newest_task("other_team").get("state") == "running",
        "the long task does not run",
    )
    stage.send("sales")
    yield
    stage.change(f"dags/other_team/dagRuns/{run}", state="failed")


def is_second_attempt(task: Mapping[str, Any]) -> bool:
    return task.get("state") == "running" and task.get("try_number") == 2


@contextmanager
def lease_held(stage: Stage) -> Iterator[None]:
    """A task is killed while its driver lingers, which lives on and keeps the lease.

    The retry lingers as long.

    Until Airflow starts the retry, nothing is wrong: the first driver processes all records.
    """
    stage.await_no_driver("sales")
    with stage.admin() as airflow:
        airflow.trigger("sales", {"linger_seconds": LINGER_S})
    driver = stage.java("sales")
    stage.wait(lambda: stage.holds_lease("sales"), "the driver has not taken the lease")
    task = driver.parent()
    assert task is not None
    left_behind = [driver, *driver.children(recursive=True)]
    task.kill()
    stage.wait(
        lambda: is_second_attempt(stage.newest_task("sales")),
        "Airflow does not retry the killed task",
        0.2,
    )
    yield
    for process in left_behind:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def state_server_hangs(stage: Stage) -> Iterator[None]:
    server, _ = stage.serve("far-server", "--pipeline", "visits", "--workers", "0")
    suspend([server])
    yield
    resume([server])


@contextmanager
def disk_nearly_full(stage: Stage) -> Iterator[None]:
    if not stage.has_own_disk:
        raise CannotBeStaged("Only root can mount a small disk.")
    file = stage.shards.parent / "large"
    with file.open("wb") as output:
        for _ in range(LARGE_FILE_MIB):
            output.write(bytes(2**20))
    yield
    file.unlink()


@contextmanager
def clock_ahead(stage: Stage) -> Iterator[None]:
    """A driver whose clock is an hour ahead publishes a snapshot."""
    clock = stage.stepped_clock()
    clock.step(1)
    stage.change("dags/sales", is_paused=True)
    # The run with which an earlier incident of the pipeline ended may hold the lease.
    stage.await_no_driver("sales")
    stage.send("sales")
    driver = stage.start("driver-with-wrong-clock", "run", "sales", **clock.environment)
    stage.wait(lambda: driver.process.poll() is not None, "the driver with the wrong clock goes on")
    driver.finish()
    yield
    stage.change("dags/sales", is_paused=False)
    stage.send("sales")


@contextmanager
def state_grows(stage: Stage) -> Iterator[None]:
    """The state has grown on each of the last days, and the daily DAG notes its size of today."""
    today = datetime.now(UTC).date()
    with stage.ledger() as ledger:
        for days_ago in range(6, 0, -1):
            ledger.sizes.note("sales", today - timedelta(days=days_ago), 700 - 100 * days_ago)
    with stage.admin() as airflow:
        airflow.trigger("sluice_retention")
    yield
    with stage.ledger() as ledger:
        ledger.failures.clear("sales", "growth")


@contextmanager
def file_broken(stage: Stage) -> Iterator[None]:
    file = stage.platform.pipelines / "prices.py"
    before = file.read_text()
    file.write_text(before.replace("returns=InEuros", "return=InEuros"))
    yield
    file.write_text(before)


@contextmanager
def data_overdue(stage: Stage) -> Iterator[None]:
    """The DAG is paused, records arrive, and the deadline passes."""
    stage.send("alarms")
    time.sleep(DEADLINE_S)
    yield
    stage.change("dags/alarms", is_paused=False)


@contextmanager
def ledger_silent(stage: Stage) -> Iterator[None]:
    """The ledger's database accepts connections and does not answer."""
    with frozen(stage.settings.ledger):
        yield


def logs(pipeline: str, text: str) -> Callable[[Stage], str]:
    return says("task's log", lambda stage: text in stage.task_log(pipeline))


def ran(dag: str) -> Callable[[Stage], str]:
    return says(f"DAG `{dag}`", lambda stage: stage.newest_task(dag).get("state") == "success")


def has_import_error(stage: Stage) -> str:
    with stage.admin() as airflow:
        return "import error" if airflow.json("/api/v2/importErrors")["total_entries"] else ""


INCIDENTS = [
    # While the brokers are away, these data become overdue, too.
    Incident(
        "The data are older than the deadline", "alarms", "overdue", "PipelineOverdue", data_overdue,
        ran("sluice_deadlines"), "The data are too old", "Unpause the DAG alarms",
    ),
    Incident(
        "A topic was never created", "coupons", "input", "InputAway", topic_never_created,
        waits_in_the_trigger_log("coupons"), "The input is away",
        "Topic coupons does not exist. The pipeline has never read",
    ),
    Incident(
        "A topic is deleted", "returns", "input", "InputAway", topic_deleted,
        waits_in_the_trigger_log("returns"), "The input is away", "Topic returns was deleted", ends=False,
    ),
    Incident(
        "All brokers are away while the pipeline is idle", "sales", "input", "InputAway", brokers_away,
        waits_in_the_trigger_log("sales"), "The input is away", "does not answer",
    ),
    Incident(
        "A transaction of another producer stays open", "sales", "held", "RecordsHeld", transaction_left_open,
        nothing, "A transaction holds back records", "records of sales/0. Find the producer",
    ),
    Incident(
        "Another team's task takes the whole pool", "sales", "slot", "RunNotStarted", pool_taken,
        task_is("sales", "scheduled"), "Airflow does not start the run", "long_task of other_team",
    ),
    Incident(
        "A killed task has left its driver behind", "sales", "lease", "LeaseHeld", lease_held,
        logs("sales", "lease"), "Another driver holds the lease", "process",
    ),
    Incident(
        "A driver is killed", "sales", "run", "PipelineFailed", driver_killed,
        task_is("sales", "up_for_retry", "failed"), "The run stopped", "ended",
    ),
    Incident(
        "30 % of the records violate the contract", "scans", "rejections", "ManyRejected", some_bad_records,
        nothing, "Too many records were rejected", "300 records of the newest batch",
    ),
    Incident(
        "97 % of the records violate the contract", "scans", "run", "PipelineFailed", flood_of_bad_records,
        task_is("scans", "failed"), "Too many records were rejected", "19,406 of the 20,000", ends=False,
    ),
    # The same alert fires when a run of the pipeline has failed.
    Incident(
        "A pipeline's file cannot be loaded", "prices", "file", "PipelineFailed", file_broken,
        has_import_error, "", "", ends=False,
    ),
    Incident(
        "A step fails for every record", "prices", "run", "PipelineFailed", step_fails,
        task_is("prices", "failed"), "Too many records were rejected", "failed for 1,000 of the 1,000", ends=False,
    ),
    Incident(
        "Somebody marks a failing run as failed", "refunds", "run", "PipelineFailed", marked_as_failed,
        task_is("refunds", "failed"), "", "marked the run as failed in Airflow", ends=False,
    ),
    Incident(
        "The database of a table is away", "shipments", "run", "PipelineFailed", database_away,
        task_is("shipments", "up_for_retry", "failed"), "", "warehouse", grows_worse=retries_used_up,
    ),
    Incident(
        "A state server hangs", "visits", "host", "HostSilent", state_server_hangs,
        nothing, "A state server does not answer", "127.0.0.1:",
    ),
    Incident(
        "The disk of the shards is nearly full", "sales", "disk", "DiskNearlyFull", disk_nearly_full,
        nothing, "A disk is nearly full", "left for",
    ),
    Incident(
        "A driver's clock is an hour ahead", "sales", "clock", "ClockOff", clock_ahead,
        nothing, "A clock is off", "ahead of the clock of",
    ),
    Incident(
        "The state has grown for a week", "sales", "growth", "StateGrows", state_grows,
        ran("sluice_retention"), "The state grows without a bound", "The state has grown on each of the last 7 days",
    ),
    Incident(
        "The ledger's database does not answer", "sales", None, "NoMetrics", ledger_silent,
        waits_in_the_trigger_log("sales"), "", "ledger",
    ),
]  # fmt: skip
