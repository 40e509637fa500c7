"""A backlog of several topics gives the same results for any size of batches.

`make backlog` runs 100,000 records in batches of 1,000 and of 10,000 and in one.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from sluice import Pipeline, within
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.errors import LeaseError
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names

RECORDS = int(os.environ.get("BACKLOG", "300"))
BATCHES = [RECORDS // 10, RECORDS // 100] if RECORDS > 10_000 else [130]
START_MS = 1_670_000_000_000
PARTITIONS = {"orders": 3, "payments": 2, "customers": 2}


class Order(msgspec.Struct):
    number: int


class Payment(msgspec.Struct):
    cents: int


class Customer(msgspec.Struct):
    version: int


def joins(names: Names) -> Pipeline:
    """Orders joined with customers and with payments, and the number of the last order."""
    pipeline = names.pipeline()
    orders = pipeline.stream(names("orders"), value=Order)
    payments = pipeline.stream(names("payments"), value=Payment)
    customers = pipeline.table(names("customers"), value=Customer, store="customers")
    orders.left_join(customers).select(number="left.number", version="right.version").to(
        names("with_customer")
    )
    paid = orders.join(payments, within("20 seconds", grace="1 minute"))
    paid.select(number="left.number", cents="right.cents").to(names("paid"))
    orders.group_by_key().reduce(later, store="last_order")
    return pipeline


def later(last: Order, order: Order) -> Order:
    return order


@dataclass
class Traffic:
    """Records of all topics.

    Payments are written in transactions, whose control records have today's date.
    """

    running: Running
    chance: random.Random

    def send_all(self, *counts: int) -> None:
        at = START_MS
        for count in counts:
            at = self.send(count, at)

    def send(self, count: int, begin_ms: int = START_MS) -> int:
        """Write records, some in the same millisecond. Returns the time of the last one."""
        common = {"bootstrap.servers": self.running.bootstrap, "log_level": 0, "linger.ms": 5}
        in_transactions = {**common, "transactional.id": self.running.names.prefix}
        plain, payments = (
            Producer({**common, "enable.idempotence": True}),
            Producer(in_transactions),
        )
        payments.init_transactions(20)
        at = begin_ms
        at_once = max(count // 20, 50)
        for begin in range(0, count, at_once):
            payments.begin_transaction()
            for number in range(begin, min(begin + at_once, count)):
                at += self.chance.choice([0, 0, 1, 700])
                topic = self.chance.choices(list(PARTITIONS), [4, 3, 1])[0]
                value = {
                    "orders": Order(number),
                    "payments": Payment(number),
                    "customers": Customer(number),
                }[topic]
                producer = payments if topic == "payments" else plain
                producer.produce(
                    self.running.names(topic), key=f"c{self.chance.randrange(20)}", value=msgspec.json.encode(value),
                    partition=self.chance.randrange(PARTITIONS[topic]), timestamp=at,
                )  # fmt: skip
                producer.poll(0)
            assert (
                payments.flush(20) == 0
            )  # the topic also contains the records of an aborted transaction
            # One transaction in six is aborted.
            if self.chance.random() < 1 / 6:
                payments.abort_transaction(20)
            else:
                payments.commit_transaction(20)
        assert plain.flush(20) == 0
        Producer(in_transactions).init_transactions(
            20
        )  # waits until readers can see the last transaction's records
        return at


def results(running: Running) -> dict[str, Any]:
    """All stores, and the records of every output by partition, in order."""
    results: dict[str, Any] = {store: running.store(store) for store in ("customers", "last_order")}
    for topic in ("with_customer", "paid"):
        messages = running.messages(running.names(topic))
        results[topic] = [
            (each.partition(), each.key(), each.value(), each.timestamp()[1]) for each in messages
        ]
    return results


def sizes(running: Running) -> list[int]:
    return [snapshot.counts["read"] for snapshot in running.snapshots()]


def started(start: Start, *, seed: int = 1) -> tuple[Running, Traffic]:
    running = start(joins, **PARTITIONS)
    return running, Traffic(running, random.Random(seed))


def in_one_batch(start: Start, *counts: int) -> dict[str, Any]:
    """The results of the same records in one batch."""
    running, traffic = started(start)
    traffic.send_all(*counts)
    running.run()
    assert len(running.snapshots()) == 1
    return results(running)


@pytest.mark.heavy  # test_an_unfinished_batch_keeps_its_end_after_a_crash compares several batches with one, too
def test_results_do_not_depend_on_the_size_of_batches(start: Start) -> None:
    expected = in_one_batch(start, RECORDS)
    assert len(expected["paid"]) > RECORDS / 100
    assert len({version for _, _, version, _ in expected["with_customer"]}) > 10
    for most in BATCHES:
        running, traffic = started(start)
        traffic.send(RECORDS)
        running.run(max_records=most)
        assert len(sizes(running)) > 1
        assert max(sizes(running)) <= most
        assert results(running) == expected, most


class Crash(Exception):
    """Stands for the death of the driver."""


def crash(
    monkeypatch: pytest.MonkeyPatch,
    running: Running,
    where: type,
    method: str,
    batch: int,
    most: int,
) -> Any:
    """Crash a run in a batch. Returns the end offsets of this batch."""
    real = getattr(where, method)

    def die(self: Any, *arguments: Any) -> Any:
        if running.planned().number == batch:
            raise Crash("in the middle")
        return real(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(where, method, die)
        with pytest.raises(Exception, match="Crash"):
            running.run(max_records=most)
    assert len(running.snapshots()) == batch
    return running.planned().ends


def test_an_unfinished_batch_keeps_its_end_after_a_crash(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = in_one_batch(start, 40, 100)
    running, traffic = started(start)
    at = traffic.send(40)
    running.run()
    traffic.send(100, at)
    ends = {
        1: crash(monkeypatch, running, TransactionalOutput, "send", batch=1, most=40),
        # The next run completes that batch, divides the remaining records again, and crashes while
        # it writes output.
        2: crash(monkeypatch, running, Snapshots, "publish", batch=2, most=30),
    }
    running.run(max_records=15)
    assert {batch: running.snapshots()[batch].positions for batch in ends} == ends
    assert max(sizes(running)[3:]) <= 15
    with running.ledger() as ledger:
        audits = ledger.audits.recent(GenerationRef(running.pipeline.name, 1), 100)
    published = {snapshot.batch: snapshot.published_at for snapshot in running.snapshots()}
    # Batch 3 and the following ones have the same clock. The phases of each begin after the batch
    # before.
    following = [audit for audit in audits if audit.batch > 3]
    assert following
    for audit in following:
        between = published[audit.batch] - published[audit.batch - 1]
        assert sum(audit.phases.values()) <= between / timedelta(milliseconds=1) + 100
    assert results(running) == expected
    # The history has the end of each batch: a rebuild repeats the batches and compares the
    # checksums.
    job = plan(running.pipeline).job
    assert Rebuild(running.spark, job, running.settings).run() == 2
    assert results(running) == expected


def test_a_driver_without_the_lease_begins_no_batch(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, traffic = started(start)
    traffic.send(150)
    real = Snapshots.publish

    def lose(self: Snapshots, *arguments: Any) -> bool:
        new = real(self, *arguments)
        running.take_lease()
        return new

    monkeypatch.setattr(Snapshots, "publish", lose)
    with pytest.raises(LeaseError):
        running.run(max_records=60)
    assert running.planned().number == 0


def test_a_rebuild_without_the_history_divides_the_records_in_order(start: Start) -> None:
    running, traffic = started(start)
    traffic.send(150)
    running.run()
    expected = results(running)
    with running.ledger() as ledger, ledger.engine.connect() as connection:
        connection.exec_driver_sql("DELETE FROM history")
        connection.commit()
    job = plan(running.pipeline).job
    settings = replace(running.settings, max_records=60)
    assert Rebuild(running.spark, job, settings).run() == 2  # the rebuild compares the checksums
    assert results(running) == expected
    with running.ledger() as ledger:
        audits = ledger.audits.all(GenerationRef(running.pipeline.name, 2))
    assert [sum(source.read for source in audit.sources) <= 60 for audit in audits] == [True] * 3
