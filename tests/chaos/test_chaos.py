"""A sample of `make chaos`, in this process instead of on Spark: random faults do not change the model's results."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from sluice.local.broker import EmbeddedKafka
from sluice.plan import plan
from sluice.support.processes import has_ended
from tests.chaos.actions import (
    ACTIONS,
    Action,
    chosen,
    compacted,
    crashed_backlog,
    lost_lease,
    other_workers,
    run,
)
from tests.chaos.episode import Episode
from tests.chaos.world import Choice, World, try_episode
from tests.engine.conftest import run_session
from tests.support.signals import reset_signals

__all__ = ["run_session"]

Try = Callable[[int, Choice], None]


@pytest.fixture
def try_one(
    run_session: SparkSession,
    kafka: EmbeddedKafka,
    fresh_name: Callable[[str], str],
    postgres: str,
    tmp_path: Path,
) -> Try:
    def try_(seed: int, actions: Choice) -> None:
        world = World(run_session, kafka, tmp_path, postgres)
        happened, problems = try_episode(world, fresh_name("chaos"), seed, actions)
        assert problems == [], happened

    return try_


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "actions",
    [
        pytest.param([*ACTIONS], marks=pytest.mark.heavy, id="all"),
        pytest.param([*ACTIONS][::3], id="every third"),
        pytest.param([run, compacted], id="compacted"),
    ],
)
def test_episodes_with_each_action_end_with_the_results_of_the_model(
    try_one: Try, actions: list[Action]
) -> None:
    try_one(52, lambda _: actions)


@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [pytest.param(3, id="totals"), pytest.param(18, id="operators")])
def test_crashes_while_tasks_read_ahead_do_not_change_the_results(try_one: Try, seed: int) -> None:
    def actions(episode: Episode) -> list[Action]:
        assert episode.reads_ahead
        assert plan(episode.pipeline).job.has_one_shuffle
        return [*[crashed_backlog] * 4, lost_lease, other_workers, crashed_backlog]

    try_one(seed, actions)


@pytest.mark.spark
@pytest.mark.heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(2, 12))
def test_random_episodes_end_with_the_results_of_the_model(try_one: Try, seed: int) -> None:
    try_one(seed, partial(chosen, count=6))


@pytest.mark.heavy  # a broker of its own
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_command_stops_its_broker(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "tests.chaos"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, preexec_fn=reset_signals) as chaos:
        brokers: list[psutil.Process] = []
        try:
            while not brokers:
                assert chaos.poll() is None
                time.sleep(0.05)
                started = psutil.Process(chaos.pid).children()
                # Kafka's format tool may just have ended.
                brokers = [
                    process
                    for process in started
                    if not has_ended(process) and "kafka.Kafka" in process.cmdline()
                ]
            chaos.send_signal(number)
            assert chaos.wait(60) != 0
            assert has_ended(brokers[0])
        finally:
            chaos.kill()
            for broker in brokers:
                with suppress(psutil.NoSuchProcess):
                    broker.kill()
