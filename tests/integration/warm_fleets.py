"""Pipelines on a warm driver with a real Spark and a real broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from sluice import read_store
from sluice.local.broker import EmbeddedKafka
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.warm.warm_driver import READY
from tests.integration.test_command_line import environment_of

PIPELINE = """
import os, sys, time
from pathlib import Path
from sluice import Pipeline

def step(word: str) -> str:
    {code}
    return word

pipeline = Pipeline("{name}", workers=2)
words = pipeline.stream("{name}", value=str).map_values(step, returns=str)
words.group_by_key().count(store="{name}_count")
words.to("{name}_out")
"""


@dataclass(frozen=True)
class Result:
    """The result of a pipeline. It has no names, so the results of two pipelines can be equal."""

    counts: dict[Any, Any]
    output: list[tuple[str, str]]


@dataclass(frozen=True)
class Fleet:
    """A home with pipelines, their topics, and a warm driver."""

    home: Path
    kafka: EmbeddedKafka
    driver: subprocess.Popen[str]

    def add(self, name: str, code: str = "pass") -> None:
        """Add a pipeline with ten records, whose function runs `code` for each of them."""
        (self.home / "pipelines" / f"{name}.py").write_text(PIPELINE.format(name=name, code=code))
        self.kafka.create_topics({name: 2})
        self.send(name)

    def send(self, name: str) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for number in range(10):
            producer.produce(name, "word", key=f"key{number}")
        assert producer.flush(30) == 0

    def start(self, name: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sluice", "run", name],
            env=environment_of(self.home, self.kafka) | {"SLUICE_WARM": "use"} | variables,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, name: str, **variables: str) -> str:
        """Run a pipeline, which must succeed. Return its output."""
        process = self.start(name, **variables)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def result(self, name: str) -> Result:
        """Return what a pipeline has computed: its store, and its committed output."""
        counts = {entry.key: entry.value for entry in read_store(f"{name}_count", pipeline=name)}
        output = sorted(committed(self.kafka, f"{name}_out"))
        return Result(counts, output)

    def read(self, name: str) -> int:
        """Return the number of records that the newest snapshot of a pipeline includes."""
        ledger = Settings.read({"SLUICE_HOME": str(self.home)}).ledger
        with Ledger.open(ledger) as opened:
            positions = opened.positions(name)
        return sum(sum(partitions.values()) for partitions in positions.values())

    @property
    def processes(self) -> list[psutil.Process]:
        """The processes of the driver and of its runs."""
        return psutil.Process(self.driver.pid).children(recursive=True)

    @property
    def jvm(self) -> psutil.Process:
        (jvm,) = (process for process in self.processes if process.name() == "java")
        return jvm

    @property
    def keeper(self) -> psutil.Process:
        """The process that has started the JVM."""
        return self.jvm.parents()[0]

    @property
    def fork_server(self) -> psutil.Process:
        (server,) = (each for each in self.keeper.children() if each.name() != "java")
        return server


@contextmanager
def warm_fleet(home: Path, kafka: EmbeddedKafka, *options: str) -> Iterator[Fleet]:
    """Run a warm driver with these options during the block."""
    (home / "pipelines").mkdir(exist_ok=True)
    with subprocess.Popen(
        [sys.executable, "-m", "sluice", "warm", *options],
        env=environment_of(home, kafka),
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
    ) as driver:
        assert driver.stdout is not None
        try:
            while READY not in driver.stdout.readline():
                assert driver.poll() is None
            yield Fleet(home, kafka, driver)
        finally:
            driver.terminate()
            driver.wait(60)


def committed(kafka: EmbeddedKafka, topic: str) -> Iterator[tuple[str, str]]:
    """Yield the keys and values of the committed records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "committed",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    ended = 0
    while ended < len(partitions):
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ended += 1
        else:
            key, value = message.key(), message.value()
            assert key is not None
            assert value is not None
            yield key.decode(), value.decode()
    consumer.close()
