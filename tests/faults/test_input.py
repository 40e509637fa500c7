"""Faults of what is read: topics, partitions, transactions, versions, backlogs."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sluice import Pipeline
from sluice.engine.read.identity import InputError
from sluice.state.ledger.snapshots import Snapshots
from sluice.state.model import JobRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, by_shop, sale, shop
from tests.faults.conftest import Seen
from tests.faults.truth import compare
from tests.faults.world import World


def make_anew(running: Running, records: int) -> None:
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("sales")
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    running.kafka.create_topics({topic: 1})
    running.send("sales", *(sale("z") for _ in range(records)))


@pytest.mark.heavy
@pytest.mark.fault("F8", "the topic is made anew with fewer, with more records; it is deleted")
def test_a_topic_made_anew(start: Start, seen: Seen) -> None:
    said = []
    for records in (2, 50):
        running = start(shop)
        running.send("sales", *(sale("a") for _ in range(10)))
        running.run()
        before = running.everything()
        make_anew(running, records)
        with pytest.raises(InputError, match="was deleted and created again") as refused:
            running.run()
        assert running.everything() == before
        said.append(str(refused.value).split(":")[0])
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("sales")
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    with pytest.raises(InputError, match="was deleted"):
        running.run()
    seen("refused all three, with the choices; the published state and the outputs as they were")


@pytest.mark.heavy
@pytest.mark.fault("F9", "retention has taken records 4 to 8 of a partition before they were read")
def test_retention_has_passed(start: Start, seen: Seen) -> None:
    running = start(shop)
    running.send("sales", *(sale("a") for _ in range(4)))
    running.run()
    running.send("sales", *(sale("a") for _ in range(8)))
    admin, place = AdminClient({"bootstrap.servers": running.bootstrap}), TopicPartition(running.names("sales"), 0, 9)
    admin.delete_records([place])[place].result(20)
    with pytest.raises(InputError, match="partition 0, offsets 4 to 8: 5 of them") as refused:
        running.run()
    assert running.store("n") == {"a": 4}
    seen(f"refused: {refused.value.detail}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F10", "a batch fails in mid-publishing, the topic gets 8 partitions instead of 4, more records come"
)
def test_more_partitions_after_a_failed_batch(start: Start, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(shop, sales=4)
    for partition in range(4):
        running.send("sales", *(sale(f"k{n}") for n in range(8)), partition=partition)
    monkeypatch.setattr(Snapshots, "publish", _crash)
    with pytest.raises(Exception, match="crash"):
        running.run()
    monkeypatch.undo()
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("sales")
    admin.create_partitions([NewPartitions(topic, 8)])[topic].result(20)
    while len(admin.list_topics(timeout=20).topics[topic].partitions) < 8:
        time.sleep(0.02)
    running.__post_init__()  # a producer that knows the new partitions
    for partition in range(8):
        running.send("sales", *(sale(f"k{n}") for n in range(8)), partition=partition)
    assert running.run() == 12 * 8
    assert running.store("n") == {f"k{n}": 12 for n in range(8)}
    assert running.run() == 0
    assert len(running.output("copies")) == 12 * 8
    seen(
        "the failed batch done again, then the new partitions: every key counted 12 times of 12, 96 records copied once"
    )


def totals_only(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    by_shop(pipeline, names).aggregate(store="total", amount="sum(amount)")
    return pipeline


def _crash(*_: object) -> None:
    raise RuntimeError("crash")


@pytest.mark.heavy
@pytest.mark.fault("F23", "transactions in the source: two aborted, one committed between them, one left open")
def test_aborted_transactions(start: Start, seen: Seen) -> None:
    running = start(shop)
    config = {"bootstrap.servers": running.bootstrap, "log_level": 0}
    producer = Producer({**config, "transactional.id": running.names.prefix})
    producer.init_transactions(20)
    for key, end in (
        ("a", producer.abort_transaction),
        ("b", producer.commit_transaction),
        ("c", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(running.names("sales"), value=sale(key))
        producer.flush(20)
        end(20)
    left_open = Producer({**config, "transactional.id": f"{running.names.prefix}.open"})
    left_open.init_transactions(20)
    left_open.begin_transaction()
    left_open.produce(running.names("sales"), value=sale("d"))
    left_open.flush(20)
    assert running.run() == 1
    assert running.store("n") == {"b": 1}
    left_open.commit_transaction(20)
    assert running.run() == 1
    assert running.store("n") == {"b": 1, "d": 1}
    seen("counted: the committed one, and the open one once it was committed; the audits balance with the gaps")


@pytest.mark.heavy
@pytest.mark.fault("F20", "a backlog of 200,000 orders where batches of 20,000 are usual")
def test_a_backlog(orders: World, seen: Seen) -> None:
    import psutil

    bound = 20_000
    orders.produce(200_000, stores=200)
    driver = orders.start(SLUICE_MAX_RECORDS=str(bound))
    sizes: list[tuple[int, int]] = []
    while driver.runs:
        members = [one for one in (driver.java(), driver.python()) if one is not None]
        try:
            sizes.append((orders.published(), sum(one.memory_info().rss for one in members) >> 20))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.3)
    assert driver.wait() == 0, driver.said[-2000:]
    with orders.ledger() as ledger:
        reads = [snapshot.counts["read"] for snapshot in ledger.snapshots.recent("orders", "main", limit=1000)]
    assert max(reads) <= bound + 200 + 4  # the stores come on top
    early = max(size for batch, size in sizes if batch in (1, 2, 3))
    late = max(size for batch, size in sizes if batch >= 6)
    assert late < early * 1.3, sizes
    assert driver.said.count("batch published") == len(reads)
    found = compare(orders)
    memory = f"JVM and Python {early} MiB in batches 1 to 3, {late} MiB from batch 6 on"
    seen(f"{len(reads)} batches of at most {max(reads):,}, each with its line in the log; {memory}; {found}")


@pytest.mark.heavy
@pytest.mark.fault("F21", "two runs without a new record")
def test_no_data(start: Start, seen: Seen) -> None:
    running = start(shop)
    running.send("sales", sale("a"))
    running.run()
    before = running.everything()
    leases = []
    for _ in range(2):
        assert running.run() == 0
        with running.ledger() as ledger:
            leases.append(ledger.leases.get(JobRef(running.pipeline.name, "main", 1)))
    assert running.everything() == before
    assert leases[0] is not None
    assert leases[1] is not None
    assert leases[1].epoch == leases[0].epoch + 1
    assert not leases[1].held
    seen(f"no snapshot, no output; the ledger tells that drivers came and went: {leases[1]}, its lease released")


@pytest.mark.heavy
@pytest.mark.fault("F22", "one key with 90 % of 300,000 records; then 1,000,000 keys in one run")
def test_skew_and_many_keys(start: Start, seen: Seen) -> None:
    said = []
    for number, every in ((300_000, 10), (1_000_000, 1)):
        running = start(totals_only, sales=4)
        producer = Producer(
            {"bootstrap.servers": running.bootstrap, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
        )
        for n in range(number):
            producer.produce(running.names("sales"), sale("hot" if n % every else f"k{n}", "1.00"), partition=n % 4)
            if n % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        begun = time.monotonic()
        assert running.run() == number
        seconds = time.monotonic() - begun
        store = running.store("total")
        assert sum(value["amount"] for value in store.values()) == number
        said.append(f"{number:,} records, {len(store):,} keys in {seconds:.0f} s")
    seen("; ".join(said))
