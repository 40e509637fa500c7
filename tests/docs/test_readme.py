"""The README's pipeline has the documented results."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice.examples import load_example
from sluice.examples.demo import SEED
from sluice.kafka.topics import read_topic
from sluice.local.broker import EmbeddedKafka
from sluice.plan import plan
from sluice.query import Reader
from sluice.settings import Settings
from sluice.state.ledger.ledger import Ledger
from sluice.topology import Pipeline, load_pipeline
from tests.docs.pages import files, read
from tests.support.spark_in_process import SparkInProcess

VIEWS = [
    b'{"page": "/", "visitor": "ann", "milliseconds": 120, "at": "2026-03-01T08:00:00"}',
    b'{"page": "/", "visitor": "robot", "milliseconds": 1500, "at": "2026-03-01T08:00:01"}',
    b'{"page": "/", "visitor": "bob", "milliseconds": 1200, "at": "2026-03-01T08:01:00"}',
    b'{"page": "/about", "visitor": "bob", "milliseconds": 80, "at": "2026-03-01T08:01:02"}',
]


@pytest.fixture
def pages(tmp_path: Path) -> Pipeline:
    for path, content in files(read("README.md")).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    return load_pipeline(tmp_path / "spark_jobs", "pages")


def test_the_demo_compares_as_many_results_as_the_readme_says() -> None:
    example = load_example("orders")
    samples = sorted(
        example.samples(example.count, SEED, example.start_ms),
        key=lambda sample: sample.timestamp_ms,
    )
    compared = example.expected(samples).size
    assert f"  {compared:,} entries and records, 0 differences\n" in read("README.md")


def test_the_ratios_to_kafka_streams_are_those_of_the_benchmarks() -> None:
    (row,) = re.findall(
        r"^\| 1,000,000 \| Sluice .*\n.*\*\*(.+?)\*\* \| \*\*(.+?)\*\* \|$",
        read("docs/benchmarks.md"),
        re.MULTILINE,
    )
    time_ratio, cpu_ratio = row
    claim = f"{time_ratio} of the time and {cpu_ratio} of the CPU time"
    assert claim in read("README.md")


def test_the_pipeline_has_thirty_lines() -> None:
    (content,) = files(read("README.md")).values()
    assert len(content.splitlines()) <= 30


def test_the_pipeline_runs(pages: Pipeline, kafka: EmbeddedKafka, tmp_path: Path) -> None:
    from sluice.engine.run.job_run import JobRun

    kafka.create_topics({"views": 1})
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
    for view in VIEWS:
        producer.produce("views", view)
    assert producer.flush(20) == 0
    brokers = json.dumps({"bootstrap.servers": kafka.bootstrap, "log_level": "0"})
    settings = Settings.read({"SLUICE_HOME": str(tmp_path), "SLUICE_KAFKA": brokers})

    assert JobRun(SparkInProcess.session(), plan(pages).job, settings).run() == 4

    assert held(settings, "views_count") == [("/", 2), ("/about", 1)]
    assert held(settings, "views_time") == [
        ("/", {"views": 2, "slowest": 1200}),
        ("/about", {"views": 1, "slowest": 80}),
    ]
    assert held(settings, "views_per_minute") == [("/", 1), ("/", 1), ("/about", 1)]
    # Kafka shows the records of a committed transaction a moment later.
    deadline = time.monotonic() + 20
    slow: list[Any] = []
    while len(slow) < 2 and time.monotonic() < deadline:
        slow = [
            json.loads(record.value() or b"") for record in read_topic(settings.kafka, "slow_views")
        ]
    assert slow == [{"page": "/", "milliseconds": 1500}, {"page": "/", "milliseconds": 1200}]


def held(settings: Settings, name: str) -> list[tuple[str, Any]]:
    """A store's entries (key and value), sorted by key and window."""

    async def ask() -> list[tuple[str, Any]]:
        with Ledger.open(settings.ledger) as ledger:
            reader = Reader(ledger)
            store = next(one for one in ledger.generations.stores("pages") if one.name == name)
            answer = await reader.all(await reader.catalogue.pin(store))
            return [(entry.key, json.loads(bytes(entry.value))) for entry in answer.entries]

    return asyncio.run(ask())
