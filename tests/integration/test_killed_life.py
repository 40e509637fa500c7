"""Commands of a pipeline's life, killed with everything that they have started, and repeated.

tests/engine has the same operations with more moments, in the test's own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sluice.kafka.topics import read_topic, topic_ids
from sluice.local.broker import EmbeddedKafka
from sluice.operations.renaming import own_topics
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from tests.engine.conftest import state_rows
from tests.integration.test_command_line import ROOT, environment_of
from tests.support.postgres import new_database

pytestmark = [pytest.mark.integration, pytest.mark.heavy, pytest.mark.timeout(1200)]

PIPELINE = """
from sluice import Pipeline

pipeline = Pipeline("{name}", workers=2)
words = pipeline.stream("{topic}", value=str)
words.group_by_key().aggregate(store="totals", count="count(*)", weight="sum({weight})")
words.to("{topic}_out")
"""
DYING = ROOT / "tests" / "support" / "dying"
RENAMES = "sluice.state.ledger.renames:Renames"
GENERATIONS = "sluice.state.ledger.generations:Generations"
COPY = "sluice.state.remote.copying:ShardCopy"
RENAMINGS = (
    f"{RENAMES}.begin:before",
    f"{RENAMES}.begin:after",
    f"{COPY}.fill:after",
    f"{RENAMES}.switch:before",
    f"{RENAMES}.switch:after",
    f"{RENAMES}.finish:before",
)
REMOVALS = (
    f"{GENERATIONS}.forget_pipeline:before",
    f"{GENERATIONS}.forget_pipeline:after",
    f"{GENERATIONS}.forget_workers:before",
    "sluice.operations.removal:delete_topics:before",
)
DEPLOYMENTS = (
    "sluice.state.ledger.sources:Sources.replace:after",
    f"{GENERATIONS}.register:after",
)
PROMOTIONS = (f"{GENERATIONS}.promote:before", f"{GENERATIONS}.promote:after")
ROLLBACKS = (
    f"{COPY}.fill:after",
    f"{GENERATIONS}.inherit:after",
    f"{GENERATIONS}.promote:before",
    f"{GENERATIONS}.promote:after",
)


@dataclass
class Life:
    """A pipeline, and its commands in processes of their own."""

    home: Path
    kafka: EmbeddedKafka
    topic: str
    variables: dict[str, str]
    name: str = ""
    sent: int = field(default=0)

    def write(self, name: str, weight: int = 1) -> None:
        """Give the pipeline a name, and its totals a weight."""
        folder = self.home / "pipelines"
        for file in folder.glob("*.py"):
            file.unlink()
        text = PIPELINE.format(name=name, topic=self.topic, weight=weight)
        (folder / f"{name}.py").write_text(text)
        self.name = name

    def send(self) -> None:
        """Send ten words of five keys."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in range(10):
            producer.produce(self.topic, "word", key=f"key{number % 5}")
        assert producer.flush(30) == 0
        self.sent += 10

    def call(self, *words: str, dies_at: str = "") -> subprocess.CompletedProcess[str]:
        """Call a command in a group of processes of its own."""
        died = self.home / "died"
        died.unlink(missing_ok=True)
        variables = self.variables
        if dies_at:
            path = f"{DYING}:{variables['PYTHONPATH']}"
            variables = variables | {"PYTHONPATH": path, "DIES_AT": dies_at, "DIED": str(died)}
        done = subprocess.run(
            [sys.executable, "-m", "sluice", *words],
            env=variables,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=240,
            process_group=0,
        )
        assert died.exists() == bool(dies_at), f"{done.stdout}{done.stderr}"
        return done

    def succeed(self, *words: str, statuses: tuple[int, ...] = (0,)) -> str:
        done = self.call(*words)
        assert done.returncode in statuses, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @property
    def settings(self) -> Settings:
        given = {name: text for name, text in self.variables.items() if name.startswith("SLUICE_")}
        return Settings.read(given)

    def stores(self, name: str = "") -> dict[str, tuple[int, int]]:
        """Return key → count and weight in the newest snapshot; empty for an unknown pipeline."""
        pipeline = name or self.name
        rows: dict[str, tuple[int, int]] = {}
        with Ledger.open(self.settings.ledger) as ledger:
            snapshot = ledger.snapshots.latest(pipeline)
            if snapshot is None:
                return {}
            (store,) = ledger.generations.stores(pipeline)
            for worker in ledger.generations.workers(pipeline):
                for key, value in state_rows(worker.location, store, snapshot.batch):
                    rows[key] = (value["count"], value["weight"])
        return rows

    def require(self, weight: int = 1) -> None:
        """Everything that was sent is in the state and in the output, once."""
        each = self.sent // 5
        assert self.stores() == {f"key{number}": (each, each * weight) for number in range(5)}
        output = read_topic({"bootstrap.servers": self.kafka.bootstrap}, f"{self.topic}_out")
        assert len([*output]) == self.sent

    def run(self, weight: int = 1) -> None:
        """Send words, run the pipeline, and require that each of them counts once."""
        self.send()
        self.succeed("run", self.name)
        self.require(weight)

    def pipelines(self) -> list[str]:
        with Ledger.open(self.settings.ledger) as ledger:
            return ledger.generations.pipelines()


def life_in(home: Path, kafka: EmbeddedKafka, topic: str, database: str = "") -> Life:
    (home / "pipelines").mkdir()
    kafka.create_topics({topic: 2})
    variables = {
        name: text for name, text in os.environ.items() if not name.startswith("SLUICE_")
    } | environment_of(home, kafka)
    variables["SLUICE_KAFKA"] = json.dumps({"bootstrap.servers": kafka.bootstrap})
    if database:
        variables |= {"SLUICE_LEDGER": database, "SLUICE_SHARDS": database}
    return Life(home, kafka, topic, variables)


@pytest.fixture
def life(tmp_path: Path, kafka: EmbeddedKafka, fresh_name: Callable[[str], str]) -> Life:
    return life_in(tmp_path, kafka, fresh_name("words"))


@pytest.fixture
def life_in_postgres(
    tmp_path: Path, kafka: EmbeddedKafka, fresh_name: Callable[[str], str], postgres: str
) -> Life:
    return life_in(tmp_path, kafka, fresh_name("words"), new_database(postgres))


def rename_through(life: Life, points: tuple[str, ...]) -> None:
    """Rename the pipeline again and again, each time killed at another point."""
    for number, point in enumerate(points):
        old, new = life.name, f"{life.topic}_{number}"
        before = life.stores()
        life.call("rename", old, new, "--yes", dies_at=point)
        # The state has one of the names, and is whole.
        assert [life.stores(name) for name in life.pipelines()] == [before]
        life.succeed("rename", old, new, "--yes")
        assert life.pipelines() == [new]
        assert {*topic_ids(life.settings.kafka, own_topics(old))} == set()
        life.write(new)
        life.require()
        life.run()


def deploy_through(life: Life, deploy: str, promote: str, roll_back: str) -> None:
    """Deploy a change, promote it and roll it back, each killed at a point and repeated."""
    name = life.name
    life.write(name, weight=2)
    life.call("deploy", name, dies_at=deploy)
    life.require(weight=1)
    # The answers differ, which the command says with status 4.
    life.succeed("deploy", name, statuses=(4,))
    life.require(weight=1)
    life.call("deploy", name, "--promote", dies_at=promote)
    life.succeed("deploy", name, "--promote")
    life.require(weight=2)
    life.run(weight=2)
    life.write(name, weight=1)
    life.call("deploy", name, "--roll-back", dies_at=roll_back)
    if roll_back.endswith("promote:after"):
        life.require(weight=1)
    else:
        life.require(weight=2)
        life.succeed("deploy", name, "--roll-back")
    life.require(weight=1)
    life.run()


def remove_through(life: Life, points: tuple[str, ...]) -> None:
    """Remove the pipeline again and again, each time killed at another point."""
    for number, point in enumerate(points):
        name = life.name
        (life.home / "pipelines" / f"{name}.py").unlink()
        life.call("remove", name, "--yes", dies_at=point)
        life.succeed("remove", name, "--yes")
        assert life.pipelines() == []
        assert {*topic_ids(life.settings.kafka, own_topics(name))} == set()
        assert not any((life.home / "shards" / name).glob("*.sqlite"))
        # Another pipeline begins anew, and writes all output again.
        life.write(f"{life.topic}_after_{number}")
        life.send()
        life.succeed("run", life.name)
        each = life.sent // 5
        assert life.stores() == {f"key{key}": (each, each) for key in range(5)}


def begun(life: Life) -> Life:
    life.write(life.topic)
    life.run()
    return life


def test_a_renaming_that_is_killed(life: Life) -> None:
    rename_through(begun(life), RENAMINGS)


def test_a_removal_that_is_killed(life: Life) -> None:
    remove_through(begun(life), REMOVALS)


@pytest.mark.parametrize("number", range(4))
def test_a_deployment_a_promotion_and_a_rollback_that_are_killed(life: Life, number: int) -> None:
    deploy = DEPLOYMENTS[number % len(DEPLOYMENTS)]
    promote = PROMOTIONS[number % len(PROMOTIONS)]
    deploy_through(begun(life), deploy, promote, ROLLBACKS[number])


def test_the_whole_life_with_postgresql(life_in_postgres: Life) -> None:
    life = begun(life_in_postgres)
    deploy_through(life, DEPLOYMENTS[1], PROMOTIONS[0], ROLLBACKS[1])
    rename_through(life, (RENAMINGS[2], RENAMINGS[4]))
    remove_through(life, (REMOVALS[1],))
