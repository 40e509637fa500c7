"""Output records that cannot be written: too large for their topic, or rejected by their encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from msgspec import Struct
from pyspark.sql import SparkSession

from sluice import Pipeline, Serde
from sluice.errors import EngineError
from sluice.kafka import dead_letter_topic
from sluice.kafka.topics import text_headers
from sluice.values.record_metadata import OnError
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, Names, Sale, sale, sales_of

LIMIT = 20_000


DIGESTS = "array_join(transform(sequence(1, quantity), n -> sha2(CAST(n AS STRING), 256)), '')"
"""A text that does not compress well, 64 characters for each `quantity`."""


class Noted(Struct):
    """A shop with a note as long as the sale's `quantity`."""

    shop: str
    note: str


def noted(sale: Sale) -> Noted:
    return Noted(sale.shop, "n" * sale.quantity)


def copied(on_error: OnError, note: str = "") -> Build:
    """Each sale counted, and copied with a note whose length depends on its `quantity`. `note` is an expression."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales = sales_of(pipeline, names)
        sales.group_by("shop").count(store="n")
        copies = sales.select("shop", note=note) if note else sales.map_values(noted, returns=Noted)
        copies.to(names("copies"), on_error=on_error)
        return pipeline

    return build


def with_small_topic(start: Start, build: Build) -> Running:
    running = start(build)
    running.kafka.create_topics(
        {running.names("copies"): 1},
        {"max.message.bytes": str(LIMIT), "compression.type": "uncompressed"},
    )
    return running


@pytest.mark.spark
def test_a_record_too_large_for_its_topic_fails_the_run_with_the_options(start: Start) -> None:
    running = with_small_topic(start, copied("fail", DIGESTS))
    # too large even after compression
    running.send("sales", sale("a"), sale("a", quantity=2_000))
    with pytest.raises(EngineError, match="size too large") as failed:
        running.run()
    assert 'on_error="dead_letter"' in failed.value.next_step
    assert running.output("copies") == []
    with running.ledger() as ledger:
        assert ledger.snapshots.latest(running.pipeline.name) is None


def test_a_record_too_large_for_its_topic_is_a_dead_letter(start: Start) -> None:
    running = with_small_topic(start, copied("dead_letter"))
    running.send(
        "sales", sale("a"), sale("a", quantity=LIMIT), sale("a", quantity=LIMIT - 1_000), sale("b")
    )
    assert running.run() == 4
    assert [len(value["note"]) for _, value in running.output("copies")] == [1, LIMIT - 1_000, 1]
    (letter,) = running.dead_letters()
    said = text_headers(letter)
    assert said["sluice.reason"] == "too_large"
    assert said["sluice.output"] == running.names("copies")
    assert said["sluice.detail"].endswith(f"accepts at most {LIMIT}")
    assert len(letter.value() or b"") > LIMIT
    assert running.store("n") == {"a": 3, "b": 1}
    assert running.counts(f"unwritten/{running.names('copies')}") == 1
    assert running.counts(f"output/{running.names('copies')}") == 3


def test_a_dead_letter_too_large_for_its_topic_fails_the_run_with_the_topic_to_change(
    start: Start,
) -> None:
    running = start(copied("dead_letter"))
    topic = dead_letter_topic.topic_of(running.pipeline.name)
    running.kafka.create_topics({topic: 1}, {"max.message.bytes": "200"})
    running.send("sales", b"{")
    with pytest.raises(EngineError, match="size too large") as failed:
        running.run()
    assert (
        "raise max.message.bytes of the pipeline's topic for dead letters" in failed.value.next_step
    )


def shifted(on_error: OnError) -> Build:
    """Each sale with its event time, which may be up to ten days in the future."""

    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline(max_future_skew="10 days")
        sales = pipeline.stream(names("sales"), value=Sale, event_time="at")
        sales.select("shop").to(names("copies"), on_error=on_error)
        return pipeline

    return build


def hours_ahead(hours: int) -> str:
    return (datetime.now(UTC) + timedelta(hours=hours)).replace(tzinfo=None).isoformat()


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_that_its_topic_does_not_accept_is_a_dead_letter(
    start: Start, delivery: str
) -> None:
    running = start(shifted("dead_letter"))
    running.settings = dataclasses.replace(running.settings, delivery=delivery)
    running.kafka.create_topics({running.names("copies"): 1}, {"cleanup.policy": "compact"})
    running.send("sales", sale("a", at=hours_ahead(0)), sale("ahead", at=hours_ahead(3)))
    running.send("sales", (None, sale("keyless", at=hours_ahead(0))))
    assert running.run() == 3
    assert [value["shop"] for _, value in running.output("copies")] == ["a"]
    letters = {
        text_headers(letter)["sluice.reason"]: text_headers(letter)
        for letter in running.dead_letters()
    }
    assert letters.keys() == {"timestamp", "null_key"}
    assert "at most 3600000 ms after the broker's clock" in letters["timestamp"]["sluice.detail"]
    assert letters["null_key"]["sluice.detail"].endswith("is compacted, so records need a key")
    assert running.counts(f"unwritten/{running.names('copies')}") == 2


def test_a_time_that_the_topic_does_not_accept_fails_the_run_with_the_options(start: Start) -> None:
    running = start(shifted("fail"))
    running.send("sales", sale("ahead", at=hours_ahead(3)))
    with pytest.raises(EngineError, match="Invalid timestamp") as failed:
        running.run()
    assert "message.timestamp.after.max.ms" in failed.value.next_step


def test_many_small_records_fit_a_topic_with_a_small_limit(start: Start) -> None:
    running = with_small_topic(start, copied("fail"))
    running.send("sales", *(sale(f"shop {n}", quantity=100) for n in range(2_000)))
    running.run()
    assert len(running.output("copies")) == 2_000


def test_the_largest_possible_record_can_be_a_dead_letter(start: Start) -> None:
    running = start(copied("fail"))
    largest = b"x" * 1_048_400
    producer = Producer({"bootstrap.servers": running.bootstrap, "message.max.bytes": 2_000_000})
    producer.produce(running.names("sales"), largest)
    assert producer.flush(20) == 0
    assert running.run() == 1
    assert [letter.value() for letter in running.dead_letters()] == [largest]


def no_odd_amounts(value: dict[str, Any]) -> bytes:
    if value["amount"] % 2:
        raise ValueError(f"{value['amount']} is odd")
    return str(value["amount"]).encode()


def encoding(on_error: OnError) -> Build:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        even = Serde(dict, encode=no_odd_amounts)
        sales_of(pipeline, names).select("amount").to(
            names("copies"), value=even, on_error=on_error
        )
        return pipeline

    return build


def test_an_encoder_that_raises_fails_the_run(start: Start) -> None:
    running = start(encoding("fail"))
    running.send("sales", sale("a", 2), sale("b", 3))
    with pytest.raises(EngineError, match=r"cannot be encoded: ValueError: 3.* is odd"):
        running.run()
    assert running.output("copies") == []


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_record_that_the_encoder_rejects_is_a_dead_letter(start: Start, delivery: str) -> None:
    running = start(encoding("dead_letter"))
    running.settings = dataclasses.replace(running.settings, delivery=delivery)
    running.send("sales", sale("a", 2), sale("b", 3), sale("c", 4))
    running.run()
    assert [key for key, _ in running.output("copies")] == ["a", "c"]
    (letter,) = running.dead_letters()
    assert letter.key() == b"b"
    headers = text_headers(letter)
    assert (headers["sluice.reason"], headers["sluice.output"]) == (
        "not_encoded",
        running.names("copies"),
    )
    assert headers["sluice.detail"].startswith("ValueError: 3")
    assert headers["sluice.at"].startswith("test_write_errors.py:")
    counts = {
        name: running.counts(f"{name}/{running.names('copies')}")
        for name in ("output", "unwritten")
    }
    assert counts == {"output": 2, "unwritten": 1}


def test_a_record_that_the_encoder_rejects_is_only_counted_with_skip(start: Start) -> None:
    running = start(encoding("skip"))
    running.send("sales", sale("a", 2), sale("b", 3))
    running.run()
    assert [key for key, _ in running.output("copies")] == ["a"]
    assert running.dead_letters() == []
    assert running.counts(f"unwritten/{running.names('copies')}") == 1


@contextmanager
def results_of_at_most(spark: SparkSession, size: str) -> Iterator[None]:
    """Lower the limit that Spark sets to the results that tasks return to the driver."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.driver.maxResultSize", size)
    yield
    conf.remove("spark.driver.maxResultSize")


@pytest.mark.spark
def test_a_batchs_output_may_exceed_the_results_that_spark_returns(start: Start) -> None:
    def build(names: Names) -> Pipeline:
        pipeline = names.pipeline()
        sales = sales_of(pipeline, names)
        sales.deduplicate("quantity", within="1 ms").select("shop", note=DIGESTS).to(
            names("copies")
        )
        return pipeline

    running = start(build)
    running.send("sales", *(sale("a", quantity=number) for number in range(1, 101)))
    with results_of_at_most(running.spark, "128k"):
        running.run()
    assert sum(len(value["note"]) for _, value in running.output("copies")) > 300_000
    assert len(running.output("copies")) == 100
