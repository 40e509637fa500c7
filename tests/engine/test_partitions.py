"""Output records go to the partition that a function chooses, and by default to that of Kafka's hash of the key."""

from __future__ import annotations

from sluice import Pipeline
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
    by_key = {(message.key(), message.partition()) for message in running.messages(running.names("by_key"))}
    assert by_key == {(b"k1", 2), (b"k2", 0), (b"k3", 1)}
