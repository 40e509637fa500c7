"""Measures the time from a record to its answer over REST: `freshness.py --bursts 30`.

Kafka and all components of Airflow run on this machine. A burst is twenty records with a new key.
It ends when a GET of that key through Airflow, logged in, returns its count. One pipeline lingers:
its run waits for new records. Before each burst of the others, their last run has ended, so the
times include the trigger, the DAG run and the task: one pipeline starts a driver of its own, and
the other uses a warm driver. Further tables show where the time goes.
"""

from __future__ import annotations

import itertools
import random
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.cost import SLUICE, percentile
from sluice.kafka.topics import Topic, create_topics, produce
from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.warm.warm_driver import READY
from tests.support.kept_folders import kept_on_failure
from tests.support.signals import interrupt_on_sigterm

PIPELINE = '''"""Counts records by key."""

from sluice import Pipeline

pipeline = Pipeline("{name}", workers=1, linger="{linger}")
pipeline.stream("{name}", value=str).group_by_key().count(store="{name}_count")
'''
LINGER = {"lingering": "20 minutes", "idle": "0 ms", "warm": "0 ms"}
OPTIONS = """
[pipelines.warm]
warm = "use"
"""
LONGEST_S = 180.0
OF_LINGERING = (
    "the driver plans the batch",
    "Spark has read it and calls the driver",
    "the shards are written",
    "the batch is checked",
    "the output is written",
    "the snapshot is published",
    "REST answers",
)
FROM_IDLE = (
    "the trigger sees the records",
    "the scheduler makes the DAG run",
    "it starts the DAG run",
    "it queues the task",
    "the task starts",
    "the driver plans the batch",
    "the driver publishes it",
    "REST answers",
)

console = Console(stderr=True)


@dataclass
class Measured:
    """The bursts of a pipeline."""

    seconds: list[float] = field(default_factory=list)
    phases: list[list[float]] = field(default_factory=list)
    """The seconds of each phase, by burst."""


def main(
    bursts: Annotated[int, typer.Option(min=2, help="Number of bursts for each pipeline.")] = 30,
    pause: Annotated[
        float, typer.Option(help="Longest pause between two bursts, in seconds.")
    ] = 5.0,
    only: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(LINGER)}; default: all.")
    ] = None,
) -> None:
    """Time bursts while a pipeline lingers, and from idle with its own and with a warm driver."""
    chosen = only or [*LINGER]
    with kept_on_failure("sluice-bench-") as home:
        pipelines = home / "pipelines"
        pipelines.mkdir()
        for name in chosen:
            (pipelines / f"{name}.py").write_text(PIPELINE.format(name=name, linger=LINGER[name]))
        if "warm" in chosen:
            (pipelines / "sluice.toml").write_text(OPTIONS)
        with LocalPlatform(home, pipelines=pipelines) as platform:
            platform.start(lambda: create_topics_of(platform, chosen))
            results = {name: Measured() for name in chosen}
            try:
                with platform.as_user() as airflow:
                    for name in chosen:
                        with warm_driver(platform) if name == "warm" else nullcontext():
                            measure(platform, airflow, name, bursts, pause, results[name])
            finally:
                # Also if the command is interrupted.
                show({name: each for name, each in results.items() if len(each.seconds) > 1})


def create_topics_of(platform: LocalPlatform, names: list[str]) -> None:
    create_topics(platform.kafka_config, [Topic(name, 2, 1) for name in names])


@contextmanager
def warm_driver(platform: LocalPlatform) -> Iterator[None]:
    """Run a warm driver with the environment of Airflow's tasks during the block."""
    log = platform.logs / "warm-driver.log"
    with log.open("w") as output:
        command = [SLUICE, "warm", "--master", platform.spark_master]
        driver = subprocess.Popen(
            command, env=platform.variables(), stdout=output, stderr=output, start_new_session=True
        )
        try:
            for _ in platform.ticks(LONGEST_S, "The warm driver is not ready"):
                if READY in log.read_text():
                    break
                if driver.poll() is not None:
                    raise SystemExit(f"The warm driver does not start:\n{log.read_text()}")
            yield
        finally:
            driver.send_signal(signal.SIGTERM)
            driver.wait()


def measure(
    platform: LocalPlatform,
    airflow: Airflow,
    name: str,
    bursts: int,
    pause: float,
    measured: Measured,
) -> None:
    """Measure the seconds from the first record of each burst to its answer.

    The first burst, which also warms up, is left out.
    """
    chance = random.Random(1)
    with console.status(name) as status:
        for burst in range(bursts + 1):
            if name != "lingering":
                wait_until_idle(platform, airflow, name)
            time.sleep(chance.uniform(0, pause))
            key = f"key-{burst}"
            begun, begun_at = time.monotonic(), time.time()
            produce(platform.kafka_config, name, ((key, b"x", 0) for _ in range(20)))
            wait_for_answer(platform, airflow, name, key)
            if burst:
                measured.seconds.append(time.monotonic() - begun)
                status.update(f"{name}, burst {burst} of {bursts}: {measured.seconds[-1]:.1f} s")
                answered_at = time.time()
                if name == "lingering":
                    moments = moments_of_batch(platform, name)
                else:
                    moments = moments_of(platform, airflow, name)
                measured.phases.append(differences([begun_at, *moments, answered_at]))


def wait_for_answer(platform: LocalPlatform, airflow: Airflow, name: str, key: str) -> None:
    path = f"/sluice/v1/stores/{name}_count/keys/{key}"
    for _ in platform.ticks(LONGEST_S, f"{key} of {name} has no answer", pause_s=0.05):
        answer = airflow.ask(path)
        if answer.status_code == httpx.codes.OK and answer.json()["entries"][0]["value"] == 20:
            return


def wait_until_idle(platform: LocalPlatform, airflow: Airflow, name: str) -> None:
    for _ in platform.ticks(LONGEST_S, f"A run of {name} has not ended"):
        if all(run["state"] in ("success", "failed") for run in airflow.runs(name)):
            return


def moments_of(platform: LocalPlatform, airflow: Airflow, name: str) -> list[float]:
    """Return when each phase of the newest run but the last has ended, in epoch s."""
    run = airflow.runs(name)[-1]
    (task,) = airflow.tasks(name, run["dag_run_id"])
    events = airflow.json("/api/v2/assets/events", order_by="-timestamp", limit=20)
    of_run = [
        event
        for event in events["asset_events"]
        if any(made["run_id"] == run["dag_run_id"] for made in event["created_dagruns"])
    ]
    home = Settings.read(platform.variables())
    with Ledger.open(home.ledger) as ledger:
        snapshot = ledger.snapshots.latest(name)
        assert snapshot is not None
        batch = ledger.history.get(snapshot.ref, snapshot.batch)
        assert batch is not None
    seen: Any = of_run[0]["timestamp"] if of_run else run["queued_at"]
    return [
        epoch(seen),
        epoch(run["queued_at"]),
        epoch(run["start_date"]),
        epoch(task["queued_when"]),
        epoch(task["start_date"]),
        batch.begun / 1_000,
        snapshot.published_at.timestamp(),
    ]


def moments_of_batch(platform: LocalPlatform, name: str) -> list[float]:
    """Return when each phase of the newest batch but the last has ended, in epoch s."""
    home = Settings.read(platform.variables())
    with Ledger.open(home.ledger) as ledger:
        snapshot = ledger.snapshots.latest(name)
        assert snapshot is not None
        batch = ledger.history.get(snapshot.ref, snapshot.batch)
        audit = ledger.audits.newest(snapshot.ref)
        assert batch is not None
        assert audit is not None
    moments = [batch.begun / 1_000]
    for phase in ("start", "state", "audit", "output"):
        moments.append(moments[-1] + audit.phases[phase] / 1_000)
    return [*moments, snapshot.published_at.timestamp()]


def epoch(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def differences(moments: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(moments)]


def show(results: dict[str, Measured]) -> None:
    if results:
        Console().print(table(results))
    lingering = {name: each for name, each in results.items() if name == "lingering"}
    from_idle = {name: each for name, each in results.items() if name != "lingering"}
    for phases, measured in ((OF_LINGERING, lingering), (FROM_IDLE, from_idle)):
        if measured:
            Console().print(phases_table(phases, measured))


def table(results: dict[str, Measured]) -> Table:
    columns = ("pipeline before the burst", "bursts", "min s", "p50 s", "p95 s", "p99 s", "max s")
    shown = Table(*columns, box=None)
    for name, measured in results.items():
        seconds = measured.seconds
        figures = [min(seconds), *[percentile(seconds, each) for each in (50, 95, 99)]]
        shown.add_row(
            name,
            str(len(seconds)),
            *[f"{figure:.2f}" for figure in (*figures, max(seconds))],
        )
    return shown


def phases_table(phases: tuple[str, ...], results: dict[str, Measured]) -> Table:
    """Return the median seconds of each phase."""
    shown = Table("until", *[f"{name} p50 s" for name in results], box=None)
    for number, phase in enumerate(phases):
        medians: list[str] = []
        for measured in results.values():
            medians.append(f"{statistics.median([burst[number] for burst in measured.phases]):.2f}")
        shown.add_row(phase, *medians)
    return shown


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
