"""Faults of the input: topics, partitions, transactions, backlogs."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sluice import Pipeline
from sluice.engine.read.source_identity import InputError
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names, by_shop, sale, shop
from tests.faults.conftest import Observe
from tests.faults.truth import compare
from tests.faults.world import World


def recreate(running: Running, records: int) -> None:
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("sales")
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    running.kafka.create_topics({topic: 1})
    running.send("sales", *(sale("z") for _ in range(records)))


@pytest.mark.heavy
@pytest.mark.fault(
    "F8", "the topic is recreated with fewer records, with more records, and deleted"
)
def test_a_recreated_topic(start: Start, observe: Observe) -> None:
    for records in (2, 50):
        running = start(shop)
        running.send("sales", *(sale("a") for _ in range(10)))
        running.run()
        before = running.everything()
        recreate(running, records)
        with pytest.raises(InputError, match="was deleted and created again"):
            running.run()
        assert running.everything() == before
    admin, topic = AdminClient({"bootstrap.servers": running.bootstrap}), running.names("sales")
    admin.delete_topics([topic])[topic].result(20)
    while topic in admin.list_topics(timeout=20).topics:
        time.sleep(0.02)
    with pytest.raises(InputError, match="was deleted"):
        running.run()
    observe(
        "all three runs were rejected with the options; the published state and the outputs did not change"
    )


@pytest.mark.heavy
@pytest.mark.fault(
    "F9", "Kafka's retention deletes the records 4 to 8 of a partition before they are read"
)
def test_unread_records_that_were_deleted(start: Start, observe: Observe) -> None:
    running = start(shop)
    running.send("sales", *(sale("a") for _ in range(4)))
    running.run()
    running.send("sales", *(sale("a") for _ in range(8)))
    admin, position = (
        AdminClient({"bootstrap.servers": running.bootstrap}),
        TopicPartition(running.names("sales"), 0, 9),
    )
    admin.delete_records([position])[position].result(20)
    with pytest.raises(
        InputError, match=r"partition 0, offsets 4 to 8 \(at most 5 records"
    ) as error:
        running.run()
    assert running.store("n") == {"a": 4}
    observe(f"rejected: {error.value.detail}")


@pytest.mark.heavy
@pytest.mark.fault(
    "F10", "a batch fails while it is published, and the topic gets 8 partitions instead of 4"
)
def test_more_partitions_after_a_failed_batch(start: Start, observe: Observe) -> None:
    running = start(shop, sales=4)
    for partition in range(4):
        running.send("sales", *(sale(f"k{n}") for n in range(8)), partition=partition)
    running.crash_before_publishing()
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
    observe(
        "the batch was repeated, then the new partitions were read: all 96 records were counted and copied once"
    )


def totals_only(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    by_shop(pipeline, names).aggregate(store="total", amount="sum(amount)")
    return pipeline


@pytest.mark.heavy
@pytest.mark.fault(
    "F23", "transactions in the source: two aborted, one committed between them, one open"
)
def test_aborted_transactions(start: Start, observe: Observe) -> None:
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
    observe(
        "only records of committed transactions were counted; the audits balance despite the gaps"
    )


@pytest.mark.heavy
@pytest.mark.fault("F20", "a backlog of 200,000 orders, with at most 20,000 per batch")
def test_a_backlog(orders: World, observe: Observe) -> None:
    import psutil

    bound = 20_000
    orders.produce(200_000, stores=200)
    driver = orders.start(SLUICE_MAX_RECORDS=str(bound))
    sizes: list[tuple[int, int]] = []
    while driver.runs:
        processes = [process for process in (driver.java(), driver.python()) if process is not None]
        try:
            sizes.append(
                (orders.published(), sum(process.memory_info().rss for process in processes) >> 20)
            )
        except psutil.NoSuchProcess:
            break
        time.sleep(0.3)
    assert driver.wait() == 0, driver.output[-2000:]
    with orders.ledger() as ledger:
        reads = [
            snapshot.counts["read"] for snapshot in ledger.snapshots.recent("orders", limit=1000)
        ]
    assert max(reads) <= bound + 200 + 4  # records of the global table `stores` come in addition
    early = max(size for batch, size in sizes if batch in (1, 2, 3))
    late = max(size for batch, size in sizes if batch >= 6)
    assert late < early * 1.3, sizes
    assert driver.output.count("batch published") == len(reads)
    comparison = compare(orders)
    memory = f"JVM and Python used {early} MiB in batches 1 to 3, {late} MiB from batch 6 on"
    observe(f"{len(reads)} batches of at most {max(reads):,} records; {memory}; {comparison}")


@pytest.mark.heavy
@pytest.mark.fault("F21", "two runs without new records")
def test_runs_without_new_records_change_nothing(start: Start, observe: Observe) -> None:
    running = start(shop)
    running.send("sales", sale("a"))
    running.run()
    before = running.everything()
    leases = []
    for _ in range(2):
        assert running.run() == 0
        with running.ledger() as ledger:
            leases.append(ledger.leases.get(GenerationRef(running.pipeline.name, 1)))
    assert running.everything() == before
    assert leases[0] is not None
    assert leases[1] is not None
    assert leases[1].epoch == leases[0].epoch + 1
    assert not leases[1].held
    observe(f"no snapshot and no output; both drivers took and released the lease: {leases[1]}")


@pytest.mark.heavy
@pytest.mark.fault("F22", "one key has 90 % of 300,000 records; then a run has 1,000,000 keys")
def test_skew_and_many_keys(start: Start, observe: Observe) -> None:
    runs = []
    for number, every in ((300_000, 10), (1_000_000, 1)):
        running = start(totals_only, sales=4)
        producer = Producer(
            {
                "bootstrap.servers": running.bootstrap,
                "linger.ms": 50,
                "queue.buffering.max.messages": 2_000_000,
            }
        )
        for n in range(number):
            producer.produce(
                running.names("sales"),
                sale("hot" if n % every else f"k{n}", "1.00"),
                partition=n % 4,
            )
            if n % 10_000 == 0:
                producer.poll(0)
        assert producer.flush(60) == 0
        begin = time.monotonic()
        assert running.run() == number
        seconds = time.monotonic() - begin
        store = running.store("total")
        assert sum(value["amount"] for value in store.values()) == number
        runs.append(f"{number:,} records, {len(store):,} keys in {seconds:.0f} s")
    observe("; ".join(runs))
