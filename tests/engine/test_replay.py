"""A repeated batch changes nothing, and results do not depend on the division into batches."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from sluice import Pipeline, session
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.publisher import Publisher
from sluice.errors import EngineError, StateError
from sluice.operations.rebuild import Rebuild
from sluice.plan import plan
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.remote.opening import open_shard
from tests.engine.conftest import Running, Start
from tests.engine.shop import Build, Names, Sale, Shop, address, sale, sales_of, shop, simple_shop


def a_busy_day(running: Running) -> None:
    """Sales out of order, some late, some invalid, in three partitions, with addresses."""
    rng = random.Random(7)
    running.send("shops", *(address(key, f"city of {key}") for key in "abc"))
    for partition in range(3):
        records = []
        for minute in range(20):
            late = rng.choice([0, 0, 0, 1, 5])
            at = f"08:{max(minute - late, 0):02}:{rng.randrange(60):02}"
            records.append(
                sale(rng.choice("abcd"), f"{rng.randrange(1, 900)}.{rng.randrange(100):02}", at=at)
            )
        records[5:5] = [b"{", sale("a", "1.005")]
        running.send("sales", *records, partition=partition)


def in_order(names: Names) -> Pipeline:
    """Only operators, in two stages: sessions, a Python aggregate, a regrouped table, a join."""
    pipeline = names.pipeline()
    sales = sales_of(pipeline, names)
    shops = pipeline.table(names("shops"), value=Shop, key="shop", store="shop")
    by_shop = sales.group_by("shop")
    by_shop.windowed_by(session("3 minutes", grace="1 minute")).count(store="visits")
    by_shop.reduce(larger, store="largest")
    shops.group_by("city").count(store="shops_in_city")
    sales.join(shops).select(amount="left.amount", city="right.city").to(names("with_city"))
    return pipeline


def larger(so_far: Sale, sale: Sale) -> Sale:
    return max(so_far, sale, key=lambda one: one.amount)


@pytest.mark.spark
@pytest.mark.parametrize("build", [pytest.param(shop, marks=pytest.mark.heavy), in_order])
def test_another_host_repeats_exactly_the_planned_batch(build: Build, start: Start) -> None:
    running = start(build, sales=3)
    a_busy_day(running)
    running.run()
    running.send("shops", address("a", "elsewhere"), (b"b", None))
    running.send("sales", sale("a", "950", at="08:30:00"), sale("b", at="08:00:00"), b"{")
    running.crash_before_publishing()
    planned, written = running.planned(), written_by(running)
    running.send("sales", sale("c", at="08:30:00"))  # is not part of the batch
    assert running.run() == 6
    repeated = running.snapshots()[1]
    assert (repeated.positions, repeated.counts["read"]) == (planned.ends, 5)
    now = written_by(running)
    assert all(written[topic] <= now[topic] for topic in now)
    added = Counter(value for topic in now for _, value in (now[topic] - written[topic]).elements())
    assert all(b'"c"' in value or b"city of c" in value for value in added), (
        "no record is written twice"
    )
    assert now[running.pipeline.dead_letters] == written[running.pipeline.dead_letters]
    before = running.everything()
    Rebuild(
        running.spark, plan(running.pipeline).job, running.settings
    ).run()  # compares the checksums
    assert running.everything()["stores"] == before["stores"]


def written_by(running: Running) -> dict[str, Counter[tuple[Any, Any]]]:
    """The records of every output, and the dead letters."""
    topics = (*plan(running.pipeline).job.outputs, running.pipeline.dead_letters)
    return {
        topic: Counter((each.key(), each.value()) for each in running.messages(topic))
        for topic in topics
    }


@pytest.mark.heavy
def test_results_do_not_depend_on_the_batches(start: Start) -> None:
    whole, parts = start(shop, sales=3), start(shop, sales=3)
    for running in (whole, parts):
        a_busy_day(running)
    whole.run()
    parts.run(max_records=20)
    assert len(whole.snapshots()) == 1
    assert len(parts.snapshots()) > 2
    for store in ("n", "total", "n_window", "shops"):
        assert whole.store(store) == parts.store(store), store
    assert {*_sum(whole)} >= {"late/n_window", "dead_letter/malformed", "dead_letter/digits"}
    assert _sum(whole) == _sum(parts)
    assert _plain(whole, whole.snapshot().stream_times) == _plain(
        parts, parts.snapshot().stream_times
    )
    assert sorted(whole.output("copies"), key=str) == sorted(parts.output("copies"), key=str)
    # With fewer batches, there are fewer intermediate results, but the final ones are the same.
    assert dict(whole.output("with_city")) == dict(parts.output("with_city"))
    assert sorted(whole.reasons()) == sorted(parts.reasons())


def _sum(running: Running) -> dict[str, int]:
    """A count, summed over all snapshots."""
    names = {
        name
        for snapshot in running.snapshots()
        for name in snapshot.counts
        if not name.startswith(("output/", "rows"))
    }
    return {name: running.counts(name) for name in names}


def _plain(running: Running, by_topic: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(running.names.prefix, ""): value for name, value in by_topic.items()}


class Crash(Exception):
    """Stands for the death of the driver."""


@pytest.mark.parametrize(
    ("where", "method"),
    [
        pytest.param(Publisher, "_write_shards", id="while output is sent, before the shards"),
        pytest.param(TransactionalOutput, "send", id="after the shards, before the output"),
        # tests/faults/test_run_samples.py has a run that ends there, too.
        pytest.param(
            Snapshots, "publish", id="after the output, before the ledger", marks=pytest.mark.heavy
        ),
    ],
)
def test_a_crash_during_a_batch_changes_no_result(
    start: Start, monkeypatch: pytest.MonkeyPatch, where: type, method: str
) -> None:
    running = start(shop)
    running.send("shops", address("a", "Aachen"))
    running.send("sales", sale("a", "1.50"), b"{")
    running.run()
    before = running.everything()
    running.send("sales", sale("a", "2.50"), sale("b"), b"[")

    def crash(*_: object) -> None:
        raise Crash("in the middle")

    with monkeypatch.context() as patched:
        patched.setattr(where, method, crash)
        with pytest.raises(Exception, match="Crash"):
            running.run()
    # Queries read the complete previous batch, and readers of the output do not wait for a
    # transaction. Output is committed before the ledger.
    after = running.everything()
    unchanged = ["stores", "snapshots"] if where is Snapshots else [*before]
    assert {what: after[what] for what in unchanged} == {what: before[what] for what in unchanged}

    assert running.run() == 3
    assert running.store("total") == {"a": {"n": 2, "amount": 4.0}, "b": {"n": 1, "amount": 1.0}}
    assert [value["amount"] for _, value in running.output("copies")] == [1.5, 2.5, 1.0]
    assert [value["amount"] for _, value in running.output("with_city")] == [1.5, 4.0]
    assert running.reasons() == ["malformed", "contract"]


def test_an_aborted_transaction_of_the_source_is_never_counted(start: Start) -> None:
    running = start(simple_shop)
    producer = Producer(
        {
            "bootstrap.servers": running.bootstrap,
            "transactional.id": running.names.prefix,
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    for key, end in (("a", producer.abort_transaction), ("b", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(running.names("sales"), value=sale(key))
        producer.flush(20)
        end(20)
    assert running.run() == 1
    assert running.store("n") == {"b": 1}
    assert running.run() == 0  # control records of transactions are not counted


def test_a_lost_shard_is_an_error(start: Start) -> None:
    running = start(simple_shop)
    running.send("sales", sale("a"), sale("b"), sale("c"))
    running.run()
    with running.ledger() as ledger:
        (lost, _) = ledger.generations.workers(running.pipeline.name)
    for file in list(running.settings.home.rglob("worker-0.sqlite*")):
        file.unlink()
    running.send("sales", sale("a"))
    with pytest.raises(StateError):
        running.run()
    with pytest.raises(StateError):
        open_shard(lost.location)


def test_a_lost_ledger_is_an_error(start: Start) -> None:
    running = start(simple_shop, sales=1)
    running.send("sales", sale("a", "1.10"))
    running.run()
    for file in Path(running.settings.home).glob("ledger.sqlite*"):
        file.unlink()
    running.send("sales", sale("a", "2.20"))
    with pytest.raises(
        EngineError, match="has written its output, but the ledger does not have this batch"
    ):
        running.run()
