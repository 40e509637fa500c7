"""Drivers on several hosts share nothing but the databases and the broker, whenever one of them is killed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.publisher import Publisher
from sluice.errors import EngineError
from sluice.plan import plan
from sluice.settings import Settings
from sluice.state.ledger.plans import Plans
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.model import GenerationRef
from tests.chaos.actions import Crash, Point, crash, interrupted
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, address, sale, shop
from tests.engine.test_replay import a_busy_day, in_order
from tests.support.postgres import new_database

MOMENTS = {
    "after the plan": Point(Plans, "add", after=True),
    "after the shards": Point(Publisher, "_write_shards", after=True),
    "after the Kafka commit": Point(TransactionalOutput, "send", after=True),
    "after the ledger": Point(Snapshots, "publish", after=True),
}


class Clocked:
    """A producer whose records have the same timestamps in every pipeline, because they decide the order of records."""

    def __init__(self, producer: Producer) -> None:
        self.producer, self._now = producer, 1_670_227_200_000
        self.flush = producer.flush

    def produce(self, *record: Any, **more: Any) -> None:
        self._now += 1_000
        self.producer.produce(*record, **{**more, "timestamp": self._now})


def move(running: Running, home: Path, database: str) -> None:
    """The next driver has an empty home."""
    running.settings = replace(
        Settings.read(
            {"SLUICE_HOME": str(home), "SLUICE_LEDGER": database, "SLUICE_SHARDS": database}
        ),
        kafka=running.settings.kafka,
    )


def more(running: Running) -> None:
    running.send("shops", address("a", "elsewhere"), (b"b", None))
    running.send("sales", sale("a", "950", at="08:30:00"), sale("b", at="08:00:00"), b"{")
    running.send("sales", sale("c", at="08:31:00"), partition=2)


def results(running: Running) -> dict[str, Any]:
    """All stores, outputs, dead letters and audits, without the names that belong to one pipeline."""
    everything, prefix = running.everything(), f"{running.names.prefix}."
    topics = plan(running.pipeline).job.outputs
    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    return {
        "stores": {
            name.removeprefix(prefix): values for name, values in everything["stores"].items()
        },
        "outputs": [
            [
                (each.partition(), each.key(), each.value(), each.timestamp())
                for each in running.messages(topic)
            ]
            for topic in topics
        ],
        "dead letters": [(key, value) for key, value, _ in everything["dead letters"]],
        "positions": [[*snapshot.positions.values()] for snapshot in everything["snapshots"]],
        "read": [
            [(s.partition, s.start, s.end, s.read, s.applied, s.late) for s in audit.sources]
            for audit in audits
        ],
        "written": [[*audit.outputs.values()] for audit in audits],
        "checksums": [(audit.checksums, audit.states) for audit in audits],
    }


@pytest.mark.parametrize(
    ("build", "moment"),
    [
        (in_order, "after the shards"),
        pytest.param(shop, "after the Kafka commit", marks=pytest.mark.heavy),
        pytest.param(shop, "after the plan", marks=pytest.mark.heavy),
        pytest.param(shop, "after the shards", marks=pytest.mark.heavy),
        pytest.param(in_order, "after the Kafka commit", marks=pytest.mark.heavy),
        pytest.param(in_order, "after the ledger", marks=pytest.mark.heavy),
    ],
)
def test_a_batch_is_finished_on_another_host(
    build: Build, moment: str, start: Start, postgres: str, tmp_path: Path
) -> None:
    undisturbed, moving = start(build, sales=3), start(build, sales=3)
    database = new_database(postgres)
    move(undisturbed, tmp_path / "one", database)
    move(moving, tmp_path / "A", database)
    for running in (undisturbed, moving):
        running.producer = cast(Producer, Clocked(running.producer))
        a_busy_day(running)
        running.run()
        more(running)
    undisturbed.run()
    move(moving, tmp_path / "B", database)
    with (
        interrupted(MOMENTS[moment], crash),
        pytest.raises((Crash, EngineError), match="the driver dies here"),
    ):
        moving.run()
    move(moving, tmp_path / "C", database)
    moving.run()
    assert results(moving) == results(undisturbed)
    assert [file for home in ("A", "B", "C") for file in (tmp_path / home).rglob("*")] == [], (
        "nothing is kept on hosts"
    )
