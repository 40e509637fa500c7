"""A pipeline whose numbered sales go to two tables outside Kafka and to a topic, and what they must have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import Producer

from sluice.kafka.topics import read_topic
from tests.faults.world import World, world

_PIPELINE = '''
from msgspec import Struct
from sluice import {kind}, Pipeline

class Sale(Struct):
    """A sale."""
    shop: str
    number: int

pipeline = Pipeline("shops")
sales = pipeline.stream("sales", value=Sale, key="shop")
sales.group_by("shop").count(store="n").select(n="value").to({kind}({totals}, key="shop"))
sales.to({kind}({sales}))
sales.to("copies")
'''


@dataclass
class Shops(World):
    """The pipeline. Its sales are numbered."""

    log: str = ""
    """The output's name of the table with all sales."""
    sent: int = 0

    def send(self, count: int) -> None:
        """Send sales of three shops."""
        producer = Producer(self.config)
        for number in range(self.sent, self.sent + count):
            shop = "abc"[number % 3]
            producer.produce(
                "sales", json.dumps({"shop": shop, "number": number}), shop, partition=number % 2
            )
        assert producer.flush(30) == 0
        self.sent += count

    def totals(self) -> dict[str, int]:
        """Shop → its number of sales, as the table has it."""
        raise NotImplementedError

    def numbers(self) -> list[int]:
        """The numbers of the sales in the table with all sales."""
        raise NotImplementedError

    def compare(self) -> str:
        """Compare the tables and the topic with the records that were sent."""
        assert self.totals() == Counter("abc"[number % 3] for number in range(self.sent))
        assert sorted(self.numbers()) == [*range(self.sent)]
        copies = [
            json.loads(message.value() or b"")["number"]
            for message in read_topic(self.config, "copies")
        ]
        assert sorted(copies) == [*range(self.sent)]
        with self.ledger() as ledger:
            snapshot = ledger.snapshots.latest(self.name)
            assert snapshot is not None
            audits = ledger.audits.all(snapshot.ref)
        assert sum(audit.outputs.get(self.log, 0) for audit in audits) == self.sent
        return f"the tables and the topic have each of {self.sent} records once, as audited"


S = TypeVar("S", bound=Shops)


@contextmanager
def running_shops(
    shops: type[S],
    folder: Path,
    environment: Mapping[str, str],
    kind: str,
    totals: str,
    sales: str,
    **own: Any,
) -> Iterator[S]:
    """The pipeline after ten sales. `kind`, `totals` and `sales` are its tables, as in Python; `own` are fields."""
    (folder / "jobs").mkdir()
    (folder / "jobs" / "shops.py").write_text(
        _PIPELINE.format(kind=kind, totals=totals, sales=sales)
    )
    with world("shops") as made:
        made.environment |= {"SLUICE_PIPELINES": str(folder / "jobs"), **environment}
        made.kafka.create_topics({"sales": 2})
        running = shops(made.folder, made.kafka, made.name, made.environment, **own)
        running.send(10)
        running.run()
        try:
            yield running
        finally:
            running.close()
