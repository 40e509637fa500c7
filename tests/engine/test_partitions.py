"""Output records go to the partition that a function chooses, and by default to that of Kafka's hash of the key."""

from __future__ import annotations

import pytest

from sluice import Pipeline
from sluice.engine.read import kafka_input
from sluice.state.model import GenerationRef
from tests.engine.conftest import Start
from tests.engine.shop import Amount, Names


def spread(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=2)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    amounts.to(names("by_number"), partition=lambda amount: amount["n"])
    amounts.to(names("by_key"))
    return pipeline


def test_a_function_chooses_the_partition_of_a_record(start: Start) -> None:
    running = start(spread, amounts=3)
    running.send("amounts", *((f"k{number % 3 + 1}", b'{"n":%d}' % number) for number in range(6)))
    assert running.run() == 6
    by_number = running.messages(running.names("by_number"))
    assert sorted((message.partition(), message.value()) for message in by_number) == [
        (number % 3, b'{"n":%d}' % number) for number in (0, 3, 1, 4, 2, 5)
    ]
    # Kafka's Java clients send these keys to the same partitions: murmur2(key) mod 3.
    by_key = {
        (message.key(), message.partition())
        for message in running.messages(running.names("by_key"))
    }
    assert by_key == {(b"k1", 2), (b"k2", 0), (b"k3", 1)}


def counted(names: Names) -> Pipeline:
    pipeline = names.pipeline(workers=2)
    amounts = pipeline.stream(names("amounts"), value=Amount)
    amounts.group_by_key().aggregate(total="sum(n)", store="sums")
    amounts.to(names("copies"))
    return pipeline


def test_a_task_reads_several_partitions_if_there_are_many(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_input, "MOST_TASKS", 1)
    running = start(counted, amounts=9)
    for partition in range(9):
        numbers = range(partition, partition + 3)
        running.send(
            "amounts",
            *((f"k{number % 2}", b'{"n":%d}' % number) for number in numbers),
            partition=partition,
        )
    assert running.run() == 27
    totals = [sum(n for p in range(9) for n in range(p, p + 3) if n % 2 == key) for key in (0, 1)]
    assert running.store("sums") == {"k0": {"total": totals[0]}, "k1": {"total": totals[1]}}
    with running.ledger() as ledger:
        (audit,) = ledger.audits.all(GenerationRef(running.pipeline.name, 1))
    assert sorted((source.partition, source.read) for source in audit.sources) == [
        (number, 3) for number in range(9)
    ]
