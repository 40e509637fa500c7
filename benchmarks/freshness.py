"""Measures the time from a record to its answer over REST: `freshness.py --bursts 30`.

Kafka and all components of Airflow run on this machine. A burst is twenty records with a new key.
It ends when a GET of that key through Airflow, logged in, returns its count. One pipeline is idle
before each burst: its last run has ended, so the times include the trigger, the DAG run and
spark-submit. The other lingers: its run waits for new records.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Annotated

import httpx
import typer
from rich.console import Console
from rich.table import Table

from sluice.kafka.topics import Topic, create_topics, produce
from sluice.local.airflow_client import Airflow
from sluice.local.platform import LocalPlatform
from tests.support.kept_folders import kept_on_failure
from tests.support.signals import interrupt_on_sigterm

PIPELINE = '''"""Counts records by key."""

from sluice import Pipeline

pipeline = Pipeline("{name}", workers=1, linger="{linger}")
pipeline.stream("{name}", value=str).group_by_key().count(store="{name}_count")
'''
LINGER = {"idle": "0 ms", "lingering": "20 minutes"}
LONGEST_S = 180.0

console = Console(stderr=True)


def main(
    bursts: Annotated[int, typer.Option(min=2, help="Number of bursts for each pipeline.")] = 30,
    pause: Annotated[
        float, typer.Option(help="Longest pause between two bursts, in seconds.")
    ] = 5.0,
) -> None:
    """Time bursts, first while the pipeline lingers and then from idle."""
    with kept_on_failure("sluice-bench-") as home:
        pipelines = home / "pipelines"
        pipelines.mkdir()
        for name, linger in LINGER.items():
            (pipelines / f"{name}.py").write_text(PIPELINE.format(name=name, linger=linger))
        with LocalPlatform(home, pipelines=pipelines) as platform:
            platform.start(lambda: create_topics_of(platform))
            with platform.as_user() as airflow:
                results = {
                    name: measure(platform, airflow, name, bursts, pause)
                    for name in ("lingering", "idle")
                }
    Console().print(table(results))


def create_topics_of(platform: LocalPlatform) -> None:
    create_topics(platform.kafka_config, [Topic(name, 2, 1) for name in LINGER])


def measure(
    platform: LocalPlatform, airflow: Airflow, name: str, bursts: int, pause: float
) -> list[float]:
    """Seconds from the first record of each burst to its answer. The first burst, which also warms up, is left out."""
    chance = random.Random(1)
    seconds: list[float] = []
    with console.status(name) as status:
        for burst in range(bursts + 1):
            if name == "idle":
                wait_until_idle(platform, airflow, name)
            time.sleep(chance.uniform(0, pause))
            key = f"key-{burst}"
            begun = time.monotonic()
            produce(platform.kafka_config, name, ((key, b"x", 0) for _ in range(20)))
            wait_for_answer(platform, airflow, name, key)
            if burst:
                seconds.append(time.monotonic() - begun)
                status.update(f"{name}, burst {burst} of {bursts}: {seconds[-1]:.1f} s")
    return seconds


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


def table(results: dict[str, list[float]]) -> Table:
    shown = Table(
        "pipeline before the burst", "bursts", "min s", "p50 s", "p95 s", "max s", box=None
    )
    for name, seconds in results.items():
        p95 = statistics.quantiles(seconds, n=20, method="inclusive")[-1]
        figures = (min(seconds), statistics.median(seconds), p95, max(seconds))
        shown.add_row(name, str(len(seconds)), *(f"{figure:.1f}" for figure in figures))
    return shown


if __name__ == "__main__":
    interrupt_on_sigterm()
    typer.run(main)
