"""One Spark session and one broker for many episodes."""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from pyspark.sql import SparkSession

from sluice import Pipeline
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings
from tests.chaos.actions import ACTIONS, Action, broker_restart, chosen, play
from tests.chaos.episode import Episode
from tests.chaos.extras import CONNECTION
from tests.conformance.catalogue import SOURCES
from tests.engine.conftest import Running
from tests.engine.shop import Names
from tests.servers.hosts import TOKEN
from tests.support.ports import free_port
from tests.support.postgres import new_database, postgres_server

Choice = Callable[[Episode], Sequence[Action]]
"""Chooses what happens in an episode."""
MEMORY = Path("/dev/shm")
"""Databases and brokers wait for a disk again and again."""


@dataclass(frozen=True)
class World:
    spark: SparkSession
    kafka: EmbeddedKafka
    folder: Path
    postgres: str = ""
    """URL of a PostgreSQL server, which has output tables, and the state of every third episode."""

    def episode(self, name: str, seed: int) -> Episode:
        """An episode with topics and state of its own."""
        names = Names(name)
        kafka = json.dumps({"bootstrap.servers": self.kafka.bootstrap, "log_level": "0"})
        about = {
            "SLUICE_HOME": str(self.folder / name),
            "SLUICE_KAFKA": kafka,
            "SLUICE_SERVER_TOKEN": TOKEN,
        }
        if self.postgres:
            database = new_database(self.postgres)
            about[f"SLUICE_CONNECTION_{CONNECTION.upper()}"] = database
            if seed % 3 == 0:
                about |= dict.fromkeys(("SLUICE_LEDGER", "SLUICE_SHARDS"), database)
        self.kafka.create_topics({names(source): 1 for source in SOURCES})
        running = Running(self.spark, names, Pipeline(name), Settings.read(about), self.kafka)
        return Episode(running, seed)


def try_episode(world: World, name: str, seed: int, actions: Choice) -> tuple[list[str], list[str]]:
    """What happened in an episode, and what was wrong after it."""
    episode = world.episode(name, seed)
    with episode.closing:
        happened = play(episode, actions(episode))
        return happened, [*episode.problems()]


@contextmanager
def own_world(with_postgres: bool) -> Iterator[World]:
    from sluice.testing.topology_test_driver import shared_session

    with ExitStack() as stack:
        memory = MEMORY if MEMORY.is_dir() else None
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-chaos-", dir=memory))
        )
        folder.chmod(0o755)
        kafka = stack.enter_context(EmbeddedKafka(folder / "kafka", free_port()))
        server = stack.enter_context(postgres_server(folder / "postgres")) if with_postgres else ""
        spark = shared_session()
        spark.sparkContext.setLogLevel("OFF")  # Spark would log the stack of every crash
        yield World(spark, kafka, folder, server)


def main(arguments: Sequence[str]) -> int:
    """Play episodes. Returns 0 if all end with the model's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--actions", type=int, default=8, help="in each episode")
    parser.add_argument(
        "--postgres",
        action="store_true",
        help="output tables, and every third episode's state, in PostgreSQL",
    )
    given = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    ACTIONS[broker_restart] = 1
    failed: dict[int, Any] = {}
    with own_world(given.postgres) as world:
        for seed in range(given.seed, given.seed + given.episodes):
            begun = time.monotonic()
            try:
                happened, problems = try_episode(
                    world, f"chaos_{seed}", seed, partial(chosen, count=given.actions)
                )
            except Exception as error:  # an error of one episode must not stop the others
                happened, problems = (
                    [],
                    [f"{type(error).__name__}: {error}", traceback.format_exc()[-1500:]],
                )
            if problems:
                failed[seed] = problems
                print(f"{seed}: {'; '.join(happened)}", *problems, sep="\n  ")
            done = seed - given.seed + 1
            print(
                f"{done - len(failed)} equal, {len(failed)} different; {time.monotonic() - begun:.1f} s",
                flush=True,
            )
    print(f"different: {[*failed]}" if failed else "all equal")
    return 1 if failed else 0
