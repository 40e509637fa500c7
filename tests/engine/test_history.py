"""A rebuild repeats the original batches: same ends, same clock, same results.

It never repeats output.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from msgspec import Struct

from sluice import Pipeline
from sluice.engine.batch.job_topics import TopicLimits
from sluice.engine.publish.kafka_transaction import TransactionalOutput
from sluice.engine.publish.markers import Writer
from sluice.engine.run.driver_lease import Lease
from sluice.engine.run.job_run import JobRun
from sluice.errors import EngineError, LeaseError
from sluice.operations.rebuild import Rebuild
from sluice.operations.snapshot_retention import retain
from sluice.plan import plan
from sluice.state.ledger.generations import Generations
from sluice.state.ledger.history import Batch
from sluice.state.model import GenerationRef
from tests.engine.conftest import Running, Start
from tests.engine.shop import Names


class Item(Struct):
    n: int | None = None


def counted(names: Names, **how: Any) -> Pipeline:
    """Every record copied, and counted by key."""
    pipeline = names.pipeline(**how)
    items = pipeline.stream(names("items"), value=Item)
    items.group_by_key().count(store="n")
    items.to(names("copies"))
    return pipeline


def rebuild(running: Running, **how: Any) -> int:
    job = plan(running.pipeline).job
    return Rebuild(running.spark, job, running.settings, **how).run()


def abort_some(running: Running) -> None:
    """Append aborted records only."""
    producer = Producer(
        {
            "bootstrap.servers": running.bootstrap,
            "transactional.id": running.names.prefix,
            "log_level": 0,
        }
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(running.names("items"), key=b"key", value=b'{"n":1}', partition=0)
    producer.flush(20)
    producer.abort_transaction(20)


def grow(running: Running) -> None:
    """Add a partition, but no record, to the topic."""
    items = running.names("items")
    admin = AdminClient({"bootstrap.servers": running.bootstrap})
    admin.create_partitions([NewPartitions(items, 2)])[items].result(20)
    while len(admin.list_topics(timeout=20).topics[items].partitions) < 2:
        time.sleep(0.02)


def test_a_batch_without_records_is_a_snapshot_without_changes(start: Start) -> None:
    running = start(counted)
    running.send("items", b'{"n":1}')
    running.run()
    for come in (abort_some, grow):
        before = running.snapshots()
        come(running)
        assert running.run() == 0
        published = running.snapshots()
        assert len(published) == len(before) + 1
        assert published[-1].positions != before[-1].positions
        assert published[-1].counts == {"rows": 0}
    assert running.run() == 0  # no new records
    assert running.snapshots() == published


def test_batches_without_records_can_be_rebuilt(start: Start) -> None:
    """The first has aborted records only, and the topic gains a partition before the second."""
    running = start(counted)
    for come in (abort_some, grow):
        come(running)
        assert running.run() == 0
    assert rebuild(running) == 2
    running.send("items", b'{"n":1}')
    assert running.run() == 1
    assert running.store("n") == {"key": 1}
    assert len(running.output("copies")) == 1


def test_a_run_that_waited_for_a_rebuild_continues_with_the_new_generation(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(counted)
    running.send("items", b'{"n":1}')
    running.run()
    running.send("items", b'{"n":2}')
    take = Lease.__enter__

    def first_a_rebuild(lease: Lease) -> Lease:
        monkeypatch.setattr(Lease, "__enter__", take)
        rebuild(running)
        return lease.__enter__()

    monkeypatch.setattr(Lease, "__enter__", first_a_rebuild)
    assert running.run() == 1
    assert running.snapshot().id == "2.1"
    assert running.store("n") == {"key": 2}
    assert [value["n"] for _, value in running.output("copies")] == [1, 2]
    with pytest.raises(LeaseError, match=r"Generation 1 of .* was replaced by generation 2"):
        running.run(generation=1)


def test_a_driver_of_a_replaced_generation_writes_no_output(start: Start) -> None:
    running = start(counted)
    running.send("items", b'{"n":1}')
    running.run()
    writer = Writer(GenerationRef(running.pipeline.name, 1), running.pipeline.markers)
    batch = Batch(number=1, begun=0, partitions={}, ends={})
    with TransactionalOutput(
        {"bootstrap.servers": running.bootstrap}, writer, {"any": TopicLimits()}
    ) as stopped:
        rebuild(running)
        with pytest.raises(EngineError, match=r"[Ff]enced"):
            stopped.send(batch, [])


def test_a_rebuild_without_the_lease_replaces_nothing(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(counted)
    running.send("items", b'{"n":1}')
    running.run()
    promote = Generations.promote

    def take_lease_first(generations: Generations, *of: Any, **how: Any) -> None:
        running.take_lease()
        promote(generations, *of, **how)

    monkeypatch.setattr(Generations, "promote", take_lease_first)
    with pytest.raises(LeaseError, match="lost its lease"):
        rebuild(running)
    assert running.snapshot().id == "1.0"


def test_a_rebuild_does_not_repeat_output_that_was_written_before_a_crash(start: Start) -> None:
    running = start(counted)
    running.send("items", b'{"n":1}')
    running.run()
    running.send("items", b'{"n":2}')
    running.crash_before_publishing()
    assert rebuild(running) == 2
    assert running.store("n") == {"key": 2}
    assert running.run() == 0
    assert [value["n"] for _, value in running.output("copies")] == [1, 2]


def joined_with_a_table(names: Names) -> Pipeline:
    pipeline = names.pipeline()
    items, prices = (
        pipeline.stream(names("items"), value=Item),
        pipeline.table(names("prices"), value=Item),
    )
    both = items.left_join(prices).group_by_key()
    both.aggregate(store="n", joined="count(right.n)", all="count(*)")
    return pipeline


def test_a_late_row_of_a_table_is_late_again(start: Start) -> None:
    running = start(joined_with_a_table)
    for topic, at in (
        ("items", 2000),
        ("prices", 1000),
        ("items", 2001),
    ):  # the price is older than the first item
        running.send(topic, b'{"n":1}', timestamp=at)
        running.run()
    before, last = running.store("n"), running.snapshot()
    assert before == {"key": {"joined": 1, "all": 2}}
    with running.ledger() as ledger:
        retain(ledger, running.pipeline.name, keep_snapshots=1, keep_seconds=0)
        assert len(running.snapshots()) == 1
    assert rebuild(running) == 2  # the rebuild compares the checksums
    assert running.store("n") == before
    assert (running.snapshot().positions, running.snapshot().stream_times) == (
        last.positions,
        last.stream_times,
    )


def test_a_record_from_the_future_is_rejected_again(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(lambda names: counted(names, max_future_skew="2 seconds"))
    now = int(time.time() * 1000)
    in_half_an_hour = now + 1_800_000
    running.send("items", b'{"n":1}', timestamp=now)
    running.send("items", b'{"n":2}', timestamp=in_half_an_hour)
    running.run()
    assert running.reasons() == ["future"]
    monkeypatch.setattr("sluice.engine.run.clocks._milliseconds", lambda: in_half_an_hour)
    running.send("items", b'{"n":3}', timestamp=in_half_an_hour)
    running.run()
    assert rebuild(running) == 2
    assert running.store("n") == {"key": 2}


def test_small_batches_are_merged_if_the_result_is_the_same(start: Start) -> None:
    running = start(counted, items=2)
    for number in range(4):
        running.send("items", b'{"n":1}', partition=number % 2)
    running.run(max_records=1)
    assert len(running.snapshots()) > 1
    rebuild(running)
    assert [snapshot.id for snapshot in running.snapshots()] == ["2.0"]
    assert running.store("n") == {"key": 4}


def test_a_lost_history_is_reported(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    running = start(joined_with_a_table)
    running.send("items", b'{"n":1}', timestamp=2000)
    running.run()
    running.send("prices", b'{"n":5}', timestamp=1000)
    running.run()
    with running.ledger() as ledger, ledger.engine.connect() as connection:
        connection.exec_driver_sql("DELETE FROM history")
        connection.commit()
    with pytest.raises(EngineError, match="does not have all batches"):
        rebuild(running)
    assert "history lost" in "".join(capfd.readouterr())
    assert JobRun(running.spark, plan(running.pipeline).job, running.settings).run() == 0
